"""Files from strangers execute nothing, write nothing outside, need little time and memory, and give one line."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile_files import CANARY, CASES, PICKLE, SECRET
from places import ROOT
from small_runs import spec

from harness.conformance.assertions import assert_same_bits
from harness.data.dataset import prepare
from harness.storage import run_store
from harness.training import load, train

SECONDS = 30
"""The limit of the CPU time, and of the whole time."""

MEMORY_BYTES = 3 * 2**30
"""The limit of the address space, most of which loaded libraries take."""


def limited() -> None:
    if sys.platform == "linux":  # macOS refuses a limit below the addresses that every process reserves
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def harness(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"BAKEOFF_CACHE": str(folder / "cache"), "MULTI30K_DIR": str(folder / "missing")}
    return subprocess.run(
        [sys.executable, "-m", "harness", *words, "--results", "results"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=limited,
    )


def snapshot(folder: Path) -> dict[str, object]:
    """Return all files of a folder, links and pipes included, without the cache."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if "cache" not in path.parts and not path.is_dir()
    }


@pytest.mark.usefixtures("cache")
def test_stored_model_external_builder_needs_permission(tmp_path: Path) -> None:
    record = train.run(spec(), tmp_path)
    prepared = prepare(record.spec.data)
    with pytest.raises(ValueError, match="--import-builder imports"):
        load.load_model(record, tmp_path, prepared, device="cpu")
    model = load.load_model(record, tmp_path, prepared, device="cpu", import_builder=True)
    assert_same_bits("weights", model.weights(), run_store.load_weights(tmp_path, record.id))


def test_planted_pickle_executes_when_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(PICKLE)
    assert (tmp_path / CANARY).exists()


@pytest.mark.faults
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.sample] * (place % 5 == 0)) for place, name in enumerate(CASES)]
)
def test_command_hostile_file_is_harmless(valid: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(valid, tmp_path, dirs_exist_ok=True)
    case = CASES[name]
    case.plant(tmp_path / "results")
    before = snapshot(tmp_path)
    process = harness(tmp_path, *case.command)
    output = process.stdout + process.stderr
    assert process.returncode == case.code, output
    assert any(case.message in line for line in output.split("\n")), output
    assert "Traceback" not in output
    assert all(len(line) < 2_000 for line in process.stderr.split("\n"))
    assert SECRET not in output
    assert not set(output) & {*map(chr, range(32)), *map(chr, range(127, 160)), "\u202e"} - {"\n"}
    assert snapshot(tmp_path) == before
