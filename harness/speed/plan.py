"""The plan of a measurement as data: parts, measures, amounts, and the job of each model's process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from harness.experiments.specs import RunSpec
from harness.speed.timed_model import Kind, TimedModel
from impls.contract import Arrays, GruRecipe, Recipe, TorchReferenceRecipe

Part = Literal["training", "evaluation", "decoding", "breakdown", "scaling"]
PARTS: tuple[Part, ...] = get_args(Part)
USING_WEIGHTS: frozenset[Part] = frozenset(("evaluation", "decoding", "scaling"))
"""The parts that need trained weights."""

Measure = Literal["training", "evaluation", "greedy", "beam", "single_greedy", "single_beam", "products"]
"""What one call times: "single" is one sentence at a time; "products" are the matrix products of a recipe's kernels."""

DECODINGS: tuple[Measure, ...] = ("greedy", "beam", "single_greedy", "single_beam")
SINGLE: tuple[Measure, ...] = ("single_greedy", "single_beam")
BEAM: tuple[Measure, ...] = ("beam", "single_beam")
WITHOUT_BATCHES = ("plain",)
"""Baselines that always translate one sentence at a time, and therefore only get the single sentences."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """The amounts of a measurement.

    Attributes:
        suite: The suite that the models' sizes and the Keras variants are taken from.
        rounds: Samples of every measure except decodings, which have `decoding_rounds`.
        updates: Updates of one round, each on another batch.
        validation_batches: None for all.
        sentences: Test sentences to translate in batches; None for all.
        single_sentences: Test sentences to translate one at a time.
        learning_updates: Updates that give the weights to translate with.
        gigabytes: Approximate memory of one process, which it keeps until all models have been measured.
        width: None for the suite's.
    """

    name: str
    purpose: str
    suite: str = "standard"
    rounds: int = 7
    decoding_rounds: int = 3
    updates: int = 20
    validation_batches: int | None = None
    sentences: int | None = None
    single_sentences: int = 40
    learning_updates: int = 200
    profiled_updates: int = 5
    gigabytes: float = 1.6
    width: int | None = None
    batch_size: int | None = None
    max_tokens: int = 50


TOY = Amounts(
    name="toy",
    purpose="seconds, to see that everything works: its figures mean nothing",
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
)
QUICK = Amounts(
    name="quick",
    purpose="the tutorials' models and batches, few samples",
    rounds=3,
    decoding_rounds=2,
    updates=5,
    validation_batches=3,
    sentences=200,
    single_sentences=10,
    learning_updates=60,
    profiled_updates=3,
)
TUTORIAL = Amounts(name="tutorial", purpose="the tutorials' models, batches and test set")
SIZES = {size.name: size for size in (TOY, QUICK, TUTORIAL)}


@dataclass(frozen=True, kw_only=True)
class ModelJob:
    """What the process of one model needs to know.

    Attributes:
        name: A unique name.
        library: The framework, or the package that a baseline is built on.
        baseline: The name of the baseline; empty for a variant.
        products: If not empty, the process has no model and multiplies the kernels of these runs' recipes.
        weights: A safetensors file of canonical weights; empty for the initial weights.
        beam: The width of beam search, besides greedy search.
        synthetic_length: Train on random batches with this many tokens on each side; None for the corpus.
    """

    name: str
    spec: RunSpec
    amounts: Amounts
    beam: int
    library: str = "torch"
    baseline: str = ""
    products: tuple[RunSpec, ...] = ()
    weights: str = ""
    synthetic_length: int | None = None

    @property
    def kind(self) -> Kind:
        return "peer" if self.baseline else "variant"


@dataclass(frozen=True, kw_only=True)
class MeasurementPlan:
    """What is measured.

    Attributes:
        jobs: The models, variants before baselines.
        absent: The models that cannot be measured.
        trained: Trained weights and their origin, by the key of the models that they fit (`weights_key`).
        base: The job whose cost is measured along the axes of scaling.
        timeout_seconds: The longest time for one answer of a process; None for no limit.
    """

    amounts: Amounts
    parts: tuple[Part, ...]
    jobs: tuple[ModelJob, ...]
    absent: tuple[TimedModel, ...]
    trained: dict[Recipe | str, tuple[Arrays, str]]
    base: ModelJob
    command: str
    note: str
    timeout_seconds: float | None


def weights_key(spec: RunSpec) -> Recipe | str:
    """Return a key that models with the same weights share: the recipe, or the name of an external variant."""
    recipe = spec.recipe
    if recipe is None:
        return spec.variant
    if isinstance(recipe, TorchReferenceRecipe):
        return replace(recipe.as_transformer(), dropout=0.0)
    return recipe if isinstance(recipe, GruRecipe) else replace(recipe, dropout=0.0)
