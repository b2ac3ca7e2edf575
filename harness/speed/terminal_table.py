"""The table of a speed document for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.speed.plan import BASELINE
from harness.speed.speed_document import Scaling, SpeedDocument, TimedModel

HEADS = ("subject", "update", "tokens/s", "epoch", "of limit", "loop", "greedy", "beam", "one by one", "memory")
UNITS = ("", "ms", "", "s", "%", "ratio", "s/1000", "s/1000", "s/1000", "MB")
NOTHING = "-"


def terminal(document: SpeedDocument) -> str:
    """Return the figures of every subject, medians of their rounds, and what they are not to be read without."""
    baseline = next((one for one in document.subjects if one.name == BASELINE and one.training), None)
    heads: tuple[str, ...] = HEADS
    units: tuple[str, ...] = UNITS
    if baseline is not None:
        heads, units = (*HEADS, f"to {BASELINE}"), (*UNITS, "times")
    rows = [heads, units, *(_row(document, one, baseline) for one in document.subjects if one.measured)]
    lines = _aligned(rows)
    lines += [f"{one.name}: {one.ending}: {one.reason}" for one in document.subjects if one.reason]
    for rate in document.rates:
        lines.append(
            f"matrix products of {', '.join(rate.variants)}: {rate.operations_per_second / 1e9:.1f} GFLOP/s "
            f"({rate.library})"
        )
    lines += _equal(document) + [_grown(one) for one in document.scaling] + _shares(document)
    return "\n".join(lines)


def _row(document: SpeedDocument, subject: TimedModel, baseline: TimedModel | None) -> tuple[str, ...]:
    training = subject.training
    cells = [subject.name, *[NOTHING] * 5]
    if training is not None:
        cells[1:4] = [
            f"{1_000 * training.update_seconds:.1f}",
            f"{training.tokens_per_second:,.0f}",
            f"{training.epoch_seconds:.1f}",
        ]
        if training.limit_share is not None:
            cells[4] = f"{100 * training.limit_share.median:.1f}"
        if training.loop_ratio is not None:
            cells[5] = f"{training.loop_ratio.median:.3f}"
    times = {one.name: f"{one.thousand_seconds:.2f}" for one in subject.decoding}
    cells += [times.get(name, NOTHING) for name in ("greedy", "beam", "single_greedy")]
    memory = [one.peak_memory_bytes for one in (training, *subject.decoding) if one and one.peak_memory_bytes]
    cells.append(f"{max(memory) / 1e6:,.0f}" if memory else "unknown")
    if baseline is not None:
        found = [
            one.ratio.median
            for one in document.comparisons
            if (one.subject, one.baseline, one.what) == (subject.name, BASELINE, "training")
            and subject.variant == baseline.variant
        ]
        cells.append(f"{found[0]:.2f}" if found else NOTHING)
    return tuple(cells)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _equal(document: SpeedDocument) -> list[str]:
    """Return for each subject with another's weights how many translations are the same."""
    return [
        f"{subject.name}, {one.name.replace('_', ' ')}: {one.equal} of {one.sentences} translations are those of "
        f"{one.compared_with}"
        for subject in document.subjects
        for one in subject.decoding
        if one.equal is not None
    ]


def _grown(one: Scaling) -> str:
    title = f"scaling with {one.axis.replace('_', ' ')}"
    if one.exponent is None:
        return f"{title}: {one.reason}"
    error = "" if one.standard_error is None else f" ± {one.standard_error:.2f}"
    points = ", ".join(f"{point.size:g}: {1_000 * point.seconds.median:.1f} ms" for point in one.points)
    return f"{title}: cost ~ size^{one.exponent:.2f}{error} ({points})"


def _shares(document: SpeedDocument) -> list[str]:
    return [
        f"{subject.name} spends: "
        + ", ".join(f"{one.group} {100 * one.share:.1f} %" for one in subject.breakdown.shares if one.share >= 5e-4)
        for subject in document.subjects
        if subject.breakdown
    ]
