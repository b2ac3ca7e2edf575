"""Batches without padding, for training and evaluation in torch.

The packed rows of a batch are its N tokens, one sentence after the other in ascending order of length. Layers that
treat positions independently compute on packed rows. Attention needs padding: it works on groups of sentences of
similar length, each padded to its own longest sentence, so that even random batches have little padding.

Shapes use the repository's letters: B sentences (of a batch or of a group), S source positions, T target positions, H
heads, K head width. P is the number of projections that one product computes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from impls.contract import PAD, UNK, Batch, Ids

GROUP_ROWS = 32
"""Sentences per group on a CPU. Smaller groups have less padding but need more and smaller products."""

ROW_MULTIPLE = 32
"""Packed rows are a multiple of this where oneDNN multiplies on a CPU.

It compiles kernels for each number of rows that it meets and keeps them: a model of the tutorials' size, trained with
119 numbers of rows from 200 to 318, grew by 1.2 GB. Dropout draws random numbers for the rows that fill up, too.
"""

Numbers = npt.NDArray[np.int64]
ToDevice = Callable[[npt.NDArray[Any]], torch.Tensor]


class Group(NamedTuple):
    """A group of B sentences, padded to T querying and S attended positions.

    Attributes:
        shape: The shape of the scores, [B,H,T,S].
        queries, keys: The group's packed rows.
        visible: Where a position may attend to, [B,1,1,S] or [1,1,T,S].
        real: 0 where the querying position is padding, [B,1,T,1].
        query, key, value: Indices of padded heads in packed projections, [N*P*H,K]. Padding repeats the last token of
            its sentence.
        output: Indices of padded heads in packed outputs, [N*H,K].
        from_queries, from_keys: Indices of the heads of packed rows in padded ones, [B*H*T,K] and [B*H*S,K].
    """

    shape: tuple[int, int, int, int]
    queries: slice
    keys: slice
    visible: torch.Tensor
    real: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    output: torch.Tensor
    from_queries: torch.Tensor
    from_keys: torch.Tensor

    def heads(self, projected: torch.Tensor, memory: torch.Tensor | None) -> list[torch.Tensor]:
        """Return padded queries, keys and values from the packed projections that `attend_packed` describes.

        Shapes: [B*H,T,K], [B*H,S,K], [B*H,S,K].
        """
        width = projected.shape[1] // (self.shape[1] * (3 if memory is None else 1))
        query_rows = projected.reshape(-1, width)
        key_rows = query_rows if memory is None else memory.reshape(-1, width)
        _, _, length, other_length = self.shape
        parts = (
            (query_rows, self.query, length),
            (key_rows, self.key, other_length),
            (key_rows, self.value, other_length),
        )
        return [rows.index_select(0, index).view(-1, size, width) for rows, index, size in parts]

    def outputs(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the group's padded rows of packed outputs. Shapes: [N,H*K] to [B*H,T,K]."""
        width = packed.shape[1] // self.shape[1]
        return packed.reshape(-1, width).index_select(0, self.output).view(-1, self.shape[2], width)

    def packed(self, padded: torch.Tensor) -> torch.Tensor:
        """Return the packed rows of padded outputs. Shapes: [B*H,T,K] or [B,H,T,K] to [n,H*K]."""
        return _packed(padded, self.from_queries, self.shape[1])

    def add_gradients(
        self,
        projected: torch.Tensor,
        memory: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> None:
        """Write padded gradients of what `heads` returns into the gradients of the packed projections."""
        heads = self.shape[1]
        width = heads * query.shape[-1]
        projected.view(len(projected), -1, width)[self.queries, 0] = _packed(query, self.from_queries, heads)
        for part, padded in ((-2, key), (-1, value)):
            memory.view(len(memory), -1, width)[self.keys, part] = _packed(padded, self.from_keys, heads)


def _packed(padded: torch.Tensor, index: torch.Tensor, heads: int) -> torch.Tensor:
    return padded.reshape(-1, padded.shape[-1]).index_select(0, index).view(-1, heads * padded.shape[-1])


@dataclass(frozen=True)
class PackedSide:
    """The packed tokens of the sources or targets, and their positions in their sentences. Shapes: [N] each."""

    tokens: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True)
class Packing:
    """A batch without padding.

    The groups are for self-attention in the source and in the target, and for the target's attention on the source.
    `indices`, [N], locate the target's packed rows in the flattened `Batch.target_out`. Rows after them are filling.
    """

    source: PackedSide
    target: PackedSide
    source_groups: list[Group]
    target_groups: list[Group]
    cross_groups: list[Group]
    indices: Numbers


def pack(batch: Batch, *, heads: int, group_rows: int, to_device: ToDevice, multiple: int = 1) -> Packing:
    """Return `batch` without its padding, in groups of `group_rows` sentences.

    A sentence that is only padding counts as one token, so that no group is empty. With a `multiple` above 1, another
    sentence fills the packed rows of each side up to a multiple of it. It is a group of its own.
    """
    source, target, order = _sorted(batch)
    sources = _Sentences(order, batch.source, source, multiple)
    targets = _Sentences(order, batch.target_in, target, multiple)
    rows = [slice(first, min(first + group_rows, len(order))) for first in range(0, len(order), group_rows)]
    rows += [slice(len(order), len(sources.lengths))] * (multiple > 1)
    return Packing(
        source=PackedSide(to_device(sources.tokens), to_device(sources.positions)),
        target=PackedSide(to_device(targets.tokens), to_device(targets.positions)),
        source_groups=[_group(sources, sources, group, sources.real(group), heads, to_device) for group in rows],
        target_groups=[_group(targets, targets, group, targets.causal(group), heads, to_device) for group in rows],
        cross_groups=[_group(targets, sources, group, sources.real(group), heads, to_device) for group in rows],
        indices=targets.indices,
    )


def groups_by_length(batch: Batch, group_rows: int) -> Iterator[tuple[Numbers, Batch]]:
    """Yield groups of sentences of similar length, padded to their own longest ones, and their rows in `batch`."""
    source, target, order = _sorted(batch)
    for first in range(0, len(order), group_rows):
        rows = order[first : first + group_rows]
        columns, target_columns = source[rows].max(), target[rows].max()
        yield (
            rows,
            Batch(
                batch.source[rows, :columns],
                batch.target_in[rows, :target_columns],
                batch.target_out[rows, :target_columns],
            ),
        )


@dataclass(frozen=True)
class PackedByPosition:
    """A batch whose target is packed position by position, for recurrent decoders.

    Sentences are in descending order of target length, so the first `sizes[t]` of them have a token at position t.
    `lengths` are those of the sources, on the host; `indices` are as in `Packing`.
    Shapes: source [B,S], padded; lengths [B]; tokens [N]; indices [N].
    """

    source: torch.Tensor
    lengths: torch.Tensor
    tokens: torch.Tensor
    sizes: list[int]
    indices: Numbers


def pack_by_position(batch: Batch, *, to_device: ToDevice) -> PackedByPosition:
    """Return `batch` with its target packed position by position; `to_device` copies an array to the device."""
    sources, lengths, _ = _sorted(batch)
    order = np.argsort(-lengths, kind="stable")
    position, row = np.nonzero(np.arange(lengths.max())[:, None] < lengths[order])
    indices = order[row] * batch.target_in.shape[1] + position
    return PackedByPosition(
        source=to_device(batch.source[order]),
        lengths=torch.from_numpy(sources[order]),
        tokens=to_device(batch.target_in.reshape(-1)[indices]),
        sizes=np.bincount(position).tolist(),
        indices=indices,
    )


class _Sentences:
    """One side of a batch with its sentences reordered: the token of each packed row.

    With a `multiple` above 1, a last sentence of unknown words, all at position 0, fills the rows up.
    """

    def __init__(self, order: Numbers, ids: Ids, lengths: Numbers, multiple: int) -> None:
        self.lengths = lengths[order]
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.positions = np.arange(self.lengths.sum()) - np.repeat(self.starts, self.lengths)
        self.indices = np.repeat(order * ids.shape[1], self.lengths) + self.positions
        self.tokens = ids.reshape(-1)[self.indices]
        if multiple > 1:
            filling = multiple - len(self.tokens) % multiple
            self.starts = np.append(self.starts, len(self.tokens))
            self.lengths = np.append(self.lengths, filling)
            self.positions = np.pad(self.positions, (0, filling))
            self.tokens = np.pad(self.tokens, (0, filling), constant_values=UNK)

    def real(self, rows: slice) -> npt.NDArray[np.bool_]:
        """Return which positions of some padded sentences are not padding. Shapes: [B,1,1,T]."""
        lengths = self.lengths[rows, None, None, None]
        return np.arange(lengths.max()) < lengths

    def causal(self, rows: slice) -> npt.NDArray[np.bool_]:
        """Return the causal mask. Shapes: [1,1,T,T]."""
        return np.tri(self.lengths[rows].max(), dtype=bool)[None, None]

    def padded(self, rows: slice) -> Numbers:
        """Return the packed rows of some sentences, padded with the last of each. Shapes: [B,T]."""
        lengths = self.lengths[rows, None]
        return self.starts[rows, None] + np.minimum(np.arange(lengths.max()), lengths - 1)

    def packed(self, rows: slice) -> slice:
        """Return the packed rows of some sentences."""
        return slice(int(self.starts[rows][0]), int(self.starts[rows][-1] + self.lengths[rows][-1]))


def _group(
    queries: _Sentences,
    keys: _Sentences,
    rows: slice,
    visible: npt.NDArray[np.bool_],
    heads: int,
    to_device: ToDevice,
) -> Group:
    query_index, key_index = queries.padded(rows), keys.padded(rows)
    # In self-attention one product computes queries, keys and values; in cross-attention keys and values have another.
    query_parts, key_parts = (3, 3) if queries is keys else (1, 2)

    def heads_of(tokens: Numbers, part: int, parts: int) -> torch.Tensor:
        return to_device((((tokens * parts + part) * heads)[:, None] + np.arange(heads)[:, None]).reshape(-1))

    def packed_of(real: npt.NDArray[np.bool_]) -> torch.Tensor:
        sentence, position = np.nonzero(real[:, 0, 0])
        length = real.shape[-1]
        return to_device(((sentence[:, None] * heads + np.arange(heads)) * length + position[:, None]).reshape(-1))

    real = queries.real(rows)
    return Group(
        shape=(len(query_index), heads, query_index.shape[1], key_index.shape[1]),
        queries=queries.packed(rows),
        keys=keys.packed(rows),
        visible=to_device(visible),
        real=to_device(real.transpose(0, 1, 3, 2).astype(np.float32)),
        query=heads_of(query_index, 0, query_parts),
        key=heads_of(key_index, key_parts - 2, key_parts),
        value=heads_of(key_index, key_parts - 1, key_parts),
        output=heads_of(query_index, 0, 1),
        from_queries=packed_of(real),
        from_keys=packed_of(keys.real(rows)),
    )


def _sorted(batch: Batch) -> tuple[Numbers, Numbers, Numbers]:
    """Return the lengths of sources and targets, and the rows in ascending order of length. Shapes: [B] each."""
    source, target = _lengths(batch.source), np.maximum(_lengths(batch.target_in), _lengths(batch.target_out))
    return source, target, np.lexsort((source, target, np.maximum(source, target)))


def _lengths(ids: Ids) -> Numbers:
    """Return the number of positions up to the last token of each sentence, at least 1. Shapes: [B,T] to [B]."""
    backwards = (ids != PAD)[:, ::-1]
    lengths = np.where(backwards.any(axis=1), ids.shape[1] - backwards.argmax(axis=1), 1)
    return lengths.astype(np.int64)
