"""The fourteen laws that every model must obey, whatever its architecture and framework.

A law is a function of a `ModelUnderTest`: it returns a remark (mostly empty) or raises `LawViolated`. The laws use
only NumPy and the model's interface. Each is tested on a small batch, on which failures are easy to understand, and on
a batch of realistic size: 64 sentences of up to 40 ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from harness.conformance import evaluation_laws, training_laws, update_law
from harness.conformance.assertions import LawViolated
from harness.conformance.models_under_test import ModelUnderTest


@dataclass(frozen=True)
class LawResult:
    """The result of one law; `detail` is the reason of a failure, or a remark."""

    number: int
    name: str
    passed: bool
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        remark = f" ({self.detail})" if self.detail else ""
        outcome = f"ok{remark}" if self.passed else f"FAILED {self.detail}"
        return f"law {self.number} {self.name}, {self.seconds:.2f} s … {outcome}"


@dataclass(frozen=True)
class Law:
    """A law with its number and name."""

    number: int
    name: str
    holds: Callable[[ModelUnderTest], str]


LAWS = tuple(
    Law(number, holds.__name__.replace("_", " "), holds)
    for number, holds in enumerate(
        (
            evaluation_laws.shapes,
            evaluation_laws.determinism,
            evaluation_laws.causality,
            evaluation_laws.padding,
            evaluation_laws.independence,
            evaluation_laws.caching,
            evaluation_laws.reordering,
            training_laws.round_trip,
            training_laws.standstill,
            training_laws.learning,
            training_laws.reproducibility,
            training_laws.search,
            training_laws.resumption,
            update_law.update,
        ),
        start=1,
    )
)


def check(subject: ModelUnderTest, laws: Collection[int] | None = None) -> Iterator[LawResult]:
    """Test models against the laws numbered `laws` (None: all), and yield one result at a time.

    A law that raises any exception fails.

    Raises:
        ValueError: There is no law with one of the numbers.
    """
    if unknown := set(laws or ()) - {law.number for law in LAWS}:
        raise ValueError(f"laws={sorted(unknown)}: expected numbers from 1 to {len(LAWS)}")
    for law in LAWS:
        if laws is not None and law.number not in laws:
            continue
        passed, began = False, time.perf_counter()
        try:
            detail, passed = law.holds(subject), True
        except LawViolated as error:
            detail = str(error)
        except Exception as error:  # an external model may raise anything; the other laws still run
            detail = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        yield LawResult(law.number, law.name, passed, detail, time.perf_counter() - began)
