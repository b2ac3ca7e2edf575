"""Comparison of recorded with expected values, and the wording of faults."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.text import brief

ROUNDING = 1e-6
"""Relative tolerance between two computations of the same number."""


def unequal(name: str, recorded: Any, expected: Any, source: str, tolerance: float = ROUNDING) -> Iterator[str]:
    """Yield a fault if a recorded value is not the expected one; `source` says where the expected one comes from.

    Floats may differ by `tolerance`, relative to the larger.
    """
    if isinstance(recorded, float) and isinstance(expected, float):
        is_equal = math.isclose(recorded, expected, rel_tol=tolerance, abs_tol=1e-9)
    else:
        is_equal = bool(recorded == expected)
    if not is_equal:
        yield f"{name}={brief(recorded)}, expected {brief(expected)} ({source})"
