"""The results on the disk: records, translations, counts, weights and logs, each with a digest.

RESULTS/ID/record.json           the `RunRecord`; written last, so that it vouches for the rest
RESULTS/ID/hypotheses.jsonl      one test translation a line: {"sentence": 0, "tokens": [...], "text": "..."}
RESULTS/ID/sentences.safetensors what each test sentence adds to each score: numbers alone, no text
RESULTS/ID/attention.safetensors the cross attention of the first test sentences: weights alone, no text
RESULTS/ID/weights.safetensors   the kept weights under their canonical names; weights.json is their manifest
RESULTS/ID/checkpoint.json       what an unfinished run goes on from (harness.checkpoints)
RESULTS/ID/log.txt               what the process of the run printed
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from harness import tensors
from harness.files import check_digest, file_digest, write_bytes, write_json
from harness.specs import RunRecord, canonical_json, record_from_json, to_json
from impls.contract import Arrays, Numbers

RESULTS = Path("results/local")
FINISHED = ("completed", "diverged")
RECORD, HYPOTHESES, WEIGHTS, LOG = "record.json", "hypotheses.jsonl", "weights", "log.txt"
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


# Records --------------------------------------------------------------------------------------------------------------


def save_record(results: Path, record: RunRecord) -> Path:
    """Write `record.json` and its seal; figures that are not finite become None. Returns its path."""
    path = run_folder(results, record.id) / RECORD
    value = finite(to_json(record))
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
    check_digest(path, digest)
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
    return tensors.write(path, arrays)


def load_sentences(results: Path, run_id: str, digest: str | None = None) -> Arrays:
    """Read what each test sentence adds to the scores; neither the corpus nor the weights are needed.

    Raises: ValueError naming the file where it is missing or damaged, or where its SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / SENTENCES
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    arrays = tensors.read(path, digest)
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
    return tensors.write(path, arrays)


def load_attention(results: Path, run_id: str, digest: str | None = None) -> dict[int, Numbers]:
    """Read the cross attention of the sentences that have one; none of a run that was stored without.

    Raises: ValueError naming a damaged file, or one whose SHA-256 is not `digest`.
    """
    path = run_folder(results, run_id) / ATTENTION
    if not path.is_file():
        return {}
    arrays = tensors.read(path, digest)
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


# Weights ----------------------------------------------------------------------------------------------------------


def save_weights(results: Path, run_id: str, weights: Arrays) -> str:
    """Write the weights and their manifest, and return the SHA-256 of the weights' file."""
    folder = run_folder(results, run_id)
    digest = tensors.write(folder / f"{WEIGHTS}.safetensors", weights)
    write_json(folder / f"{WEIGHTS}.json", tensors.manifest(f"{WEIGHTS}.safetensors", digest, weights))
    return digest


def load_weights(results: Path, run_id: str) -> Arrays:
    """Read the weights of a run. Raises: ValueError naming the file that is missing, or not what its manifest says."""
    folder = run_folder(results, run_id)
    weights, _ = tensors.read_named(folder / f"{WEIGHTS}.json")
    return weights
