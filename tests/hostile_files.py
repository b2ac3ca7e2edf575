"""Results folders as a stranger may send them: each has one file that tries to execute, to escape, to hang or to fill.

Strangers can seal and hash as well as anybody, so digests and seals fit wherever they do not stand in the way.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from record_folders import folder_spec, write_run

from harness.storage import files, run_store

RUN = folder_spec("learned_positions", 0).id
OTHER = folder_spec("paper", 0).id
SECRET = "what stands outside"
CANARY = "canary"


class Payload:
    """What creates the file `canary` where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {CANARY}",)


PICKLE = pickle.dumps(Payload())
CODE = f"from pathlib import Path\nPath({CANARY!r}).touch()\nBUILD = print\n"


def write_valid(place: Path) -> None:
    """Write two whole runs under `place`/results, a secret beside, and a module that creates the canary."""
    for variant in ("learned_positions", "paper"):
        write_run(place / "results", folder_spec(variant, 0))
    (place / "secret.json").write_text(json.dumps({"schema": 1, "secret": SECRET}), encoding="utf-8")
    (place / "hostile_module.py").write_text(CODE, encoding="utf-8")


# What is planted ------------------------------------------------------------------------------------------------------

Plant = Callable[[Path], None]


def holding(name: str, content: bytes | Callable[[], bytes]) -> Plant:
    """Put bytes in place of a file, and their digest wherever one stands."""

    def plant(run: Path) -> None:
        (run / name).write_bytes(content if isinstance(content, bytes) else content())
        digest = files.file_digest(run / name)
        field = {"hypotheses.jsonl": "hypotheses", "weights.safetensors": "trained_weights"}.get(
            name, name.partition(".")[0]
        )
        if name != run_store.RECORD:
            edit("fingerprints", lambda found: {**found, field: digest})(run)
        if name == "weights.safetensors":
            edit("sha256", lambda found: digest, name="weights.json")(run)

    return plant


def edit(path: str, change: Any, *, name: str = run_store.RECORD) -> Plant:
    """Change a field, and seal anew."""

    def plant(run: Path) -> None:
        value = json.loads((run / name).read_text(encoding="utf-8"))
        *outer, last = path.split(".")
        inner = value
        for one in outer:
            inner = inner[one]
        inner[last] = change(inner.get(last)) if callable(change) else change
        value["seal"] = files.seal(value)
        (run / name).write_text(json.dumps(value), encoding="utf-8")

    return plant


def replaced(name: str, make: Callable[[Path], object]) -> Plant:
    def plant(run: Path) -> None:
        (run / name).unlink()
        make(run / name)

    return plant


def said(find: bytes, instead: bytes) -> Plant:
    """Change the letters of a record, which has no seal then."""

    def plant(run: Path) -> None:
        value = json.loads((run / run_store.RECORD).read_text(encoding="utf-8"))
        del value["seal"]
        content = json.dumps(value).encode()
        assert find in content
        (run / run_store.RECORD).write_bytes(content.replace(find, instead, 1))

    return plant


def both(*plants: Plant) -> Plant:
    def plant(run: Path) -> None:
        for one in plants:
            one(run)

    return plant


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def many_names() -> bytes:
    return ("{" + "".join(f'"{number}": 0, ' for number in range(100_000)) + '"99999": 1}').encode()


def to_secret(path: Path) -> None:
    path.symlink_to(path.parents[2] / "secret.json")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


def sparse_tensors(path: Path) -> None:
    """Write a header of one tensor of 8 GiB, and a hole as large."""
    content = safetensors_file({"a": entry("F32", [2**31], 0, 2**33)}, b"")
    with path.open("wb") as file:
        file.write(content)
        file.truncate(len(content) + 2**33)


def entry(kind: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": [start, end]}


def safetensors_file(header: Any, data: bytes, *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def archive(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "."), content)
    return made.getvalue()


def keras_archive() -> bytes:
    function = {"class_name": "__lambda__", "config": {"code": "4wEAAAA="}}
    body = {"class_name": "Lambda", "config": {"function": function}}
    config = {"module": "keras", "class_name": "Sequential", "config": {"layers": [body]}}
    return archive(config__json=json.dumps(config).encode(), metadata__json=b"{}", model__weights__h5=b"\x89HDF")


def object_array() -> bytes:
    made = io.BytesIO()
    np.savez(made, nats=np.array([Payload()], dtype=object), allow_pickle=True)
    return made.getvalue()


def sentences(**changes: Any) -> Plant:
    """Change stored counts, with all digests."""

    def plant(run: Path) -> None:
        found = dict(run_store.load_sentences(run.parent, run.name))
        found |= {name: change(found[name]) for name, change in changes.items()}
        from harness.storage import tensors

        digest = tensors.write(run / run_store.SENTENCES, found)
        edit("fingerprints", lambda old: {**old, "sentences": digest})(run)

    return plant


def attention(value: float) -> Plant:
    def plant(run: Path) -> None:
        maps = {
            number: np.full_like(one, value) for number, one in run_store.load_attention(run.parent, run.name).items()
        }
        digest = run_store.save_attention(run.parent, run.name, maps)
        edit("fingerprints", lambda old: {**old, "attention": digest})(run)

    return plant


@dataclass(frozen=True)
class Hostile:
    """What is planted in the folder of a run, the command that meets it, and what it says of it in a line."""

    plant: Plant
    command: tuple[str, ...]
    code: int
    says: str


LIST = ("list",)
CHECK = ("check", "--run", RUN)
COMPARE = ("compare", RUN, OTHER)
TRANSLATE = ("translate", "--run", RUN, "Ein Hund")
STORED = ("translate", "--run", RUN, "--every-hundredth")
SCORE = ("score", "--run", RUN)
RECORD, HYPOTHESES, WEIGHTS = "record.json", "hypotheses.jsonl", "weights.safetensors"
NUMBERS = entry("F32", [2], 0, 8)

CASES: dict[str, Hostile] = {
    # records
    "a pickle for a record": Hostile(holding(RECORD, PICKLE), LIST, 0, "not JSON"),
    "deep nesting": Hostile(holding(RECORD, b"[" * 100_000 + b"]" * 100_000), LIST, 0, "nested too deep"),
    "deep nesting of objects": Hostile(holding(RECORD, b'{"a":' * 100_000), LIST, 0, "nested too deep"),
    "a number of a million digits": Hostile(said(b'"seed": 0', b'"seed": ' + b"9" * 10**6), LIST, 0, "not JSON"),
    "a record of 9 MB": Hostile(holding(RECORD, b" " * 9_000_000), LIST, 0, "allowed is at most 8,388,608"),
    "a record of a terabyte": Hostile(replaced(RECORD, sparse), CHECK, 1, "allowed is at most 8,388,608"),
    "a million empty lists": Hostile(holding(RECORD, b"[" + b"[]," * 2_700_000 + b"[]]"), LIST, 0, "JSON object"),
    "a number beyond all": Hostile(said(b"210000000.0", b"1e999"), LIST, 0, "1e999 is not JSON"),
    "not a number": Hostile(said(b"210000000.0", b"NaN"), LIST, 0, "NaN is not JSON"),
    "a name twice": Hostile(said(b'"seed": 0', b'"seed": 0, "seed": 1'), LIST, 0, "'seed' stands there twice"),
    "a hundred thousand names and one twice": Hostile(holding(RECORD, many_names), LIST, 0, "stands there twice"),
    "nesting that only some readers hold": Hostile(edit("environment.a", nested(300)), LIST, 0, "nested too deep"),
    "a whole number that no float holds": Hostile(said(b"210000000.0", b"9" * 400), LIST, 0, "9… is not JSON"),
    "a megabyte in place of a number": Hostile(edit("spec.seed", "9" * 10**6), LIST, 0, "allowed is int"),
    "a status of two lines": Hostile(edit("status", "failed\nbakeoff: all is well"), LIST, 0, "completed, interrupted"),
    "digests that are a number": Hostile(edit("fingerprints.files", 5), COMPARE, 2, "allowed is digests by name"),
    "versions that are a word": Hostile(edit("environment.versions", "1"), COMPARE, 2, "allowed is what stands there"),
    "half a character": Hostile(said(b'"note": ""', b'"note": "\\udc80"'), LIST, 0, "surrogates not allowed"),
    "not UTF-8": Hostile(said(b'"note": ""', b'"note": "\xff"'), LIST, 0, "invalid start byte"),
    "a byte of zero": Hostile(said(b'"note": ""', b'"note": "\x00"'), LIST, 0, "not JSON"),
    "a record that links outside": Hostile(replaced(RECORD, to_secret), LIST, 0, "no link to one"),
    "a record that is a pipe": Hostile(replaced(RECORD, os.mkfifo), LIST, 0, "allowed is a regular file"),
    "a record that is a folder": Hostile(replaced(RECORD, os.mkdir), CHECK, 1, "allowed is a regular file"),
    "a record that is a device": Hostile(replaced(RECORD, lambda p: p.symlink_to("/dev/zero")), CHECK, 1, "no link"),
    "an id that leads outside": Hostile(edit("id", "../../secret"), LIST, 0, "allowed is the name of its folder"),
    "an id that is absolute": Hostile(edit("id", "/etc/passwd"), TRANSLATE, 2, "allowed is the name of its folder"),
    "an asked id that leads outside": Hostile(edit("note", ""), ("score", "--run", "../results"), 2, "name of a f"),
    "an asked id without end": Hostile(edit("note", ""), ("score", "--run", "x" * 5_000), 2, "name of a folder"),
    "a million layers": Hostile(edit("spec.recipe.layers", 10**6), LIST, 0, "allowed is a whole number of at most"),
    "a beam without end": Hostile(edit("spec.decoding.beam", 10**9), LIST, 0, "allowed is a whole number of at most"),
    "words without end": Hostile(
        both(
            edit("sizes.source_words", 1e12),
            edit("fingerprints", lambda old: {**old, "weights": {"source.embedding": f"1000000000000x16:{'0' * 64}"}}),
        ),
        CHECK,
        1,
        "numbers to draw",
    ),
    "updates without end": Hostile(
        edit("curve", lambda lines: [{**line, "updates": 10**12} for line in lines]), CHECK, 1, "200,000 updates"
    ),
    "a builder of the stranger's": Hostile(
        both(edit("spec.variant", "hostile_module:BUILD"), edit("spec.recipe", None)), TRANSLATE, 2, "--import-builder"
    ),
    "a recipe of another size": Hostile(edit("spec.recipe.width", 4096), TRANSLATE, 2, "not those of its recipe"),
    "a digest that is no text": Hostile(
        edit("fingerprints", lambda old: {**old, "hypotheses": {"a": 1}}), COMPARE, 2, "allowed is a digest"
    ),
    "a text of this machine": Hostile(
        both(
            edit("spec.data.files", {f"{split}_source": "secret.json" for split in ("train", "validation", "test")}),
            edit("spec.data.corpus", "files"),
        ),
        SCORE,
        2,
        "the run's text cannot be had here: secret.json: its SHA-256",
    ),
    "a variant that clears the screen": Hostile(
        both(edit("status", "failed"), edit("reason", "\x1b[2J\x1b]0;title\x07\u202e\x9b31m")), LIST, 0, "\\u001b[2J"
    ),
    # translations
    "a pickle for translations": Hostile(holding(HYPOTHESES, PICKLE), COMPARE, 2, "is not a translation"),
    "translations that link outside": Hostile(replaced(HYPOTHESES, to_secret), COMPARE, 2, "no link to one"),
    "translations that are a pipe": Hostile(replaced(HYPOTHESES, os.mkfifo), SCORE, 2, "allowed is a regular file"),
    "deep nesting in a translation": Hostile(
        holding(HYPOTHESES, b'{"sentence": 0, "text": "", "tokens": ' + b"[" * 200_000), COMPARE, 2, "nested too deep"
    ),
    "a sentence that there is not": Hostile(
        holding(HYPOTHESES, b'{"sentence":4000000000,"text":"a","tokens":["a"]}\n'), STORED, 2, "allowed is below"
    ),
    "a sentence before the first": Hostile(
        holding(HYPOTHESES, b'{"sentence":-1,"text":"a","tokens":["a"]}\n'), STORED, 2, "is not a translation"
    ),
    "a sentence of a million digits": Hostile(
        holding(HYPOTHESES, b'{"sentence":' + b"9" * 10**6 + b',"text":"a","tokens":["a"]}\n'), STORED, 2, "is not JSON"
    ),
    "a word of four thousand brackets": Hostile(
        holding(HYPOTHESES, b'{"sentence":0,"text":"%b","tokens":["("]}\n' % (b"(" * 4_000)),
        SCORE,
        2,
        "sentence 0: 4,000 characters without a space; allowed is at most 1,000",
    ),
    "translations of 65 MB": Hostile(holding(HYPOTHESES, b"\n" * 68_000_000), COMPARE, 2, "allowed is at most"),
    # tensors
    "a pickle for weights": Hostile(holding(WEIGHTS, PICKLE), CHECK, 1, "weights.safetensors: a header of"),
    "a Keras archive for weights": Hostile(holding(WEIGHTS, keras_archive), CHECK, 1, "a header of"),
    "a torch archive for weights": Hostile(
        holding(WEIGHTS, lambda: archive(data__pkl=PICKLE, version=b"3")), TRANSLATE, 2, "a header of"
    ),
    "an archive of objects for counts": Hostile(holding(run_store.SENTENCES, object_array), COMPARE, 2, "a header of"),
    "an empty file for weights": Hostile(holding(WEIGHTS, b""), CHECK, 1, "not safetensors"),
    "a header beyond all": Hostile(holding(WEIGHTS, safetensors_file({}, b"", length=2**63)), CHECK, 1, "a header of"),
    "a header beyond the file": Hostile(
        holding(WEIGHTS, safetensors_file({}, b"", length=4_000)), CHECK, 1, "not safetensors"
    ),
    "a header that is not UTF-8": Hostile(holding(WEIGHTS, safetensors_file(b'{"\xff"}', b"")), CHECK, 1, "header"),
    "a header of deep nesting": Hostile(
        holding(WEIGHTS, safetensors_file(b'{"a":' * 100_000, b"")), CHECK, 1, "not safetensors"
    ),
    "tensors that overlap": Hostile(
        holding(WEIGHTS, safetensors_file({"a": NUMBERS, "b": entry("F32", [2], 4, 12)}, bytes(12))), CHECK, 1, "not"
    ),
    "a tensor that ends before it begins": Hostile(
        holding(WEIGHTS, safetensors_file({"a": entry("F32", [2], 8, 0)}, bytes(8))), CHECK, 1, "not safetensors"
    ),
    "a tensor before the file": Hostile(
        holding(WEIGHTS, safetensors_file({"a": entry("F32", [2], -8, 0)}, bytes(8))), CHECK, 1, "not safetensors"
    ),
    "a tensor larger than its bytes": Hostile(
        holding(WEIGHTS, safetensors_file({"a": entry("F32", [2**40, 2**40], 0, 8)}, bytes(8))), CHECK, 1, "not saf"
    ),
    "a tensor of a type that there is not": Hostile(
        holding(WEIGHTS, safetensors_file({"a": entry("OBJECT", [1], 0, 8)}, bytes(8))), CHECK, 1, "not safetensors"
    ),
    "a name of a tensor twice": Hostile(
        holding(WEIGHTS, safetensors_file(b'{"a":%b,"a":%b}' % ((json.dumps(NUMBERS).encode(),) * 2), bytes(8))),
        CHECK,
        1,
        "weights.safetensors",
    ),
    "bytes after the tensors": Hostile(
        holding(WEIGHTS, safetensors_file({"a": NUMBERS}, bytes(99))), CHECK, 1, "not safetensors"
    ),
    "weights of eight gigabytes": Hostile(replaced(WEIGHTS, sparse_tensors), CHECK, 1, "allowed is at most"),
    "weights that are a pipe": Hostile(replaced(WEIGHTS, os.mkfifo), TRANSLATE, 2, "allowed is a regular file"),
    "weights that link outside": Hostile(replaced(WEIGHTS, to_secret), CHECK, 1, "no link to one"),
    "counts of another type": Hostile(sentences(nats=lambda one: one.astype("f4")), COMPARE, 2, "allowed is nats"),
    "counts that are not numbers": Hostile(sentences(nats=lambda one: one * np.nan), COMPARE, 2, "not a number"),
    "attention that is not a number": Hostile(attention(np.nan), CHECK, 1, "not finite"),
    "a manifest that leads outside": Hostile(
        edit("file", "../../secret.json", name="weights.json"), CHECK, 1, "allowed is a file beside it"
    ),
    "a manifest that is absolute": Hostile(
        edit("file", "/etc/passwd", name="weights.json"), TRANSLATE, 2, "allowed is a file beside it"
    ),
    "a manifest with a byte of zero": Hostile(
        edit("file", "a\0b", name="weights.json"), CHECK, 1, "allowed is a file beside it"
    ),
    "a manifest that is a pipe": Hostile(replaced("weights.json", os.mkfifo), CHECK, 1, "allowed is a regular file"),
}
"""More than forty; each name says what is planted."""
