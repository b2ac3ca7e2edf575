"""Selects the runs to compare: sides named by variant, run or file, each with its runs over seeds."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.analysis.grouping import distinct, groups, rows
from harness.analysis.row_labels import changed_fields
from harness.experiments.run_names import flat_settings, last_part, short_names
from harness.experiments.serialization import canonical_json
from harness.experiments.specs import RunSpec
from harness.storage import results_folders, run_store
from harness.storage.records import RunRecord
from harness.text import did_you_mean, first_few, named_seeds
from impls.contract import Arrays

MOST_ROWS = 12


@dataclass(frozen=True, eq=False)
class Run:
    """A record, and the folder with the other files of the run; reading a damaged file raises ValueError."""

    record: RunRecord
    folder: Path

    @functools.cached_property
    def sentences(self) -> Arrays | None:
        """The statistics of each test sentence; None if they are not stored."""
        return run_store.sentences_of(self.folder, self.record)

    @functools.cached_property
    def hypotheses(self) -> list[run_store.Hypothesis] | None:
        """The translations in the order of the test set; None if they are not stored."""
        return run_store.hypotheses_of(self.folder, self.record)


@dataclass(frozen=True, eq=False)
class Side:
    """One side of a comparison: its letter in tables, its label, and its runs, one per seed."""

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

    @functools.cached_property
    def completed(self) -> dict[int, Run]:
        """The completed runs by seed."""
        return {run.record.spec.seed: run for run in self.runs if run.record.status == "completed"}

    def sentences(self, record: RunRecord) -> Arrays | None:
        """Return the sentence statistics of one of the runs; None if they are not stored."""
        return next(run for run in self.runs if run.record.id == record.id).sentences

    def hypotheses(self, seeds: Sequence[int], count: int) -> list[list[run_store.Hypothesis]] | None:
        """Return the translations of completed runs; None unless all of them have `count` stored translations."""
        stored = [self.completed[seed].hypotheses or [] for seed in seeds]
        return stored if all(len(hypotheses) == count for hypotheses in stored) else None


def find(
    names: Sequence[str], results: Path, *, complain: Callable[[str], None], records: Sequence[RunRecord] | None = None
) -> tuple[Side, ...]:
    """Return the named sides; the others are compared with the first one.

    Args:
        names: Each is the path of a run's folder or record.json; or a variant, a run's id or the beginning of ids in
            `results`, optionally followed by "@" and settings that select a row: "paper@budget=source,seed=0".
        results: The folder of results.
        complain: Called with a line about each damaged record, and each variant of which one of several rows is taken.
        records: The runs among which variants and ids are looked for; None for all in `results`.

    Raises:
        ValueError: A name matches no run, or several rows of which none is the default, or two names match the same
            runs.
    """
    if len(names) < 2:
        raise ValueError(f"{' '.join(names)!r} is one side; give two or more")

    @functools.cache
    def stored() -> list[Run]:
        candidates = run_store.records(results, complain=complain) if records is None else records
        return [Run(record, run_store.run_folder(results, record.id)) for record in candidates]

    have = f"{results} has" if records is None else f"these runs of {results} have"
    candidates = [_file(name) or _matching(name, stored(), results, have) for name in names]
    sides = [
        _row(name, runs, [other for other in candidates if other is not runs], complain)
        for name, runs in zip(names, candidates, strict=True)
    ]
    by_folders: dict[tuple[str, ...], str] = {}
    for name, runs in zip(names, sides, strict=True):
        folders = tuple(str(run.folder.resolve()) for run in runs)
        if folders in by_folders:
            raise ValueError(f"sides {by_folders[folders]!r} and {name!r} name the same runs")
        by_folders[folders] = name
    return tuple(Side(_letter(index), *side) for index, side in enumerate(zip(_labels(sides), sides, strict=True)))


def text_of(value: Any) -> str:
    """Return the value of a setting as text."""
    return "none" if value is None else value if isinstance(value, str) else canonical_json(value)


def _file(name: str) -> tuple[Run, ...] | None:
    """Return the run at a path; None if the name is not a path."""
    path = Path(name)
    folder = path if path.is_dir() else path.parent
    if path.is_file() and path.name != run_store.RECORD:
        raise ValueError(f"side {name!r} is neither a {run_store.RECORD} nor the folder of one")
    if not (path.exists() and (folder / run_store.RECORD).is_file()):
        if path.name == run_store.RECORD or os.sep in name.partition("@")[0]:
            raise ValueError(f"side {name!r}: there is no {run_store.RECORD}")
        return None
    folder = folder if folder.name not in ("", "..") else folder.resolve()
    record = run_store.load_record(folder.parent, folder.name)
    assert record is not None
    return (Run(record, folder),)


def _matching(name: str, stored: Sequence[Run], results: Path, have: str) -> tuple[Run, ...]:
    """Return the runs that a variant or a run's id and settings select; `have` says in a message where they are."""
    prefix, _, selection = name.partition("@")
    runs = [run for run in stored if run.record.spec.variant == prefix]
    runs = runs or [run for run in stored if prefix and run.record.id.startswith(prefix)]
    if not runs:
        if not results.is_dir():
            raise ValueError(f"side {name!r}: there is no such file, and no folder {results} of results")
        variants = dict.fromkeys(run.record.spec.variant for run in stored)
        hint = did_you_mean(prefix, variants) or f"; {results_folders.list_command(results)}"
        raise ValueError(f"side {name!r}: {have} no such variant or run, and there is no such file{hint}")
    for choice in filter(None, selection.split(",")):
        runs = _narrowed(name, runs, choice)
    return tuple(sorted(runs, key=lambda run: run.record.spec.seed))


def _row(
    name: str, runs: tuple[Run, ...], others: Sequence[Sequence[Run]], complain: Callable[[str], None]
) -> tuple[Run, ...]:
    """Return the runs of one row, of those that the name of a side matches; `others` are those of the other sides.

    If a variant without settings has several rows, it is the default one, and `complain` is called with a line.

    Raises:
        ValueError: Several rows are left.
    """
    matching = rows(run.record for run in runs)
    if len(matching) == 1:
        return runs
    default = runs if "@" in name else _default(runs, others)
    by_name = dict(zip(_row_names(name, [row.records[0].spec for row in matching]), matching, strict=True))
    chosen = [row_name for row_name, row in by_name.items() if default[0].record in row.records]
    more = [repr(row_name) for row_name in by_name if row_name not in chosen]
    if len(rows(run.record for run in default)) == 1:
        complain(f"{name} has {len(matching)} rows of runs: comparing {chosen[0]!r}, not {first_few(more, MOST_ROWS)}")
        return default
    names = first_few(list(map(repr, by_name)), MOST_ROWS)
    raise ValueError(f"side {name!r} matches {len(matching)} rows of runs; choose one: {names}")


def _default(runs: tuple[Run, ...], others: Sequence[Sequence[Run]]) -> tuple[Run, ...]:
    """Return the runs in tables with the other sides, of the variant's own recipe, in torch, and trained alike."""
    records = {run.record.id: run.record for side in (runs, *others) for run in side}
    shared: set[str] = set()
    for table in groups(records.values(), pilots=True):
        ids = {record.id for record in table.records}
        if all(any(run.record.id in ids for run in side) for side in others):
            shared |= ids
    for preferred in (
        lambda run: run.record.id in shared,
        lambda run: not changed_fields(run.record.spec),
        lambda run: run.record.spec.framework == "torch",
        lambda run: run.record.spec.budget == "controlled",
    ):
        runs = tuple(filter(preferred, runs)) or runs
    return runs


def _narrowed(name: str, runs: Sequence[Run], choice: str) -> list[Run]:
    """Return the runs with a setting, FIELD=VALUE; the last part of a field's name is enough if it is unique."""
    field_name, equals, value = (part.strip() for part in choice.partition("="))
    settings = [{**flat_settings(run.record.spec), "seed": run.record.spec.seed} for run in runs]
    keys = list(dict.fromkeys(itertools.chain(*settings)))
    fields = [key for key in keys if key == field_name] or [key for key in keys if last_part(key) == field_name]
    if not equals or len(fields) != 1:
        near = did_you_mean(field_name, [*keys, *map(last_part, keys)])
        hint = f" ({', '.join(fields)})" if fields and equals else near
        raise ValueError(f"side {name!r}: {choice!r} is not FIELD=VALUE with one field{hint}")
    values = [run_settings.get(fields[0]) for run_settings in settings]
    selected = [run for run, run_value in zip(runs, values, strict=True) if _equals(run_value, value)]
    if not selected:
        accepted = ", ".join(dict.fromkeys(map(text_of, values)))
        raise ValueError(f"side {name!r}: {choice!r} matches no run; the values are {accepted}")
    return selected


def _equals(value: Any, text: str) -> bool:
    """Return whether a setting has the value in a text; numbers may be written in any form."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return text_of(value) == text


def _row_names(name: str, specs: Sequence[RunSpec]) -> list[str]:
    """Return the shortest addition to a name that selects each row alone of those that the name matches."""
    flat = [{key: text_of(value) for key, value in flat_settings(spec).items()} for spec in specs]
    keys = list(dict.fromkeys(itertools.chain(*flat)))
    differing = [key for key in keys if len({settings.get(key) for settings in flat}) > 1]
    differing.sort(key=lambda key: key not in ("budget", "framework"))
    short = short_names(keys)
    names = []
    for settings in flat:
        choices = (choice for size in (1, 2, 3) for choice in itertools.combinations(differing, size))
        unique = (
            choice
            for choice in choices
            if sum(all(row.get(key) == settings.get(key) for key in choice) for row in flat) == 1
        )
        selection = [f"{short[key]}={settings.get(key, 'none')}" for key in next(unique, differing)]
        names.append(f"{name}{',' if '@' in name else '@'}{','.join(selection)}")
    return names


def _labels(sides: Sequence[tuple[Run, ...]]) -> list[str]:
    """Return the label of each side: its variant and the settings that distinguish it, or its seeds."""
    first = [replace(runs[0].record, id=str(index)) for index, runs in enumerate(sides)]
    by_id = {record.id: row.label for row in rows(first) for record in row.records}
    labels = [by_id[str(index)] for index in range(len(sides))]
    with_seeds = [
        f"{label}, {named_seeds([run.record.spec.seed for run in runs])}" if labels.count(label) > 1 else label
        for label, runs in zip(labels, sides, strict=True)
    ]
    return distinct(with_seeds if len(set(with_seeds)) > len(set(labels)) else labels)


def _letter(index: int) -> str:
    """Return A to Z for 0 to 25, then AA, AB and so on."""
    quotient, remainder = divmod(index, 26)
    return (_letter(quotient - 1) if quotient else "") + chr(ord("A") + remainder)
