"""The settings in which sides differ, and the differences that forbid a comparison unless allowed by name."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis.fairness import other_vocabulary, unfair
from harness.analysis.selection import UNTOLD, Side, setting, settings
from harness.experiments.specs import Budget
from harness.storage.records import RunRecord
from harness.text import count, did_you_mean, short_line

UNPAIRED = ("files", "file digests", "data.corpus", "data.direction", "data.test_split")
"""Differences, beside those of the test set's files, after which sentences of two sides are not the same sentences."""
SHOWN = 4
"""How many names of tensors or files a refusal tells of one difference."""


@dataclass(frozen=True)
class Disagreement:
    """Something that should be the same on all sides and is not: the name that allows it, and who has what."""

    name: str
    told: str

    @property
    def unpaired(self) -> bool:
        """Whether the sides' test sentences are then not the same."""
        return self.name.startswith("file test") or self.name in UNPAIRED


@dataclass(frozen=True)
class DifferingSetting:
    """A setting in which sides differ, and each side's value."""

    name: str
    values: tuple[str, ...]


def disagreements(sides: Sequence[Side]) -> list[Disagreement]:
    """Return the differences that make sides incomparable: those that reports check, budgets and seeds.

    Sides of both budgets are checked like those of the budget "source".
    """
    records, found = _renamed(sides), []
    budgets: dict[Budget, dict[str, None]] = {}
    for side in sides:
        for record in side.records:
            budgets.setdefault(record.spec.budget, {})[side.letter] = None
    if len(budgets) > 1:
        found.append(Disagreement("budget", "; ".join(f"{one} in {', '.join(who)}" for one, who in budgets.items())))
    budget = next(iter(budgets)) if len(budgets) == 1 else "source"
    told: dict[str, dict[str, None]] = {}
    checked = [replace(record, spec=replace(record.spec, budget=budget)) for record in records]
    for one in unfair(checked, budget):
        if one.kind != "seeds":
            told.setdefault(one.what.partition(", seed ")[0], {})[one.sides] = None
    found += [Disagreement(name, " | ".join(list(lines)[:SHOWN])) for name, lines in told.items()]
    seeds = {side.letter: ", ".join(map(str, side.seeds)) or "none" for side in sides}
    if budget != "source" and len(set(seeds.values())) > 1:
        found.append(Disagreement("seeds", "; ".join(f"{own} in {letter}" for letter, own in seeds.items())))
    return found


def check(sides: Sequence[Side], allowed: Sequence[str], *, complain: Callable[[str], None]) -> list[Disagreement]:
    """Return the differences that are allowed by name.

    Raises:
        ValueError: the message names those that are not, in one line.
    """
    found = disagreements(sides)
    names = [one.name for one in found]
    refused = [one for one in found if one.name not in allowed]
    if refused:
        who = "; ".join(f"{side.letter} is {side.label}" for side in sides)
        told = "; ".join(f"{one.name} ({one.told})" for one in refused)
        options = " ".join(f"--allow {shlex.quote(one.name)}" for one in refused)
        raise ValueError(
            short_line(
                f"not comparable ({who}): they differ in {told}. To compare them all the same: {options}", longest=4_000
            )
        )
    for name in allowed:
        if name not in names:
            complain(f"--allow {name}: the sides do not differ in it{did_you_mean(name, names)}")
    return found


def other_words(sides: Sequence[Side]) -> bool:
    """Return whether the target vocabularies of sides differ, so that token-based metrics cannot be compared."""
    return bool(other_vocabulary(_renamed(sides)))


def differing(sides: Sequence[Side]) -> list[DifferingSetting]:
    """Return every setting and every version in which the sides are not all alike, those of the recipe first."""
    flat = [[_told(record) for record in side.records] for side in sides]
    names = dict.fromkeys(name for one in flat for own in one for name in own)
    made = []
    for name in names:
        values = tuple(" / ".join(dict.fromkeys(own.get(name, "–") for own in one)) for one in flat)
        if len(set(values)) > 1:
            made.append(DifferingSetting(name, values))
    return made


def machine(record: RunRecord) -> str:
    """Return a description of the machine of a run."""
    found = record.environment.get("machine")
    if not isinstance(found, Mapping):
        return short_line(str(found)) if found else "a machine that the record does not name"
    parts = [found.get("gpu") or found.get("processor") or "unknown processor"]
    if found.get("cores"):
        parts.append(count(found["cores"], "core"))
    if found.get("memory_bytes"):
        parts.append(f"{found['memory_bytes'] / 2**30:.0f} GiB")
    return short_line(", ".join(map(str, [*parts, *filter(None, [found.get("system")])])))


def _told(record: RunRecord) -> dict[str, str]:
    """Return the settings of a run, without seed and names, and what can change a metric in its environment."""
    found = {name: value for name, value in settings(record.spec).items() if name not in (*UNTOLD, "seed")}
    found.pop("data.files", None)
    environment = record.environment
    commit = environment.get("commit")
    if isinstance(commit, Mapping):
        dirty = " with other files than the commit's" if commit.get("dirty") else ""
        commit = f"{str(commit.get('digest'))[:12]}{dirty}"
    versions: Mapping[str, Any] = environment.get("versions") or {}
    variables: Mapping[str, Any] = environment.get("variables") or {}
    found |= {"python": environment.get("python"), **{f"version of {name}": one for name, one in versions.items()}}
    found |= variables
    found |= {"commit": commit, "machine": machine(record), "resumed": environment.get("resumed_after_epochs") or None}
    return {name: short_line(setting(value)) for name, value in found.items()}


def _renamed(sides: Sequence[Side]) -> list[RunRecord]:
    """Return all records with distinct ids; the same run may be in two folders."""
    return [
        replace(record, id=f"{side.letter}{place:04d}") for side in sides for place, record in enumerate(side.records)
    ]
