"""The self-check of the model before every training: it detects faults, costs little and changes nothing."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from realistic_faults import REALISTIC
from small_models import BASE, FAMILIES, GRU, SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE, build, subject
from small_runs import spec
from torch import nn
from training_faults import FAULTS

import impls
from examples.lstm_attention import LstmAttention
from harness.conformance.assertions import assert_same_bits
from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.experiments.specs import DataSpec
from harness.storage import run_store
from harness.storage.run_store import RunFailed
from harness.training import train
from harness.training.self_check import SelfCheckFailed, check_model, dealt
from impls import registry
from impls.contract import EOS, PAD, Batch, Seq2SeqModel, Training

BATCHES = [subject(BASE).realistic_batch(seed) for seed in range(3)]
FAULTS_BY_NAME = {fault.__name__: fault for _, fault in FAULTS + REALISTIC}
DETECTED_BY = {
    1: ("SmoothedNats", "NatsOfTheFirstWordsOnly"),
    2: ("DropoutInLargeEvaluations",),
    3: ("SeesTheNextWord", "LeakBeyondTwelve"),
    4: ("NatsTooLowInLargeBatches", "RowsMixedUpInLargeBatches", "SeesPadding", "SeesFarPadding"),
    6: (
        "DecodingSeesPadding",
        "DecodingSeesFarPadding",
        "ProbabilitiesNotNormalisedBeyondTwelve",
        "StepsRepeatedBeyondTwelve",
        "RepeatsAWordBeyondTwelve",
        "NeighbourDecodedInLargeBatches",
    ),
}
"""The faults that the self-check detects, by the law that reports them."""

pytestmark = pytest.mark.usefixtures("cache", "single_thread")


def check(model: Seq2SeqModel, batches: list[Batch] = BATCHES, precision: str = "float32") -> None:
    check_model(model, batches, precision=precision, device="cpu")


@pytest.mark.parametrize("recipe", FAMILIES.values(), ids=FAMILIES)
def test_self_check_correct_model_passes_and_keeps_state(recipe: Any) -> None:
    model = build(recipe, dropout=0.1)
    check(model)
    model.train_step(BATCHES[0], 1e-3)
    before = model.training_state()
    check(model)
    assert_same_bits("training state after the check", model.training_state(), before)
    model.train_step(BATCHES[1], 1e-3)
    undisturbed = build(recipe, dropout=0.1)
    for batch in BATCHES[:2]:
        undisturbed.train_step(batch, 1e-3)
    assert_same_bits("training state after one more update", model.training_state(), undisturbed.training_state())


@pytest.mark.parametrize("recipe", [BASE, GRU], ids=["transformer", "gru"])
def test_self_check_correct_model_passes_in_bfloat16(recipe: Any) -> None:
    check(build(recipe, dropout=0.1, precision="bfloat16"), precision="bfloat16")


@pytest.mark.parametrize("words", [1, 2, 3])
def test_self_check_correct_model_passes_with_a_tiny_vocabulary(words: int) -> None:
    smallest = EOS + 1 + words
    batches = [
        Batch(*(np.minimum(ids, smallest - 1) for ids in (batch.source, batch.target_in, batch.target_out)))
        for batch in BATCHES
    ]
    check(impls.build(BASE, smallest, smallest), batches)


@pytest.mark.parametrize(("law", "name"), [(law, name) for law, names in DETECTED_BY.items() for name in names])
def test_self_check_detects_faults_at_initial_weights(law: int, name: str) -> None:
    model = FAULTS_BY_NAME[name](build(BASE), Training(), 0, 0.0)
    # A fault of only the logits also shows in law 1, because token_nats are computed on packed rows.
    laws = law if law in (2, 3) else f"{law}|1"
    with pytest.raises(SelfCheckFailed, match=rf"self-check before training: law ({laws}) "):
        check(model)  # type: ignore[arg-type]


class DropoutInEvaluation(LstmAttention):
    def decode(self, *inputs: Any) -> Any:
        logits, attention = super().decode(*inputs)
        return nn.functional.dropout(logits, 0.1), attention


class SeesTheFuture(LstmAttention):
    def decode(self, memory: Any, target_in: torch.Tensor) -> Any:
        return super().decode(memory, target_in.roll(-1, 1))


@pytest.mark.parametrize(
    ("module", "law"), [(DropoutInEvaluation, "2 (determinism)"), (SeesTheFuture, "3 (causality)")]
)
def test_self_check_names_the_law_that_a_common_mistake_breaks_first(module: Any, law: str) -> None:
    sizes = SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE
    model = impls.wrap(lambda: module(*sizes, 16, 0.0), *sizes)
    with pytest.raises(SelfCheckFailed, match=re.escape(f"law {law}")) as failure:
        check(model)
    assert str(failure.value).endswith("python -m harness laws --fast --variant MODULE:NAME")


def test_self_check_ignores_non_finite_weights() -> None:
    model = build(BASE)
    model.set_weights({name: value * np.float32(np.nan) for name, value in model.weights().items()})
    check(model)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_self_check_batches_mix_lengths(count: int) -> None:
    short, long = (Batch(*(np.full((4, width), 5, np.int32) for _ in range(3))) for width in (3, 9))
    mixed = dealt([short, long, short][:count])
    assert [len(batch.source) for batch in mixed] == [4] * count
    lengths = [(batch.source != PAD).sum(1).tolist() for batch in mixed]
    assert sum(lengths, []).count(9) == 4 * (count > 1)
    assert all(len(set(row)) == min(count, 2) for row in lengths)


def test_run_with_faulty_model_fails_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_model, faulty = train.build_model, FAULTS_BY_NAME["ProbabilitiesNotNormalised"]
    monkeypatch.setattr(train, "build_model", lambda *settings: faulty(build_model(*settings), Training(), 0, 0.0))
    run = spec("counting_model:build")
    with pytest.raises(RunFailed, match="law 6") as failure:
        train.run(run, tmp_path)
    assert failure.value.__suppress_context__
    record = run_store.load_record(tmp_path, run.id)
    assert record.status == "failed"
    assert record.reason.startswith("SelfCheckFailed: self-check before training: law 6 (caching), cached steps")
    assert record.reason.endswith("to test all laws: python -m harness laws --fast --variant counting_model:build")
    assert not record.curve
    on_jax = replace(run, framework="keras", backend="jax", device="cuda")
    options = "--variant counting_model:build --framework keras --backend jax --device cuda"
    assert train.laws_options(on_jax) == options


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["learned_positions", "bahdanau_gru"])
def test_self_check_costs_less_than_2_percent_of_training(variant: str, multi30k_folder: Path) -> None:
    prepared, settings = prepare(DataSpec(corpus="multi30k")), Training()
    words = prepared.vocabulary_sizes
    model = impls.build(registry.recipe(variant), *words, training=settings)
    batches = list(itertools.islice(training_batches(prepared.train, settings, seed=0, epoch=0), 6))
    began = time.process_time()
    check(model, batches[:3])
    checked = time.process_time()
    for batch in batches[3:]:
        model.train_step(batch, 5e-4)
    update = (time.process_time() - checked) / 3
    assert checked - began < 0.02 * 10 * len(prepared.train) / settings.batch_size * update
