"""A model whose next-word probabilities are a function of the source and the words so far: for search by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from impls.contract import EOS, PAD, SOS, Candidates, Ids, Numbers

Probabilities = npt.NDArray[np.float64]
Words = tuple[int, ...]


@dataclass
class TableModel:
    """Implements `begin_decoding` alone; `next_words(source, prefix)` gives the probability of every word.

    Of equally probable words it names the one with the larger id first. `steps` and `rows` count the calls of `step`
    and the rows fed to them; `widths` are those of the batches, `best_asked` the numbers of candidates.
    """

    next_words: Callable[[Words, Words], Probabilities]
    steps: int = 0
    rows: int = 0
    best_asked: set[int] = field(default_factory=set)
    widths: list[int] = field(default_factory=list)

    def begin_decoding(self, source: Ids) -> TableDecoding:
        self.widths.append(source.shape[1])
        return TableDecoding(self, [tuple(int(word) for word in row if word != PAD) for row in source])


class TableDecoding:
    def __init__(self, model: TableModel, sources: list[Words]) -> None:
        self._model = model
        self._rows: list[tuple[Words, Words]] = [(source, ()) for source in sources]
        self._begun = False

    def step(self, last: Ids, best: int) -> Candidates:
        assert last.dtype == np.int32
        assert last.shape == (len(self._rows),)
        if self._begun:
            self._rows = [
                (source, (*prefix, int(word))) for (source, prefix), word in zip(self._rows, last, strict=True)
            ]
        else:
            assert (last == SOS).all()
        self._begun = True
        self._model.steps += 1
        self._model.rows += len(self._rows)
        self._model.best_asked.add(best)
        table = np.stack([self._model.next_words(source, prefix) for source, prefix in self._rows])
        backwards = np.argsort(-table[:, ::-1], axis=1, kind="stable")[:, :best]
        tokens = (table.shape[1] - 1 - backwards).astype(np.int32)
        with np.errstate(divide="ignore"):
            log_probabilities: Numbers = np.log(np.take_along_axis(table, tokens, axis=1)).astype(np.float32)
        return Candidates(log_probabilities, tokens)

    def select(self, rows: npt.NDArray[np.intp]) -> None:
        self._rows = [self._rows[row] for row in rows]


def from_prefixes(table: Mapping[Words, Mapping[int, float]], words: int = 7) -> TableModel:
    """Return a model of the listed prefixes; after any other prefix comes <eos>."""

    def next_words(source: Words, prefix: Words) -> Probabilities:
        row = np.zeros(words)
        for word, probability in table.get(prefix, {EOS: 1.0}).items():
            row[word] = probability
        return row

    return TableModel(next_words)


def from_seed(
    seed: int, words: int = 6, *, concentration: float = 1.0, end: float = 1.0, levels: int = 0
) -> TableModel:
    """Return a model with random probabilities, other ones for each source and prefix.

    `concentration` below 1 gives peaked rows; `end` multiplies the weight of <eos>; `levels` above 0 allows so
    many different weights only, so that there are ties.
    """
    known: dict[tuple[Words, Words], Probabilities] = {}

    def next_words(source: Words, prefix: Words) -> Probabilities:
        if (source, prefix) not in known:
            generator = np.random.default_rng([seed, len(source), *source, *prefix])
            row = generator.gamma(concentration, size=words) + 1e-9
            if levels:
                row = np.ceil(row / row.max() * levels)
            row[EOS] *= end
            known[source, prefix] = (row / row.sum()).astype(np.float32).astype(np.float64)
        return known[source, prefix]

    return TableModel(next_words)
