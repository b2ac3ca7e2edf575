"""`impls.wrap` turns a torch module of a user into a model that obeys the laws, trains and translates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import assert_obeys, batch_of
from torch import nn

import impls
from examples.lstm_attention import LstmAttention
from harness.cli.main import main
from harness.conformance.law_runner import check
from harness.conformance.models_under_test import named
from harness.storage import run_store
from impls.contract import PAD, SOS, Seq2SeqModel

pytestmark = pytest.mark.usefixtures("single_thread")

SIZES = (37, 41)


def small_lstm() -> LstmAttention:
    return LstmAttention(*SIZES, width=16, dropout=0.1)


class WithoutStep(nn.Module):
    """The example without `step`, with attention weights of several heads and a limit of positions."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = LstmAttention(*SIZES, width=48, dropout=dropout)
        self.max_length = 30

    def encode(self, source: torch.Tensor) -> dict[str, torch.Tensor]:
        encoded, visible = self.lstm.encode(source)
        return {"encoded": encoded, "visible": visible}

    def decode(self, memory: dict[str, torch.Tensor], target_in: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, attention = self.lstm.decode((memory["encoded"], memory["visible"]), target_in)
        return logits, attention[:, None, None].expand(-1, 1, 2, -1, -1)


class NoEmptySentences(LstmAttention):
    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = (source != PAD).sum(1)
        nn.utils.rnn.pack_padded_sequence(source[..., None], lengths, batch_first=True, enforce_sorted=False)
        return super().encode(source)


def returning(method: str, change: Callable[..., Any]) -> type[LstmAttention]:
    """Return the example with another result of a method, change(*result)."""
    right = getattr(LstmAttention, method)
    return type("Changed", (LstmAttention,), {method: lambda self, *inputs: change(*right(self, *inputs))})


LogitsOnly = returning("decode", lambda logits, attention: logits)


class WithoutAttention(nn.Module):
    """An RNN that hands on only its last state, of which 39 later words leave little of the first one."""

    def __init__(self, source_vocabulary_size: int, target_vocabulary_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocabulary_size, width)
        self.target_embedding = nn.Embedding(target_vocabulary_size, width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.output = nn.Linear(width, target_vocabulary_size)

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        lengths = (source != PAD).sum(1).clamp(min=1)
        embedded = self.source_embedding(source)
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        return self.encoder(packed)[1][0]

    def decode(self, memory: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        return self.output(self.decoder(self.target_embedding(target_in), memory[None])[0])


class IgnoresTheSource(WithoutAttention):
    def encode(self, source: torch.Tensor) -> torch.Tensor:
        return super().encode(source) * 0


class Tied(nn.Module):
    """A wide model with tied embeddings, whose logits are large."""

    def __init__(self, source_vocabulary_size: int, target_vocabulary_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocabulary_size, width)
        self.target_embedding = nn.Embedding(target_vocabulary_size, width)
        self.norm, self.hidden = nn.LayerNorm(width), nn.Linear(width, width)

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        return (self.source_embedding(source) * (source != PAD)[..., None]).sum(1)

    def decode(self, memory: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        summed = self.target_embedding(target_in).cumsum(1) + memory[:, None]
        mixed = self.norm(summed + self.hidden(self.norm(summed)).relu())
        return nn.functional.linear(mixed, self.target_embedding.weight)


def builder(kind: Callable[..., nn.Module], width: int = 32) -> Callable[..., Seq2SeqModel]:
    def build(*sizes: int, dropout: float = 0.1, **settings: Any) -> Seq2SeqModel:
        return impls.wrap(lambda: kind(*sizes, width, dropout), *sizes, **settings)

    return build


without_step = builder(lambda *settings: WithoutStep(settings[-1]))
without_attention = builder(LogitsOnly, 128)
zero_attention = builder(returning("decode", lambda logits, attention: (logits, torch.zeros_like(attention))))
no_empty_sentences = builder(NoEmptySentences)
detached = builder(returning("encode", lambda encoded, visible: (encoded.detach(), visible)))
recurrent = builder(WithoutAttention, 64)
ignores_the_source = builder(IgnoresTheSource, 64)
tied = builder(Tied, 512)

MODULE = small_lstm()
BATCH = batch_of([[5, 6], [7]], [[8, 9], [4]])
SHORT = batch_of([[5, 6], [7]], [[8], [4]])


@pytest.mark.parametrize(
    ("builder", "library"),
    [
        ("examples.lstm_attention:build", "torch"),
        ("examples.hugging_face_marian:build", "transformers"),
        ("test_wrapped_module:without_attention", "torch"),
    ],
)
def test_module_obeys_every_law(builder: str, library: str) -> None:
    pytest.importorskip(library)
    assert_obeys(named(builder, fast=True))


def test_module_without_step_obeys_the_laws_of_decoding() -> None:
    assert_obeys(named("test_wrapped_module:without_step", fast=True), {1, 6, 7, 8})


def test_law_3_accepts_an_rnn_that_hands_on_little_of_the_first_word() -> None:
    assert_obeys(named("test_wrapped_module:recurrent"), {3})


def test_laws_accept_the_rounding_of_large_logits() -> None:
    assert_obeys(named("test_wrapped_module:tied", fast=True), {5, 6, 7})


@pytest.mark.parametrize(
    ("builder", "law", "reason"),
    [
        ("ignores_the_source", 3, "do not depend on the source token at position 0"),
        ("detached", 14, "source_embedding.weight gets no gradient, although the loss"),
        ("zero_attention", 1, "a model without attention returns no layers"),
        ("no_empty_sentences", 4, "fails on sentences of padding alone: RuntimeError: Length of all samples"),
    ],
)
def test_laws_explain_what_a_module_has_to_return(builder: str, law: int, reason: str) -> None:
    (result,) = check(named(f"test_wrapped_module:{builder}", fast=True), {law})
    assert not result.passed
    assert reason in result.detail


def test_laws_end_with_the_law_to_start_with(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["laws", "--fast", "--law", "1", "--law", "3", "--variant", "test_wrapped_module:ignores_the_source"]
    assert main(command) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2] == "1 law broken"
    assert lines[-1].startswith("Start with law 3: A prediction sees later target words, or misses source words or the")


def test_module_without_attention_trains_without_attention_maps(
    tmp_path: Path, processes: None, one_process: None, has_models_page: None, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--corpus", "captions", "--tokenizer", "whitespace", "--suite", "quick"]
    command = ["run", "test_wrapped_module:without_attention", *data, "--updates", "5", "--threads", "1"]
    results = ["--results", str(tmp_path / "results")]
    assert main([*command, *results]) == 0
    (record,) = run_store.records(tmp_path / "results")
    assert run_store.load_attention(tmp_path / "results", record.id) == {}
    assert main(["report", *results, "--reports", str(tmp_path / "reports")]) == 0
    translate = ["translate", "--run", record.id, "--import-builder", *results, "Ein Hund läuft ."]
    assert main(translate) == 0
    capsys.readouterr()
    assert main([*translate, "--attention", str(tmp_path / "heads.png")]) == 2
    assert "the model has no attention" in capsys.readouterr().err


def test_wrap_same_seed_gives_same_weights() -> None:
    first, repeated, second = (impls.wrap(small_lstm, *SIZES, seed=seed).weights() for seed in (0, 0, 1))
    assert all(np.array_equal(first[name], repeated[name]) for name in first)
    assert not any(np.array_equal(first[name], second[name]) for name in first)


def test_wrap_keeps_parameter_names_and_global_random_state() -> None:
    before = torch.get_rng_state()
    model = impls.wrap(small_lstm, *SIZES)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.weights().keys() == dict(small_lstm().named_parameters()).keys()


def test_wrap_module_instance_keeps_its_weights() -> None:
    weights = impls.wrap(MODULE, *SIZES, seed=3).weights()
    for name, parameter in MODULE.named_parameters():
        assert np.array_equal(weights[name], parameter.detach().numpy())


class LazyTable(LstmAttention):
    """Makes a constant when it is first needed."""

    table: torch.Tensor | None = None

    def decode(self, memory: Any, target_in: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.table is None:
            self.table = torch.linspace(0.5, 1.5, SIZES[1])
        logits, attention = super().decode(memory, target_in)
        return logits * self.table, attention


def test_tensor_that_a_module_makes_in_evaluation_serves_in_training() -> None:
    model = impls.wrap(lambda: LazyTable(*SIZES, 16, 0.0), *SIZES)
    model.train_step(BATCH, 1e-3)
    assert model.take_totals().finite


class Unigram(nn.Module):
    """Logits that are a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.arange(SIZES[1]) / 7)

    def encode(self, source: torch.Tensor) -> torch.Tensor:
        return source

    def decode(self, memory: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        return self.bias.expand(*target_in.shape, -1)


@pytest.mark.parametrize("sentences", [1, 3])
def test_decoding_leaves_the_logits_of_a_module_alone(sentences: int) -> None:
    model = impls.wrap(Unigram, *SIZES)
    before = model.weights()["bias"].copy()
    decoding = model.begin_decoding(np.full((sentences, 3), 5, np.int32))
    expected = np.sort(before - np.log(np.exp(before).sum()))[::-1][:2]
    for _ in range(2):
        candidates = decoding.step(np.full(sentences, SOS, np.int32), 2)
        np.testing.assert_allclose(candidates.log_probabilities, np.tile(expected, (sentences, 1)), rtol=1e-5)
    assert (model.weights()["bias"] == before).all()


class SometimesUsed(LstmAttention):
    """Uses a layer only in batches of two target words; in the others Adam makes no step for it."""

    def __init__(self) -> None:
        super().__init__(*SIZES, 16, 0.0)
        self.extra = nn.Linear(SIZES[1], SIZES[1])

    def decode(self, memory: Any, target_in: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits, attention = super().decode(memory, target_in)
        return (self.extra(logits) if target_in.shape[1] == 3 else logits), attention


def test_resume_keeps_the_steps_of_weights_that_some_updates_do_not_use() -> None:
    batches = [BATCH, SHORT, SHORT, BATCH, SHORT, BATCH]
    straight, first, second = (impls.wrap(SometimesUsed, *SIZES, seed=4) for _ in range(3))
    for model, chosen in ((straight, batches), (first, batches[:3])):
        for batch in chosen:
            model.train_step(batch, 1e-2)
    second.set_training_state(first.training_state())
    for batch in batches[3:]:
        second.train_step(batch, 1e-2)
    expected = straight.weights()
    assert all((array == expected[name]).all() for name, array in second.weights().items())
