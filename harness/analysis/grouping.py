"""Sorts run records into tables that compare like with like, and each table into rows: one per variant, over seeds."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from harness.analysis.caveats import of_test_set
from harness.analysis.row_labels import changed_fields, is_reduced, row_labels, with_own_data
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import Budget, DataSpec, RunSpec
from harness.storage.records import RunRecord
from harness.text import count, first_few, short_line
from impls.recipes import RECIPES, TRAININGS, TUTORIAL

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

BUDGETS = {
    "controlled": "Controlled",
    "source": "Own training",
    "tuned": "Tuned learning rate",
    "pilot": "Pilots of the learning rate",
}
BATCHES = {"random": "random batches", "length": "batches of similar length", "tokens": "batches by tokens"}
CORPORA = ("multi30k", "files", "captions")
PUBLISHED_DATA = ("direction", "test_split", "case", "vocabulary", "minimum_frequency")
CURVE = ("training_loss", "training_perplexity", "validation_loss", "validation_perplexity")


def measure(record: RunRecord, name: str) -> float | None:
    """Return a metric by its key in `scores`, `speed`, `sizes`, `decode` or the curve; None if it is missing.

    In the curve it is that of the last epoch whose weights were kept, or of the last epoch if the record names none.
    """
    if name in CURVE:
        kept = [epoch for epoch in record.curve if epoch.epoch in record.chosen_epochs] or record.curve
        return getattr(kept[-1], name) if kept else None
    if name in ("updates", "epochs"):
        return float(record.curve[-1].updates if name == "updates" else len(record.curve)) if record.curve else None
    for values in (record.scores, record.speed, record.sizes, record.decode):
        if name in values:
            return values[name]
    return None


def statuses(records: Iterable[RunRecord]) -> str:
    """Return the number of runs with each status, such as "2 completed, 1 diverged"."""
    counts = Counter(record.status for record in records)
    return ", ".join(f"{number} {status}" for status, number in sorted(counts.items()))


def incomplete(label: str, records: Iterable[RunRecord]) -> list[str]:
    """Return a line for each run of a row that did not complete, with its status and reason."""
    lines = []
    for record in (record for record in records if record.status != "completed"):
        epochs = f" after {count(len(record.curve), 'epoch')}" if record.curve else ""
        status = "" if record.reason.startswith(record.status) else f"{record.status}{epochs}"
        lines.append(
            f"{label}, seed {record.spec.seed}: {short_line(': '.join(filter(None, (status, record.reason))))}"
        )
    return lines


def stop_early(records: Iterable[RunRecord]) -> bool:
    """Return whether some runs end when their validation loss no longer falls, so that their updates may differ."""
    return any(record.spec.training.patience is not None for record in records)


def digests_of(name: str, records: Iterable[RunRecord]) -> frozenset[str]:
    """Return the different digests of some runs by name, such as "target_vocabulary"; a run without one adds none."""
    return frozenset(digest for record in records if (digest := record.fingerprints.get(name)))


@dataclass(frozen=True)
class TableRow:
    """A variant with one set of settings: its runs, one per seed, and a label that no other row of the table has."""

    label: str
    variant: str
    records: tuple[RunRecord, ...]

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs that metrics are averaged over: the completed ones, or all if none completed."""
        return tuple(record for record in self.records if record.status == "completed") or self.records

    @property
    def completed(self) -> int:
        return sum(record.status == "completed" for record in self.records)

    @property
    def status(self) -> str:
        """The number of runs with each status, such as "2 completed, 1 diverged"."""
        return statuses(self.records)

    def mean(self, name: str) -> float | None:
        """Return the mean of a metric over the seeds that have it; None if none has."""
        values = self.by_seed(name).values()
        return statistics.fmean(values) if values else None

    def by_seed(self, name: str) -> dict[int, float]:
        """Return a metric of each run that has it, by seed."""
        values = {record.spec.seed: measure(record, name) for record in self.counted}
        return {seed: value for seed, value in values.items() if value is not None}


@dataclass(frozen=True)
class RunTable:
    """Rows that compare like with like: one budget, corpus, direction, test split, size, vocabulary and batching."""

    budget: Budget
    title: str
    rows: tuple[TableRow, ...]

    @property
    def records(self) -> tuple[RunRecord, ...]:
        return tuple(record for row in self.rows for record in row.records)

    @property
    def heading(self) -> str:
        return f"{BUDGETS[self.budget]}: {self.title}"

    @property
    def other_vocabulary(self) -> frozenset[str]:
        """The labels of the rows whose target vocabulary is not that of most rows: their perplexities do not compare.

        The vocabulary of the first row wins a tie; runs without a digest count as having the vocabulary of most rows.
        Only rows of the budget "source" may differ in it.
        """
        if self.budget != "source":
            return frozenset()
        digests = {row.label: digests_of("target_vocabulary", row.records) for row in self.rows}
        values = [digest for row_digests in digests.values() for digest in row_digests]
        most = max(dict.fromkeys(values), key=values.count, default=None)
        return frozenset(label for label, row_digests in digests.items() if row_digests - {most})

    @property
    def departures(self) -> tuple[str, ...]:
        """The reasons why these results are not comparable with published ones; empty if they are."""
        data, specs = self.records[0].spec.data, [(row.label, row.records[0].spec) for row in self.rows]
        short = [
            row.label
            for row in self.rows
            if all(run.spec.training.epochs < TUTORIAL.epochs or run.spec.updates is not None for run in row.records)
        ]
        retrained = [label for label, spec in specs if not _trained_as_source(spec)]
        sources = "its source" if len(retrained) == 1 else "their sources"
        changed = [label for label, spec in specs if changed_fields(spec)]
        both = retrained == changed
        other_data = dict.fromkeys(name for _, spec in specs for name in _other_data(spec))
        reasons = (
            (data.corpus != "multi30k", f"the corpus is {data.corpus}, not Multi30k"),
            (data.training_pairs is not None, f"{data.training_pairs or 0:,} training pairs only"),
            (any(is_reduced(record.spec) for record in self.records), _reduced_size(self.records)),
            (short, f"fewer than {TUTORIAL.epochs} epochs{self._unless_all(short, ' ({})')}"),
            (retrained and not both, f"not trained as in {sources}{self._unless_all(retrained, ' ({})')}"),
            (other_data, f"data settings other than the published ones ({', '.join(other_data)})"),
            (
                changed,
                f"{'training and ' * both}recipe settings other than the variant's own"
                f"{self._unless_all(changed, ' ({})')}",
            ),
            (not any(row.completed for row in self.rows), "no run completed"),
        )
        return tuple(reason for applies, reason in reasons if applies)

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveats to show beside the results of the table."""
        caveats = []
        if self.records[0].spec.data.corpus == "captions":
            caveats.append("Corpus: captions, generated sentences embedded in this project. This is not Multi30k.")
        caveats += [f"Note: {note}" for note in record_notes(self.records)]
        caveats += of_test_set(self.records)
        if self.departures:
            caveats.append(f"Not comparable with published figures: {'; '.join(self.departures)}.")
        single = [row.label for row in self.rows if len(row.counted) == 1]
        if single:
            caveats.append(f"One seed{self._unless_all(single, ' for {}')}: seed noise is unknown.")
        return tuple(caveats)

    def _unless_all(self, labels: Sequence[str], form: str) -> str:
        """Return the first labels of some rows in `form`, or an empty string if these are all rows."""
        return "" if len(labels) == len(self.rows) else form.format(first_few(labels))


def record_notes(records: Iterable[RunRecord]) -> tuple[str, ...]:
    """Return the distinct notes of the records, in order."""
    return tuple(dict.fromkeys(note for record in records if (note := short_line(record.note))))


def groups(records: Iterable[RunRecord], *, pilots: bool = False) -> tuple[RunTable, ...]:
    """Return the tables of some records: Multi30k first, then by epochs, the longest-trained first.

    The epochs of a table are those of its shortest completed run. Pilots only choose a learning rate and are left out
    unless `pilots` is true. Tables with the same title, such as those of two files of the same name, are numbered.
    """
    by_key = group_by((run for run in _unique(records) if pilots or run.spec.budget != "pilot"), _table_key)
    _place_external_variants(by_key)
    tables = [RunTable(key[0], _title(same), rows(same)) for key, same in by_key.items()]
    tables.sort(
        key=lambda table: (
            CORPORA.index(table.records[0].spec.data.corpus),
            -min((len(record.curve) for record in table.records if record.status == "completed"), default=0),
            table.title,
            list(BUDGETS).index(table.budget),
        )
    )
    for budget in BUDGETS:
        indices = [index for index, table in enumerate(tables) if table.budget == budget]
        for index, title in zip(indices, distinct([tables[index].title for index in indices]), strict=True):
            tables[index] = replace(tables[index], title=title)
    return tuple(tables)


def rows(records: Iterable[RunRecord]) -> tuple[TableRow, ...]:
    """Return a row for each set of settings, apart from the seed, built-in variants first."""
    by_settings = group_by(_unique(records), lambda record: canonical_json({**to_json(record.spec), "seed": 0}))
    ordered = sorted(by_settings.items(), key=lambda item: (variant_order(item[1][0].spec.variant), item[0]))
    labels = distinct(row_labels([same[0].spec for _, same in ordered]))
    return tuple(
        TableRow(label, same[0].spec.variant, tuple(sorted(same, key=lambda record: record.spec.seed)))
        for label, (_, same) in zip(labels, ordered, strict=True)
    )


def group_by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key; keys and items keep the order of `items`."""
    by_key: dict[Key, list[Item]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return by_key


def variant_order(variant: str) -> tuple[int, str]:
    """Return the sort key of a variant: built-in ones in their order, then external ones by name."""
    built_in = list(RECIPES)
    return (built_in.index(variant) if variant in built_in else len(built_in), variant)


def distinct(labels: Sequence[str]) -> list[str]:
    """Return the labels, with a number appended to each repetition."""
    unique: list[str] = []
    for label in labels:
        candidates = itertools.chain([label], (f"{label} ({number})" for number in itertools.count(2)))
        unique.append(next(name for name in candidates if name not in unique))
    return unique


def _unique(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return the records sorted by id; of several with one id, the one that was started last."""
    ordered = sorted(records, key=lambda record: (record.id, record.started))
    return list({record.id: record for record in ordered}.values())


# Tables ---------------------------------------------------------------------------------------------------------------


def key_of_test_set(data: DataSpec) -> tuple[str, ...]:
    """Return what tells test sets apart: corpus, own files or the seed of captions, direction and test split."""
    corpus = canonical_json(to_json(data.files)) if data.files else str(data.seed if data.corpus == "captions" else "")
    return data.corpus, corpus, data.direction, data.test_split


def _table_key(record: RunRecord) -> tuple[Any, ...]:
    spec = record.spec
    return (
        spec.budget,
        *key_of_test_set(spec.data),
        spec.data.training_pairs or 0,
        spec.updates or 0,
        _is_joint(spec),
        _batching(spec),
        is_reduced(spec),
    )


def _place_external_variants(by_key: dict[tuple[Any, ...], list[RunRecord]]) -> None:
    """Move a table of external variants, which have no standard size, into the reduced table with the same settings."""
    for key in [key for key in by_key if not key[-1]]:
        reduced_key = (*key[:-1], True)
        if reduced_key in by_key and not any(record.spec.variant in RECIPES for record in by_key[key]):
            by_key[reduced_key] += by_key.pop(key)


def _title(records: Sequence[RunRecord]) -> str:
    spec = records[0].spec
    parts = [f"{spec.data.corpus} {spec.data.direction}", short_line(spec.data.test_set)]
    if spec.data.training_pairs is not None:
        parts.append(f"{spec.data.training_pairs:,} training pairs")
    if any(is_reduced(record.spec) for record in records):
        parts.append(_reduced_size(records))
    if spec.updates is not None:
        parts.append(f"at most {count(spec.updates, 'update')}")
    if _is_joint(spec):
        parts.append("joint vocabulary")
    if _batching(spec) not in ("", TUTORIAL.batching):
        parts.append(BATCHES[spec.training.batching])
    return ", ".join(parts)


def _reduced_size(records: Sequence[RunRecord]) -> str:
    """Return "reduced size", with the width if all runs have the same; that of a builder is unknown."""
    widths = {getattr(record.spec.recipe, "width", None) for record in records}
    return f"reduced size (width {widths.pop()})" if len(widths) == 1 else "reduced size"


def _trained_as_source(spec: RunSpec) -> bool:
    """Return whether a built-in variant is trained as its source trains it, apart from the number of epochs."""
    own = TRAININGS.get(spec.variant, spec.training)
    return replace(spec.training, epochs=own.epochs, averaged_epochs=0) == replace(own, averaged_epochs=0)


def _other_data(spec: RunSpec) -> list[str]:
    """Return the settings of direction, test set and words that are not the default, or not the source's own."""
    own = with_own_data(spec).data
    return [name for name in PUBLISHED_DATA if getattr(spec.data, name) != getattr(own, name)]


def _is_joint(spec: RunSpec) -> bool:
    """Return whether a run has a joint vocabulary, in budgets with one vocabulary per table."""
    return spec.budget != "source" and spec.data.vocabulary == "joint"


def _batching(spec: RunSpec) -> str:
    """Return the batching in budgets with one batching per table; otherwise an empty string."""
    return "" if spec.budget == "source" else spec.training.batching
