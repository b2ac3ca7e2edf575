"""The fourteen laws that every model must obey, whatever its architecture and framework.

A law is a function of a `ModelUnderTest`: it returns a remark (mostly empty) or raises `LawViolated`. The laws use
only NumPy and the model's interface. Each is tested on a small batch, on which failures are easy to understand, and on
a batch of realistic size: 64 sentences of up to 40 ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from harness.conformance import causality_law, evaluation_laws, training_laws, update_law
from harness.conformance.assertions import LawViolated
from harness.conformance.models_under_test import ModelUnderTest, in_one_line


@dataclass(frozen=True)
class LawResult:
    """The result of one law; `detail` is the reason of a failure, or a remark. `raised`: the model raised an error."""

    number: int
    name: str
    passed: bool
    detail: str = ""
    seconds: float = field(default=0.0, compare=False)
    raised: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        remark = f" ({self.detail})" if self.detail else ""
        outcome = f"ok{remark}" if self.passed else f"FAILED {self.detail}"
        return f"law {self.number} {self.name}, {self.seconds:.2f} s … {outcome}"


LAWS: dict[str, Callable[[ModelUnderTest], str]] = {
    "shapes": evaluation_laws.shapes,
    "determinism": evaluation_laws.determinism,
    "causality": causality_law.causality,
    "padding": evaluation_laws.padding,
    "independence": evaluation_laws.independence,
    "caching": evaluation_laws.caching,
    "reordering": evaluation_laws.reordering,
    "round trip": training_laws.round_trip,
    "standstill": training_laws.standstill,
    "learning": training_laws.learning,
    "reproducibility": training_laws.reproducibility,
    "search": training_laws.search,
    "resumption": training_laws.resumption,
    "update": update_law.update,
}
"""The laws by name; they are numbered from 1 in this order."""


def check(subject: ModelUnderTest, laws: Collection[int] | None = None) -> Iterator[LawResult]:
    """Test models against the laws numbered `laws` (None: all), and yield one result at a time.

    A law that raises any exception fails.

    Raises:
        ValueError: There is no law with one of the numbers.
    """
    if unknown := set(laws or ()) - set(range(1, len(LAWS) + 1)):
        raise ValueError(f"laws={sorted(unknown)}: expected numbers from 1 to {len(LAWS)}")
    for number, (name, holds) in enumerate(LAWS.items(), start=1):
        if laws is not None and number not in laws:
            continue
        passed, raised, began = False, False, time.perf_counter()
        try:
            detail, passed = holds(subject), True
        except LawViolated as error:
            detail = str(error)
        except Exception as error:  # an external model may raise anything; the other laws still run
            detail, raised = in_one_line(error, subject.file), True
        yield LawResult(number, name, passed, detail, time.perf_counter() - began, raised)
