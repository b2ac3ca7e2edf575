"""Frameworks loaded by real runs, their records, messages about missing frameworks, and what an update leaves.

Each command runs in a new process whose `sitecustomize` hides frameworks as if they were not installed and writes the
loaded ones, for itself and all processes that it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import pytest
from places import PYTHON_PATH, ROOT
from small_runs import TINY_OPTIONS, spec

from harness.processes.environment_variables import worker_environment
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.registry import INSTALL

COMPUTES = {"torch", "tensorflow", "jax"}
SMALL = (*TINY_OPTIONS, "--epochs", "1", "--updates", "2")
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

def write_loaded():
    with open(os.path.join(os.environ["TEST_LOADED"], f"{os.getpid()}.json"), "w") as file:
        json.dump([name for name in FRAMEWORKS if sys.modules.get(name)], file)

atexit.register(write_loaded)
"""


FRAMEWORKS = [pytest.param(name, marks=[pytest.mark.slow] * (name in ("jax", "keras-torch"))) for name in CHOICES]
TORCH_OR_SLOW = [pytest.param(name, marks=[pytest.mark.slow] * (name != "torch")) for name in CHOICES]


@dataclass(frozen=True)
class Result:
    """Exit code, standard error and records of a command, and the frameworks that each process had loaded."""

    code: int
    error: str
    loaded: list[set[str]]
    records: list[RunRecord]


Runs = Callable[[str], Result]


def run_command(folder: Path, *words: str, hidden: tuple[str, ...] = ()) -> Result:
    site, loaded, results = folder / "site", folder / "loaded", folder / "results"
    site.mkdir(parents=True)
    loaded.mkdir()
    (site / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)]),
        "TEST_HIDDEN": " ".join(hidden),
        "TEST_LOADED": str(loaded),
        "BAKEOFF_CACHE": str(folder.parent / "cache"),
        "MULTI30K_DIR": str(folder / "missing"),
    }
    command = [sys.executable, "-m", "harness", *words]
    process = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    frameworks = [set(json.loads(path.read_text(encoding="utf-8"))) for path in loaded.iterdir()]
    records = run_store.records(results, complain=lambda text: None) if results.is_dir() else []
    return Result(process.returncode, process.stderr, frameworks, records)


def train(folder: Path, name: str, hidden: tuple[str, ...] = ()) -> Result:
    words = ("learned_positions", *SMALL, *CHOICES[name], "--results", "results")
    return run_command(folder, "run", *words, hidden=hidden)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def runs(folder: Path) -> Runs:
    """Return a function that gives the run of a framework, started at the first call."""
    return lru_cache(lambda name: train(folder / name, name))


@pytest.fixture(scope="module")
def bench(folder: Path) -> Result:
    """Return the runs of both frameworks that `bench` has made."""
    words = ("--variant", "learned_positions", "--framework", "torch", "--framework", "keras", "--seed", "0")
    return run_command(folder / "bench", "bench", "--suite", "quick", *words, *SMALL, "--results", "results")


@pytest.fixture(scope="module")
def records(runs: Runs, bench: Result) -> Callable[[str], tuple[RunRecord, RunRecord]]:
    """Return a function that gives the record of a framework, and that of torch from the same command."""

    def of(name: str) -> tuple[RunRecord, RunRecord]:
        if name in ("torch", "tensorflow"):
            by_backend = {record.environment["backend"]: record for record in bench.records}
            return by_backend[name], by_backend["torch"]
        return runs(name).records[0], runs("torch").records[0]

    return of


def frameworks_of(name: str) -> set[str]:
    return {"torch"} if name == "torch" else {"keras", name.removeprefix("keras-")}


@pytest.mark.parametrize("name", TORCH_OR_SLOW)
def test_training_process_loads_one_framework(name: str, runs: Runs) -> None:
    """By default torch; `bench` below trains with Keras in a process like that of `run`."""
    result = runs(name)
    assert result.code == 0, result.error
    assert frameworks_of(name) in result.loaded
    assert not [loaded for loaded in result.loaded if len(loaded & COMPUTES) > 1]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_record_has_framework_and_compilation_time(
    name: str, records: Callable[[str], tuple[RunRecord, RunRecord]]
) -> None:
    record, _ = records(name)
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


@pytest.mark.parametrize("name", FRAMEWORKS[1:])
def test_keras_and_torch_train_on_same_inputs(name: str, records: Callable[[str], tuple[RunRecord, RunRecord]]) -> None:
    record, torch_record = records(name)
    for part in ("files", "source_vocabulary", "target_vocabulary", "tokenised", "stream", "weights"):
        assert record.fingerprints[part] == torch_record.fingerprints[part], part
    assert record.sizes == torch_record.sizes
    assert [line.updates for line in record.curve] == [line.updates for line in torch_record.curve]
    assert record.curve[0].tokens == torch_record.curve[0].tokens
    assert record.signatures == torch_record.signatures
    assert record.id != torch_record.id


def test_bench_with_both_frameworks_separates_processes(bench: Result) -> None:
    assert bench.code == 0, bench.error
    assert {record.environment["backend"] for record in bench.records} == {"torch", "tensorflow"}
    assert {"torch"} in bench.loaded
    assert {"keras", "tensorflow"} in bench.loaded
    assert not [loaded for loaded in bench.loaded if len(loaded & COMPUTES) > 1]


@pytest.mark.parametrize(("name", "hidden"), [("torch", "torch"), ("tensorflow", "keras"), ("jax", "jax")])
def test_missing_package_names_install_command(name: str, hidden: str, tmp_path: Path) -> None:
    result = train(tmp_path / "run", name, (hidden,))
    assert result.code == 2
    assert result.error.count("\n") == 1
    assert result.error.startswith("bakeoff: ")
    assert f"{hidden!r} is not installed" in result.error
    assert INSTALL[hidden] in result.error
    assert not result.records


def output_of(code: str, **variables: str) -> str:
    """Run Python code, which must succeed, in a new process with more environment variables; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH, **variables}
    process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_scikit_learn_is_imported_while_nothing_is_hidden(tmp_path: Path) -> None:
    """Keras imports it, and the SciPy that it imports fails on modules that are None."""
    seen = "print(any(module is None for module in sys.modules.values()))"
    (tmp_path / "sklearn.py").write_text(f"import sys; {seen}; raise ImportError")
    path = os.pathsep.join([str(tmp_path), PYTHON_PATH])
    output = output_of("import impls.keras3.backends", KERAS_BACKEND="jax", PYTHONPATH=path)
    assert output.split()[:1] == ["False"]


# What an update leaves ------------------------------------------------------------------------------------------------

BUILD = """
from dataclasses import replace
from small_models import BASE, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, batch_of_lengths
import impls

sizes = SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE
recipe = replace(BASE, layers=1)
model = impls.build(recipe, *sizes, training=impls.Training(), framework="keras")
model.train_step(batch_of_lengths((3, 4), (5, 2)), 1e-3)
"""

COUNT_ATTACHED = """
tensors = [*model.held.weights, *(tensor for update, _ in model._sums for tensor in update)]
print(sum(tensor.grad_fn is not None for tensor in tensors), len(tensors))
"""

COUNT_COMPILATIONS = """
second = impls.build(recipe, *sizes, training=impls.Training(), framework="keras", seed=1)
print(model.compilation().count, second.compilation().count)
"""


def numbers_after_an_update(backend: str, script: str) -> list[int]:
    """Return the numbers that a script prints after the first update of a model on a backend of Keras."""
    return [int(word) for word in output_of(BUILD + script, KERAS_BACKEND=backend).split()]


def test_update_keeps_no_graph_of_its_gradients() -> None:
    """The graph of an update's gradients holds the weights before it."""
    attached, tensors = numbers_after_an_update("torch", COUNT_ATTACHED)
    assert tensors > 10
    assert attached == 0


def test_compilations_of_an_earlier_model_are_not_counted_again() -> None:
    assert numbers_after_an_update("jax", COUNT_COMPILATIONS) == [1, 0]


@pytest.mark.slow
def test_attention_of_an_empty_translation_gives_no_warning_on_torch() -> None:
    output_of("""
import warnings, numpy, impls
from dataclasses import replace
recipe = replace(impls.registry.recipe("learned_positions"), width=8, ffn_width=8, layers=1, heads=2)
model = impls.build(recipe, 9, 9, framework="keras", backend="torch")
warnings.simplefilter("error", UserWarning)
attention = model.cross_attention(numpy.array([[2, 5, 3]], numpy.int32), numpy.array([[2]], numpy.int32))
assert attention.shape == (1, 1, 2, 1, 3) and abs(attention.sum() - 2) < 1e-6
""")


def test_recorded_variables_are_the_same_before_and_after_the_import_of_keras(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TF_")]:
        monkeypatch.delenv(name)
    code = (
        "from harness.processes import machine; before = machine.variables(); import impls.keras3.backends; "
        "assert machine.variables() == before, machine.variables().items() ^ before.items()"
    )
    output_of(code, **worker_environment(spec(framework="keras", backend="torch")))
