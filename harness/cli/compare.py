"""`compare`: compare variants or runs: settings, metrics with intervals, sentences, lengths, words and n-grams."""

from __future__ import annotations

import argparse
import typing
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.cli import folder_options, options
from harness.cli.console import say, warn
from harness.storage import files, run_store
from impls.contract import SPECIAL_TOKENS

if TYPE_CHECKING:
    from harness.analysis.comparison import Comparison, ReferenceCorpus
    from harness.analysis.fairness import Mismatch
    from harness.analysis.selection import Side

Format = Literal["text", "markdown", "json", "latex"]
SHOWN_EXAMPLES = 5
SIDES = """\
A side is a variant (all its runs in --results, one per seed), the id of a run or the beginning of ids, or the path of
a run's folder or record.json. If a variant has several rows, settings select one: learned_positions@positions=alibi,
paper@budget=source,seed=0; the error message lists them. Every side is compared with the first.
"""
FAIL_ON = """\
for continuous integration: exit with 1 if this holds for the difference of a side from the first side. METRIC<NUMBER
and METRIC>NUMBER test the mean difference, METRIC:worse tests for a significantly worse value; metrics have their names
and units in record.json, such as "bleu_sacre<-0.5" or test_loss:worse. An unknown difference counts as failure;
repeatable (default: none)
"""

SUMMARY = "compare variants or runs in detail"
EXAMPLES = (
    ("compare two variants", "learned_positions paper"),
    ("choose rows of runs by their settings", "paper@budget=source learned_positions@framework=keras"),
    ("as a table for a paper", "learned_positions paper --format latex --output table.tex"),
    ("fail if the second is worse, for continuous integration", "learned_positions paper --fail-on 'bleu_sacre<-0.5'"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = " ".join(SIDES.split())
    parser.add_argument("sides", nargs="+", metavar="SIDE", help="two or more: a variant, a run, or the path of a run")
    parser.add_argument(
        "--format", choices=typing.get_args(Format), default="text", help="form of the output (default text)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file (default: standard output)")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="DIFFERENCE",
        help="compare although the sides differ in this, by the name in the error message; repeatable (default: none)",
    )
    parser.add_argument("--fail-on", action="append", default=[], metavar="EXPRESSION", help=" ".join(FAIL_ON.split()))
    parser.add_argument(
        "--examples",
        type=options.count,
        default=SHOWN_EXAMPLES,
        metavar="N",
        help=f"how many sentences and n-grams to show in each direction (default {SHOWN_EXAMPLES})",
    )
    parser.add_argument(
        "--without-corpus-text",
        action="store_true",
        help="show only translations and sentence numbers: no source, reference or n-grams (default: all)",
    )
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Compare the sides.

    Returns 0, or 1 if a condition of --fail-on holds or is unknown, or a rule of `check` fails.
    """
    from harness.analysis import comparability, comparison, selection
    from harness.cli import fail_on

    conditions = [fail_on.read(text) for text in arguments.fail_on]
    records = run_store.records(arguments.results, complain=warn)
    sides = selection.find(arguments.sides, arguments.results, complain=warn, records=records)
    allowed = comparability.check(sides, arguments.allow, complain=warn)
    result = comparison.compare(
        sides,
        allowed,
        _corpus(sides),
        examples=arguments.examples,
        with_text=not arguments.without_corpus_text,
        table_rows=comparison.other_rows(sides, arguments.results, records),
    )
    failures = [f"check: {line}" for line in _failures(sides, allowed)]
    result = replace(result, remarks=(*failures, *result.remarks))
    failures += [line for condition in conditions for line in fail_on.holds(condition, result)]
    text = _render(result, arguments.format)
    if arguments.output is None:
        say(text.removesuffix("\n"))
    else:
        files.write_bytes(arguments.output, text.encode())
        say(f"Comparison: {arguments.output}")
    for line in failures:
        warn(line)
    return int(bool(failures))


def _failures(sides: Sequence[Side], allowed: Sequence[Mismatch]) -> list[str]:
    """Return a line for each rule of `check` that fails on these sides; rules that need a corpus are skipped.

    The settings that the sides must share are checked separately, because --allow applies to them. On other test
    sentences, sides with the same weights are no copies.
    """
    from harness.analysis import comparability
    from harness.audit import rules, table_rules
    from harness.audit.run_folder import AuditContext, read

    contexts: dict[Path, AuditContext] = {}
    runs = []
    for run in (run for side in sides for run in side.runs):
        results = run.folder.parent
        context = contexts.setdefault(results, AuditContext(published=run_store.is_published(results)))
        runs.append(read(results, run.folder.name, context))
    codes = {"C51"} if any(map(comparability.is_unpaired, allowed)) else {"C51", "C53"}
    codes |= set() if allowed else {"C50"}
    of_sides = [rule for rule in rules.OF_COMPARISONS if rule.code in codes]
    tables = table_rules.comparisons(runs, per_budget=True)
    return rules.failures(rules.apply(runs, tables, of_comparisons=of_sides, with_corpus=False))


def _render(comparison: Comparison, form: Format) -> str:
    from harness.reporting import comparison_data, comparison_report, render_latex, render_markdown, render_text

    if form == "json":
        return comparison_data.to_json(comparison)
    renderers = {"text": render_text.blocks, "markdown": render_markdown.blocks, "latex": render_latex.blocks}
    return renderers[form](comparison_report.document(comparison))


def _corpus(sides: Sequence[Side]) -> ReferenceCorpus | None:
    """Return the test set of the first side if it is on this machine; nothing is downloaded."""
    from harness.analysis.comparison import ReferenceCorpus
    from harness.data.dataset import of_run_offline

    record = sides[0].records[0]
    try:
        dataset = of_run_offline(record)
    except ValueError:
        return None
    if dataset is None or dataset.digests["files"] != record.fingerprints.get("files"):
        return None
    frequencies = None
    if not record.spec.data.has_subwords:
        counts = Counter(token for sentence in dataset.train.target for token in sentence.tolist())
        words = enumerate(dataset.target_words)
        frequencies = {word: counts[token] for token, word in words if counts[token] and word not in SPECIAL_TOKENS}
    return ReferenceCorpus(dataset.test_source_text, dataset.test_target_text, dataset.test_target_tokens, frequencies)
