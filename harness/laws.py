"""The thirteen laws that every model keeps, whatever its architecture and its framework.

A law is a function of a `Subject`: it returns a remark (mostly an empty one) or raises `Broken`. `check` runs them
against anything that builds a `Seq2SeqModel`, `for_variant` against a variant by name. NumPy only: what framework is
behind the model is the model's affair.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields

import numpy as np

from harness.decoding import translate
from harness.expectations import WORKED_BY_HAND, Broken, Table, close, hold, log_softmax, number, refused, same_bits
from harness.specs import DecodingSpec
from harness.subjects import (
    RANDOM,
    SAVED,
    TRAINED,
    Build,
    Subject,
    evaluation,
    log_probabilities,
    named,
    outcome,
    resumed_in_new_process,
    walk,
)
from impls import weights
from impls.contract import EOS, PAD, SOS, UNK, Batch, Ids, Numbers, Recipe, Seq2SeqModel, Totals, Training

TIE = 1e-4
DROPPED = 0.1


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
    hold(isinstance(model, Seq2SeqModel), f"{type(model).__name__} lacks a member of Seq2SeqModel")
    logits = _evaluation_shapes(subject, model, batch)
    _weight_shapes(subject, model)
    logs, real = log_softmax(logits), batch.target_out != PAD
    nats = np.where(real, -np.take_along_axis(logs, batch.target_out[..., None], -1)[..., 0], 0)
    close("token_nats against -log_softmax(logits)", model.token_nats(batch), nats, TIE)
    for _ in range(2):
        model.train_step(batch, 0.0)
    totals = model.take_totals()
    smoothing = training.label_smoothing
    objective = (1 - smoothing) * nats.sum() - smoothing * logs[real].mean(-1).sum()
    hold(totals.tokens == 2 * batch.tokens, f"totals.tokens is {totals.tokens}, not {2 * batch.tokens}")
    hold(totals.updates == 2, f"totals.updates is {totals.updates}, not 2")
    hold(totals.finite is True, f"totals.finite is {totals.finite!r}, not True")
    hold(0 < totals.largest_gradient_norm < np.inf, f"largest_gradient_norm is {totals.largest_gradient_norm}")
    # An outsider's builder may keep a dropout of its own, which moves the sums of training a little.
    least = TIE if getattr(model.recipe, "dropout", None) == 0 else DROPPED
    for name, found, expected in (
        ("nats", totals.nats, nats.sum()),
        ("objective_nats", totals.objective_nats, objective),
    ):
        hold(abs(found - 2 * expected) <= least * abs(2 * expected), f"totals.{name} is {found}, not {2 * expected}")
    empty = model.take_totals()
    sums = (empty.objective_nats, empty.nats, empty.tokens, empty.updates, empty.largest_gradient_norm)
    hold(not any(sums), f"take_totals does not reset: {empty}")
    return ""


def determinism(subject: Subject) -> str:
    """2: evaluation twice gives the same bits, and leaves no trace in the training state."""
    model, batch = subject.shaken(training=RANDOM), subject.batch()
    model.train_step(batch, 1e-3)
    before = model.training_state()
    first, second = evaluation(subject, model, batch), evaluation(subject, model, batch)
    same_bits("evaluated twice", second, first)
    same_bits("training state after evaluation", model.training_state(), before)
    return ""


def causality(subject: Subject) -> str:
    """3: changing target_in after t leaves the logits up to t."""
    model, batch = subject.shaken(), subject.batch()
    logits = model.logits(batch.source, batch.target_in)
    for position in range(batch.target_in.shape[1] - 1):
        changed = batch.target_in.copy()
        changed[:, position + 1 :] = np.where(changed[:, position + 1 :] == 5, 6, 5)
        found = model.logits(batch.source, changed)[:, : position + 1]
        close(f"logits up to {position} after a change behind it", found, logits[:, : position + 1])
    return ""


def padding(subject: Subject) -> str:
    """4: more columns, or rows, of padding change nothing at real positions, and do not poison the sums."""
    model, batch = subject.shaken(), subject.batch()
    source_columns, target_columns = batch.source.shape[1], batch.target_in.shape[1]
    real, expected = batch.target_in != PAD, evaluation(subject, model, batch)
    for more_source, more_target in ((2, 0), (0, 2), (2, 2)):
        wide = Batch(
            _widened(batch.source, more_source),
            _widened(batch.target_in, more_target),
            _widened(batch.target_out, more_target),
        )
        found = evaluation(subject, model, wide)
        where = f"with {more_source} more source and {more_target} more target columns of padding"
        for name in ("logits", "token_nats", "steps"):
            close(f"{name} {where}", found[name][:, :target_columns][real], expected[name][real])
        attention = found["cross_attention"][:, :, :, :target_columns]
        hold(not attention[..., source_columns:].any(), f"cross_attention {where} is not 0 there")
        seen = np.moveaxis(attention[..., :source_columns], 3, 1)[real]
        close(f"cross_attention {where}", seen, np.moveaxis(expected["cross_attention"], 3, 1)[real])
    _empty_rows(subject, batch)
    return ""


def independence(subject: Subject) -> str:
    """5: a sentence's batch-mates do not matter."""
    model, batch = subject.shaken(), subject.batch()
    expected = evaluation(subject, model, batch)
    for rows in ([0], [1], [2], [4, 3, 2, 1, 0], [3, 0]):
        found = evaluation(subject, model, _rows(batch, rows))
        for name, values in found.items():
            close(f"{name} of sentences {rows} without the others", values, expected[name][rows])
    return ""


def caching(subject: Subject) -> str:
    """6: each cached step gives the log-probabilities of that column of the logits."""
    model, batch = subject.shaken(), subject.batch()
    real, found = batch.target_in != PAD, walk(subject, model.begin_decoding(batch.source), batch.target_in)
    expected = log_softmax(model.logits(batch.source, batch.target_in))
    for position in range(real.shape[1]):
        rows = real[:, position]
        close(f"step {position} against logits[:, {position}]", found[rows, position], expected[rows, position])
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
            found = log_probabilities(subject, decoded, fed[:, position])
            fresh = walk(subject, model.begin_decoding(batch.source[rows]), fed[:, : position + 1])
            close(f"step {position} after select {selections}", found, fresh[:, -1])
    return ""


def round_trip(subject: Subject) -> str:
    """8: weights survive the round trip, are copies, and misfits are refused by name."""
    model, other, batch = subject.shaken(), subject.model(seed=1), subject.batch()
    model.train_step(batch, 1e-3)
    carried = {name: value.copy() for name, value in model.weights().items()}
    other.set_weights(model.weights())
    same_bits("weights after the round trip", other.weights(), carried)
    same_bits("after the round trip", evaluation(subject, other, batch), evaluation(subject, model, batch))
    for value in model.weights().values():
        value += 1
    same_bits("weights after the caller changed what it was given", model.weights(), carried)
    name = next(iter(carried))
    refused(model, {one: value for one, value in carried.items() if one != name}, "missing", name)
    refused(model, {**carried, "no.such.weight": np.zeros(1, np.float32)}, "unexpected", "no.such.weight")
    refused(model, {**carried, name: carried[name][:-1]}, "misshaped", name)
    same_bits("weights after a refusal", model.weights(), carried)
    return ""


def standstill(subject: Subject) -> str:
    """9: updates at rate 0 change no weight."""
    model = subject.shaken(training=RANDOM)
    before = model.weights()
    for seed in range(3):
        model.train_step(subject.batch(seed), 0.0)
    same_bits("weights after updates at rate 0", model.weights(), before)
    return ""


def learning(subject: Subject) -> str:
    """10: forty updates on one batch halve the loss."""
    model, batch = subject.shaken(dropout=0.0), subject.batch()
    before = float(model.token_nats(batch).sum())
    for _ in range(40):
        model.train_step(batch, 1e-3)
    after = float(model.token_nats(batch).sum())
    hold(after <= before / 2, f"from {before / batch.tokens:.3f} to {after / batch.tokens:.3f} nats per word")
    return ""


def reproducibility(subject: Subject) -> str:
    """11: the same seed gives the same bits; another seed does not."""
    models = [subject.model(training=RANDOM, seed=seed) for seed in (0, 0, 1)]
    starts = [model.weights() for model in models]
    first, again, other = (subject.trained(model, range(3)).weights() for model in models)
    same_bits("initial weights of the same seed", starts[1], starts[0])
    same_bits("weights of the same seed after three updates", again, first)
    alike = [name for name, value in other.items() if np.array_equal(value, first[name])]
    hold(not alike, f"two seeds give the same {', '.join(alike)}")
    return ""


def search(subject: Subject) -> str:
    """12: beam 1 is greedy, and the beam on a table of probabilities is what was worked out by hand."""
    model, batch = subject.shaken(dropout=0.0), subject.batch()
    for _ in range(40):
        model.train_step(batch, 5e-3)  # so that translations differ, and end
    sources = [row[row != PAD] for row in batch.source[::-1]]
    found = translate(model, sources, DecodingSpec(beam=1, max_tokens=8, batch_size=2))
    for source, translation in zip(sources, found.translations, strict=True):
        expected, tied = _greedy(model, source, 8)
        there = translation.tokens[: len(expected)] if tied else translation.tokens
        hold(there == expected, f"beam 1 gives {translation.tokens}, greedy {expected}")
    for beam, length_penalty, by_hand in WORKED_BY_HAND:
        spec = DecodingSpec(beam=beam, length_penalty=length_penalty, max_tokens=6)
        table = translate(Table(), [np.array([SOS, one, EOS], np.int32) for one in (UNK, 4)], spec)
        words = tuple(translation.tokens for translation in table.translations)
        hold(words == by_hand, f"beam {beam} on the table, length penalty {length_penalty}: {words}, not {by_hand}")
    return f"{found.ties} ties" if found.ties else ""


def resumption(subject: Subject) -> str:
    """13: some updates, saved, loaded in a new process, and some more are all of them straight: weights and totals."""
    straight = outcome(subject.trained(subject.model(training=RANDOM), range(TRAINED)))
    saved = subject.trained(subject.model(training=RANDOM), range(SAVED)).training_state()
    other = subject.model(training=RANDOM)
    other.set_training_state(saved)
    same_bits("training state after the round trip", other.training_state(), saved)
    if subject.describe is None:
        resumed, remark = subject.resumed(saved), "resumed in this process"
    else:
        resumed, remark = resumed_in_new_process(subject.describe, saved), ""
    same_bits("after resuming", resumed, straight)
    return remark


@dataclass(frozen=True)
class Law:
    """One line of the table of laws."""

    number: int
    name: str
    holds: Callable[[Subject], str]


_IN_ORDER = (shapes, determinism, causality, padding, independence, caching, selection, round_trip, standstill)
LAWS = tuple(
    Law(number, holds.__name__.replace("_", " "), holds)
    for number, holds in enumerate((*_IN_ORDER, learning, reproducibility, search, resumption), start=1)
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


def for_variant(
    variant: str, *, framework: str = "torch", device: str = "cpu", laws: Collection[int] | None = None
) -> Iterator[LawResult]:
    """Test a built-in variant, or an outsider's "package.module:NAME", at small sizes where it has a recipe.

    Raises: ValueError where there is no such variant, or it is neither a recipe nor a builder.
    """
    subject = named(variant, framework=framework, device=device)
    return check(
        subject.build,
        source_words=subject.source_words,
        target_words=subject.target_words,
        max_length=subject.max_length,
        laws=laws,
        describe=subject.describe,
    )


# What the laws are written in -----------------------------------------------------------------------------------------


def _widened(ids: Ids, columns: int) -> Ids:
    return np.pad(ids, ((0, 0), (0, columns)), constant_values=PAD)


def _rows(batch: Batch, rows: list[int]) -> Batch:
    return Batch(batch.source[rows], batch.target_in[rows], batch.target_out[rows])


def _evaluation_shapes(subject: Subject, model: Seq2SeqModel, batch: Batch) -> Numbers:
    """Hold that what evaluation gives has the shapes and types of the contract; return the logits."""
    (sentences, source_length), (_, target_length) = batch.source.shape, batch.target_in.shape
    logits = model.logits(batch.source, batch.target_in)
    number("logits", logits, (sentences, target_length, subject.target_words))
    number("token_nats", model.token_nats(batch), (sentences, target_length))
    attention = model.cross_attention(batch.source, batch.target_in)
    hold(attention.ndim == 5, f"cross_attention has shape {attention.shape}, not [B,layers,H,T,S]")
    layers: int = getattr(model.recipe, "layers", None) or attention.shape[1]
    heads: int = getattr(model.recipe, "heads", None) or attention.shape[2]
    number("cross_attention", attention, (sentences, layers, heads, target_length, source_length))
    hidden = np.broadcast_to((batch.source == PAD)[:, None, None, None], attention.shape)
    hold(not attention[hidden].any(), "cross_attention is not 0 at padding")
    sums = np.moveaxis(attention.sum(-1), 3, 1)[batch.target_in != PAD]
    close("rows of cross_attention summed", sums, np.ones_like(sums))
    best = model.begin_decoding(batch.source).step(batch.target_in[:, 0], best=3)
    number("log_probabilities", best.log_probabilities, (sentences, 3))
    number("candidates' tokens", best.tokens, (sentences, 3), np.int32)
    everything = model.begin_decoding(batch.source).step(batch.target_in[:, 0], best=subject.target_words)
    hold(bool((np.diff(everything.log_probabilities) <= 0).all()), "candidates do not come best first")
    close("the best 3 of all", everything.log_probabilities[:, :3], best.log_probabilities)
    longest = np.full((1, subject.max_length), EOS, np.int32)
    number("logits at max_length", model.logits(longest, longest), (1, subject.max_length, subject.target_words))
    return logits


def _weight_shapes(subject: Subject, model: Seq2SeqModel) -> None:
    """Hold that weights and training state have the contract's names, and the recipe's shapes where it is ours."""
    found = model.weights()
    expected = {name: value.shape for name, value in found.items()}
    if isinstance(model.recipe, Recipe):
        expected = weights.shapes(model.recipe, subject.source_words, subject.target_words)
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


def _empty_rows(subject: Subject, batch: Batch) -> None:
    """Hold that sentences of nothing but padding leave the sums, and the weights after an update, as they should be."""
    model, nothing = subject.shaken(), Batch(*(np.full_like(ids, PAD) for ids in vars(batch).values()))
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


def _greedy(model: Seq2SeqModel, source: Ids, most: int) -> tuple[tuple[int, ...], bool]:
    """Return the most probable next words one by one, without `<eos>`, and whether a tie ended the search."""
    fed: list[int] = [SOS]
    while len(fed) <= most:
        logits = model.logits(source[None], np.array([fed], np.int32))[0, -1]
        logits[[UNK, PAD, SOS]] = -np.inf
        second, first = np.argsort(logits)[-2:]
        if logits[first] - logits[second] < TIE:
            return tuple(fed[1:]), True
        if first == EOS:
            break
        fed.append(int(first))
    return tuple(fed[1:]), False
