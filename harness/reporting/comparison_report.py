"""A comparison as blocks of a document, for the terminal, Markdown and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.comparability import machine
from harness.analysis.comparison import Comparison, LargestDifferences, MetricComparison
from harness.analysis.effects import CLAIM_SEEDS, LEGEND, Conclusion, Difference, assumption
from harness.analysis.grouping import BUDGETS, group_by, record_notes, statuses
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import COMPARISON, MAIN, Kind
from harness.analysis.selection import Side
from harness.analysis.sentence_comparison import Sentence, SubsetScores
from harness.reporting.document import Block, Heading, Items, Table
from harness.reporting.formatting import MISSING, bounds, number, p_value, percent, signed
from harness.text import count, named_seeds, short_line

MATRICES = (MAIN, "chrf", "test_loss")
"""The metrics with a table of all pairs, for three sides or more."""
ARROWS = {"higher": " ↑", "lower": " ↓", "neither": ""}
COVERS = {"seeds and sentences": "seeds + sentences", "seeds": "seeds", "sentences": "sentences", "nothing": MISSING}


def document(comparison: Comparison) -> list[Block]:
    """Return a comparison as blocks."""
    base, *compared = comparison.sides
    blocks: list[Block] = [
        Heading(f"{' and '.join(side.letter for side in compared)} against {base.letter}"),
        Items(tuple(map(_side, comparison.sides))),
        Items((*_warnings(comparison), *(_finding(comparison, side) for side in compared))),
        *_settings(comparison),
    ]
    for side in compared:
        blocks += _metrics(comparison, side.letter, "quality", "Quality")
        blocks += _metrics(comparison, side.letter, "orders", "BLEU by order of n-gram")
    blocks += _matrices(comparison)
    for side in compared:
        blocks += _costs(comparison, side)
    for subsets in comparison.parts:
        blocks += _subsets(comparison, subsets)
    for examples in comparison.extremes:
        blocks += [*_sentences(comparison, examples), *_ngrams(comparison, examples)]
    blocks += [Heading("Left out"), Items(comparison.left_out)]
    return [*blocks, Heading("How to read it"), Items(_legend(comparison))]


# Sides and findings ---------------------------------------------------------------------------------------------------


def _side(side: Side) -> str:
    spec = side.records[0].spec
    return (
        f"{side.letter}: {side.label}; {spec.data.corpus} {spec.data.direction}, {short_line(spec.data.test_set)}; "
        f"{BUDGETS[spec.budget].lower()}; {named_seeds([record.spec.seed for record in side.records])} "
        f"({statuses(side.records)})"
    )


def _warnings(comparison: Comparison) -> list[str]:
    lines = [
        *(f"Allowed difference: {item.name}: {item.sides}." for item in comparison.allowed),
        *(f"Note: {note}" for note in record_notes(record for side in comparison.sides for record in side.records)),
        *(f"Did not complete: {line}." for line in comparison.lost),
        *comparison.remarks,
    ]
    if comparison.lost and comparison.seeds:
        seeds = named_seeds(comparison.seeds)
        lines.append(f"Lengths, words, sentences and n-grams use {seeds} only, the seeds completed on every side.")
    return lines


def _finding(comparison: Comparison, side: Side) -> str:
    base, main = comparison.sides[0], comparison.metric(MAIN)
    names = f"{side.letter} ({side.label})", f"{base.letter} ({base.label})"
    difference = main.difference(side.letter, base.letter) if main else None
    if main is None or difference is None or difference.mean is None:
        reason = (main.not_compared if main else "") or (difference.remark if difference else "")
        reason = reason or "no side has a score"
        return f"sacreBLEU of {names[0]} and {names[1]} cannot be compared: {reason.rstrip('.')}."
    sentence = f"sacreBLEU, {names[0]} minus {names[1]}: {signed(difference.mean, 2)}"
    conclusion, interval = main.conclusion(difference), bounds(difference, 2)
    if difference.tested == "sentences":
        sentence += f", one seed, {_p_values(main, difference)}"
        if conclusion is Conclusion.SENTENCES_ONLY:
            return f"{sentence}: {conclusion.label}."
        return f"{sentence}: {conclusion.label} even on these sentences; seed variance unknown."
    if difference.n < LEAST_SEEDS or difference.tested == "nothing":
        values = "" if interval == MISSING else f" ({interval})"
        needed = f"; a test over seeds needs {LEAST_SEEDS}" if difference.n < LEAST_SEEDS else ""
        return f"{sentence}{values}, {count(difference.n, 'seed')}: not tested{needed}."
    sentence += f" (95 % interval {interval}), {difference.n} seeds, {_p_values(main, difference)}"
    if difference.n < CLAIM_SEEDS:
        return f"{sentence}: fewer than {CLAIM_SEEDS} seeds are too few for a claim."
    if conclusion is Conclusion.INCONCLUSIVE:
        return f"{sentence}: inconclusive{assumption(difference.n)}. That does not show that they are equal."
    return f"{sentence}: significantly {conclusion.label}{assumption(difference.n)}."


def _p_values(metric: MetricComparison, difference: Difference) -> str:
    """Return the p-value of a difference on its own, and the one corrected for all comparisons of its table."""
    comparisons = count(metric.table.tests if metric.table else 1, "comparison")
    table = "the report" if metric.reported else "this page"
    return f"p {p_value(difference.p)} on its own, {p_value(difference.p_holm)} within the {comparisons} of {table}"


def _settings(comparison: Comparison) -> list[Block]:
    title = Heading("Settings in which the sides differ")
    if not comparison.settings:
        return [title, Items(("None, apart from the seed.",))]
    letters = [side.letter for side in comparison.sides]
    rows = tuple((name, *values) for name, values in comparison.settings.items())
    return [title, Table("l" * (1 + len(letters)), ("setting", *letters), rows)]


# Metrics --------------------------------------------------------------------------------------------------------------


def _metrics(comparison: Comparison, letter: str, kind: Kind, title: str) -> list[Block]:
    base = comparison.sides[0].letter
    metrics = [metric for metric in comparison.metrics if metric.definition.kind == kind]
    if not metrics:
        return []
    tests = {metric.table.tests for metric in metrics if metric.table and metric.table.tests}
    p_corrected = f"p of {min(tests)}" if len(tests) == 1 else "p of all"
    heads = ("", base, letter, f"{letter} − {base}", "95 % interval", "p", p_corrected, f"{letter} is", "new seed")
    notes = _not_compared(metrics)
    differences = [metric.difference(letter, base) for metric in metrics]
    if any(differences) and all(difference.n == 1 for difference in differences if difference is not None):
        notes.append("p is over test sentences (approximate randomisation), not over seeds.")
    elif kind == "quality":
        notes += _power(metrics, letter, base)
    rows = tuple(_metric(metric, letter, base) for metric in metrics)
    table = Table("lrrrlrrlrlr", (*heads, "covers", "n"), rows)
    return [Heading(f"{title}: {letter} against {base}"), table, Items(tuple(notes))]


def _metric(metric: MetricComparison, letter: str, base: str) -> tuple[str, ...]:
    definition, difference = metric.definition, metric.difference(letter, base)
    means = {interval.label: interval.mean for interval in metric.intervals}
    scaled = [None if (mean := means[side]) is None else mean / definition.divisor for side in (base, letter)]
    cells = (
        f"{definition.heading}{ARROWS[definition.direction]}",
        *(number(mean, definition.digits) for mean in scaled),
    )
    if difference is None or difference.mean is None:
        return (*cells, *[MISSING] * 4, _conclusion(Conclusion.NOT_TESTED), MISSING, "", "0")
    new_seed = None
    if definition.direction != "neither":
        new_seed = difference.better_on_new_seed(less_is_better=definition.less_is_better)
    return (
        *cells,
        signed(difference.mean / definition.divisor, definition.digits),
        bounds(difference, definition.digits, definition.divisor),
        p_value(difference.p),
        p_value(difference.p_holm),
        _conclusion(metric.conclusion(difference)),
        MISSING if new_seed is None else percent(new_seed),
        COVERS[difference.basis],
        str(difference.n),
    )


def _conclusion(conclusion: Conclusion) -> str:
    """Return a conclusion for a cell; the long label of one seed is in the legend."""
    return conclusion.symbol if conclusion is Conclusion.SENTENCES_ONLY else f"{conclusion.symbol} {conclusion.label}"


def _power(metrics: Sequence[MetricComparison], letter: str, base: str) -> list[str]:
    pairs = [(metric, metric.difference(letter, base)) for metric in metrics]
    pairs = [(metric, difference) for metric, difference in pairs if difference and difference.tested == "seeds"]
    if not pairs:
        return []
    conclusions = [metric.conclusion(difference) for metric, difference in pairs]
    amount = conclusions.count(Conclusion.BETTER) + conclusions.count(Conclusion.WORSE)
    tested = len(conclusions) - conclusions.count(Conclusion.NOT_TESTED)
    notes = [
        f"{amount} of {tested} metrics differ significantly. They are correlated, so they hardly confirm each other."
    ]
    main = next((metric for metric, _ in pairs if metric.definition.name == MAIN), pairs[0][0])
    if main.table is not None and main.table.detectable is not None:
        detectable = number(main.table.detectable, main.definition.digits)
        notes.append(
            f"{main.definition.title}: a true difference of {detectable} is found with 80 % probability. "
            f"{main.table.moderation}".strip()
        )
    return notes


def _not_compared(metrics: Sequence[MetricComparison]) -> list[str]:
    by_reason = group_by(metrics, lambda metric: metric.not_compared)
    headings = {reason: ", ".join(metric.definition.heading for metric in same) for reason, same in by_reason.items()}
    return [f"Not compared ({names}): {reason}." for reason, names in headings.items() if reason]


def _matrices(comparison: Comparison) -> list[Block]:
    blocks: list[Block] = []
    letters = [side.letter for side in comparison.sides]
    for metric in filter(None, map(comparison.metric, MATRICES)):
        if metric.table is not None and len(letters) > 2:
            rows = tuple((row, *(_pair(metric, row, column) for column in letters)) for row in letters)
            title = f"All pairs: {metric.definition.title} ({metric.definition.direction} is better)"
            blocks += [Heading(title), Table("l" + "r" * len(letters), ("row minus column", *letters), rows)]
    return blocks


def _pair(metric: MetricComparison, row: str, column: str) -> str:
    difference = None if row == column else metric.difference(row, column)
    if difference is None:
        return ""
    return f"{signed(difference.mean, metric.definition.digits)} {_conclusion(metric.conclusion(difference))}"


def _costs(comparison: Comparison, side: Side) -> list[Block]:
    base, letter = comparison.sides[0], side.letter
    metrics = [metric for metric in comparison.metrics if metric.definition.kind == "cost"]
    if not metrics:
        return []
    symbol = Conclusion.NOT_TESTED.symbol
    reason = next((metric.not_tested for metric in metrics if metric.definition.name != "parameters"), "")
    notes = [f"{symbol} not tested: {reason}. Intervals cover seeds only."] if reason else []
    for measured in (base, side):
        for name in dict.fromkeys(map(machine, measured.records)):
            threads = "/".join(dict.fromkeys(str(record.spec.threads) for record in measured.records))
            notes.append(f"{measured.letter} was measured on: {name}; threads: {threads}.")
    heads = ("", base.letter, letter, f"{letter} − {base.letter}", "95 % interval", f"{letter} / {base.letter}", "")
    table = Table("lrrrlrl", heads, tuple(_cost(metric, letter, base.letter) for metric in metrics))
    return [Heading(f"Size, speed and memory: {letter} against {base.letter}"), table, Items(tuple(notes))]


def _cost(metric: MetricComparison, letter: str, base: str) -> tuple[str, ...]:
    *cells, interval = _metric(metric, letter, base)[:5]
    values = {mean.label: mean.mean for mean in metric.intervals}
    first, second = values[base], values[letter]
    ratio = number(second / first if first and second is not None else None, 3)
    if metric.definition.name == "parameters":
        return *cells, MISSING, ratio, "counted"
    return *cells, interval, ratio, Conclusion.NOT_TESTED.symbol


def _subsets(comparison: Comparison, subsets: SubsetScores) -> list[Block]:
    base, *letters = [side.letter for side in comparison.sides]
    heads = ["", subsets.unit, base, *letters]
    for letter in letters:
        heads += [f"{letter} − {base}", "95 % interval", f"{letter} is"]
    rows = []
    for subset in subsets.parts:
        cells = [subset.title, f"{subset.size:,}", *(number(score, 2) for score in subset.scores)]
        for change in subset.changes:
            cells += [signed(change.mean, 2), bounds(change, 2), _conclusion(change.conclude(less_is_better=False))]
        rows.append(tuple(cells))
    notes = list(subsets.notes)
    if len(comparison.seeds) != 2:
        tests = len(subsets.parts) * len(letters)
        notes.append(f"Symbols hold after Holm's correction for the {count(tests, 'difference')} of this table.")
    table = Table("lrr" + "r" * len(letters) + "rll" * len(letters), tuple(heads), tuple(rows))
    return [Heading(f"{subsets.score} {subsets.title}"), table, Items(tuple(notes))]


# Sentences and n-grams ------------------------------------------------------------------------------------------------


def _sentences(comparison: Comparison, examples: LargestDifferences) -> list[Block]:
    if examples.sentences is None:
        return []
    base, letter, score = comparison.sides[0].letter, examples.letter, COMPARISON[comparison.ranked_by].title
    blocks: list[Block] = []
    for direction, sentences in zip(("better", "worse"), examples.sentences, strict=True):
        if sentences:
            rows = tuple(row for sentence in sentences for row in _sentence(sentence, base, letter))
            heads = ("sentence", f"{letter} − {base}", score, "", "text")
            title = Heading(f"Sentences that {letter} translates {direction} than {base} by the widest margin")
            blocks += [title, Table("rrrlp", heads, rows)]
    if not blocks:
        return [Heading(f"Sentences: {letter} against {base}"), Items(("No sentence's score differs.",))]
    note = (
        f"{letter} − {base} is the difference in the sentence's {score}, a mean over {named_seeds(comparison.seeds)}. "
        f"The translations and their {score} are of the seed closest to this mean, of those with a difference in the "
        "same direction. These sentences differ most: they are examples, not estimates."
    )
    return [*blocks, Items((note,))]


def _sentence(sentence: Sentence, base: str, letter: str) -> list[tuple[str, ...]]:
    texts = (("source", sentence.source), ("reference", sentence.reference))
    rows = [("", name, text) for name, text in texts if text]
    for side, score, text in zip((base, letter), sentence.scores, sentence.translations, strict=True):
        rows.append((number(score, 1), f"{side}, seed {sentence.seed}", text))
    first = (str(sentence.number), signed(sentence.difference, 1))
    return [(*(("", "") if index else first), *row) for index, row in enumerate(rows)]


def _ngrams(comparison: Comparison, examples: LargestDifferences) -> list[Block]:
    base, letter, seeds = comparison.sides[0].letter, examples.letter, len(comparison.seeds)
    blocks: list[Block] = []
    for direction, grams in zip(("more", "less"), examples.ngrams or ((), ()), strict=True):
        if grams:
            rows = tuple(
                (gram.words, f"{gram.first:,}", f"{gram.second:,}", f"{gram.share:.2f}", f"{gram.seeds} of {seeds}")
                for gram in grams
            )
            title = Heading(f"n-grams that {letter} gets right {direction} often than {base}")
            blocks += [title, Table("lrrrr", ("n-gram", base, letter, "share", "seeds"), rows)]
    note = (
        "Counts of correct n-grams, summed over seeds. share: (second + 1) / (first + second + 2). seeds: how many "
        "differ in the same direction. These are the largest of many thousand differences, often by chance (Neubig et "
        "al. 2019, compare-mt)."
    )
    return [*blocks, Items((note,))] if blocks else []


def _legend(comparison: Comparison) -> tuple[str, ...]:
    base, main = comparison.sides[0].letter, comparison.metric(MAIN)
    seeds = len(main.table.seeds) if main and main.table else 0
    table = "the report's table" if main and main.reported else "the table of these sides"
    lines = [
        "↑ higher is better, ↓ lower is better. The columns of a side are means over its completed runs.",
        f"A difference is a side minus {base}, paired by seed, over the seeds that all sides have. Those of BLEU, chrF "
        "and perplexity are estimated on a logit or log scale, so they can deviate from the differences of the means.",
        f"{LEGEND}; after Holm's correction for all comparisons of {table}.",
        "p is the p-value of the comparison on its own, below 0.05 if and only if its 95 % interval excludes 0. p of N "
        "is corrected for the N comparisons of the table. Neither is corrected for the number of metrics, which are "
        "correlated: choose one in advance.",
        "new seed: the probability that the side is better with a new seed on the same test sentences.",
        "covers: what interval and p cover. If they cover seeds only, they do not hold for other test sentences.",
    ]
    if seeds >= LEAST_SEEDS and (condition := assumption(seeds)):
        lines.append(f"Tests over {seeds} seeds are valid{condition}.")
    records = [record for side in comparison.sides for record in side.records]
    for name in (MAIN, "chrf"):
        signatures = dict.fromkeys(record.signatures[name] for record in records if name in record.signatures)
        lines += [f"{COMPARISON[name].title}: {'; '.join(signatures)}"] if signatures else []
    return tuple(lines)
