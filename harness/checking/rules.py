"""Every rule with its code, and what came of trying them on a set of runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.checking import comparing, figures, files, identity, recomputing
from harness.checking.comparing import Comparison, agreement
from harness.checking.stored import Memory, NotTried, Stored, read, run_names
from harness.specs import Budget

End = Literal["ok", "fail", "n/a"]


@dataclass(frozen=True)
class Rule:
    """A law that records keep: its code, which stays the same in every version, its name, and what tries it.

    `check` yields a line for each fault of a run or a comparison, or raises NotTried.
    """

    code: str
    name: str
    check: Callable[[Any], Iterable[str]]
    law: str = ""

    @property
    def sentence(self) -> str:
        """What must hold, in a sentence."""
        return self.law or inspect.cleandoc(self.check.__doc__ or "").split("\n\n")[0].replace("\n", " ")


OF_RUNS = (
    Rule("C01", "schema", identity.readable),
    Rule("C02", "fields", identity.fields),
    Rule("C03", "id", identity.own_id),
    Rule("C04", "folder", identity.folder),
    Rule("C05", "seal", identity.seal),
    Rule("C06", "status", identity.ended),
    Rule("C07", "contents", identity.contents),
    Rule("C08", "digests", identity.digests),
    Rule("C09", "environment", identity.environment),
    Rule("C10", "commit", identity.commit),
    Rule("C11", "times", identity.times),
    Rule("C12", "sizes", identity.sizes),
    Rule("C13", "parameters", identity.parameters),
    Rule("C14", "curve", figures.curve),
    Rule("C15", "updates", figures.updates),
    Rule("C16", "target words", figures.tokens),
    Rule("C17", "learning rate", figures.rates),
    Rule("C18", "kept epoch", figures.kept),
    Rule("C19", "test loss", figures.losses),
    Rule("C20", "scores", figures.bleu),
    Rule("C21", "signatures", figures.signatures),
    Rule("C22", "decoding", figures.decoding),
    Rule("C23", "translations", files.translations),
    Rule("C24", "sentences", files.sentences),
    Rule("C25", "counts", files.counts),
    Rule("C26", "counted words", files.lengths),
    Rule("C27", "weights", files.weights),
    Rule("C28", "seed's weights", recomputing.initial),
    Rule("C29", "corpus", recomputing.corpus),
    Rule("C30", "batches", recomputing.stream),
    Rule("C31", "scores again", recomputing.scores),
    Rule("C32", "attention", files.attention),
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
    Rule("C50", "same test", comparing.words),
    Rule("C51", "replicas", comparing.replicas),
)
RULES = (*OF_RUNS, *OF_COMPARISONS)


@dataclass(frozen=True)
class Finding:
    """A fault: the run or the comparison that has it, and what it is."""

    where: str
    what: str


@dataclass(frozen=True)
class Outcome:
    """What came of a rule: how it ended, on how many it was tried, its faults, and why it was not tried on others."""

    rule: Rule
    end: End
    tried: int
    findings: tuple[Finding, ...]
    untried: dict[str, int]


@dataclass(frozen=True)
class Checked:
    """What came of all rules on a set of runs."""

    runs: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    outcomes: tuple[Outcome, ...]
    remarks: tuple[str, ...]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.end == "fail")

    @property
    def verdict(self) -> str:
        """What came of it in a sentence."""
        runs = f"{len(self.runs)} run{'s' * (len(self.runs) != 1)}"
        if self.failed:
            names = ", ".join(f"{one.rule.code} {one.rule.name}" for one in self.failed)
            return f"Not a fair comparison: {len(self.failed)} of {len(self.outcomes)} rules fail on {runs} ({names})."
        passed = sum(one.end == "ok" for one in self.outcomes)
        rules = f"{runs}: all {passed} rules that could be tried pass, {len(self.outcomes) - passed} could not be."
        tables = [one for one in self.comparisons if len(one.group.records) > 1]
        if not tables:
            return f"No fault, and no comparison, for no two runs share a table. {rules}"
        return f"A fair comparison, in {len(tables)} table{'s' * (len(tables) != 1)}. {rules}"


def check(results: Path, *, prefixes: Sequence[str] = (), budget: Budget | None = None) -> Checked:
    """Try every rule on the runs of `results`: all, or those whose ids begin as `prefixes` say, of one budget or both.

    Runs that are named one by one are one table for each budget; all runs of a folder are the tables that reports make.

    Raises: ValueError where there is no such run.
    """
    memory = Memory()
    names = run_names(results)
    if prefixes:
        names = sorted({_find(names, prefix, results) for prefix in prefixes})
    found = [read(results, name, memory) for name in names]
    if budget is not None:
        found = [one for one in found if one.record is None or one.record.spec.budget == budget]
        if not found:
            raise ValueError(f"{results}: there is no run with the budget {budget!r} in it")
    tables = comparing.comparisons(found, named=bool(prefixes))
    many = len(tables) > 1
    outcomes = [_try(rule, [(one.name, str(one.folder), one) for one in found]) for rule in OF_RUNS]
    outcomes += [
        _try(rule, [(one.group.heading if many else "", "", one) for one in tables]) for rule in OF_COMPARISONS
    ]
    remarks = [f"{one.group.heading}: {line}" if many else line for one in tables for line in comparing.remarks(one)]
    return Checked(tuple(one.name for one in found), tables, tuple(outcomes), tuple(remarks))


def _find(names: Sequence[str], prefix: str, results: Path) -> str:
    found = [prefix] if prefix in names else [name for name in names if prefix and name.startswith(prefix)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"run {prefix!r}: {len(found)} runs begin so ({', '.join(found[:4])}{', …' * (len(found) > 4)})"
        )
    raise ValueError(f"run {prefix!r}: there is none in {results}; see them with: python -m harness list")


def _try(rule: Rule, subjects: Iterable[tuple[str, str, Stored | Comparison]]) -> Outcome:
    findings: list[Finding] = []
    untried: dict[str, int] = {}
    tried = 0
    for where, folder, subject in subjects:
        try:
            lines = list(rule.check(subject))
        except NotTried as reason:
            untried[str(reason)] = untried.get(str(reason), 0) + 1
            continue
        except (ValueError, OSError, ArithmeticError) as error:
            lines = [" ".join(str(error).split()).replace(f"{folder}/", "")]
        tried += 1
        findings += [Finding(where, line) for line in lines]
    end: End = "fail" if findings else "ok" if tried else "n/a"
    return Outcome(rule, end, tried, tuple(findings), untried)
