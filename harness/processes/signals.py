"""SIGINT, SIGTERM and SIGHUP: recorded when they arrive, and handled where the work can stop safely.

The end of a parent process counts as SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

HANDLED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""The signals that ask a process to exit. One that was ignored at the start (nohup) stays ignored."""

SHOW_CURSOR = b"\x1b[?25h"
"""What shows the cursor of a terminal, which a progress display hides."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to exit. `number` is the number of the signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}")
        self.number = number

    @property
    def exit_code(self) -> int:
        """The exit code of a process that was interrupted: 128 + the number of the signal."""
        return 128 + self.number


class SignalGuard:
    """Handles the signals while its context is active, in the main thread only.

        with SignalGuard() as guard:
            for batch in batches:
                guard.check()           # raises Interrupted here, not in the middle of an update
                model.train_step(...)

    Ctrl-C after any signal ends the process immediately, even during long calls of C code.

    Args:
        on_second_interrupt: Called before that, in another thread, for example to kill child processes.

    Attributes:
        received: The number of the first signal; None before.
    """

    def __init__(self, on_second_interrupt: Callable[[], None] | None = None) -> None:
        self.received: int | None = None
        self._on_second_interrupt, self._raises, self._count = on_second_interrupt, False, 0
        self._handlers_before: dict[int, Any] = {}
        self._wakeup_socket: socket.socket | None = None
        self._wakeup_before = -1

    def __enter__(self) -> SignalGuard:
        if threading.current_thread() is not threading.main_thread():
            return self
        listener, self._wakeup_socket = socket.socketpair()
        self._wakeup_socket.setblocking(False)
        # Python calls handlers only between two of its own instructions; a thread learns of each signal immediately.
        self._wakeup_before = signal.set_wakeup_fd(self._wakeup_socket.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(listener,), daemon=True).start()
        for number in HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._handlers_before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        if self._wakeup_socket is None:
            return
        for number, handler in self._handlers_before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._wakeup_socket.close()
        self._wakeup_socket = None

    def receive(self, number: int) -> None:
        """Act as if this signal had arrived. Only the first one counts."""
        if self.received is None:
            self.received = number

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived."""
        if self.received is not None:
            raise Interrupted(self.received)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let a signal raise `Interrupted` anywhere in a block, which must be safe to interrupt anywhere."""
        self._raises = True
        try:
            self.check()
            yield
        except Exception:
            self.check()  # a library may have turned the interruption into another exception
            raise
        finally:
            self._raises = False
        self.check()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.receive(number)
        if self._raises:
            self._raises = False
            self.check()

    def _listen(self, listener: socket.socket) -> None:
        """Read the numbers of signals as they arrive, until the other socket is closed."""
        with listener:
            while received := listener.recv(1):
                number = received[0]
                if number not in self._handlers_before:
                    continue
                self._count += 1
                if self._count > 1 and number == signal.SIGINT:
                    try:
                        if self._on_second_interrupt is not None:
                            self._on_second_interrupt()
                    finally:
                        with contextlib.suppress(OSError):  # the terminal may be closed
                            if os.isatty(2):
                                os.write(2, SHOW_CURSOR)
                        os._exit(128 + number)


def exit_with_parent(grace_seconds: float = 60.0) -> None:
    """Treat the end of standard input, whose other end the parent holds, as SIGTERM.

    Nothing else may read standard input afterwards. A process that is still running `grace_seconds` later, the
    time for its checkpoint, is killed together with its children.
    """
    pipe = os.dup(0)
    with open(os.devnull, "rb") as null_device:
        os.dup2(null_device.fileno(), 0)  # otherwise children would inherit the pipe
    threading.Thread(target=_watch_parent, args=(pipe, grace_seconds), daemon=True).start()


def _watch_parent(pipe: int, grace_seconds: float) -> None:
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_seconds)
    if os.name == "posix" and os.getsid(0) == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGTERM)
