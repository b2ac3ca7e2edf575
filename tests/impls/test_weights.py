"""Canonical weights: names, shapes, number and initial values."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_models import BASE, GRU, MAX_LENGTH, all_recipes

import impls
from impls.contract import GruRecipe, Recipe, TransformerRecipe
from impls.pytorch.torch_transformer import Embedder
from impls.weights import check, count, draw, embedding_rms, initial, shapes

POSITIONS = {"source.positions", "target.positions"}
NORMS = {name for name in shapes(BASE, 37, 41) if ".norm." in name}
FINAL_NORMS = {f"{side}.norm.{part}" for side in ("encoder", "decoder") for part in ("scale", "shift")}
SMALL = TransformerRecipe(width=128, layers=1, heads=4, ffn_width=256)
GATES = {
    f"{side}.{layer}.feed_forward.gate.{part}"
    for side in ("encoder", "decoder")
    for layer in (0, 1)
    for part in ("kernel", "bias")
}


@pytest.mark.parametrize(
    ("field", "value", "removed", "added"),
    [
        ("positions", "sinusoidal", POSITIONS, set()),
        ("positions", "rotary", POSITIONS, set()),
        ("tying", "output", {"output.kernel"}, set()),
        ("ffn", "conv1d", set(), set()),
        ("norm", "handmade", set(), set()),
        ("embedding_scale", "none", set(), set()),
        ("norm", "none", NORMS, set()),
        ("norm", "rms", {name for name in NORMS if name.endswith(".shift")}, set()),
        ("norm_order", "pre", set(), FINAL_NORMS),
        ("ffn", "gated", set(), GATES),
    ],
)
def test_choice_changes_expected_tensors_only(field: str, value: str, removed: set[str], added: set[str]) -> None:
    before, after = shapes(BASE, 37, 41), shapes(replace(BASE, **{field: value}), 37, 41)
    assert before.keys() - after.keys() == removed
    assert after.keys() - before.keys() == added
    assert {name: after[name] for name in before.keys() - removed}.items() <= before.items()


def test_joint_embedding_counts_once() -> None:
    joint = replace(BASE, tying="all")
    assert shapes(BASE, 37, 37).keys() - shapes(joint, 37, 37).keys() == {"source.embedding", "output.kernel"}
    assert count(BASE, 37, 37) - count(joint, 37, 37) == 2 * 37 * 32
    message = "tying='all' needs one joint vocabulary, but the sizes are 37 .source. and 41 .target."
    with pytest.raises(ValueError, match=message):
        shapes(joint, 37, 41)


def test_check_names_the_first_wrong_tensors() -> None:
    arrays = initial(BASE, 37, 41, seed=0)
    check(arrays, shapes(BASE, 37, 41))
    with pytest.raises(ValueError, match=r"^missing output\.bias; unexpected extra$"):
        check(
            {name: value for name, value in arrays.items() if name != "output.bias"} | {"extra": arrays["output.bias"]},
            shapes(BASE, 37, 41),
        )
    with pytest.raises(ValueError, match=r"^source\.embedding has shape \(37, 32\), expected \(38, 32\)$"):
        check(arrays, shapes(BASE, 38, 41))
    with pytest.raises(ValueError, match=rf"^missing (.*; missing ){{4}}.*; and {len(arrays) - 5} more$"):
        check({}, shapes(BASE, 37, 41))


@pytest.mark.parametrize("name", all_recipes())
def test_recipes_share_initial_tensors(name: str) -> None:
    recipe = all_recipes()[name]
    base = initial(GRU if isinstance(recipe, GruRecipe) else BASE, 37, 37, seed=3)
    weights = initial(recipe, 37, 37, seed=3)
    assert {tensor: value.shape for tensor, value in weights.items()} == shapes(recipe, 37, 37)
    assert {value.dtype for value in weights.values()} == {np.dtype(np.float32)}
    other_embeddings = getattr(recipe, "embedding_init", "xavier") != "xavier"
    shared = [tensor for tensor in weights.keys() & base.keys() if weights[tensor].shape == base[tensor].shape]
    assert shared
    for tensor in shared:
        differs = other_embeddings and tensor.endswith((".embedding", ".positions"))
        assert np.array_equal(weights[tensor], base[tensor]) is not differs, tensor


@pytest.mark.parametrize("recipe", [BASE, GRU], ids=["transformer", "gru"])
def test_initial_weights_depend_on_seed_and_name(recipe: Recipe) -> None:
    first, repeated, second = (initial(recipe, 37, 37, seed=seed) for seed in (0, 0, 1))
    random = [name for name in first if name.endswith((".kernel", ".embedding", ".positions"))]
    for name in random:
        assert first[name].tobytes() == repeated[name].tobytes()
        assert not (first[name] == second[name]).any(), name
    assert len({first[name].tobytes() for name in random}) == len(random)


@pytest.mark.parametrize("recipe", [BASE, replace(BASE, embedding_init="xavier"), GRU], ids=["normal", "xavier", "gru"])
def test_initial_weights_drawn_in_blocks_are_those_drawn_at_once(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = initial(recipe, 37, 37, seed=0)
    monkeypatch.setattr("impls.weights.BLOCK", 99)
    in_blocks = initial(recipe, 37, 37, seed=0)
    assert {name: value.tobytes() for name, value in in_blocks.items()} == {
        name: value.tobytes() for name, value in at_once.items()
    }


@pytest.mark.parametrize(
    ("recipe", "matrices", "tables"),
    [
        (SMALL, "xavier", "xavier"),
        (replace(SMALL, embedding_init="normal"), "xavier", 1.0),
        (replace(SMALL, embedding_init="width"), "xavier", 128**-0.5),
        (GruRecipe(embedding_width=96, width=128), 0.01, 0.01),
    ],
    ids=["xavier", "normal", "width", "gru"],
)
def test_initial_values_have_their_distributions(recipe: Recipe, matrices: Any, tables: Any) -> None:
    for name, value in initial(recipe, 500, 700, seed=0).items():
        deviation = tables if name.endswith((".embedding", ".positions")) else matrices
        if value.ndim == 1:
            assert (value == (1 if name.endswith(".scale") else 0)).all(), name
            continue
        bound = math.sqrt(6 / sum(value.shape))
        if deviation == "xavier":
            assert 0.99 * bound < np.abs(value).max() <= bound * (1 + 1e-6), name
            deviation = bound / math.sqrt(3)
        few = 3 / math.sqrt(2 * value.size)  # the relative error of a deviation, three times
        assert value.std() == pytest.approx(deviation, rel=max(0.03, few)), name
        assert value.mean() == pytest.approx(0, abs=4 * deviation / math.sqrt(value.size)), name


def test_xavier_bound_of_a_convolution_counts_its_width() -> None:
    matrix, kernel = (draw(SMALL, "conv.kernel", shape, 0) for shape in ((64, 128), (3, 64, 128)))
    assert np.abs(matrix).max() == pytest.approx(math.sqrt(6 / 192), rel=0.01)
    assert np.abs(kernel).max() == pytest.approx(math.sqrt(6 / (3 * 192)), rel=0.01)


def test_single_number_has_one_input_and_one_output() -> None:
    drawn = np.array([draw(SMALL, f"layer.{index}.gain", (), 0) for index in range(1_000)])
    assert drawn.shape == (1_000,)
    assert np.abs(drawn).max() == pytest.approx(math.sqrt(6 / 2), rel=0.01)


@pytest.mark.parametrize(
    ("positions", "expected"),
    [("learned", math.sqrt(2 / (MAX_LENGTH + 32))), ("sinusoidal", math.sqrt(0.5)), ("none", 0)],
)
def test_position_rms_by_kind(positions: Any, expected: float) -> None:
    recipe = replace(BASE, positions=positions)
    rms = embedding_rms(recipe, initial(recipe, 37, 41, seed=0))
    assert sorted(rms) == ["position_rms", "source_embedding_rms", "target_embedding_rms"]
    assert embedding_rms(None, {}) == {}
    assert rms["position_rms"] == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("scale", ["sqrt_width", "none"])
@pytest.mark.parametrize("tying", ["none", "all"])
def test_embedding_rms_equals_added_vectors(scale: Any, tying: Any) -> None:
    torch = pytest.importorskip("torch")
    recipe = replace(BASE, positions="none", embedding_scale=scale, tying=tying, dropout=0.0)
    weights = initial(recipe, 41, 41, seed=0)
    model: Any = impls.build(recipe, 41, 41, seed=0)
    name = "target.embedding" if tying == "all" else "source.embedding"
    embedder = Embedder(recipe, torch.nn.Embedding.from_pretrained(torch.tensor(weights[name])), torch.nn.Identity())
    added = embedder(torch.arange(41), torch.zeros(41, dtype=torch.int64)).numpy()
    assert np.array_equal(model.weights()[name], weights[name])
    result = embedding_rms(recipe, model.weights())["source_embedding_rms"]
    assert result == pytest.approx(np.sqrt(np.square(added).mean()), rel=1e-6)
