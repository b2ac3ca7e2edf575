"""A comparison as data: JSON with everything, and CSV with a line for each difference."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from harness.analysis.comparison import Comparison
from harness.analysis.comparison_metrics import MetricComparison
from harness.analysis.effects import Conclusion, Difference, Interval
from harness.analysis.selection import Side
from harness.analysis.subsets import SubsetScores
from harness.reporting.csv_export import cell
from harness.text import short_line

SCHEMA = 2
LONGEST = 4_000
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


def to_json(found: Comparison) -> str:
    """Return the comparison as JSON: differences are a side's figure less that of another, in the record's units."""
    value = {
        "schema": SCHEMA,
        "sides": [_side(side) for side in found.sides],
        "allowed": [asdict(one) for one in found.allowed],
        "settings": [{"name": one.name, "values": list(one.values)} for one in found.settings],
        "figures": [_figure(one) for one in found.figures],
        "seeds_of_sentences": list(found.seeds),
        "parts": [_parts(one) for one in found.parts],
        "sentences_ranked_by": found.ranked_by,
        "extremes": [_extreme(one) for one in found.extremes],
        "did_not_complete": list(found.lost),
        "remarks": list(found.remarks),
        "left_out": list(found.left_out),
    }
    return json.dumps(_clean(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _side(side: Side) -> dict[str, Any]:
    runs = [
        {"id": one.record.id, "seed": one.record.spec.seed, "status": one.record.status, "folder": str(one.folder)}
        for one in side.runs
    ]
    return {"letter": side.letter, "label": side.label, "runs": runs}


def _figure(one: MetricComparison) -> dict[str, Any]:
    figure, table = one.figure, one.table
    letters = [each.label for each in one.intervals]
    pairs = [(second, first) for place, first in enumerate(letters) for second in letters[place + 1 :]]
    return {
        "name": figure.name,
        "title": figure.title,
        "better": figure.direction,
        "means": [_interval(each) for each in one.intervals],
        "seeds": list(table.seeds) if table else [],
        "comparisons": table.tests if table else 0,
        "table": None if table is None else "report" if one.reported else "sides",
        "detectable": table.detectable if table and not one.unjudged else None,
        "moderation": table.moderation if table else "",
        "differences": [_difference(one, table.between(*pair)) for pair in pairs] if table else [],
        "not_compared": one.silent,
        "not_tested": one.unjudged,
        "remarks": list(table.remarks) if table else [],
    }


def _parts(found: SubsetScores) -> dict[str, Any]:
    value = asdict(found)
    for part in value["parts"]:
        for change in part["changes"]:
            change["conclusion"] = change["conclusion"].label
    return value


def _interval(one: Interval) -> dict[str, Any]:
    return {
        "side": one.label,
        "mean": one.mean,
        "low": one.low,
        "high": one.high,
        "values": list(one.values),
        "n": one.n,
        "interval_covers": one.basis,
        "remark": one.remark,
    }


def _difference(one: MetricComparison, each: Difference) -> dict[str, Any]:
    value = {**asdict(each), "interval_covers": each.basis, "conclusion": one.conclusion(each).label}
    value["significant"] = each.significant and not one.unjudged
    for name in ("label", "basis"):
        del value[name]
    return {"side": value.pop("first"), "less": value.pop("second"), **value}


def _extreme(one: Any) -> dict[str, Any]:
    value = {"side": one.letter}
    for name in ("sentences", "ngrams"):
        found = getattr(one, name)
        value[name] = (
            None
            if found is None
            else {
                "better": [asdict(each) for each in found[0]],
                "worse": [asdict(each) for each in found[1]],
            }
        )
    return value


def _clean(value: Any) -> Any:
    """Return JSON whose text holds no control character: whoever prints it is not at its mercy."""
    if isinstance(value, str):
        return short_line(value, longest=LONGEST)
    if isinstance(value, Mapping):
        return {name: _clean(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value


# CSV ------------------------------------------------------------------------------------------------------------------


def to_csv(found: Comparison) -> str:
    """Return the comparison as CSV, `COLUMNS` first; text that a spreadsheet would run begins with an apostrophe.

    Sections: side, allowed, setting, figure, a division of the test set, sentence, ngram. `second` is held against
    `first`: the difference is its value less that of `first`.
    """
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in _lines(found):
        writer.writerow({name: _cell(value) for name, value in line.items()})
    return written.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    return cell(value)


def _lines(found: Comparison) -> Iterator[dict[str, Any]]:
    base = found.sides[0].letter
    for side in found.sides:
        runs = ", ".join(f"{run.record.id} ({run.record.status})" for run in side.runs)
        yield {"section": "side", "name": side.letter, "first_text": side.label, "second_text": runs}
    for one in found.allowed:
        yield {"section": "allowed", "name": one.name, "remark": one.told}
    for setting in found.settings:
        for side, value in zip(found.sides[1:], setting.values[1:], strict=True):
            pair = {"first": base, "second": side.letter, "first_text": setting.values[0], "second_text": value}
            yield {"section": "setting", "name": setting.name, **pair}
    for figure in found.figures:
        yield from _figure_lines(found, figure)
    for parts in found.parts:
        for part in parts.parts:
            for place, change in enumerate(part.changes, start=1):
                yield {
                    "section": parts.name,
                    "name": parts.score,
                    "part": part.title,
                    "better": "higher",
                    "first": base,
                    "second": change.letter,
                    "first_value": part.scores[0],
                    "second_value": part.scores[place],
                    "difference": change.mean,
                    "low": change.low,
                    "high": change.high,
                    "p_holm": change.p,
                    "conclusion": change.conclusion.label,
                    "significant": change.conclusion in (Conclusion.BETTER, Conclusion.WORSE),
                    "n": len(found.seeds),
                    "remark": f"{part.size} {parts.unit}",
                }
    yield from _extreme_lines(found, base)


def _figure_lines(found: Comparison, one: MetricComparison) -> Iterator[dict[str, Any]]:
    means = {each.label: each.mean for each in one.intervals}
    letters = [side.letter for side in found.sides]
    for place, first in enumerate(letters):
        for second in letters[place + 1 :]:
            line = {
                "section": "figure",
                "name": one.figure.name,
                "better": one.figure.direction,
                "first": first,
                "second": second,
                "first_value": means[first],
                "second_value": means[second],
                "remark": one.silent or one.unjudged,
            }
            each = one.difference(second, first)
            if each is not None:
                names = ("low", "high", "p", "p_holm", "n")
                line |= {"difference": each.mean, **{name: getattr(each, name) for name in names}}
                line |= {"tested_over": each.tested, "conclusion": one.conclusion(each).label}
                line |= {"significant": each.significant and not one.unjudged, "interval_covers": each.basis}
                line |= {"above_zero_on_new_seed": each.above_zero, "remark": each.remark or one.unjudged}
                line |= {"comparisons": one.table.tests if one.table else None}
            yield line


def _extreme_lines(found: Comparison, base: str) -> Iterator[dict[str, Any]]:
    for one in found.extremes:
        pair = {"first": base, "second": one.letter}
        for sentence in [each for own in one.sentences or () for each in own]:
            yield {
                "section": "sentence",
                "name": found.ranked_by,
                "part": str(sentence.number),
                **pair,
                "first_value": sentence.means[0],
                "second_value": sentence.means[1],
                "difference": sentence.difference,
                "remark": f"seed {sentence.seed}" + (f"; reference: {sentence.reference}" * bool(sentence.reference)),
                "first_text": sentence.translations[0],
                "second_text": sentence.translations[1],
            }
        for gram in [each for own in one.ngrams or () for each in own]:
            counts = {"first_value": gram.first, "second_value": gram.second, "difference": gram.second - gram.first}
            yield {"section": "ngram", "name": "times right", "part": gram.words, **pair, **counts}
