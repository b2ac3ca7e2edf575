"""Sorts run records into groups that may share a table, and a group into rows: one row a variant, over its seeds."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from harness.experiments.run_names import flat_settings
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import Budget, DataSpec, RunSpec
from harness.storage.records import EpochRecord, RunRecord
from harness.text import short_line
from impls.contract import GruRecipe
from impls.recipes import RECIPES, TRAININGS, TUTORIAL

BUDGETS = {
    "controlled": "Controlled",
    "source": "As its source trains it",
    "tuned": "Tuned learning rate",
    "pilot": "Pilots of the learning rate",
}
BATCHES = {"random": "random batches", "length": "batches of similar length", "tokens": "batches by tokens"}
CORPORA = ("multi30k", "files", "captions")
SIZES = ("width", "embedding_width", "layers", "heads", "head_width", "ffn_width", "max_length")
PLACES = ("framework", "backend", "device", "precision", "cuda_graphs", "threads")
PUBLISHED_DATA = ("direction", "test_split", "case", "vocabulary", "minimum_frequency")
CURVE = ("training_loss", "training_perplexity", "validation_loss", "validation_perplexity")


def kept_epoch(record: RunRecord) -> EpochRecord | None:
    """Return the epoch whose weights were kept; the last one if several were averaged or none is named."""
    kept = [line for line in record.curve if line.epoch in record.chosen_epochs]
    return kept[-1] if kept else record.curve[-1] if record.curve else None


def measure(record: RunRecord, name: str) -> float | None:
    """Return a metric by its key in `scores`, `speed`, `sizes` or `decode`, or of the kept epoch; None if missing."""
    line = kept_epoch(record)
    if name in CURVE:
        return getattr(line, name) if line else None
    if name in ("updates", "epochs"):
        return float(record.curve[-1].updates if name == "updates" else len(record.curve)) if record.curve else None
    for found in (record.scores, record.speed, record.sizes, record.decode):
        if name in found:
            return found[name]
    return None


@dataclass(frozen=True)
class Summary:
    """The mean over seeds, and from two values on the standard deviation (n - 1)."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class TableRow:
    """One variant with one set of settings: its runs by seed, and the label that tells it from the other rows."""

    label: str
    variant: str
    records: tuple[RunRecord, ...]

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs that metrics are averaged over: the completed ones, or all if none completed."""
        return tuple(one for one in self.records if one.status == "completed") or self.records

    @property
    def completed(self) -> int:
        return sum(one.status == "completed" for one in self.records)

    @property
    def status(self) -> str:
        """How many runs ended how, such as "2 completed, 1 diverged"."""
        ends = [one.status for one in self.records]
        return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(sorted(ends)))

    def summary(self, name: str) -> Summary:
        """Return the metric `name` over seeds; runs without it do not count."""
        found = (measure(record, name) for record in self.counted)
        return Summary(tuple(value for value in found if value is not None))

    def by_seed(self, name: str) -> dict[int, float]:
        """Return the metric `name` of each run that has it, by seed."""
        found = {record.spec.seed: measure(record, name) for record in self.counted}
        return {seed: value for seed, value in found.items() if value is not None}


@dataclass(frozen=True)
class RunTable:
    """Rows that may share a table: one budget, corpus, direction, test split, size, vocabulary and way of batching."""

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
    def departures(self) -> tuple[str, ...]:
        """Why these results are not comparable with published ones; empty if they are."""
        data, found = self.records[0].spec.data, []
        if data.corpus != "multi30k":
            found.append(f"the corpus is {data.corpus}, not Multi30k")
        if data.training_pairs is not None:
            found.append(f"{data.training_pairs:,} training pairs only")
        if any(_reduced(record.spec) for record in self.records):
            found.append(_size(self.records))
        short = [row for row in self.rows if all(_short(record.spec) for record in row.records)]
        if short:
            who = "" if len(short) == len(self.rows) else f" ({', '.join(row.label for row in short)})"
            found.append(f"fewer than {TUTORIAL.epochs} epochs{who}")
        other = [row.label for row in self.rows if not _as_source(row.records[0].spec)]
        if other:
            who = "" if len(other) == len(self.rows) else f" ({', '.join(other)})"
            found.append(f"trained otherwise than by its source{who}")
        if any(getattr(data, name) != getattr(DataSpec(), name) for name in PUBLISHED_DATA):
            found.append(f"not the published direction, test set or words ({', '.join(PUBLISHED_DATA)})")
        free = {"recipe.dropout"} if self.budget == "source" else set()
        changed = [row.label for row in self.rows if set(_changed(row.records[0].spec)) - free]
        if changed:
            found.append(f"recipe settings other than the variant's own ({', '.join(changed)})")
        if not any(row.completed for row in self.rows):
            found.append("no run completed")
        return tuple(found)

    @property
    def caveats(self) -> tuple[str, ...]:
        """The caveats to show beside the results of the table."""
        found = []
        if self.records[0].spec.data.corpus == "captions":
            found.append("Corpus: captions, generated sentences embedded in this project. This is not Multi30k.")
        found += [f"Note: {note}" for note in notes(self.records)]
        if self.departures:
            found.append(f"Not comparable with published figures: {'; '.join(self.departures)}.")
        alone = [row for row in self.rows if len(row.counted) == 1]
        if alone:
            who = "" if len(alone) == len(self.rows) else f" for {', '.join(row.label for row in alone)}"
            found.append(f"One seed{who}: seed noise is unknown.")
        return tuple(found)


def notes(records: Iterable[RunRecord]) -> tuple[str, ...]:
    """Return the different notes of `records`, in order."""
    return tuple(dict.fromkeys(note for record in records if (note := short_line(record.note))))


def groups(records: Iterable[RunRecord], *, pilots: bool = False) -> tuple[RunTable, ...]:
    """Return `records` as groups that may share a table: Multi30k first, then by epochs, the longest-trained first.

    Pilots only choose a learning rate and are left out, unless `pilots` asks for them.
    """
    unique = [record for record in _unique(records) if pilots or record.spec.budget != "pilot"]
    found: dict[tuple[Any, ...], list[RunRecord]] = {}
    for record in unique:
        found.setdefault(_key(record), []).append(record)
    _place_external_variants(found)
    made = [RunTable(key[0], _title(one), rows(one)) for key, one in found.items()]
    budgets = list(BUDGETS)
    return tuple(
        sorted(
            made,
            key=lambda group: (
                CORPORA.index(group.records[0].spec.data.corpus),
                -max(len(record.curve) for record in group.records),
                group.title,
                budgets.index(group.budget),
            ),
        )
    )


def rows(records: Iterable[RunRecord]) -> tuple[TableRow, ...]:
    """Return one row for each set of settings that differs in more than the seed, built-in variants first."""
    found: dict[str, list[RunRecord]] = {}
    for record in _unique(records):
        found.setdefault(canonical_json(to_json(replace(record.spec, seed=0))), []).append(record)
    order = list(RECIPES)
    sets = sorted(
        found.items(),
        key=lambda pair: (
            order.index(pair[1][0].spec.variant) if pair[1][0].spec.variant in order else len(order),
            pair[1][0].spec.variant,
            pair[0],
        ),
    )
    labels = _labels([one[0].spec for _, one in sets])
    return tuple(
        TableRow(label, one[0].spec.variant, tuple(sorted(one, key=lambda record: record.spec.seed)))
        for label, (_, one) in zip(labels, sets, strict=True)
    )


def _unique(records: Iterable[RunRecord]) -> list[RunRecord]:
    """Return `records` in a fixed order, of two with one id the one that was started later."""
    found: dict[str, RunRecord] = {}
    for record in sorted(records, key=lambda one: (one.id, one.started)):
        found[record.id] = record
    return list(found.values())


def _reduced(spec: RunSpec) -> bool:
    """Whether a built-in variant is narrower than its own recipe; an outsider's size is its own."""
    known = RECIPES.get(spec.variant)
    if known is None or spec.recipe is None:
        return False
    return any(getattr(spec.recipe, name, 0) < getattr(known, name, 0) for name in ("width", "embedding_width"))


def _short(spec: RunSpec) -> bool:
    return spec.training.epochs < TUTORIAL.epochs or spec.updates is not None


def _as_source(spec: RunSpec) -> bool:
    """Whether a built-in variant is trained as its source trains it, the number of epochs apart."""
    known = TRAININGS.get(spec.variant)
    return known is None or replace(spec.training, epochs=known.epochs, averaged_epochs=0) == replace(
        known, averaged_epochs=0
    )


def _key(record: RunRecord) -> tuple[Any, ...]:
    spec, data = record.spec, record.spec.data
    corpus = canonical_json(to_json(data.files)) if data.files else str(data.seed if data.corpus == "captions" else "")
    return (
        spec.budget,
        data.corpus,
        corpus,
        data.direction,
        data.test_split,
        data.training_pairs or 0,
        spec.updates or 0,
        _joint(spec),
        _batching(spec),
        _reduced(spec),
    )


def _joint(spec: RunSpec) -> bool:
    """Whether runs have a joint vocabulary, in budgets whose tables need equal vocabularies."""
    return spec.budget != "source" and spec.data.vocabulary == "joint"


def _batching(spec: RunSpec) -> str:
    """Return the batching, in budgets whose tables need equal batches; otherwise an empty string."""
    return "" if spec.budget == "source" else spec.training.batching


def _place_external_variants(found: dict[tuple[Any, ...], list[RunRecord]]) -> None:
    """Move external variants, whose size is their own, into the reduced table if it alone has built-in ones."""
    for key in [key for key in found if not key[-1]]:
        external = [record for record in found[key] if record.spec.variant not in RECIPES]
        if external and len(external) == len(found[key]) and (*key[:-1], True) in found:
            found[(*key[:-1], True)] += found.pop(key)


def _size(records: Sequence[RunRecord]) -> str:
    widths = set()
    for record in records:
        recipe = record.spec.recipe
        if recipe is not None:
            widths.add(recipe.embedding_width if isinstance(recipe, GruRecipe) else recipe.width)
    return f"reduced size (width {', '.join(map(str, sorted(widths)))})"


def _title(records: Sequence[RunRecord]) -> str:
    spec = records[0].spec
    parts = [f"{spec.data.corpus} {spec.data.direction}", spec.data.test_split]
    if spec.data.files:
        parts[1] = short_line(PurePath(spec.data.files.test_source).name)
    elif spec.data.corpus == "captions":
        parts[1] = "its test split"
    if spec.data.training_pairs is not None:
        parts.append(f"{spec.data.training_pairs:,} training pairs")
    if any(_reduced(record.spec) for record in records):
        parts.append(_size(records))
    if spec.updates is not None:
        parts.append(f"at most {spec.updates:,} updates")
    if _joint(spec):
        parts.append("joint vocabulary")
    if _batching(spec) not in ("", TUTORIAL.batching):
        parts.append(BATCHES[spec.training.batching])
    return ", ".join(parts)


def _told(name: str, settings: dict[str, Any]) -> str:
    """Return a setting as text; the framework with the backend of Keras."""
    if name == "framework":
        return f"{settings[name]} on {settings['backend']}" if settings["backend"] else short_line(str(settings[name]))
    return f"{name.rpartition('.')[2]}={short_line(str(settings[name]))}"


def _labels(specs: Sequence[RunSpec]) -> list[str]:
    """Return the variants' names, followed by the settings that tell rows of one name apart or differ from its own."""
    flat = [flat_settings(spec) for spec in specs]
    places = [name for name in PLACES if len({one[name] for one in flat}) > 1]
    found = []
    same: dict[str, list[dict[str, Any]]] = {}
    for spec, settings in zip(specs, flat, strict=True):
        same.setdefault(spec.variant, []).append(settings)
    differing = {
        variant: [name for name in dict.fromkeys(itertools.chain(*one)) if _differs(name, one)]
        for variant, one in same.items()
    }
    for spec, settings in zip(specs, flat, strict=True):
        telling = [name for name in differing[spec.variant] if name in settings]
        names = dict.fromkeys([*_changed(spec), *telling, *places])
        told = dict.fromkeys("framework" if name == "backend" else name for name in names)
        extra = ", ".join(_told(name, settings) for name in told)
        found.append(short_line(spec.variant) + (f" ({extra})" if extra else ""))
    return found


def _differs(name: str, settings: Sequence[dict[str, Any]]) -> bool:
    return len({canonical_json(one.get(name)) for one in settings}) > 1


def _changed(spec: RunSpec) -> list[str]:
    """Return the recipe's fields, sizes apart, that differ from the built-in variant's."""
    known, settings = RECIPES.get(spec.variant), to_json(spec.recipe) or {}
    if known is None or type(known) is not type(spec.recipe):
        return []
    own = to_json(known)
    free = {"name", "source", *(SIZES if _reduced(spec) else ())}
    return [f"recipe.{name}" for name, value in settings.items() if name not in free and own[name] != value]
