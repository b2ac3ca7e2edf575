"""All rules with their codes, and the results of applying them to a set of runs."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.audit import (
    copy_rules,
    corpus_rules,
    file_rules,
    metric_rules,
    plausibility_rules,
    publication_rules,
    recompute_rules,
    record_rules,
    row_difference_rules,
    speed_rules,
    table_rules,
)
from harness.audit.run_folder import AuditContext, Skipped, StoredRun, is_running, read, run_names
from harness.audit.sentence_traces import traces
from harness.audit.table_rules import ComparedRuns, agreement
from harness.data import tokenizer_process
from harness.experiments.specs import Budget
from harness.storage import run_store
from harness.text import count, first_few

End = Literal["ok", "fail", "warn", "n/a"]

SHOWN_FINDINGS = 3
"""The number of findings that the line of a rule shows."""


@dataclass(frozen=True)
class Rule:
    """A requirement on records.

    Attributes:
        code: The code, such as C42, which never changes. Rules whose code begins with W warn and never fail.
        name: A short name.
        check: Yields a line for each fault of a run or a table, or raises `Skipped`.
        description: What must hold, if the docstring of `check` does not say it.
        needs_corpus: Whether the rule is skipped without the corpus.
    """

    code: str
    name: str
    check: Callable[[Any], Iterable[str]]
    description: str = ""
    needs_corpus: bool = False

    @property
    def sentence(self) -> str:
        """What must hold, in a sentence."""
        return self.description or inspect.cleandoc(self.check.__doc__ or "").split("\n\n")[0].replace("\n", " ")


OF_RUNS = (
    Rule("C01", "schema", record_rules.readable),
    Rule("C02", "fields", record_rules.fields),
    Rule("C03", "id", record_rules.own_id),
    Rule("C04", "folder", record_rules.folder),
    Rule("C05", "seal", record_rules.seal),
    Rule("C06", "status", record_rules.ended),
    Rule("C07", "contents", record_rules.contents),
    Rule("C08", "fingerprints", record_rules.digests),
    Rule("C09", "environment", record_rules.environment),
    Rule("C10", "commit", record_rules.commit),
    Rule("C11", "times", speed_rules.times),
    Rule("C12", "sizes", record_rules.sizes),
    Rule("C13", "parameters", record_rules.parameters),
    Rule("C14", "curve", metric_rules.curve),
    Rule("C15", "updates", metric_rules.updates),
    Rule("C16", "target tokens", metric_rules.tokens),
    Rule("C17", "learning rate", metric_rules.rates),
    Rule("C18", "kept epoch", metric_rules.kept),
    Rule("C19", "test loss", metric_rules.losses),
    Rule("C20", "scores", metric_rules.bleu),
    Rule("C21", "signatures", metric_rules.signatures),
    Rule("C22", "decoding", metric_rules.decoding),
    Rule("C23", "translations", file_rules.translations),
    Rule("C24", "sentences", file_rules.sentences),
    Rule("C25", "counts", file_rules.counts),
    Rule("C26", "counted tokens", file_rules.lengths),
    Rule("C27", "weights", file_rules.weights),
    Rule("C28", "initial weights", recompute_rules.initial),
    Rule("C29", "corpus", recompute_rules.corpus, needs_corpus=True),
    Rule("C30", "batches", recompute_rules.stream, needs_corpus=True),
    Rule("C31", "recomputed scores", recompute_rules.scores, needs_corpus=True),
    Rule("C32", "attention", file_rules.attention),
    Rule("C33", "publication", publication_rules.publishable),
    Rule("C34", "known commit", publication_rules.known_commit),
    Rule("C35", "corpus files", corpus_rules.files),
    Rule("C36", "corpus size", corpus_rules.pairs),
    Rule("C37", "detokenisation", file_rules.text),
    Rule("C39", "speeds", speed_rules.speeds),
    Rule("C60", "training digests", record_rules.training_digests),
    Rule("C61", "tutorial perplexity", recompute_rules.tutorial_perplexity, needs_corpus=True),
    Rule("C62", "corpus tokens", recompute_rules.words, needs_corpus=True),
)
OF_COMPARISONS = (
    Rule("C40", "same data", agreement("settings"), "Runs of a table have the same data settings."),
    Rule("C41", "same files", agreement("files"), "Runs of a table are made from the same files."),
    Rule("C42", "same vocabularies", agreement("vocabularies"), "Runs of a table have the same vocabularies and ids."),
    Rule("C43", "same decoding", agreement("decoding"), "Runs of a table are decoded with the same settings."),
    Rule("C44", "same scoring", agreement("signatures"), "Runs of a table have the same signatures."),
    Rule("C45", "same budget", agreement("training"), "Controlled runs are trained with the same settings."),
    Rule("C46", "same updates", agreement("updates"), "Controlled runs without early stopping have equal updates."),
    Rule("C47", "same batches", agreement("stream"), "Controlled runs of a seed see the same batches in one order."),
    Rule("C48", "same seeds", table_rules.seeds),
    Rule("C49", "same initialisation", agreement("weights"), "Controlled runs of a seed start from the same tensors."),
    Rule("C50", "same tokens", table_rules.words),
    Rule("C51", "distinct seeds", table_rules.replicas),
    Rule("C52", "one difference", row_difference_rules.differences),
    Rule("C53", "copies", copy_rules.copies),
)
RULES = (*OF_RUNS, *OF_COMPARISONS)
WARNINGS_OF_RUNS = (
    Rule("W01", "loss gap", plausibility_rules.loss_gap),
    Rule("W02", "BLEU and loss", plausibility_rules.bleu_of_loss),
)
WARNINGS_OF_COMPARISONS = (Rule("W03", "missing seeds", plausibility_rules.seeds),)
WARNINGS = (*WARNINGS_OF_RUNS, *WARNINGS_OF_COMPARISONS)


@dataclass(frozen=True)
class Finding:
    """A fault: the run or table that has it, and a description."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


@dataclass(frozen=True)
class RuleOutcome:
    """The result of a rule: the number of runs or tables that it was applied to, or was skipped on by reason."""

    rule: Rule
    applied: int
    findings: tuple[Finding, ...]
    skips: dict[str, int]

    @property
    def end(self) -> End:
        """How it ended; "n/a" if the rule was skipped everywhere."""
        if self.findings:
            return "warn" if self.rule.code.startswith("W") else "fail"
        return "ok" if self.applied else "n/a"


@dataclass(frozen=True)
class AuditReport:
    """The results of all rules on a set of runs; `warnings` are outcomes that never fail."""

    runs: tuple[str, ...]
    comparisons: tuple[ComparedRuns, ...]
    outcomes: tuple[RuleOutcome, ...]
    remarks: tuple[str, ...] = ()
    warnings: tuple[RuleOutcome, ...] = ()

    @property
    def failed(self) -> tuple[RuleOutcome, ...]:
        return tuple(outcome for outcome in self.outcomes if outcome.end == "fail")

    @property
    def skipped(self) -> tuple[RuleOutcome, ...]:
        """The rules that were skipped on every run and table."""
        return tuple(outcome for outcome in self.outcomes if outcome.end == "n/a")

    @property
    def verdict(self) -> str:
        """The result in a few sentences: the rules that failed, were skipped or warn."""
        runs, rules = count(len(self.runs), "run"), count(len(self.outcomes), "rule")
        tables = sum(len(comparison.group.records) > 1 for comparison in self.comparisons)
        if self.failed:
            text = f"Failed: {len(self.failed)} of {rules} on {runs}: {_names(self.failed)}."
        elif tables:
            text = f"Passed: a fair comparison of {runs} in {count(tables, 'table')}."
        else:
            text = f"Passed: {runs}, of which no two share a table."
        partly = [outcome for outcome in self.outcomes if outcome.skips and outcome.end != "n/a"]
        partly = [outcome for outcome in partly if outcome.rule in OF_RUNS]
        text += "" if self.skipped or partly else " No rule skipped."
        for outcomes, noun, verb in (
            (self.skipped, "rule", " skipped"),
            (partly, "rule", " skipped on some runs"),
            ([outcome for outcome in self.warnings if outcome.end == "warn"], "warning", ""),
        ):
            text += f" {count(len(outcomes), noun)}{verb}: {_names(outcomes)}." if outcomes else ""
        return text


def check(
    results: Path,
    names: Sequence[str] | None = None,
    *,
    prefixes: Sequence[str] = (),
    budget: Budget | None = None,
    published: bool | None = None,
    with_corpus: bool = True,
) -> AuditReport:
    """Apply the rules to runs of a folder.

    Args:
        results: The folder of results.
        names: The names of the runs; None means all.
        prefixes: Beginnings of run ids, which form one table per budget; without them runs form the tables of a report.
        budget: Only runs of this budget.
        published: Whether the rules for published results apply; None means in folders of published results.
        with_corpus: Whether to apply the rules that need the corpus.

    Raises:
        ValueError: There is no such run, or all are still in progress.
    """
    context = AuditContext(published=run_store.is_published(results) if published is None else published)
    running: list[str] = []
    nested: list[str] = []
    if names is None:
        names = run_names(results)
        nested = [folder.name for folder in run_store.nested_results(results)]
        running = [] if context.published else [name for name in names if is_running(results, name)]
        names = [name for name in names if name not in running]
        if not names:
            raise ValueError(f"{results}: no run has ended; in progress: {first_few(running, 4)}")
    names = sorted(names)
    if prefixes:
        names = sorted({run_store.only_id(names, prefix, results) for prefix in prefixes})
    runs = [read(results, name, context) for name in names]
    if budget is not None:
        runs = [run for run in runs if run.parsed is None or run.parsed.spec.budget == budget]
        if not runs:
            raise ValueError(f"{results}: there is no run with the budget {budget!r} in it")
    tables = table_rules.comparisons(runs, per_budget=bool(prefixes))
    with tokenizer_process.one_process() if with_corpus else nullcontext():
        report = apply(runs, tables, with_corpus=with_corpus)
    remarks = []
    if running:
        remarks.append(f"{count(len(running), 'run')} in progress, not checked: {first_few(running, 4)}")
    if nested:
        inside = f"{count(len(nested), 'folder')} of results inside this one"
        remarks.append(f"{inside}, not checked: {first_few(nested, 10)}")
    return replace(report, remarks=(*remarks, *report.remarks))


def apply(
    runs: Sequence[StoredRun],
    tables: Sequence[ComparedRuns],
    *,
    of_comparisons: Sequence[Rule] = OF_COMPARISONS,
    with_corpus: bool = True,
) -> AuditReport:
    """Apply the rules to runs and their tables; without a corpus, those that need none."""
    headings = [table.group.heading if len(tables) > 1 else "" for table in tables]
    compared = [(heading, "", table) for heading, table in zip(headings, tables, strict=True)]
    of_runs = [rule for rule in OF_RUNS if with_corpus or not rule.needs_corpus]
    outcomes = apply_rules([*of_runs, *WARNINGS_OF_RUNS], _subjects(runs))
    outcomes += apply_rules([*of_comparisons, *WARNINGS_OF_COMPARISONS], compared)
    warnings = [outcome for outcome in outcomes if outcome.rule in WARNINGS]
    outcomes = [outcome for outcome in outcomes if outcome.rule not in WARNINGS]
    remarks = [str(Finding(heading, line)) for heading, _, table in compared for line in table_rules.remarks(table)]
    remarks += [
        f"{count(runs_without, 'run')} not checked against the text: {reason.removeprefix(recompute_rules.NO_CORPUS)}"
        for outcome in outcomes
        if outcome.rule.check is recompute_rules.corpus
        for reason, runs_without in outcome.skips.items()
        if reason.startswith(recompute_rules.NO_CORPUS)
    ]
    names = tuple(run.name for run in runs)
    return AuditReport(names, tuple(tables), tuple(outcomes), tuple(remarks), tuple(warnings))


def _subjects(runs: Iterable[StoredRun]) -> Iterator[tuple[str, str, StoredRun]]:
    for run in runs:
        yield run.name, str(run.folder), run
        traces(run)  # what the rules on tables need, while the files of the run are in memory


def apply_rules(rules: Sequence[Rule], subjects: Iterable[tuple[str, str, Any]]) -> list[RuleOutcome]:
    """Apply rules to subjects, each with its name and folder.

    All rules are applied to a run before the next one, so that its files need not stay in memory.
    """
    findings: list[list[Finding]] = [[] for _ in rules]
    skips: list[Counter[str]] = [Counter() for _ in rules]
    applied = [0] * len(rules)
    for where, folder, subject in subjects:
        for index, rule in enumerate(rules):
            try:
                lines = list(rule.check(subject))
            except Skipped as reason:
                skips[index][str(reason)] += 1
                continue
            except (ValueError, OSError, ArithmeticError) as error:
                lines = [" ".join(str(error).split()).replace(f"{folder}/", "")]
            applied[index] += 1
            findings[index] += [Finding(where, line) for line in lines]
    return [
        RuleOutcome(rule, times, tuple(found), dict(reasons))
        for rule, times, found, reasons in zip(rules, applied, findings, skips, strict=True)
    ]


def failures(report: AuditReport) -> list[str]:
    """Return a line for each failing rule: its code, its name, and its first faults."""
    return [
        f"{outcome.rule.code} {outcome.rule.name}: {summary(list(map(str, outcome.findings)))}"
        for outcome in report.failed
    ]


def summary(lines: Sequence[str]) -> str:
    """Return the first lines, and the number of the others."""
    more = f"; and {len(lines) - SHOWN_FINDINGS} more" if len(lines) > SHOWN_FINDINGS else ""
    return "; ".join(lines[:SHOWN_FINDINGS]) + more


def _names(outcomes: Sequence[RuleOutcome]) -> str:
    return ", ".join(f"{outcome.rule.code} {outcome.rule.name}" for outcome in outcomes)
