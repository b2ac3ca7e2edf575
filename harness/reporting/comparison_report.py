"""A comparison as a document: what people read, in whatever form it is written."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.comparability import machine
from harness.analysis.comparison import Comparison, LargestDifferences
from harness.analysis.comparison_metrics import MetricComparison
from harness.analysis.effects import CLAIM_SEEDS, LEGEND, Conclusion, Difference, assumption
from harness.analysis.example_sentences import Ngram, Sentence
from harness.analysis.grouping import BUDGETS
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import COMPARISON, MAIN, Kind
from harness.analysis.selection import Side
from harness.analysis.subsets import Subset, SubsetScores
from harness.reporting.document import Block, Heading, Items, Table
from harness.reporting.formatting import MISSING, bounds, number, p_value, percent, signed
from harness.text import count

MATRICES = (MAIN, "chrf", "test_loss")
"""The figures whose differences of all pairs are shown where there are more than two sides."""
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
COVERS = {"seeds and sentences": "seeds + sentences", "seeds": "seeds", "sentences": "sentences", "nothing": MISSING}


def document(found: Comparison) -> list[Block]:
    """Return everything that is to be told."""
    base = found.sides[0]
    blocks: list[Block] = [Heading(f"{' and '.join(side.letter for side in found.sides[1:])} against {base.letter}")]
    blocks.append(Items(tuple(_side(side) for side in found.sides)))
    blocks.append(Items((*_warnings(found), *(_finding(found, side) for side in found.sides[1:]))))
    blocks += _settings(found)
    for side in found.sides[1:]:
        blocks += _figures(found, side, "quality", "Quality")
        blocks += _figures(found, side, "orders", "BLEU by order of n-gram")
    blocks += _matrices(found)
    for side in found.sides[1:]:
        blocks += _cost(found, side)
    for parts in found.parts:
        blocks += _parts(found, parts)
    for one in found.extremes:
        blocks += _sentences(found, one)
        blocks += _ngrams(found, one)
    if found.left_out:
        blocks += [Heading("Left out"), Items(found.left_out)]
    return [*blocks, Heading("How to read it"), Items(_legend(found))]


# The beginning --------------------------------------------------------------------------------------------------------


def _side(side: Side) -> str:
    ends = [run.record.status for run in side.runs]
    told = ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(sorted(ends)))
    seeds = ", ".join(str(run.record.spec.seed) for run in side.runs)
    data, budget = side.records[0].spec.data, BUDGETS[side.records[0].spec.budget].lower()
    return (
        f"{side.letter}: {side.label}; {data.corpus} {data.direction} {data.test_split}; {budget}; "
        f"seed{'s' * (len(ends) > 1)} {seeds} ({told})"
    )


def _warnings(found: Comparison) -> list[str]:
    notes = dict.fromkeys(record.note for side in found.sides for record in side.records if record.note)
    return [
        *(f"Not the same on all sides, and allowed: {one.name}: {one.told}." for one in found.allowed),
        *(f"Note: {note}" for note in notes),
        *(f"Did not complete: {line}." for line in found.lost),
        *found.remarks,
        *([_fewer(found)] if found.lost and found.seeds else []),
    ]


def _fewer(found: Comparison) -> str:
    seeds = f"seed{'s' * (len(found.seeds) > 1)} {', '.join(map(str, found.seeds))}"
    return f"Lengths, words, sentences and n-grams are of {seeds} alone, where every run completed."


def _finding(found: Comparison, side: Side) -> str:
    """Return in a sentence what the main figure says."""
    base, main = found.sides[0], found.figure(MAIN)
    names = f"{side.letter} ({side.label}) and {base.letter} ({base.label})"
    difference = main.difference(side.letter, base.letter) if main else None
    if main is None or difference is None or difference.mean is None:
        why = (main.silent if main else "") or (difference.remark if difference else "") or "no side has it"
        return f"sacreBLEU of {names} cannot be compared: {why.rstrip('.')}."
    said = f"sacreBLEU, {side.letter} ({side.label}) less {base.letter} ({base.label}): {signed(difference.mean, 2)}"
    conclusion = main.conclusion(difference)
    if difference.tested == "sentences":
        said += f", one seed, {_both_p(main, difference)}"
        if conclusion is Conclusion.SENTENCES_ONLY:
            return f"{said}: {conclusion.label}."
        return f"{said}: {conclusion.label} even on these sentences; seed variance unknown."
    if difference.n < LEAST_SEEDS or difference.tested == "nothing":
        values = bounds(difference, 2)
        shown = f" ({values})" if values != MISSING else ""
        return f"{said}{shown}, {count(difference.n, 'seed')}: not tested."
    said += f" (95 % interval {bounds(difference, 2)}), {difference.n} seeds, {_both_p(main, difference)}"
    if difference.n < CLAIM_SEEDS:
        return f"{said}: fewer than {CLAIM_SEEDS} seeds are too few for a claim."
    if conclusion is Conclusion.INCONCLUSIVE:
        return f"{said}: inconclusive{assumption(difference.n)}. That does not show that they are equal."
    return f"{said}: significantly {conclusion.label}{assumption(difference.n)}."


def _both_p(one: MetricComparison, difference: Difference) -> str:
    """Return the p-value of a comparison on its own, and that among all comparisons of its table."""
    tests = one.table.tests if one.table else 1
    within = "the report" if one.reported else "this page"
    comparisons = count(tests, "comparison")
    return f"p {p_value(difference.p)} on its own, {p_value(difference.p_holm)} within the {comparisons} of {within}"


def _settings(found: Comparison) -> list[Block]:
    letters = tuple(side.letter for side in found.sides)
    rows = tuple((one.name, *one.values) for one in found.settings)
    if not rows:
        return [Heading("Settings in which the sides differ"), Items(("None, but the seed where that differs.",))]
    return [Heading("Settings in which the sides differ"), Table("l" * (1 + len(letters)), ("setting", *letters), rows)]


# Figures --------------------------------------------------------------------------------------------------------------


def _figures(found: Comparison, side: Side, kind: Kind, title: str) -> list[Block]:
    base = found.sides[0]
    chosen = [one for one in found.figures if one.figure.kind == kind]
    if not chosen:
        return []
    rows = tuple(_figure(one, side, base, found.sides) for one in chosen)
    difference = f"{side.letter} − {base.letter}"
    one_seed = all(each.n == 1 for one in chosen if (each := one.difference(side.letter, base.letter)))
    heads = (
        "",
        base.letter,
        side.letter,
        difference,
        "95 % interval",
        "p",
        _within([one.table.tests for one in chosen if one.table]),
        f"{side.letter} is",
        "new seed",
        "covers",
        "n",
    )
    notes = _silent(chosen)
    if one_seed:
        notes.append("p here is over test sentences (approximate randomisation), not over seeds.")
    elif kind == "quality":
        notes += _tested(chosen, side.letter, base.letter)
    title = f"{title}: {side.letter} against {base.letter}"
    return [Heading(title), Table("lrrrlrrlrlr", heads, rows), *([Items(tuple(notes))] if notes else [])]


def _figure(one: MetricComparison, side: Side, base: Side, sides: Sequence[Side]) -> tuple[str, ...]:
    figure, difference = one.figure, one.difference(side.letter, base.letter)
    means = [_mean(one, sides.index(each)) for each in (base, side)]
    title = f"{figure.heading}{ARROWS[figure.direction]}"
    if difference is None or difference.mean is None:
        return (title, *means, MISSING, MISSING, MISSING, MISSING, _told(Conclusion.NOT_TESTED), MISSING, "", "0")
    new_seed = difference.better_on_new_seed(less_is_better=figure.less_is_better)
    return (
        title,
        *means,
        signed(difference.mean / figure.divisor, figure.digits),
        bounds(difference, figure.digits, figure.divisor),
        p_value(difference.p),
        p_value(difference.p_holm),
        _told(one.conclusion(difference)),
        MISSING if new_seed is None else percent(new_seed),
        COVERS[difference.basis],
        str(difference.n),
    )


def _mean(one: MetricComparison, place: int) -> str:
    mean = one.intervals[place].mean
    return MISSING if mean is None else number(mean / one.figure.divisor, one.figure.digits)


def _told(conclusion: Conclusion) -> str:
    """Return a conclusion for a cell; the long label of one seed stands in the legend."""
    return conclusion.symbol if conclusion is Conclusion.SENTENCES_ONLY else f"{conclusion.symbol} {conclusion.label}"


def _within(tests: Sequence[int]) -> str:
    """Return the head of the column of corrected p-values."""
    known = sorted(set(tests))
    return f"p of {known[0]}" if len(known) == 1 else "p of all"


def _tested(chosen: Sequence[MetricComparison], letter: str, base: str) -> list[str]:
    """Return how many figures differ significantly, beside how many would by chance, and what could be detected."""
    found = [one for one in chosen if (each := one.difference(letter, base)) is not None and each.tested == "seeds"]
    if not found:
        return []
    sure = (Conclusion.BETTER, Conclusion.WORSE)
    number = sum(one.conclusion(one.difference(letter, base)) in sure for one in found)
    notes = [
        f"{number} of {len(found)} figures differ significantly; without any difference each would once in twenty."
    ]
    main = next((one for one in found if one.figure.name == MAIN), found[0])
    assert main.table is not None
    if main.table.detectable is not None:
        notes.append(
            f"{main.figure.title}: a true difference of {_detectable(main)} is found with 80 % probability. "
            f"{main.table.moderation}".strip()
        )
    return notes


def _detectable(one: MetricComparison) -> str:
    """Return what the table of a figure detects."""
    assert one.table is not None
    return number(one.table.detectable, one.figure.digits)


def _silent(chosen: Sequence[MetricComparison]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for one in chosen:
        if one.silent:
            reasons.setdefault(one.silent, []).append(one.figure.heading)
    return [f"Not compared ({', '.join(names)}): {why}." for why, names in reasons.items()]


def _matrices(found: Comparison) -> list[Block]:
    if len(found.sides) < 3:
        return []
    blocks: list[Block] = []
    letters = [side.letter for side in found.sides]
    for name in MATRICES:
        one = found.figure(name)
        if one is None or one.table is None:
            continue
        rows = tuple((row, *(_cell(one, row, column) for column in letters)) for row in letters)
        heads = ("row less column", *letters)
        title = f"All pairs: {one.figure.title} ({one.figure.direction} is better)"
        blocks += [Heading(title), Table("l" + "r" * len(letters), heads, rows)]
    return blocks


def _cell(one: MetricComparison, row: str, column: str) -> str:
    if row == column or one.table is None:
        return ""
    difference = one.table.between(row, column)
    return f"{signed(difference.mean, one.figure.digits)} {_told(one.conclusion(difference))}"


def _cost(found: Comparison, side: Side) -> list[Block]:
    base, rows = found.sides[0], []
    chosen = [one for one in found.figures if one.figure.kind == "cost"]
    for one in chosen:
        figure, difference = one.figure, one.difference(side.letter, base.letter)
        means = [one.intervals[found.sides.index(each)].mean for each in (base, side)]
        ratio = means[1] / means[0] if means[0] and means[1] is not None else None
        counted = figure.name == "parameters"
        known = difference is not None and not counted
        title = f"{figure.heading}{ARROWS[figure.direction]}"
        cells = [_mean(one, found.sides.index(each)) for each in (base, side)]
        between = bounds(difference, figure.digits, figure.divisor) if known and difference else MISSING
        mean = difference.mean if difference else None
        change = signed(None if mean is None else mean / figure.divisor, figure.digits)
        rows.append(
            (title, *cells, change, between, number(ratio, 3), "counted" if counted else Conclusion.NOT_TESTED.symbol)
        )
    if not rows:
        return []
    difference_head, ratio_head = f"{side.letter} − {base.letter}", f"{side.letter} / {base.letter}"
    heads = ("", base.letter, side.letter, difference_head, "95 % interval", ratio_head, "")
    why = next((one.unjudged for one in chosen if one.figure.name != "parameters"), "")
    symbol = Conclusion.NOT_TESTED.symbol
    lines = [f"{symbol} not tested: {why}. The intervals are over seeds alone."] if why else []
    for each in (base, side):
        for place in dict.fromkeys(map(machine, each.records)):
            threads = "/".join(dict.fromkeys(str(record.spec.threads) for record in each.records))
            lines.append(f"{each.letter} was measured on: {place}; threads: {threads}.")
    return [
        Heading(f"Size, speed and memory: {side.letter} against {base.letter}"),
        Table("lrrrlrl", heads, tuple(rows)),
        Items(tuple(lines)),
    ]


# Parts of the test set ------------------------------------------------------------------------------------------------


def _parts(found: Comparison, parts: SubsetScores) -> list[Block]:
    letters = [side.letter for side in found.sides]
    heads = ["", parts.unit, *letters]
    for letter in letters[1:]:
        heads += [f"{letter} − {letters[0]}", "95 % interval", f"{letter} is"]
    rows = tuple(_part(one) for one in parts.parts)
    columns = "lr" + "r" * len(letters) + "rll" * (len(letters) - 1)
    corrected = len(parts.parts) * (len(letters) - 1)
    notes = [*parts.notes]
    if len(found.seeds) != 2:
        notes.append(f"Symbols after Holm's correction for the {corrected} differences of this table.")
    return [
        Heading(f"{parts.score} {parts.title}"),
        Table(columns, tuple(heads), rows),
        *([Items(tuple(notes))] if notes else []),
    ]


def _part(part: Subset) -> tuple[str, ...]:
    cells = [part.title, f"{part.size:,}", *(number(score, 2) for score in part.scores)]
    for one in part.changes:
        cells += [signed(one.mean, 2), bounds(one, 2), _told(one.conclusion)]
    return tuple(cells)


# Sentences and n-grams ------------------------------------------------------------------------------------------------


def _sentences(found: Comparison, one: LargestDifferences) -> list[Block]:
    if one.sentences is None:
        return []
    base, blocks = found.sides[0].letter, list[Block]()
    score = COMPARISON[found.ranked_by].title
    for chosen, way in zip(one.sentences, ("better", "worse"), strict=True):
        if chosen:
            rows = tuple(row for sentence in chosen for row in _sentence(sentence, base, one.letter))
            heads = ("sentence", f"{one.letter} − {base}", score, "", "text")
            blocks += [
                Heading(f"Sentences that {one.letter} translates {way} than {base} by most"),
                Table("rrrlp", heads, rows),
            ]
    if blocks:
        note = (
            f"{one.letter} − {base} is the difference of the sentence's {score}, mean over "
            f"seed{'s' * (len(found.seeds) > 1)} {', '.join(map(str, found.seeds))}; shown is the seed whose "
            f"difference is nearest to it, with its own {score}. Chosen because they differ "
            "most: they show how, not how much."
        )
        return [*blocks, Items((note,))]
    return [Heading(f"Sentences: {one.letter} against {base}"), Items(("No sentence's score differs.",))]


def _sentence(one: Sentence, base: str, other: str) -> list[tuple[str, ...]]:
    rows = [("", name, text) for name, text in (("source", one.source), ("reference", one.reference)) if text]
    for letter, score, text in zip((base, other), one.scores, one.translations, strict=True):
        rows.append((number(score, 1), f"{letter}, seed {one.seed}", text))
    first = (str(one.number), signed(one.difference, 1))
    return [(*(first if place == 0 else ("", "")), *row) for place, row in enumerate(rows)]


def _ngrams(found: Comparison, one: LargestDifferences) -> list[Block]:
    if one.ngrams is None:
        return []
    base, blocks = found.sides[0].letter, list[Block]()
    for chosen, way in zip(one.ngrams, ("more", "less"), strict=True):
        if chosen:
            heads = ("n-gram", base, one.letter, "share", "seeds")
            rows = tuple(_ngram(each, len(found.seeds)) for each in chosen)
            blocks += [
                Heading(f"n-grams that {one.letter} has right {way} often than {base}"),
                Table("lrrrr", heads, rows),
            ]
    note = (
        "Times right, summed over seeds; share: (second + 1) / (first + second + 2); seeds: in how many the same side "
        "has it right more often. The largest of many thousand, so often chance (Neubig et al. 2019, compare-mt)."
    )
    return [*blocks, Items((note,))] if blocks else []


def _ngram(one: Ngram, seeds: int) -> tuple[str, ...]:
    return one.words, f"{one.first:,}", f"{one.second:,}", f"{one.share:.2f}", f"{one.seeds} of {seeds}"


# The end --------------------------------------------------------------------------------------------------------------


def _legend(found: Comparison) -> tuple[str, ...]:
    base, main = found.sides[0].letter, found.figure(MAIN)
    seeds = len(main.table.seeds) if main and main.table else 0
    corrected = "the report's table" if main and main.reported else "the table of these sides"
    lines = [
        "↑ higher is better, ↓ lower is better. Columns of a side are means over its own completed runs.",
        f"A difference is a side less {base}, seed by seed, over the seeds that all sides have.",
        f"{LEGEND}; after Holm's correction for all comparisons of {corrected}.",
        "p is that of the comparison on its own, and below 0.05 exactly where its 95 % interval leaves 0 out; p of N "
        "is corrected for the N comparisons of the table. Neither is corrected for the number of figures: decide on "
        "one before looking. Most rise and fall together.",
        "new seed: the probability that the side is better in a new seed on the same test sentences.",
        "covers: what interval and p cover. One that covers seeds alone says nothing of other test sentences.",
    ]
    if seeds >= LEAST_SEEDS and (under := assumption(seeds)):
        lines.append(f"All tests over {seeds} seeds hold{under}.")
    signatures: dict[str, dict[str, None]] = {}
    for side in found.sides:
        for record in side.records:
            for name, signature in record.signatures.items():
                if name in (MAIN, "chrf"):
                    signatures.setdefault(name, {})[signature] = None
    lines += [f"{COMPARISON[name].title}: {'; '.join(own)}" for name, own in sorted(signatures.items())]
    return tuple(lines)
