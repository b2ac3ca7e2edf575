"""The suites `quick`, `standard` and `full`, and the settings of each variant's source, as data."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.experiments.overrides import override
from harness.experiments.serialization import RECIPE_TYPES
from harness.experiments.specs import Budget, DataSpec, RunSpec, lengths_within
from impls import registry
from impls.contract import GruRecipe, Recipe, TorchReferenceRecipe, Training, TransformerRecipe
from impls.recipes import BAHDANAU_GRU, LEARNED_POSITIONS, TUTORIAL

OUTSIDE_SUITES = ("plain", "tuned")
"""Built-in variants that are not part of any suite."""
FULL_VARIANTS = tuple(name for name in registry.names() if name not in OUTSIDE_SUITES)
VARIANTS = tuple(name for name in FULL_VARIANTS if name != "paper_base")

AS_SOURCE: dict[str, tuple[str, ...]] = {
    "learned_positions": ("decoding.unknown=allowed",),
    "plain": ("decoding.unknown=allowed",),
    "sinusoidal_handmade": ("recipe.dropout=0.2", "decoding.unknown=allowed"),
    "bahdanau_gru": ("decoding.unknown=allowed",),
    "torch_reference": ("decoding.unknown=allowed",),
    "conv_ffn": ("data.tokenizer=sentencepiece-unigram", "data.vocabulary_size=7000"),
    "paper": ("decoding.beam=5",),
    "paper_base": ("decoding.beam=5",),
    "tuned": (
        "data.tokenizer=moses-bpe",
        "data.vocabulary=joint",
        "decoding.beam=5",
        "decoding.length_formula=power",
        "decoding.length_penalty=1",
    ),
}
"""The settings of a variant's source other than its TRAINING, as for `--set`; for the budget "source" only.

The tutorials' searches may choose `<unk>`, and so may those of the variants that follow them. `paper` and `paper_base`
never do: the subwords of Vaswani et al. 2017 leave no word unknown. Neither does `conv_ffn`: its source does not
translate, and its SentencePiece vocabulary covers all characters of the training text. That vocabulary has 7,000 pieces
because the English text of Multi30k does not have enough for the 8,000 of the source.
"""

LITTLE_TEXT: dict[str, tuple[str, ...]] = {
    "conv_ffn": ("data.vocabulary_size=200",),
}
"""Further settings for the built-in captions, which have too few words for the vocabulary of the source."""


@dataclass(frozen=True)
class Suite:
    """A set of runs of one size.

    Attributes:
        width, layers, epochs: None for those of the recipe and its training.
        training: The training of all variants with the budget "controlled".
        in_keras: The variants that are also run in Keras.
    """

    name: str
    purpose: str
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    budgets: tuple[Budget, ...]
    width: int | None = None
    layers: int | None = None
    epochs: int | None = None
    training: Training = TUTORIAL
    in_keras: tuple[str, ...] = tuple(name for name in VARIANTS if name != "torch_reference")


SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            name="quick",
            purpose="small models, short training",
            variants=VARIANTS,
            seeds=(0,),
            budgets=("controlled",),
            width=128,
            layers=2,
            epochs=2,
            training=replace(TUTORIAL, batch_size=64, peak_rate=1e-3),
            in_keras=("learned_positions",),
        ),
        Suite(
            name="standard",
            purpose="the tutorials' size, 3 seeds",
            variants=VARIANTS,
            seeds=(0, 1, 2),
            budgets=("controlled", "source"),
        ),
        Suite(
            name="full",
            purpose="the tutorials' size and the paper's base size, 8 seeds",
            variants=FULL_VARIANTS,
            seeds=tuple(range(8)),
            budgets=("controlled", "source"),
        ),
    )
}


def spec(suite: Suite, variant: str, *, budget: Budget, seed: int, data: DataSpec, threads: int = 2) -> RunSpec:
    """Return a run of a suite.

    With the budget "controlled" all variants share one training, so that only their recipes differ; with "source"
    each has the training and settings of its source.

    Raises: ValueError for an unknown variant.
    """
    recipe, source_training = resolve(variant)
    training = suite.training if budget == "controlled" else source_training
    run = RunSpec(
        variant=variant,
        recipe=recipe if recipe is None else _at_size(variant, recipe, suite),
        training=training if suite.epochs is None else shortened(training, suite.epochs),
        **lengths_within(recipe, data),
        budget=budget,
        threads=threads,
        seed=seed,
    )
    if budget != "source":
        return run
    little = LITTLE_TEXT.get(variant, ()) if data.corpus == "captions" else ()
    return override(run, [*AS_SOURCE.get(variant, ()), *little])


def has(variant: str, framework: str) -> bool:
    """Return whether a variant can be built in a framework; a builder counts as that of `registry.framework_of`."""
    recipe, _ = resolve(variant)
    if recipe is None:
        return framework == registry.framework_of(variant)
    return (recipe.family, framework) in registry.BUILDERS


def resolve(variant: str) -> tuple[Recipe | None, Training]:
    """Return the recipe of a variant (None for an external builder) and the training of its source.

    The module of an external variant may define TRAINING; the default is the training of the tutorials.

    Raises: ValueError for an unknown variant, with the closest name, or a recipe of a derived class.
    """
    if ":" not in variant:
        return registry.recipe(variant), registry.training(variant)
    external = registry.load(variant)
    try:
        training = registry.load(f"{variant.partition(':')[0]}:TRAINING")
    except ValueError:
        training = TUTORIAL
    if not isinstance(training, Training):
        raise ValueError(f"{variant!r}: its module's TRAINING is {training!r}: expected a Training")
    if isinstance(external, TransformerRecipe | GruRecipe | TorchReferenceRecipe):
        check_recipe(external)
        return external, training
    registry.check_builder(variant, external)
    return None, training


def check_recipe(recipe: Recipe) -> None:
    """Raise ValueError for a recipe of a derived class: no model uses its fields, and no record with them is read."""
    if type(recipe) not in RECIPE_TYPES.values():
        names = ", ".join(kind.__name__ for kind in RECIPE_TYPES.values())
        raise ValueError(
            f"{type(recipe).__name__} is none of the classes of recipes, {names}: the built-in models have no other "
            "settings; for a model with its own, write a builder"
        )


def _at_size(variant: str, recipe: Recipe, suite: Suite) -> Recipe:
    """Return a recipe at the width and the number of layers of a suite.

    An external recipe keeps those that differ from the tutorials': they may be what it is about.
    """
    usual = BAHDANAU_GRU if isinstance(recipe, GruRecipe) else LEARNED_POSITIONS
    sizes = [name for name in ("width", "embedding_width", "layers") if hasattr(recipe, name)]
    own = {name for name in sizes if ":" in variant and getattr(recipe, name) != getattr(usual, name)}
    try:
        if suite.width is not None and not own & {"width", "embedding_width"}:
            recipe = reduced(recipe, suite.width)
        if suite.layers is not None and "layers" not in own and not isinstance(recipe, GruRecipe):
            recipe = replace(recipe, layers=suite.layers)
    except ValueError as error:
        raise ValueError(
            f"{variant} cannot be reduced to the size of this suite ({error}); use --suite standard"
        ) from error
    return recipe


def reduced(recipe: Recipe, width: int) -> Recipe:
    """Return a recipe with another width: feed-forward and head width in proportion, all widths of a GRU equal."""
    if isinstance(recipe, GruRecipe):
        return replace(recipe, embedding_width=width, width=width)
    inner = max(1, recipe.ffn_width * width // recipe.width)
    if isinstance(recipe, TorchReferenceRecipe):
        return replace(recipe, width=width, ffn_width=inner)
    head_width = None if recipe.head_width is None else max(1, recipe.head_width * width // recipe.width)
    return replace(recipe, width=width, ffn_width=inner, head_width=head_width)


def shortened(training: Training, epochs: int) -> Training:
    """Return a training with another number of epochs and a warm-up of the same share of all updates."""
    warmup = round(training.warmup_updates * epochs / training.epochs)
    return replace(
        training,
        epochs=epochs,
        warmup_updates=max(1, warmup) if training.warmup_updates else 0,
        averaged_epochs=min(training.averaged_epochs, epochs),
    )
