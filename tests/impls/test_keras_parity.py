"""Torch and Keras compute the same function up to float32 rounding, and an error in one of them is noticed.

Both start from the same canonical weights and see the same batches. The full-size comparison on Multi30k is slow;
with -s it prints a line of JSON for each variant and backend.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keras_plants import PLANTS
from parity_cases import LOGITS, NO_GRADIENT, VARIANTS, broken, case, compare
from worker_tasks import Crew, Task

BACKENDS = ("tensorflow", "jax")
PLANTED = {plant.variant for plant in PLANTS.values()}
DEFAULT = {"torch": PLANTED, "tensorflow": PLANTED, "jax": {"learned_positions"}}
"""The variants that are compared by default on each backend; all others are slow."""


def tasks(kind: str, backends: tuple[str, ...] = BACKENDS, *, size: str = "small") -> list[Any]:
    """Return a parameter for each backend and variant, marked slow unless it is small and in `DEFAULT`.

    That the tolerances are strict enough is tested on TensorFlow by default: it does not depend on the backend.
    """
    default = {} if size == "full" else {**DEFAULT, "jax": ()} if kind == "nudged" else DEFAULT
    return [
        pytest.param(
            Task(backend, kind, variant, size),
            id=f"{variant} {backend}",
            marks=[] if variant in default.get(backend, ()) else [pytest.mark.slow],
        )
        for backend in backends
        for variant in VARIANTS
    ]


def agreement(task: Task, crew: Crew, record: Any) -> set[str]:
    """Return the failing checks, and record and print all checks."""
    expected, _ = crew.result(task.torch_task)
    actual, remarks = crew.result(task)
    agreements = compare(expected, actual)
    checks = {agreement.check: asdict(agreement) for agreement in agreements}
    record(str(task), json.dumps(checks))
    sys.stdout.write(json.dumps({"task": str(task), "seconds": round(remarks["seconds"], 1), "checks": checks}) + "\n")
    return broken(agreements)


@pytest.mark.parametrize("task", tasks("parity", (*BACKENDS, "keras-torch")))
def test_torch_and_keras_agree(task: Task, crew: Crew, record_property: Any) -> None:
    assert agreement(task, crew, record_property) == set()


@pytest.mark.parametrize("task", tasks("parity", (*BACKENDS, "keras-torch"), size="full"))
def test_torch_and_keras_agree_at_full_size_on_multi30k(
    task: Task, multi30k_folder: Path, crew: Crew, record_property: Any
) -> None:
    assert agreement(task, crew, record_property) == set()


@pytest.mark.parametrize("task", tasks("parity", ("torch",)))
def test_compared_values_are_not_trivial(task: Task, crew: Crew) -> None:
    """Clipping is active, losses fall, gradients are not 0, and translations differ and end."""
    result, _ = crew.result(task)
    parity_case = case(task.subject, task.size)
    assert result["logits"].std() > 0.1
    gradients = [name for name in result if name.startswith("gradient/") and not name.endswith(NO_GRADIENT)]
    assert all(np.abs(result[name]).max() >= 1e-5 for name in gradients)
    assert result["norms"].max() > parity_case.training.clip_norm
    assert result["losses"][-1] < 0.9 * result["losses"][0]
    for name in ("greedy", "beam"):
        assert len({tuple(words) for words in result[name].tolist()}) > parity_case.sentences / 2
        assert (result[f"{name} ties"] > 0).sum() <= parity_case.sentences / 5
    assert (result["greedy"] != result["beam"]).any()


@pytest.mark.parametrize("task", tasks("nudged"))
def test_relative_change_of_a_thousandth_in_any_tensor_fails(task: Task, crew: Crew) -> None:
    expected, _ = crew.result(task.torch_task)
    actual, _ = crew.result(task)
    present = {name.removeprefix("gradient/") for name in expected if name.startswith("gradient/")}
    assert actual.keys() == {name for name in present if not name.endswith(NO_GRADIENT)}
    unnoticed = {
        name: float(np.abs(wrong - expected["logits"]).max())
        for name, wrong in actual.items()
        if broken(compare({"logits": expected["logits"]}, {"logits": wrong})) != {"logits"}
    }
    assert not unnoticed, f"within the tolerance of {LOGITS}"


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(
            Task(backend, "faulty", PLANTS[plant].variant, plant=plant),
            id=f"{plant} {backend}",
            marks=[pytest.mark.slow] * (backend != "tensorflow"),
        )
        for backend in BACKENDS
        for plant in PLANTS
    ],
)
def test_planted_error_fails(task: Task, crew: Crew, record_property: Any) -> None:
    failed = agreement(task, crew, record_property)
    assert failed >= PLANTS[task.plant].fails
    if task.plant == "epsilon of Keras's Adam":
        assert not failed & {"logits", "gradients"}  # it is in the update alone


def test_compare_accepts_ties_and_rejects_nan() -> None:
    words = np.array([[5, 6], [7, 8], [9, 1]])
    expected = {"greedy": words, "greedy ties": np.array([0, 1, 0]), "greedy log-probabilities": np.zeros(3)}

    def failing(row: int, log_probabilities: Any = 0.0) -> set[str]:
        changed = words.copy()
        changed[row, 1] += 1
        actual = {"greedy": changed, "greedy log-probabilities": np.zeros(3) + log_probabilities}
        return broken(compare(expected, actual))

    assert failing(1) == set()
    assert failing(0) == {"greedy"}
    assert failing(1, np.array([0.0, 9.0, 2e-4])) == {"greedy log-probabilities"}
    for name, check in (("logits", "logits"), ("gradient/a", "gradients"), ("weight/a", "weights")):
        assert broken(compare({name: np.ones(2)}, {name: np.array([1, np.nan])})) == {check}
        assert broken(compare({name: np.ones(2)}, {name: np.ones(2)})) == set()
