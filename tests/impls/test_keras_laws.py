"""The laws hold in Keras too, on every backend. One process per backend runs all tasks.

By default the combined recipes run on TensorFlow, and on JAX the laws that parity with torch does not cover; the full
matrix is slow.
"""

from __future__ import annotations

import re
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
"""The variants of which reproducibility and resumption are tested on JAX by default.

`test_keras_parity` compares what JAX computes with torch by default: logits, gradients, updates and translations. All
laws together compile for about a minute.
"""
PRECISION_BITS = 8
"""The significant bits of a bfloat16 number."""


def cases(*tasks: Task, slow: bool = False) -> list[Any]:
    return [pytest.param(task, id=str(task), marks=[pytest.mark.slow] if slow else []) for task in tasks]


QUICK = [Task("tensorflow", "laws", name) for name in combinations()]
DROPPING = [Task("tensorflow", "laws", name, "dropout") for name in (THREE_RATES, "gru", *TRANSFORMERS)]
QUICK += DROPPING[:2]
REPEATED = [Task("jax", "laws", name, "repeated") for name in ON_JAX]
QUICK += REPEATED
EXAMPLE = "examples.keras_squared_relu:build"
QUICK.append(Task("keras-torch", "variant_laws", EXAMPLE))  # which compiles nothing, so it takes the least time
ALL = [Task(backend, "laws", name, "full") for backend in BACKENDS for name in RECIPES]
ALL += [Task("tensorflow", "laws", name) for name in RECIPES]
ALL += [Task(backend, "variant_laws", name, "full") for backend in BACKENDS for name in VARIANTS]
ALL += [Task("jax", "laws", name) for name in TRANSFORMERS] + DROPPING
ALL += [Task(backend, "variant_laws", EXAMPLE) for backend in BACKENDS]
SLOW = [task for task in ALL if task not in QUICK]


def test_default_tasks_cover_every_value_on_tensorflow_and_a_variant_on_jax() -> None:
    tested = {value for task in QUICK if task.backend == "tensorflow" for value in task.subject.split(",")}
    values = {f"{name}={value}" for name, value in choices(TransformerRecipe) if getattr(BASE, name) != value}
    assert tested >= values | {"gru"}
    assert {task.subject for task in QUICK if task.backend == "jax"} == set(ON_JAX) < set(TRANSFORMERS)
    assert len(TRANSFORMERS) == 5
    slow = {(task.backend, task.subject) for task in SLOW}
    assert slow >= {(backend, name) for backend in BACKENDS for name in RECIPES}


@pytest.mark.parametrize("task", cases(*QUICK) + cases(*SLOW, slow=True))
def test_keras_recipe_obeys_every_law_and_agrees_with_torch(task: Task, crew: Crew) -> None:
    arrays, remarks = crew.result(task)
    laws = remarks["laws"]
    assert [law["number"] for law in laws] == ([11, 13] if task in REPEATED else list(range(1, 15)))
    assert not [f"law {law['number']} {law['name']}: {law['detail']}" for law in laws if not law["passed"]]
    if task.kind == "variant_laws":
        assert laws[12]["detail"] == ""  # law 13 resumed in a new process
    if task.torch_task:
        agreements = compare(crew.result(task.torch_task)[0], arrays)
        assert {agreement.check for agreement in agreements} == {"logits", "gradients"}
        assert not [str(agreement) for agreement in agreements if not agreement.holds]
    assert set(remarks["frameworks"]) == {task.backend.removeprefix("keras-")}


@pytest.mark.parametrize(
    "task",
    cases(Task("tensorflow", "network", "squared_relu"))
    + cases(*(Task(backend, "network", "squared_relu") for backend in BACKENDS[1:]), slow=True),
)
def test_keras_network_of_a_user_replaces_that_of_the_recipe(task: Task, crew: Crew) -> None:
    arrays, remarks = crew.result(task)
    assert np.abs(arrays["recipe"] - arrays["squared"]).max() > 1e-2
    assert remarks["errors"][0] == "SameNames: layers with weights need different names"
    assert remarks["errors"][1].startswith("weight 'gain' has no layer's name")
    for error, name, weight in zip(
        remarks["errors"][2:4], ("Normalised", "Frozen"), ("batch_norm/moving_mean", "outer/kernel"), strict=True
    ):
        assert re.search(f"^{name}: '.*{weight}' is not trained, and only trained weights are stored: use ", error)
    for error, name, weight in zip(remarks["errors"][4:6], ("Hidden", "Late"), ("mix", "late"), strict=True):
        assert re.search(f"^{name}: '.*-{weight}/.*' is not part of the network, so it is neither trained nor", error)
    assert re.search(r"^Unnamed: the name of weight 'dense\S*' is automatic, and another one for", remarks["errors"][6])
    assert re.search(r"^network=<class .*Hidden'>: use a subclass of \S+\.TransformerNetwork, ", remarks["errors"][7])
    inner = [f"{part}.{kind}" for part in ("attention_output", "key", "query", "value") for kind in ("bias", "kernel")]
    sides = [f"{side}.{index}.feed_forward" for side in ("decoder", "encoder") for index in range(2)]
    new = [f"{layer}.{name}" for layer in sides for name in ("gain", *(f"mix.{part}" for part in inner))]
    assert remarks["weights"] == sorted([*new, "decoder.bias", "decoder.kernel"])


SMALL = ("base", "gru")


@pytest.mark.parametrize(
    "task",
    cases(Task("tensorflow", "bfloat16", "base"))
    + cases(Task("tensorflow", "bfloat16", "gru"), slow=True)
    + cases(*(Task(backend, "bfloat16", name) for backend in BACKENDS[1:] for name in SMALL), slow=True),
)
def test_keras_bfloat16_is_close_to_float32_and_learns(task: Task, crew: Crew) -> None:
    arrays, remarks = crew.result(task)
    exact, low = arrays["logits float32"], arrays["logits bfloat16"]
    assert 0 < np.abs(exact - low).max() < np.abs(exact).max() * 2.0**-PRECISION_BITS * 10
    assert np.isfinite(arrays["log-probabilities"]).all()
    before, after = arrays["losses"]
    assert after < before / 2
    assert remarks["types"] == ["float32"]


@pytest.mark.parametrize("task", cases(*(Task(backend, "compilations", "base") for backend in BACKENDS[:2])))
def test_keras_random_batches_compile_few_shapes(task: Task, crew: Crew) -> None:
    arrays, _ = crew.result(task)
    most, most_padding = {"tensorflow": (1, 1.0), "jax": (10, 1.15)}[task.backend]
    assert arrays["compilations"] <= most
    assert 1 <= arrays["rows"] / arrays["tokens"] <= most_padding
