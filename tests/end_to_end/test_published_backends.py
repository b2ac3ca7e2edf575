"""The results page repeats the runs of the same models on three frameworks."""

from __future__ import annotations

import itertools
import re

import published_pages
import pytest
from places import ROOT
from published_records import FOLDERS, section

from harness.cli.main import main
from harness.storage.records import RunRecord

RECORDS = FOLDERS[published_pages.BACKENDS]
SECTION = section("The same models on three frameworks")
NAMES = {"torch": "PyTorch", "tensorflow": "Keras on TensorFlow", "jax": "Keras on JAX"}


def test_results_page_repeats_the_scores_of_each_framework() -> None:
    for record in RECORDS:
        losses = [epoch.validation_loss for epoch in record.curve if epoch.validation_loss is not None]
        scores = f"{record.scores['bleu_sacre']:.2f} | {record.scores['test_perplexity']:.2f} | {min(losses):.3f}"
        backend = record.environment["backend"]
        assert f"| `{record.spec.variant}` | {NAMES[backend]} | {scores} |" in SECTION


def test_frameworks_share_initial_weights_and_batches() -> None:
    assert {record.environment["backend"] for record in RECORDS} == set(NAMES)
    for record, other in itertools.combinations(RECORDS, 2):
        assert record.spec.seed == other.spec.seed
        assert record.fingerprints["batches"] == other.fingerprints["batches"]
        if record.spec.variant == other.spec.variant:
            assert record.fingerprints["weights"] == other.fingerprints["weights"]


PAIRS = (
    ("learned_positions (torch)", "learned_positions (keras on jax)"),
    ("paper (torch)", "paper (keras on tensorflow)"),
    ("learned_positions (keras on tensorflow)", "learned_positions (keras on jax)"),
)
"""The differences that the results page reports, in its order."""


def test_results_page_repeats_the_differences_of_compare(capsys: pytest.CaptureFixture[str]) -> None:
    differences = re.findall(r"([+−]\d\.\d\d)(?:\s+sacreBLEU)? \(p (\d\.\d{3})\)", SECTION)
    assert len(differences) == len(PAIRS)
    ids = {label(record): record.id for record in RECORDS}
    for (subject, base), (difference, p) in zip(PAIRS, differences, strict=True):
        results = str(ROOT / published_pages.BACKENDS)
        assert main(["compare", ids[base], ids[subject], "--results", results]) == 0
        assert f"minus A ({base}): {difference}, one seed, p {p} on its own" in capsys.readouterr().out


def label(record: RunRecord) -> str:
    framework, backend = record.environment["framework"], record.environment["backend"]
    return f"{record.spec.variant} ({framework if framework == backend else f'{framework} on {backend}'})"
