"""Runs that are killed, and what must be the same whatever killed them.

`python -m killed_runs` is a process that has imported the framework and waits for a line of JSON for each run: it forks
a child that does the run, and kills it so many seconds later.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from small_runs import DATA, spec

from harness.experiments.specs import RunSpec, canonical_json, spec_from_json, to_json
from harness.processes.workers import worker_environment
from harness.storage import checkpoint_files, run_store
from harness.storage.files import file_digest
from impls import registry
from impls.contract import Training

ROOT = Path(__file__).resolve().parent.parent
TRAINING = Training(batch_size=32, epochs=2, peak_rate=1e-2, label_smoothing=0.1, averaged_epochs=1)
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16},
    "torch_reference": {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16},
    "plain": {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16},
    "gru": {"width": 16, "embedding_width": 8},
}
UPDATES = 14
IMPORTED = {
    "torch": ("impls.pytorch.torch_adapter", "torch._dynamo", "sacremoses", "sacrebleu.metrics"),
    "keras": ("impls.keras3.keras_adapter", "sacremoses", "sacrebleu.metrics"),
}
"""What a run imports sooner or later: what is there before the fork, no run waits for, and no kill meets."""

FILES = {
    "hypotheses": run_store.HYPOTHESES,
    "trained_weights": f"{run_store.WEIGHTS}.safetensors",
    "sentences": run_store.SENTENCES,
    "attention": run_store.ATTENTION,
}
ENDED = {*FILES.values(), f"{run_store.WEIGHTS}.json", run_store.RECORD, run_store.LOG}


def tiny(variant: str, **changes: Any) -> RunSpec:
    """Return a run of a variant in its own recipe, over in a second; the GRU flips coins."""
    recipe = registry.recipe(variant)
    training = replace(TRAINING, teacher_forcing=0.5) if recipe.family == "gru" else TRAINING
    data = replace(DATA, vocabulary="joint") if getattr(recipe, "tying", "none") == "all" else DATA
    return spec(variant, replace(recipe, **SIZES[recipe.family]), **{"training": training, "data": data, **changes})


def outcome(results: Path, run: RunSpec) -> dict[str, Any]:
    """Return all of a completed run but its times and its history; its files are what the record has digests of."""
    record, folder = run_store.load_record(results, run.id), results / run.id
    assert record is not None
    assert (record.status, record.reason) == ("completed", "")
    assert {path.name for path in folder.iterdir()} <= ENDED
    assert {name: file_digest(folder / file) for name, file in FILES.items()} == {
        name: record.fingerprints[name] for name in FILES
    }
    curve = [replace(one, training_seconds=0.0, validation_seconds=0.0) for one in record.curve]
    kept = ("spec", "fingerprints", "sizes", "chosen_epochs", "scores", "signatures", "decode")
    return {"curve": curve} | {name: getattr(record, name) for name in kept}


def environment(run: RunSpec, cache: Path) -> dict[str, str]:
    """Return the environment of a run's process."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    return {**os.environ, **worker_environment(run), "PYTHONPATH": paths, "BAKEOFF_CACHE": str(cache)}


def fresh(run: RunSpec, results: Path, cache: Path, *, checkpoint_seconds: float, kill_after: float | None) -> bool:
    """Run in a new process that is killed so many seconds later. Return whether it ended before that."""
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", "run", "--spec", "-", "--results", str(results)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment(run, cache),
        text=True,
    )
    told = canonical_json({"spec": to_json(run), "checkpoint_seconds": checkpoint_seconds}) + "\n"
    try:
        _, complaint = process.communicate(told, timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return False
    assert process.returncode == 0, complaint
    return True


class Forker:
    """The process that forks runs of one framework."""

    def __init__(self, run: RunSpec, cache: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "killed_runs", run.framework],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(run, cache),
            text=True,
            bufsize=1,
        )

    def run(self, run: RunSpec, results: Path, *, checkpoint_seconds: float, kill_after: float | None) -> float | None:
        """Do a run. Return the seconds it took, or None where it was killed so many seconds after its start."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        told = {"spec": to_json(run), "results": str(results), "kill_after": kill_after}
        self._process.stdin.write(json.dumps({**told, "checkpoint_seconds": checkpoint_seconds}) + "\n")
        answer = json.loads(self._process.stdout.readline())
        assert answer["status"] in (0, -signal.SIGKILL), "the run failed; why stands above"
        return None if answer["status"] else answer["seconds"]

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


def _serve(framework: str) -> None:
    """Be that process. No thread may be there, nor any parallel work be done, before a fork."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in IMPORTED[framework]:
        importlib.import_module(name)
    from harness.training import train as training

    for line in sys.stdin:
        given = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if not child:
            status = 1
            try:
                training.run(
                    spec_from_json(given["spec"]),
                    Path(given["results"]),
                    checkpoint_seconds=given["checkpoint_seconds"],
                )
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        limit = began + (given["kill_after"] if given["kill_after"] is not None else 600)
        while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < limit:
            time.sleep(0.002)
        if not ended[0]:
            os.kill(child, signal.SIGKILL)
            ended = os.waitpid(child, 0)
        seconds = time.monotonic() - began
        answers.write(json.dumps({"status": os.waitstatus_to_exitcode(ended[1]), "seconds": seconds}) + "\n")


def generations(results: Path, run: RunSpec) -> list[dict[str, Any]]:
    """Return the notes of the checkpoints of a run, the newest first."""
    found = []
    for path in (results / run.id).glob(f"{checkpoint_files.CHECKPOINT}-*.json"):
        found.append((int(path.stem.rpartition("-")[2]), json.loads(path.read_text())["notes"]))
    return [notes for _, notes in sorted(found, key=lambda pair: -pair[0])]


def moments(seed: int) -> np.random.Generator:
    """Return where the random moments of a case come from."""
    return np.random.default_rng([seed, 200])


if __name__ == "__main__":
    _serve(sys.argv[1])
