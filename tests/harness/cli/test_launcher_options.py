"""`--launcher` and its options."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import Refused

from harness.execution import launcher

REFUSED = {
    "--launcher rax": "'rax' is not one of local, ray, slurm; did you mean 'ray'?",
    "--address here:1": "--address requires --launcher ray",
    "--launcher slurm --address here:1": "--address requires --launcher ray",
    "--checkpoint-folder shared": "--checkpoint-folder requires --launcher ray",
    "--launcher ray --slurm time=3": "--slurm requires --launcher slurm",
    "--launcher ray --jobs 2": "--jobs 2 does not apply to --launcher ray",
    "--launcher ray --address ray://here:1": "--address ray://here:1: Ray client addresses do not work; give HOST:PORT",
    "--launcher slurm --slurm time": "--slurm time: give KEY=VALUE, such as partition=long",
    "--launcher slurm --slurm time=": "--slurm time=: give KEY=VALUE, such as partition=long",
    "--launcher ray": "--launcher ray: ray is not installed: python -m pip install '.[ray]'",
    "--launcher slurm": "--launcher slurm: submitit is not installed: python -m pip install '.[slurm]'",
}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("command", ["bench", "ablate"])
@pytest.mark.parametrize(("words", "message"), REFUSED.items(), ids=REFUSED.keys())
def test_options_that_do_not_fit_the_launcher_are_refused(
    command: str, words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    for library in launcher.LIBRARIES.values():
        monkeypatch.setitem(sys.modules, library, None)
    results = tmp_path / "results"
    arguments = ["--corpus", "captions", "--tokenizer", "whitespace", "--results", str(results)]
    refused([command, *arguments, *words.split()], message)
    assert not results.exists()
