"""Comparison of recorded with expected values, and the wording of faults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.text import brief

ROUNDING = 1e-6
"""Relative tolerance between two computations of the same number."""


def equal(recorded: Any, expected: Any, tolerance: float = ROUNDING) -> bool:
    """Return whether two values are equal; floats may differ by `tolerance`, relative to the larger."""
    if isinstance(recorded, float) and isinstance(expected, float):
        return math.isclose(recorded, expected, rel_tol=tolerance, abs_tol=1e-9)
    return bool(recorded == expected)


def unequal(name: str, recorded: Any, expected: Any, source: str, tolerance: float = ROUNDING) -> Iterator[str]:
    """Yield a fault if a recorded value is not the expected one; `source` says where the expected one comes from."""
    if not equal(recorded, expected, tolerance):
        yield f"{name}={brief(recorded)}, expected {brief(expected)} ({source})"
