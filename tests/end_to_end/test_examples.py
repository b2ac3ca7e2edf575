"""The notebooks in examples/ and the Python code of the documentation run."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
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


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["BAKEOFF_CACHE"] = str(tmp_path / "cache")
    settings = {"env": environment, "capture_output": True, "text": True, "timeout": 600, "check": False}
    code = code_of(notebook)
    if notebook.stem == "train_and_look":
        assert "tiny = {" in code
        code = code.replace("tiny = {", 'tiny = {"data.training_pairs": 500, "decoding.max_tokens": 10, ')
    process = subprocess.run([sys.executable, "-c", code], cwd=notebook.parent, **settings)
    assert process.returncode == 0, process.stderr
    if notebook.stem == "train_and_look":
        assert "FAILED" in process.stdout
        (line,) = (line for line in process.stdout.splitlines() if line.startswith("no positions:"))
        first, second = ast.literal_eval(line.partition(":")[2].strip())
        assert first == second, "the two sentences have the same words, and nothing else tells them apart"


def test_table_of_runs_in_the_notebook_tells_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    code, _, displayed = code_of(ROOT / "examples" / "read_results.ipynb").partition("\ntable[[")
    exec(code, names)
    shown = eval("table[[" + displayed.partition("\n")[0], names)
    assert not shown.duplicated(["variant", "framework", "budget", "seed"]).any()


def test_noise_in_the_notebook_is_that_of_seeds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    exec(code_of(ROOT / "examples" / "how_many_seeds.ipynb"), names)
    for runs, groups in (("table", "variants"), ("ablation", "within")):
        assert not names[runs].duplicated([*names[groups].keys, "seed"]).any()


def test_hugging_face_dataset_becomes_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pairs = [{"de": f"Hund {number} läuft .", "en": f"Dog {number} runs ."} for number in range(3)]
    saved = {split: {"translation": pairs} for split in ("train", "validation", "test")}
    stand_in = SimpleNamespace(load_from_disk=lambda folder: saved)
    monkeypatch.setitem(sys.modules, "datasets", stand_in)  # which is not installed with the tests
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if "load_from_disk" in block)
    exec(compile(code, "documentation", "exec"), {})
    names = {f"{split}_source": str(tmp_path / f"{split}.tsv") for split in saved}
    corpus = corpora.load(DataSpec(corpus="files", files=FileSpec(**names)))
    assert corpus.splits["test"][0][2] == "Hund 2 läuft ."
    assert corpus.splits["train"][1][0] == "Dog 0 runs ."
