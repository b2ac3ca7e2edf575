"""Holds the ratios of a speed document against its samples: what a page shows follows from what was timed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.speed import timing
from harness.speed.speed_document import SpeedDocument, SpeedRatio, TimedModel
from harness.speed.timing import Samples

AGREEMENT = 1e-6
"""How far a stored ratio may be from that of the samples, relative."""


def check(document: SpeedDocument) -> None:
    """Compute every ratio, share of the limit and exponent again from the samples.

    Raises: ValueError naming the first that is another, or where they cannot be computed.
    """
    try:
        _check(document)
    except ArithmeticError as error:
        raise ValueError(f"{document.id}: its ratios cannot be computed ({error}): expected counts above 0") from error


def _check(document: SpeedDocument) -> None:
    for subject in document.subjects:
        training = subject.training
        if training is None:
            continue
        if training.loop_ratio is not None:
            harness = training.harness_seconds
            _agree(f"{subject.name}: loop_ratio", training.loop_ratio,
                   None if harness is None else _paired(harness.values, training.seconds.values))  # fmt: skip
        if training.limit_share is not None:
            _check_limit(document, subject)
    for one in document.comparisons:
        what = f"comparisons: {one.subject} to {one.baseline}, {one.what}: ratio"
        _agree(what, one.ratio, _ratio(document, one))
    for scaling in document.scaling:
        if scaling.exponent is not None:
            fit = timing.growth(
                [point.size for point in scaling.points], [point.seconds.median for point in scaling.points]
            )
            for name in ("exponent", "standard_error"):
                told, found = getattr(scaling, name), getattr(fit, name)
                same = told == found if None in (told, found) else math.isclose(told, found, abs_tol=AGREEMENT)
                if not same:
                    raise ValueError(f"scaling with {scaling.axis}: {name}={told!r}: expected that of the points, "
                                     f"{found!r}")  # fmt: skip


def _check_limit(document: SpeedDocument, subject: TimedModel) -> None:
    """Hold a share of the limit against operations / seconds over the rate of the same round."""
    training = subject.training
    assert training is not None
    assert training.limit_share is not None
    rates = [one for one in document.rates if subject.variant in one.variants]
    found = [
        _paired([one * training.operations / rate.operations for one in rate.seconds.values], training.seconds.values)
        for rate in rates
    ]
    if not any(_close(training.limit_share, one) for one in found):
        _agree(f"{subject.name}: limit_share", training.limit_share, found[0] if found else None)


def _ratio(document: SpeedDocument, one: SpeedRatio) -> Samples | None:
    own = costs(document.subject(one.subject), one.what)
    theirs = costs(document.subject(one.baseline), one.baseline_what)
    return _paired(theirs, own) if own and theirs else None


def costs(subject: TimedModel, what: str) -> list[float]:
    """Return the seconds of each round: of an update, of a target word evaluated, or of a sentence translated."""
    if what == "training":
        training = subject.training
        return [] if training is None else [one / training.updates for one in training.seconds.values]
    if what == "evaluation":
        evaluation = subject.evaluation
        return [] if evaluation is None else [one / evaluation.target for one in evaluation.seconds.values]
    found = [one for one in subject.decoding if one.name == what]
    return [value / one.sentences for one in found for value in one.seconds.values]


def _paired(first: Sequence[float], second: Sequence[float]) -> Samples:
    """Return the ratio of the rounds that both have."""
    count = min(len(first), len(second))
    return timing.ratio(Samples.of(first[:count]), Samples.of(second[:count]))


def _close(told: Samples, found: Samples) -> bool:
    return len(told) == len(found) and all(
        math.isclose(one, other, rel_tol=AGREEMENT) for one, other in zip(told.values, found.values, strict=True)
    )


def _agree(what: str, told: Samples, found: Samples | None) -> None:
    if found is None:
        raise ValueError(f"{what}: expected one of samples that the document has")
    if not _close(told, found):
        raise ValueError(f"{what} {told.median:.6g}: expected what the samples say, {found.median:.6g}")
