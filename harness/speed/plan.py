"""The plan of a measurement as data: amounts, measures, and the job of each model's process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from harness.experiments.specs import RunSpec
from impls.contract import GruRecipe, Recipe, TorchReferenceRecipe

Part = Literal["training", "evaluation", "decoding", "breakdown", "scaling"]
PARTS: tuple[Part, ...] = get_args(Part)
USING_WEIGHTS: frozenset[Part] = frozenset(("evaluation", "decoding", "scaling"))
"""The parts that need trained weights."""

Measure = Literal[
    "training", "loop", "evaluation", "greedy", "beam", "single_greedy", "single_beam", "breakdown", "products"
]
"""What one call times. "loop" is training with the harness's own loop; "single" is one sentence at a time; "products"
are the matrix products of one recipe's kernels."""

WAYS: tuple[tuple[Measure, ...], ...] = (("greedy", "single_greedy"), ("beam", "single_beam"))
"""Groups of decodings that are timed in the same rounds."""

DECODINGS: tuple[Measure, ...] = ("greedy", "beam", "single_greedy", "single_beam")
SINGLE: tuple[Measure, ...] = ("single_greedy", "single_beam")
BEAM: tuple[Measure, ...] = ("beam", "single_beam")
ONE_BY_ONE = ("plain",)
"""Baselines that translate one sentence at a time in any case; only the single sentences are given to them."""

BASELINE = "plain"
"""The baseline of the ratios in the table."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The amounts of a measurement.

    Attributes:
        suite: The suite that the models' sizes and the Keras variants are taken from.
        rounds: Samples of every measure but decodings, of which there are `decoding_rounds`.
        updates: Updates of one round, each on another batch.
        validation_batches: None for all.
        sentences: Test sentences to translate in batches; None for all.
        single_sentences: Test sentences to translate one at a time.
        learning_updates: Updates that give the weights to translate with.
        profiled_updates: Updates that are profiled.
        gigabytes: About the memory that one process keeps until all models have been measured.
        width: None for the suite's.
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
    """Batches of random tokens: `length` tokens on each side, no padding."""

    length: int


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """What the process of one model needs to know. The amounts are as in `Amounts`.

    Attributes:
        name: A unique name.
        library: The framework, or the package that a baseline is built on.
        baseline: The name of the baseline; empty for a variant.
        products: If not empty, there is no model: the process multiplies the kernels of these runs' recipes.
        weights: A safetensors file of canonical weights; empty for the initial weights.
        beam: The width of beam search, besides greedy search.
        synthetic: Random batches instead of the corpus.
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
        """Whether the model is a variant of this package or a baseline."""
        return "peer" if self.baseline else "variant"


def same_weights(recipe: Recipe | None, variant: str) -> Recipe | str:
    """Return a key that is equal for models that can share weights: the recipe, or the name of an external variant."""
    if recipe is None:
        return variant
    if isinstance(recipe, TorchReferenceRecipe):
        return replace(recipe.as_transformer(), dropout=0.0)
    return recipe if isinstance(recipe, GruRecipe) else replace(recipe, dropout=0.0)
