"""Training runs: complete records, exact resume, averaging, early stopping, limits, and failures."""

from __future__ import annotations

import errno
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import counting_model
import numpy as np
import pytest
from consumed_batches import expected_batches
from interrupted_runs import interrupted
from small_runs import DATA, TINY, TRAINING, UPDATES_PER_EPOCH, spec
from stored_files import comparable

from harness.data.batch_digest import array_digests, weights_digest
from harness.data.batches import training_batches
from harness.data.dataset import prepare
from harness.evaluation import evaluate as evaluation
from harness.evaluation.evaluate import test_scores as scores_of
from harness.evaluation.metrics import perplexity_from_sums
from harness.evaluation.search import Decoded, Translation
from harness.experiments.specs import DecodingSpec, RunSpec
from harness.processes import machine
from harness.processes.progress import Event
from harness.processes.workers import ProcessSettings
from harness.storage import run_store
from harness.storage.files import file_digest
from harness.storage.records import RunRecord
from harness.training import train
from harness.training.schedules import stopping_epoch
from impls.contract import UNK, Training

TORCH = spec("learned_positions", TINY)


pytestmark = pytest.mark.usefixtures("cache", "every_update")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    """Return an uninterrupted torch run."""
    results = tmp_path_factory.mktemp("straight")
    return results, train.run(TORCH, results, ProcessSettings(command="the command", note="a note"))


def files(results: Path, run: RunSpec) -> list[str]:
    return sorted(path.name for path in (results / run.id).iterdir())


def test_run_record_is_complete(straight: tuple[Path, RunRecord]) -> None:
    results, record = straight
    assert run_store.load_record(results, TORCH.id) == record
    assert (record.status, record.reason, record.command, record.note) == ("completed", "", "the command", "a note")
    assert files(results, TORCH) == [
        "attention.safetensors",
        "hypotheses.jsonl",
        "record.json",
        "sentences.safetensors",
        "weights.safetensors",
    ]
    assert [epoch.epoch for epoch in record.curve] == [1, 2, 3]
    assert [epoch.updates for epoch in record.curve] == [7, 14, 21]
    assert record.curve[-1].learning_rate == TRAINING.peak_rate
    losses = [epoch.validation_loss or math.nan for epoch in record.curve]
    assert losses[2] < losses[0]
    assert record.chosen_epochs == (1 + int(np.argmin(losses)),)
    assert record.curve[0].validation_perplexity == pytest.approx(math.exp(losses[0]))
    speeds = {"total_seconds", "first_update_seconds", "training_tokens_per_second", "epoch_seconds"}
    speeds |= {"validation_seconds", "peak_memory_bytes", "decoding_sentences_per_second", "load_average"}
    assert set(record.speed) == speeds
    assert all(value > 0 for value in record.speed.values())
    assert record.speed["peak_memory_bytes"] > 50e6
    assert set(record.decode) == {"ties", "unfinished", "unknown_tokens"}
    for name in ("test_loss", "test_perplexity", "tutorial_perplexity"):
        assert name in record.scores
        assert name not in record.signatures
    assert set(record.signatures) < set(record.scores)
    json.dumps(record.scores, allow_nan=False)


def test_positions_of_a_builder_that_are_too_few_are_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting_model.CountingModel, "max_length", 30, raising=False)
    run = spec(data=replace(DATA, max_length=30))
    long_sentences, long_translations = spec(), replace(run, decoding=DecodingSpec(max_tokens=30))
    with pytest.raises(ValueError, match="data.max_length=100: expected at most the model's max_length=30"):
        train.run(long_sentences, tmp_path)
    with pytest.raises(ValueError, match="decoding.max_tokens=30: expected less than the model's max_length=30"):
        train.run(long_translations, tmp_path)
    assert train.run(run, tmp_path).status == "completed"


def test_scoring_every_second_epoch_adds_its_bleu_to_the_curve_and_changes_no_weight(
    straight: tuple[Path, RunRecord], tmp_path: Path
) -> None:
    record = train.run(TORCH, tmp_path, ProcessSettings(score_every=2))
    scored = [epoch.validation_bleu for epoch in record.curve]
    assert [score is None for score in scored] == [True, False, True]
    assert record.fingerprints["weights_after"] == straight[1].fingerprints["weights_after"]
    assert run_store.load_record(tmp_path, TORCH.id).curve == record.curve


def test_validation_bleu_is_that_of_the_ids_of_the_validation_set(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = prepare(TORCH.data)
    model = train.build_model(TORCH, prepared)
    perfect = [
        Translation(tuple(int(token) for token in ids[1:-1] if token != UNK), 0.0, True)
        for ids in prepared.validation.target
    ]
    half = [*perfect[: len(perfect) // 2], *[Translation((), 0.0, True)] * (len(perfect) - len(perfect) // 2)]
    unknown = 100 * prepared.figures["validation_target_unknown_rate"]
    for translations, least, most in [(perfect, 100 - 5 * unknown, 100 - unknown / 5), (half, 5.0, 60.0)]:
        monkeypatch.setattr(evaluation, "translate", lambda *_, **__: Decoded(tuple(translations), 0, 0))  # noqa: B023
        assert least <= evaluation.validation_bleu(model, prepared, TORCH.decoding) <= most


def test_validation_bleu_is_greedy_and_without_unknown_words(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, searches = prepare(TORCH.data), []

    def translate(model: Any, sources: Sequence[Any], decoding: DecodingSpec, **_: Any) -> Decoded:
        searches.append(decoding)
        return Decoded((Translation((), 0.0, True),) * len(sources), 0, 0)

    monkeypatch.setattr(evaluation, "translate", translate)
    decoding = replace(TORCH.decoding, beam=5, unknown="allowed")
    evaluation.validation_bleu(train.build_model(TORCH, prepared), prepared, decoding)
    assert searches == [replace(decoding, beam=1, unknown="never")]


def test_run_fingerprints_match_the_data_batches_and_weights(straight: tuple[Path, RunRecord]) -> None:
    results, record = straight
    prepared, fingerprints = prepare(TORCH.data), record.fingerprints
    assert {name: fingerprints[name] for name in prepared.digests} == prepared.digests
    expected = expected_batches(prepared.train, TORCH.training, seed=0, updates=[7, 14, 21])
    assert fingerprints["batches"] == expected.marks
    assert list(fingerprints["batches"]) == ["1", "7", "10", "14", "21"]
    assert fingerprints["stream"] == expected.digest
    assert {name: record.sizes[name] for name in expected.statistics()} == expected.statistics()
    assert list(fingerprints["weights_after"]) == ["7", "14", "21"]
    kept_digest = fingerprints["weights_after"][str(7 * record.chosen_epochs[0])]
    assert kept_digest == weights_digest(run_store.load_weights(results, TORCH.id))
    assert fingerprints["weights"] == array_digests(train.build_model(TORCH, prepared).weights())
    assert fingerprints["hypotheses"] == file_digest(results / TORCH.id / "hypotheses.jsonl")
    assert fingerprints["sentences"] == file_digest(results / TORCH.id / "sentences.safetensors")
    assert fingerprints["trained_weights"] == file_digest(results / TORCH.id / "weights.safetensors")
    assert record.sizes["parameters"] == sum(array.size for array in run_store.load_weights(results, TORCH.id).values())
    assert record.sizes["train_pairs"] == 200
    for name in ("python", "versions", "commit", "machine", "framework", "backend", "threads", "device", "precision"):
        assert name in record.environment
    assert record.environment["versions"]["numpy"] == np.__version__


def test_run_scores_match_the_stored_translations(straight: tuple[Path, RunRecord]) -> None:
    results, record = straight
    hypotheses = run_store.load_hypotheses(results, TORCH.id, record.fingerprints["hypotheses"])
    assert [hypothesis.sentence for hypothesis in hypotheses] == list(range(500))
    recomputed = scores_of(prepare(TORCH.data), hypotheses, TORCH.decoding.unknown)
    assert {name: record.scores[name] for name in recomputed.values} == recomputed.values
    sentences = run_store.load_sentences(results, TORCH.id, record.fingerprints["sentences"])
    nats, tokens = sentences.pop("nats"), sentences.pop("tokens")
    assert perplexity_from_sums(nats.sum(), tokens.sum()) == pytest.approx(record.scores["test_perplexity"], rel=1e-6)
    assert comparable(sentences) == comparable(recomputed.statistics)
    assert record.signatures == recomputed.signatures
    assert all(hypothesis.endswith("|unk:never") for hypothesis in record.signatures.values())
    assert record.decode["unknown_tokens"] == sum("<unk>" in hypothesis.tokens for hypothesis in hypotheses) == 0


def test_run_speed_leaves_out_the_first_update(straight: tuple[Path, RunRecord]) -> None:
    speed, curve = straight[1].speed, straight[1].curve
    first = next(training_batches(prepare(TORCH.data).train, TORCH.training, seed=0, epoch=0)).tokens
    update_tokens = (sum(epoch.tokens for epoch in curve) - first) / (3 * UPDATES_PER_EPOCH - 1)
    epoch_tokens = speed["training_tokens_per_second"] * speed["epoch_seconds"]
    assert epoch_tokens == pytest.approx(UPDATES_PER_EPOCH * update_tokens)
    assert speed["validation_seconds"] == np.median([epoch.validation_seconds for epoch in curve])


def test_run_started_again_removes_the_earlier_record(tmp_path: Path) -> None:
    run = spec()
    interrupted(run, tmp_path, 8)
    has_record: list[bool] = []

    def look(event: Event) -> None:
        if event.stage == "training" and not event.remark:
            has_record.append("record.json" in files(tmp_path, run))

    assert train.run(run, tmp_path, progress=look).status == "completed"
    assert has_record
    assert not any(has_record)


def test_weights_digest_is_kept_after_update_50(tmp_path: Path) -> None:
    record = train.run(spec(training=replace(TRAINING, batch_size=4, epochs=2), updates=70), tmp_path)
    assert list(record.fingerprints["weights_after"]) == ["50", "70"]
    first = train.run(spec(training=replace(TRAINING, batch_size=4, epochs=1), updates=50), tmp_path)
    assert record.fingerprints["weights_after"]["50"] == first.fingerprints["weights_after"]["50"]
    assert record.fingerprints["batches"]["50"] == first.fingerprints["stream"]


def test_averaged_weights_are_the_mean_of_the_last_epochs_also_when_resumed(tmp_path: Path) -> None:
    def weights(epochs: int, averaged: int, *, resumed: bool = False) -> Any:
        run = spec(training=Training(batch_size=32, epochs=epochs, averaged_epochs=averaged))
        if resumed:
            interrupted(run, tmp_path, 15)
        record = train.run(run, tmp_path)
        assert record.chosen_epochs == tuple(range(epochs - averaged + 1, epochs + 1))
        return run_store.load_weights(tmp_path, run.id)

    second, third, mean = weights(2, 1), weights(3, 1), weights(3, 2, resumed=True)
    for name, run in mean.items():
        np.testing.assert_allclose(run, (second[name].astype(np.float64) + third[name]) / 2, rtol=1e-6, atol=1e-9)


STALLED = spec("learned_positions", TINY, training=replace(TRAINING, epochs=6, peak_rate=0.0, patience=2))


@pytest.fixture(scope="module")
def stalled(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    """Return the record of an uninterrupted run that stops early."""
    return train.run(STALLED, tmp_path_factory.mktemp("stalled"))


@pytest.mark.parametrize(
    ("losses", "patience", "expected"),
    [
        ([3.0, 2.0, 2.0, 1.0], None, None),
        ([3.0, 2.0, 2.0, 1.0], 1, 3),
        ([3.0, 2.0, 2.5, 2.0], 2, 4),
        ([3.0, 2.0, 2.5, 1.9, 2.0], 2, None),
        ([3.0, None], 1, 2),
        ([], 1, None),
    ],
)
def test_stopping_epoch_is_the_first_after_patience_epochs_without_a_lower_loss(
    losses: list[float | None], patience: int | None, expected: int | None
) -> None:
    assert stopping_epoch(losses, patience) == expected


def test_run_with_patience_stops_and_keeps_the_best_epoch(stalled: RunRecord, tmp_path: Path) -> None:
    assert (stalled.status, stalled.reason, stalled.stopped_epoch) == ("completed", "", 3)
    assert (len(stalled.curve), stalled.chosen_epochs) == (3, (1,))
    expected = expected_batches(prepare(STALLED.data).train, STALLED.training, seed=0, updates=[7, 14, 21])
    assert stalled.fingerprints["stream"] == expected.digest
    improving = train.run(replace(TORCH, training=replace(TRAINING, patience=2)), tmp_path)
    assert (len(improving.curve), improving.stopped_epoch) == (3, None)


@pytest.mark.parametrize("stage", ["training", "validating", "translating"])
def test_run_with_patience_resumes_with_the_same_record(stalled: RunRecord, tmp_path: Path, stage: str) -> None:
    """Also after the last checkpoint: the resumed process translates without training another epoch."""

    def interrupt(event: Event) -> None:
        if event.stage == stage and (event.updates > 14 or stage == "translating") and not event.remark:
            raise KeyboardInterrupt

    record = train.run(STALLED, tmp_path, progress=interrupt)
    assert (record.status, record.stopped_epoch) == ("interrupted", None)
    resumed = train.run(STALLED, tmp_path)
    assert resumed.environment["resumed_after_updates"] == [21 if stage == "translating" else 14]
    assert resumed.stopped_epoch == stalled.stopped_epoch == 3
    assert resumed.fingerprints == stalled.fingerprints
    assert resumed.scores == stalled.scores
    assert resumed.chosen_epochs == stalled.chosen_epochs


@pytest.mark.parametrize(("updates", "expected"), [(3, [3]), (7, [7]), (9, [7, 9]), (99, [7, 14, 21])])
def test_run_with_an_update_limit_stops_there(tmp_path: Path, updates: int, expected: list[int]) -> None:
    record = train.run(spec(updates=updates), tmp_path)
    assert [epoch.updates for epoch in record.curve] == expected
    stream = expected_batches(prepare(spec().data).train, spec().training, seed=0, updates=expected)
    assert record.fingerprints["stream"] == stream.digest


def test_run_that_fails_stores_a_record(tmp_path: Path) -> None:
    run = spec("counting_model:build_breaking")
    with pytest.raises(run_store.RunFailed):
        train.run(run, tmp_path)
    record = run_store.load_record(tmp_path, run.id)
    assert record is not None
    assert (record.status, record.reason) == ("failed", "RuntimeError: the planted fault")
    assert files(tmp_path, run) == ["record.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG], ids=os.strerror)
def test_full_disk_is_a_failure_without_a_cause_in_the_code(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code), "checkpoint-1.safetensors")

    monkeypatch.setattr(train.checkpoint, "save", fail)
    with pytest.raises(run_store.RunFailed, match=f"{os.strerror(code)}: 'checkpoint-1") as failure:
        train.run(spec(), tmp_path)
    assert failure.value.__cause__ is None


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (spec("counting_model:build_nothing"), "returned an object of type str"),
        (spec("counting_model:biuld"), "did you mean 'build'?"),
        (spec("no_such_module:build"), "there is no module 'no_such_module'"),
        (replace(TORCH, device="cudda"), "device 'cudda' is not available"),
        (replace(TORCH, framework="tensorflow"), "framework 'tensorflow'"),
        (replace(TORCH, recipe=replace(TORCH.recipe, tying="all")), "give --set data.vocabulary=joint"),  # type: ignore
    ],
)
def test_run_with_unavailable_settings_writes_nothing(tmp_path: Path, run: RunSpec, words: str) -> None:
    with pytest.raises(ValueError, match="allowed|mean|module|device|framework|joint") as caught:
        train.run(run, tmp_path)
    assert words in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("limit", "value", "message"),
    [
        ("SENTENCES_COUNT", 499, "500 test sentences: expected at most 499"),
        ("WEIGHTS_BYTES", 1_000, "bytes of weights: expected at most 1,000"),
    ],
)
def test_run_with_results_beyond_a_limit_is_refused_before_training(
    limit: str, value: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, limit, value)
    monkeypatch.setattr("harness.training.loop.TrainingLoop.train", lambda self: pytest.fail("it is trained"))
    with pytest.raises(ValueError, match=message):
        train.run(TORCH, tmp_path)
    assert not list(tmp_path.glob("*/record.json"))


def test_run_load_average_is_the_median_over_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0.1, 9.0, 0.2])
    monkeypatch.setattr(machine, "load_average", lambda: next(loads))
    assert train.run(spec(), tmp_path).speed["load_average"] == 0.2


def test_run_progress_reports_every_update(tmp_path: Path) -> None:
    events: list[Event] = []
    train.run(spec(), tmp_path, progress=events.append)
    stages = [event.stage for event in events]
    assert list(dict.fromkeys(stages)) == ["preparing", "training", "validating", "translating", "ended"]
    updates = [event for event in events if event.stage == "training" and not event.remark]
    assert [event.updates for event in updates] == list(range(1, 22))
    assert all(event.epoch == (event.updates + 6) // 7 and event.all_updates == 21 for event in updates)
    assert all(event.remaining_seconds is not None for event in updates[1:])
    assert sum("validation loss" in event.remark for event in events) == 3


def test_throughput_excludes_compilation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compilation advances the clock by 100 seconds, so that a busy machine does not matter."""
    seconds, clock = [0.0], time.perf_counter
    monkeypatch.setattr(counting_model, "COMPILING_SECONDS", 100.0)
    monkeypatch.setattr(counting_model, "time", SimpleNamespace(sleep=seconds.append))
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + sum(seconds))
    record = train.run(spec("counting_model:build_compiling"), tmp_path)
    assert (record.speed["compilations"], record.speed["compilation_seconds"]) == (3, 300.0)
    assert record.environment["jit_compile"] is False
    assert record.speed["first_update_seconds"] > 100
    # With the compilations the steady updates of an epoch would take over half a minute, and translating over 100 s.
    assert record.speed["epoch_seconds"] < 100 * UPDATES_PER_EPOCH / 20 / 2
    assert record.speed["decoding_sentences_per_second"] > record.sizes["test_pairs"] / 50


@pytest.mark.parametrize(("warmup", "remarks"), [(21, 0), (22, 1)])
def test_run_that_ends_within_its_warmup_says_so(tmp_path: Path, warmup: int, remarks: int) -> None:
    events: list[Event] = []
    run = replace(TORCH, training=replace(TRAINING, warmup_updates=warmup))
    train.run(run, tmp_path, progress=events.append)
    expected = f"ends after 21 updates, within its warm-up of {warmup}: its learning rate stays below its peak"
    assert sum(event.remark.startswith(expected) for event in events) == remarks
