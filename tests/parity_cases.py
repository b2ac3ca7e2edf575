"""What two implementations of a recipe are compared on, and everything that one of them makes of it, as arrays.

`measured` is called in one process for each framework, and `compare` on what two of them gave. No framework is imported
here: `impls.build` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

import impls
from harness.data.batch_digest import ConsumedBatches
from harness.data.batches import evaluation_batches, training_batches
from harness.data.dataset import Dataset, prepare
from harness.evaluation.search import TIE_NATS, translate
from harness.experiments.specs import DataSpec, DecodingSpec
from harness.experiments.suites import reduced
from harness.training.schedules import learning_rate
from impls import registry
from impls.contract import PAD, Arrays, Batch, GruRecipe, Recipe, Seq2SeqModel, TorchReferenceRecipe, Training

VARIANTS = (
    "learned_positions",
    "sinusoidal_handmade",
    "conv_ffn",
    "paper",
    "tuned",
    "torch_reference",
    "bahdanau_gru",
)
SIZES = ("small", "full")
BEAMS = {"greedy": 1, "beam": 5}
LOGITS, GRADIENTS, LOSSES, WEIGHTS = 1e-5, 1e-4, 1e-3, 5e-4
"""How far two implementations may be apart: logits; gradients relative to the tensor's largest; losses relative, at
every update; weights after all updates, where epsilon is large enough for that.

Where a hidden unit comes to 0 within rounding, ReLU lets its gradient through in one and not in the other: torch
against torch in float64, the weights of `paper` then differ by up to 1.6e-4 after 20 updates, and else by 5e-7.
"""

CALM_RATE = 5e-5
"""The highest learning rate at which 200 losses at full size can be compared one by one.

Training is chaotic at the rates of the recipes: at 5e-4, torch against torch with one weight of learned_positions off
by 2e-7 differs by 6e-7 after 5 updates, 5e-5 after 20, 6e-4 after 40 and up to 7e-3 later, and so does Keras. At 1e-4
all variants stay within 1e-3 but `paper`, which comes to 2e-3 after 198 updates; at 5e-5 it stays within 1e-4.
"""

CALM_NORMS = 50
"""How many gradient norms are compared: they part before the losses do, up to 5e-2 after 200 updates at full size."""

NO_GRADIENT = ".key.bias"
"""The same for every key, so the softmax takes it away, and its gradient is nothing but rounding."""

SHAKE = 0.1


@dataclass(frozen=True, kw_only=True)
class Case:
    """A recipe without dropout, how it is trained, and on what.

    `updates`: how many losses are compared. `taught`: how many more updates, at the rate `taught_rate`, the one makes
    whose weights are then translated with. `longest`: the most words of a translation. `tells_epsilon`: Adam's epsilon
    is far above the rounding of a gradient, so that the weights after all updates can be compared, and where it is
    added shows.
    """

    recipe: Recipe
    training: Training
    data: DataSpec
    updates: int
    taught: int
    taught_rate: float
    sentences: int
    longest: int
    tells_epsilon: bool

    @property
    def corpus(self) -> Dataset:
        return _prepared(self.data)


@lru_cache(maxsize=2)
def _prepared(data: DataSpec) -> Dataset:
    return prepare(data)


def case(variant: str, size: str) -> Case:
    """Return what a variant is compared on: "small" takes seconds, "full" is its own size on Multi30k, and minutes."""
    recipe, training = replace(registry.recipe(variant), dropout=0.0), registry.training(variant)
    shared: dict[str, Any] = {"vocabulary": "joint"} if getattr(recipe, "tying", "none") == "all" else {}
    if size == "full":
        constant: dict[str, Any] = {"schedule": "constant", "peak_rate": CALM_RATE, "warmup_updates": 0}
        training = replace(training, batch_size=128, clip_norm=1.0, **constant)
        data = DataSpec(corpus="multi30k", **shared)
        sizes: dict[str, Any] = {"updates": 200, "taught": 300, "taught_rate": 5e-4, "sentences": 500, "longest": 30}
        return Case(recipe=recipe, training=training, data=data, tells_epsilon=False, **sizes)
    recipe = reduced(recipe, 32)
    if not isinstance(recipe, GruRecipe):
        recipe = replace(recipe, layers=2, heads=4)
    rate: dict[str, Any] = {"warmup_updates": 5 if training.warmup_updates else 0, "peak_rate": 3e-3, "epsilon": 1e-4}
    training = replace(training, batch_size=16, clip_norm=0.4, **rate)
    data = DataSpec(corpus="captions", tokenizer="whitespace", training_pairs=400, **shared)
    sizes = {"updates": 20, "taught": 400, "taught_rate": 1e-3, "sentences": 50, "longest": 15}
    return Case(recipe=recipe, training=training, data=data, tells_epsilon=True, **sizes)


# What one framework makes of it ---------------------------------------------------------------------------------------


def lively(recipe: Recipe, weights: Arrays) -> Arrays:
    """Move every weight from where it starts, so that no fault hides behind a 0, a 1 or a matrix close to 0.

    Like the first weights, a tensor is moved by a generator of its own: models need not have them in one order.
    """
    found = {}
    for name, value in weights.items():
        generator = np.random.default_rng([*name.encode()])
        if value.ndim > 1 and isinstance(recipe, GruRecipe):
            value = value * np.float32(_stretch(name, value.shape[0]))
        shake = SHAKE if value.ndim == 1 else SHAKE / 10
        found[name] = (value + shake * generator.standard_normal(value.shape)).astype(np.float32)
    return found


def _stretch(name: str, rows: int) -> float:
    """Return how much larger a matrix of a GRU is to be than it starts, at a deviation of 0.01."""
    if name.endswith(".embedding"):
        return 50.0
    return (300.0 if name.startswith("attention.") else 100.0) / rows**0.5


def fresh(one: Case, framework: str, training: Training | None = None) -> Seq2SeqModel:
    """Build the model of a case, with the weights that all begin from.

    Keras has no layers like those of torch's own library: the same function as a Transformer of ours stands for them.
    """
    recipe, words = one.recipe, (len(one.corpus.source_words), len(one.corpus.target_words))
    if framework == "keras" and isinstance(recipe, TorchReferenceRecipe):
        recipe = recipe.as_transformer()
    model = impls.build(recipe, *words, training=training or one.training, framework=framework)
    model.set_weights(lively(recipe, model.weights()))
    return model


def probe(one: Case) -> Batch:
    """Return sentences of different lengths that logits and gradients are compared on."""
    batches = [batch for batch, _ in evaluation_batches(one.corpus.validation, batch_size=8)]
    (short, *_), middle = batches, batches[len(batches) // 2]
    halves = [(ids[:4], more[:4]) for ids, more in zip(vars(short).values(), vars(middle).values(), strict=True)]
    return Batch(*(_stacked(*pair) for pair in halves))


def _stacked(*parts: Any) -> Any:
    longest = max(part.shape[1] for part in parts)
    return np.concatenate([np.pad(part, ((0, 0), (0, longest - part.shape[1])), constant_values=PAD) for part in parts])


def logits(model: Seq2SeqModel, batch: Batch) -> Any:
    """Return the logits at the real positions, [N,V]."""
    return model.logits(batch.source, batch.target_in)[batch.target_in != PAD]


def gradients(model: Seq2SeqModel, batch: Batch, training: Training) -> Arrays:
    """Return the gradient of one update from zero moments."""
    model.train_step(batch, 0.0)
    state = model.training_state()
    return {name: state[f"first_moment/{name}"] / np.float32(1 - training.beta1) for name in model.weights()}


def slopes_and_logits(model: Seq2SeqModel, batch: Batch, training: Training) -> Arrays:
    """Return the logits of a fresh model and, under "gradient/", its gradients."""
    slopes = {f"gradient/{name}": value for name, value in gradients(model, batch, training).items()}
    return {"logits": logits(model, batch), **slopes}


def _stream(one: Case) -> Iterator[Batch]:
    epoch = 0
    while True:
        yield from training_batches(one.corpus.train, one.training, seed=0, epoch=epoch)
        epoch += 1


def measured(one: Case, framework: str) -> tuple[Arrays, Seq2SeqModel]:
    """Return logits, gradients and the losses of all updates, and the model that made the updates."""
    unclipped, batch = replace(one.training, clip_norm=None), probe(one)
    found = slopes_and_logits(fresh(one, framework, unclipped), batch, unclipped)
    model = fresh(one, framework)
    losses, norms, consumed = [], [], ConsumedBatches()
    for update, fed in zip(range(1, one.updates + 1), _stream(one), strict=False):
        consumed.add(fed)
        model.train_step(fed, learning_rate(one.training, update))
        totals = model.take_totals()
        losses.append(totals.objective_nats / totals.tokens)
        norms.append(totals.largest_gradient_norm)
    found |= {"losses": np.array(losses), "norms": np.array(norms), "stream": np.array(consumed.digest)}
    if one.tells_epsilon:
        found |= {f"weight/{name}": value for name, value in model.weights().items()}
    return found, model


def teach(one: Case, model: Seq2SeqModel) -> Arrays:
    """Go on training until translations are worth comparing, and return the weights under "taught/"."""
    for update, fed in zip(range(one.updates + one.taught), _stream(one), strict=False):
        if update >= one.updates:
            model.train_step(fed, one.taught_rate)
    return {f"taught/{name}": value for name, value in model.weights().items()}


def translations(one: Case, model: Seq2SeqModel, weights: Arrays, *, ties: bool) -> Arrays:
    """Return greedy and beam translations with these weights, and with `ties` how many each sentence has by itself."""
    model.set_weights({name.removeprefix("taught/"): value for name, value in weights.items()})
    found: Arrays = {}
    sources = list(one.corpus.test.source[: one.sentences])
    for name, beam in BEAMS.items():
        decoding = DecodingSpec(beam=beam, max_tokens=one.longest)
        decoded = translate(model, sources, decoding)
        words = np.full((len(sources), one.longest), PAD, np.int32)
        for row, translation in zip(words, decoded.translations, strict=True):
            row[: len(translation.tokens)] = translation.tokens
        found[name] = words
        found[f"{name} log-probabilities"] = np.array([each.log_probability for each in decoded.translations])
        found[f"{name} ties"] = np.array(decoded.ties)
        if ties:
            alone = [translate(model, [source], decoding).ties for source in sources]
            found[f"{name} ties alone"] = np.array(alone)
    return found


def nudged(one: Case, framework: str) -> Iterator[tuple[str, Arrays]]:
    """Yield for each tensor the logits of a model in which one of its weights is 1e-3 too large.

    It is the one with the largest gradient: of a word that is not in the batch, nobody could tell.
    """
    training, batch = replace(one.training, clip_norm=None), probe(one)
    model = fresh(one, framework, training)
    weights, slopes = model.weights(), gradients(model, batch, training)
    for name, value in weights.items():
        if name.endswith(NO_GRADIENT):
            continue
        wrong = value.copy()
        wrong[np.unravel_index(np.abs(slopes[name]).argmax(), value.shape)] += 1e-3
        model.set_weights({**weights, name: wrong})
        yield name, {"logits": logits(model, batch)}


# Whether two frameworks agree -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """One check of parity: how far apart, how far is allowed, and what else there is to say."""

    check: str
    largest: float
    allowed: float
    remark: str = ""

    @property
    def holds(self) -> bool:
        """Whether it holds; what is not a number never does."""
        return self.largest <= self.allowed

    def __str__(self) -> str:
        return f"{self.check}: {self.largest:.2e}, allowed {self.allowed:.0e} {self.remark}".strip()


def compare(expected: Arrays, found: Arrays) -> list[Agreement]:
    """Return every check for which both have arrays."""
    return [agree for check in CHECKS for agree in check(expected, found)]


def broken(agreements: list[Agreement]) -> set[str]:
    """Return the names of the checks that do not hold."""
    return {one.check for one in agreements if not one.holds}


def _logits(expected: Arrays, found: Arrays) -> Iterator[Agreement]:
    if "logits" in found:
        yield Agreement("logits", _apart(expected["logits"], found["logits"]), LOGITS)


def _gradients(expected: Arrays, found: Arrays) -> Iterator[Agreement]:
    names = [name for name in expected if name.startswith("gradient/")]
    if not any(name in found for name in names):
        return
    worst, where = 0.0, ""
    highest = max(float(np.abs(expected[name]).max()) for name in names)
    for name in names:
        own = highest if name.endswith(NO_GRADIENT) else float(np.abs(expected[name]).max())
        apart = _apart(expected[name], found[name]) / own
        if not apart <= worst:
            worst, where = apart, name.removeprefix("gradient/")
    yield Agreement("gradients", worst, GRADIENTS, where)


def _losses(expected: Arrays, found: Arrays) -> Iterator[Agreement]:
    if "losses" in found:
        relative = np.abs(found["losses"] / expected["losses"] - 1)
        yield Agreement("losses", float(relative.max()), LOSSES, f"at update {int(relative.argmax()) + 1}")
        norms = np.abs(found["norms"] / expected["norms"] - 1)[:CALM_NORMS]
        yield Agreement("norms", float(norms.max()), 10 * LOSSES)
        yield Agreement("stream", float(str(found["stream"]) != str(expected["stream"])), 0)


def _weights(expected: Arrays, found: Arrays) -> Iterator[Agreement]:
    names = [name for name in found if name.startswith("weight/") and not name.endswith(NO_GRADIENT)]
    if names:
        apart = {name: _apart(expected[name], found[name]) for name in names}
        worst = max(apart, key=apart.__getitem__)
        yield Agreement("weights", max(apart.values()), WEIGHTS, worst.removeprefix("weight/"))


def _translations(expected: Arrays, found: Arrays) -> Iterator[Agreement]:
    """A sentence may differ only where the search had a tie: two hypotheses within 1e-4, of which either is right."""
    for name in BEAMS:
        if name not in found:
            continue
        other = (expected[name] != found[name]).any(axis=1)
        tied = expected[f"{name} ties alone"] > 0
        remark = f"of {len(other)} sentences; {int(tied.sum())} have a tie, {int((other & tied).sum())} of these differ"
        yield Agreement(name, float((other & ~tied).sum()), 0, remark)
        own, others = (one[f"{name} log-probabilities"][~other] for one in (expected, found))
        yield Agreement(f"{name} log-probabilities", _apart(own, others), TIE_NATS)


def _apart(expected: Any, found: Any) -> float:
    return float(np.abs(np.asarray(found, np.float64) - expected).max(initial=0.0))


CHECKS: tuple[Callable[[Arrays, Arrays], Iterator[Agreement]], ...] = (
    _logits,
    _gradients,
    _losses,
    _weights,
    _translations,
)
