"""Run folders: records, translations, per-sentence counts, weights and logs, each with a digest.

RESULTS/ID/record.json           the `RunRecord`; written last, so that it vouches for the other files
RESULTS/ID/hypotheses.jsonl      one test translation per line: {"sentence": 0, "tokens": [...], "text": "..."}
RESULTS/ID/sentences.safetensors the contribution of each test sentence to each score; no text
RESULTS/ID/attention.safetensors the cross attention of the first test sentences; no text
RESULTS/ID/weights.safetensors   the kept weights under their canonical names
RESULTS/ID/checkpoint-N.json     the state of an unfinished run (harness.storage.checkpoint_files)
RESULTS/ID/log.txt               the output of the process of the run

Functions that read raise a ValueError that names the file if it is missing, damaged, foreign, or does not have the
expected SHA-256 or seal. Functions that write raise a ValueError if the folder of the run is a link.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from harness.experiments.serialization import canonical_json, to_json
from harness.storage import files, tensors
from harness.storage.hypotheses import SENTENCES_COUNT, parse_hypotheses
from harness.storage.hypotheses import Hypothesis as Hypothesis
from harness.storage.records import RECORD_SCHEMA, RunRecord, misfits, record_from_json
from harness.storage.results_folders import RESULTS as RESULTS
from harness.storage.results_folders import command_on, list_command, run_folders
from harness.text import brief, did_you_mean, first_few
from impls.contract import Arrays, Numbers

PUBLISHED = "published"
"""The name of folders whose runs are committed. Multi30k's terms keep its text out of pages made from them."""

FINISHED = ("completed", "diverged")
RECORD, HYPOTHESES, LOG = "record.json", "hypotheses.jsonl", "log.txt"
SENTENCES, ATTENTION, WEIGHTS = "sentences.safetensors", "attention.safetensors", "weights.safetensors"

HYPOTHESES_BYTES = 64 * 2**20
SENTENCES_BYTES = 16 * 2**20
ATTENTION_BYTES = 16 * 2**20
WEIGHTS_BYTES = 512 * 2**20
"""Limits in bytes; runs write 0.2 MB of translations, 0.3 MB of counts, 0.2 MB of attention, 250 MB of weights."""

MAP_POSITIONS = 2_048
"""The largest number of source or target positions of a stored attention map."""
MAPS = 16
"""The largest number of sentences with stored attention."""
COLUMNS = 64
"""The largest number of counts that a sentence contributes to one score."""


class RunFailed(Exception):
    """A run failed through no fault of its settings; its record has the status "failed" and the reason."""


def run_folder(results: Path, run_id: str) -> Path:
    """Return the folder of a run, which need not exist. Raises: ValueError if the id cannot be a folder's name."""
    if run_id in ("", ".", "..") or set(run_id) & {"/", "\\", "\0"} or len(os.fsencode(run_id)) > 255:
        raise ValueError(f"run {brief(run_id)}: expected the name of a folder in {results}")
    return results / run_id


def has(results: Path, run_id: str, name: str) -> bool:
    """Return whether a run has the file `name`; published runs have no `WEIGHTS`, and early ones no `ATTENTION`."""
    return os.path.lexists(run_folder(results, run_id) / name)


def is_published(results: Path) -> bool:
    """Return whether a folder holds published results: it is called "published", or is in a folder of that name."""
    return PUBLISHED in results.resolve().parts[-2:]


def nested_results(results: Path) -> list[Path]:
    """Return the folders in a folder of results that are folders of results themselves."""
    folders = {path.parents[1] for path in results.glob(f"*/*/{RECORD}")}
    return sorted(folder for folder in folders if not folder.name.startswith("."))


def no_record(results: Path) -> str:
    """Return the message for a folder without a run: what the folder is instead, or how to train runs."""
    if (results / RECORD).is_file():
        return f"{results}: the folder of one run; give the folder around it: --results {results.parent}"
    advice = f"train runs with: {command_on(results, 'bench')}"
    if inner := nested_results(results):
        advice = f"folders in it have runs: give one as --results {first_few(inner)}"
    return f"{results}: there is no record in it; {advice}"


def own_folder(results: Path, run_id: str) -> Path:
    """Return the folder of a run for writing. Raises: ValueError if it is a link to another place."""
    folder = run_folder(results, run_id)
    if folder.is_symlink():
        raise ValueError(f"{folder}: is a link: expected a folder to write in")
    return folder


# Records --------------------------------------------------------------------------------------------------------------


def save_record(results: Path, record: RunRecord) -> Path:
    """Write `record.json` with its seal and return its path. Numbers that are not finite become None."""
    path = own_folder(results, record.id) / RECORD
    files.write_sealed(path, finite(to_json(record)))
    return path


def load_record(results: Path, run_id: str) -> RunRecord | None:
    """Return a stored record, or None if there is none."""
    path = run_folder(results, run_id) / RECORD
    if not files.may_exist(path):
        return None
    with files.naming(path):
        record = record_from_json(files.read_sealed(path))
        for misfit in misfits(record):
            raise ValueError(misfit)
    return record


def finished(results: Path, run_id: str, *, complain: Callable[[str], None] | None = None) -> RunRecord | None:
    """Return the record of a finished run, or None. `complain` receives a line if the record is unusable."""
    record = usable_record(results, run_id, complain)
    return record if record is not None and record.status in FINISHED else None


def check_version(results: Path, run_id: str) -> None:
    """Raise ValueError for a record that a new run would replace: of another schema, or perhaps undamaged."""
    path = run_folder(results, run_id) / RECORD
    try:
        schema = files.unsealed(files.parse_json(files.read_bytes(path, files.JSON_BYTES))).get("schema")
    except (FileNotFoundError, ValueError):
        return  # missing or damaged
    except OSError as error:  # of the disk, the network or a permission
        raise ValueError(f"{path}: cannot be read ({error.strerror}); a new run would replace it") from error
    if schema != RECORD_SCHEMA:
        raise ValueError(f"{path}: a record of another version of this software: use that version or another --results")


def remove_record(results: Path, run_id: str) -> None:
    """Remove the record of a run, if there is one."""
    (own_folder(results, run_id) / RECORD).unlink(missing_ok=True)


def records(results: Path, *, complain: Callable[[str], None] | None = None) -> list[RunRecord]:
    """Return all records in a folder of results, sorted by id. `complain` receives a line for each unusable file."""
    stored = (usable_record(results, run_id, complain) for run_id in _stored_ids(results))
    return [record for record in stored if record is not None]


def completed(results: Path, variant: str) -> list[RunRecord]:
    """Return the completed runs of a variant, the one that started last at the end."""
    runs = (run for run in records(results) if run.spec.variant == variant and run.status == "completed")
    return sorted(runs, key=lambda run: run.started)


def check_completed(record: RunRecord) -> None:
    """Raise ValueError if a run is not completed, so that it has no weights, translations and scores."""
    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs can be used")


def find(results: Path, prefix: str) -> RunRecord:
    """Return the record whose id is `prefix`, or the only one whose id begins with it. Raises: ValueError."""
    record = _own_record(results, only_id(_stored_ids(results), prefix, results))
    if record is None:
        raise ValueError(f"run {prefix!r}: its record has been removed")
    return record


def only_id(ids: Sequence[str], prefix: str, results: Path) -> str:
    """Return the id of a run in `results` that is `prefix`, or the only one that begins with it. Raises: ValueError."""
    run_folder(results, prefix)  # refuses what no id can be
    matches = [prefix] if prefix in ids else [run_id for run_id in ids if run_id.startswith(prefix)]
    if len(matches) > 1:
        raise ValueError(f"run {prefix!r}: {len(matches)} ids begin with it ({first_few(matches, 4)})")
    if not matches:
        variants = dict.fromkeys(run_id.partition("-")[0] for run_id in ids)
        hint = did_you_mean(prefix, variants) or f"; {list_command(results)}"
        raise ValueError(f"run {prefix!r}: there is none in {results}{hint}")
    return matches[0]


def _stored_ids(results: Path) -> list[str]:
    return [folder.name for folder in run_folders(results) if files.may_exist(folder / RECORD)]


def usable_record(results: Path, run_id: str, complain: Callable[[str], None] | None = None) -> RunRecord | None:
    """Return the record of a run, or None if it is missing or damaged; `complain` receives a line if it is damaged."""
    try:
        return _own_record(results, run_id)
    except ValueError as error:
        if complain is not None:
            complain(str(error))
        return None


def _own_record(results: Path, run_id: str) -> RunRecord | None:
    """Return the record in a folder, or None. Raises: ValueError, also if it is the record of another run."""
    record = load_record(results, run_id)
    if record is not None and record.id != run_id:
        path = run_folder(results, run_id) / RECORD
        raise ValueError(f"{path}: its id is {record.id!r}: expected the name of its folder")
    return record


def finite(value: Any) -> Any:
    """Return a JSON value with None for every number that is not finite."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


# Hypotheses -----------------------------------------------------------------------------------------------------------


def save_hypotheses(results: Path, run_id: str, hypotheses: Sequence[Hypothesis]) -> str:
    """Write the translations, one JSON object per line, and return the SHA-256 of the file."""
    if len(hypotheses) > SENTENCES_COUNT:
        raise ValueError(f"{len(hypotheses):,} translations: expected at most {SENTENCES_COUNT:,}")
    lines = [canonical_json(dataclasses.asdict(hypothesis)) + "\n" for hypothesis in hypotheses]
    return files.write_bytes(own_folder(results, run_id) / HYPOTHESES, "".join(lines).encode(), HYPOTHESES_BYTES)


def load_hypotheses(results: Path, run_id: str, digest: str | None = None) -> list[Hypothesis]:
    """Read the translations of a run from a file with the SHA-256 `digest`, if that is known."""
    path = _existing(run_folder(results, run_id) / HYPOTHESES)
    with files.naming(path):
        content = files.read_bytes(path, HYPOTHESES_BYTES)
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"damaged (its SHA-256 is not {digest})")
        return parse_hypotheses(content)


def hypotheses_of(folder: Path, record: RunRecord) -> list[Hypothesis] | None:
    """Read the translations in the folder of a run, as `load_hypotheses`; None if they are not stored."""
    if not os.path.lexists(folder / HYPOTHESES):
        return None
    return load_hypotheses(folder.parent, folder.name, record.fingerprints.get("hypotheses"))


def _existing(path: Path) -> Path:
    if not os.path.lexists(path):
        raise ValueError(f"{path}: there is no such file")
    return path


# Sentences ------------------------------------------------------------------------------------------------------------


def save_sentences(results: Path, run_id: str, arrays: Arrays) -> str:
    """Write the contributions of each test sentence to the scores, and return the SHA-256 of the file.

    Shapes: `nats` float64 [N] and `tokens` int32 [N], over the target tokens of each sentence (`<eos>` included); the
    counts of each BLEU and of chrF under its name, int32 [N,K], as in `harness.evaluation.metrics`.
    """
    path = own_folder(results, run_id) / SENTENCES
    _check_sentences(path, arrays)
    return tensors.write(path, arrays, SENTENCES_BYTES)


def load_sentences(results: Path, run_id: str, digest: str | None = None, *, sentences: float | None = None) -> Arrays:
    """Read the arrays of `save_sentences` from a file with the SHA-256 `digest` and `sentences` rows, if known."""
    path = _existing(run_folder(results, run_id) / SENTENCES)
    arrays = tensors.read(path, digest, SENTENCES_BYTES)
    _check_sentences(path, arrays)
    if sentences is not None and len(arrays["nats"]) != sentences:
        raise ValueError(f"{path}: {len(arrays['nats']):,} sentences: expected {sentences:,.0f} (sizes.test_pairs)")
    if np.isnan(arrays["nats"]).any():
        raise ValueError(f"{path}: nats of a sentence are not a number")
    if (arrays["tokens"] < 1).any():
        raise ValueError(f"{path}: a sentence has no tokens: expected at least <eos>")
    return arrays


def sentences_of(folder: Path, record: RunRecord) -> Arrays | None:
    """Read the arrays of `save_sentences` in the folder of a run, as `load_sentences`; None if they are not stored."""
    if not os.path.lexists(folder / SENTENCES):
        return None
    digest, pairs = record.fingerprints.get("sentences"), record.sizes.get("test_pairs")
    return load_sentences(folder.parent, folder.name, digest, sentences=pairs)


def _check_sentences(path: Path, arrays: Arrays) -> None:
    """Raise ValueError unless the arrays of a file are those of `save_sentences`."""
    kinds = {name: (str(array.dtype), array.ndim) for name, array in arrays.items()}
    expected = dict.fromkeys(arrays, ("int32", 2)) | {"nats": ("float64", 1), "tokens": ("int32", 1)}
    rows = {array.shape[:1] for array in arrays.values()}
    is_wide = any(column > COLUMNS for array in arrays.values() for column in array.shape[1:])
    if kinds != expected or len(rows) != 1 or is_wide:
        found = brief({name: _kind(array) for name, array in sorted(arrays.items())})
        raise ValueError(
            f"{path}: {found}: expected nats float64 [N], tokens int32 [N] and int32 [N,K] with K <= {COLUMNS}"
        )


def _kind(array: Numbers) -> str:
    return f"{array.dtype}{list(array.shape)}"


# Attention ------------------------------------------------------------------------------------------------------------


def save_attention(results: Path, run_id: str, maps: Mapping[int, Numbers]) -> str:
    """Write the cross attention of some test sentences, by number, and return the SHA-256 of the file.

    Shapes: each float16 [layers,H,T,S] for H heads, T target and S source positions. Maps that are too large to be read
    are left out.
    """
    path = own_folder(results, run_id) / ATTENTION
    most = ATTENTION_BYTES // (len(maps) + 1)  # of each map; the rest is for the header
    arrays = {
        str(number): weights
        for number, weights in sorted(maps.items())
        if weights.nbytes <= most and max(weights.shape) <= MAP_POSITIONS
    }
    _check_attention(path, arrays)
    return tensors.write(path, arrays, ATTENTION_BYTES)


def load_attention(results: Path, run_id: str, digest: str | None = None) -> dict[int, Numbers]:
    """Read the maps of `save_attention` by the numbers of their sentences; empty for runs without the file.

    Early runs stored a mean over heads, [layers,T,S], which is read as one head.
    """
    path = run_folder(results, run_id) / ATTENTION
    if not os.path.lexists(path):
        return {}
    arrays = tensors.read(path, digest, ATTENTION_BYTES)
    _check_attention(path, arrays)
    if not all(np.isfinite(weights).all() for weights in arrays.values()):
        raise ValueError(f"{path}: a weight is not finite: expected from 0 to 1")
    maps = {number: arrays[str(number)] for number in sorted(map(int, arrays))}
    return {number: weights if weights.ndim == 4 else weights[:, None] for number, weights in maps.items()}


def _check_attention(path: Path, arrays: Arrays) -> None:
    """Raise ValueError unless the arrays of a file are those of `save_attention`."""
    if len(arrays) > MAPS:
        raise ValueError(f"{path}: attention of {len(arrays):,} sentences: expected at most {MAPS}")
    for name, array in arrays.items():
        is_number = re.fullmatch("0|[1-9][0-9]{0,8}", name)
        fits = array.dtype == np.float16 and array.ndim in (3, 4) and array.size > 0
        if not is_number or not fits or max(array.shape) > MAP_POSITIONS:
            raise ValueError(
                f"{path}: {brief(name)} is {_kind(array)}: expected a sentence number, float16 [layers,H,T,S] of at "
                f"most {MAP_POSITIONS:,} positions"
            )


def check_limits(sentences: int, weights: Arrays) -> None:
    """Raise ValueError, before a run is trained, if its test sentences are too many or its weights too large."""
    if sentences > SENTENCES_COUNT:
        raise ValueError(f"{sentences:,} test sentences: expected at most {SENTENCES_COUNT:,}; use a smaller test set")
    if (size := sum(array.nbytes for array in weights.values())) > WEIGHTS_BYTES:
        raise ValueError(f"{size:,} bytes of weights: expected at most {WEIGHTS_BYTES:,}; use a smaller model")


# Logs and weights -----------------------------------------------------------------------------------------------------


def log_path(results: Path, run_id: str) -> Path:
    """Return the path of the log of a run."""
    return run_folder(results, run_id) / LOG


def open_log(results: Path, run_id: str) -> BinaryIO:
    """Open the log of a run for appending. Raises: OSError; ValueError if it is not a regular file."""
    path = own_folder(results, run_id) / LOG
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise ValueError(f"{path}: expected a regular file, not a link to one")
    return files.in_folder(path.parent, lambda: path.open("ab"))


def save_weights(results: Path, run_id: str, weights: Arrays) -> str:
    """Write the weights and return the SHA-256 of the file."""
    return tensors.write(own_folder(results, run_id) / WEIGHTS, weights, WEIGHTS_BYTES)


def load_weights(results: Path, run_id: str, digest: str | None = None) -> Arrays:
    """Read the weights of a run from a file with the SHA-256 `digest`, if that is known."""
    return tensors.read(_existing(run_folder(results, run_id) / WEIGHTS), digest, WEIGHTS_BYTES)
