"""What `impls.wrap` refuses before any training: modules that could not be trained, stored or decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_models import assert_obeys
from test_wrapped_module import BATCH, SIZES, returning, small_lstm
from torch import nn

import impls
from examples.lstm_attention import LstmAttention
from harness.conformance.law_runner import check
from harness.conformance.models_under_test import ModelUnderTest, named

pytestmark = pytest.mark.usefixtures("single_thread")


class Normed(LstmAttention):
    """The example with another layer after the embedding of the source."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__(*SIZES, 16, 0.0)
        self.norm = norm

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        encoded, visible = super().encode(source)
        return self.norm(encoded.flatten(0, 1)).view_as(encoded), visible


class Scaled(LstmAttention):
    """Multiplies the logits by a trained number."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.scale = nn.Parameter(torch.rand(()) + 0.5)

    def read(self, memory: Any, state: Any, tokens: torch.Tensor) -> Any:
        logits, attention, new = super().read(memory, state, tokens)
        return logits * self.scale, attention, new


def test_parameter_without_dimensions_is_trained_and_stored() -> None:
    def build(training: Any, seed: int, dropout: float) -> Any:
        return impls.wrap(lambda: Scaled(*SIZES, 16, dropout), *SIZES, training=training, seed=seed)

    assert_obeys(ModelUnderTest(build, *SIZES, fast=True), {1, 8, 13, 14})


class Output(dict[str, torch.Tensor]):
    """A dictionary with attributes, as models of Hugging Face return."""

    def __getattr__(self, name: str) -> torch.Tensor:
        return self[name]


class WithOutput(LstmAttention):
    def encode(self, source: torch.Tensor) -> Any:
        encoded, visible = super().encode(source)
        return Output(encoded=encoded, visible=visible)

    def read(self, memory: Any, state: Any, tokens: torch.Tensor) -> Any:
        return super().read((memory.encoded, memory.visible), state, tokens)


def test_memory_stays_of_its_type_when_rows_are_reordered() -> None:
    decoding = impls.wrap(lambda: WithOutput(*SIZES, 16, 0.0), *SIZES).begin_decoding(BATCH.source)
    expected = decoding.step(BATCH.target_in[:, 0], 2).log_probabilities
    decoding = impls.wrap(lambda: WithOutput(*SIZES, 16, 0.0), *SIZES).begin_decoding(BATCH.source)
    decoding.reorder(np.array([1, 0]))
    actual = decoding.step(BATCH.target_in[:, 0], 2).log_probabilities
    np.testing.assert_allclose(actual, expected[::-1], atol=1e-6)


class Unused(LstmAttention):
    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self.extra = nn.Linear(3, 3)


def unused(*sizes: int, dropout: float = 0.1, **settings: Any) -> Any:
    return impls.wrap(lambda: Unused(*sizes, 16, dropout), *sizes, **settings)


def test_law_14_names_weights_without_effect() -> None:
    (result,) = check(named("test_wrapped_checks:unused", fast=True), {14})
    assert result.passed
    assert result.detail == "the loss does not depend on extra.bias, extra.weight"


def test_buffers_that_training_leaves_alone_are_accepted() -> None:
    norm = nn.Linear(16, 16)
    norm.register_buffer("constant", torch.arange(3))
    model = impls.wrap(lambda: Normed(norm), *SIZES)
    before = torch.get_rng_state()
    model.train_step(BATCH, 1e-3)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.isfinite(model.take_totals().nats)


def with_a_list(layer: nn.Module) -> LstmAttention:
    module = small_lstm()
    module.extra = [layer]
    return module


def test_wrap_list_of_layers_without_weights_is_accepted() -> None:
    impls.wrap(lambda: with_a_list(nn.ReLU()), *SIZES)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (lambda: small_lstm().double(), r"LstmAttention.source_embedding.weight is torch.float64: parameters must be"),
        (lambda: with_a_list(nn.Linear(2, 2)), "LstmAttention.extra is a list of layers, which are not trained"),
        (lambda: nn.Linear(2, 2), "Linear has no method 'encode'"),
        (lambda: 3, "a function that returns one, not 3$"),
        (3, "a function that returns one, not 3$"),
        (lambda: Normed(nn.BatchNorm1d(16)), "Normed.norm.running_mean is a buffer that changes in training"),
        (
            lambda: Normed(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))),
            r"Normed.norm.parametrizations.weight.0._u is a buffer that changes in training",
        ),
        (lambda: Normed(nn.LazyLinear(16)), "Normed.norm.weight has no shape yet: call the module once"),
        (
            lambda: Normed(nn.ModuleList([nn.Embedding(5, 16, sparse=True)])),
            "Normed.norm.0 has sparse=True: the optimiser takes no sparse gradients, use sparse=False",
        ),
        (lambda: small_lstm().requires_grad_(False), "LstmAttention has no parameter to train"),
    ],
)
def test_wrap_wrong_module_is_refused(module: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        impls.wrap(module, *SIZES)


@pytest.mark.parametrize(
    ("method", "change", "reason"),
    [
        ("decode", lambda logits, attention: (logits.half(), attention), "decode returned logits in torch.float16"),
        (
            "decode",
            lambda logits, attention: (logits[..., :-1], attention),
            r"decode returned logits of shape \(1, 2, 40\) for one sentence: expected \(1, 2, 41\)",
        ),
        ("decode", lambda *both: (*both, None), "decode returned a tuple: return a pair"),
        ("decode", lambda logits, attention: (logits, attention.transpose(1, 2)), "attention weights of the wrong sha"),
        ("encode", lambda encoded, _: encoded.transpose(0, 1), r"encode returned a tensor of shape \(3, 1, \d+\)"),
        ("encode", lambda *both: (*both, 3), "encode or step returned a int: use tensors, tuples, lists, dicts or"),
        (
            "encode",  # the last states of two layers, [layers,B,D], as nn.LSTM returns them
            lambda encoded, visible: (encoded, visible, encoded[:, -1].expand(2, -1, -1)),
            r"encode returned a tensor of shape \(2, 1, 16\)",
        ),
        ("step", lambda logits, _: logits, "step returned a Tensor: return a pair"),
        ("step", lambda logits, new: (logits[:, None], new), r"logits of shape \(1, 1, 41\): expected \(1, 41\)"),
        ("step", lambda logits, new: (logits, (*new, 1)), "encode or step returned a int: use tensors, tuples, lists"),
        (
            "step",
            lambda logits, new: (logits, (*new, new[0].transpose(0, 1).expand(2, -1, -1))),
            r"step returned a tensor of shape \(2, 1, 16\)",
        ),
    ],
)
def test_wrap_module_with_a_wrong_result_is_refused(method: str, change: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        impls.wrap(lambda: returning(method, change)(*SIZES, 16, 0.0), *SIZES)
