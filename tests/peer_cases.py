"""Peers and what they are held against: our model from the same weights, the library's beam rule, a taught model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from small_models import BASE, SOURCE_WORDS, TARGET_WORDS, target_words

import impls
from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.evaluation.search import translate
from harness.experiments.specs import DataSpec, DecodingSpec, Unknown
from impls import weights as canonical
from impls.baselines import baseline_registry
from impls.baselines.protocol import LENGTH_PENALTY
from impls.contract import EOS, PAD, SOS, UNK, Arrays, Batch, Ids, Recipe, Seq2SeqModel, Training, TransformerRecipe

DATA = DataSpec(corpus="captions", tokenizer="whitespace", training_pairs=400)
TRAINING = Training(peak_rate=3e-3)
TAUGHT_UPDATES = 200
SUPPRESSED = (UNK, PAD, SOS)
Sizes = tuple[int, int]


@dataclass(frozen=True)
class Taught:
    """A model of ours that has learned to translate some captions, and sentences that it has not seen."""

    model: Seq2SeqModel
    recipe: TransformerRecipe
    sizes: Sizes
    sources: list[Ids]

    @property
    def weights(self) -> Arrays:
        return self.model.weights()

    def peer(self, name: str, **changes: Any) -> Any:
        return baseline_registry.build(
            name, self.recipe, *self.sizes, training=TRAINING, **{"weights": self.weights, **changes}
        )

    def ours(
        self, *, beam: int = 1, max_tokens: int = 20, weights: Arrays | None = None, unknown: Unknown = "never"
    ) -> list[list[int]]:
        model = self.model if weights is None else with_weights(self.recipe, self.sizes, weights)
        spec = DecodingSpec(beam=beam, max_tokens=max_tokens, length_penalty=LENGTH_PENALTY, unknown=unknown)
        return [list(one.tokens) for one in translate(model, self.sources, spec).translations]


def with_weights(
    recipe: Recipe, sizes: tuple[int, int], weights: Arrays, training: Training = TRAINING
) -> Seq2SeqModel:
    model = impls.build(recipe, *sizes, training=training)
    model.set_weights(weights)
    return model


def teach(recipe: TransformerRecipe, *, sentences: int = 32) -> Taught:
    """Train a small model for a moment, so that what it says depends on what it is told."""
    prepared = prepare(DATA)
    sizes = len(prepared.source_words), len(prepared.target_words)
    model = impls.build(recipe, *sizes, training=TRAINING)
    for update, batch in enumerate(_batches(prepared.train)):
        if update == TAUGHT_UPDATES:
            break
        model.train_step(batch, TRAINING.peak_rate)
    return Taught(model, recipe, sizes, list(prepared.test.source[:sentences]))


def _batches(split: Any) -> Any:
    for epoch in range(TAUGHT_UPDATES):
        yield from training_batches(split, replace(TRAINING, batch_size=32), seed=0, epoch=epoch)


def random_batches(count: int, *, size: int = 8, longest: int = 12, seed: int = 0) -> list[Batch]:
    """Return batches of uneven sentences over the small vocabularies."""
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        columns: dict[str, list[Ids]] = {"source": [], "target_in": [], "target_out": []}
        for _ in range(size):
            source = random.integers(4, SOURCE_WORDS, random.integers(1, longest))
            target = 4 + (source[::-1] * 7) % (TARGET_WORDS - 4)  # something that can be learned
            columns["source"].append(np.array([SOS, *source, EOS], np.int32))
            columns["target_in"].append(np.array([SOS, *target], np.int32))
            columns["target_out"].append(np.array([*target, EOS], np.int32))
        found.append(Batch(**{name: padded(rows) for name, rows in columns.items()}))
    return found


def padded(rows: list[Ids]) -> Ids:
    found = np.full((len(rows), max(map(len, rows))), PAD, np.int32)
    for place, row in zip(found, rows, strict=True):
        place[: len(row)] = row
    return found


@dataclass(frozen=True)
class Updates:
    """The mean nats per target token of each update of our model, and its gradient's norm before clipping."""

    losses: list[float]
    norms: list[float]


def our_updates(recipe: Recipe, sizes: Sizes, batches: list[Batch], weights: Arrays, training: Training) -> Updates:
    model, found = with_weights(recipe, sizes, weights, training), Updates([], [])
    for batch in batches:
        model.train_step(batch, training.peak_rate)
        totals = model.take_totals()
        found.losses.append(totals.nats / totals.tokens)
        found.norms.append(totals.largest_gradient_norm)
    return found


def decided(recipe: Recipe, seed: int = 0) -> Arrays:
    """Return initial weights of a small recipe whose ReLUs are wide open or firmly shut.

    At a kink rounding decides the slope, and within 100 updates one decision can come to move the loss by 1e-3.
    """
    weights = canonical.initial(recipe, *SIZES, seed)
    for name, value in weights.items():
        if name.endswith(".inner.bias"):
            value[:] = np.where(np.arange(len(value)) % 3, 6, -6)
    return weights


def shaken(recipe: Recipe, seed: int = 0) -> Arrays:
    """Return weights of a small recipe that are all away from 0, and lively enough for translations to differ."""
    model = impls.build(replace(recipe, dropout=0.0), SOURCE_WORDS, target_words(recipe))
    random = np.random.default_rng(seed)
    return {
        name: (value * 1.5 + 0.1 * random.standard_normal(value.shape)).astype(np.float32)
        for name, value in model.weights().items()
    }


def ctranslate2_beams(model: Seq2SeqModel, source: Ids, *, beam: int, max_tokens: int) -> list[int]:
    """Translate one sentence with our probabilities by CTranslate2's rule of beams, in plain Python.

    Of twice the beam's size of extensions, the first `beam` that end are noted, and each one's place is taken by the
    best of the others; search ends with `beam` hypotheses noted. Probabilities are of all words but <pad> and <sos>.
    """
    decoding = model.begin_decoding(source[None])
    open_: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    last = np.array([SOS], np.int32)
    for step in range(max_tokens + 1):
        found = decoding.step(last, 10**6)
        chances = found.log_probabilities.astype(np.float64)
        chances[np.isin(found.tokens, SUPPRESSED)] = -np.inf
        chances -= np.log(np.exp(chances).sum(axis=1, keepdims=True))
        every = [
            (total + chance, row, int(word))
            for row, (total, _) in enumerate(open_)
            for chance, word in zip(chances[row], found.tokens[row], strict=True)
        ]
        candidates = sorted(every, key=lambda one: -one[0])[: 2 * beam]
        spare = [one for one in candidates[beam:] if one[2] != EOS]
        kept = []
        for total, row, word in candidates[:beam]:
            if word == EOS or step == max_tokens:
                words = [*open_[row][1], word]
                ended.append((total / len(words) ** LENGTH_PENALTY, words))
                if spare:
                    kept.append(spare.pop(0))
            else:
                kept.append((total, row, word))
        if len(ended) >= beam:
            break
        decoding.select(np.array([row for _, row, _ in kept]))
        last = np.array([word for _, _, word in kept], np.int32)
        open_ = [(total, [*open_[row][1], word]) for total, row, word in kept]
    words = max(ended, key=lambda one: one[0])[1]
    return (words[:-1] if words[-1] == EOS else words)[:max_tokens]


def worth(taught: Taught, translations: list[list[int]]) -> Any:
    """Return what our model's probabilities make each translation worth by the libraries' rule, [sentences]."""
    ids = [np.array([SOS, *words, EOS], np.int32) for words in translations]
    batch = Batch(
        source=padded(taught.sources),
        target_in=padded([one[:-1] for one in ids]),
        target_out=padded([one[1:] for one in ids]),
    )
    lengths = np.array([len(words) + 1 for words in translations])
    return -taught.model.token_nats(batch).sum(axis=1) / lengths**LENGTH_PENALTY


SMALL: TransformerRecipe = replace(BASE, dropout=0.0)
SIZES = (SOURCE_WORDS, TARGET_WORDS)
