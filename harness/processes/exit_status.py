"""Describes how a process ended: its exit code, the signal that killed it, and whether memory was exhausted."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path

LOST = tuple(getattr(signal, name) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))
"""Signals that other processes send: a process that was ended by one of them may succeed when it is started again."""

HINTS = {
    "SIGKILL": "often because memory is exhausted",
    "SIGABRT": "abort() was called",
    "SIGSEGV": "a fault in compiled code",
    "SIGBUS": "a fault in compiled code, or no space for a memory-mapped file",
    "SIGILL": "an instruction that this processor does not have",
    "SIGXCPU": "its CPU time limit was reached",
    "SIGXFSZ": "its file size limit was reached",
}


def lost(code: int) -> bool:
    """Return whether a process with this exit code was ended by a signal from another process."""
    return -code in LOST


def describe(code: int, *, out_of_memory: bool = False) -> str:
    """Describe how a process ended with an exit code as in `subprocess`, negative for a signal.

    `out_of_memory` is whether the kernel has killed a process for lack of memory while it ran.
    """
    if code >= 0:
        return f"its process ended with code {code}" + (" and left no complete record" if code == 0 else "")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    if out_of_memory and -code == signal.SIGKILL:
        return f"killed by {name}: out of memory (the kernel's OOM killer)"
    hint = HINTS.get(name)
    return f"killed by {name}" + (f"; {hint}" if hint else "")


def out_of_memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory; 0 if that is unknown.

    They are counted in this process's control group if that can be read, otherwise on the whole machine.
    """
    for path in _counters():
        with contextlib.suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", path.read_text(encoding="ascii", errors="replace"), re.MULTILINE)
            if match:
                return int(match[1])
    return 0


def _counters() -> list[Path]:
    """Return the files that may have the count, the narrowest first. Source: Linux, cgroup-v2.rst, and proc(5)."""
    root, paths = Path("/sys/fs/cgroup"), []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, group = rest.partition(":")
            if not controllers:
                paths += [root / group.strip("/") / "memory.events", root / "memory.events"]
            elif "memory" in controllers.split(","):
                paths += [root / "memory" / name / "memory.oom_control" for name in (group.strip("/"), "")]
    return [*paths, Path("/proc/vmstat")]
