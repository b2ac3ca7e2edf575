"""SIGINT, SIGTERM and SIGHUP: noted when they come, obeyed where the work under way can stop whole."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

ASKED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a process to end. Where one was ignored at the start (nohup) it stays ignored."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """What a process that obeys ends with: 128 + the signal's number."""
        return 128 + self.number


class SignalGuard:
    """Takes the signals while it is entered, in the main thread; elsewhere, and not entered, it notes nothing itself.

        with Watch() as watch:
            for batch in batches:
                watch.check()           # raises Interrupted here, and not in the middle of an update
                model.train_step(...)

    Ctrl-C after any signal ends the process at once, also in the middle of C code that takes long: `last` is called
    first, in another thread, and may kill what must not be left behind.
    """

    def __init__(self, last: Callable[[], None] | None = None) -> None:
        self.noted: int | None = None
        self._last, self._raises, self._heard = last, False, 0
        self._before: dict[int, Any] = {}
        self._told: socket.socket | None = None
        self._wakeup = -1

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is not threading.main_thread():
            return self
        heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        # Python calls a handler only between two of its own instructions; a thread reads of every signal as it comes.
        self._wakeup = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()
        for number in ASKED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *error: object) -> None:
        if self._told is None:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._told.close()
        self._told = None

    def note(self, number: int) -> None:
        """Take it that this signal came; the first one counts."""
        if self.noted is None:
            self.noted = number

    def check(self) -> None:
        """Raise `Interrupted` where a signal came."""
        if self.noted is not None:
            raise Interrupted(self.noted)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal raise `Interrupted` wherever it finds the block, which must be one to break off anywhere."""
        self._raises = True
        try:
            self.check()
            yield
        except Exception:
            self.check()  # a library may have made something else of the signal
            raise
        finally:
            self._raises = False
        self.check()

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.note(number)
        if self._raises:
            self._raises = False
            self.check()

    def _listen(self, heard: socket.socket) -> None:
        """Read the numbers of the signals that come, until the other end is closed."""
        with heard:
            while came := heard.recv(1):
                number = came[0]
                if number not in self._before:
                    continue
                self._heard += 1
                if self._heard > 1 and number == signal.SIGINT:
                    try:
                        if self._last is not None:
                            self._last()
                    finally:
                        os._exit(128 + number)
