"""Law 3: a prediction depends on every source word and on the target words before it, and on nothing else."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import TOLERANCE, LawViolated, assert_close
from harness.conformance.models_under_test import SMALLEST_VOCABULARY, ModelUnderTest
from impls.contract import EOS, PAD, Batch, Ids, Seq2SeqModel, TorchReferenceRecipe, TransformerRecipe
from impls.weights import position_vectors

ROUNDS = 3
"""The number of changes of each sentence of a realistic batch; together they cover every position."""

GAINS = (1, 3)
"""Factors of the weights with which a change of a source word is tested; at least one of them must show it.

An RNN without attention hands on so little of the first of 40 words that float32 rounds it away. With larger weights it
hands on more.
"""

_Indices = npt.NDArray[np.intp]


def causality(subject: ModelUnderTest) -> str:
    """3: the logits at t depend on all source tokens, target_in[t] and earlier tokens, by position, and no others."""
    model, batch = subject.perturbed(), subject.batch()
    logits = model.logits(batch.source, batch.target_in)
    for position in range(batch.target_in.shape[1] - 1):
        later = np.arange(batch.target_in.shape[1]) > position
        logits_before = model.logits(batch.source, changed(batch.target_in, later))[:, : position + 1]
        name = f"logits up to position {position} after a change of later target words"
        assert_close(name, logits_before, logits[:, : position + 1])
    _real_causality(subject, model)
    _positions(subject)
    return "" if _order_matters(subject, model) else "the order of the source words makes no difference"


def cuts(lengths: npt.NDArray[np.intp], turn: int) -> _Indices:
    """Return a position below its length for each sentence; over all turns, the positions cover every column."""
    order = np.argsort(-lengths, kind="stable")
    slots = np.arange(len(order)) * ROUNDS + turn
    last = lengths.max(initial=1) - 1
    positions = np.empty(len(lengths), np.intp)
    # The longest sentences get the last positions in descending order; the others get any.
    positions[order] = np.where(slots <= last, last - slots, slots) % np.maximum(lengths[order], 1)
    return positions


def changed(ids: Ids, where: npt.NDArray[np.bool_], vocabulary_size: int = SMALLEST_VOCABULARY) -> Ids:
    """Return ids with other ordinary tokens at some positions; `<eos>` counts as one if there is one word."""
    token = min(SMALLEST_VOCABULARY, vocabulary_size) - 1
    return np.where(where, np.where(ids == token - 1, token, token - 1), ids).astype(np.int32)


def _real_causality(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Check the law on a realistic batch, changing each sentence at another position."""
    name, batch = subject.probes()[1]
    real, logits = batch.target_in != PAD, model.logits(batch.source, batch.target_in)
    columns, source_columns = (np.arange(ids.shape[1])[None] for ids in (batch.target_in, batch.source))
    for turn in range(ROUNDS):
        position = cuts(real.sum(1), turn)[:, None]
        changed_logits = model.logits(batch.source, changed(batch.target_in, real & (columns > position)))
        before = real & (columns <= position)
        assert_close(f"logits of {name} before a change of later words", changed_logits[before], logits[before])
        replaced_logits = model.logits(batch.source, changed(batch.target_in, columns == position))
        moved = np.where(columns == position, np.abs(replaced_logits - logits).max(-1), 0).max(1) > TOLERANCE
        _require_all(moved, position, f"logits of {name} do not depend on target_in")
        earlier_logits = model.logits(batch.source, changed(batch.target_in, columns < position))
        moved = (np.abs(earlier_logits - logits).max(-1) > 0)[columns == position]
        _require_all(moved | (position[:, 0] == 0), position, f"logits of {name} depend on no earlier target word")
        position = cuts((batch.source != PAD).sum(1), turn)[:, None]
        moved = _moved(model, batch, changed(batch.source, source_columns == position))
        _require_all(moved, position, f"logits of {name} do not depend on the source token")


def _order_matters(subject: ModelUnderTest, model: Seq2SeqModel) -> bool:
    """Return whether the logits of any sentence change if the order of its source words is reversed."""
    batch = subject.batch()
    reversed_source = batch.source.copy()
    for row in reversed_source:
        words = slice(1, int((row != PAD).sum()) - 1)
        row[words] = row[words][::-1]
    change = np.abs(model.logits(reversed_source, batch.target_in) - model.logits(batch.source, batch.target_in))
    return bool(change.max() > TOLERANCE)


def _require_all(moved: npt.NDArray[np.bool_], position: _Indices, fault: str) -> None:
    if not moved.all():
        raise LawViolated(f"{fault} at position {position[~moved].min()}")


def _moved(model: Seq2SeqModel, batch: Batch, source: Ids) -> npt.NDArray[np.bool_]:
    """Return for each sentence whether another source changes any bit of its logits, with weights of any gain."""
    weights, moved = model.weights(), np.zeros(len(source), np.bool_)
    for gain in GAINS:
        model.set_weights({name: np.float32(gain) * value for name, value in weights.items()})
        change = np.abs(model.logits(source, batch.target_in) - model.logits(batch.source, batch.target_in)).max(-1)
        moved |= np.where(batch.target_in != PAD, change, 0).max(1) > 0
        if moved.all():
            break
    model.set_weights(weights)
    return moved


def _positions(subject: ModelUnderTest) -> None:
    """Require that tokens whose embeddings cancel their position vectors give the same logits at every position."""
    model = subject.perturbed()
    if not isinstance(model.recipe, TransformerRecipe | TorchReferenceRecipe):
        return
    recipe = model.recipe.as_transformer()
    tensors, words = model.weights(), min(subject.source_vocabulary_size, subject.target_vocabulary_size)
    length = min(subject.real.longest, words - EOS - 1)
    row = np.arange(EOS + 1, EOS + 1 + length, dtype=np.int32)[None]
    for side in ("source", "target"):
        table = "target.embedding" if recipe.tying == "all" else f"{side}.embedding"
        vectors = position_vectors(recipe, tensors, side)[:length] / recipe.embedding_factor
        cancelled = tensors[table].copy()
        cancelled[row[0]] = cancelled[row[0, 0]] - vectors
        model.set_weights({**tensors, table: cancelled})
        if side == "source":
            logits, expected = model.logits(row, row[:, :1]), model.logits(row[:, :1], row[:, :1])
        else:
            logits = model.logits(row[:, :1], row)
            expected = np.broadcast_to(model.logits(row[:, :1], row[:, :1]), logits.shape)
        name = f"logits of {length} {side} tokens that cancel the vectors of their positions"
        assert_close(name, logits, expected, 10 * TOLERANCE)
