"""Laws 1 to 7: what a model computes in evaluation mode, on a small batch and on one of realistic size."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from harness.conformance.assertions import (
    TOLERANCE,
    LawViolated,
    close,
    hold,
    log_softmax,
    near,
    number,
    objective_nats,
    same_bits,
    token_nats,
)
from harness.conformance.models_under_test import RANDOM, ModelUnderTest, Probe, evaluation, log_probabilities, walk
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
    TorchReferenceRecipe,
    Totals,
    Training,
    TransformerRecipe,
)
from impls.formulas import sinusoids

NATS = 1e-4
"""How far token_nats may be from the negative log-softmax of the logits."""

SUMS = 1e-5
"""How far, relatively, summed losses of training without dropout may be from those of evaluation."""

ROUNDS = 3
"""Changes of every sentence of a realistic batch, each at another position, so that every position is covered."""

_Places = npt.NDArray[np.intp]


def shapes(subject: ModelUnderTest) -> str:
    """1: shapes, types, counts; the members agree with one another; all numbers are finite."""
    training = Training(label_smoothing=0.1)
    model = subject.perturbed(training=training, dropout=0.0)
    hold(isinstance(model, Seq2SeqModel), f"{type(model).__name__} lacks a member of Seq2SeqModel")
    _weight_shapes(subject, model)
    for probe in subject.probes():
        logits = _evaluation_shapes(subject, model, probe)
        nats = token_nats(logits, probe.batch.target_out)
        found = model.token_nats(probe.batch)
        close(f"token_nats against -log_softmax(logits) of {probe.name}", found, nats, NATS)
        for _ in range(2):
            model.train_step(probe.batch, 0.0)
        objective = objective_nats(logits, probe.batch.target_out, training.label_smoothing)
        _sums(subject, probe, model.take_totals(), float(nats.sum()), objective)
        empty = model.take_totals()
        sums = (empty.objective_nats, empty.nats, empty.tokens, empty.updates, empty.largest_gradient_norm)
        hold(not any(sums), f"take_totals does not reset: {empty}")
    return ""


def determinism(subject: ModelUnderTest) -> str:
    """2: evaluation twice gives the same bits, and leaves no trace in the training state."""
    model = subject.perturbed(training=RANDOM)
    for probe in subject.probes():
        model.train_step(probe.batch, 1e-3)
        before = model.training_state()
        first, second = evaluation(subject, model, probe.batch), evaluation(subject, model, probe.batch)
        same_bits(f"{probe.name}, evaluated twice", second, first)
        same_bits("training state after evaluation", model.training_state(), before)
    return ""


def causality(subject: ModelUnderTest) -> str:
    """3: the logits at t depend on every source word and on target_in up to t, each at its position; no more."""
    model, batch = subject.perturbed(), subject.batch()
    logits = model.logits(batch.source, batch.target_in)
    for position in range(batch.target_in.shape[1] - 1):
        changed = batch.target_in.copy()
        changed[:, position + 1 :] = np.where(changed[:, position + 1 :] == 5, 6, 5)
        found = model.logits(batch.source, changed)[:, : position + 1]
        close(f"logits up to {position} after a change of later words", found, logits[:, : position + 1])
    _real_causality(subject, model)
    _positions(subject)
    return ""


def padding(subject: ModelUnderTest) -> str:
    """4: more columns, or rows, of padding change nothing at real positions, and do not poison the sums."""
    model, (small, real) = subject.perturbed(), subject.probes()
    expected = evaluation(subject, model, small.batch)
    for more_source, more_target in ((2, 0), (0, 2), (2, 2)):
        wide = Batch(
            _widened(small.batch.source, more_source),
            _widened(small.batch.target_in, more_target),
            _widened(small.batch.target_out, more_target),
        )
        where = f"with {more_source} more source and {more_target} more target columns of padding"
        _same_but_padding(where, small.batch, expected, evaluation(subject, model, wide))
    found = evaluation(subject, model, real.batch)
    for ids in (real.batch.source, real.batch.target_in):
        rows = np.argsort((ids != PAD).sum(1), kind="stable")[: len(ids) // 2]
        narrow = trimmed(rows_of(real.batch, rows))
        size = f"{narrow.source.shape[1]} and {narrow.target_in.shape[1]} ids"
        where = f"of {len(rows)} sentences of up to {size} among {real.name}"
        wide_found = {name: values[rows] for name, values in found.items()}
        _same_but_padding(where, narrow, evaluation(subject, model, narrow), wide_found)
    _empty_rows(subject, small.batch)
    return ""


def independence(subject: ModelUnderTest) -> str:
    """5: a sentence's batch-mates do not matter."""
    model, (small, real) = subject.perturbed(), subject.probes()
    count = len(real.batch.source)
    few = [[0], [1], [2], [4, 3, 2, 1, 0], [3, 0]]
    many = [[0], [count - 1], list(range(0, count, 2)), list(range(count - 1, -1, -1))]
    for probe, selections in ((small, few), (real, many)):
        expected = evaluation(subject, model, probe.batch)
        for rows in selections:
            found = evaluation(subject, model, rows_of(probe.batch, np.array(rows)))
            for name, values in found.items():
                where = f"sentences {rows}" if len(rows) < 6 else f"{len(rows)} sentences"
                close(f"{name} of {where} of {probe.name} without the others", values, expected[name][rows])
    return ""


def caching(subject: ModelUnderTest) -> str:
    """6: each cached step gives the log-probabilities of that column of the logits."""
    model = subject.perturbed()
    for name, batch in subject.probes():
        real, found = batch.target_in != PAD, walk(subject, model.begin_decoding(batch.source), batch.target_in)
        expected = log_softmax(model.logits(batch.source, batch.target_in))
        for position in range(real.shape[1]):
            rows = real[:, position]
            what = f"step {position} against logits[:, {position}] of {name}"
            close(what, found[rows, position], expected[rows, position])
    return ""


def selection(subject: ModelUnderTest) -> str:
    """7: `reorder` equals starting from those rows: repeated, dropped or reordered, at the start and in the middle."""
    model, batch = subject.perturbed(), subject.batch()
    for selections in ({0: [4, 0, 0, 2]}, {2: [1, 1, 0, 4]}, {1: [3, 0, 2, 0, 1, 4], 3: [5, 1, 1], 4: [2, 0]}):
        decoded, rows = model.begin_decoding(batch.source), np.arange(len(batch.source))
        fed, found = batch.target_in, np.empty(0)
        for position in range(5):
            if position in selections:
                decoded.reorder(np.array(selections[position], np.intp))
                rows, fed = rows[selections[position]], fed[selections[position]]
            found = log_probabilities(subject, decoded, fed[:, position])
            fresh = walk(subject, model.begin_decoding(batch.source[rows]), fed[:, : position + 1])
            close(f"step {position} after select {selections}", found, fresh[:, -1])
    _long_selection(subject, model)
    return ""


# Law 1 ----------------------------------------------------------------------------------------------------------------


def _evaluation_shapes(subject: ModelUnderTest, model: Seq2SeqModel, probe: Probe) -> Numbers:
    """Hold that the results of evaluation have the shapes and types of the contract; return the logits."""
    batch = probe.batch
    (sentences, source_length), (_, target_length) = batch.source.shape, batch.target_in.shape
    logits = model.logits(batch.source, batch.target_in)
    number("logits", logits, (sentences, target_length, subject.target_vocabulary_size))
    number("token_nats", model.token_nats(batch), (sentences, target_length))
    attention = model.cross_attention(batch.source, batch.target_in)
    hold(attention.ndim == 5, f"cross_attention has shape {attention.shape}, not [B,layers,H,T,S]")
    layers: int = getattr(model.recipe, "layers", None) or attention.shape[1]
    heads: int = getattr(model.recipe, "heads", None) or attention.shape[2]
    number("cross_attention", attention, (sentences, layers, heads, target_length, source_length))
    hidden = np.broadcast_to((batch.source == PAD)[:, None, None, None], attention.shape)
    hold(not attention[hidden].any(), f"cross_attention of {probe.name} is not 0 at padding")
    sums = np.moveaxis(attention.sum(-1), 3, 1)[batch.target_in != PAD]
    close(f"rows of cross_attention of {probe.name} summed", sums, np.ones_like(sums))
    best = model.begin_decoding(batch.source).step(batch.target_in[:, 0], best=3)
    number("log_probabilities", best.log_probabilities, (sentences, 3))
    number("candidates' tokens", best.tokens, (sentences, 3), np.int32)
    everything = model.begin_decoding(batch.source).step(batch.target_in[:, 0], best=subject.target_vocabulary_size)
    hold(bool((np.diff(everything.log_probabilities) <= 0).all()), "candidates do not come best first")
    close("the best 3 of all", everything.log_probabilities[:, :3], best.log_probabilities)
    longest = np.full((1, subject.max_length), EOS, np.int32)
    number(
        "logits at max_length", model.logits(longest, longest), (1, subject.max_length, subject.target_vocabulary_size)
    )
    return logits


def _sums(subject: ModelUnderTest, probe: Probe, totals: Totals, nats: float, objective: float) -> None:
    """Hold that the totals of two updates at rate 0 are those of evaluation."""
    tokens = 2 * probe.batch.tokens
    hold(totals.tokens == tokens, f"totals.tokens of {probe.name}, twice, is {totals.tokens}, not {tokens}")
    hold(totals.updates == 2, f"totals.updates is {totals.updates}, not 2")
    hold(totals.finite is True, f"totals.finite is {totals.finite!r}, not True")
    hold(0 < totals.largest_gradient_norm < np.inf, f"largest_gradient_norm is {totals.largest_gradient_norm}")
    for name, found, expected in (("nats", totals.nats, nats), ("objective_nats", totals.objective_nats, objective)):
        try:
            near(f"totals.{name} of {probe.name}, twice,", found, 2 * expected, SUMS * abs(2 * expected))
        except LawViolated as broken:
            if not subject.dropout_is_fixed:
                raise
            advice = "if the model drops units in training, give its builder a keyword argument dropout=None"
            raise LawViolated(f"{broken}; {advice}, the rate to use instead of its own") from broken


def _weight_shapes(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Hold that weights and training state have the contract's names, and the shapes of a recipe of this package."""
    found = model.weights()
    expected = {name: value.shape for name, value in found.items()}
    if isinstance(model.recipe, Recipe):
        expected = weights.shapes(model.recipe, subject.source_vocabulary_size, subject.target_vocabulary_size)
    unlike = sorted(found.keys() ^ expected.keys())
    hold(not unlike, f"weights are not the canonical ones: {', '.join(unlike)}")
    state = model.training_state()
    for name, shape in expected.items():
        number(name, found[name], shape)
        for part in ("weights", "first_moment", "second_moment"):
            hold(f"{part}/{name}" in state, f"training_state has no {part}/{name}")
            number(f"{part}/{name}", state[f"{part}/{name}"], shape)
    for name in ("updates", *(f"totals/{one.name}" for one in fields(Totals))):
        hold(name in state, f"training_state has no {name}")


# Law 3 ----------------------------------------------------------------------------------------------------------------


def cuts(lengths: npt.NDArray[np.intp], turn: int) -> _Places:
    """Return a position for each sentence, below its length; over the turns, every position for some sentence."""
    order = np.argsort(-lengths, kind="stable")
    slots = np.arange(len(order)) * ROUNDS + turn
    last = lengths.max(initial=1) - 1
    places = np.empty(len(lengths), np.intp)
    # From the last position downwards, the longest sentences first; then any.
    places[order] = np.where(slots <= last, last - slots, slots) % np.maximum(lengths[order], 1)
    return places


def changed(ids: Ids, where: npt.NDArray[np.bool_]) -> Ids:
    """Return ids with other ordinary words at some places."""
    return np.where(where, np.where(ids == 5, 6, 5), ids).astype(np.int32)


def _real_causality(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Hold the law on a batch of realistic size, each sentence changed somewhere else."""
    name, batch = subject.probes()[1]
    real, logits = batch.target_in != PAD, model.logits(batch.source, batch.target_in)
    columns, source_columns = (np.arange(ids.shape[1])[None] for ids in (batch.target_in, batch.source))
    for turn in range(ROUNDS):
        place = cuts(real.sum(1), turn)[:, None]
        found = model.logits(batch.source, changed(batch.target_in, real & (columns > place)))
        before = real & (columns <= place)
        close(f"logits of {name} before a change of later words", found[before], logits[before])
        one = model.logits(batch.source, changed(batch.target_in, columns == place))
        blind = _unmoved(one, logits, columns == place)
        hold(not len(blind), f"logits of {name} do not depend on target_in at position {_first(place, blind)}")
        place = cuts((batch.source != PAD).sum(1), turn)[:, None]
        found = model.logits(changed(batch.source, source_columns == place), batch.target_in)
        blind = _unmoved(found, logits, real)
        hold(not len(blind), f"logits of {name} do not depend on the source word at position {_first(place, blind)}")


def _unmoved(found: Numbers, logits: Numbers, where: npt.NDArray[np.bool_]) -> _Places:
    """Return the sentences in which no logit at these places has moved by more than the tolerance."""
    moved = np.where(where, np.abs(found - logits).max(-1), 0).max(1)
    return np.flatnonzero(moved <= TOLERANCE)


def _first(place: _Places, rows: _Places) -> int:
    return int(place[rows].min(initial=2**31))


def _positions(subject: ModelUnderTest) -> None:
    """Check that words whose embeddings cancel their position vectors look alike to the model at every position."""
    model = subject.perturbed()
    recipe = model.recipe
    if isinstance(recipe, TorchReferenceRecipe):
        recipe = recipe.as_transformer()
    if not isinstance(recipe, TransformerRecipe):
        return
    own, words = model.weights(), min(subject.source_vocabulary_size, subject.target_vocabulary_size)
    length = min(subject.real.longest, words - EOS - 1)
    row = np.arange(EOS + 1, EOS + 1 + length, dtype=np.int32)[None]
    for side in ("source", "target"):
        table = "target.embedding" if recipe.tying == "all" else f"{side}.embedding"
        cancelled = own[table].copy()
        cancelled[row[0]] = cancelled[row[0, 0]] - position_vectors(recipe, own, side, length) / embedding_scale(recipe)
        model.set_weights({**own, table: cancelled})
        if side == "source":
            found, expected = model.logits(row, row[:, :1]), model.logits(row[:, :1], row[:, :1])
        else:
            found = model.logits(row[:, :1], row)
            expected = np.broadcast_to(model.logits(row[:, :1], row[:, :1]), found.shape)
        what = f"logits of {length} {side} words, each of which cancels the vector of its position"
        close(what, found, expected, 10 * TOLERANCE)


def position_vectors(recipe: TransformerRecipe, own: Arrays, side: str, length: int) -> npt.NDArray[np.float32]:
    """Return what a recipe adds to the scaled embeddings at the first positions, [length,D]."""
    if recipe.positions == "learned":
        return own[f"{side}.positions"][:length]
    if recipe.positions == "sinusoidal":
        return sinusoids(length, recipe.width).astype(np.float32)
    return np.zeros((length, recipe.width), np.float32)


def embedding_scale(recipe: TransformerRecipe) -> float:
    """Return what a recipe multiplies embeddings with."""
    return math.sqrt(recipe.width) if recipe.embedding_scale == "sqrt_width" else 1.0


# Laws 4 to 7 ----------------------------------------------------------------------------------------------------------


def _widened(ids: Ids, columns: int) -> Ids:
    return np.pad(ids, ((0, 0), (0, columns)), constant_values=PAD)


def rows_of(batch: Batch, rows: _Places) -> Batch:
    """Return some sentences of a batch."""
    return Batch(batch.source[rows], batch.target_in[rows], batch.target_out[rows])


def trimmed(batch: Batch) -> Batch:
    """Return a batch without the columns that are padding in every sentence."""
    source, target = (int((ids != PAD).sum(1).max()) for ids in (batch.source, batch.target_in))
    return Batch(batch.source[:, :source], batch.target_in[:, :target], batch.target_out[:, :target])


def _same_but_padding(where: str, narrow: Batch, expected: Arrays, found: Arrays) -> None:
    """Hold that the results for a batch with more padding are those without it, at all real positions."""
    real, source_columns = narrow.target_in != PAD, narrow.source.shape[1]
    target_columns = real.shape[1]
    for name in ("logits", "token_nats", "steps"):
        close(f"{name} {where}", found[name][:, :target_columns][real], expected[name][real])
    attention = found["cross_attention"][:, :, :, :target_columns]
    beyond = np.moveaxis(attention[..., source_columns:], 3, 1)[real]
    hold(not beyond.any(), f"cross_attention {where} is not 0 at padding")
    seen = np.moveaxis(attention[..., :source_columns], 3, 1)[real]
    close(f"cross_attention {where}", seen, np.moveaxis(expected["cross_attention"], 3, 1)[real])


def _empty_rows(subject: ModelUnderTest, batch: Batch) -> None:
    """Hold that sentences of nothing but padding leave the sums, and the weights after an update, as they should be."""
    model, nothing = subject.perturbed(), Batch(*(np.full_like(ids, PAD) for ids in vars(batch).values()))
    mixed = Batch(*(np.concatenate([vars(batch)[name], ids]) for name, ids in vars(nothing).items()))
    found, expected = model.token_nats(mixed), model.token_nats(batch)
    close("token_nats beside rows of padding", found[: len(expected)], expected)
    hold(not found[len(expected) :].any(), "token_nats of rows of padding is not 0")
    model.train_step(nothing, 1e-3)
    totals = model.take_totals()
    hold(totals.tokens == 0, f"totals.tokens of a batch of padding is {totals.tokens}, not 0")
    hold(totals.nats == totals.objective_nats == 0, f"a batch of padding leaves {totals}")
    model.train_step(mixed, 1e-3)
    totals = model.take_totals()
    hold(totals.finite and np.isfinite(totals.objective_nats), f"rows of padding leave {totals}")
    for name, value in model.weights().items():
        hold(bool(np.isfinite(value).all()), f"rows of padding make {name} infinite")


def _long_selection(subject: ModelUnderTest, model: Seq2SeqModel) -> None:
    """Hold law 7 over a whole decoding in which rows are dropped, repeated and reordered again and again."""
    name, batch = subject.probes()[1]
    expected = log_softmax(model.logits(batch.source, batch.target_in))
    generator, count = np.random.default_rng(7), len(batch.source)
    decoded, rows = model.begin_decoding(batch.source), np.arange(count)
    every = max(2, batch.target_in.shape[1] // 8)
    for position in range(batch.target_in.shape[1]):
        if position % every == every - 1:
            wanted = (count // 2, count, count)[position // every % 3]
            draw = (
                generator.permutation(len(rows)) if wanted == len(rows) else generator.integers(len(rows), size=wanted)
            )
            decoded.reorder(draw.astype(np.intp))
            rows = rows[draw]
        found = log_probabilities(subject, decoded, batch.target_in[rows, position])
        real = batch.target_in[rows, position] != PAD
        what = f"step {position} of {name} after select every {every} steps"
        close(what, found[real], expected[rows, position][real])
