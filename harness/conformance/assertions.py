"""Assertions of the laws, which raise `LawViolated`, and a table model with known search results."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from impls.contract import EOS, PAD, SOS, Arrays, Candidates, Decoding, Ids, Seq2SeqModel

TOLERANCE = 1e-5
"""The difference that float32 rounding may cause between numbers up to `LARGEST`; in proportion between larger ones."""

LARGEST, HUGE = 5.0, 1_000.0


class LawViolated(Exception):
    """A law does not hold; the message says where and by how much."""


def require(condition: bool, message: str) -> None:
    """Raise `LawViolated` with the message unless the condition is true."""
    if not condition:
        raise LawViolated(message)


def assert_close(
    name: str, actual: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float | None = None
) -> None:
    """Require that two arrays have one shape and differ by at most `tolerance`; NaN differs from everything.

    Without a tolerance it is `TOLERANCE`, and more for arrays with numbers above `LARGEST`. Numbers from `HUGE` on do
    not count: they are logits of words that are ruled out.
    """
    require(actual.shape == expected.shape, f"{name}: shape {actual.shape}, expected {expected.shape}")
    if tolerance is None:
        sizes = np.abs(expected)
        tolerance = TOLERANCE * max(1.0, float(sizes[sizes < HUGE].max(initial=0.0)) / LARGEST)
    difference = float(np.abs(actual - expected).max(initial=0.0))
    require(difference <= tolerance, f"{name}: off by {difference:.2g} (tolerance {tolerance:.2g})")


def assert_near(name: str, actual: float, expected: float, tolerance: float) -> None:
    """Require that two numbers differ by at most `tolerance`."""
    difference = abs(actual - expected)
    require(difference <= tolerance, f"{name} is {actual:.7g}, expected {expected:.7g} (tolerance {tolerance:.2g})")


def assert_same_bits(name: str, actual: Arrays, expected: Arrays) -> None:
    """Require that two sets of arrays have the same names, types, shapes and bits."""
    different = sorted(actual.keys() ^ expected.keys())
    require(not different, f"{name}: only on one side: {', '.join(different)}")
    for key, value in expected.items():
        same = actual[key].dtype == value.dtype and actual[key].shape == value.shape
        require(same and actual[key].tobytes() == value.tobytes(), f"{name}: {key} has other bits")


def assert_array(
    name: str, array: npt.NDArray[Any], shape: tuple[int, ...], kind: type[np.generic] = np.float32
) -> None:
    """Require that an array has this shape and type and is finite."""
    require(isinstance(array, np.ndarray), f"{name} is a {type(array).__name__}, expected a NumPy array")
    require(array.shape == shape, f"{name} has shape {array.shape}, expected {shape}")
    require(array.dtype == kind, f"{name} is {array.dtype}, expected {np.dtype(kind)}")
    require(bool(np.isfinite(array).all()), f"{name} is not finite")


def assert_rejected(model: Seq2SeqModel, weights: Arrays, fault: str, name: str) -> None:
    """Require that set_weights raises a ValueError that names the tensor."""
    try:
        model.set_weights(weights)
    except ValueError as error:
        require(name in str(error), f"the ValueError for a weight that is {fault} does not name {name}: {error}")
    else:
        raise LawViolated(f"set_weights accepts a weight that is {fault}: {name}")


def log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return the log-probabilities of logits [...,V], in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def token_nats(logits: npt.NDArray[Any], target_out: Ids) -> npt.NDArray[np.float64]:
    """Return the negative log-likelihoods [B,T] of target tokens by logits [B,T,V]; 0 at padding."""
    nats = -np.take_along_axis(log_softmax(logits), target_out[..., None], -1)[..., 0]
    return np.where(target_out == PAD, 0.0, nats)


def objective_nats(logits: npt.NDArray[Any], target_out: Ids, smoothing: float) -> float:
    """Return the summed training objective of logits [B,T,V] with label smoothing over the whole vocabulary.

    Source: Szegedy et al. 2016, section 7.
    """
    uniform = -log_softmax(logits).mean(-1)[target_out != PAD].sum()
    return float((1 - smoothing) * token_nats(logits, target_out).sum() + smoothing * uniform)


class TableModel:
    """A model of seven tokens (a, b, c are 4, 5, 6) that depends on the source's first token and the last token only.

    Source `<unk>`: first a 0.5 or b 0.4; after a `<eos>` 0.4; after b c 0.9; after c `<eos>` 0.9. "a" has 0.5 x 0.4 =
    0.2, "b c" 0.4 x 0.9 x 0.9 = 0.324: greedy chooses "a", a beam of 2 "b c".
    Source a: first a 0.6 or b 0.39; after a `<eos>` 0.6; the rest as before. "a" has 0.36, "b c" 0.316: "a" is more
    probable, but with a length penalty of 1, log(0.36) / (7 / 6) = -0.876 loses to log(0.316) / (8 / 6) = -0.864.
    All other tokens share the remaining probability.
    """

    NEXT = (
        {SOS: {4: 0.5, 5: 0.4}, 4: {EOS: 0.4}, 5: {6: 0.9}, 6: {EOS: 0.9}},
        {SOS: {4: 0.6, 5: 0.39}, 4: {EOS: 0.6}, 5: {6: 0.9}, 6: {EOS: 0.9}},
    )

    def __init__(self, rows: npt.NDArray[np.intp] | None = None) -> None:
        self.rows = np.empty(0, np.intp) if rows is None else rows

    def begin_decoding(self, source: Ids) -> Decoding:
        return TableModel((source[:, 1] == 4).astype(np.intp))

    def step(self, last: Ids, best: int) -> Candidates:
        table = np.empty((len(last), 7), np.float32)
        for probabilities, row, token in zip(table, self.rows, last, strict=True):
            likely = self.NEXT[row].get(int(token), {})
            probabilities[:] = (1 - sum(likely.values())) / (7 - len(likely))
            probabilities[list(likely)] = list(likely.values())
        tokens = np.argsort(-table, axis=1, kind="stable")[:, :best].astype(np.int32)
        return Candidates(np.log(np.take_along_axis(table, tokens, 1)), tokens)

    def reorder(self, rows: npt.NDArray[np.intp]) -> None:
        self.rows = self.rows[rows]


EXPECTED_TRANSLATIONS = ((1, 0.6, ((4,), (4,))), (2, 0.0, ((5, 6), (4,))), (2, 1.0, ((5, 6), (5, 6))))
"""Beam, length penalty, and the translations of the two sources of `TableModel`, computed by hand."""
