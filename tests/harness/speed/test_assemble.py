"""The document of a measurement: each figure has the model, the batches and the round that it is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planted_processes import Planted, job
from small_runs import DATA

from harness.data.batches import evaluation_batches, training_batches
from harness.data.dataset import Dataset, prepare
from harness.speed.assemble import assemble
from harness.speed.measurement import PRODUCTS, Measurement
from harness.speed.plan import Measure, MeasurementPlan, ModelJob
from harness.speed.scheduler import TaskSamples, TimedTask
from harness.speed.speed_document import SpeedDocument
from harness.speed.timed_model import TimedModel
from impls import flops

pytestmark = pytest.mark.usefixtures("cache")
OURS, WIDE, PLAIN = "learned_positions/torch", "paper/torch", "plain"
MEMORY = {"peak_memory_bytes": 5_000, "device_memory_bytes": 70}
MARIAN = TimedModel(
    name="marian", kind="peer", variant="learned_positions", framework="torch", ending="missing", reason="no package"
)
TRANSLATIONS = [[5, 6], [7], [8, 9]]


def jobs() -> tuple[ModelJob, ...]:
    """Return a variant, a wider one, and a baseline of the first."""
    ours = job(OURS)
    ours = replace(ours, spec=replace(ours.spec, data=DATA))
    wide = replace(ours.spec, variant="paper", recipe=replace(ours.spec.recipe, width=16))
    baseline = replace(ours.spec, recipe=replace(ours.spec.recipe, dropout=0.3))
    return ours, replace(ours, name=WIDE, spec=wide), replace(ours, name=PLAIN, baseline="plain", spec=baseline)


@pytest.fixture(scope="module")
def dataset(cache: Path) -> Dataset:
    return prepare(DATA)


@pytest.fixture
def measurement(dataset: Dataset, tmp_path: Path) -> Measurement:
    """Return a measurement of which every task was timed twice, without any process."""
    planned = jobs()
    plan = MeasurementPlan(
        amounts=planned[0].amounts,
        parts=("training", "evaluation", "decoding"),
        jobs=planned,
        absent=(MARIAN,),
        trained={},
        base=planned[0],
        command="",
        note="",
        timeout_seconds=None,
    )
    measurement = Measurement(plan, dataset, tmp_path, say=lambda line: None, check=lambda: None)
    scheduler = measurement.scheduler
    scheduler.facts[PRODUCTS] = {"library": "numpy"}
    for number, planned_job in enumerate(planned, start=1):
        scheduler.facts[planned_job.name] = {"parameters": 10 * number, "start_seconds": 0.5}
        scheduler.processes[planned_job.name] = Planted({})
        for measure, seconds in (("training", 1.0), ("evaluation", 2.0), ("greedy", 3.0), ("single_beam", 4.0)):
            add(measurement, planned_job.name, measure, seconds * number)
    for index, seconds in enumerate((0.25, 0.75)):
        add(measurement, PRODUCTS, "products", seconds, index)
    return measurement


def add(measurement: Measurement, model: str, measure: Measure, seconds: float, index: int = 0) -> None:
    """Add a task of two rounds."""
    facts: dict[str, Any] = {**MEMORY, "compilation_seconds": 3.0 * seconds}
    if measure == "training":
        facts["first_update_seconds"] = 9.0
    elif measure == "evaluation":
        facts["nats_per_token"] = 4.5
    elif measure != "products":
        translations = TRANSLATIONS if model != PLAIN else [*TRANSLATIONS[:2], [8]]
        facts |= {"translations": translations, "words": 5, "unfinished": 1, "digest": model}
    measurement.scheduler.series[TimedTask(model, measure, index)] = TaskSamples(facts, [seconds, seconds + 0.5])


def document_of(measurement: Measurement) -> tuple[SpeedDocument, TimedModel, TimedModel, TimedModel]:
    document = assemble(measurement)
    return document, *map(document.subject, (OURS, WIDE, PLAIN))


def counted(dataset: Dataset) -> tuple[flops.Tokens, flops.Tokens, tuple[int, int]]:
    """Return the tokens of the two timed updates and of validation, and the sizes of the vocabularies."""
    training = jobs()[0].spec.training
    batches = list(training_batches(dataset.train, training, seed=0, epoch=0))[:2]
    validation = [batch for batch, _ in evaluation_batches(dataset.validation)][:1]
    words = dataset.vocabulary_sizes
    assert words[0] != words[1]
    return flops.count_tokens(batches), flops.count_tokens(validation), words


def test_data_counts_the_tokens_of_the_epoch_and_of_the_timed_batches(
    measurement: Measurement, dataset: Dataset
) -> None:
    trained, _, words = counted(dataset)
    data, train = assemble(measurement).data, dataset.train
    assert (data.source_words, data.target_words) == words
    assert (data.sentences, data.source, data.target) == (4, trained.source, trained.target)
    assert data.epoch_updates == len(train) // 2
    assert data.epoch_tokens == sum(map(len, train.source)) + sum(len(ids) - 1 for ids in train.target)


def test_operations_and_targets_are_those_of_each_recipe_and_its_batches(
    measurement: Measurement, dataset: Dataset
) -> None:
    trained, evaluated, words = counted(dataset)
    document, *subjects = document_of(measurement)
    for planned_job, subject in zip(jobs(), subjects, strict=True):
        recipe: Any = planned_job.spec.recipe
        training, evaluation = subject.training, subject.evaluation
        assert (training.target, evaluation.target) == (trained.target, evaluated.target)
        assert training.operations == flops.training_operations(recipe, words, trained)
        assert evaluation.operations == flops.forward_operations(recipe, words, evaluated)
    assert [rate.variants for rate in document.rates] == [("learned_positions",), ("paper",)]
    assert [rate.seconds.values for rate in document.rates] == [(0.25, 0.75), (0.75, 1.25)]
    for rate, planned_job in zip(document.rates, jobs(), strict=False):
        recipe = planned_job.spec.recipe
        assert rate.operations == 3 * flops.kernel_operations(recipe, words, trained)


def test_subjects_have_the_facts_and_the_longest_compilation_of_their_tasks(measurement: Measurement) -> None:
    document, ours, wide, plain = document_of(measurement)
    assert [subject.parameters for subject in (ours, wide, plain)] == [10, 20, 30]
    assert [subject.compilation_seconds for subject in (ours, wide, plain)] == [12.0, 24.0, 36.0]
    assert (ours.training.peak_memory_bytes, ours.training.device_memory_bytes) == (5_000, 70)
    missing = document.subject("marian")
    assert (missing.ending, missing.kind, missing.reason) == ("missing", "peer", "no package")


def test_decodings_are_compared_with_the_first_model_of_equal_weights(measurement: Measurement) -> None:
    """The rate of dropout is no part of the function that two models share; the width is."""
    _, ours, wide, plain = document_of(measurement)
    for subject in (ours, wide):
        assert [(times.compared_with, times.equal) for times in subject.decoding] == [(None, None)] * 2
    assert [(times.compared_with, times.equal) for times in plain.decoding] == [(OURS, 2)] * 2
    assert [(times.name, times.beam, times.batch_size) for times in ours.decoding] == [
        ("greedy", 1, jobs()[0].spec.decoding.batch_size),
        ("single_beam", 5, 1),
    ]


def test_models_that_failed_declined_or_refused_say_why(measurement: Measurement) -> None:
    scheduler = measurement.scheduler
    scheduler.lost |= {WIDE: "its process ended", PRODUCTS: "no memory"}
    scheduler.declined[PLAIN] = "it has no rms"
    scheduler.refused[TimedTask(OURS, "beam")] = "too long"
    document, ours, wide, plain = document_of(measurement)
    assert (wide.ending, wide.reason) == ("failed", "its process ended")
    assert (plain.ending, plain.reason) == ("missing", "it has no rms")
    assert (ours.ending, ours.left_out) == ("completed", {"beam": "too long"})
    assert document.reason == f"{PRODUCTS}: no memory"
