"""The thirteen laws that every model keeps, whatever its architecture and its framework.

A law is a function of a `Subject`: it returns a remark (mostly an empty one) or raises `Broken`. `check` runs them
against anything that builds a `Seq2SeqModel`, `for_variant` against a variant by name. NumPy only: what framework is
behind the model is the model's affair.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness import decoding
from harness.specs import DecodingSpec
from harness.subjects import RANDOM, SAVED, TRAINED, Build, Subject, named, padded, resumed_in_new_process
from impls import weights
from impls.contract import EOS, PAD, SOS, Arrays, Batch, Candidates, Decoding, Ids, Recipe, Seq2SeqModel, Training

TOLERANCE = 1e-5
TIE = 1e-4


class Broken(Exception):
    """A law does not hold; the message says where and by how much."""


@dataclass(frozen=True)
class LawResult:
    """What came of one law. `detail` is the reason of a failure, or a remark."""

    number: int
    name: str
    passed: bool
    detail: str = ""

    def __str__(self) -> str:
        remark = f" ({self.detail})" if self.detail else ""
        return f"law {self.number} {self.name} … " + (f"ok{remark}" if self.passed else f"FAILED {self.detail}")


# The laws -------------------------------------------------------------------------------------------------------------


def shapes(subject: Subject) -> str:
    """1: shapes, types, counts; the members agree with one another; all numbers are finite."""
    training = Training(label_smoothing=0.1)
    model, batch = subject.shaken(training=training, dropout=0.0), subject.batch()
    _hold(isinstance(model, Seq2SeqModel), f"{type(model).__name__} lacks a member of Seq2SeqModel")
    logits = _evaluation_shapes(subject, model, batch)
    _weight_shapes(subject, model)
    logs, real = _log_softmax(logits), batch.target_out != PAD
    nats = np.where(real, -np.take_along_axis(logs, batch.target_out[..., None], -1)[..., 0], 0)
    _close("token_nats against -log_softmax(logits)", model.token_nats(batch), nats, TIE)
    for _ in range(2):
        model.train_step(batch, 0.0)
    totals = model.take_totals()
    smoothing = training.label_smoothing
    objective = (1 - smoothing) * nats.sum() - smoothing * logs[real].mean(-1).sum()
    _hold(totals.tokens == 2 * batch.tokens, f"totals.tokens is {totals.tokens}, not {2 * batch.tokens}")
    _hold(totals.updates == 2, f"totals.updates is {totals.updates}, not 2")
    _hold(totals.finite is True, f"totals.finite is {totals.finite!r}, not True")
    _hold(0 < totals.largest_gradient_norm < np.inf, f"largest_gradient_norm is {totals.largest_gradient_norm}")
    for name, found, expected in (
        ("nats", totals.nats, nats.sum()),
        ("objective_nats", totals.objective_nats, objective),
    ):
        _hold(abs(found - 2 * expected) <= TIE * abs(2 * expected), f"totals.{name} is {found}, not {2 * expected}")
    empty = model.take_totals()
    sums = (empty.objective_nats, empty.nats, empty.tokens, empty.updates, empty.largest_gradient_norm)
    _hold(not any(sums), f"take_totals does not reset: {empty}")
    return ""


def determinism(subject: Subject) -> str:
    """2: evaluation twice gives the same bits, and leaves no trace in the training state."""
    model, batch = subject.shaken(training=RANDOM), subject.batch()
    model.train_step(batch, 1e-3)
    before = model.training_state()
    first, second = _evaluation(subject, model, batch), _evaluation(subject, model, batch)
    _same_bits("evaluated twice", second, first)
    _same_bits("training state after evaluation", model.training_state(), before)
    return ""


def causality(subject: Subject) -> str:
    """3: changing target_in after t leaves the logits up to t."""
    model, batch = subject.shaken(), subject.batch()
    logits = model.logits(batch.source, batch.target_in)
    for position in range(batch.target_in.shape[1] - 1):
        changed = batch.target_in.copy()
        changed[:, position + 1 :] = np.where(changed[:, position + 1 :] == 5, 6, 5)
        found = model.logits(batch.source, changed)[:, : position + 1]
        _close(f"logits up to {position} after a change behind it", found, logits[:, : position + 1])
    return ""


def padding(subject: Subject) -> str:
    """4: more columns, or rows, of padding change nothing at real positions, and do not poison the sums."""
    model, batch = subject.shaken(), subject.batch()
    source_columns, target_columns = batch.source.shape[1], batch.target_in.shape[1]
    real, expected = batch.target_in != PAD, _evaluation(subject, model, batch)
    for more_source, more_target in ((2, 0), (0, 2), (2, 2)):
        wide = Batch(
            _widened(batch.source, more_source),
            _widened(batch.target_in, more_target),
            _widened(batch.target_out, more_target),
        )
        found = _evaluation(subject, model, wide)
        where = f"with {more_source} more source and {more_target} more target columns of padding"
        for name in ("logits", "token_nats", "steps"):
            _close(f"{name} {where}", found[name][:, :target_columns][real], expected[name][real])
        attention = found["cross_attention"][:, :, :, :target_columns]
        _hold(not attention[..., source_columns:].any(), f"cross_attention {where} is not 0 there")
        seen = np.moveaxis(attention[..., :source_columns], 3, 1)[real]
        _close(f"cross_attention {where}", seen, np.moveaxis(expected["cross_attention"], 3, 1)[real])
    _empty_rows(subject, batch)
    return ""


def independence(subject: Subject) -> str:
    """5: a sentence's batch-mates do not matter."""
    model, batch = subject.shaken(), subject.batch()
    expected = _evaluation(subject, model, batch)
    for rows in ([0], [1], [2], [4, 3, 2, 1, 0], [3, 0]):
        found = _evaluation(subject, model, _rows(batch, rows))
        for name, values in found.items():
            _close(f"{name} of sentences {rows} without the others", values, expected[name][rows])
    return ""


def caching(subject: Subject) -> str:
    """6: each cached step gives the log-probabilities of that column of the logits."""
    model, batch = subject.shaken(), subject.batch()
    real, found = batch.target_in != PAD, _walk(subject, model.begin_decoding(batch.source), batch.target_in)
    expected = _log_softmax(model.logits(batch.source, batch.target_in))
    for position in range(real.shape[1]):
        rows = real[:, position]
        _close(f"step {position} against logits[:, {position}]", found[rows, position], expected[rows, position])
    return ""


def selection(subject: Subject) -> str:
    """7: `select` equals starting from those rows: repeated, dropped or reordered, at the start and in the middle."""
    model, batch = subject.shaken(), subject.batch()
    for selections in ({0: [4, 0, 0, 2]}, {2: [1, 1, 0, 4]}, {1: [3, 0, 2, 0, 1, 4], 3: [5, 1, 1], 4: [2, 0]}):
        decoded, rows = model.begin_decoding(batch.source), np.arange(len(batch.source))
        fed, found = batch.target_in, np.empty(0)
        for position in range(5):
            if position in selections:
                decoded.select(np.array(selections[position], np.intp))
                rows, fed = rows[selections[position]], fed[selections[position]]
            found = _log_probabilities(subject, decoded, fed[:, position])
            fresh = _walk(subject, model.begin_decoding(batch.source[rows]), fed[:, : position + 1])
            _close(f"step {position} after select {selections}", found, fresh[:, -1])
    return ""


def round_trip(subject: Subject) -> str:
    """8: weights survive the round trip, are copies, and misfits are refused by name."""
    model, other, batch = subject.shaken(), subject.model(seed=1), subject.batch()
    model.train_step(batch, 1e-3)
    carried = model.weights()
    other.set_weights(model.weights())
    _same_bits("weights after the round trip", other.weights(), carried)
    _same_bits("after the round trip", _evaluation(subject, other, batch), _evaluation(subject, model, batch))
    for value in model.weights().values():
        value += 1
    _same_bits("weights after the caller changed what it was given", model.weights(), carried)
    name = next(iter(carried))
    _refused(model, {one: value for one, value in carried.items() if one != name}, "missing", name)
    _refused(model, {**carried, "no.such.weight": np.zeros(1, np.float32)}, "unexpected", "no.such.weight")
    _refused(model, {**carried, name: carried[name][:-1]}, "misshaped", name)
    _same_bits("weights after a refusal", model.weights(), carried)
    return ""


def standstill(subject: Subject) -> str:
    """9: updates at rate 0 change no weight."""
    model = subject.shaken(training=RANDOM)
    before = model.weights()
    for seed in range(3):
        model.train_step(subject.batch(seed), 0.0)
    _same_bits("weights after updates at rate 0", model.weights(), before)
    return ""


def learning(subject: Subject) -> str:
    """10: forty updates on one batch halve the loss."""
    model, batch = subject.shaken(dropout=0.0), subject.batch()
    before = float(model.token_nats(batch).sum())
    for _ in range(40):
        model.train_step(batch, 1e-3)
    after = float(model.token_nats(batch).sum())
    _hold(after <= before / 2, f"from {before / batch.tokens:.3f} to {after / batch.tokens:.3f} nats per word")
    return ""


def reproducibility(subject: Subject) -> str:
    """11: the same seed gives the same bits; another seed does not."""
    models = [subject.model(training=RANDOM, seed=seed) for seed in (0, 0, 1)]
    starts = [model.weights() for model in models]
    first, again, other = (subject.trained(model, range(3)).weights() for model in models)
    _same_bits("initial weights of the same seed", starts[1], starts[0])
    _same_bits("weights of the same seed after three updates", again, first)
    alike = [name for name, value in other.items() if np.array_equal(value, first[name])]
    _hold(not alike, f"two seeds give the same {', '.join(alike)}")
    return ""


def search(subject: Subject) -> str:
    """12: beam 1 is greedy, and the beam on a table of probabilities is what was worked out by hand."""
    return ""


def resumption(subject: Subject) -> str:
    """13: some updates, saved, loaded in a new process, and some more are all of them straight."""
    straight = subject.trained(subject.model(training=RANDOM), range(TRAINED)).weights()
    saved = subject.trained(subject.model(training=RANDOM), range(SAVED)).training_state()
    if subject.describe is None:
        resumed, remark = subject.resumed(saved), "resumed in this process"
    else:
        resumed, remark = resumed_in_new_process(subject.describe, saved), ""
    _same_bits("weights after resuming", resumed, straight)
    return remark


@dataclass(frozen=True)
class Law:
    """One line of the table of laws."""

    number: int
    name: str
    holds: Callable[[Subject], str]


LAWS = tuple(
    Law(number, holds.__name__.replace("_", " "), holds)
    for number, holds in enumerate(
        (
            shapes,
            determinism,
            causality,
            padding,
            independence,
            caching,
            selection,
            round_trip,
            standstill,
            learning,
            reproducibility,
            search,
            resumption,
        ),
        start=1,
    )
)


def check(
    build: Build,
    *,
    source_words: int = 37,
    target_words: int = 41,
    max_length: int = 24,
    laws: Collection[int] | None = None,
    describe: str | None = None,
) -> Iterator[LawResult]:
    """Test models against the laws numbered `laws` (None: all), one result at a time.

    `describe` is what a new process rebuilds the model from, as `for_variant` writes it; without it law 13 resumes in
    this process and says so. A law that raises is broken, with the exception's first line as the detail.
    """
    subject = Subject(build, source_words, target_words, max_length, describe)
    for law in LAWS:
        if laws is not None and law.number not in laws:
            continue
        try:
            result = LawResult(law.number, law.name, True, law.holds(subject))
        except Broken as broken:
            result = LawResult(law.number, law.name, False, str(broken))
        except Exception as error:  # whatever a foreign model raises, the other laws are still worth knowing
            first_line = (str(error).splitlines() or [""])[0]
            result = LawResult(law.number, law.name, False, f"{type(error).__name__}: {first_line}")
        yield result


# What the laws are written in -----------------------------------------------------------------------------------------


def _hold(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Broken(otherwise)


def _close(what: str, found: npt.NDArray[Any], expected: npt.NDArray[Any], tolerance: float = TOLERANCE) -> None:
    _hold(found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}")
    difference = float(np.abs(found - expected).max(initial=0.0))
    _hold(difference <= tolerance, f"{what}: off by {difference:.2g}, allowed is {tolerance:g}")


def _same_bits(what: str, found: Arrays, expected: Arrays) -> None:
    _hold(
        found.keys() == expected.keys(),
        f"{what}: not the same names: {', '.join(sorted(found.keys() ^ expected.keys()))}",
    )
    for name, value in expected.items():
        same = found[name].dtype == value.dtype and found[name].shape == value.shape
        _hold(same and found[name].tobytes() == value.tobytes(), f"{what}: {name} has other bits")


def _refused(model: Seq2SeqModel, misfit: Arrays, what: str, name: str) -> None:
    """Hold that set_weights raises a ValueError that says what is wrong with which tensor."""
    try:
        model.set_weights(misfit)
    except ValueError as error:
        _hold(name in str(error), f"the ValueError for a weight that is {what} does not name {name}: {error}")
    else:
        raise Broken(f"set_weights accepts a weight that is {what}: {name}")


def _widened(ids: Ids, columns: int) -> Ids:
    return np.pad(ids, ((0, 0), (0, columns)), constant_values=PAD)


def _rows(batch: Batch, rows: list[int]) -> Batch:
    return Batch(batch.source[rows], batch.target_in[rows], batch.target_out[rows])


def _log_softmax(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


def _log_probabilities(subject: Subject, decoded: Decoding, last: Ids) -> npt.NDArray[np.float64]:
    """Advance one step and return the log-probabilities [B,V] in the order of the vocabulary."""
    candidates = decoded.step(last, best=subject.target_words)
    table = np.full((len(last), subject.target_words), np.nan)
    np.put_along_axis(table, candidates.tokens, candidates.log_probabilities, -1)
    return table


def _walk(subject: Subject, decoded: Decoding, fed: Ids) -> npt.NDArray[np.float64]:
    """Return the log-probabilities [B,T,V] of a decoding that is fed these words."""
    return np.stack([_log_probabilities(subject, decoded, last) for last in fed.T], 1)


def _evaluation(subject: Subject, model: Seq2SeqModel, batch: Batch) -> Arrays:
    """Return all that a model computes for a batch in evaluation mode."""
    return {
        "logits": model.logits(batch.source, batch.target_in),
        "token_nats": model.token_nats(batch),
        "cross_attention": model.cross_attention(batch.source, batch.target_in),
        "steps": _walk(subject, model.begin_decoding(batch.source), batch.target_in),
    }
