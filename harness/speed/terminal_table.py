"""The table of a speed document for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.speed.plan import BASELINE
from harness.speed.speed_document import Scaling, SpeedDocument, TimedModel

HEADS = ("subject", "update", "tokens/s", "epoch", "MFU", "loop", "greedy", "beam", "one by one", "memory")
UNITS = ("", "ms", "", "s", "%", "ratio", "s/1000", "s/1000", "s/1000", "MB")
NOTHING = "-"


def terminal(document: SpeedDocument) -> str:
    """Return the medians of every model, and the facts that are needed to read them, as plain text."""
    baseline = next((model for model in document.subjects if model.name == BASELINE and model.training), None)
    heads: tuple[str, ...] = HEADS
    units: tuple[str, ...] = UNITS
    if baseline is not None:
        heads, units = (*HEADS, f"to {BASELINE}"), (*UNITS, "times")
    rows = [heads, units, *(_row(document, model, baseline) for model in document.subjects if model.measured)]
    lines = _aligned(rows)
    lines += [f"{model.name}: {model.ending}: {model.reason}" for model in document.subjects if model.reason]
    for rate in document.rates:
        lines.append(
            f"matrix products of {', '.join(rate.variants)}: {rate.operations_per_second / 1e9:.1f} GFLOP/s "
            f"({rate.library})"
        )
    lines += _equal(document) + [_scaling(scaling) for scaling in document.scaling] + _shares(document)
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
    times = {decoding.name: f"{decoding.thousand_seconds:.2f}" for decoding in subject.decoding}
    cells += [times.get(name, NOTHING) for name in ("greedy", "beam", "single_greedy")]
    memory = [part.peak_memory_bytes for part in (training, *subject.decoding) if part and part.peak_memory_bytes]
    cells.append(f"{max(memory) / 1e6:,.0f}" if memory else "unknown")
    if baseline is not None:
        ratios = [
            pair.ratio.median
            for pair in document.comparisons
            if (pair.subject, pair.baseline, pair.what) == (subject.name, BASELINE, "training")
            and subject.variant == baseline.variant
        ]
        cells.append(f"{ratios[0]:.2f}" if ratios else NOTHING)
    return tuple(cells)


def _aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _equal(document: SpeedDocument) -> list[str]:
    """Return how many translations of models with the same weights are identical."""
    return [
        f"{subject.name}, {decoding.name.replace('_', ' ')}: {decoding.equal} of {decoding.sentences} translations are "
        f"those of {decoding.compared_with}"
        for subject in document.subjects
        for decoding in subject.decoding
        if decoding.equal is not None
    ]


def _scaling(scaling: Scaling) -> str:
    title = f"scaling with {scaling.axis.replace('_', ' ')}"
    if scaling.exponent is None:
        return f"{title}: {scaling.reason}"
    error = "" if scaling.standard_error is None else f" ± {scaling.standard_error:.2f}"
    points = ", ".join(f"{point.size:g}: {1_000 * point.seconds.median:.1f} ms" for point in scaling.points)
    return f"{title}: cost ~ size^{scaling.exponent:.2f}{error} ({points})"


def _shares(document: SpeedDocument) -> list[str]:
    return [
        f"{subject.name} spends: "
        + ", ".join(f"{part.group} {100 * part.share:.1f} %" for part in subject.breakdown.shares if part.share >= 5e-4)
        for subject in document.subjects
        if subject.breakdown
    ]
