"""All rules with their codes, and the results of applying them to a set of runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.audit import (
    copy_rules,
    corpus_rules,
    digest_rules,
    file_rules,
    metric_rules,
    plausibility_rules,
    publication_rules,
    recompute_rules,
    record_rules,
    row_difference_rules,
    speed_rules,
    table_rules,
    translation_rules,
)
from harness.audit.run_folder import FileCache, Skipped, StoredRun, read, run_names
from harness.audit.table_rules import ComparedRuns, agreement
from harness.experiments.specs import Budget
from harness.storage import run_store
from harness.text import count

End = Literal["ok", "fail", "warn", "n/a"]


@dataclass(frozen=True)
class Rule:
    """A requirement on records: its code, which never changes, its name, and its test.

    `check` yields a line for each fault of a run or a table, or raises `Skipped`. `needs_corpus`: without the corpus
    the rule is skipped.
    """

    code: str
    name: str
    check: Callable[[Any], Iterable[str]]
    law: str = ""
    needs_corpus: bool = False

    @property
    def sentence(self) -> str:
        """What must hold, in a sentence."""
        return self.law or inspect.cleandoc(self.check.__doc__ or "").split("\n\n")[0].replace("\n", " ")


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
    Rule("C16", "target words", metric_rules.tokens),
    Rule("C17", "learning rate", metric_rules.rates),
    Rule("C18", "kept epoch", metric_rules.kept),
    Rule("C19", "test loss", metric_rules.losses),
    Rule("C20", "scores", metric_rules.bleu),
    Rule("C21", "signatures", metric_rules.signatures),
    Rule("C22", "decoding", metric_rules.decoding),
    Rule("C23", "translations", file_rules.translations),
    Rule("C24", "sentences", file_rules.sentences),
    Rule("C25", "counts", file_rules.counts),
    Rule("C26", "counted words", file_rules.lengths),
    Rule("C27", "weights", file_rules.weights),
    Rule("C28", "seed's weights", recompute_rules.initial),
    Rule("C29", "corpus", recompute_rules.corpus, needs_corpus=True),
    Rule("C30", "batches", recompute_rules.stream, needs_corpus=True),
    Rule("C31", "scores again", recompute_rules.scores, needs_corpus=True),
    Rule("C32", "attention", file_rules.attention),
    Rule("C33", "publication", publication_rules.publishable),
    Rule("C34", "known commit", publication_rules.known_commit),
    Rule("C35", "corpus files", corpus_rules.files),
    Rule("C36", "corpus size", corpus_rules.pairs),
    Rule("C37", "detokenised", translation_rules.text),
    Rule("C38", "tutorial", translation_rules.tutorial_perplexity),
    Rule("C39", "speeds", speed_rules.speeds),
    Rule("C60", "run digests", digest_rules.complete),
    Rule("C61", "tutorial again", translation_rules.exact_tutorial_perplexity, needs_corpus=True),
    Rule("C62", "corpus words", recompute_rules.words, needs_corpus=True),
)
OF_COMPARISONS = (
    Rule("C40", "same data", agreement("settings"), "Runs of a table have the same data settings."),
    Rule("C41", "same files", agreement("files"), "Runs of a table are made from the same files."),
    Rule("C42", "same words", agreement("vocabularies"), "Runs of a table have the same vocabularies and ids."),
    Rule("C43", "same decoding", agreement("decoding"), "Runs of a table are decoded with the same settings."),
    Rule("C44", "same scoring", agreement("signatures"), "Runs of a table have the same signatures."),
    Rule("C45", "same budget", agreement("training"), "Controlled runs are trained with the same settings."),
    Rule("C46", "same updates", agreement("updates"), "Controlled runs have the same number of updates."),
    Rule("C47", "same batches", agreement("stream"), "Controlled runs of a seed see the same batches in one order."),
    Rule("C48", "same seeds", agreement("seeds"), "Every controlled variant has the same seeds."),
    Rule("C49", "same start", agreement("weights"), "Controlled runs of a seed begin with the same shared tensors."),
    Rule("C50", "same test", table_rules.words),
    Rule("C51", "replicas", table_rules.replicas),
    Rule("C52", "one difference", row_difference_rules.differences),
    Rule("C53", "copies", copy_rules.copies),
)
RULES = (*OF_RUNS, *OF_COMPARISONS)
WARNINGS_OF_RUNS = (
    Rule("W01", "loss gap", plausibility_rules.loss_gap),
    Rule("W02", "BLEU of loss", plausibility_rules.bleu_of_loss),
)
WARNINGS_OF_COMPARISONS = (Rule("W03", "missing seeds", plausibility_rules.seeds),)
WARNINGS = (*WARNINGS_OF_RUNS, *WARNINGS_OF_COMPARISONS)


@dataclass(frozen=True)
class Finding:
    """A fault: the run or table that has it, and what it is."""

    where: str
    what: str


@dataclass(frozen=True)
class RuleOutcome:
    """The result of a rule: how it ended, the number of runs or tables it was applied to, its faults, and skips.

    `untried` maps each reason for skipping to the number of runs or tables.
    """

    rule: Rule
    end: End
    tried: int
    findings: tuple[Finding, ...]
    untried: dict[str, int]


@dataclass(frozen=True)
class AuditReport:
    """The results of all rules on a set of runs. `warnings` are outcomes that never fail."""

    runs: tuple[str, ...]
    comparisons: tuple[ComparedRuns, ...]
    outcomes: tuple[RuleOutcome, ...]
    remarks: tuple[str, ...] = ()
    warnings: tuple[RuleOutcome, ...] = ()

    @property
    def failed(self) -> tuple[RuleOutcome, ...]:
        return tuple(one for one in self.outcomes if one.end == "fail")

    @property
    def skipped(self) -> tuple[RuleOutcome, ...]:
        """The rules that were skipped on every run and table."""
        return tuple(one for one in self.outcomes if one.end == "n/a")

    @property
    def verdict(self) -> str:
        """The result in a few sentences: the rules that failed, and those skipped."""
        runs, rules = count(len(self.runs), "run"), count(len(self.outcomes), "rule")
        tables = [one for one in self.comparisons if len(one.group.records) > 1]
        if self.failed:
            said = f"Failed: {len(self.failed)} of {rules} on {runs}: {_names(self.failed)}."
        elif tables:
            said = f"Passed: a fair comparison of {runs} in {count(len(tables), 'table')}."
        else:
            said = f"Passed: {runs}, of which no two share a table."
        partly = [one for one in self.outcomes if one.untried and one.end != "n/a" and one.rule in OF_RUNS]
        if self.skipped:
            said += f" {count(len(self.skipped), 'rule')} skipped: {_names(self.skipped)}."
        else:
            said += " No rule skipped."
        if partly:
            said += f" {count(len(partly), 'rule')} skipped on some runs: {_names(partly)}."
        warned = [one for one in self.warnings if one.end == "warn"]
        return said + (f" {count(len(warned), 'warning')}: {_names(warned)}." if warned else "")


def check(
    results: Path,
    *,
    prefixes: Sequence[str] = (),
    budget: Budget | None = None,
    published: bool | None = None,
) -> AuditReport:
    """Apply every rule to runs of a folder.

    Args:
        results: the folder of results.
        prefixes: beginnings of run ids; empty means all runs. Named runs form one table per budget, all runs of a
            folder form the tables of a report.
        budget: only runs of this budget.
        published: whether the rules for published results apply; None means in folders of published results.

    Raises:
        ValueError: there is no such run.
    """
    memory = FileCache(published=run_store.is_published(results) if published is None else published)
    names = run_names(results)
    if prefixes:
        names = sorted({_find(names, prefix, results) for prefix in prefixes})
    found = [read(results, name, memory) for name in names]
    if budget is not None:
        found = [one for one in found if one.record is None or one.record.spec.budget == budget]
        if not found:
            raise ValueError(f"{results}: there is no run with the budget {budget!r} in it")
    return apply(found, table_rules.comparisons(found, named=bool(prefixes)))


def apply(
    found: Sequence[StoredRun],
    tables: Sequence[ComparedRuns],
    *,
    of_comparisons: Sequence[Rule] = OF_COMPARISONS,
    with_corpus: bool = True,
) -> AuditReport:
    """Apply the rules to runs and their tables; without a corpus, those that need none."""
    runs = [(one.name, str(one.folder), one) for one in found]
    many = len(tables) > 1
    shared = [(one.group.heading if many else "", "", one) for one in tables]
    outcomes = [apply_rule(rule, runs) for rule in OF_RUNS if with_corpus or not rule.needs_corpus]
    outcomes += [apply_rule(rule, shared) for rule in of_comparisons]
    warnings = [apply_rule(rule, runs, "warn") for rule in WARNINGS_OF_RUNS]
    warnings += [apply_rule(rule, shared, "warn") for rule in WARNINGS_OF_COMPARISONS]
    remarks = [f"{one.group.heading}: {line}" if many else line for one in tables for line in table_rules.remarks(one)]
    return AuditReport(
        tuple(one.name for one in found), tuple(tables), tuple(outcomes), tuple(remarks), tuple(warnings)
    )


def without_corpus(results: Path, names: Sequence[str] | None = None) -> AuditReport:
    """Apply the rules that need no corpus to the runs of a report: all of `results`, or those in `names`.

    Raises:
        ValueError: there is no run.
    """
    memory = FileCache(published=run_store.is_published(results))
    found = [read(results, name, memory) for name in (run_names(results) if names is None else sorted(names))]
    return apply(found, table_rules.comparisons(found, named=False), with_corpus=False)


def failures(checked: AuditReport, *, most: int = 3) -> list[str]:
    """Return a line for each failing rule: its code, its name, and its first faults."""
    found = []
    for one in checked.failed:
        told = lines(one)
        more = f"; and {len(told) - most} more" if len(told) > most else ""
        found.append(f"{one.rule.code} {one.rule.name}: {'; '.join(told[:most])}{more}")
    return found


def lines(outcome: RuleOutcome) -> list[str]:
    """Return a line for each fault of a rule, with its run or table."""
    return [f"{one.where}: {one.what}" if one.where else one.what for one in outcome.findings]


def _find(names: Sequence[str], prefix: str, results: Path) -> str:
    found = [prefix] if prefix in names else [name for name in names if prefix and name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        shown = f"{', '.join(found[:4])}{', …' * (len(found) > 4)}"
        raise ValueError(f"run {prefix!r}: the ids of {len(found)} runs begin so ({shown}): name one of them")
    raise ValueError(f"run {prefix!r}: there is none in {results}; see them with: python -m harness list")


def apply_rule(rule: Rule, subjects: Iterable[tuple[str, str, Any]], fault: End = "fail") -> RuleOutcome:
    """Apply a rule to subjects, each with its name and folder; `fault` is the result if one is faulty."""
    findings: list[Finding] = []
    untried: dict[str, int] = {}
    tried = 0
    for where, folder, subject in subjects:
        try:
            found = list(rule.check(subject))
        except Skipped as reason:
            untried[str(reason)] = untried.get(str(reason), 0) + 1
            continue
        except (ValueError, OSError, ArithmeticError) as error:
            found = [" ".join(str(error).split()).replace(f"{folder}/", "")]
        tried += 1
        findings += [Finding(where, line) for line in found]
    end: End = fault if findings else "ok" if tried else "n/a"
    return RuleOutcome(rule, end, tried, tuple(findings), untried)


def _names(outcomes: Sequence[RuleOutcome]) -> str:
    return ", ".join(f"{one.rule.code} {one.rule.name}" for one in outcomes)
