"""Canonical weights: names, shapes, number and initial values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_models import BASE, GRU, MAX_LENGTH, REFERENCE, all_recipes

import impls
from impls.contract import GruRecipe, Recipe, TransformerRecipe
from impls.formulas import sinusoids
from impls.pytorch.torch_transformer import Embedder
from impls.recipes import BAHDANAU_GRU, LEARNED_POSITIONS, TORCH_REFERENCE
from impls.weights import count, embedding_rms, expected_embedding_rms, initial, shapes


@pytest.mark.parametrize(
    ("recipe", "parameters"),
    [(LEARNED_POSITIONS, 9_038_341), (TORCH_REFERENCE, 9_038_341), (BAHDANAU_GRU, 20_518_405)],
)
def test_parameters_at_multi30k_vocabularies(recipe: Recipe, parameters: int) -> None:
    assert count(recipe, 7_853, 5_893) == parameters


def test_shapes_of_base_recipe() -> None:
    result = shapes(BASE, 37, 41)
    assert result["source.embedding"] == (37, 32)
    assert result["target.embedding"] == (41, 32)
    assert result["source.positions"] == result["target.positions"] == (MAX_LENGTH, 32)
    assert result["encoder.1.feed_forward.inner.kernel"] == (32, 48)
    assert result["encoder.1.feed_forward.outer.kernel"] == (48, 32)
    assert result["decoder.0.cross.norm.shift"] == (32,)
    assert result["output.kernel"] == (32, 41)
    assert result["output.bias"] == (41,)
    assert not any(name.startswith(("encoder.2", "encoder.norm", "encoder.0.cross")) for name in result)
    assert sum(name.endswith(".kernel") for name in result) == 2 * 6 + 2 * 10 + 1


def test_shapes_of_gru() -> None:
    result = shapes(GruRecipe(embedding_width=5, width=3), 37, 41)
    assert result["encoder.backward.input.kernel"] == (5, 9)
    assert result["encoder.backward.hidden.kernel"] == (3, 9)
    assert result["bridge.kernel"] == (6, 3)
    assert result["attention.energy.kernel"] == (9, 3)
    assert result["attention.score.kernel"] == (3, 1)
    assert "attention.score.bias" not in result
    assert result["decoder.input.kernel"] == (11, 9)
    assert result["output.kernel"] == (14, 41)


@pytest.mark.parametrize(
    ("field", "word", "gone", "new"),
    [
        ("positions", "sinusoidal", {"source.positions", "target.positions"}, set()),
        ("positions", "rotary", {"source.positions", "target.positions"}, set()),
        ("tying", "output", {"output.kernel"}, set()),
        ("ffn", "conv1d", set(), set()),
        ("norm", "handmade", set(), set()),
        ("embedding_scale", "none", set(), set()),
        ("norm_order", "pre", set(), {f"{s}.norm.{p}" for s in ("encoder", "decoder") for p in ("scale", "shift")}),
        (
            "ffn",
            "gated",
            set(),
            {
                f"{s}.{i}.feed_forward.gate.{p}"
                for s in ("encoder", "decoder")
                for i in (0, 1)
                for p in ("kernel", "bias")
            },
        ),
    ],
)
def test_choice_changes_expected_tensors_only(field: str, word: str, gone: set[str], new: set[str]) -> None:
    before, after = shapes(BASE, 37, 41), shapes(replace(BASE, **{field: word}), 37, 41)
    assert before.keys() - after.keys() == gone
    assert after.keys() - before.keys() == new
    assert {name: after[name] for name in before.keys() & after.keys()} == {n: before[n] for n in before.keys() - gone}


def test_norms_have_expected_tensors() -> None:
    assert not [name for name in shapes(replace(BASE, norm="none"), 37, 41) if ".norm." in name]
    rms = [name for name in shapes(replace(BASE, norm="rms"), 37, 41) if ".norm." in name]
    assert rms
    assert all(name.endswith(".scale") for name in rms)


def test_joint_embedding_counts_once() -> None:
    free, tied = shapes(BASE, 37, 37), shapes(replace(BASE, tying="all"), 37, 37)
    assert free.keys() - tied.keys() == {"source.embedding", "output.kernel"}
    assert count(BASE, 37, 37) - count(replace(BASE, tying="all"), 37, 37) == 2 * 37 * 32
    with pytest.raises(
        ValueError, match="tying='all' needs one joint vocabulary, but the sizes are 37 .source. and 41 .target."
    ):
        shapes(replace(BASE, tying="all"), 37, 41)


def test_torch_reference_has_tensors_of_learned_positions() -> None:
    assert shapes(REFERENCE, 37, 41) == shapes(REFERENCE.as_transformer(), 37, 41) == shapes(BASE, 37, 41)


@pytest.mark.parametrize("name", all_recipes())
def test_recipes_share_initial_tensors(name: str) -> None:
    recipe = all_recipes()[name]
    twin = GRU if isinstance(recipe, GruRecipe) else BASE
    own, base = initial(recipe, 37, 37, seed=3), initial(twin, 37, 37, seed=3)
    assert {tensor: value.shape for tensor, value in own.items()} == shapes(recipe, 37, 37)
    assert {value.dtype for value in own.values()} == {np.dtype(np.float32)}
    redrawn = getattr(recipe, "embedding_init", "xavier") != "xavier"
    shared = [tensor for tensor in own.keys() & base.keys() if own[tensor].shape == base[tensor].shape]
    assert shared
    for tensor in shared:
        embedding = tensor.endswith((".embedding", ".positions"))
        assert np.array_equal(own[tensor], base[tensor]) is not (redrawn and embedding), tensor


@pytest.mark.parametrize("recipe", [BASE, GRU], ids=["transformer", "gru"])
def test_initial_weights_depend_on_seed_and_name(recipe: Recipe) -> None:
    first, again, other = (initial(recipe, 37, 37, seed=seed) for seed in (0, 0, 1))
    drawn = [name for name in first if name.endswith((".kernel", ".embedding", ".positions"))]
    for name in drawn:
        assert first[name].tobytes() == again[name].tobytes()
        assert not (first[name] == other[name]).any(), name
    assert len({first[name].tobytes() for name in drawn}) == len(drawn)


def test_width_embeddings_have_unit_variance_after_scaling() -> None:
    recipe = TransformerRecipe(width=64, layers=1, heads=4, embedding_init="width")
    drawn = initial(recipe, 500, 700, seed=0)
    for name in ("source.embedding", "target.embedding", "source.positions"):
        assert drawn[name].std() * math.sqrt(recipe.width) == pytest.approx(1, abs=0.02), name
        assert drawn[name].mean() == pytest.approx(0, abs=0.01), name


def test_transformer_matrices_are_xavier_uniform() -> None:
    recipe = TransformerRecipe(width=128, layers=1, heads=4, ffn_width=256)
    for name, value in initial(recipe, 500, 700, seed=0).items():
        if value.ndim == 2:
            bound = math.sqrt(6 / sum(value.shape))
            assert 0.99 * bound < np.abs(value).max() <= bound * (1 + 1e-6), name
            assert value.std() == pytest.approx(bound / math.sqrt(3), rel=0.03), name
        else:
            assert (value == (1 if name.endswith(".scale") else 0)).all(), name


def test_initial_deviations_of_embeddings_and_gru() -> None:
    recipe = TransformerRecipe(width=128, layers=1, heads=4, ffn_width=256, embedding_init="normal")
    result = initial(recipe, 500, 700, seed=0)
    for name in ("source.embedding", "target.embedding", "source.positions"):
        assert result[name].std() == pytest.approx(1, rel=0.03), name
    assert result["output.kernel"].std() < 0.2
    for name, value in initial(GruRecipe(embedding_width=96, width=128), 500, 700, seed=0).items():
        deviation = 0 if name.endswith(".bias") else 0.01
        assert value.std() == pytest.approx(deviation, rel=0.2), name


@pytest.mark.parametrize("name", all_recipes())
def test_expected_embedding_rms_equals_average(name: str) -> None:
    recipe = all_recipes()[name]
    tables = {name: one for name, one in initial(recipe, 700, 700, seed=0).items() if not name.endswith("kernel")}
    measured, expected = embedding_rms(recipe, tables), expected_embedding_rms(recipe, 700, 700)
    assert measured.keys() == expected.keys() == {"source_embedding_rms", "target_embedding_rms", "position_rms"}
    assert measured == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        ("learned", math.sqrt(2 / (MAX_LENGTH + 32))),
        ("sinusoidal", math.sqrt(0.5)),
        ("rotary", 0),
        ("alibi", 0),
        ("none", 0),
    ],
)
def test_position_rms_by_kind(positions: Any, expected: float) -> None:
    recipe = replace(BASE, positions=positions)
    actual = embedding_rms(recipe, initial(recipe, 37, 41, seed=0))["position_rms"]
    assert actual == pytest.approx(expected, rel=0.05)
    if positions == "sinusoidal":
        assert actual == pytest.approx(np.sqrt(np.square(sinusoids(MAX_LENGTH, 32)).mean()))


@pytest.mark.parametrize("scale", ["sqrt_width", "none"])
@pytest.mark.parametrize("tying", ["none", "all"])
def test_embedding_rms_equals_added_vectors(scale: Any, tying: Any) -> None:
    torch = pytest.importorskip("torch")
    recipe = replace(BASE, positions="none", embedding_scale=scale, tying=tying, dropout=0.0)
    drawn = initial(recipe, 41, 41, seed=0)
    model: Any = impls.build(recipe, 41, 41, seed=0)
    name = "target.embedding" if tying == "all" else "source.embedding"
    embedder = Embedder(recipe, torch.nn.Embedding.from_pretrained(torch.tensor(drawn[name])), torch.nn.Identity())
    added = embedder(torch.arange(41), torch.zeros(41, dtype=torch.int64)).numpy()
    assert np.array_equal(model.weights()[name], drawn[name])
    result = embedding_rms(recipe, model.weights())["source_embedding_rms"]
    assert result == pytest.approx(np.sqrt(np.square(added).mean()), rel=1e-6)


def test_embedding_rms_without_recipe_is_empty() -> None:
    assert embedding_rms(None, {"anything": np.ones(3, np.float32)}) == {}
