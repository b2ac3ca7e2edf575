"""Commands choose the backend of Keras before they import an external variant, and refuse models that do not fit."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_line import Refused
from counting_model import CountingModel
from small_runs import OPTIONS

from harness.cli.main import main
from harness.storage import run_store
from impls import registry
from impls.contract import Training

pytestmark = pytest.mark.usefixtures("offline", "empty_folder", "one_process")

SMALL = " ".join(["--epochs 1", *OPTIONS])
ON_JAX = "--framework keras --backend jax"
LAWS = "laws --fast --law 9 --variant"


@pytest.fixture(autouse=True)
def _not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "backend_model", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)


def test_laws_test_an_external_variant_on_the_chosen_backend() -> None:
    assert main(f"{LAWS} backend_model:build {ON_JAX}".split()) == 0
    assert sys.modules["backend_model"].BACKEND == "jax"


def test_laws_without_a_framework_accept_any_external_variant() -> None:
    assert main(f"{LAWS} backend_model:build --variant counting_model:build".split()) == 0


@pytest.mark.parametrize(
    ("chosen", "from_adapter", "accepted"),
    [
        (("keras", "torch"), True, True),
        (("torch", None), True, False),  # as with KERAS_BACKEND=torch, but without --framework keras
        (("keras", "jax"), True, False),
        (("keras", "torch"), False, True),
        (("torch", None), False, True),
        (("keras", "jax"), False, False),
    ],
)
def test_model_that_compiles_on_torch_is_accepted_in_its_framework(
    chosen: tuple[str, str | None], from_adapter: bool, accepted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import backend_model

    monkeypatch.setattr(backend_model, "BACKEND", "torch")
    adapter = SimpleNamespace(KerasModel=backend_model.BackendModel if from_adapter else dict)
    monkeypatch.setitem(sys.modules, "impls.keras3.keras_adapter", adapter)
    model = backend_model.build(10, 10, training=Training(), seed=0)
    message = "keras on jax: use --framework" if "jax" in chosen else "torch: use --framework keras --backend torch"
    with contextlib.nullcontext() if accepted else pytest.raises(ValueError, match=f"does not compute with {message}"):
        registry.check_computes("backend_model:build", model, *chosen)


def test_translate_uses_the_backend_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # as in the process of a run
    assert main(f"run backend_model:build {SMALL} {ON_JAX}".split()) == 0
    (record,) = run_store.records(Path("results/local"))
    assert (record.environment["framework"], record.environment["backend"]) == ("keras", "jax")
    monkeypatch.delenv("KERAS_BACKEND")
    monkeypatch.delitem(sys.modules, "backend_model")
    assert main(["translate", "--import-builder", "--run", record.id, "ein Hund"]) == 0
    assert sys.modules["backend_model"].BACKEND == "jax"


@pytest.mark.parametrize("command", [f"run {SMALL}", LAWS])
@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("backend_model:build --framework torch", "does not compute with torch: use --framework keras --backend "),
        ("backend_model:build --framework torch", "(in Python: settings={'framework': 'keras', 'backend': '"),
        (
            "counting_model:build --framework keras",
            "does not compute with keras on tensorflow: use --framework torch (in",
        ),
        (
            "counting_model:build --framework keras --backend torch",
            "does not compute with keras on torch: use --framework torch (in",
        ),
    ],
)
def test_external_variant_in_another_framework_is_refused(
    command: str, variant: str, message: str, refused: Refused
) -> None:
    refused(f"{command} {variant}".split(), message)
    assert not list(Path("results").rglob("record.json"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("", "data.max_length=100: expected at most the model's max_length=20"),
        (
            " --set data.max_length=20 --set decoding.max_tokens=20",
            "decoding.max_tokens=20: expected less than the model's max_length=20",
        ),
    ],
)
def test_run_of_an_external_model_with_few_positions_is_refused(
    settings: str, message: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CountingModel, "max_length", 20, raising=False)
    refused(f"run counting_model:build {SMALL}{settings}".split(), message)
    assert not list(Path("results").rglob("record.json"))
