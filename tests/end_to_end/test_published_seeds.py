"""What docs/statistics.md says of the test over sentences, measured on the published runs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import published_pages
from places import ROOT
from published_records import FOLDERS, joined

from harness.analysis.evidence import metric_function
from harness.analysis.significance import randomisation_p
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles

METRIC = "bleu_sacre"


def test_how_often_two_seeds_of_one_model_seem_to_differ() -> None:
    metric, p = metric_function(METRIC), []
    for runs in _same_but_for_the_seed().values():
        sums = np.stack([StoredFiles(ROOT / folder).sentences(record)[METRIC] for folder, record in runs]).astype(float)
        p += list(randomisation_p(sums, list(combinations(range(len(runs)), 2)), metric))
    significant = sum(value < 0.05 for value in p)
    sentence = f"Of {len(p)} pairs of published runs that differ only in their seed, {significant}"
    text = joined((ROOT / "docs" / "statistics.md").read_text(encoding="utf-8"))
    assert f"{sentence} ({100 * significant / len(p):.0f} %) have p < 0.05 in this test" in text


def _same_but_for_the_seed() -> dict[RunSpec, list[tuple[Path, RunRecord]]]:
    """Return runs with equal settings, two or more, once each: some are in several folders.

    Runs with the weights of another run are left out.
    """
    seen: dict[str, tuple[Path, RunRecord]] = {}
    for folder, records in FOLDERS.items():
        for record in records:
            if folder != published_pages.CAPTIONS and "trained_as" not in record.environment:
                seen.setdefault(record.id, (folder, record))
    groups: dict[RunSpec, list[tuple[Path, RunRecord]]] = defaultdict(list)
    for folder, record in seen.values():
        groups[replace(record.spec, seed=0)].append((folder, record))
    return {spec: runs for spec, runs in groups.items() if len(runs) > 1}
