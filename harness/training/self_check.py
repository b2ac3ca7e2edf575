"""The self-check at the start of a training run: on three real batches, a model must agree with itself.

Only evaluation methods are called, which do not change the state of a model (law 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import LawViolated, assert_close
from harness.conformance.causality_law import changed, cuts
from harness.conformance.evaluation_laws import rows_of, trimmed
from harness.data.batches import pad
from harness.text import command_line
from impls.contract import PAD, Batch, Ids, Numbers, Seq2SeqModel

BATCHES = 3
BEST = 4
"""The number of candidates of each cached step whose log-probabilities are compared."""

SHARES = {"float32": 1e-4, "bfloat16": 6e-2}
"""The tolerance relative to the largest logit, by precision; on a GPU at least `GPU_SHARE`."""

GPU_SHARE = 1e-2
"""On a GPU the inputs of float32 products may be rounded to 10 bits (TF32)."""

MATMUL_SHARES = {"highest": 0.0, "high": GPU_SHARE, "medium": SHARES["bfloat16"]}
"""The tolerance is at least this, by the precision of matrix products."""

ROUNDING = 5e-6
"""The tolerance of log-probabilities if all logits are close to 0. Units: nats."""

SLICE = 32
"""The number of sentences whose logits are computed at once, so that the check needs less memory than an update."""


class SelfCheckFailed(LawViolated):
    """A model violates a law on its first training batches."""


def check_model(
    model: Seq2SeqModel,
    batches: Sequence[Batch],
    *,
    precision: str,
    matmul_precision: str = "highest",
    device: str,
    options: str = "--variant MODULE:NAME",
) -> None:
    """Check that losses, logits and cached decoding agree, and that padding and later tokens have no influence.

    Every sentence is compared with itself among fewer other sentences and with less padding. Numbers that are not
    finite are not compared; training detects them.

    Raises:
        SelfCheckFailed: A law is broken. The message names it, and the command that tests all laws, with `options`.
    """
    share = max(SHARES[precision], MATMUL_SHARES[matmul_precision], GPU_SHARE if device != "cpu" else 0.0)
    try:
        for turn, batch in enumerate(dealt(batches)):
            _check_batch(model, batch, turn, share)
    except LawViolated as broken:
        command = command_line(f"laws --fast {options}")
        # "from None": the sentence says all; a second traceback would repeat it.
        raise SelfCheckFailed(f"self-check before training: {broken}; to test all laws: {command}") from None


def dealt(batches: Sequence[Batch]) -> list[Batch]:
    """Return the same number of batches with the same sentences, dealt in turn, so that lengths are mixed."""
    fields = zip(*(vars(batch).values() for batch in batches), strict=True)
    stacked = [pad([row for ids in parts for row in ids]) for parts in fields]
    return [trimmed(Batch(*(ids[first :: len(batches)] for ids in stacked))) for first in range(len(batches))]


def _check_batch(model: Seq2SeqModel, batch: Batch, turn: int, share: float) -> None:
    """Check the laws whose violation may break the others first."""
    nats, (stepped, tokens) = model.token_nats(batch), _decoded(model, batch)
    for number, rows in enumerate(_slices(batch)):
        part = trimmed(rows_of(batch, rows))
        length = part.target_in.shape[1]
        real = part.target_in != PAD
        logits = model.logits(part.source, part.target_in)
        if not (np.isfinite(logits[real]).all() and np.isfinite(nats[rows]).all()):
            return
        tolerance = share * float(np.abs(logits[real] - logits[real].mean(-1, keepdims=True)).max()) + ROUNDING
        if number == 0:
            repeated = model.logits(part.source, part.target_in)
            assert_close("law 2 (determinism), logits evaluated twice", repeated[real], logits[real], tolerance)
        cut = cuts(real.sum(1), turn)[:, None]
        columns = np.arange(length)[None]
        later_changed = changed(part.target_in, real & (columns > cut), logits.shape[-1])
        perturbed = model.logits(part.source, later_changed)
        before = real & (columns <= cut)
        assert_close(
            "law 3 (causality), logits before a change of later tokens", perturbed[before], logits[before], tolerance
        )
        sums = _logsumexp(logits)
        expected = np.where(real, sums - _at(logits, part.target_out[..., None])[..., 0], 0)
        part_nats = model.token_nats(part)
        assert_close("law 1 (shapes), token_nats against logits", part_nats, expected, tolerance)
        assert_close("law 4 (padding), token_nats beside longer sentences", nats[rows, :length], part_nats, tolerance)
        by_step = _at(logits, tokens[rows, :length]) - sums[..., None]
        assert_close(
            "law 6 (caching), cached steps against logits", stepped[rows, :length][real], by_step[real], tolerance
        )


def _slices(batch: Batch) -> Iterator[npt.NDArray[np.intp]]:
    """Yield the rows of sentences of similar length."""
    order = np.argsort((batch.source != PAD).sum(1) + (batch.target_in != PAD).sum(1), kind="stable")
    for start in range(0, len(order), SLICE):
        yield order[start : start + SLICE]


def _decoded(model: Seq2SeqModel, batch: Batch) -> tuple[Numbers, Ids]:
    """Return the log-probabilities and the tokens of the best candidates at each target position, both [B,T,N]."""
    decoding = model.begin_decoding(batch.source)
    steps = [decoding.step(last, BEST) for last in batch.target_in.T]
    return np.stack([step.log_probabilities for step in steps], 1), np.stack([step.tokens for step in steps], 1)


def _logsumexp(logits: Numbers) -> Numbers:
    """Return the logarithm of the sums of exponentials, [B,T], without a float64 copy of the logits."""
    largest = logits.max(-1, keepdims=True)
    sums: Numbers = largest[..., 0] + np.log(np.exp(logits - largest).sum(-1))
    return sums


def _at(logits: Numbers, tokens: Ids) -> Numbers:
    """Return the logits of some tokens of each position. Shapes: [B,T,V], [B,T,N] to [B,T,N]."""
    selected: Numbers = np.take_along_axis(logits, tokens, -1)
    return selected
