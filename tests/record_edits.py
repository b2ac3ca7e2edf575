"""Edits of record folders as somebody makes them who wants other figures: the seal and the digests are made to fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from record_folders import folder_spec

from harness.experiments.specs import canonical_json, spec_from_json
from harness.storage import files, run_store

FIRST = folder_spec("learned_positions", 0).id
SECOND = folder_spec("learned_positions", 1).id
PAPER = folder_spec("paper", 0).id
OTHER = "0" * 64

Mutation = Callable[[Path], None]


def read(results: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / run / "record.json").read_text(encoding="utf-8"))
    return found


def write(results: Path, run: str, value: dict[str, Any], *, sealed: bool = True) -> None:
    """Write a record as somebody would who knows of the seal, or as somebody would who does not."""
    if sealed and "seal" in value:
        value["seal"] = run_store.seal(value)
    (results / run / "record.json").write_text(json.dumps(value, indent=1), encoding="utf-8")


def edit(path: str, change: Any, *, run: str = FIRST, sealed: bool = True) -> Mutation:
    """Change the field at a dotted path to `change`, or to what it makes of the field; `...` removes it."""

    def mutate(results: Path) -> None:
        value = read(results, run)
        *outer, last = [int(one) if one.isdecimal() else one for one in path.split(".")]
        inner: Any = value
        for name in outer:
            inner = inner[name]
        if change is ...:
            del inner[last]
        else:
            inner[last] = change(inner[last]) if callable(change) else change
        write(results, run, value, sealed=sealed)

    return mutate


def respecify(path: str, change: Any, *, run: str = FIRST) -> Mutation:
    """Change a setting as `edit` does, and with it the id and the folder: no trace is left in the record itself."""

    def mutate(results: Path) -> None:
        edit(f"spec.{path}", change, run=run)(results)
        value = read(results, run)
        value["id"] = spec_from_json(value["spec"]).id
        write(results, run, value)
        (results / run).rename(results / value["id"])

    return mutate


def both(*mutations: Mutation) -> Mutation:
    def mutate(results: Path) -> None:
        for one in mutations:
            one(results)

    return mutate


def on_file(name: str, change: Callable[[bytes], bytes], *, digest: str = "", run: str = FIRST) -> Mutation:
    """Change a file beside the record; with `digest`, that fingerprint is made to fit."""

    def mutate(results: Path) -> None:
        path = results / run / name
        path.write_bytes(change(path.read_bytes()))
        if digest:
            edit(f"fingerprints.{digest}", files.file_digest(path), run=run)(results)

    return mutate


def on_lines(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Mutation:
    """Change the translations, and their digest with them."""

    def rewrite(content: bytes) -> bytes:
        lines = [json.loads(line) for line in content.decode().removesuffix("\n").split("\n")]
        return "".join(canonical_json(one) + "\n" for one in change(lines)).encode()

    return on_file("hypotheses.jsonl", rewrite, digest="hypotheses")


def on_arrays(name: str, change: Callable[[dict[str, Any]], None]) -> Mutation:
    """Change stored arrays, and every digest with them."""

    def mutate(results: Path) -> None:
        load, save, digest = {
            "weights": (run_store.load_weights, run_store.save_weights, "trained_weights"),
            "sentences": (run_store.load_sentences, run_store.save_sentences, "sentences"),
        }[name]
        arrays = {key: np.array(one) for key, one in load(results, FIRST).items()}
        change(arrays)
        edit(f"fingerprints.{digest}", save(results, FIRST, arrays))(results)

    return mutate


def on_attention(change: Callable[[Any], Any]) -> Mutation:
    """Change the attention of the first sentence, and the digest with it."""

    def mutate(results: Path) -> None:
        maps = run_store.load_attention(results, FIRST)
        digest = run_store.save_attention(results, FIRST, {**maps, 0: change(maps[0])})
        edit("fingerprints.attention", digest)(results)

    return mutate


def put(name: str, value: Any, *, add: float = 0) -> Callable[[dict[str, Any]], None]:
    """Set the first number of an array to `value`, or add to it."""

    def change(arrays: dict[str, Any]) -> None:
        arrays[name].flat[0] = arrays[name].flat[0] + add if value is None else value

    return change


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def copy(results: Path) -> None:
    shutil.copytree(results / FIRST, results / "another")


def remove(*parts: str) -> Mutation:
    def mutate(results: Path) -> None:
        path = results.joinpath(*parts)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return mutate


def swap(lines: list[Any]) -> list[Any]:
    return [lines[1], lines[0], *lines[2:]]


def times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


def as_seed(results: Path) -> None:
    """Give a run out for one of another seed, but for the digests that tell the seed."""
    donor, taker = read(results, FIRST), read(results, SECOND)
    keep = {name: taker["fingerprints"][name] for name in ("stream", "batches", "weights", "weights_after")}
    copied = {**donor, "id": SECOND, "spec": taker["spec"], "fingerprints": {**donor["fingerprints"], **keep}}
    shutil.copytree(results / FIRST, results / SECOND, dirs_exist_ok=True)
    write(results, SECOND, copied)
