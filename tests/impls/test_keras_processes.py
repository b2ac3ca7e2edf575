"""Frameworks loaded by real runs, their records, and messages about missing frameworks.

Every command runs in a process of its own in which a `sitecustomize` notes at the end what was loaded, in it and in all
processes that it started, and hides frameworks as if they were not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from places import ROOT

from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.registry import INSTALL

COMPUTES = {"torch", "tensorflow", "jax"}
SETTINGS = (
    *("data.training_pairs=200", "training.batch_size=32", "decoding.max_tokens=4"),
    *("recipe.width=16", "recipe.ffn_width=16", "recipe.layers=1", "recipe.heads=2"),
)
SMALL = (
    *("--corpus", "captions", "--tokenizer", "whitespace", "--threads", "1", "--epochs", "1", "--updates", "2"),
    *(f"--set={setting}" for setting in SETTINGS),
)
CHOICES = {
    "torch": (),
    "tensorflow": ("--framework", "keras"),
    "jax": ("--framework", "keras", "--backend", "jax"),
    "keras-torch": ("--framework", "keras", "--backend", "torch"),
}
"""The options for each framework; TensorFlow is Keras's default backend."""

SITE = """
import atexit, importlib.machinery, json, os, sys

FRAMEWORKS = ("torch", "tensorflow", "jax", "keras")
HIDDEN = os.environ["TEST_HIDDEN"].split()

class Hiding(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Hiding

def tell():
    found = {"command": sys.orig_argv, "loaded": [name for name in FRAMEWORKS if sys.modules.get(name)]}
    with open(os.path.join(os.environ["TEST_LOADED"], f"{os.getpid()}.json"), "w") as file:
        json.dump(found, file)

atexit.register(tell)
"""


@dataclass(frozen=True)
class Done:
    """The result of a command: exit code, output, and the frameworks that each process had loaded at its end."""

    code: int
    output: str
    error: str
    loaded: list[set[str]]
    records: list[RunRecord]


def command(folder: Path, *words: str, hidden: tuple[str, ...] = ()) -> Done:
    """Run a command line of the harness in an empty folder."""
    site, loaded, results = folder / "site", folder / "loaded", folder / "results"
    for one in (site, loaded):
        one.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "TEST_HIDDEN": " ".join(hidden),
        "TEST_LOADED": str(loaded),
        "BAKEOFF_CACHE": str(folder.parent / "cache"),
        "MULTI30K_DIR": str(folder / "nothing"),
    }
    line = [sys.executable, "-m", "harness", *words]
    done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    message = [json.loads(path.read_text(encoding="utf-8")) for path in loaded.iterdir()]
    records = run_store.records(results, complain=lambda text: None) if results.is_dir() else []
    return Done(done.returncode, done.stdout, done.stderr, [set(one["loaded"]) for one in message], records)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


class Runs:
    """One run of each framework, started on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done: dict[str, Done] = {}

    def __getitem__(self, name: str) -> Done:
        if name not in self.done:
            self.done[name] = run(self.folder / name, name)
        return self.done[name]


def run(folder: Path, name: str, hidden: tuple[str, ...] = ()) -> Done:
    """Train a tiny model in a framework of `CHOICES`."""
    words = ("learned_positions", *SMALL, *CHOICES[name], "--results", "results")
    return command(folder, "run", *words, hidden=hidden)


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    return Runs(folder)


@pytest.mark.parametrize("name", CHOICES)
def test_training_process_loads_one_framework(name: str, runs: Runs) -> None:
    done = runs[name]
    assert done.code == 0, done.error
    wanted = {"torch"} if name == "torch" else {"keras", name.removeprefix("keras-")}
    assert wanted in done.loaded
    assert not [loaded for loaded in done.loaded if len(loaded & COMPUTES) > 1]


@pytest.mark.parametrize("name", CHOICES)
def test_record_has_framework_and_compilation_time(name: str, runs: Runs) -> None:
    (record,) = runs[name].records
    assert record.status == "completed"
    assert record.environment["framework"] == ("torch" if name == "torch" else "keras")
    assert record.environment["backend"] == name.removeprefix("keras-")
    assert record.environment.get("jit_compile") is {"torch": None, "jax": True}.get(name, False)
    assert record.environment["precision"] == "float32"
    speed = record.speed
    if name in ("tensorflow", "jax"):
        assert 0 < speed["compilations"] <= 40
        assert 0 < speed["compilation_seconds"] <= speed["total_seconds"]
    else:
        assert speed.get("compilations", 0) == speed.get("compilation_seconds", 0) == 0


@pytest.mark.parametrize("name", [name for name in CHOICES if name != "torch"])
def test_keras_and_torch_train_on_same_inputs(name: str, runs: Runs) -> None:
    (record,), (torch_s,) = runs[name].records, runs["torch"].records
    for given in ("files", "source_vocabulary", "target_vocabulary", "tokenised", "stream", "weights"):
        assert record.fingerprints[given] == torch_s.fingerprints[given], given
    assert record.sizes == torch_s.sizes
    assert [one.updates for one in record.curve] == [one.updates for one in torch_s.curve]
    assert record.curve[0].tokens == torch_s.curve[0].tokens
    assert record.signatures == torch_s.signatures
    assert record.id != torch_s.id


def test_bench_with_both_frameworks_separates_processes(folder: Path) -> None:
    words = ("--variant", "learned_positions", "--framework", "torch", "--framework", "keras", "--seed", "0")
    done = command(folder / "bench", "bench", "--suite", "quick", *words, *SMALL, "--results", "results")
    assert done.code == 0, done.error
    assert {record.environment["backend"] for record in done.records} == {"torch", "tensorflow"}
    assert len({json.dumps(record.fingerprints["weights"], sort_keys=True) for record in done.records}) == 1
    assert len({record.fingerprints["stream"] for record in done.records}) == 1
    assert {"torch"} in done.loaded
    assert {"keras", "tensorflow"} in done.loaded
    assert not [loaded for loaded in done.loaded if len(loaded & COMPUTES) > 1]


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("torch", "torch"),
        ("tensorflow", "keras"),
        ("tensorflow", "tensorflow"),
        ("jax", "keras"),
        ("jax", "jax"),
        ("keras-torch", "torch"),
    ],
)
def test_missing_package_names_install_command(name: str, hidden: str, tmp_path: Path) -> None:
    done = run(tmp_path / "run", name, (hidden,))
    assert done.code == 2
    assert done.error.count("\n") == 1
    assert done.error.startswith("bakeoff: ")
    assert f"{hidden!r} is not installed" in done.error
    assert INSTALL[hidden] in done.error
    assert not done.records


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in ("jax", "keras-torch"))) for name in CHOICES],
)
def test_framework_trains_without_the_others(name: str, folder: Path) -> None:
    """A framework trains if no other one is installed."""
    needed = {"torch"} if name == "torch" else {"keras", name.removeprefix("keras-")}
    hidden = tuple(sorted((COMPUTES | {"keras"}) - needed))
    done = run(folder / f"{name} alone", name, hidden)
    assert done.code == 0, done.error
    assert [record.status for record in done.records] == ["completed"]


def test_commands_without_training_need_no_framework(tmp_path: Path, runs: Runs) -> None:
    hidden = tuple(sorted(COMPUTES | {"keras"}))
    assert runs["torch"].records
    results = str(runs.folder / "torch" / "results")
    for words in (["list"], ["report", "--results", results, "--reports", "reports"], ["score", "--results", results]):
        done = command(tmp_path / words[0], *words, hidden=hidden)
        assert done.code == 0, done.error
        assert done.loaded
        assert not any(done.loaded)
