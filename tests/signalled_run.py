"""A run that a signal meets in a chosen phase: `python -m signalled_run PHASE SIGNAL RESULTS MOMENT`.

When the signal is sent, the time is written into the file MOMENT.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import counting_model

ARGUMENTS = ["run", "counting_model:build_compiling", "--suite", "quick", "--budget", "controlled"]
ARGUMENTS += ["--corpus", "captions", "--tokenizer", "whitespace", "--threads", "1", "--checkpoint-seconds", "0"]
SETTINGS = ("data.training_pairs=200", "training.batch_size=32", "training.epochs=3", "decoding.max_tokens=5")
UPDATES = 21
COMPILING_SECONDS = 0.3

# Phase: module, attribute, and at which of its calls the signal comes.
PHASES: dict[str, tuple[str, str, int]] = {
    "tokenising": ("subprocess", "Popen.communicate", 1),
    "building": ("counting_model", "CountingModel.__init__", 1),
    "checking": ("counting_model", "CountingModel.logits", 1),
    "resuming": ("harness.storage.checkpoint_files", "load", 1),
    "compiling": ("counting_model", "CompilingModel._compile", 2),
    "training": ("counting_model", "CountingModel.train_step", 10),
    "validating": ("harness.training.train", "evaluate", 2),
    "translating": ("counting_model", "CompilingModel.begin_decoding", 4),
    "storing": ("harness.storage.run_store", "save_sentences", 1),
}
NUMBERS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}


def arguments(results: Path) -> list[str]:
    """Return the command line of the run."""
    given = [*ARGUMENTS, "--results", str(results)]
    for setting in SETTINGS:
        given += ["--set", setting]
    return given


def plant(phase: str, send: Callable[[], None]) -> None:
    """Let the signal come when the work comes to that phase."""
    module_name, path, number = PHASES[phase]
    holder: Any = __import__(module_name, fromlist=["_"])
    *owners, name = path.split(".")
    for owner in owners:
        holder = getattr(holder, owner)
    right, calls = getattr(holder, name), 0

    def planted(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and phase == "tokenising":
            threading.Timer(0.2, send).start()  # so that the other process is at work
        elif calls == number:
            send()
        return right(*given, **more)

    setattr(holder, name, planted)


def main() -> int:
    phase, name, results, moment = sys.argv[1:]
    counting_model.COMPILING_SECONDS = COMPILING_SECONDS
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)

    def send() -> None:
        Path(moment).write_text(str(time.time()))
        os.kill(os.getpid(), NUMBERS[name])

    def send_twice() -> None:
        for seconds in (0.5, 1.0):
            threading.Timer(seconds, send).start()

    from harness.cli.main import main as harness

    if phase == "ignored":
        signal.signal(NUMBERS[name], signal.SIG_IGN)
        plant("training", send)
    elif phase == "twice":
        # C code that never looks at signals, and takes minutes.
        step: Any = lambda *_: hashlib.pbkdf2_hmac("sha256", b"", b"", 2**30)  # noqa: E731
        setattr(counting_model.CompilingModel, "train_step", step)  # noqa: B010
        plant("building", send_twice)
    else:
        plant(phase, send)
    return harness(arguments(Path(results)))


if __name__ == "__main__":
    sys.exit(main())
