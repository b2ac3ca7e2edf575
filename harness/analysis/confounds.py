"""Finds ablated fields that also change the size of word embeddings relative to position vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.ablation_study import WORDS, Study, StudyCell
from harness.storage.records import RunRecord
from impls import weights

LARGEST_CHANGE = 2.0
"""By which factor the ratio may differ between the levels of a field before a warning is given."""
SIZES_OF_EMBEDDINGS = ("embedding_init", "embedding_scale")
"""The fields that vary the ratio explicitly."""


@dataclass(frozen=True)
class Confound:
    """A field and, for each level with position vectors, the ratio of embedding RMS to position RMS at initialisation.

    The levels are in ascending order of the ratio; `change` is the largest ratio divided by the smallest.
    """

    field: str
    ratios: Mapping[str, float]

    @property
    def change(self) -> float:
        return max(self.ratios.values()) / min(self.ratios.values())


def confounds(study: Study, crossed: Sequence[str]) -> tuple[Confound, ...]:
    """Return the fields that change the ratio by more than a factor of 2 and are not crossed with it.

    A field is crossed with the ratio if it and a field of `SIZES_OF_EMBEDDINGS` are among `crossed`, the fields of the
    factorial. Levels without position vectors have no ratio and are not compared.
    """
    separated = set(crossed) if set(crossed) & set(SIZES_OF_EMBEDDINGS) else set()
    found = []
    for field in WORDS:
        if field not in SIZES_OF_EMBEDDINGS and field not in separated:
            changes = [one for one in _by_level(study, field) if len(one.ratios) > 1]
            largest = max(changes, key=lambda one: one.change, default=None)
            if largest is not None and largest.change > LARGEST_CHANGE:
                found.append(largest)
    return tuple(found)


def embedding_ratio(record: RunRecord) -> float | None:
    """Return source embedding RMS divided by position RMS at initialisation; None without position vectors.

    For a record of an older version, which does not hold them, the expected values are used.
    """
    sizes = record.sizes
    if "position_rms" not in sizes:
        recipe, words = record.spec.recipe, [sizes.get(f"{side}_words") for side in ("source", "target")]
        if recipe is None or None in words:
            return None
        sizes = weights.expected_embedding_rms(recipe, int(words[0] or 0), int(words[1] or 0))
    embedding, position = sizes.get("source_embedding_rms"), sizes["position_rms"]
    return embedding / position if embedding and position else None


def _by_level(study: Study, field: str) -> list[Confound]:
    """Return the ratio at each level of a field, once for each combination of the other fields' levels."""
    groups: dict[frozenset[tuple[str, str]], dict[str, StudyCell]] = {}
    for cell in study.cells:
        level = dict(cell.departures).get(field, study.base[field])
        others = frozenset(pair for pair in cell.departures if pair[0] != field)
        groups.setdefault(others, {})[level] = cell
    found = []
    for cells in groups.values():
        if len(cells) > 1:
            ratios = {level: embedding_ratio(next(iter(cell.records.values()))) for level, cell in cells.items()}
            known = {level: ratio for level, ratio in ratios.items() if ratio is not None}
            found.append(Confound(field, dict(sorted(known.items(), key=lambda pair: pair[1]))))
    return found
