"""The results on the disk: records, translations, counts, weights and logs, each with a digest.

RESULTS/ID/record.json           the `RunRecord`; written last, so that it vouches for the rest
RESULTS/ID/hypotheses.jsonl      one test translation a line: {"sentence": 0, "tokens": [...], "text": "..."}
RESULTS/ID/sentences.safetensors what each test sentence adds to each score: numbers alone, no text
RESULTS/ID/attention.safetensors the cross attention of the first test sentences: weights alone, no text
RESULTS/ID/weights.safetensors   the kept weights under their canonical names; weights.json is their manifest
RESULTS/ID/checkpoint-N.json     what an unfinished run goes on from (harness.storage.checkpoint_files)
RESULTS/ID/log.txt               what the process of the run printed
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from harness.experiments.serialization import canonical_json, to_json
from harness.storage import files, tensors
from harness.storage.records import RunRecord, misfits, record_from_json
from harness.storage.tensors import Headers, TensorHeader
from harness.text import brief
from impls.contract import Arrays, Numbers

RESULTS = Path("results/local")
PUBLISHED = "published"
"""The name of a folder whose runs are committed: Multi30k's terms keep its text out of pages made from them."""

FINISHED = ("completed", "diverged")
RECORD, HYPOTHESES, WEIGHTS, LOG = "record.json", "hypotheses.jsonl", "weights", "log.txt"
SENTENCES, ATTENTION = "sentences.safetensors", "attention.safetensors"
SEAL = files.SEAL
"""The field of record.json beside those of the `RunRecord`: its own digest. Records of older versions have none."""

HYPOTHESES_BYTES = 24 * 2**20
SENTENCES_BYTES = 64 * 2**20
ATTENTION_BYTES = 64 * 2**20
WEIGHTS_BYTES = 512 * 2**20
"""Limits of the files of one run, in bytes: far above what runs write (0.2 MB of translations, 0.3 MB of counts,
0.2 MB of attention, 250 MB of weights). Reading one takes less than 512 MB of memory."""

MAP_POSITIONS = 2_048
COLUMNS = 64
"""Limits of the positions of a stored attention map, and of what one sentence adds to one score."""


class RunFailed(Exception):
    """A run broke off through no fault of its settings; its record says "failed" and why."""


@dataclass(frozen=True)
class Hypothesis:
    """The translation of test sentence number `sentence`: as tokens without special words, and as text."""

    sentence: int
    tokens: tuple[str, ...]
    text: str


def run_folder(results: Path, run_id: str) -> Path:
    """Return where the files of a run lie, whether they exist or not.

    Raises: ValueError where the id is not a name that a folder in `results` can have.
    """
    if run_id in ("", ".", "..") or any(one in run_id for one in ("/", "\\", "\0")) or len(os.fsencode(run_id)) > 255:
        shown = run_id if len(run_id) <= 80 else f"{run_id[:79]}…"
        raise ValueError(f"run {shown!r}: expected the name of a folder in {results}")
    return results / run_id


def is_published(results: Path) -> bool:
    """Return whether a folder holds published results: it is called "published", or is in a folder of that name."""
    return PUBLISHED in results.resolve().parts[-2:]


def own_folder(results: Path, run_id: str) -> Path:
    """Return where the files of a run are to be written. Raises: ValueError where that is a link to elsewhere."""
    folder = run_folder(results, run_id)
    if folder.is_symlink():
        raise ValueError(f"{folder}: is a link: expected a folder to write in")
    return folder


# Records --------------------------------------------------------------------------------------------------------------


def save_record(results: Path, record: RunRecord) -> Path:
    """Write `record.json` and its seal; figures that are not finite become None. Returns its path."""
    path = own_folder(results, record.id) / RECORD
    files.write_sealed(path, finite(to_json(record)))
    return path


def update_record(results: Path, record: RunRecord) -> None:
    """Write what differs in a stored record, with the present schema, and seal it; the rest of its file stays as it is.

    Raises: ValueError naming a damaged or foreign file, or one that its seal does not fit.
    """
    path = own_folder(results, record.id) / RECORD
    _read_record(path)
    value, told = files.read_json(path), finite(to_json(record))
    files.write_sealed(path, value | {name: one for name, one in told.items() if value.get(name) != one})


def load_record(results: Path, run_id: str) -> RunRecord | None:
    """Return a stored record, or None where there is none.

    Raises: ValueError naming a damaged or foreign file, or one that its seal does not fit.
    """
    path = run_folder(results, run_id) / RECORD
    return _read_record(path) if os.path.lexists(path) else None


def finished(results: Path, run_id: str, *, complain: Callable[[str], None] | None = None) -> RunRecord | None:
    """Return the record of a run that needs not be run again, else None.

    A damaged one, or one of another run, counts as none; `complain` is told in a line.
    """
    try:
        record = _own_record(results, run_id)
    except ValueError as error:
        if complain is not None:
            complain(str(error))
        return None
    return record if record is not None and record.status in FINISHED else None


def add_fingerprint(results: Path, run_id: str, name: str, digest: str) -> None:
    """Put a digest among the fingerprints of a stored record, and seal it anew where it was sealed.

    All else in its file stays as it is, to the byte.

    Raises: ValueError naming a damaged or foreign file, or one that its seal does not fit.
    """
    path = own_folder(results, run_id) / RECORD
    _read_record(path)
    value = files.read_json(path)
    value["fingerprints"] = {**value.get("fingerprints", {}), name: digest}
    if SEAL in value:
        files.write_sealed(path, value)
    else:
        files.write_json(path, value)


def remove_record(results: Path, run_id: str) -> None:
    """Remove the record of a run that is to be run again."""
    (own_folder(results, run_id) / RECORD).unlink(missing_ok=True)


def records(results: Path, *, complain: Callable[[str], None] | None = None) -> list[RunRecord]:
    """Return every record under `results`, by id; tell `complain` in a line about each file that is not one."""
    found = []
    for path in sorted(results.glob(f"*/{RECORD}")):
        try:
            record = _own_record(results, path.parent.name)
        except ValueError as error:
            if complain is not None:
                complain(str(error))
            continue
        found += [record] if record is not None else []
    return found


def find(results: Path, prefix: str) -> RunRecord:
    """Return the one record whose id begins with `prefix`. Raises: ValueError where none or several do."""
    exact = _own_record(results, prefix) if prefix else None
    if exact is not None:
        return exact
    ids = sorted(path.parent.name for path in results.glob(f"*/{RECORD}") if path.parent.name.startswith(prefix))
    if len(ids) == 1:
        found = _own_record(results, ids[0])
        assert found is not None
        return found
    if ids:
        raise ValueError(f"run {prefix!r}: {len(ids)} runs begin so ({', '.join(ids[:4])}{', …' * (len(ids) > 4)})")
    raise ValueError(f"run {prefix!r}: there is none in {results}; see them with: python -m harness list")


def _own_record(results: Path, run_id: str) -> RunRecord | None:
    """Return the record in a folder. Raises: as `load_record`; ValueError where it is the record of another run."""
    record = load_record(results, run_id)
    if record is not None and record.id != run_id:
        path = run_folder(results, run_id) / RECORD
        raise ValueError(f"{path}: its id is {record.id!r}: expected the name of its folder")
    return record


def _read_record(path: Path) -> RunRecord:
    value = files.read_sealed(path)
    try:
        record = record_from_json(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    for wrong in misfits(record):
        raise ValueError(f"{path}: {wrong}")
    return record


def finite(value: Any) -> Any:
    """Return JSON with None for every number that is not finite."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, list):
        return [finite(one) for one in value]
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    return value


# Hypotheses -----------------------------------------------------------------------------------------------------------


def save_hypotheses(results: Path, run_id: str, hypotheses: Sequence[Hypothesis]) -> str:
    """Write the translations, one JSON object a line, and return the SHA-256 of the file."""
    lines = [canonical_json(dataclasses.asdict(one)) + "\n" for one in hypotheses]
    return files.write_bytes(own_folder(results, run_id) / HYPOTHESES, "".join(lines).encode())


def load_hypotheses(results: Path, run_id: str, digest: str | None = None) -> list[Hypothesis]:
    """Read the translations back.

    Raises: ValueError naming the file where it is missing or damaged, or where its SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / HYPOTHESES
    if not os.path.lexists(path):
        raise ValueError(f"{path}: there is no such file")
    try:
        content = files.read_bytes(path, HYPOTHESES_BYTES)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
    if digest is not None and hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{path}: damaged (its SHA-256 is not {digest})")
    lines = io.BytesIO(content or b"\n")
    return [_hypothesis(path, number, line.removesuffix(b"\n")) for number, line in enumerate(lines, start=1)]


def _hypothesis(path: Path, number: int, line: bytes) -> Hypothesis:
    try:
        one = files.parse_json(line)
        sentence, tokens, text = (one[name] for name in ("sentence", "tokens", "text"))
        if type(sentence) is not int or sentence < 0 or not isinstance(text, str) or not isinstance(tokens, list):
            raise ValueError("expected the number of a sentence, its tokens and its text")
        if not all(isinstance(token, str) for token in tokens):
            raise ValueError("expected tokens that are text")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: line {number} is not a translation ({error})") from error
    return Hypothesis(sentence, tuple(tokens), text)


# Sentences ------------------------------------------------------------------------------------------------------------


def save_sentences(results: Path, run_id: str, arrays: Arrays) -> str:
    """Write what each test sentence adds to the scores, and return the SHA-256 of the file.

    Shapes: `nats` float64 [N] and `tokens` int32 [N], over the target words of each sentence (`<eos>` included); under
    the name of each BLEU and of chrF its counts, int32 [N,K], as `harness.evaluation.metrics` has them.

    Raises: ValueError where these are not of the same N sentences.
    """
    path = own_folder(results, run_id) / SENTENCES
    _check(path, arrays, _check_sentences)
    return tensors.write(path, arrays)


def load_sentences(results: Path, run_id: str, digest: str | None = None) -> Arrays:
    """Read what each test sentence adds to the scores; neither the corpus nor the weights are needed.

    Raises: ValueError naming the file where it is missing or damaged, or where its SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / SENTENCES
    if not os.path.lexists(path):
        raise ValueError(f"{path}: there is no such file")
    arrays = tensors.read(path, digest, SENTENCES_BYTES, check=_check_sentences)
    if np.isnan(arrays["nats"]).any():
        raise ValueError(f"{path}: nats of a sentence are not a number")
    return arrays


def has_sentences(results: Path, run_id: str) -> bool:
    """Return whether the file that `load_sentences` reads is there."""
    return os.path.lexists(run_folder(results, run_id) / SENTENCES)


def _check(path: Path, arrays: Arrays, check: Callable[[Headers], None]) -> None:
    """Apply a check of headers to arrays that are to be written. Raises: ValueError naming the file."""
    try:
        check({name: TensorHeader(str(array.dtype), array.shape) for name, array in arrays.items()})
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _check_sentences(headers: Headers) -> None:
    """Raise ValueError unless the tensors are counts of the same sentences."""
    kinds = {name: (header.dtype, len(header.shape)) for name, header in headers.items()}
    expected = dict.fromkeys(headers, ("int32", 2)) | {"nats": ("float64", 1), "tokens": ("int32", 1)}
    rows = {header.shape[:1] for header in headers.values()}
    wide = any(column > COLUMNS for header in headers.values() for column in header.shape[1:])
    if kinds != expected or len(rows) != 1 or wide:
        shapes = brief({name: str(header) for name, header in sorted(headers.items())})
        raise ValueError(f"{shapes}: expected nats float64 [N], tokens int32 [N] and int32 [N,K] with K <= {COLUMNS}")


# Attention ------------------------------------------------------------------------------------------------------------


def save_attention(results: Path, run_id: str, maps: Mapping[int, Numbers]) -> str:
    """Write the cross attention of some test sentences, by number, and return the SHA-256 of the file.

    Shapes: each float16 [layers,T,S], a mean over heads; T target and S source positions.

    Raises: ValueError where a map has another type or shape.
    """
    path = own_folder(results, run_id) / ATTENTION
    arrays = {str(number): one for number, one in sorted(maps.items())}
    _check(path, arrays, _check_attention)
    return tensors.write(path, arrays)


def load_attention(results: Path, run_id: str, digest: str | None = None) -> dict[int, Numbers]:
    """Read the cross attention of the sentences that have one; none of a run that was stored without.

    Raises: ValueError naming a damaged file, or one whose SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / ATTENTION
    if not os.path.lexists(path):
        return {}
    arrays = tensors.read(path, digest, ATTENTION_BYTES, check=_check_attention)
    if not all(np.isfinite(one).all() for one in arrays.values()):
        raise ValueError(f"{path}: a weight is not finite: expected from 0 to 1")
    return {int(name): one for name, one in sorted(arrays.items(), key=lambda pair: int(pair[0]))}


def has_attention(results: Path, run_id: str) -> bool:
    """Return whether the file that `load_attention` reads is there."""
    return os.path.lexists(run_folder(results, run_id) / ATTENTION)


def _check_attention(headers: Headers) -> None:
    """Raise ValueError unless the tensors are attention maps of sentences."""
    for name, header in headers.items():
        numbered = name.isascii() and name.isdecimal() and len(name) < 10
        fits = header.dtype == "float16" and len(header.shape) == 3 and 0 not in header.shape
        if not numbered or not fits or max(header.shape) > MAP_POSITIONS:
            raise ValueError(
                f"{brief(name)} is {header}: expected a sentence number, float16 [layers,T,S] of at most "
                f"{MAP_POSITIONS:,} positions"
            )


# Logs -----------------------------------------------------------------------------------------------------------------


def log_path(results: Path, run_id: str) -> Path:
    """Return where what the process of a run prints is kept."""
    return run_folder(results, run_id) / LOG


def open_log(results: Path, run_id: str) -> BinaryIO:
    """Open the log of a run to add to it. Raises: OSError; ValueError where it is not a regular file."""
    path = own_folder(results, run_id) / LOG
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise ValueError(f"{path}: expected a regular file, and no link to one")
    return path.open("ab")


# Weights ----------------------------------------------------------------------------------------------------------


def save_weights(results: Path, run_id: str, weights: Arrays) -> str:
    """Write the weights and their manifest, and return the SHA-256 of the weights' file."""
    folder = own_folder(results, run_id)
    digest = tensors.write(folder / f"{WEIGHTS}.safetensors", weights)
    files.write_sealed(folder / f"{WEIGHTS}.json", tensors.manifest(f"{WEIGHTS}.safetensors", digest, weights))
    return digest


def load_weights(results: Path, run_id: str, digest: str | None = None) -> Arrays:
    """Read the weights of a run.

    Raises: ValueError naming the file that is missing, or not what its manifest says, or whose SHA-256 is not `digest`.
    """
    manifest = run_folder(results, run_id) / f"{WEIGHTS}.json"
    weights, found = tensors.read_named(manifest, WEIGHTS_BYTES)
    if digest is not None and found["sha256"] != digest:
        raise ValueError(f"{manifest}: its weights are not those that the record has the SHA-256 of")
    return weights
