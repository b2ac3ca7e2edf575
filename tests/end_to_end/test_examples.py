"""The notebooks in examples/ run from beginning to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def code_of(notebook: Path) -> str:
    """Return the code of all cells, in order; the value of a cell is not printed."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") for cell in cells), f"{notebook.name}: clear its outputs"
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def run_notebook(notebook: Path, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["BAKEOFF_CACHE"] = str(folder / "cache")
    command = [sys.executable, "-c", code_of(notebook)]
    settings = {"env": environment, "capture_output": True, "text": True, "timeout": 600, "check": False}
    process = subprocess.run(command, cwd=notebook.parent, **settings)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    output = run_notebook(notebook, tmp_path)
    if notebook.stem == "train_and_look":
        assert "FAILED" in output
