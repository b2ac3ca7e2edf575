"""The fourteen laws that every model must obey, whatever its architecture and framework.

A law is a function of a `ModelUnderTest`: it returns a remark (mostly empty) or raises `LawViolated`. `check` runs them
on anything that builds a `Seq2SeqModel`, `for_variant` on a variant by name. They use only NumPy and the model's
interface. Each law is tested on a small batch, on which failures are easy to understand, and on a batch of realistic
size: 64 sentences of up to 40 ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from harness.conformance import evaluation_laws, training_laws, update_law
from harness.conformance.assertions import LawViolated
from harness.conformance.models_under_test import (
    LONGEST,
    SOURCE_VOCABULARY_SIZE,
    TARGET_VOCABULARY_SIZE,
    Build,
    ModelUnderTest,
    named,
)


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


def check(
    build: Build,
    *,
    source_vocabulary_size: int = SOURCE_VOCABULARY_SIZE,
    target_vocabulary_size: int = TARGET_VOCABULARY_SIZE,
    max_length: int = LONGEST,
    laws: Collection[int] | None = None,
    describe: str | None = None,
    fast: bool = False,
) -> Iterator[LawResult]:
    """Test models against the laws, and yield one result at a time. A law that raises any exception fails.

    Args:
        build: Builds a model from training settings, a seed and a dropout rate.
        source_vocabulary_size, target_vocabulary_size: Those of the models.
        max_length: The largest number of positions that the models accept.
        laws: The numbers of the laws; None means all.
        describe: JSON from which a new process rebuilds the model, as in `for_variant`. Without it law 13 resumes in
            this process and says so.
        fast: Whether to use smaller batches and fewer draws.
    """
    subject = ModelUnderTest(build, source_vocabulary_size, target_vocabulary_size, max_length, describe, fast=fast)
    return check_subject(subject, laws)


def for_variant(
    variant: str,
    *,
    framework: str = "torch",
    device: str = "cpu",
    laws: Collection[int] | None = None,
    fast: bool = False,
) -> Iterator[LawResult]:
    """Test a built-in or an external variant ("package.module:NAME"); recipes get small sizes.

    Raises:
        ValueError: There is no such variant, or it is neither a recipe nor a builder.
    """
    return check_subject(named(variant, framework=framework, device=device, fast=fast), laws)


def check_subject(subject: ModelUnderTest, laws: Collection[int] | None = None) -> Iterator[LawResult]:
    """Test a subject against the laws numbered `laws` (None: all), and yield one result at a time.

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
