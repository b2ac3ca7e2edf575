"""Files from strangers execute nothing, write nothing outside, end soon in little memory, and are told in a line."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hostile_files import CANARY, CASES, PICKLE, RUN, SECRET, write_valid
from places import ROOT
from small_runs import spec

from harness.data.dataset import prepare
from harness.storage import run_store
from harness.training import load, train

SECONDS = 30.0
MEMORY_BYTES = 3 * 2**30
"""Address space, of which libraries that are loaded take most."""

SAMPLE = (
    "a pickle for a record",
    "deep nesting",
    "a hundred thousand names and one twice",
    "digests that are a number",
    "a record that is a pipe",
    "a variant that clears the screen",
    "a builder of the stranger's",
    "translations that link outside",
    "a text of this machine",
    "a word of four thousand brackets",
    "a header beyond all",
    "a manifest that leads outside",
)


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("valid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(place / "cache"))
        write_valid(place)
    return place


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def harness(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command as in the folder that a stranger sent, within the bounds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BAKEOFF_CACHE": str(place / "cache"), "OMP_NUM_THREADS": "1"}
    environment |= {"OPENBLAS_NUM_THREADS": "1", "MULTI30K_DIR": str(place / "nothing")}
    return subprocess.run(
        [sys.executable, "-m", "harness", *words, "--results", "results"],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=limited,
    )


def everything(place: Path) -> dict[str, object]:
    """Return what lies in a folder, links and pipes included, without the cache."""
    return {
        str(path.relative_to(place)): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(place.rglob("*"))
        if "cache" not in path.parts and not path.is_dir()
    }


def meet(valid: Path, place: Path, name: str) -> None:
    shutil.copytree(valid, place, dirs_exist_ok=True)
    case = CASES[name]
    case.plant(place / "results" / RUN)
    before, began = everything(place), time.monotonic()
    found = harness(place, *case.command)
    assert time.monotonic() - began < SECONDS
    told = found.stdout + found.stderr
    assert found.returncode == case.code, told
    lines = [line for line in told.split("\n") if case.says in line]
    assert lines, told
    assert "Traceback" not in told
    assert all(len(line) < 2_000 for line in found.stderr.split("\n"))
    assert SECRET not in told
    assert not set(told) & {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e"} - {"\n"}
    assert everything(place) == before


def test_stored_model_external_builder_needs_permission(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
        patch.setenv("OMP_NUM_THREADS", "1")
        made = train.run(spec(), tmp_path)
        prepared = prepare(made.spec.data)
        with pytest.raises(ValueError, match="--import-builder imports"):
            load.load_model(made, tmp_path, prepared, device="cpu")
        model = load.load_model(made, tmp_path, prepared, device="cpu", import_builder=True)
    stored = run_store.load_weights(tmp_path, made.id)
    assert {name: one.tobytes() for name, one in model.weights().items()} == {
        name: one.tobytes() for name, one in stored.items()
    }


def test_planted_pickle_executes_when_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(PICKLE)
    assert (tmp_path / CANARY).exists()


@pytest.mark.parametrize("name", SAMPLE)
def test_command_hostile_file_is_harmless(valid: Path, tmp_path: Path, name: str) -> None:
    meet(valid, tmp_path, name)


@pytest.mark.faults
@pytest.mark.parametrize("name", CASES)
def test_command_every_hostile_file_is_harmless(valid: Path, tmp_path: Path, name: str) -> None:
    meet(valid, tmp_path, name)
