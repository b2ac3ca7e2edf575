"""`bench` of two slow runs that Ctrl-C breaks off once both have trained an epoch, and that then goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from harness.experiments.specs import RunRecord
from harness.storage import checkpoint_files, run_store

TESTS = Path(__file__).resolve().parent
EPOCHS = 8
"""More than a busy machine gets through while it hears of Ctrl-C; a run takes about 2.5 seconds for one."""


def bench(results: Path, *words: str) -> list[str]:
    """Return the command line."""
    given = ["--corpus", "captions", "--tokenizer", "whitespace", "--set", "data.training_pairs=200", "--threads", "1"]
    given += ["--set", "training.batch_size=32", "--set", "decoding.max_tokens=5", "--results", str(results)]
    given += ["--reports", str(results.parent / "reports"), "--variant", "counting_model:build_slow"]
    given += ["--epochs", str(EPOCHS)]
    return [sys.executable, "-m", "harness", "bench", *given, "--seed", "0", "--seed", "1", *words]


def interrupted(results: Path, *words: str) -> list[RunRecord]:
    """Interrupt both runs; Ctrl-C gives records and checkpoints."""
    with subprocess.Popen(
        bench(results, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=TESTS.parent,
        # A shell that starts these tests in the background makes them, and so their children, deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        seen = ""
        while seen.count(f"epoch 1/{EPOCHS}: training loss") < 2:
            line = process.stdout.readline()
            assert line, seen
            seen += line
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert process.returncode == 130, seen + rest
    # submitit's own processes on this machine die of Ctrl-C, which stands for scancel there.
    assert "Traceback" not in rest or "cluster=local" in words
    records = run_store.records(results)
    assert [record.status for record in records] == ["interrupted"] * 2, rest
    assert all(checkpoint_files.exists(results, record.id) for record in records)
    return records


def interrupted_and_gone_on(results: Path, *words: str) -> None:
    """Interrupt both runs; the same command goes on from there and exits with 0."""
    interrupted(results, *words)
    command = bench(results, *words)
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.count("goes on after update") == 2
    assert [record.status for record in run_store.records(results)] == ["completed"] * 2
