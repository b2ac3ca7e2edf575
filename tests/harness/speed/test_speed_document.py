"""The document of a measurement: figures follow from samples; damaged and foreign documents are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from harness.experiments.specs import DataSpec
from harness.speed import assemble, document_store, speed_document
from harness.speed.timing import Samples
from harness.storage import files


def subject(name: str, seconds: tuple[float, ...], **changes: Any) -> speed_document.TimedModel:
    training = speed_document.TrainingTimes(
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
        speed_document.DecodingTimes(
            name=one,
            beam=1,
            batch_size=8,
            sentences=count,
            words=50,
            unfinished=0,
            digest="ab",
            warmup_seconds=1.0,
            seconds=Samples.of(seconds),
        )
        for one, count in (("greedy", 10), ("single_greedy", 2))
    )
    settings: dict[str, Any] = {"kind": "variant", "variant": "learned_positions", "framework": "torch"}
    return speed_document.TimedModel(name=name, **{**settings, "training": training, "decoding": decodings, **changes})


def made() -> speed_document.SpeedDocument:
    """Return a small document."""
    subjects = (subject("ours", (1.0, 3.0, 2.0)), subject("plain", (4.0, 6.0, 4.0), kind="peer"))
    settings = speed_document.Settings(
        size="toy",
        parts=("training",),
        rounds=3,
        decoding_rounds=3,
        updates=2,
        threads=1,
        device="cpu",
        precision="float32",
        sentences=10,
        single_sentences=2,
        batch_size=8,
        decoding_batch_size=8,
        beam=5,
        length_penalty=0.6,
        max_tokens=5,
        learning_updates=1,
        scaling_variant="learned_positions",
    )
    machine = speed_document.Machine(
        processor="a processor",
        cores=2,
        memory_bytes=None,
        gpu=None,
        system="Linux",
        python="3.11",
        versions={"numpy": "2"},
        commit=None,
        dirty=None,
        load_before=0.5,
        load_after=None,
    )
    data = speed_document.Data(
        spec=DataSpec(corpus="captions"),
        tokenised="ab",
        stream="cd",
        source_words=7,
        target_words=11,
        epoch_updates=20,
        epoch_target=300,
        epoch_tokens=700,
        batches=2,
        sentences=16,
        source=40,
        target=30,
        positions=100,
    )
    shares = (
        speed_document.Share(group="attention", share=0.75, calls=3),
        speed_document.Share(group="data", share=0.25, calls=0),
    )
    return speed_document.SpeedDocument(
        started="2026-01-02T03:04:05+00:00",
        ended="2026-01-02T03:05:05+00:00",
        command="python -m harness speed",
        note="",
        status="complete",
        reason="",
        settings=settings,
        machine=machine,
        data=data,
        subjects=(
            dataclasses.replace(
                subjects[0], breakdown=speed_document.Breakdown(profiled_updates=2, overhead_ratio=1.2, shares=shares)
            ),
            subjects[1],
        ),
        comparisons=tuple(assemble.comparisons(subjects)),
    )


def test_document_figures_follow_from_samples() -> None:
    training = made().subject("ours").training
    assert training is not None
    assert training.update_seconds == 1.0
    assert (training.target_per_second, training.tokens_per_second) == (15.0, 35.0)
    assert (training.epoch_seconds, training.operations_per_second) == (20.0, 500.0)
    greedy = made().subject("ours").decoding[0]
    assert (greedy.sentences_per_second, greedy.thousand_seconds) == (5.0, 200.0)
    assert made().data.padding_share == pytest.approx(0.3)


def test_comparisons_pair_variants_and_baselines_by_round() -> None:
    found = {(one.subject, one.baseline, one.what): one for one in made().comparisons}
    assert found["ours", "plain", "training"].ratio.values == (4.0, 2.0, 2.0)
    assert found["ours", "plain", "greedy"].baseline_what == "greedy"
    assert not any(one.subject == "plain" for one in made().comparisons)


def test_comparisons_of_a_single_sentence_baseline_are_per_sentence() -> None:
    ours, peer = made().subject("ours"), made().subject("plain")
    alone = dataclasses.replace(peer, training=None, decoding=peer.decoding[1:])
    found = {(one.what, one.baseline_what): one.ratio.values for one in assemble.comparisons([ours, alone])}
    assert found["greedy", "single_greedy"] == pytest.approx(
        ((4 / 2) / (1 / 10), (6 / 2) / (3 / 10), (4 / 2) / (2 / 10))
    )


def test_document_saved_is_loaded_unchanged(tmp_path: Path) -> None:
    path = document_store.save(tmp_path, made())
    assert path.name == f"{made().id}.json"
    assert path.name.startswith("speed-2026-01-02-")
    assert document_store.load(path) == made()
    assert document_store.documents(tmp_path) == [(path, made())]


def _change(value: dict[str, Any], place: str, new: Any) -> dict[str, Any]:
    *outer, last = place.split(".")
    found = value
    for name in outer:
        found = found[int(name)] if isinstance(found, list) else found[name]  # type: ignore[call-overload]
    found[last] = new
    return value


HOSTILE = {
    "subjects.0.training.seconds.median": (2.5, "median=2.5"),
    "subjects.0.training.seconds.values": ([], "at least one sample"),
    "subjects.0.training.update_seconds": (0.9, "update_seconds=0.9"),
    "subjects.0.training.updates": (0, "division by zero"),
    "subjects.0.training.target": (-30, "target"),
    "subjects.0.training.tokens": (True, "document.subjects\\[0\\].training.tokens"),
    "subjects.0.decoding.0.sentences_per_second": (6.0, "sentences_per_second=6.0"),
    "subjects.0.breakdown.shares.0.share": (0.5, "adds up to 0.75"),
    "subjects.0.breakdown.shares.0.group": ("lunch", "group='lunch': expected 'matrix products'"),
    "subjects.1.name": ("ours", "'ours' is there twice"),
    "subjects.0.kind": ("friend", "kind='friend': expected 'variant' or 'peer'"),
    "comparisons.0.baseline": ("nobody", "'nobody'"),
    "machine.cores": ("many", "document.machine.cores='many'"),
    "machine.system": ("x" * 5_000, "longer than 4,000 characters"),
    "data.spec.corpus": ("web", "corpus='web'"),
    "status": ("splendid", "status='splendid'"),
    "schema": (2, "schema=2: expected 'speed' and 1"),
    "kind": ("run", "kind='run'"),
    "extra": (1, "unknown field"),
}


@pytest.mark.parametrize("place", HOSTILE)
def test_document_with_a_wrong_field_is_refused_by_name(place: str, tmp_path: Path) -> None:
    new, message = HOSTILE[place]
    path = document_store.save(tmp_path, made())
    value = _change(json.loads(path.read_text(encoding="utf-8")), place, new)
    files.write_sealed(path, value)
    with pytest.raises(ValueError, match=message) as error:
        document_store.load(path)
    assert str(path) in str(error.value)
    told: list[str] = []
    assert document_store.documents(tmp_path, complain=told.append) == []
    assert told == [str(error.value)]


def test_document_edited_is_refused(tmp_path: Path) -> None:
    path = document_store.save(tmp_path, made())
    path.write_text(path.read_text(encoding="utf-8").replace('"a processor"', '"a faster one"'), encoding="utf-8")
    with pytest.raises(ValueError, match="seal"):
        document_store.load(path)
