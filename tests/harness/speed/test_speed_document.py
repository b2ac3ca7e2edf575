"""The document of a measurement: values follow from samples; damaged and foreign documents are rejected."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import speed_factory

from harness.speed import speed_document
from harness.speed.speed_document import SpeedDocument
from harness.speed.timed_model import DecodingTimes, TimedModel, TrainingTimes
from harness.speed.timing import DERIVED, Samples
from harness.storage import files

OURS = speed_factory.OURS


def subject(name: str, seconds: tuple[float, ...], **changes: Any) -> TimedModel:
    """Return a model with training and two decodings, all with the same seconds."""
    training = TrainingTimes(
        updates=2,
        target=30,
        tokens=70,
        epoch_tokens=700,
        operations=1_000,
        first_update_seconds=1.0,
        warmup_seconds=3.0,
        seconds=Samples.of(seconds),
    )
    decodings = tuple(
        DecodingTimes(
            name=decoding,
            beam=1,
            batch_size=8,
            sentences=sentences,
            words=50,
            unfinished=0,
            digest="ab",
            warmup_seconds=1.0,
            seconds=Samples.of(seconds),
        )
        for decoding, sentences in (("greedy", 10), ("single_greedy", 2))
    )
    settings: dict[str, Any] = {"kind": "variant", "variant": "learned_positions", "framework": "torch"}
    return TimedModel(name=name, **{**settings, "training": training, "decoding": decodings, **changes})


SUBJECTS = subject("ours", (1.0, 3.0, 2.0)), subject("plain", (4.0, 6.0, 4.0), kind="peer")


def test_times_follow_from_samples() -> None:
    training = SUBJECTS[0].training
    assert training is not None
    assert training.update_seconds == 1.0
    assert (training.target_per_second, training.tokens_per_second) == (15.0, 35.0)
    assert (training.epoch_seconds, training.operations_per_second) == (20.0, 500.0)
    greedy = SUBJECTS[0].decoding[0]
    assert (greedy.sentences_per_second, greedy.thousand_seconds) == (5.0, 200.0)
    assert dataclasses.replace(
        speed_factory.data(), source=40, target=30, positions=100
    ).padding_share == pytest.approx(0.3)


def test_comparisons_pair_variants_and_baselines_by_round() -> None:
    ratios = {(pair.subject, pair.baseline, pair.what): pair for pair in speed_document.comparisons(SUBJECTS)}
    assert ratios["ours", "plain", "training"].ratio.values == (4.0, 2.0, 2.0)
    assert ratios["ours", "plain", "greedy"].baseline_what == "greedy"
    assert {subject for subject, _, _ in ratios} == {"ours"}


def test_comparisons_of_a_single_sentence_baseline_are_per_sentence() -> None:
    ours, plain = SUBJECTS
    single = dataclasses.replace(plain, training=None, decoding=plain.decoding[1:])
    ratios = {(pair.what, pair.baseline_what): pair.ratio.values for pair in speed_document.comparisons([ours, single])}
    expected = ((4 / 2) / (1 / 10), (6 / 2) / (3 / 10), (4 / 2) / (2 / 10))
    assert ratios["greedy", "single_greedy"] == pytest.approx(expected)


def test_document_saved_is_loaded_unchanged(tmp_path: Path) -> None:
    document = speed_factory.document()
    path = speed_document.save(tmp_path, document)
    assert path.name == f"{document.id}.json"
    assert path.name.startswith("speed-2026-01-02-")
    assert speed_document.load(path) == document


def _set(value: Any, path: str, new: Any) -> None:
    """Set the item at a dotted path in JSON."""
    *parents, last = path.split(".")
    for name in parents:
        value = value[int(name)] if isinstance(value, list) else value[name]
    value[last] = new


HOSTILE = {
    "subjects.0.training.seconds.median": (2.5, "median=2.5"),
    "subjects.0.training.seconds.values": ([], "at least one sample"),
    "subjects.0.training.update_seconds": (0.9, "update_seconds=0.9"),
    "subjects.0.training.updates": (0, r"document.subjects\[0\].training.updates=0: expected more than 0"),
    "subjects.0.training.target": (-30, r"document.subjects\[0\].training.target=-30: expected more than 0"),
    "subjects.0.training.tokens": (True, r"document.subjects\[0\].training.tokens"),
    "subjects.0.training.operations": (10**400, "is not JSON"),
    "subjects.0.decoding.0.sentences_per_second": (6.0, "sentences_per_second=6.0"),
    "subjects.0.breakdown.shares.0.share": (0.5, "add up to 0.875"),
    "subjects.0.breakdown.shares.0.group": ("lunch", "group='lunch': expected 'matrix products'"),
    "subjects.1.name": (OURS, f"'{OURS}' is there twice"),
    "subjects.0.kind": ("friend", "kind='friend': expected 'variant' or 'peer'"),
    "comparisons.0.baseline": ("nobody", "'nobody'"),
    "data.positions": (0, "document.data.positions=0: expected more than 0"),
    "machine.cores": ("many", "document.machine.cores='many'"),
    "machine.system": ("x" * 5_000, "document.machine.system=.* at most 4,000 characters"),
    "data.spec.corpus": ("web", "corpus='web'"),
    "started": ("$(reboot)", r"started='\$\(reboot\)': expected a date"),
    "status": ("splendid", "status='splendid'"),
    "schema": (2, "schema=2: expected 'speed' and 1"),
    "kind": ("run", "kind='run'"),
    "extra": (1, "unknown field"),
}


@pytest.mark.parametrize("field", HOSTILE)
def test_document_with_a_wrong_field_is_rejected_by_name(field: str, tmp_path: Path) -> None:
    new, message = HOSTILE[field]
    path = speed_document.save(tmp_path, speed_factory.document())
    value = json.loads(path.read_text(encoding="utf-8"))
    _set(value, field, new)
    files.write_sealed(path, value)
    with pytest.raises(ValueError, match=message) as error:
        speed_document.load(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("field", ["updates", "target", "tokens", "epoch_tokens"])
def test_document_training_of_another_workload_is_rejected(field: str) -> None:
    document = speed_factory.document()
    ours, *others = document.subjects
    assert ours.training is not None
    rates = ("update_seconds", "target_per_second", "tokens_per_second", "epoch_seconds", "operations_per_second")
    doubled = {field: 2 * getattr(ours.training, field), **dict.fromkeys(rates, DERIVED)}
    wrong = dataclasses.replace(ours, training=dataclasses.replace(ours.training, **doubled))
    with pytest.raises(ValueError, match=f"training.{field} of {ours.name}=.* that of the workload"):
        dataclasses.replace(document, subjects=(wrong, *others))


def test_document_decoding_of_other_sentences_is_rejected() -> None:
    document = speed_factory.document()
    ours, *others = document.subjects
    fewer = speed_factory.decoding("greedy", 1.0, sentences=100)
    with pytest.raises(ValueError, match=r"greedy.sentences of .*=100: expected 200, that of the workload"):
        dataclasses.replace(document, subjects=(dataclasses.replace(ours, decoding=(fewer,)), *others))


def _with_wrong_ratio(document: SpeedDocument, field: str) -> SpeedDocument:
    """Return the document with one ratio that does not follow from its samples."""
    ours, paper, plain, *_ = document.subjects
    first, *rest = document.comparisons
    wrong = Samples.of([0.99] * speed_factory.ROUNDS)
    assert ours.training is not None
    changes: dict[str, Any]
    if field == "comparisons":
        changes = {"comparisons": (dataclasses.replace(first, ratio=wrong), *rest)}
    elif field == "a comparison of nothing":
        changes = {"comparisons": (dataclasses.replace(first, subject=paper.name, what="greedy"),)}
    elif field == "rates":
        changes = {"rates": ()}
    elif field == "exponent":
        changes = {"scaling": (dataclasses.replace(document.scaling[0], exponent=1.0),)}
    else:
        training = dataclasses.replace(ours.training, **{field: wrong})
        changes = {"subjects": (dataclasses.replace(ours, training=training), paper, plain)}
    return dataclasses.replace(document, **changes)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("comparisons", f"comparisons: '{OURS}' to 'plain', single_greedy: ratio=0.99: expected"),
        ("a comparison of nothing", "'paper/torch' to 'plain', greedy: expected a variant and a baseline"),
        ("rates", "limit_share of learned_positions=.*: expected the value that the samples give, none"),
        ("exponent", "exponent=1.0"),
        ("limit_share", "limit_share of learned_positions=0.99: expected"),
        ("loop_ratio", "loop_ratio="),
    ],
)
def test_document_with_a_ratio_that_its_samples_do_not_give_is_rejected(field: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _with_wrong_ratio(speed_factory.document(), field)
