"""The setting `matmul_precision`: what it changes, where it is refused, and that it stays with its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Refused
from interrupted_runs import interrupted
from small_models import BASE, FAMILIES, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, assert_obeys, build, subject
from small_runs import spec

import impls
from harness.conformance.assertions import assert_same_bits
from harness.data.dataset import prepare
from harness.processes import machine
from harness.speed.matmul_peak import Products
from harness.training import load, train
from harness.training.self_check import check_model
from impls import registry
from impls.contract import Recipe, Seq2SeqModel, Training
from impls.pytorch import cpu_kernels, torch_adapter
from impls.pytorch import matmul_precision as precision_module
from impls.pytorch.matmul_precision import has_effect, matmul_precision, training_products

CPU = torch.device("cpu")
NO_EFFECT = "needs a CPU that multiplies in bfloat16 with matmul_precision='medium', such as one with AMX"
pytestmark = pytest.mark.usefixtures("single_thread")
lowers = pytest.mark.skipif(not has_effect("medium", CPU), reason=NO_EFFECT)
exact = pytest.mark.skipif(has_effect("high", CPU), reason="needs a CPU without products in TF32")
RUN = spec("learned_positions", replace(BASE, max_length=100, dropout=0.1))
BATCHES = [subject(BASE).realistic_batch(seed) for seed in range(4)]


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Check after each test that the setting of the process is what it was."""
    yield
    assert torch.get_float32_matmul_precision() == "highest"


def model(recipe: Recipe = BASE, name: str = "medium", **settings: Any) -> Seq2SeqModel:
    return impls.build(recipe, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, matmul_precision=name, **settings)


# Arithmetic -----------------------------------------------------------------------------------------------------------


def test_convolutions_on_a_gpu_have_the_precision_of_their_model_and_no_other() -> None:
    assert torch.backends.cudnn.allow_tf32, "torch's default"
    for name, tf32 in (("highest", False), ("high", True)):
        with matmul_precision(name):
            assert torch.backends.cudnn.allow_tf32 == tf32
        assert torch.backends.cudnn.allow_tf32


@lowers
def test_medium_rounds_factors_to_bfloat16_and_highest_does_not() -> None:
    x, y = torch.randn(2, 128, 128, generator=torch.Generator().manual_seed(0)).unbind()
    expected = x.double() @ y.double()
    rounded = x.bfloat16().double() @ y.bfloat16().double()
    errors = {}
    for name in ("highest", "medium"):
        with matmul_precision(name):
            product = (x @ y).double()
        errors[name] = [float((product - exact).norm() / expected.norm()) for exact in (expected, rounded)]
    assert errors["highest"][0] < 1e-6 < 1e-3 < errors["medium"][0] < 1e-2
    assert errors["medium"][1] < 1e-6, "sums are accumulated in float32"


@lowers
@pytest.mark.parametrize("recipe", FAMILIES.values(), ids=FAMILIES)
def test_medium_model_computes_like_exact_one_but_not_the_same(recipe: Recipe) -> None:
    lower, full = model(recipe), build(recipe)
    batch = BATCHES[0]
    for one in (lower, full):
        one.set_weights(subject(recipe).perturbed(dropout=0.0).weights())
    logits, expected = (one.logits(batch.source, batch.target_in) for one in (lower, full))
    assert 1e-4 < np.abs(logits - expected).max() / np.abs(expected).max() < 0.05
    losses, expected = (one.token_nats(batch) for one in (lower, full))
    assert np.abs(losses - expected).max() < 0.1
    assert abs(losses.sum() / expected.sum() - 1) < 2e-3


def test_products_of_training_are_in_float32_on_every_processor() -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in ((1, 512, 2048), (20, 32, 20), (100, 256, 1000), (1000, 300, 7), (2048, 64, 256)):
        x = torch.rand(2, rows, inner, generator=generator)
        y = torch.rand(2, columns, inner, generator=generator).transpose(-1, -2)
        with training_products("highest", "cpu"):
            products = [(x @ y).double(), torch.stack([x[0] @ y[0], x[1] @ y[1]]).double()]
        expected = x.double() @ y.double()
        assert max(float(((product - expected) / expected).abs().max()) for product in products) < 5e-6


def test_onednn_multiplies_on_amd_processors_with_avx512_that_do_not_round(monkeypatch: pytest.MonkeyPatch) -> None:
    for processor, avx512, rounds, setting in (
        ("AMD EPYC", True, False, "medium"),
        ("AMD EPYC", True, True, "highest"),
        ("AMD EPYC", False, False, "highest"),
        ("Intel Xeon", True, False, "highest"),
        (None, False, False, "highest"),
    ):
        capabilities = {} if processor is None else {"cpu_name": processor, "avx512_f": avx512}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda capabilities=capabilities: capabilities)
        monkeypatch.setattr(precision_module, "has_effect", lambda name, device, rounds=rounds: rounds)
        assert precision_module._fastest_float32.__wrapped__() == setting


def settings_of_training(trained: Seq2SeqModel, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Return torch's setting in an update, within attention (`row_sums`) and outside of it."""
    used: dict[str, set[str]] = {}

    def note(module: Any, name: str) -> None:
        function = getattr(module, name)

        def noted(*operands: Any) -> Any:
            used.setdefault(name, set()).add(torch.get_float32_matmul_precision())
            return function(*operands)

        monkeypatch.setattr(module, name, noted)

    note(cpu_kernels, "row_sums")
    note(torch_adapter, "output_loss")
    trained.train_step(BATCHES[0], 1e-3)
    return used


@pytest.mark.parametrize("setting", ["highest", "medium"])
def test_layers_of_packed_rows_train_with_the_fastest_products(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "_fastest_float32", lambda: setting)
    trained = model(name="highest")
    assert settings_of_training(trained, monkeypatch) == {"row_sums": {"highest"}, "output_loss": {setting}}
    products = Products(BASE, (10, 12), BATCHES[:1], "cpu", "float32")
    with products._precision():
        assert torch.get_float32_matmul_precision() == setting
    with trained.evaluation():  # type: ignore[attr-defined]
        assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("name", ["torch_reference", "bahdanau_gru", "plain"])
def test_layers_with_many_numbers_of_rows_train_with_ordinary_products(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss, whose rows are filled up, has the fastest products, except in `plain`."""
    monkeypatch.setattr(precision_module, "_fastest_float32", lambda: "medium")
    used = set()
    trained: Any = model(registry.recipe(name), name="highest")
    for layer in trained.module.modules():
        if isinstance(layer, torch.nn.Linear | torch.nn.GRU):
            layer.register_forward_pre_hook(lambda *_: used.add(torch.get_float32_matmul_precision()))
    loss = settings_of_training(trained, monkeypatch).get("output_loss")
    assert (used, loss) == ({"highest"}, None if name == "plain" else {"medium"})


@lowers
def test_medium_training_has_its_precision_and_attention_that_of_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of_training(model(), monkeypatch) == {"row_sums": {"highest"}, "output_loss": {"medium"}}


@lowers
@pytest.mark.parametrize("recipe", FAMILIES.values(), ids=FAMILIES)
def test_medium_model_passes_self_check(recipe: Recipe) -> None:
    check_model(model(recipe), BATCHES[:3], precision="float32", matmul_precision="medium", device="cpu")


@lowers
@pytest.mark.parametrize("law", [2, 8, 9, 10, 11, 13])
def test_medium_model_obeys_exact_laws(law: int) -> None:
    assert_obeys(subject(BASE, matmul_precision="medium"), [law])


@lowers
def test_matmul_peak_is_measured_in_the_precision_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    used = set()
    mm = torch.mm

    def noted(*factors: Any, **settings: Any) -> Any:
        used.add(torch.get_float32_matmul_precision())
        return mm(*factors, **settings)

    monkeypatch.setattr(torch, "mm", noted)
    Products(BASE, (7, 11), BATCHES[:1], "cpu", "float32", "medium").multiply()
    assert used == {"medium"}


# One model alone ------------------------------------------------------------------------------------------------------


@lowers
def test_models_in_turns_compute_as_if_alone() -> None:
    first = BATCHES[0].target_in[:, 0]

    def trained(*models: Seq2SeqModel) -> list[dict[str, Any]]:
        for batch in BATCHES:
            for one in models:
                one.train_step(batch, 1e-3)
        decodings = [one.begin_decoding(BATCHES[0].source) for one in models]
        scores = [decoding.step(first, 3).log_probabilities for decoding in decodings]
        return [one.training_state() | {"scores": score} for one, score in zip(models, scores, strict=True)]

    alone = [*trained(model()), *trained(model(name="highest"))]
    assert not np.array_equal(alone[0]["scores"], alone[1]["scores"])
    for state, expected in zip(trained(model(), model(name="highest")), alone, strict=True):
        assert_same_bits("training state and scores of two models in turns", state, expected)


def test_setting_of_the_process_does_not_reach_a_model() -> None:
    expected = model(name="highest").logits(BATCHES[0].source, BATCHES[0].target_in)
    with matmul_precision("medium"):
        logits = model(name="highest").logits(BATCHES[0].source, BATCHES[0].target_in)
        assert torch.get_float32_matmul_precision() == "medium"
    assert np.array_equal(logits, expected)


@lowers
def test_setting_is_restored_after_an_error() -> None:
    lower = model()
    with pytest.raises(IndexError):
        lower.logits(np.full((1, 3), 10_000, np.int32), np.full((1, 3), 10_000, np.int32))
    assert torch.get_float32_matmul_precision() == "highest"


# Runs -----------------------------------------------------------------------------------------------------------------


@lowers
@pytest.mark.usefixtures("cache", "every_update")
def test_interrupted_medium_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    run = replace(RUN, matmul_precision="medium")
    straight = train.run(run, tmp_path / "straight")
    interrupted(run, tmp_path, 10)
    resumed = train.run(run, tmp_path)
    assert resumed.environment["resumed_after_updates"] == [10]
    assert resumed.fingerprints == straight.fingerprints
    assert resumed.scores == straight.scores
    assert resumed.environment["torch"]["matmul_precision"] == "medium"
    exact_run = train.run(RUN, tmp_path)
    assert exact_run.environment["torch"]["matmul_precision"] == "highest"
    assert exact_run.fingerprints["trained_weights"] != straight.fingerprints["trained_weights"]
    assert exact_run.fingerprints["stream"] == straight.fingerprints["stream"]


@lowers
def test_stored_medium_run_translates_in_full_precision(cache: Path, tmp_path: Path) -> None:
    run = replace(RUN, matmul_precision="medium", updates=2)
    record = train.run(run, tmp_path)
    loaded: Any = load.load_model(record, tmp_path, prepare(run.data), device="cpu")
    assert loaded.matmul_precision == "highest"


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"framework": "keras"}, "framework='keras'"),
        ({"precision": "bfloat16"}, "precision='bfloat16'"),
        ({"framework": "keras", "precision": "bfloat16"}, "framework='keras' and precision='bfloat16'"),
    ],
)
def test_unsupported_run_raises(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"matmul_precision='medium' with {named}: it needs framework='torch'"):
        replace(RUN, matmul_precision="medium", **changes)


@exact
def test_setting_without_effect_raises() -> None:
    with pytest.raises(
        ValueError, match="matmul_precision='high' has no effect on device='cpu' of this machine: 'high' "
    ):
        model(name="high")


def test_medium_without_bfloat16_products_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impls.pytorch.matmul_precision.has_effect", lambda name, device: False)
    with pytest.raises(ValueError, match="matmul_precision='medium' has no effect on device='cpu' of this machine"):
        model()


def test_unknown_name_and_mixed_precision_raise() -> None:
    with pytest.raises(ValueError, match="unknown matmul_precision 'low': use highest, high, medium"):
        model(name="low")
    with pytest.raises(ValueError, match="matmul_precision='medium' with precision='bfloat16': it needs"):
        model(precision="bfloat16")


def test_external_model_without_the_setting_raises() -> None:
    words: dict[str, Any] = {"training": Training(), "seed": 0, "device": "cpu", "precision": "float32"}
    with pytest.raises(ValueError, match="matmul_precision='medium' is not implemented for CountingModel, only for"):
        registry.build_external("counting_model:build", 7, 9, matmul_precision="medium", **words)


def test_check_in_another_process_agrees() -> None:
    for name in ("high", "medium"):
        assert machine.matmul_precision_usable(name, "cpu") == has_effect(name, CPU)


@exact
@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "paper", "--matmul-precision", "high"],
        ["bench", "--variant", "paper", "--matmul-precision", "high", "--device", "cpu"],
        ["ablate", "--matmul-precision", "high", "--device", "cpu", "--field", "norm"],
        ["speed", "--variant", "paper", "--matmul-precision", "high"],
    ],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.usefixtures("cache")
def test_command_line_error_is_one_line(arguments: list[str], tmp_path: Path, refused: Refused) -> None:
    message = "bakeoff: matmul_precision='high' has no effect on device='cpu' of this machine"
    refused([*arguments, "--corpus", "captions", "--results", str(tmp_path)], message)
    assert not list(tmp_path.rglob("record.json"))
