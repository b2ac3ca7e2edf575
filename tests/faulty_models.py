"""Models whose training goes wrong as that of a real one may: each builder is one way for a run to end badly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from counting_model import CountingModel

from impls.contract import Batch

NOTES = "FAULTY_MODELS_NOTES"
"""The variable that names the folder in which builders leave a line for each process that trains, and where they
find whether they were here before."""

FAULTY_UPDATE = 10
"""Update at which things go wrong: in the second of three epochs, so that a checkpoint is there."""


def note(name: str, text: str = "") -> int:
    """Add a line to a file of the notes, and return how many there are now."""
    path = Path(os.environ[NOTES]) / name
    with path.open("a") as file:
        file.write(f"{text or os.getpid()}\n")
    return len(path.read_text().splitlines())


class _Faulty(CountingModel):
    """Goes wrong at one update; `times`: in so many processes, and not after."""

    times = 10**6

    def __init__(self, target_words: int, *, training: Any, seed: int, pause: float = 0.0) -> None:
        super().__init__(target_words, training=training, seed=seed, pause=pause)
        self.process = note(f"{type(self).__name__}-{seed}")

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        if self.updates == FAULTY_UPDATE and self.process <= self.times:
            self.go_wrong()
        super().train_step(batch, learning_rate)

    def go_wrong(self) -> None:
        """Do what the class is named for."""


def _builder(kind: type[_Faulty], pause: float = 0.0) -> Any:
    def build(source_words: int, target_words: int, **settings: Any) -> CountingModel:
        return kind(target_words, training=settings["training"], seed=settings["seed"], pause=pause)

    return build


class Sound(_Faulty):
    """Trains as it should, and notes that it did."""


class Raising(_Faulty):
    def go_wrong(self) -> None:
        raise RuntimeError("the planted fault")


class OutOfMemory(_Faulty):
    def go_wrong(self) -> None:
        np.zeros(2**50)


class Aborting(_Faulty):
    def go_wrong(self) -> None:
        sys.stderr.write("free(): invalid pointer \x1b[31m\x07\n")
        sys.stderr.flush()
        os.abort()


class Signalled(_Faulty):
    number = int(signal.SIGKILL)

    def go_wrong(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(5)


class Segfaulting(Signalled):
    number = int(signal.SIGSEGV)


class KilledOnce(Signalled):
    times = 1


class AskedOnce(Signalled):
    """Somebody's `kill`, without -9, of the process alone."""

    number = int(signal.SIGTERM)
    times = 1

    def go_wrong(self) -> None:
        os.kill(os.getpid(), self.number)


class KilledForMemory(_Faulty):
    def go_wrong(self) -> None:
        (Path(os.environ[NOTES]) / "counter").write_text("low 0\noom 4\noom_kill 4\n")
        os.kill(os.getpid(), signal.SIGKILL)


class Hanging(_Faulty):
    def go_wrong(self) -> None:
        note("hanging")
        while True:
            time.sleep(60)


class Heeding(_Faulty):
    """An update that would take for ever, and tells nothing, but ends on SIGTERM."""

    def go_wrong(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
        note("heeding")
        while True:
            time.sleep(60)


class HangingOnce(Hanging):
    times = 1


class Leaving(_Faulty):
    def go_wrong(self) -> None:
        os._exit(0)


class Scribbling(_Faulty):
    """Writes half a record, and leaves as if all were well."""

    def go_wrong(self) -> None:
        folder = Path(os.environ[NOTES]).parent / "results"
        for path in folder.glob("*Scribbling*"):
            (path / "record.json").write_text('{"schema": 1, "id": "' + path.name + '", "status": "comple')
        os._exit(0)


class Flooding(_Faulty):
    def go_wrong(self) -> None:
        rubbish = bytes(range(256)) * 4096
        for _ in range(30):
            for descriptor in (1, 2):
                os.write(descriptor, rubbish)
            time.sleep(0.01)


class Breeding(_Faulty):
    """Leaves a child behind, which would never end."""

    def go_wrong(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        note("children", str(child.pid))
        os._exit(3)


build_sound = _builder(Sound)
build_slow = _builder(Sound, pause=0.15)
build_raising = _builder(Raising)
build_out_of_memory = _builder(OutOfMemory)
build_aborting = _builder(Aborting)
build_signalled = _builder(Signalled)
build_segfaulting = _builder(Segfaulting)
build_killed_once = _builder(KilledOnce)
build_asked_once = _builder(AskedOnce)
build_killed_for_memory = _builder(KilledForMemory)
build_hanging = _builder(Hanging)
build_heeding = _builder(Heeding)
build_hanging_once = _builder(HangingOnce)
build_leaving = _builder(Leaving)
build_scribbling = _builder(Scribbling)
build_flooding = _builder(Flooding)
build_breeding = _builder(Breeding)
