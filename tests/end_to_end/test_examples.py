"""The notebooks in examples/ and the Python code of the documentation run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from places import ROOT

from harness.data import corpora
from harness.experiments.specs import DataSpec, FileSpec

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


def test_noise_in_the_notebook_is_that_of_seeds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(code_of(ROOT / "examples" / "how_many_seeds.ipynb"), names)
    assert not names["ablation"].duplicated([*names["within"].keys, "seed"]).any()


def snippet(page: str, text: str) -> str:
    """Return the Python code of a page of the documentation that contains a text."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if text in block)
    return str(code)


def execute(code: str, modules: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Execute code with stand-ins for libraries that are not installed with the tests."""
    for name, contents in modules.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    exec(compile(code, "documentation", "exec"), {})


def test_hugging_face_dataset_becomes_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [{"de": f"Hund {number} läuft .", "en": f"Dog {number} runs ."} for number in range(3)]
    saved = {split: {"translation": pairs} for split in ("train", "validation", "test")}
    execute(snippet("data.md", "load_from_disk"), {"datasets": {"load_from_disk": lambda folder: saved}}, monkeypatch)
    names = {f"{split}_source": str(tmp_path / f"{split}.tsv") for split in saved}
    corpus = corpora.load(DataSpec(corpus="files", files=FileSpec(**names)))
    assert corpus.splits["test"][0][2] == "Hund 2 läuft ."
    assert corpus.splits["train"][1][0] == "Dog 0 runs ."
