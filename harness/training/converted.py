"""Translates with the weights of a finished run in CTranslate2, in float32 or rounded.

The weights are converted as `harness.training.weight_export` does, and kept in RESULTS/ID/ctranslate2 with the digest
of the weights. A folder that is damaged, or of other weights, is converted again. Published results are not written to.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.data import cache
from harness.data.dataset import Dataset
from harness.evaluation.search import Decoded, Translation, length_penalties, suppressed
from harness.experiments.specs import DecodingSpec
from harness.processes.environment_variables import worker_environment
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.training import load, weight_export
from impls import registry
from impls.baselines.protocol import Candidate, Search
from impls.contract import Ids

KIND = "ctranslate2"
"""The kind of export, and the name of the folder in that of the run."""

Translate = Callable[[Sequence[Ids], DecodingSpec], Decoded]


def check(record: RunRecord, *, device: str, compute_type: str) -> None:
    """Raise ValueError if CTranslate2 is missing, lacks the device or the number format, or the run has no recipe."""
    weight_export.check_convertible(record, KIND)
    reason = registry.missing_baseline(registry.COMPUTE_TYPES[compute_type], device)
    if reason:
        raise ValueError(reason)


def translator(record: RunRecord, results: Path, dataset: Dataset, *, device: str, compute_type: str) -> Translate:
    """Return a function that translates like `harness.evaluation.search.translate` with a run in CTranslate2.

    Of the hypotheses that the library finds, the function returns the one that our length penalty prefers; finished
    ones come first. `ties` of its result is 0: the library does not count them.

    Args:
        record: The record of a completed run that `check` accepts.
        results: The folder of results.
        dataset: The prepared corpus of the run.
        device: The device of the model, "cpu" or "cuda".
        compute_type: The number format of the weights: "float32", "bfloat16" or "int8".

    Raises:
        ValueError: As `load.stored_weights`, or the library cannot express the recipe or cannot be used here.
    """
    assert record.spec.recipe is not None
    contents = _converted(record, results, dataset)
    os.environ.update(worker_environment(replace(record.spec, device=device)))
    words = dataset.source_words, dataset.target_words
    model = registry.load_exported(compute_type, record.spec.recipe, words, contents, device=device)

    def translate(sources: Sequence[Ids], decoding: DecodingSpec) -> Decoded:
        search = Search(decoding.beam, decoding.max_tokens, decoding.length_penalty, suppressed(decoding))
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


def _converted(record: RunRecord, results: Path, dataset: Dataset) -> Mapping[str, bytes]:
    """Return the files of the converted weights, from the folder of the run if they are there."""
    folder = run_store.run_folder(results, record.id)
    entry, weights = folder / KIND, folder / run_store.WEIGHTS
    key = {
        "weights": files.file_digest(weights) if os.path.lexists(weights) else None,
        "library": importlib.metadata.version(KIND),
        **{name: dataset.digests[name] for name in ("source_vocabulary", "target_vocabulary")},
    }
    expected = {name: record.fingerprints.get(name) for name in ("source_vocabulary", "target_vocabulary")}
    expected["weights"] = record.fingerprints.get("trained_weights")
    stored = None if entry.is_symlink() else cache.read_entry(entry)
    if stored is not None and stored[0] == key and key.items() >= expected.items():
        return stored[1]
    arrays = load.stored_weights(record, results, dataset)
    with tempfile.TemporaryDirectory(prefix="bakeoff-") as name:
        weight_export.convert(record, dataset, arrays, KIND, Path(name))
        contents = {path.name: path.read_bytes() for path in sorted(Path(name).iterdir())}
    is_read_only = run_store.is_published(results) or not os.access(folder, os.W_OK)
    if not (is_read_only or folder.is_symlink() or entry.is_symlink()):
        shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(ValueError):  # a full disk: the next process converts again
            cache.write_entry(entry, key, contents)
    return contents
