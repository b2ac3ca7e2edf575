"""Finds ablated fields that also change the size of word embeddings relative to position vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.ablation_study import LEVELS, Study
from harness.analysis.grouping import group_by
from harness.storage.records import RunRecord

LARGEST_CHANGE = 2.0
"""The factor by which the ratio may differ between the levels of a field without a warning."""
SIZES_OF_EMBEDDINGS = ("embedding_init", "embedding_scale")
"""The fields that vary the ratio explicitly."""


@dataclass(frozen=True)
class Confound:
    """A field, and the ratio of embedding RMS to position RMS at initialisation for each level with position vectors.

    The levels are in ascending order of the ratio; `change` is the largest ratio divided by the smallest.
    """

    field: str
    ratios: Mapping[str, float]

    @property
    def change(self) -> float:
        return max(self.ratios.values()) / min(self.ratios.values()) if self.ratios else 1.0


def confounds(study: Study, crossed: Sequence[str]) -> tuple[Confound, ...]:
    """Return the fields that change the ratio by more than a factor of 2 and are not crossed with it.

    A field is crossed with the ratio if it and a field of `SIZES_OF_EMBEDDINGS` are among `crossed`, the fields of the
    factorial. Levels without position vectors have no ratio and are not compared.
    """
    separated = {*SIZES_OF_EMBEDDINGS, *(crossed if set(crossed) & set(SIZES_OF_EMBEDDINGS) else ())}
    largest = [
        max(_by_level(study, field), key=lambda confound: confound.change) for field in LEVELS if field not in separated
    ]
    return tuple(confound for confound in largest if confound.change > LARGEST_CHANGE)


def embedding_ratio(record: RunRecord) -> float | None:
    """Return source embedding RMS divided by position RMS at initialisation; None without position vectors."""
    embedding, position = (record.sizes.get(name) for name in ("source_embedding_rms", "position_rms"))
    return embedding / position if embedding and position else None


def _by_level(study: Study, field: str) -> list[Confound]:
    """Return the ratio at each level of a field, once for each combination of the other fields' levels."""
    by_rest = group_by(study.cells, lambda cell: frozenset(pair for pair in cell.changes if pair[0] != field))
    confounds = []
    for cells in by_rest.values():
        levels = [dict(cell.changes).get(field, study.base[field]) for cell in cells]
        ratios = [embedding_ratio(next(iter(cell.records.values()))) for cell in cells]
        pairs = [(level, ratio) for level, ratio in zip(levels, ratios, strict=True) if ratio is not None]
        confounds.append(Confound(field, dict(sorted(pairs, key=lambda pair: pair[1]))))
    return confounds
