"""`new` writes a variant that works, and `--print-completion` a script that bash understands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Refused

from harness.cli.main import main

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")


def test_new_variant_obeys_every_law(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["new", "just_written"]) == 0
    printed = capsys.readouterr().out
    assert "just_written.py is written" in printed
    (laws,) = (line for line in printed.split("\n") if "laws" in line)
    assert laws.strip() in Path("just_written.py").read_text(encoding="utf-8")
    assert main(laws.split("python -m harness ")[1].split()) == 0
    assert "every law holds in the fast checks; run without --fast for the full ones" in capsys.readouterr().out


def test_new_leaves_an_existing_file_as_it_is(refused: Refused) -> None:
    Path("mine.py").write_text("keep = 1", encoding="utf-8")
    refused(["new", "mine"], "mine.py exists")
    assert Path("mine.py").read_text(encoding="utf-8") == "keep = 1"


def test_printed_completion_completes_options_in_bash(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--print-completion", "bash"])
    script = f"""{capsys.readouterr().out}
COMP_WORDS=(bakeoff compare --res); COMP_CWORD=2
eval "$(complete -p bakeoff | sed 's/.*-F //; s/ .*//')"
echo "${{COMPREPLY[@]}}"
"""
    completed = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["--results"]
