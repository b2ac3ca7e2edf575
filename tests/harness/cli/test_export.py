"""`export`: the command line; the files are tested in tests/harness/training/test_weight_export.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Refused, Trained

from harness.cli.main import main

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")


def test_export_writes_the_folder_and_says_where(
    trained: Trained, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    line = ["export", "--results", str(results), "--run", record.id[:20], "--to", "safetensors", "--output", "a/b"]
    assert main(line) == 0
    assert capsys.readouterr().out == f"{record.id}: exported to a/b; its README.md has code that loads it\n"
    assert Path("a/b/README.md").is_file()
    refused(line, "bakeoff: a/b: expected a folder that does not exist or is empty\n")
