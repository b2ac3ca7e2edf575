"""How the process of a run ended, in words: which signal killed it, and whether the system was out of memory."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Sequence
from pathlib import Path

LOST = tuple(getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
"""Signals that come from outside: a process that one of these ended may do better if it is started again."""

HINTS = {
    "SIGKILL": "the system does that when memory runs out",
    "SIGABRT": "abort() was called",
    "SIGSEGV": "a fault in compiled code",
    "SIGBUS": "a fault in compiled code, or no space for a file in memory",
    "SIGILL": "this processor does not know an instruction of it",
    "SIGXCPU": "its limit of processor time was reached",
    "SIGXFSZ": "its limit of file size was reached",
}


def lost(code: int) -> bool:
    """Return whether a process that ended with this code was ended from outside."""
    return -code in LOST


def words(code: int, *, out_of_memory: bool = False) -> str:
    """Return how a process ended, from its exit code: that of `subprocess`, negative for a signal."""
    if code >= 0:
        return f"its process ended with code {code}" + (" and left no whole record" if code == 0 else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if out_of_memory and -code == signal.SIGKILL:
        return f"killed by {name}: memory ran out, says the system, which then killed a process"
    hint = HINTS.get(name)
    return f"killed by {name}" + (f"; {hint}" if hint else "")


def out_of_memory_kills(counters: Sequence[Path] | None = None) -> int:
    """Return how many processes the system has killed here for lack of memory; 0 where it does not say.

    Counted in this process's own control group where that can be read, else on the whole machine.
    """
    for path in _counters() if counters is None else counters:
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
            if found:
                return int(found[1])
    return 0


def _counters() -> list[Path]:
    """Return the files that may count, the narrowest first. Source: Linux, cgroup-v2.rst, and proc(5) on vmstat."""
    root, found = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if not controllers:
                found += [root / group.strip("/") / "memory.events", root / "memory.events"]
            elif "memory" in controllers.split(","):
                found += [root / "memory" / place / "memory.oom_control" for place in (group.strip("/"), "")]
    return [*found, Path("/proc/vmstat")]
