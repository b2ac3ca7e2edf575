"""The pictures of the HTML page, each with the numbers behind it: curves, quality and speed, the parts of models."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from harness.analysis.grouping import RunTable, TableRow
from harness.analysis.leaderboard import MetricLeaderboard
from harness.analysis.metric_registry import scale_of
from harness.analysis.statistics import bands
from harness.reporting import concept_plots, run_plots
from harness.reporting import curve_panels as panels
from harness.reporting.bench_tables import MISSING
from harness.reporting.curve_panels import Curve, Panel, distinct_styles, swatch
from harness.reporting.inline_svg import inline
from harness.training import schedules as arrays
from impls import formulas
from impls.contract import Activation
from impls.recipes import TRAININGS

Fair = Sequence[tuple[RunTable, Sequence[str], Mapping[str, MetricLeaderboard]]]
"""Groups whose runs are comparable, the labels of their rows, and what was judged of them."""

CURVES = {
    "validation_loss": ("Validation loss", "nats per target word", False),
    "training_loss": ("Training loss (what was minimised)", "nats per target word", False),
    "validation_perplexity": ("Validation perplexity", "perplexity (log scale)", True),
    "training_perplexity": ("Training perplexity (dropout on)", "perplexity (log scale)", True),
}
SPEEDS = {
    "training_tokens_per_second": "training: target words per second",
    "decoding_sentences_per_second": "decoding: sentences per second",
}
SAMPLED = 8
"""How many rows and columns of a large table stand beside its picture."""


@dataclass(frozen=True)
class Curves:
    """The panels of one group."""

    heading: str
    note: str
    panels: list[dict[str, Any]]


@dataclass(frozen=True)
class ChartWithData:
    """A drawn picture and the numbers behind it."""

    caption: str
    svg: str
    heads: list[str]
    cells: list[list[str]]


# Curves ---------------------------------------------------------------------------------------------------------------


def curves(found: Fair) -> list[Curves]:
    """Return loss and perplexity against epochs, a panel a figure, for each group that has any."""
    made = []
    for number, (group, labels, _) in enumerate(found):
        own = [one for name in CURVES if (one := _panel(group, labels, name, f"curve-{number}-{name}"))]
        if own:
            made.append(Curves(group.heading, _curve_note(group), own))
    return made


def _curve_note(group: RunTable) -> str:
    alone = all(len(row.counted) == 1 for row in group.rows)
    return "One seed a variant: there are no bands, and seed noise is unknown." if alone else ""


def _panel(group: RunTable, labels: Sequence[str], name: str, slug: str) -> dict[str, Any] | None:
    title, unit, logarithm = CURVES[name]
    styles = distinct_styles(group.rows)
    lines = [_line(row, label, name, own) for row, label, own in zip(group.rows, labels, styles, strict=True)]
    lines = [line for line in lines if line.means]
    if not lines:
        return None
    made: Panel = panels.panel(lines, slug, title, unit, logarithm=logarithm)
    return {
        "title": made.title,
        "svg": made.svg,
        "heads": made.heads,
        "cells": made.cells,
        "points": made.points,
        "swatches": [swatch(line.style) for line in lines],
    }


def _line(row: TableRow, label: str, name: str, own: Any) -> Curve:
    values = [[_finite(getattr(epoch, name)) for epoch in record.curve] for record in row.counted]
    band = bands([one for one in values if any(value is not None for value in one)], scale=scale_of(name))
    stopped = [record for record in row.records if record.status != "completed"]
    ends = [
        (len(record.curve), value, record.status)
        for record in stopped
        if record.curve and (value := _finite(getattr(record.curve[-1], name))) is not None
    ]
    return Curve(label, own, len(row.counted), _known(band.mean), _known(band.low), _known(band.high), ends)


def _known(values: Sequence[float | None] | None) -> dict[int, float]:
    """Return the values that there are, by epoch."""
    return {epoch: one for epoch, one in enumerate(values or (), start=1) if one is not None and math.isfinite(one)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# Quality against speed ------------------------------------------------------------------------------------------------


def speeds(found: Fair) -> list[ChartWithData]:
    """Return sacreBLEU against training and decoding speed, for each group that has both."""
    made = []
    for number, (group, labels, _) in enumerate(found):
        if not any(row.by_seed("bleu_sacre") and any(row.by_seed(name) for name in SPEEDS) for row in group.rows):
            continue
        drawn = run_plots.quality_against_speed(group.rows)
        cells = [
            [label, *(_mean(row, name, digits) for name, digits in (("bleu_sacre", 2), *((one, 1) for one in SPEEDS)))]
            for label, row in zip(labels, group.rows, strict=True)
        ]
        label = f"Points, one a variant: sacreBLEU against training and decoding speed, {group.heading}"
        svg = inline(drawn, f"speed-{number}", label)
        made.append(ChartWithData(group.heading, svg, ["variant", "sacreBLEU", *SPEEDS.values()], cells))
    return made


def _mean(row: TableRow, name: str, digits: int) -> str:
    mean = row.summary(name).mean
    return MISSING if mean is None else f"{mean:,.{digits}f}"


# What the models are made of ------------------------------------------------------------------------------------------


def explanations(learnt: Sequence[tuple[str, Any]]) -> list[ChartWithData]:
    """Return the pictures of positions, masks, activations and schedules; `learnt` are position tables by label."""
    return [
        _sinusoids(),
        *(_learnt(label, table, number) for number, (label, table) in enumerate(learnt)),
        _masks(),
        _activations(),
        _schedules(),
    ]


@functools.cache
def _sinusoids(positions: int = 100, width: int = 256) -> ChartWithData:
    label = "Heat map of the sinusoidal positions: waves across positions that grow longer with the column"
    svg = inline(concept_plots.sinusoid_table(positions, width), "sinusoids", label)
    return ChartWithData("The table of sinusoidal positions", svg, *_sampled(formulas.sinusoids(positions, width)))


def _learnt(label: str, table: Any, number: int) -> ChartWithData:
    drawn = concept_plots.learnt_positions(table)
    seen = f"Heat map of the learnt positions of {label}: position downwards, column of the embedding across"
    return ChartWithData(f"Learnt positions of {label}", inline(drawn, f"learnt-{number}", seen), *_sampled(table))


def _sampled(table: Any) -> tuple[list[str], list[list[str]]]:
    """Return the first rows of a table and some of its columns."""
    width = table.shape[1]
    columns = sorted({round(place) for place in np.linspace(0, width - 1, SAMPLED)})
    rows = range(min(SAMPLED, len(table)))
    heads = ["position", *(f"column {column}" for column in columns)]
    return heads, [[str(row), *(f"{float(table[row, column]):.3f}" for column in columns)] for row in rows]


@functools.cache
def _masks() -> ChartWithData:
    sources, targets = (6, 4, 2), (5, 6, 3)
    label = "Grids of what each word may look at in three padded sentences: padding and later target words are hidden"
    svg = inline(concept_plots.padded_masks(sources, targets), "masks", label)
    found = formulas.masks(sources, targets)
    cells = []
    for sentence in range(len(sources)):
        for title, visible in (("decoder self-attention", found.decoder), ("cross-attention", found.cross)):
            for query, row in enumerate(visible[sentence]):
                seen = ", ".join(str(key + 1) for key, one in enumerate(row) if one)
                cells.append([str(sentence + 1), title, str(query + 1), seen])
        seen = ", ".join(str(key + 1) for key, one in enumerate(found.encoder[sentence]) if one)
        cells.append([str(sentence + 1), "encoder self-attention", "every", seen])
    return ChartWithData("The masks of a padded batch", svg, ["sentence", "where", "word", "may look at words"], cells)


@functools.cache
def _activations() -> ChartWithData:
    names = get_args(Activation)
    label = "Curves of each activation and its derivative from -4 to 4"
    svg = inline(concept_plots.activations(), "activations", label)
    x = np.linspace(-4, 4, 9)
    columns = [
        column for name in names for column in (formulas.activation(name, x), formulas.activation_derivative(name, x))
    ]
    heads = ["input", *(f"{name}{kind}" for name in names for kind in ("", ", derivative"))]
    cells = [[f"{value:g}", *(f"{column[place]:.3f}" for column in columns)] for place, value in enumerate(x)]
    return ChartWithData("Activations and their derivatives", svg, heads, cells)


@functools.cache
def _schedules() -> ChartWithData:
    label = "Learning rate against updates, a line for each training"
    svg = inline(concept_plots.learning_rates(TRAININGS), "rates", label)
    updates = (1, 100, 500, 1_000, 2_000, 4_000, 8_000)
    cells = [
        [name, *(f"{arrays.learning_rate(training, update):.3g}" for update in updates)]
        for name, training in TRAININGS.items()
    ]
    heads = ["variant", *(f"update {update:,}" for update in updates)]
    return ChartWithData("Learning rates, as each source trains its variant", svg, heads, cells)
