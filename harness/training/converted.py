"""Translates with the weights of a finished run in CTranslate2, in float32 or rounded.

The weights are converted as `harness.training.weight_export` does. That takes less than a second, so nothing is kept.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.data.dataset import Dataset
from harness.evaluation.search import Decoded, Translation, length_penalties
from harness.experiments.specs import DecodingSpec
from harness.processes.environment_variables import baseline_environment, worker_environment
from harness.storage.records import RunRecord
from harness.training import load, weight_export
from impls import registry
from impls.baselines.protocol import Candidate
from impls.contract import Ids

KIND = "ctranslate2"
"""The kind of export."""

Translate = Callable[[Sequence[Ids], DecodingSpec], Decoded]


def check(record: RunRecord, *, device: str, compute_type: str) -> None:
    """Raise ValueError if CTranslate2 is missing, lacks the device or the number format, or the run has no recipe."""
    weight_export.check_convertible(record, KIND, advice="use --engine native")
    reason = registry.missing_baseline(registry.COMPUTE_TYPES[compute_type], device)
    if reason:
        raise ValueError(reason)


def translator(record: RunRecord, results: Path, dataset: Dataset, *, device: str, compute_type: str) -> Translate:
    """Return a function that translates like `harness.evaluation.search.translate` with a run in CTranslate2.

    Of the hypotheses that the library finds, the function returns the one that our length penalty prefers; finished
    ones come first. `ties` of its result is 0: the library does not count them.

    `record` is that of a completed run that `check` accepts, `dataset` its corpus, and `compute_type` the number format
    of the weights: "float32", "bfloat16" or "int8".

    Raises: ValueError as `load.stored_weights`, and if the library cannot express the recipe or cannot be used here.
    """
    assert record.spec.recipe is not None
    arrays = load.stored_weights(record, results, dataset)
    os.environ.update(worker_environment(replace(record.spec, device=device)))
    os.environ.update(baseline_environment(registry.COMPUTE_TYPES[compute_type]))
    words = dataset.source_words, dataset.target_words
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as folder:
        weight_export.convert(record, dataset, arrays, KIND, Path(folder))
        model = registry.load_exported(compute_type, record.spec.recipe, words, folder, device=device)

    def translate(sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
        search = weight_export.search_settings(decoding)
        found = model.candidates(sources, search=search, batch_size=decoding.batch_size)
        best = tuple(_best(candidates, decoding) for candidates in found)
        return Decoded(best, ties=0, unfinished=sum(not translation.finished for translation in best))

    return translate


def _best(candidates: Sequence[Candidate], decoding: DecodingSpec) -> Translation:
    penalties = length_penalties(decoding)

    def score(candidate: Candidate) -> tuple[bool, float]:
        return candidate.finished, candidate.log_probability / penalties[len(candidate.tokens) + 1]

    best = max(candidates, key=score)
    return Translation(best.tokens, best.log_probability, best.finished)
