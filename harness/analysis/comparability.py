"""The settings in which sides differ, and the differences that forbid a comparison unless allowed by name."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import group_by, target_vocabularies
from harness.analysis.selection import Side, text_of
from harness.experiments.run_names import flat_settings
from harness.experiments.specs import Budget
from harness.storage.records import RunRecord
from harness.text import count, did_you_mean, short_line

UNPAIRED = ("data.corpus", "data.direction", "data.test_split")
"""The settings that decide, with the files of the test set, which sentences the sides translate."""
MOST_LINES = 4
"""How many names of tensors or files a message lists for one difference."""


@dataclass(frozen=True)
class Disagreement:
    """A difference that makes sides incomparable: the name that allows it, and the value of each side."""

    name: str
    values: str

    @property
    def unpaired(self) -> bool:
        """Whether the sides have different test sentences."""
        return self.name.startswith("file test") or self.name in UNPAIRED


@dataclass(frozen=True)
class DifferingSetting:
    """A setting in which sides differ, and the value of each side."""

    name: str
    values: tuple[str, ...]


def check(sides: Sequence[Side], allowed: Sequence[str], *, complain: Callable[[str], None]) -> list[Disagreement]:
    """Return the differences that make sides incomparable, all of which are allowed by name.

    Raises:
        ValueError: Some are not allowed; the message names them in one line.
    """
    differences = disagreements(sides)
    names = [disagreement.name for disagreement in differences]
    refused = [disagreement for disagreement in differences if disagreement.name not in allowed]
    if refused:
        labels = "; ".join(f"{side.letter} is {side.label}" for side in sides)
        reasons = "; ".join(f"{disagreement.name} ({disagreement.values})" for disagreement in refused)
        options = " ".join(f"--allow {shlex.quote(disagreement.name)}" for disagreement in refused)
        message = f"not comparable ({labels}): they differ in {reasons}. To compare them anyway: {options}"
        raise ValueError(short_line(message, longest=4_000))
    for name in allowed:
        if name not in names:
            complain(f"--allow {name}: the sides do not differ in it{did_you_mean(name, names)}")
    return differences


def disagreements(sides: Sequence[Side]) -> list[Disagreement]:
    """Return the differences that make sides incomparable: those that reports check, budgets and seeds.

    Sides with different budgets are checked like those of the budget "source".
    """
    differences = []
    budgets: dict[Budget, dict[str, None]] = {}
    for side in sides:
        for record in side.records:
            budgets.setdefault(record.spec.budget, {})[side.letter] = None
    if len(budgets) > 1:
        values = "; ".join(f"{budget} in {', '.join(letters)}" for budget, letters in budgets.items())
        differences.append(Disagreement("budget", values))
    budget = next(iter(budgets)) if len(budgets) == 1 else "source"
    records = [replace(record, spec=replace(record.spec, budget=budget)) for record in _with_unique_ids(sides)]
    mismatches = [mismatch for mismatch in find_mismatches(records, budget) if mismatch.kind != "seeds"]
    for name, same in group_by(mismatches, lambda mismatch: mismatch.name.partition(", seed ")[0]).items():
        lines = dict.fromkeys(mismatch.sides for mismatch in same)
        differences.append(Disagreement(name, " | ".join(itertools.islice(lines, MOST_LINES))))
    seeds = {side.letter: ", ".join(map(str, side.seeds)) or "none" for side in sides}
    if budget != "source" and len(set(seeds.values())) > 1:
        values = "; ".join(f"{side_seeds} in {letter}" for letter, side_seeds in seeds.items())
        differences.append(Disagreement("seeds", values))
    return differences


def differ_in_target_vocabulary(sides: Sequence[Side]) -> bool:
    """Return whether the target vocabularies of sides differ, so that token-based metrics do not compare."""
    return len(target_vocabularies(record for side in sides for record in side.records)) > 1


def differing_settings(sides: Sequence[Side]) -> list[DifferingSetting]:
    """Return every setting and version in which the sides differ, those of the recipe first."""
    by_side = [[_settings(record) for record in side.records] for side in sides]
    names = dict.fromkeys(name for side in by_side for settings in side for name in settings)
    differing = []
    for name in names:
        values = tuple(" / ".join(dict.fromkeys(settings.get(name, "–") for settings in side)) for side in by_side)
        if len(set(values)) > 1:
            differing.append(DifferingSetting(name, values))
    return differing


def machine(record: RunRecord) -> str:
    """Return a description of the machine of a run."""
    facts = record.environment.get("machine")
    if not facts:
        return "a machine that the record does not name"
    memory = facts.get("memory_bytes")
    parts = [*_processor(facts), f"{memory / 2**30:.0f} GiB" if memory else "", str(facts.get("system") or "")]
    return short_line(", ".join(filter(None, parts)))


def machine_kind(record: RunRecord) -> str:
    """Return the GPU, or the processor and its number of cores: what decides how fast a run can be."""
    facts = record.environment.get("machine")
    if not facts:
        return machine(record)
    return short_line(str(facts.get("gpu") or ", ".join(_processor(facts))))


def _processor(facts: Mapping[str, Any]) -> list[str]:
    """Return the GPU or the processor of a machine, and its number of cores if that is known."""
    cores = facts.get("cores")
    name = str(facts.get("gpu") or facts.get("processor") or "unknown processor")
    return [name, count(cores, "core")] if cores else [name]


def _settings(record: RunRecord) -> dict[str, str]:
    """Return the settings of a run, and the part of its environment that can change a metric, as text."""
    environment = record.environment
    commit = environment.get("commit") or {}
    dirty = " with other files than the commit's" if commit.get("dirty") else ""
    versions = environment.get("versions") or {}
    settings = {
        **{name: value for name, value in flat_settings(record.spec).items() if name not in ("seed", "data.files")},
        "python": environment.get("python"),
        **{f"version of {name}": version for name, version in versions.items()},
        **(environment.get("variables") or {}),
        "commit": f"{str(commit.get('digest'))[:12]}{dirty}" if commit else None,
        "machine": machine(record),
        "resumed": environment.get("resumed_after_epochs") or None,
    }
    return {name: short_line(text_of(value)) for name, value in settings.items()}


def _with_unique_ids(sides: Sequence[Side]) -> list[RunRecord]:
    """Return all records with distinct ids; the same run may be in two folders."""
    return [
        replace(record, id=f"{side.letter}{index:04d}") for side in sides for index, record in enumerate(side.records)
    ]
