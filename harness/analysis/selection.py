"""Selects the runs to compare: sides named by variant, run or file, each with its runs over seeds."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.analysis.grouping import rows
from harness.analysis.leaderboard import distinct
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import did_you_mean
from impls.contract import Arrays

UNTOLD = ("recipe.name", "recipe.source", "recipe.family")
MOST_ROWS = 12


@dataclass(frozen=True, eq=False)
class Run:
    """A record and the folder of the run's other files."""

    record: RunRecord
    folder: Path

    @functools.cached_property
    def sentences(self) -> Arrays | None:
        """The statistics of each test sentence; None if they are not stored.

        Raises:
            ValueError: the file is damaged.
        """
        results, name = self.folder.parent, self.folder.name
        if not run_store.has_sentences(results, name):
            return None
        return run_store.load_sentences(results, name, self.record.fingerprints.get("sentences"))

    @functools.cached_property
    def hypotheses(self) -> list[run_store.Hypothesis] | None:
        """The translations in the order of the test set; None if they are not stored.

        Raises:
            ValueError: the file is damaged.
        """
        if not (self.folder / run_store.HYPOTHESES).is_file():
            return None
        digest = self.record.fingerprints.get("hypotheses")
        return run_store.load_hypotheses(self.folder.parent, self.folder.name, digest)


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: its letter in tables, its label, and its runs by seed."""

    letter: str
    label: str
    runs: tuple[Run, ...]

    @property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(run.record for run in self.runs)

    @property
    def ended(self) -> tuple[Run, ...]:
        """The completed and the diverged runs."""
        return tuple(run for run in self.runs if run.record.status in run_store.FINISHED)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds of the completed and the diverged runs."""
        return tuple(run.record.spec.seed for run in self.ended)

    @property
    def completed(self) -> dict[int, Run]:
        """The completed runs by seed."""
        return {run.record.spec.seed: run for run in self.runs if run.record.status == "completed"}


def find(words: Sequence[str], results: Path, *, complain: Callable[[str], None]) -> tuple[Side, ...]:
    """Return the sides that `words` name; the first is the one that the others are compared with.

    Args:
        words: each the path of a run's folder or record.json; or a variant, a run's id or the beginning of ids in
            `results`, optionally followed by "@" and settings that select a row: "paper@budget=source,seed=0".
        results: the folder of results.
        complain: is called with a line about each damaged record.

    Raises:
        ValueError: a word names no run, or runs of several rows, or two words name the same runs.
    """
    if len(words) < 2:
        raise ValueError(f"{' '.join(words)!r} is one side; give two or more")

    @functools.cache
    def known() -> list[Run]:
        found = run_store.records(results, complain=complain)
        return [Run(record, run_store.run_folder(results, record.id)) for record in found]

    chosen = [_file(word) or _row(word, known(), results) for word in words]
    seen: dict[tuple[str, ...], str] = {}
    for word, runs in zip(words, chosen, strict=True):
        places = tuple(str(run.folder.resolve()) for run in runs)
        if places in seen:
            raise ValueError(f"sides {seen[places]!r} and {word!r} name the same runs")
        seen[places] = word
    labels = _labels(chosen)
    return tuple(Side(_letter(place), *one) for place, one in enumerate(zip(labels, chosen, strict=True)))


def settings(spec: RunSpec) -> dict[str, Any]:
    """Return every setting by its dotted name."""
    found: dict[str, Any] = {}
    for name, value in to_json(spec).items():
        inner = value if isinstance(value, Mapping) else None
        found.update({name: value} if inner is None else {f"{name}.{key}": one for key, one in inner.items()})
    return found


def setting(value: Any) -> str:
    """Return a setting's value in words."""
    return "none" if value is None else value if isinstance(value, str) else canonical_json(value)


# Choosing -------------------------------------------------------------------------------------------------------------


def _file(word: str) -> tuple[Run, ...] | None:
    """Return the run that a path names; None if the word is no path."""
    path = Path(word)
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name != run_store.RECORD:
        raise ValueError(f"side {word!r} is neither a {run_store.RECORD} nor the folder of one")
    if not (path.exists() and (folder / run_store.RECORD).is_file()):
        if path.name == run_store.RECORD or os.sep in word.partition("@")[0]:
            raise ValueError(f"side {word!r}: there is no {run_store.RECORD}")
        return None
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    record = run_store.load_record(folder.parent, folder.name)
    assert record is not None
    return (Run(record, folder),)


def _row(word: str, known: Sequence[Run], results: Path) -> tuple[Run, ...]:
    name, _, selection = word.partition("@")
    found = [run for run in known if run.record.spec.variant == name]
    found = found or [run for run in known if name and run.record.id.startswith(name)]
    if not found:
        variants = list(dict.fromkeys(run.record.spec.variant for run in known))
        hint = did_you_mean(name, variants)
        raise ValueError(f"side {word!r}: {results} has no such variant or run, nor is it a file{hint}")
    for choice in filter(None, selection.split(",")):
        found = _narrowed(word, found, choice)
    made = rows(run.record for run in found)
    if len(made) > 1:
        ways = _ways(name, [row.records[0].spec for row in made])
        more = f" and {len(ways) - MOST_ROWS} more" if len(ways) > MOST_ROWS else ""
        raise ValueError(
            f"side {word!r} matches {len(made)} rows of runs; choose one: "
            f"{', '.join(repr(one) for one in ways[:MOST_ROWS])}{more}"
        )
    return tuple(sorted(found, key=lambda run: run.record.spec.seed))


def _narrowed(word: str, found: Sequence[Run], choice: str) -> list[Run]:
    """Return the runs with a setting, FIELD=VALUE; the last part of a field's name is enough if it is unique."""
    name, equals, value = (part.strip() for part in choice.partition("="))
    known = list(dict.fromkeys(key for run in found for key in settings(run.record.spec)))
    fields = [key for key in known if key == name] or [key for key in known if key.rpartition(".")[2] == name]
    if not equals or len(fields) != 1:
        near = did_you_mean(name, [*known, *(key.rpartition(".")[2] for key in known)])
        hint = f" ({', '.join(fields)})" if fields and equals else near
        raise ValueError(f"side {word!r}: {choice!r} is not FIELD=VALUE with one field{hint}")
    (field,) = fields
    kept = [run for run in found if _is(settings(run.record.spec).get(field), value)]
    if not kept:
        there = dict.fromkeys(setting(settings(run.record.spec).get(field)) for run in found)
        raise ValueError(f"side {word!r}: {choice!r} matches no run; the values are {', '.join(there)}")
    return kept


def _is(value: Any, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return setting(value) == text


def _ways(name: str, specs: Sequence[RunSpec]) -> list[str]:
    """Return the shortest word that selects each row alone."""
    flat = [
        {key: setting(one) for key, one in settings(replace(spec, seed=0)).items() if key not in UNTOLD}
        for spec in specs
    ]
    names = list(dict.fromkeys(key for one in flat for key in one))
    differing = [key for key in names if len({one.get(key) for one in flat}) > 1]
    made = []
    for one in flat:
        choices = (pair for size in (1, 2, 3) for pair in itertools.combinations(differing, size))
        alone = (pair for pair in choices if sum(all(o.get(k) == one.get(k) for k in pair) for o in flat) == 1)
        told = [f"{_short(key, names)}={one.get(key, 'none')}" for key in next(alone, differing)]
        made.append(f"{name}@{','.join(told)}")
    return made


def _short(field: str, names: Sequence[str]) -> str:
    last = field.rpartition(".")[2]
    return last if sum(name.rpartition(".")[2] == last for name in names) == 1 else field


# Naming ---------------------------------------------------------------------------------------------------------------


def _labels(chosen: Sequence[tuple[Run, ...]]) -> list[str]:
    """Return the label of each side: its variant and the settings that distinguish it, or its seeds."""
    first = [replace(runs[0].record, id=str(place)) for place, runs in enumerate(chosen)]
    label_of = {record.id: row.label for row in rows(first) for record in row.records}
    labels = [label_of[str(place)] for place in range(len(chosen))]
    seeds = [", ".join(str(run.record.spec.seed) for run in runs) for runs in chosen]
    told = [
        f"{label}, seed{'s' if ',' in own else ''} {own}" if labels.count(label) > 1 else label
        for label, own in zip(labels, seeds, strict=True)
    ]
    return distinct(told if len(set(told)) > len(set(labels)) else labels)


def _letter(place: int) -> str:
    before, own = divmod(place, 26)
    return (_letter(before - 1) if before else "") + chr(ord("A") + own)
