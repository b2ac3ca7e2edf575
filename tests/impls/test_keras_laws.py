"""The laws hold in Keras too, on every backend. One process per backend runs all tasks.

By default the combined recipes run on TensorFlow and one variant on JAX; the full matrix is slow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from parity_cases import VARIANTS as COMPARED
from parity_cases import compare
from small_models import BASE, THREE_RATES, all_recipes, choices, combinations
from worker_tasks import Crew, Task

from impls.contract import TransformerRecipe

RECIPES = [name for name in all_recipes() if name not in ("torch_reference", "plain")]
VARIANTS = [name for name in COMPARED if name != "torch_reference"]
TRANSFORMERS = [name for name in VARIANTS if name != "bahdanau_gru"]
BACKENDS = ("tensorflow", "jax", "keras-torch")
ON_JAX = ("learned_positions",)
"""The variants that are tested on JAX by default; compiling takes about a minute each."""
PRECISION_BITS = 8
"""The significant bits of a bfloat16 number."""


def cases(*tasks: Task, slow: bool = False) -> list[Any]:
    return [pytest.param(task, id=str(task), marks=[pytest.mark.slow] if slow else []) for task in tasks]


MIXED = [name for name in combinations() if "head_width" not in name]
QUICK = [Task("tensorflow", "laws", name) for name in (*MIXED, "gru")]
DROPPING = [Task("tensorflow", "laws", name, "dropout") for name in (THREE_RATES, *TRANSFORMERS)]
QUICK += DROPPING[:1]
QUICK += [Task("jax", "laws", name) for name in ON_JAX]
ALL = [Task(backend, "laws", name, "full") for backend in BACKENDS for name in RECIPES]
ALL += [Task("tensorflow", "laws", name) for name in RECIPES]
ALL += [Task(backend, "variant_laws", name, "full") for backend in BACKENDS for name in VARIANTS]
ALL += [Task("jax", "laws", name) for name in TRANSFORMERS] + DROPPING
SLOW = [task for task in ALL if task not in QUICK]


def test_default_tasks_cover_every_value_on_tensorflow_and_a_variant_on_jax() -> None:
    tested = {value for task in QUICK if task.backend == "tensorflow" for value in task.subject.split(",")}
    values = {f"{name}={value}" for name, value in choices(TransformerRecipe) if getattr(BASE, name) != value}
    assert tested >= values | {"gru"}
    assert {task.subject for task in QUICK if task.backend == "jax"} == set(ON_JAX) < set(TRANSFORMERS)
    assert len(TRANSFORMERS) == 5
    assert {(task.backend, task.subject) for task in SLOW} >= {(one, name) for one in BACKENDS for name in RECIPES}


@pytest.mark.parametrize("task", cases(*QUICK) + cases(*SLOW, slow=True))
def test_keras_recipe_obeys_every_law_and_agrees_with_torch(task: Task, crew: Crew) -> None:
    arrays, remarks = crew.result(task)
    result = remarks["laws"]
    assert [law["number"] for law in result] == list(range(1, 15))
    assert not [f"law {law['number']} {law['name']}: {law['detail']}" for law in result if not law["passed"]]
    if task.kind == "variant_laws":
        assert result[12]["detail"] == ""  # law 13 resumed in a new process
    if task.torch_s:
        agreements = compare(crew.result(task.torch_s)[0], arrays)
        assert {one.check for one in agreements} == {"logits", "gradients"}
        assert not [str(one) for one in agreements if not one.holds]
    assert set(remarks["frameworks"]) == {task.backend.removeprefix("keras-")}


@pytest.mark.parametrize(
    "task",
    cases(*(Task("tensorflow", "dropout_losses", name) for name in ("base", "gru")))
    + cases(
        *(Task(one, "dropout_losses", name) for one in ("jax", "keras-torch") for name in ("base", "gru")), slow=True
    ),
)
def test_keras_dropout_depends_on_seed_and_update_only(task: Task, crew: Crew) -> None:
    result, _ = crew.result(task)
    straight = result["straight"]
    assert len(set(straight.tolist())) == len(straight), "two updates have the same dropout"
    assert result["disturbed"].tolist() == straight.tolist()
    assert result["resumed"].tolist() == straight[2:].tolist()
    assert not set(result["other seed"].tolist()) & set(straight.tolist())


@pytest.mark.parametrize(
    "task",
    cases(Task("tensorflow", "bfloat16", "base"))
    + cases(
        Task("tensorflow", "bfloat16", "gru"),
        *(Task(one, "bfloat16", name) for one in ("jax", "keras-torch") for name in ("base", "gru")),
        slow=True,
    ),
)
def test_keras_bfloat16_is_close_to_float32_and_learns(task: Task, crew: Crew) -> None:
    result, remarks = crew.result(task)
    exact, low = result["logits float32"], result["logits bfloat16"]
    apart = np.abs(exact - low).max()
    assert 0 < apart < np.abs(exact).max() * 2.0**-PRECISION_BITS * 10
    assert np.isfinite(result["log-probabilities"]).all()
    before, after = result["losses"]
    assert after < before / 2
    assert remarks["types"] == ["float32"]


@pytest.mark.parametrize(
    "task",
    cases(Task("torch", "rates", "base")) + cases(*(Task(one, "rates", "base") for one in BACKENDS), slow=True),
)
def test_attention_and_activation_dropout_have_separate_rates(task: Task, crew: Crew) -> None:
    result, _ = crew.result(task)
    still = {name for name, losses in result.items() if len(set(losses.tolist())) == 1}
    assert still == {"attention/attention", "activation/activation"}
    assert result["all/nothing"].tolist() == result["all, in words/nothing"].tolist()
    assert not set(result["all/nothing"].tolist()) & set(result["all but attention/nothing"].tolist())
    assert not set(result["all/nothing"].tolist()) & set(result["all but activation/nothing"].tolist())


@pytest.mark.parametrize(
    "task",
    cases(*(Task("tensorflow", "packing", name) for name in ("base", "gru")), Task("jax", "packing", "base"))
    + cases(
        Task("jax", "packing", "gru"), *(Task("keras-torch", "packing", name) for name in ("base", "gru")), slow=True
    ),
)
def test_keras_packing_changes_no_value(task: Task, crew: Crew) -> None:
    actual, _ = crew.result(task)
    packed = {name.removeprefix("packed/"): value for name, value in actual.items() if name.startswith("packed/")}
    assert any(name.startswith("first_moment/") for name in packed)
    for name, value in packed.items():
        expected = actual[f"padded/{name}"]
        np.testing.assert_allclose(
            value, expected, rtol=1e-5, atol=1e-6 * max(1.0, np.abs(expected).max()), err_msg=name
        )
    assert actual["tokens"] <= actual["packed rows"] < 0.8 * actual["padded rows"]
    if task.backend != "jax":
        assert actual["packed rows"] == actual["tokens"]


@pytest.mark.parametrize("task", cases(*(Task(one, "compilations", "base") for one in ("tensorflow", "jax"))))
def test_keras_random_batches_compile_few_shapes(task: Task, crew: Crew) -> None:
    result, _ = crew.result(task)
    assert result["compilations"] <= {"tensorflow": 1, "jax": 10}[task.backend]
    assert 1 <= result["rows"] / result["tokens"] <= {"tensorflow": 1.0, "jax": 1.15}[task.backend]
