"""A thousand flipped bits and truncations of each kind of file: each is noticed, or changes nothing that is said."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_factory import record
from small_runs import spec

from harness.data import cache
from harness.experiments.serialization import to_json
from harness.storage import checkpoint_files, run_store
from harness.storage.run_store import Hypothesis

SPEC = spec()
RECORD = replace(record("learned_positions", 0), id=SPEC.id, spec=SPEC)
HYPOTHESES = [Hypothesis(0, ("a", "\u2028", "dog"), "A dog\x85\u2028."), Hypothesis(1, (), "")]
NUMBERS = {"nats": np.array([1.5, 2.25, 7.125]), "tokens": np.array([3, 4, 9], np.int32)}
COUNTS = {**NUMBERS, "chrf": np.arange(12, dtype=np.int32).reshape(3, 4)}
MAPS = {0: np.full((1, 3, 4), 0.25, np.float16), 7: np.full((2, 2, 2), 0.5, np.float16)}
WEIGHTS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3).T, "a.scalar": np.array(7, np.int64)}
ENTRY = {"texts.json": b'{"a": ["b", "c"]}', "ids.bin": bytes(range(200))}
NOTES = {"epochs": 2, "best_loss": 1.25, "curve": [{"epoch": 1, "training_loss": 2.5}, {"epoch": 2}]}

SAMPLE, WHOLE = 50, 1_000


@dataclass(frozen=True)
class Kind:
    """A kind of file: how a folder with one is written, what is read of it, and whether every byte is hashed.

    `write` returns the file and a function that reads it: a value, or a ValueError that names the file. What stands in
    for text, not for bytes, is hashed as the value that it is: there a flip may leave the value as it was.
    """

    write: Callable[[Path], tuple[Path, Callable[[], Any]]]
    every_byte: bool


def written_record(folder: Path) -> tuple[Path, Callable[[], Any]]:
    return run_store.save_record(folder, RECORD), lambda: to_json(run_store.load_record(folder, SPEC.id))


def written_hypotheses(folder: Path) -> tuple[Path, Callable[[], Any]]:
    digest = run_store.save_hypotheses(folder, "run", HYPOTHESES)
    return folder / "run" / run_store.HYPOTHESES, lambda: run_store.load_hypotheses(folder, "run", digest)


def written_sentences(folder: Path) -> tuple[Path, Callable[[], Any]]:
    digest = run_store.save_sentences(folder, "run", COUNTS)
    return folder / "run" / run_store.SENTENCES, lambda: plain(run_store.load_sentences(folder, "run", digest))


def written_attention(folder: Path) -> tuple[Path, Callable[[], Any]]:
    digest = run_store.save_attention(folder, "run", MAPS)
    return folder / "run" / run_store.ATTENTION, lambda: plain(run_store.load_attention(folder, "run", digest))


def written_weights(folder: Path) -> tuple[Path, Callable[[], Any]]:
    run_store.save_weights(folder, "run", WEIGHTS)
    return folder / "run" / "weights.safetensors", lambda: plain(run_store.load_weights(folder, "run"))


def written_manifest(folder: Path) -> tuple[Path, Callable[[], Any]]:
    digest = run_store.save_weights(folder, "run", WEIGHTS)
    return folder / "run" / "weights.json", lambda: plain(run_store.load_weights(folder, "run", digest))


def written_checkpoint(suffix: str) -> Callable[[Path], tuple[Path, Callable[[], Any]]]:
    def write(folder: Path) -> tuple[Path, Callable[[], Any]]:
        checkpoint_files.save(folder, "run", WEIGHTS, NOTES)
        (path,) = (folder / "run").glob(f"*{suffix}")
        kept = {one: one.read_bytes() for one in (folder / "run").iterdir() if one != path}

        def read() -> Any:
            for one, content in kept.items():
                one.write_bytes(content)  # a generation that cannot be used is removed whole
            told: list[str] = []
            found = checkpoint_files.load(folder, "run", lambda state, notes: (plain(state), notes), told.append)
            if told:
                assert found is None
                raise ValueError(told[0])
            return found

        return path, read

    return write


def written_entry(name: str) -> Callable[[Path], tuple[Path, Callable[[], Any]]]:
    def write(folder: Path) -> tuple[Path, Callable[[], Any]]:
        entry = folder / "entry"
        cache.write_entry(entry, {"made": "of", "numbers": [1, 2.5]}, ENTRY)

        def read() -> Any:
            found = cache.read_entry(entry)
            if found is None:
                raise ValueError(f"{name}: made again")
            return found

        return entry / name, read

    return write


def plain(arrays: Any) -> Any:
    return {name: (str(one.dtype), one.shape, one.tobytes()) for name, one in arrays.items()}


KINDS = {
    "record": Kind(written_record, every_byte=False),
    "hypotheses": Kind(written_hypotheses, every_byte=True),
    "sentences": Kind(written_sentences, every_byte=True),
    "attention": Kind(written_attention, every_byte=True),
    "weights": Kind(written_weights, every_byte=True),
    "manifest": Kind(written_manifest, every_byte=False),
    "checkpoint": Kind(written_checkpoint(".safetensors"), every_byte=True),
    "checkpoint manifest": Kind(written_checkpoint(".json"), every_byte=True),
    "cache entry": Kind(written_entry("ids.bin"), every_byte=True),
    "cache contents": Kind(written_entry(cache.CONTENTS), every_byte=False),
}


def damages(content: bytes, kind: str) -> Iterator[bytes]:
    """Yield the content with one bit flipped, and cut, turn by turn, at places that the kind's name seeds."""
    noise = np.random.default_rng([*kind.encode()])
    while True:
        place, bit = int(noise.integers(len(content))), 1 << int(noise.integers(8))
        yield content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        yield content[: int(noise.integers(len(content)))]


def harmless(folder: Path, kind: str, count: int) -> int:
    """Damage a file `count` times and return how often what is read of it stayed the same; fail where it changed."""
    path, read = KINDS[kind].write(folder)
    content, right = path.read_bytes(), read()
    same = 0
    for damaged in itertools.islice(damages(content, kind), count):
        path.write_bytes(damaged)
        try:
            found = read()
        except ValueError as error:
            told = str(error)
        else:
            assert found == right
            same += 1
            continue
        assert path.name.partition(".")[0].partition("-")[0] in told
        assert "\n" not in told
    path.write_bytes(content)
    assert read() == right
    return same


@pytest.mark.parametrize("kind", KINDS)
def test_load_damaged_file_is_rejected_or_unchanged(tmp_path: Path, kind: str) -> None:
    assert harmless(tmp_path, kind, SAMPLE) <= (0 if KINDS[kind].every_byte else SAMPLE // 20)


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_load_file_damaged_a_thousand_times_is_rejected_or_unchanged(tmp_path: Path, kind: str) -> None:
    """Of JSON that is hashed as a value, one in a hundred flips may say the same in other letters, such as 1E-05."""
    assert harmless(tmp_path, kind, WHOLE) <= (0 if KINDS[kind].every_byte else WHOLE // 100)


def test_load_record_every_flipped_bit_is_rejected(tmp_path: Path) -> None:
    path = run_store.save_record(
        tmp_path, replace(RECORD, curve=(), fingerprints={}, environment={}, scores={}, sizes={})
    )
    content, right = path.read_bytes(), run_store.load_record(tmp_path, SPEC.id)
    passed = []
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
        try:
            found = run_store.load_record(tmp_path, SPEC.id)
        except ValueError:
            continue
        assert found == right
        passed.append(place)
    assert len(passed) <= len(content) // 300


def test_list_damaged_record_is_reported_and_skipped(tmp_path: Path) -> None:
    path = run_store.save_record(tmp_path, RECORD)
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1', 1))
    told: list[str] = []
    assert run_store.records(tmp_path, complain=told.append) == []
    assert run_store.finished(tmp_path, SPEC.id, complain=told.append) is None
    assert len(told) == 2
    assert all(f"{path}: its seal is not that of its content" in line for line in told)
    with pytest.raises(ValueError, match="its seal"):
        run_store.find(tmp_path, SPEC.id[:12])
    with pytest.raises(ValueError, match="its seal"):
        run_store.add_fingerprint(tmp_path, SPEC.id, "sentences", "0" * 64)


def test_load_weights_other_digest_is_refused(tmp_path: Path) -> None:
    digest = run_store.save_weights(tmp_path, "run", WEIGHTS)
    run_store.save_weights(tmp_path, "run", {**WEIGHTS, "b": -WEIGHTS["b"]})
    run_store.load_weights(tmp_path, "run")
    with pytest.raises(ValueError, match="not those of the SHA-256 in the record"):
        run_store.load_weights(tmp_path, "run", digest)
