"""The check that every training run begins with: on three real batches the model agrees with itself.

It uses the evaluation methods only, which leave no trace in a model's state (law 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import LawViolated, assert_close
from harness.conformance.evaluation_laws import changed, cuts, rows_of, trimmed
from impls.contract import PAD, Batch, Ids, Numbers, Seq2SeqModel

BATCHES = 3
BEST = 4
"""Candidates of each cached step whose log-probabilities are compared."""

SHARES = {"float32": 1e-4, "bfloat16": 6e-2}
"""How far results may differ, relative to the largest logit, by precision; on a GPU at least `GPU_SHARE`."""

GPU_SHARE = 1e-2
"""Products of float32 numbers may be rounded to 10 bits on a GPU (TF32)."""

ROUNDING = 5e-6
"""How far log-probabilities may differ where all logits are close to 0. Units: nats."""

SLICE = 32
"""Sentences whose logits are computed at once, so that the check needs less memory than an update."""


class SelfCheckFailed(LawViolated):
    """A model does not keep a law on the batches it was about to be trained on."""


def check_model(model: Seq2SeqModel, batches: Sequence[Batch], *, precision: str, device: str) -> None:
    """Check that losses, logits and cached decoding agree, and that padding and later words have no influence.

    Every sentence is compared with itself among fewer others and less padding. Numbers that are not finite are not
    compared: training notices them.

    Raises: SelfCheckFailed naming the law.
    """
    share = SHARES[precision] if device == "cpu" else max(SHARES[precision], GPU_SHARE)
    try:
        for turn, batch in enumerate(dealt(batches)):
            _check_batch(model, batch, turn, share)
    except LawViolated as broken:
        raise SelfCheckFailed(f"self-check before training: {broken}") from broken


def dealt(batches: Sequence[Batch]) -> list[Batch]:
    """Return as many batches with the same sentences, dealt one by one, so that lengths are mixed."""
    parts = [_stacked([ids[name] for ids in map(vars, batches)]) for name in ("source", "target_in", "target_out")]
    return [trimmed(Batch(*(ids[first :: len(batches)] for ids in parts))) for first in range(len(batches))]


def _stacked(parts: list[Ids]) -> Ids:
    longest = max(ids.shape[1] for ids in parts)
    return np.concatenate([np.pad(ids, ((0, 0), (0, longest - ids.shape[1])), constant_values=PAD) for ids in parts])


def _check_batch(model: Seq2SeqModel, batch: Batch, turn: int, share: float) -> None:
    nats, (stepped, tokens) = model.token_nats(batch), _decoded(model, batch)
    for rows in _slices(batch):
        part = trimmed(rows_of(batch, rows))
        length = part.target_in.shape[1]
        real = part.target_in != PAD
        logits = model.logits(part.source, part.target_in)
        if not (np.isfinite(logits[real]).all() and np.isfinite(nats[rows]).all()):
            return
        tolerance = share * float(np.abs(logits[real] - logits[real].mean(-1, keepdims=True)).max()) + ROUNDING
        sums = _logsumexp(logits)
        expected = np.where(real, sums - _at(logits, part.target_out[..., None])[..., 0], 0)
        found = model.token_nats(part)
        assert_close("law 1 (shapes), token_nats against logits", found, expected, tolerance)
        assert_close("law 4 (padding), token_nats beside longer sentences", nats[rows, :length], found, tolerance)
        by_step = _at(logits, tokens[rows, :length]) - sums[..., None]
        assert_close(
            "law 6 (caching), cached steps against logits", stepped[rows, :length][real], by_step[real], tolerance
        )
        place = cuts(real.sum(1), turn)[:, None]
        columns = np.arange(length)[None]
        other = model.logits(part.source, changed(part.target_in, real & (columns > place)))
        before = real & (columns <= place)
        assert_close(
            "law 3 (causality), logits before a change of later words", other[before], logits[before], tolerance
        )


def _slices(batch: Batch) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the places of sentences of similar length."""
    order = np.argsort((batch.source != PAD).sum(1) + (batch.target_in != PAD).sum(1), kind="stable")
    for start in range(0, len(order), SLICE):
        yield order[start : start + SLICE]


def _decoded(model: Seq2SeqModel, batch: Batch) -> tuple[Numbers, Ids]:
    """Return the best candidates' log-probabilities and words at each position of the targets, [B,T,N] both."""
    decoding = model.begin_decoding(batch.source)
    steps = [decoding.step(last, BEST) for last in batch.target_in.T]
    return np.stack([one.log_probabilities for one in steps], 1), np.stack([one.tokens for one in steps], 1)


def _logsumexp(logits: Numbers) -> Numbers:
    """Return the logarithm of the sums of exponentials, [B,T], without a float64 copy of the logits."""
    largest = logits.max(-1, keepdims=True)
    found: Numbers = largest[..., 0] + np.log(np.exp(logits - largest).sum(-1))
    return found


def _at(logits: Numbers, tokens: Ids) -> Numbers:
    """Return the logits of some words of each position. Shapes: [B,T,V], [B,T,N] to [B,T,N]."""
    found: Numbers = np.take_along_axis(logits, tokens, -1)
    return found
