"""The document of a measurement: what is computed from samples; damaged and foreign documents are rejected."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import speed_factory

from harness.speed import speed_document
from harness.speed.speed_document import Point, Scaling
from harness.speed.timed_model import TimedModel
from harness.speed.timing import Samples
from harness.storage import files

OURS = speed_factory.OURS


def subject(name: str, seconds: tuple[float, ...], **changes: Any) -> TimedModel:
    """Return a model with training and two decodings, all with the same seconds."""
    samples = Samples.of(seconds)
    training = replace(speed_factory.training(1.0), updates=2, target=30, operations=1_000, seconds=samples)
    decodings = tuple(
        replace(speed_factory.decoding(name, 1.0, sentences), seconds=samples)
        for name, sentences in (("greedy", 10), ("single_greedy", 2))
    )
    settings: dict[str, Any] = {"kind": "variant", "variant": "learned_positions", "framework": "torch"}
    return TimedModel(name=name, **{**settings, "training": training, "decoding": decodings, **changes})


SUBJECTS = subject("ours", (1.0, 3.0, 2.0)), subject("plain", (4.0, 6.0, 4.0), kind="peer")


def ratios_of(*subjects: TimedModel) -> dict[tuple[str, str, str], tuple[float, ...]]:
    comparisons = speed_factory.document(subjects=subjects).comparisons
    return {(pair.subject, pair.baseline, pair.work): pair.ratio.values for pair in comparisons}


def test_times_follow_from_samples() -> None:
    training = SUBJECTS[0].training
    assert training.update_seconds == 1.0
    assert (training.target_per_second, training.operations_per_second) == (15.0, 500.0)
    assert SUBJECTS[0].decoding[0].thousand_seconds == 200.0
    data = replace(speed_factory.data(), source=40, target=30, positions=100)
    assert data.padding_share == pytest.approx(0.3)


def test_comparisons_pair_variants_and_their_baselines_by_round_and_work() -> None:
    """One sentence at a time is not compared with batches: that would measure the batching."""
    ours, plain = SUBJECTS
    ratios = ratios_of(ours, plain)
    assert ratios["ours", "plain", "training"] == (4.0, 2.0, 2.0)
    assert list(ratios) == [("ours", "plain", work) for work in ("training", "greedy", "single_greedy")]
    single = replace(plain, training=None, decoding=plain.decoding[1:])
    assert list(ratios_of(ours, single)) == [("ours", "plain", "single_greedy")]
    other, keras = replace(ours, name="other", variant="paper"), replace(ours, name="keras", framework="keras")
    assert {subject for subject, _, _ in ratios_of(ours, plain, other, keras)} == {"ours", "keras"}
    training = replace(plain.training, updates=2 * plain.training.updates)
    decoding = tuple(replace(times, sentences=4 * times.sentences) for times in plain.decoding)
    ratios = ratios_of(ours, replace(plain, training=training, decoding=decoding))
    assert ratios["ours", "plain", "training"] == (2.0, 1.0, 1.0), "per update"
    assert ratios["ours", "plain", "greedy"] == (1.0, 0.5, 0.5), "per sentence"


def test_mfu_is_operations_over_the_peak_of_the_same_round() -> None:
    rate = replace(speed_factory.RATE, operations=500, seconds=Samples.of([1.0, 2.0, 0.5]))
    ours, plain = SUBJECTS
    document = speed_factory.document(subjects=SUBJECTS, rates=(rate,))
    shares = document.mfu(ours)
    assert shares.values == pytest.approx((2 * 1 / 1, 2 * 2 / 3, 2 * 0.5 / 2))
    assert document.mfu(replace(ours, variant="paper")) is None
    assert document.mfu(replace(plain, training=None)) is None


def test_exponent_is_that_of_the_medians() -> None:
    rounds = {2.0: (1.0, 2.0, 9.0), 4.0: (3.5, 4.0, 4.1)}
    points = tuple(Point(size=size, seconds=Samples.of(values), tokens=1) for size, values in rounds.items())
    line = Scaling(axis="length", subject=OURS, fixed={}, points=points)
    assert (line.exponent, line.standard_error) == (pytest.approx(1.0), None)


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
    "subjects.0.training.seconds.median": (2.5, "document.*seconds.median: unknown field"),
    "subjects.0.training.seconds.values": ([], "at least one sample"),
    "subjects.0.training.update_seconds": (0.9, "training.update_seconds: unknown field"),
    "subjects.0.evaluation.seconds.values": ([5e-324], "a sample is 5e-324; samples must be from 1e-12 to 1e"),
    "subjects.0.training.updates": (0, r"document.subjects\[0\].training.updates=0: expected more than 0"),
    "subjects.0.training.target": (-30, r"document.subjects\[0\].training.target=-30: expected more than 0"),
    "subjects.0.training.first_update_seconds": (True, r"document.subjects\[0\].training.first_update_seconds"),
    "subjects.0.training.operations": (10**400, "is not JSON"),
    "subjects.0.breakdown.shares.0.share": (0.5, "add up to 0.875"),
    "subjects.0.breakdown.shares.0.group": ("lunch", "group='lunch': expected 'matrix products'"),
    "subjects": ([], "at least one subject is required"),
    "subjects.1.name": (OURS, f"'{OURS}' is there twice"),
    "subjects.0.kind": ("friend", "kind='friend': expected 'variant' or 'peer'"),
    "data.source": (0, "document.data.source=0: expected more than 0"),
    "data.positions": (0, "document.data.positions=0: expected more than 0"),
    "machine.cores": ("many", "document.machine.cores='many'"),
    "machine.system": ("x" * 5_000, "document.machine.system=.* at most 4,000 characters"),
    "data.spec.corpus": ("web", "corpus='web'"),
    "started": ("$(reboot)", r"started='\$\(reboot\)': expected a date"),
    "status": ("splendid", "status='splendid'"),
    "schema": (1, "schema=1: expected 2; measure again with `speed`"),
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
