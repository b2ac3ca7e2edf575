"""Malformed, oversized and sparse tensor files are rejected before they are read, in one line that names the file."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.storage import files, run_store, tensors

RUN = "run"


def entry(dtype: Any = "F32", shape: Any = (2,), start: Any = 0, stop: Any = 8) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop]}


def tensor_file(header: Any, body: bytes = bytes(8), *, length: int | None = None) -> bytes:
    """Return a safetensors file; `header` is JSON or bytes, `length` what it claims to be."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (
        struct.pack("<Q", len(text) if length is None else length) + text + (body if isinstance(body, bytes) else b"")
    )


MALFORMED: dict[str, bytes] = {
    "empty file": b"",
    "length beyond the file": tensor_file({"a": entry()}, length=2**63),
    "not JSON": tensor_file(b"{"),
    "deep nesting": tensor_file(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "unknown type": tensor_file({"a": entry("OBJECT")}),
    "type that NumPy lacks": tensor_file({"a": entry("BF16", [4])}),
    "a hundred dimensions": tensor_file({"a": entry(shape=[1] * 98 + [2])}),
    "shape larger than its bytes": tensor_file({"a": entry(shape=[2**40, 2**40])}),
    "tensors that overlap": tensor_file({"a": entry(), "b": entry(start=4, stop=12)}, bytes(12)),
    "bytes after the tensors": tensor_file({"a": entry()}, bytes(9)),
}
"""What makes safetensors raise each of its kinds of exceptions."""


@pytest.mark.parametrize("name", MALFORMED)
def test_read_malformed_header_is_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "it.safetensors"
    path.write_bytes(MALFORMED[name])
    with pytest.raises(ValueError, match="not safetensors") as caught:
        tensors.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_read_without_enough_memory_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise MemoryError

    path = tmp_path / "it.safetensors"
    tensors.write(path, {"a": np.zeros(2)})
    monkeypatch.setattr("safetensors.numpy.load_file", fail)
    with pytest.raises(ValueError, match=r"it\.safetensors: too large for the free memory of this machine$"):
        tensors.read(path)


def sentences_header(rows: int, columns: int) -> tuple[dict[str, Any], int]:
    sizes = {"nats": ("F64", [rows], 8 * rows), "tokens": ("I32", [rows], 4 * rows)}
    sizes["chrf"] = ("I32", [rows, columns], 4 * rows * columns)
    header, end = {}, 0
    for name, (dtype, shape, length) in sizes.items():
        header[name] = entry(dtype, shape, end, end + length)
        end += length
    return header, end


def one_tensor(name: str, dtype: str, shape: list[int], item_bytes: int) -> tuple[dict[str, Any], int]:
    size = item_bytes * int(np.prod(shape))
    return {name: entry(dtype, shape, 0, size)}, size


SPARSE: dict[str, tuple[Any, tuple[dict[str, Any], int]]] = {
    "720 MB of counts": (run_store.load_sentences, sentences_header(10_000_000, 15)),
    "counts in a million columns": (run_store.load_sentences, sentences_header(10, 10**6)),
    "1.6 GB of attention": (run_store.load_attention, one_tensor("0", "F16", [2, 20_000, 20_000], 2)),
    "attention of 20 sentences": (
        run_store.load_attention,
        ({str(n): entry("F16", [1, 1, 4], 8 * n, 8 * n + 8) for n in range(20)}, 160),
    ),
    "3.6 GB of weights": (run_store.load_weights, one_tensor("a", "F32", [900_000_000], 4)),
}


@pytest.mark.parametrize("name", SPARSE)
def test_load_sparse_file_is_rejected_unread(tmp_path: Path, name: str) -> None:
    load, (header, size) = SPARSE[name]
    path = tmp_path / RUN / f"{load.__name__.removeprefix('load_')}.safetensors"
    path.parent.mkdir()
    content = tensor_file(header, b"")
    path.write_bytes(content)
    os.truncate(path, len(content) + size)  # zeros that take no space on the disk
    assert path.stat().st_blocks * 512 < 100_000
    tracemalloc.start()
    began = time.monotonic()
    with pytest.raises(ValueError, match="bytes|expected") as caught:
        load(tmp_path, RUN)
    assert time.monotonic() - began < 5
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")


def test_load_sentences_other_number_or_no_tokens_is_rejected(tmp_path: Path) -> None:
    arrays = {"nats": np.ones(9), "tokens": np.ones(9, np.int32)}
    run_store.save_sentences(tmp_path, RUN, arrays)
    assert len(run_store.load_sentences(tmp_path, RUN, sentences=9)["nats"]) == 9
    with pytest.raises(ValueError, match=r"9 sentences: expected 8 \(sizes.test_pairs\)"):
        run_store.load_sentences(tmp_path, RUN, sentences=8)
    run_store.save_sentences(tmp_path, RUN, {"nats": np.zeros(9), "tokens": np.zeros(9, np.int32)})
    with pytest.raises(ValueError, match="a sentence has no tokens: expected at least <eos>"):
        run_store.load_sentences(tmp_path, RUN)


def test_write_larger_than_the_limit_of_reading_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be written: .* bytes: expected at most 100"):
        tensors.write(tmp_path / "it", {"a": np.zeros(100)}, 100)
    with pytest.raises(ValueError, match="cannot be written: .* bytes: expected at most"):
        files.write_json(tmp_path / "it", "a" * files.JSON_BYTES)
    assert not list(tmp_path.iterdir())


def test_load_hypotheses_with_too_many_or_long_lines_is_rejected_unparsed(tmp_path: Path) -> None:
    path = tmp_path / RUN / run_store.HYPOTHESES
    path.parent.mkdir()
    path.write_bytes(b"\n" * 60_000)
    with pytest.raises(ValueError, match="60,000 lines: expected at most 50,000"):
        run_store.load_hypotheses(tmp_path, RUN)
    path.write_bytes(b"[" + b"{}," * 500_000 + b"{}]\n")
    with pytest.raises(ValueError, match="line 1 has 1,500,004 bytes: expected at most 1,048,576"):
        run_store.load_hypotheses(tmp_path, RUN)
