"""The most memory that one piece of work needs, apart from what the process had before it."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

from harness.processes import machine

CLEAR_REFS = Path("/proc/self/clear_refs")
FORGET_PEAK = "5"
"""What, written there, makes Linux begin VmHWM anew (proc(5), since Linux 4.0)."""


def forget_peak() -> bool:
    """Let the peak of this process's resident memory begin anew; return False where the system cannot.

    What the allocator keeps for later is first given back to the system, else it would count as needed.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    try:
        CLEAR_REFS.write_text(FORGET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def peak() -> int | None:
    """Return the bytes of the peak since `forget_peak`; None where the system does not say."""
    return machine.peak_memory_bytes()


def forget_device_peak() -> None:
    """Let torch begin the peak of its GPU memory anew, where this process uses one."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def device_peak() -> int | None:
    """Return the bytes of torch's peak on the GPU; None where this process uses none through torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated()) or None
