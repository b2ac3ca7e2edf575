"""The peak memory of one piece of work, without earlier peaks of the process."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path

CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
"""Written to `CLEAR_REFS`, this resets VmHWM, the peak of resident memory. Source: proc(5), since Linux 4.0."""


def reset_peak() -> bool:
    """Reset the peak of this process's resident memory; return False on systems without this.

    Memory that the allocator keeps for later is first returned to the system; otherwise it would count as used.
    """
    with contextlib.suppress(OSError, AttributeError, TypeError):  # the last on Windows, which needs a library's name
        ctypes.CDLL(None).malloc_trim(0)
    try:
        CLEAR_REFS.write_text(RESET_PEAK, encoding="ascii")
    except OSError:
        return False
    return True


def reset_device_peak() -> None:
    """Reset the peak of torch's GPU memory, if this process uses a GPU through torch."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def device_peak() -> int | None:
    """Return the peak of torch's GPU memory in bytes; None if this process does not use a GPU through torch."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.max_memory_allocated()) or None
