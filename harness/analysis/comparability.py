"""The settings in which sides differ, and the differences that forbid a comparison unless allowed by name."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness.analysis.fairness import Mismatch, find_mismatches
from harness.analysis.grouping import digests_of, group_by
from harness.analysis.selection import Side, text_of
from harness.experiments.run_names import flat_settings
from harness.experiments.specs import Budget
from harness.storage.records import RunRecord
from harness.text import count, did_you_mean, short_line

UNPAIRED = ("data.corpus", "data.direction", "data.test_split")
"""The settings that decide, with the files of the test set, which sentences the sides translate."""
MOST_LINES = 4
"""How many names of tensors or files a message lists for one difference."""


def check(
    sides: Sequence[Side], allowed: Sequence[str], *, complain: Callable[[str], None], in_python: bool = False
) -> list[Mismatch]:
    """Return the differences that make sides incomparable, all of which are allowed by name.

    `in_python` tells whether messages name the argument of Python instead of the option.

    Raises:
        ValueError: Some are not allowed; the message names them in one line.
    """
    differences = disagreements(sides)
    names = [difference.name for difference in differences]
    refused = [difference for difference in differences if difference.name not in allowed]
    if refused:
        labels = "; ".join(f"{side.letter} is {side.label}" for side in sides)
        reasons = "; ".join(f"{difference.name} ({difference.sides})" for difference in refused)
        allow = _allow([difference.name for difference in refused], in_python=in_python)
        message = f"not comparable ({labels}): they differ in {reasons}. To compare them anyway: {allow}"
        raise ValueError(short_line(message, longest=4_000))
    for name in allowed:
        if name not in names:
            allow = _allow([name], in_python=in_python)
            complain(f"{allow}: the sides do not differ in it{did_you_mean(name, names)}")
    return differences


def _allow(names: Sequence[str], *, in_python: bool) -> str:
    """Return how to allow differences, in Python or on the command line."""
    return f"allow={list(names)}" if in_python else " ".join(f"--allow {shlex.quote(name)}" for name in names)


def disagreements(sides: Sequence[Side]) -> list[Mismatch]:
    """Return the differences that make sides incomparable, one for each name: those that reports check, and budgets.

    Sides with different budgets are checked like those of the budget "source".
    """
    differences = []
    budgets: dict[Budget, dict[str, None]] = {}
    for side in sides:
        for record in side.records:
            budgets.setdefault(record.spec.budget, {})[side.letter] = None
    if len(budgets) > 1:
        values = "; ".join(f"{budget} in {', '.join(letters)}" for budget, letters in budgets.items())
        differences.append(Mismatch("settings", "budget", values))
    budget = next(iter(budgets)) if len(budgets) == 1 else "source"
    # Each record has an id of its own here, because the same run may be in two folders.
    records = [
        replace(record, id=f"{side.letter}{index:04d}", spec=replace(record.spec, budget=budget))
        for side in sides
        for index, record in enumerate(side.records)
    ]
    mismatches = [mismatch for mismatch in find_mismatches(records, budget) if mismatch.kind != "seeds"]
    for name, same in group_by(mismatches, lambda mismatch: mismatch.name.partition(", seed ")[0]).items():
        lines = dict.fromkeys(mismatch.sides for mismatch in same)
        differences.append(Mismatch(same[0].kind, name, " | ".join(itertools.islice(lines, MOST_LINES))))
    if budget != "source" and len({side.seeds for side in sides}) > 1:
        differences.append(Mismatch("seeds", "seeds", "; ".join(map(_seeds, sides))))
    return differences


def _seeds(side: Side) -> str:
    """Return the seeds of a side, and those of its unfinished runs: "0, 1 in B, seed 2 interrupted"."""
    unfinished = [f"seed {run.record.spec.seed} {run.record.status}" for run in side.runs if run not in side.ended]
    return ", ".join([f"{', '.join(map(str, side.seeds)) or 'none'} in {side.letter}", *unfinished])


def is_unpaired(difference: Mismatch) -> bool:
    """Return whether a difference means that the sides have different test sentences."""
    return difference.name.startswith("file test") or difference.name in UNPAIRED


def differ_in_target_vocabulary(sides: Sequence[Side]) -> bool:
    """Return whether the target vocabularies of sides differ, so that token-based metrics do not compare."""
    return len(digests_of("target_vocabulary", (record for side in sides for record in side.records))) > 1


def differing_settings(sides: Sequence[Side]) -> dict[str, tuple[str, ...]]:
    """Return the value of each side in every setting and version in which they differ, those of the recipe first."""
    by_side = [[_settings(record) for record in side.records] for side in sides]
    names = dict.fromkeys(name for side in by_side for settings in side for name in settings)
    values = {
        name: tuple(" / ".join(dict.fromkeys(settings.get(name, "–") for settings in side)) for side in by_side)
        for name in names
    }
    return {name: of_sides for name, of_sides in values.items() if len(set(of_sides)) > 1}


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
        **{
            name: value
            for name, value in flat_settings(record.spec).items()
            if name != "seed" and not name.startswith("data.files")
        },
        "python": environment.get("python"),
        **{f"version of {name}": version for name, version in versions.items()},
        **(environment.get("variables") or {}),
        "commit": f"{str(commit.get('digest'))[:12]}{dirty}" if commit else None,
        "machine": machine(record),
        "resumed in another environment": "yes" if environment.get("earlier_processes") else "no",
    }
    return {name: short_line(text_of(value)) for name, value in settings.items()}
