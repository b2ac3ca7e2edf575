"""Laws 1 to 7 except 3: what a model computes in evaluation mode, on a small batch and on one of realistic size."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import (
    LawViolated,
    assert_array,
    assert_close,
    assert_near,
    assert_same_bits,
    log_softmax,
    objective_nats,
    require,
    token_nats,
)
from harness.conformance.models_under_test import (
    RANDOM,
    ModelUnderTest,
    Probe,
    decode_stepwise,
    evaluation,
    log_probabilities,
    mapped,
)
from impls import weights
from impls.contract import (
    EOS,
    PAD,
    Arrays,
    Batch,
    Ids,
    Numbers,
    Recipe,
    Seq2SeqModel,
    Totals,
    Training,
)

NATS = 1e-4
"""Tolerance between token_nats and the negative log-softmax of the logits."""

SUMS = 1e-5
"""Relative tolerance between summed losses of training without dropout and of evaluation."""


def shapes(subject: ModelUnderTest) -> str:
    """1: shapes, types and counts are right, the methods agree with one another, and all numbers are finite."""
    training = Training(label_smoothing=0.2)  # law 14 has 0.1, so a fixed one breaks either
    model = subject.perturbed(training=training, dropout=0.0)
    require(isinstance(model, Seq2SeqModel), f"{type(model).__name__} lacks a member of Seq2SeqModel")
    _weight_shapes(subject, model)
    for probe in subject.probes():
        logits = _evaluation_shapes(subject, model, probe)
        nats = token_nats(logits, probe.batch.target_out)
        model_nats = model.token_nats(probe.batch)
        assert_close(f"token_nats against -log_softmax(logits) of {probe.name}", model_nats, nats, NATS)
        for _ in range(2):
            model.train_step(probe.batch, 0.0)
        objective = objective_nats(logits, probe.batch.target_out, training.label_smoothing)
        _sums(subject, probe, model.take_totals(), float(nats.sum()), objective)
        empty = model.take_totals()
        sums = (empty.objective_nats, empty.nats, empty.tokens, empty.updates, empty.largest_gradient_norm)
        require(not any(sums), f"take_totals does not reset: {empty}")
    return ""


def determinism(subject: ModelUnderTest) -> str:
    """2: evaluating twice, with another batch between, gives the same bits and does not change the training state."""
    model = subject.perturbed(training=RANDOM)
    for probe in subject.probes():
        model.train_step(probe.batch, 1e-3)
        before = model.training_state()
        first, other = evaluation(subject, model, probe.batch), mapped(probe.batch, lambda ids: ids[::-1])
        model.logits(other.source, other.target_in)
        assert_same_bits(f"{probe.name}, evaluated twice", evaluation(subject, model, probe.batch), first)
        assert_same_bits("training state after evaluation", model.training_state(), before)
    return ""


def padding(subject: ModelUnderTest) -> str:
    """4: additional columns or rows of padding change nothing at real positions and do not affect the sums."""
    model, (small, real) = subject.perturbed(), subject.probes()
    expected = evaluation(subject, model, small.batch)
    for source, target in ((2, 0), (0, 2), (2, 2)):
        targets = [_widened(ids, target) for ids in (small.batch.target_in, small.batch.target_out)]
        wide = evaluation(subject, model, Batch(_widened(small.batch.source, source), *targets))
        where = f"with {source} more source and {target} more target columns of padding"
        _same_but_padding(where, small.batch, expected, wide)
    padded_results = evaluation(subject, model, real.batch)
    for ids in (real.batch.source, real.batch.target_in):
        rows = np.argsort((ids != PAD).sum(1), kind="stable")[: len(ids) // 2]
        narrow = trimmed(rows_of(real.batch, rows))
        size = f"{narrow.source.shape[1]} and {narrow.target_in.shape[1]} ids"
        where = f"of {len(rows)} sentences of up to {size} among {real.name}"
        wide = {name: values[rows] for name, values in padded_results.items()}
        _same_but_padding(where, narrow, evaluation(subject, model, narrow), wide)
    try:
        _empty_rows(subject, small.batch)
    except (LawViolated, MemoryError):
        raise
    except Exception as error:
        raise LawViolated(f"the model fails on sentences of padding alone: {type(error).__name__}: {error}") from error
    return ""


def independence(subject: ModelUnderTest) -> str:
    """5: results do not depend on the other sentences of the batch."""
    model, (small, real) = subject.perturbed(), subject.probes()
    count = len(real.batch.source)
    few = [[0], [1], [2], [4, 3, 2, 1, 0], [3, 0]]
    many = [[0], [count - 1], list(range(0, count, 2)), list(range(count - 1, -1, -1))]
    for probe, selections in ((small, few), (real, many)):
        expected = evaluation(subject, model, probe.batch)
        for rows in selections:
            subset = evaluation(subject, model, rows_of(probe.batch, np.array(rows)))
            for name, values in subset.items():
                where = f"sentences {rows}" if len(rows) < 6 else f"{len(rows)} sentences"
                assert_close(f"{name} of {where} of {probe.name} without the others", values, expected[name][rows])
    return ""


def caching(subject: ModelUnderTest) -> str:
    """6: each step of incremental decoding gives the log-probabilities of that column of the logits."""
    model = subject.perturbed()
    for name, batch in subject.probes():
        real = batch.target_in != PAD
        stepwise = decode_stepwise(subject, model.begin_decoding(batch.source), batch.target_in)
        expected = log_softmax(model.logits(batch.source, batch.target_in))
        for position in range(real.shape[1]):
            rows = real[:, position]
            step = f"step {position} against logits[:, {position}] of {name}"
            assert_close(step, stepwise[rows, position], expected[rows, position])
    return ""


def reordering(subject: ModelUnderTest) -> str:
    """7: `reorder` equals starting from those rows, repeated, dropped or reordered, beside another decoding."""
    model, batch = subject.perturbed(), subject.batch()
    for selections in ({0: [4, 0, 0, 2]}, {2: [1, 1, 0, 4]}, {1: [3, 0, 2, 0, 1, 4], 3: [5, 1, 1], 4: [2, 0]}):
        decoded, rows = model.begin_decoding(batch.source), np.arange(len(batch.source))
        target_in = batch.target_in
        for position in range(5):
            if position in selections:
                decoded.reorder(np.array(selections[position], np.intp))
                rows, target_in = rows[selections[position]], target_in[selections[position]]
            model.begin_decoding(batch.source[rows[::-1]]).step(target_in[::-1, 0], best=1)
            stepwise = log_probabilities(subject, decoded, target_in[:, position])
            fresh = decode_stepwise(subject, model.begin_decoding(batch.source[rows]), target_in[:, : position + 1])
            assert_close(f"step {position} after reorder {selections}", stepwise, fresh[:, -1])
    _long_reordering(subject, model)
    return ""


def _evaluation_shapes(subject: ModelUnderTest, model: Seq2SeqModel, probe: Probe) -> Numbers:
    """Require the contract's shapes and types of evaluation results; return the logits."""
    batch = probe.batch
    (sentences, source_length), (_, target_length) = batch.source.shape, batch.target_in.shape
    logits, words = model.logits(batch.source, batch.target_in), subject.target_vocabulary_size
    assert_array("logits", logits, (sentences, target_length, words))
    assert_array("token_nats", model.token_nats(batch), (sentences, target_length))
    attention = model.cross_attention(batch.source, batch.target_in)
    require(attention.ndim == 5, f"cross_attention has shape {attention.shape}, not [B,layers,H,T,S]")
    layers: int = getattr(model.recipe, "layers", None) or attention.shape[1]
    heads: int = getattr(model.recipe, "heads", None) or attention.shape[2]
    assert_array("cross_attention", attention, (sentences, layers, heads, target_length, source_length))
    hidden = np.broadcast_to((batch.source == PAD)[:, None, None, None], attention.shape)
    require(not attention[hidden].any(), f"cross_attention of {probe.name} is not 0 at padding")
    require(
        not attention.size or bool(attention.any()),
        "cross_attention is 0 everywhere: a model without attention returns no layers, [B,0,0,T,S] (with impls.wrap, "
        "decode returns the logits alone)",
    )
    sums = np.moveaxis(attention.sum(-1), 3, 1)[batch.target_in != PAD]
    assert_close(f"rows of cross_attention of {probe.name} summed", sums, np.ones_like(sums))
    best = model.begin_decoding(batch.source).step(batch.target_in[:, 0], best=3)
    assert_array("log_probabilities", best.log_probabilities, (sentences, 3))
    assert_array("candidates' tokens", best.tokens, (sentences, 3), np.int32)
    ranked = model.begin_decoding(batch.source).step(batch.target_in[:, 0], best=words).log_probabilities
    require(bool((np.diff(ranked) <= 0).all()), "candidates are not sorted, best first")
    assert_close("the best 3 of all", ranked[:, :3], best.log_probabilities)
    longest = np.full((1, subject.max_length), EOS, np.int32)
    assert_array("logits at max_length", model.logits(longest, longest), (*longest.shape, words))
    return logits


def _sums(subject: ModelUnderTest, probe: Probe, totals: Totals, nats: float, objective: float) -> None:
    """Require that the totals of two updates at rate 0 agree with evaluation."""
    tokens = 2 * probe.batch.tokens
    require(totals.tokens == tokens, f"totals.tokens of {probe.name}, twice, is {totals.tokens}, not {tokens}")
    require(totals.updates == 2, f"totals.updates is {totals.updates}, not 2")
    require(totals.finite is True, f"totals.finite is {totals.finite!r}, not True")
    require(0 < totals.largest_gradient_norm < np.inf, f"largest_gradient_norm is {totals.largest_gradient_norm}")
    for name, actual, expected in (("nats", totals.nats, nats), ("objective_nats", totals.objective_nats, objective)):
        try:
            assert_near(f"totals.{name} of {probe.name}, twice,", actual, 2 * expected, SUMS * abs(2 * expected))
        except LawViolated as error:
            if not subject.dropout_is_fixed:
                raise
            advice = "if the model drops units in training, give its builder a keyword argument dropout=None"
            raise LawViolated(f"{error}; {advice}, the rate to use instead of its own") from error


def _weight_shapes(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Require the contract's names of weights and training state, and the shapes of the recipe if there is one."""
    tensors, state = model.weights(), model.training_state()
    expected = {name: value.shape for name, value in tensors.items()}
    if isinstance(model.recipe, Recipe):
        expected = weights.shapes(model.recipe, subject.source_vocabulary_size, subject.target_vocabulary_size)
    unlike = sorted(tensors.keys() ^ expected.keys())
    require(not unlike, f"weights are not the canonical ones: {', '.join(unlike)}")
    for name, shape in expected.items():
        assert_array(name, tensors[name], shape)
        for part in ("weights", "first_moment", "second_moment"):
            require(f"{part}/{name}" in state, f"training_state has no {part}/{name}")
            assert_array(f"{part}/{name}", state[f"{part}/{name}"], shape)
    for name in ("updates", *(f"totals/{total.name}" for total in fields(Totals))):
        require(name in state, f"training_state has no {name}")


def _widened(ids: Ids, columns: int) -> Ids:
    return np.pad(ids, ((0, 0), (0, columns)), constant_values=PAD)


def rows_of(batch: Batch, rows: npt.NDArray[np.intp]) -> Batch:
    """Return some sentences of a batch."""
    return mapped(batch, lambda ids: ids[rows])


def trimmed(batch: Batch) -> Batch:
    """Return a batch without columns that are only padding."""
    source, target = (int((ids != PAD).sum(1).max()) for ids in (batch.source, batch.target_in))
    return Batch(batch.source[:, :source], batch.target_in[:, :target], batch.target_out[:, :target])


def _same_but_padding(where: str, narrow: Batch, expected: Arrays, wide: Arrays) -> None:
    """Require that additional padding changes no result at real positions."""
    real, source_columns = narrow.target_in != PAD, narrow.source.shape[1]
    target_columns = real.shape[1]
    for name in ("logits", "token_nats", "steps"):
        assert_close(f"{name} {where}", wide[name][:, :target_columns][real], expected[name][real])
    attention = wide["cross_attention"][:, :, :, :target_columns]
    beyond = np.moveaxis(attention[..., source_columns:], 3, 1)[real]
    require(not beyond.any(), f"cross_attention {where} is not 0 at padding")
    visible_attention = np.moveaxis(attention[..., :source_columns], 3, 1)[real]
    assert_close(f"cross_attention {where}", visible_attention, np.moveaxis(expected["cross_attention"], 3, 1)[real])


def _empty_rows(subject: ModelUnderTest, batch: Batch) -> None:
    """Require that sentences of only padding do not affect the sums or make weights infinite."""
    model, nothing = subject.perturbed(), mapped(batch, lambda ids: np.full_like(ids, PAD))
    mixed = mapped(batch, lambda ids: np.concatenate([ids, np.full_like(ids, PAD)]))
    nats, expected = model.token_nats(mixed), model.token_nats(batch)
    assert_close("token_nats beside rows of padding", nats[: len(expected)], expected)
    require(not nats[len(expected) :].any(), "token_nats of rows of padding is not 0")
    model.train_step(nothing, 1e-3)
    totals = model.take_totals()
    require(totals.tokens == 0, f"totals.tokens of a batch of padding is {totals.tokens}, not 0")
    require(totals.nats == totals.objective_nats == 0, f"a batch of padding leaves {totals}")
    model.train_step(mixed, 1e-3)
    totals = model.take_totals()
    require(totals.finite and np.isfinite(totals.objective_nats), f"rows of padding leave {totals}")
    for name, value in model.weights().items():
        require(bool(np.isfinite(value).all()), f"rows of padding make {name} infinite")


def _long_reordering(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Check law 7 over a whole decoding that repeatedly drops, repeats and reorders rows."""
    name, batch = subject.probes()[1]
    expected = log_softmax(model.logits(batch.source, batch.target_in))
    generator, count = np.random.default_rng(7), len(batch.source)
    decoded, rows = model.begin_decoding(batch.source), np.arange(count)
    every = max(2, batch.target_in.shape[1] // 8)
    for position in range(batch.target_in.shape[1]):
        if position % every == every - 1:
            size = (count // 2, count, count)[position // every % 3]
            same = size == len(rows)
            draw = generator.permutation(size) if same else generator.integers(len(rows), size=size)
            decoded.reorder(draw.astype(np.intp))
            rows = rows[draw]
        stepwise = log_probabilities(subject, decoded, batch.target_in[rows, position])
        real = batch.target_in[rows, position] != PAD
        step = f"step {position} of {name} after reorder every {every} steps"
        assert_close(step, stepwise[real], expected[rows, position][real])
