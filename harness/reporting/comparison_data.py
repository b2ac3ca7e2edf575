"""A comparison as JSON, with everything that the other forms show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from harness.analysis.comparison import Comparison, MetricComparison
from harness.analysis.effects import Conclusion, Difference, Interval
from harness.analysis.selection import Side
from harness.analysis.sentence_comparison import SubsetScores
from harness.reporting.formatting import long_line

SCHEMA = 4


def to_json(comparison: Comparison) -> str:
    """Return the comparison as JSON. Differences are one side minus another, in the units of the records."""
    value = {
        "schema": SCHEMA,
        "sides": [{"letter": side.letter, "label": side.label, "runs": _runs(side)} for side in comparison.sides],
        "allowed": [{"name": item.name, "values": item.sides} for item in comparison.allowed],
        "settings": [{"name": name, "values": values} for name, values in comparison.settings.items()],
        "metrics": [_metric(metric) for metric in comparison.metrics],
        "seeds_of_sentences": comparison.seeds,
        "parts": [_part(subsets) for subsets in comparison.parts],
        "sentences_ranked_by": comparison.ranked_by,
        "extremes": [
            {"side": largest.letter, "sentences": _directions(largest.sentences), "ngrams": _directions(largest.ngrams)}
            for largest in comparison.extremes
        ],
        "did_not_complete": comparison.lost,
        "remarks": comparison.remarks,
        "left_out": comparison.left_out,
    }
    return json.dumps(_plain(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _runs(side: Side) -> list[dict[str, Any]]:
    return [
        {"id": run.record.id, "seed": run.record.spec.seed, "status": run.record.status, "folder": str(run.folder)}
        for run in side.runs
    ]


def _metric(metric: MetricComparison) -> dict[str, Any]:
    definition, table = metric.definition, metric.table
    letters = [interval.label for interval in metric.intervals]
    pairs = combinations(letters, 2) if table else ()
    return {
        "name": definition.name,
        "title": definition.title,
        "better": definition.direction,
        "means": [_interval(interval) for interval in metric.intervals],
        "seeds": table.seeds if table else [],
        "comparisons": table.tests if table else 0,
        "table": None if table is None else "report" if metric.reported else "sides",
        "detectable": table.detectable if table else None,
        "moderation": table.moderation if table else "",
        "differences": [_difference(metric, metric.difference(second, first)) for first, second in pairs],
        "not_compared": metric.not_compared,
        "not_tested": metric.not_tested,
        "remarks": table.remarks if table else [],
    }


def _interval(interval: Interval) -> dict[str, Any]:
    value = asdict(interval)
    value |= {"side": value.pop("label"), "interval_covers": value.pop("basis")}
    return {name: item for name, item in value.items() if name not in ("first", "second")}


def _difference(metric: MetricComparison, difference: Difference | None) -> dict[str, Any]:
    assert difference is not None
    return _interval(difference) | {
        "side": difference.first,
        "minus": difference.second,
        "conclusion": metric.conclusion(difference),
        "significant": difference.significant,
    }


def _part(subsets: SubsetScores) -> dict[str, Any]:
    def change(difference: Difference) -> dict[str, Any]:
        values = {name: getattr(difference, name) for name in ("mean", "low", "high", "values", "p", "p_holm")}
        return {"letter": difference.first, **values, "conclusion": difference.conclude(less_is_better=False)}

    parts = [asdict(subset) | {"changes": list(map(change, subset.changes))} for subset in subsets.parts]
    return asdict(subsets) | {"parts": parts}


def _directions(examples: tuple[Sequence[Any], Sequence[Any]] | None) -> dict[str, Any] | None:
    if examples is None:
        return None
    return {name: list(map(asdict, same)) for name, same in zip(("better", "worse"), examples, strict=True)}


def _plain(value: Any) -> Any:
    """Return a JSON value in which text has no control characters, so that it is safe to print."""
    if isinstance(value, str):
        return long_line(value)
    if isinstance(value, Conclusion):
        return value.label
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
