"""Recipes and training settings reject invalid values with a message that names the accepted ones, and are frozen."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
from small_models import choices

import impls
from impls import registry
from impls.contract import (
    EOS,
    PAD,
    SOS,
    SPECIAL_TOKENS,
    UNK,
    GruRecipe,
    PlainRecipe,
    TorchReferenceRecipe,
    Training,
)
from impls.contract import TransformerRecipe as Recipe
from impls.recipes import LEARNED_POSITIONS, RECIPES, TRAININGS

SETTINGS = (Recipe, GruRecipe, TorchReferenceRecipe, Training)
COUNT = "a whole number of at least 1"
RATE = "a number from 0 up to but not including 1"

WORDS = [(kind, name) for kind in SETTINGS for name in dict.fromkeys(name for name, _ in choices(kind))]
COUNTS = [
    *((Recipe, name) for name in ("width", "layers", "heads", "head_width", "ffn_width", "max_length")),
    *((TorchReferenceRecipe, name) for name in ("width", "layers", "heads", "ffn_width", "max_length")),
    *((GruRecipe, name) for name in ("embedding_width", "width")),
    *((Training, name) for name in ("batch_size", "epochs")),
]
RATES = [
    *((kind, "dropout") for kind in (Recipe, GruRecipe, TorchReferenceRecipe)),
    *((Training, name) for name in ("beta1", "beta2", "label_smoothing")),
]


def reject(kind: Any, accepted: str, name: str, **settings: Any) -> None:
    """Assert that the settings raise a ValueError with the field, its value and what is accepted."""
    message = f"{kind.__name__}.{name}={settings[name]!r}: expected {accepted}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        kind(**settings)


@pytest.mark.parametrize(("kind", "name"), WORDS)
def test_choice_unknown_value_raises(kind: Any, name: str) -> None:
    accepted = " or ".join(map(repr, get_args(get_type_hints(kind)[name])))
    for value in ("no such word", "", None, True):
        reject(kind, accepted, name, **{name: value})


@pytest.mark.parametrize(("kind", "name"), COUNTS)
def test_count_not_a_positive_integer_raises(kind: Any, name: str) -> None:
    for value in (0, -1, 2.0, True, "2"):
        reject(kind, COUNT, name, **{name: value})


@pytest.mark.parametrize(("kind", "name"), RATES)
def test_rate_outside_0_to_1_raises(kind: Any, name: str) -> None:
    for value in (-0.1, 1, 1.0, float("nan"), True, "0.1"):
        reject(kind, RATE, name, **{name: value})
    assert getattr(kind(**{name: 0}), name) == 0
    assert getattr(kind(**{name: 0.999}), name) == 0.999


NAN = float("nan")
POSITIVE = "a number above 0"
WARMUP = "a whole number of at least 0 (of at least 1 with inverse_sqrt)"
EVEN_HEADS = "even (or width / heads even) with positions='rotary'"
EARLY_STOP = "None with averaged_epochs=2: early stopping keeps the best epoch"


@pytest.mark.parametrize(
    ("kind", "name", "accepted", "values", "others"),
    [
        (Recipe, "heads", "a divisor of width=256, unless head_width is given", (7,), {}),
        (TorchReferenceRecipe, "heads", "a divisor of width=256", (7,), {}),
        (Recipe, "norm_epsilon", POSITIVE, (0.0, NAN, "1e-5"), {}),
        (Recipe, "width", "even with positions='sinusoidal'", (15,), {"heads": 3, "positions": "sinusoidal"}),
        (Recipe, "head_width", EVEN_HEADS, (5,), {"positions": "rotary"}),
        (Recipe, "head_width", EVEN_HEADS, (None,), {"width": 15, "heads": 3, "positions": "rotary"}),
        (Training, "epsilon", POSITIVE, (0.0, "1e-8", True), {}),
        (Training, "peak_rate", "a number of at least 0", ("1e-3", -1e-4, NAN), {}),
        (Training, "clip_norm", f"{POSITIVE}, or None for no clipping", (0.0, "off", float("inf")), {}),
        (Training, "teacher_forcing", "a number from 0 to 1", (1.1, "half"), {}),
        (Training, "warmup_updates", WARMUP, (0.5, -1), {}),
        (Training, "warmup_updates", WARMUP, (0,), {"schedule": "inverse_sqrt"}),
        (Training, "averaged_epochs", "a whole number from 0 to epochs=4", (1.5, 5, -1), {"epochs": 4}),
        (Training, "patience", COUNT, (0,), {}),
        (Training, "patience", EARLY_STOP, (3,), {"averaged_epochs": 2}),
    ],
)
def test_setting_out_of_range_raises(
    kind: Any, name: str, accepted: str, values: tuple[Any, ...], others: dict[str, Any]
) -> None:
    for value in values:
        reject(kind, accepted, name, **{name: value}, **others)


@pytest.mark.parametrize("kind", SETTINGS[:3])
def test_name_and_source_do_not_affect_equality(kind: Any) -> None:
    assert kind(name="a", source="b") == kind()
    assert hash(kind(name="a", source="b")) == hash(kind())
    assert kind(dropout=0.25) != kind()


def test_recipe_without_explicit_sizes_derives_them() -> None:
    assert Recipe().key_width == 32
    assert Recipe(head_width=6, heads=7).key_width == 6
    assert Recipe(dropout=0.25).attention_rate == Recipe(dropout=0.25).activation_rate == 0.25
    assert Recipe().epsilon == Recipe(norm="rms").epsilon == 1e-5
    assert Recipe(norm="handmade").epsilon == 1e-9
    assert Recipe(norm="handmade", norm_epsilon=0.1).epsilon == 0.1
    assert TorchReferenceRecipe().as_transformer() == Recipe()
    changed = TorchReferenceRecipe(width=64, heads=2, layers=1, ffn_width=8, dropout=0.0, max_length=9)
    assert changed.as_transformer() == Recipe(width=64, heads=2, layers=1, ffn_width=8, dropout=0.0, max_length=9)


def test_special_tokens_have_their_ids() -> None:
    assert (UNK, PAD, SOS, EOS) == (0, 1, 2, 3)
    assert SPECIAL_TOKENS == ("<unk>", "<pad>", "<sos>", "<eos>")


def test_teacher_forcing_mask_depends_on_seed_and_update_only() -> None:
    training = Training(teacher_forcing=0.5)
    mask = training.teacher_forcing_mask(0, 1, 1_000)
    assert mask.dtype == bool
    assert 400 < mask.sum() < 600
    assert (mask == training.teacher_forcing_mask(0, 1, 1_000)).all()
    assert (mask[:10] == training.teacher_forcing_mask(0, 1, 10)).all()
    assert (mask != training.teacher_forcing_mask(1, 1, 1_000)).any()
    assert (mask != training.teacher_forcing_mask(0, 2, 1_000)).any()
    assert Training(teacher_forcing=1.0).teacher_forcing_mask(0, 1, 1_000).all()
    assert not Training(teacher_forcing=0.0).teacher_forcing_mask(0, 1, 1_000).any()


def test_variant_has_registered_name_and_source() -> None:
    assert registry.names() == tuple(RECIPES) == tuple(TRAININGS)
    for name in registry.names():
        assert registry.recipe(name).name == name
        assert registry.recipe(name).source
        assert registry.training(name) == TRAININGS[name]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("impls.recipes", "'impls.recipes' does not name an object: write package.module:NAME"),
        ("no_such_module:X", "'no_such_module:X': there is no module 'no_such_module'"),
        ("impls.recipes:PAPPER", "'impls.recipes:PAPPER': impls.recipes has no 'PAPPER'; did you mean 'PAPER'?"),
        ("impls.recipes:tuned", "'impls.recipes:tuned': impls.recipes has no 'tuned'; did you mean 'TUNED'?"),
        ("impls.recipes:Zzzzz", "'impls.recipes:Zzzzz': impls.recipes has no 'Zzzzz'"),
    ],
)
def test_load_wrong_path_raises(path: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        registry.load(path)
    assert registry.load("impls.recipes:LEARNED_POSITIONS") is LEARNED_POSITIONS


def test_load_module_with_a_syntax_error_names_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "unfinished_module.py").write_text("RECIPE = 1\n\ndef build(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"^'unfinished_module:build': .*unfinished_module\.py, line 3: \w"):
        registry.load("unfinished_module:build")


def test_second_backend_of_a_process_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    keras: Any = ModuleType("keras")
    keras.__spec__, keras.config = ModuleSpec("keras", None), SimpleNamespace(backend=lambda: "tensorflow")
    monkeypatch.setitem(sys.modules, "keras", keras)
    with pytest.raises(ValueError, match="^backend 'torch': this process already runs Keras on 'tensorflow'.* kernel"):
        registry.builder("transformer", "keras", "torch")


def test_unknown_variant_suggests_nearest() -> None:
    for find in (registry.recipe, registry.training):
        with pytest.raises(ValueError, match="there is no variant 'papper'; did you mean 'paper'"):
            find("papper")


@pytest.mark.parametrize(("recipe", "framework"), [(GruRecipe(), "abacus"), (PlainRecipe(), "keras")])
def test_unsupported_framework_raises(recipe: Any, framework: str) -> None:
    with pytest.raises(ValueError, match=f"framework '{framework}' has no '{recipe.family}': use"):
        impls.build(recipe, 10, 10, framework=framework)


@pytest.mark.parametrize(
    ("framework", "backend", "package"),
    [
        ("torch", None, "torch"),
        ("keras", "tensorflow", "keras"),
        ("keras", "tensorflow", "tensorflow"),
        ("keras", "jax", "jax"),
        ("keras", "torch", "torch"),
    ],
)
def test_missing_package_of_a_framework_is_named(
    framework: str, backend: str | None, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == package else name)
    message = f"{package!r} is not installed: {registry.INSTALL[package]}"
    assert registry.missing(framework, backend) == message
    with pytest.raises(ValueError, match=re.escape(message)):
        impls.build(GruRecipe(), 10, 10, framework=framework, backend=backend)


@pytest.mark.parametrize("name", ["keras", "openvino"])
def test_unknown_keras_backend_raises(name: str) -> None:
    with pytest.raises(ValueError, match=f"unknown Keras backend '{name}': use tensorflow, jax, torch"):
        impls.build(GruRecipe(), 10, 10, framework="keras", backend=name)


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        ("source_vocabulary_size", 4, "more than the 4 special tokens"),
        ("target_vocabulary_size", 0, "more than the 4 special tokens"),
        ("seed", -1, "a whole number of at least 0"),
    ],
)
def test_build_and_wrap_reject_impossible_sizes_and_seeds(name: str, value: int, accepted: str) -> None:
    sizes = {"source_vocabulary_size": 10, "target_vocabulary_size": 10} | {name: value}
    for build, model in ((impls.build, GruRecipe()), (impls.wrap, lambda: None)):
        with pytest.raises(ValueError, match=f"^{name}={value}: expected {accepted}(: |$)"):
            build(model, **sizes)


def test_build_unknown_device_or_precision_raises() -> None:
    recipe = replace(LEARNED_POSITIONS, width=8, heads=2, layers=1, ffn_width=8)
    with pytest.raises(ValueError, match="unknown precision 'float8': use float32 or bfloat16"):
        impls.build(recipe, 10, 10, precision="float8")
    with pytest.raises(ValueError, match="device 'abacus' is not available"):
        impls.build(recipe, 10, 10, device="abacus")


def test_recipe_choices_are_literals() -> None:
    for kind in SETTINGS:
        assert {name for name, hint in get_type_hints(kind).items() if hint is str} <= {"name", "source"}
