"""A comparison as data: JSON with everything, and CSV with one row per difference."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from harness.analysis.comparison import Comparison, MetricComparison
from harness.analysis.effects import Conclusion, Difference, Interval
from harness.analysis.selection import Side
from harness.analysis.sentence_comparison import SubsetScores
from harness.reporting.csv_export import cell
from harness.reporting.formatting import long_line

SCHEMA = 2
COLUMNS = (
    "section",
    "name",
    "part",
    "better",
    "first",
    "second",
    "first_value",
    "second_value",
    "difference",
    "low",
    "high",
    "p",
    "p_holm",
    "comparisons",
    "tested_over",
    "conclusion",
    "significant",
    "above_zero_on_new_seed",
    "n",
    "interval_covers",
    "remark",
    "first_text",
    "second_text",
)


def to_json(comparison: Comparison) -> str:
    """Return the comparison as JSON. Differences are one side minus another, in the units of the records."""
    value = {
        "schema": SCHEMA,
        "sides": [_side(side) for side in comparison.sides],
        "allowed": [{"name": item.name, "told": item.values} for item in comparison.allowed],
        "settings": [asdict(setting) for setting in comparison.settings],
        "figures": [_metric(metric) for metric in comparison.metrics],
        "seeds_of_sentences": comparison.seeds,
        "parts": [asdict(subsets) for subsets in comparison.parts],
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


def _side(side: Side) -> dict[str, Any]:
    runs = [
        {"id": run.record.id, "seed": run.record.spec.seed, "status": run.record.status, "folder": str(run.folder)}
        for run in side.runs
    ]
    return {"letter": side.letter, "label": side.label, "runs": runs}


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
        "detectable": table.detectable if table and not metric.not_tested else None,
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
        "less": difference.second,
        "conclusion": metric.conclusion(difference),
        "significant": difference.significant and not metric.not_tested,
    }


def _directions(examples: tuple[Sequence[Any], Sequence[Any]] | None) -> dict[str, Any] | None:
    """Return the sentences or n-grams in which a side is better, and those in which it is worse."""
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


# CSV ------------------------------------------------------------------------------------------------------------------


def to_csv(comparison: Comparison) -> str:
    """Return the comparison as CSV with the columns `COLUMNS`; formulas are escaped with an apostrophe.

    Sections: side, allowed, setting, figure, one for each division of the test set, sentence, ngram. The difference is
    the value of `second` minus that of `first`.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in _rows(comparison):
        writer.writerow({name: int(value) if isinstance(value, bool) else cell(value) for name, value in row.items()})
    return text.getvalue()


def _rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    base, *compared = comparison.sides
    for side in comparison.sides:
        runs = ", ".join(f"{run.record.id} ({run.record.status})" for run in side.runs)
        yield {"section": "side", "name": side.letter, "first_text": side.label, "second_text": runs}
    for disagreement in comparison.allowed:
        yield {"section": "allowed", "name": disagreement.name, "remark": disagreement.values}
    for setting in comparison.settings:
        for side, value in zip(compared, setting.values[1:], strict=True):
            pair = {"first": base.letter, "second": side.letter}
            texts = {"first_text": setting.values[0], "second_text": value}
            yield {"section": "setting", "name": setting.name, **pair, **texts}
    for metric in comparison.metrics:
        yield from _metric_rows(comparison, metric)
    for subsets in comparison.parts:
        yield from _subset_rows(comparison, subsets)
    yield from _example_rows(comparison)


def _metric_rows(comparison: Comparison, metric: MetricComparison) -> Iterator[dict[str, Any]]:
    means = {interval.label: interval.mean for interval in metric.intervals}
    for first, second in combinations([side.letter for side in comparison.sides], 2):
        row = {
            "section": "figure",
            "name": metric.definition.name,
            "better": metric.definition.direction,
            "first": first,
            "second": second,
            "first_value": means[first],
            "second_value": means[second],
            "remark": metric.not_compared or metric.not_tested,
        }
        difference = metric.difference(second, first)
        if difference is not None:
            row |= {
                **{name: getattr(difference, name) for name in ("low", "high", "p", "p_holm", "n")},
                "difference": difference.mean,
                "tested_over": difference.tested,
                "conclusion": metric.conclusion(difference).label,
                "significant": difference.significant and not metric.not_tested,
                "interval_covers": difference.basis,
                "above_zero_on_new_seed": difference.above_zero,
                "remark": difference.remark or metric.not_tested,
                "comparisons": metric.table.tests if metric.table else None,
            }
        yield row


def _subset_rows(comparison: Comparison, subsets: SubsetScores) -> Iterator[dict[str, Any]]:
    for subset in subsets.parts:
        for change, score in zip(subset.changes, subset.scores[1:], strict=True):
            yield {
                "section": subsets.name,
                "name": subsets.score,
                "part": subset.title,
                "better": "higher",
                "first": comparison.sides[0].letter,
                "second": change.letter,
                "first_value": subset.scores[0],
                "second_value": score,
                "difference": change.mean,
                "low": change.low,
                "high": change.high,
                "p_holm": change.p,
                "conclusion": change.conclusion.label,
                "significant": change.conclusion in (Conclusion.BETTER, Conclusion.WORSE),
                "n": len(comparison.seeds),
                "remark": f"{subset.size} {subsets.unit}",
            }


def _example_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for largest in comparison.extremes:
        pair = {"first": comparison.sides[0].letter, "second": largest.letter}
        for sentence in (sentence for direction in largest.sentences or () for sentence in direction):
            yield {
                "section": "sentence",
                "name": comparison.ranked_by,
                "part": str(sentence.number),
                **pair,
                "first_value": sentence.means[0],
                "second_value": sentence.means[1],
                "difference": sentence.difference,
                "remark": f"seed {sentence.seed}"
                + (f"; reference: {sentence.reference}" if sentence.reference else ""),
                "first_text": sentence.translations[0],
                "second_text": sentence.translations[1],
            }
        for gram in (gram for direction in largest.ngrams or () for gram in direction):
            counts = {"first_value": gram.first, "second_value": gram.second, "difference": gram.second - gram.first}
            yield {"section": "ngram", "name": "times right", "part": gram.words, **pair, **counts}
