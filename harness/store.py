"""The only place that writes results: every file whole or not at all, hashed, and readable without pickle.

RESULTS/ID/record.json           the `RunRecord`; written last, so that it vouches for the rest
RESULTS/ID/hypotheses.jsonl      one test translation a line: {"sentence": 0, "tokens": [...], "text": "..."}
RESULTS/ID/sentences.safetensors what each test sentence adds to each score: numbers alone, no text
RESULTS/ID/attention.safetensors the cross attention of the first test sentences: weights alone, no text
RESULTS/ID/weights.safetensors   the kept weights under their canonical names; weights.json is their manifest
RESULTS/ID/checkpoint.json       an unfinished run's manifest, naming its checkpoint-….safetensors
RESULTS/ID/log.txt               what the process of the run printed
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import safetensors
import safetensors.numpy

from harness.specs import SCHEMA, RunRecord, canonical_json, record_from_json, to_json
from impls.contract import Arrays, Numbers

RESULTS = Path("results/local")
FINISHED = ("completed", "diverged")
RECORD, HYPOTHESES, WEIGHTS, CHECKPOINT, LOG = "record.json", "hypotheses.jsonl", "weights", "checkpoint", "log.txt"
SENTENCES, ATTENTION = "sentences.safetensors", "attention.safetensors"
SEAL = "seal"
"""The field of record.json beside those of the `RunRecord`: its own digest. Records of older versions have none."""


class RunFailed(Exception):
    """A run broke off through no fault of its settings; its record says "failed" and why."""


@dataclass(frozen=True)
class Hypothesis:
    """The translation of test sentence number `sentence`: as tokens without special words, and as text."""

    sentence: int
    tokens: tuple[str, ...]
    text: str


def run_folder(results: Path, run_id: str) -> Path:
    """Return where the files of a run lie, whether they exist or not."""
    return results / run_id


# Whole files ----------------------------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; flush it to the disk and rename it to `path` where the block succeeds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _flush_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or none."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, value: Any) -> None:
    """Write JSON that a person can read, whole or not at all. Raises: ValueError for NaN and infinity."""
    text = json.dumps(value, indent=1, sort_keys=False, ensure_ascii=False, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _flush_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can open folders."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Records --------------------------------------------------------------------------------------------------------------


def save_record(results: Path, record: RunRecord) -> Path:
    """Write `record.json` and its seal; figures that are not finite become None. Returns its path."""
    path = run_folder(results, record.id) / RECORD
    value = _finite(to_json(record))
    write_json(path, {**value, SEAL: seal(value)})
    return path


def seal(value: dict[str, Any]) -> str:
    """Return the SHA-256 of a record as JSON, its seal apart: it shows an edit by hand, not one by who can reseal."""
    return hashlib.sha256(
        canonical_json({name: one for name, one in value.items() if name != SEAL}).encode()
    ).hexdigest()


def load_record(results: Path, run_id: str) -> RunRecord | None:
    """Return a stored record, or None where there is none. Raises: ValueError naming a damaged or foreign file."""
    path = run_folder(results, run_id) / RECORD
    return _read_record(path) if path.is_file() else None


def finished(results: Path, run_id: str) -> RunRecord | None:
    """Return the record of a run that needs not be run again, else None; a damaged one counts as none."""
    try:
        record = load_record(results, run_id)
    except ValueError:
        return None
    return record if record is not None and record.status in FINISHED else None


def add_fingerprint(results: Path, run_id: str, name: str, digest: str) -> None:
    """Put a digest among the fingerprints of a stored record, and seal it anew where it was sealed.

    All else in its file stays as it is, to the byte.

    Raises: ValueError naming a damaged or foreign file, or one that its seal does not fit.
    """
    path = run_folder(results, run_id) / RECORD
    _read_record(path)
    value = json.loads(path.read_text(encoding="utf-8"))
    sealed = SEAL in value
    if sealed and value[SEAL] != seal(value):
        raise ValueError(f"{path}: its seal is not that of its content: allowed is a record as it was written")
    value["fingerprints"] = {**value.get("fingerprints", {}), name: digest}
    write_json(path, {**value, SEAL: seal(value)} if sealed else value)


def remove_record(results: Path, run_id: str) -> None:
    """Remove the record of a run that is to be run again."""
    (run_folder(results, run_id) / RECORD).unlink(missing_ok=True)


def records(results: Path, *, complain: Callable[[str], None] | None = None) -> list[RunRecord]:
    """Return every record under `results`, by id; tell `complain` in a line about each file that is not one."""
    found = []
    for path in sorted(results.glob(f"*/{RECORD}")):
        try:
            record = _read_record(path)
            if record.id != path.parent.name:
                raise ValueError(f"{path}: its id is {record.id!r}: allowed is the name of its folder")
        except ValueError as error:
            if complain is not None:
                complain(str(error))
            continue
        found.append(record)
    return found


def find(results: Path, prefix: str) -> RunRecord:
    """Return the one record whose id begins with `prefix`. Raises: ValueError where none or several do."""
    exact = load_record(results, prefix) if prefix else None
    if exact is not None:
        return exact
    ids = sorted(path.parent.name for path in results.glob(f"*/{RECORD}") if path.parent.name.startswith(prefix))
    if len(ids) == 1:
        found = load_record(results, ids[0])
        assert found is not None
        return found
    if ids:
        raise ValueError(f"run {prefix!r}: {len(ids)} runs begin so ({', '.join(ids[:4])}{', …' * (len(ids) > 4)})")
    raise ValueError(f"run {prefix!r}: there is none in {results}; see them with: python -m harness list")


def _read_record(path: Path) -> RunRecord:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return record_from_json({k: v for k, v in value.items() if k != SEAL} if isinstance(value, dict) else value)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(f"{path}: {error}") from error


def _finite(value: Any) -> Any:
    """Return JSON with None for every number that is not finite."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, list):
        return [_finite(one) for one in value]
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return value


# Hypotheses -----------------------------------------------------------------------------------------------------------


def save_hypotheses(results: Path, run_id: str, hypotheses: Sequence[Hypothesis]) -> str:
    """Write the translations, one JSON object a line, and return the SHA-256 of the file."""
    lines = [canonical_json(dataclasses.asdict(one)) + "\n" for one in hypotheses]
    path = run_folder(results, run_id) / HYPOTHESES
    write_bytes(path, "".join(lines).encode())
    return file_digest(path)


def load_hypotheses(results: Path, run_id: str, digest: str | None = None) -> list[Hypothesis]:
    """Read the translations back.

    Raises: ValueError naming the file where it is missing or damaged, or where its SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / HYPOTHESES
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    _check_digest(path, digest)
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").removesuffix("\n").split("\n")):
        try:
            one = json.loads(line)
            found.append(Hypothesis(int(one["sentence"]), tuple(map(str, one["tokens"])), str(one["text"])))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: line {number + 1} is not a translation ({error})") from error
    return found


# Sentences ------------------------------------------------------------------------------------------------------------


def save_sentences(results: Path, run_id: str, arrays: Arrays) -> str:
    """Write what each test sentence adds to the scores, and return the SHA-256 of the file.

    Shapes: `nats` float64 [N] and `tokens` int32 [N], over the target words of each sentence (`<eos>` included); under
    the name of each BLEU and of chrF its counts, int32 [N,K], as `harness.scoring` has them.

    Raises: ValueError where these are not of the same N sentences.
    """
    path = run_folder(results, run_id) / SENTENCES
    _check_sentences(path, arrays)
    return _write_arrays(path, arrays)


def load_sentences(results: Path, run_id: str, digest: str | None = None) -> Arrays:
    """Read what each test sentence adds to the scores; neither the corpus nor the weights are needed.

    Raises: ValueError naming the file where it is missing or damaged, or where its SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / SENTENCES
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    _check_digest(path, digest)
    arrays = _load_arrays(path)
    _check_sentences(path, arrays)
    return arrays


def has_sentences(results: Path, run_id: str) -> bool:
    """Return whether the file that `load_sentences` reads is there."""
    return (run_folder(results, run_id) / SENTENCES).is_file()


def _check_sentences(path: Path, arrays: Arrays) -> None:
    found = {name: (str(one.dtype), one.ndim) for name, one in arrays.items()}
    expected = dict.fromkeys(arrays, ("int32", 2)) | {"nats": ("float64", 1), "tokens": ("int32", 1)}
    if found != expected or len({len(one) for one in arrays.values()}) != 1:
        shapes = {name: f"{one.dtype}{list(one.shape)}" for name, one in sorted(arrays.items())}
        raise ValueError(f"{path}: {shapes}: allowed is nats float64 [N], tokens int32 [N], all else int32 [N,K]")


# Attention ------------------------------------------------------------------------------------------------------------


def save_attention(results: Path, run_id: str, maps: Mapping[int, Numbers]) -> str:
    """Write the cross attention of some test sentences, by number, and return the SHA-256 of the file.

    Shapes: each float16 [layers,T,S], a mean over heads; T target and S source positions.

    Raises: ValueError where a map has another type or shape.
    """
    path = run_folder(results, run_id) / ATTENTION
    arrays = {str(number): one for number, one in sorted(maps.items())}
    _check_attention(path, arrays)
    return _write_arrays(path, arrays)


def load_attention(results: Path, run_id: str, digest: str | None = None) -> dict[int, Numbers]:
    """Read the cross attention of the sentences that have one; none of a run that was stored without.

    Raises: ValueError naming a damaged file, or one whose SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / ATTENTION
    if not path.is_file():
        return {}
    _check_digest(path, digest)
    arrays = _load_arrays(path)
    _check_attention(path, arrays)
    return {int(name): one for name, one in sorted(arrays.items(), key=lambda pair: int(pair[0]))}


def has_attention(results: Path, run_id: str) -> bool:
    """Return whether the file that `load_attention` reads is there."""
    return (run_folder(results, run_id) / ATTENTION).is_file()


def _check_attention(path: Path, arrays: Arrays) -> None:
    for name, one in arrays.items():
        if not name.isdecimal() or str(one.dtype) != "float16" or one.ndim != 3 or not one.size:
            raise ValueError(
                f"{path}: {name!r} is {one.dtype}{list(one.shape)}: allowed is a sentence number, float16 [layers,T,S]"
            )


# Logs -----------------------------------------------------------------------------------------------------------------


def log_path(results: Path, run_id: str) -> Path:
    """Return where what the process of a run prints is kept."""
    return run_folder(results, run_id) / LOG


def open_log(results: Path, run_id: str) -> BinaryIO:
    """Open the log of a run to add to it."""
    path = log_path(results, run_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def log_lines(results: Path, run_id: str, count: int) -> list[str]:
    """Return the last lines of a log that are not empty."""
    path = log_path(results, run_id)
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [line.strip() for line in lines if line.strip()][-count:]


# Weights and checkpoints ----------------------------------------------------------------------------------------------


def save_weights(results: Path, run_id: str, weights: Arrays) -> str:
    """Write the weights and their manifest, and return the SHA-256 of the weights' file."""
    folder = run_folder(results, run_id)
    digest = _write_arrays(folder / f"{WEIGHTS}.safetensors", weights)
    write_json(folder / f"{WEIGHTS}.json", _manifest(f"{WEIGHTS}.safetensors", digest, weights))
    return digest


def load_weights(results: Path, run_id: str) -> Arrays:
    """Read the weights of a run. Raises: ValueError naming the file that is missing, or not what its manifest says."""
    folder = run_folder(results, run_id)
    arrays, _ = _read_arrays(folder / f"{WEIGHTS}.json")
    return arrays


def save_checkpoint(results: Path, run_id: str, state: Arrays, notes: dict[str, Any]) -> None:
    """Write what an interrupted run goes on from; the older checkpoint stands until this one is whole."""
    folder = run_folder(results, run_id)
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{CHECKPOINT}-{notes['epochs']}.safetensors"
    digest = _write_arrays(folder / name, state)
    write_json(folder / f"{CHECKPOINT}.json", {**_manifest(name, digest, state), "notes": _finite(notes)})
    for older in folder.glob(f"{CHECKPOINT}-*.safetensors"):
        if older.name != name:
            older.unlink()


def load_checkpoint(results: Path, run_id: str) -> tuple[Arrays, dict[str, Any]] | None:
    """Return the arrays and notes of an unfinished run, or None. Raises: ValueError naming a damaged file."""
    manifest = run_folder(results, run_id) / f"{CHECKPOINT}.json"
    if not manifest.is_file():
        return None
    arrays, found = _read_arrays(manifest)
    return arrays, dict(found["notes"])


def remove_checkpoint(results: Path, run_id: str) -> None:
    """Remove the checkpoint of a run that needs it no longer."""
    folder = run_folder(results, run_id)
    (folder / f"{CHECKPOINT}.json").unlink(missing_ok=True)
    for path in folder.glob(f"{CHECKPOINT}-*.safetensors"):
        path.unlink()


def _write_arrays(path: Path, arrays: Arrays) -> str:
    with replacing(path) as temporary:
        safetensors.numpy.save_file({name: np.array(one, order="C") for name, one in arrays.items()}, temporary)
    return file_digest(path)


def _manifest(name: str, digest: str, arrays: Arrays) -> dict[str, Any]:
    shapes = {key: list(one.shape) for key, one in sorted(arrays.items())}
    return {"schema": SCHEMA, "file": name, "sha256": digest, "shapes": shapes}


def _read_arrays(manifest: Path) -> tuple[Arrays, dict[str, Any]]:
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        schema, name, digest, shapes = (found[key] for key in ("schema", "file", "sha256", "shapes"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest}: not a manifest of weights ({error})") from error
    path = manifest.parent / str(name)
    if schema != SCHEMA or path.parent != manifest.parent or not path.is_file():
        raise ValueError(
            f"{manifest}: schema={schema!r}, file={name!r}: allowed is schema {SCHEMA} and a file beside it"
        )
    _check_digest(path, digest)
    arrays = _load_arrays(path)
    if {key: list(one.shape) for key, one in arrays.items()} != shapes:
        raise ValueError(f"{path}: its tensors are not those of {manifest.name}")
    return arrays, found


def _load_arrays(path: Path) -> Arrays:
    try:
        arrays: Arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: not safetensors ({error})") from error
    return arrays


def _check_digest(path: Path, digest: str | None) -> None:
    if digest is not None and file_digest(path) != digest:
        raise ValueError(f"{path}: damaged (its SHA-256 is not {digest})")
