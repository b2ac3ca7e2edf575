"""What is measured of whom: amounts, subjects and measures, as data that goes to the subjects' processes as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from harness.experiments.specs import RunSpec
from impls.contract import GruRecipe, Recipe, TorchReferenceRecipe

Part = Literal["training", "evaluation", "decoding", "breakdown", "scaling"]
PARTS: tuple[Part, ...] = get_args(Part)
USING_WEIGHTS: frozenset[Part] = frozenset(("evaluation", "decoding", "scaling"))
"""Parts for which the models have trained weights."""

Measure = Literal[
    "training", "loop", "evaluation", "greedy", "beam", "single_greedy", "single_beam", "breakdown", "products"
]
"""What one call times. "loop" is training as the harness's own loop drives it; "single" is one sentence at a time;
"products" are those of the kernels of one recipe."""

WAYS: tuple[tuple[Measure, ...], ...] = (("greedy", "single_greedy"), ("beam", "single_beam"))
"""Ways to translate that are timed in the same rounds."""

DECODINGS: tuple[Measure, ...] = ("greedy", "beam", "single_greedy", "single_beam")
ONE_BY_ONE = ("plain",)
"""Baselines that translate one sentence at a time whatever the batch: only the single sentences are given to them."""

BASELINE = "plain"
"""The baseline that every ratio of speed of the table is to."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The amounts of a measurement; `suite` gives the models' size and which variants there are in Keras.

    `updates` are timed in a round, of as many batches; `validation_batches` None are all; `sentences` None is the whole
    test set, and `decoding_rounds` is how often each way to translate is timed. `width` None is the suite's.
    `gigabytes` is about what a subject's process keeps in memory until all are measured.
    """

    name: str
    purpose: str
    suite: str
    rounds: int
    decoding_rounds: int
    updates: int
    validation_batches: int | None
    sentences: int | None
    single_sentences: int
    learning_updates: int
    profiled_updates: int
    gigabytes: float
    width: int | None = None
    batch_size: int | None = None
    max_tokens: int = 50


SIZES = {
    size.name: size
    for size in (
        Amounts(
            name="toy",
            purpose="seconds, to see that everything works: its figures say nothing",
            suite="quick",
            rounds=2,
            decoding_rounds=2,
            updates=3,
            validation_batches=1,
            sentences=12,
            single_sentences=2,
            learning_updates=3,
            profiled_updates=2,
            gigabytes=0.5,
            width=32,
            batch_size=16,
            max_tokens=12,
        ),
        Amounts(
            name="quick",
            purpose="the tutorials' models and batches, few samples",
            suite="standard",
            rounds=3,
            decoding_rounds=2,
            updates=5,
            validation_batches=3,
            sentences=200,
            single_sentences=10,
            learning_updates=60,
            profiled_updates=3,
            gigabytes=1.6,
        ),
        Amounts(
            name="tutorial",
            purpose="the tutorials' models, batches and test set",
            suite="standard",
            rounds=7,
            decoding_rounds=3,
            updates=20,
            validation_batches=None,
            sentences=None,
            single_sentences=40,
            learning_updates=200,
            profiled_updates=5,
            gigabytes=1.6,
        ),
    )
}


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """Batches of random words in place of the corpus: `length` tokens on each side, no padding."""

    length: int


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """All that the process of one subject is told at its start.

    `library` is the framework, or a baseline's library. `baseline` is empty for a variant. With `products` the process
    has no model: it multiplies the kernels of these runs' recipes. `weights` is a safetensors file of canonical
    weights; empty: the initial ones. Amounts are as in `Amounts`.
    """

    name: str
    spec: RunSpec
    library: str = "torch"
    baseline: str = ""
    products: tuple[RunSpec, ...] = ()
    weights: str = ""
    updates: int
    validation_batches: int | None
    sentences: int | None
    single_sentences: int
    beam: int
    profiled_updates: int
    synthetic: Synthetic | None = None

    @property
    def kind(self) -> Literal["variant", "peer"]:
        """Whose models it is about."""
        return "peer" if self.baseline else "variant"


def same_weights(recipe: Recipe | None, variant: str) -> Recipe | str:
    """Return what two subjects share that can have the same weights: the recipe's function, or an outsider's name."""
    if recipe is None:
        return variant
    if isinstance(recipe, TorchReferenceRecipe):
        return replace(recipe.as_transformer(), dropout=0.0)
    return recipe if isinstance(recipe, GruRecipe) else replace(recipe, dropout=0.0)
