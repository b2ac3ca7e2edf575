"""Any text is either read without changing a character, or refused in one line that names file and line number."""

from __future__ import annotations

import gzip
import io
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from command_line import Refused
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import BOM, corpus, file_options

from harness.data import corpora, text_files

Pairs = tuple[tuple[str, ...], tuple[str, ...]]


pytestmark = pytest.mark.usefixtures("own_cache")


TWO = ("ein", "zwei"), ("a", "b")
INSIDE = "eins\u2028zwei\u2029drei\u0085vier\x0bfünf\x0csechs\x1csieben\x1dacht\x1eneun"

READ: dict[str, tuple[bytes, bytes | None, Pairs]] = {
    "CR LF": (b"ein\r\nzwei\r\n", b"a\nb\n", TWO),
    "CR LF in a TSV": (b"ein\ta\r\nzwei\tb\r\n", None, TWO),
    "both ends of lines in one file": (b"ein\r\nzwei\n", b"a\nb\r\n", TWO),
    "no end of the last line": (b"ein\nzwei", b"a\nb", TWO),
    "byte order mark": (BOM + b"ein\nzwei\n", b"a\nb\n", TWO),
    "byte order mark in a TSV": (BOM + b"ein\ta\nzwei\tb\n", None, TWO),
    "space around": (b" ein \n\tzwei\xc2\xa0\xe3\x80\x80\n", b"a\nb\n", TWO),
    "other ends of lines": (f"{INSIDE}\nx\n".encode(), b"a\nb\n", ((INSIDE, "x"), ("a", "b"))),
    "CR within a line": (b"ein\rund\nzwei\n", b"a\nb\n", (("ein\rund", "zwei"), ("a", "b"))),
    "composed and decomposed": (
        "é\ne\u0301\n".encode(),
        "Å\nA\u030a\n".encode(),
        (("é", "e\u0301"), ("Å", "A\u030a")),
    ),
    "right to left, emoji, far planes": (
        "שלום עולם\n👩\u200d👩\u200d👧 \U0001d518\n".encode(),
        "\u202eab\u202c\n\U0010ffff\n".encode(),
        (("שלום עולם", "👩\u200d👩\u200d👧 \U0001d518"), ("\u202eab\u202c", "\U0010ffff")),
    ),
    "spelled like special words": (
        b"<eos> <pad>\n<sos>\n",
        b"<unk>\n</s>\n",
        (("<eos> <pad>", "<sos>"), ("<unk>", "</s>")),
    ),
    "repeated pairs": (b"ein\nein\n", b"a\na\n", (("ein", "ein"), ("a", "a"))),
    "escape sequences, formulas": (b"\x1b[31m\n=1+1\n", b"\x07\n@x\n", (("\x1b[31m", "=1+1"), ("\x07", "@x"))),
}
SOURCE, TARGET = "train_source", "train_target"
REFUSED: dict[str, tuple[bytes, bytes | None, str]] = {
    "fewer lines": (b"ein\n", b"a\nb\n", f"{SOURCE} has 1 line and .*{TARGET} 2; expected the same number"),
    "more lines": (b"ein\nzwei\ndrei\n", b"a\nb\n", f"{SOURCE} has 3 lines and .*{TARGET} 2"),
    "a line too many at the end": (b"ein\nzwei\n\n", b"a\nb\n", f"{SOURCE} has 3 lines and .*{TARGET} 2"),
    "CR alone": (b"ein\rzwei\r", b"a\nb\n", f"{SOURCE}, line 1: its lines end with CR alone; expected LF or CR LF"),
    "NUL": (b"ein\nzw\0ei\n", b"a\nb\n", f"{SOURCE}, line 2: a NUL character"),
    "not UTF-8": (b"ein\nzw\xffei\n", b"a\nb\n", rf"{SOURCE}, line 2: byte 0xff \(at offset 6 of the file\) is not"),
    "not UTF-8 after a mark": (BOM + b"ein\n\xe4\n", b"a\nb\n", rf"{SOURCE}, line 2: byte 0xe4 \(at offset 7 of the"),
    "cut within a letter": ("ein\nzwé".encode()[:-1], b"a\nb\n", rf"{SOURCE}, line 2: byte 0xc3 \(at offset 6"),
    "half a surrogate pair": (b"ein\n\xed\xa0\x80\n", b"a\nb\n", f"{SOURCE}, line 2: byte 0xed"),
    "a letter spelled too long": (b"ein\n\xc0\x80\n", b"a\nb\n", f"{SOURCE}, line 2: byte 0xc0"),
    "UTF-16": ("ein\nzwei\n".encode("utf-16"), b"a\nb\n", f"{SOURCE}, line 1: it begins as a UTF-16 file"),
    "UTF-16, big end first": (b"\xfe\xff" + "ein".encode("utf-16-be"), b"a\nb\n", f"{SOURCE}, .* as a UTF-16 file"),
    "UTF-16 without a mark": ("ein\nzwei\n".encode("utf-16-le"), b"a\nb\n", f"{SOURCE}, line 1: a NUL .*as in UTF-16"),
    "UTF-32": ("ein\nzwei\n".encode("utf-32"), b"a\nb\n", f"{SOURCE}, line 1: it begins as a UTF-32 file"),
    "gzip": (gzip.compress(b"ein\nzwei\n"), b"a\nb\n", f"{SOURCE}, line 1: it begins as a gzip file"),
    "ZIP": (b"PK\x03\x04ein\nzwei\n", b"a\nb\n", f"{SOURCE}, line 1: it begins as a ZIP file"),
    "empty source": (b"ein\n\n", b"a\nb\n", f"{SOURCE}, line 2: the source is empty; expected a sentence on both"),
    "empty targets": (b"1\n2\n3\n4\n", b"a\n\n\n \n", rf"{TARGET}, line 2: the target is empty \(and 2 more\)"),
    "both sides empty": (b"ein\n\nzwei\n", b"a\n\nb\n", f"{SOURCE}, line 2: the source is empty"),
    "nothing but white space in a line": (
        b"ein\n \xc2\xa0\xe2\x80\xa8\t\n",
        b"a\nb\n",
        f"{SOURCE}, line 2: the source",
    ),
    "empty split": (b"", b"a\n", f"{SOURCE}: empty; expected one sentence per line"),
    "nothing but a mark": (BOM, b"a\n", f"{SOURCE}: empty"),
    "nothing but ends of lines": (b"\r\n\r\n", b"a\n\n", f"{SOURCE}: empty"),
    "empty line": (b"ein\ta\n\n", None, f"{SOURCE}, line 2: the line is empty; expected source, one tab, target"),
    "one column": (b"ein\ta\nzwei\n", None, f"{SOURCE}, line 2: 0 tabs; expected source, one tab, target"),
    "three columns": (b"ein\ta\nzwei\tb\tc\n", None, f"{SOURCE}, line 2: 2 tabs"),
    "an empty column": (b"ein\ta\n\tb\n", None, f"{SOURCE}, line 2: the source is empty"),
    "a TSV with a target": (
        b"ein\ta\nzwei\tb\n",
        b"a\nb\n",
        f"{SOURCE}: every line has a tab, as in .* no target",
    ),
    "a TSV as the target": (b"ein\nzwei\n", b"ein\ta\nzwei\tb\n", f"{TARGET}: every line has a tab, as in a TSV"),
    "a line without end": (
        b"ein\n" + b"x " * 100_001,
        b"a\nb\n",
        f"{SOURCE}, line 2: 200,002 characters; expected at",
    ),
    "a word without end": (b"ein\na " + b"$" * 1_001, b"a\nb\n", f"{SOURCE}, line 2: 1,001 characters without a space"),
}


@pytest.mark.parametrize("kind", READ)
def test_load_unusual_text_is_read(kind: str, tmp_path: Path) -> None:
    source, target, pairs = READ[kind]
    assert corpora.load(corpus(tmp_path, source, target)).splits["train"] == pairs


@pytest.mark.parametrize("kind", REFUSED)
def test_load_malformed_text_is_refused_with_file_and_line(kind: str, tmp_path: Path, refused: Refused) -> None:
    source, target, message = REFUSED[kind]
    data = corpus(tmp_path, source, target)
    with pytest.raises(ValueError, match=message) as caught:
        corpora.load(data)
    assert "\n" not in str(caught.value)
    assert re.search(message, refused(["data", *file_options(data)], str(caught.value)))


@pytest.mark.parametrize("name", ["validation_source", "test_source"])
def test_load_checks_every_split(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{name}: empty"):
        corpora.load(corpus(tmp_path, b"a\tb\n", contents={name: b""}))


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda place: place.symlink_to("/dev/zero")])
def test_load_pipe_folder_or_device_is_refused(make: Any, tmp_path: Path) -> None:
    data = corpus(tmp_path, b"a\tb\n")
    (tmp_path / "train_source").unlink()
    make(tmp_path / "train_source")
    with pytest.raises(ValueError, match=r"train_source: .*expected a"):
        corpora.load(data)


def test_load_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    data = corpus(tmp_path, b"a\tb\n")
    with (tmp_path / "train_source").open("wb") as file:
        file.truncate(text_files.LARGEST_TEXT_BYTES + 1)
    started = time.monotonic()
    with pytest.raises(ValueError, match=r"train_source: 1,073,741,825 bytes: expected at most 1,073,741,824"):
        corpora.load(data)
    assert time.monotonic() - started < 1


def test_pieces_have_the_lines_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "PIECE_LINES", 2)
    content = BOM + b"one\r\n\n\ntwo\nthr\xc3\xa9e"
    assert list(text_files.pieces(io.BytesIO(content), "it")) == [["one\r", ""], ["", "two"], ["thrée"]]
    monkeypatch.setattr(text_files, "PIECE_BYTES", 4)
    assert list(map(len, text_files.pieces(io.BytesIO(content), "it"))) == [1, 2, 1, 1]
    assert text_files.lines(content, "it") == ["one\r", "", "", "two", "thrée"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\nc\nd\0\n", "it, line 4: a NUL character"),
        (BOM + b"a\nb\nc\nd\xe4\n", r"it, line 4: byte 0xe4 \(at offset 10 of the file\)"),
        (b"a\nb\nc\n" + b"$" * 1_001, "it, line 4: 1,001 characters without a space"),
    ],
)
def test_pieces_malformed_stream_is_refused_with_its_line(
    content: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_files, "PIECE_LINES", 2)
    with pytest.raises(ValueError, match=message):
        list(text_files.pieces(io.BytesIO(content), "it"))


def test_pieces_endless_line_is_refused() -> None:
    class Endless(io.RawIOBase):
        bytes_read = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            Endless.bytes_read += len(buffer)
            assert Endless.bytes_read < 2_000_000
            buffer[:] = b"\xf0\x9f\x98\x80"[: len(buffer)] * (len(buffer) // 4 or 1)
            return len(buffer)

    with pytest.raises(ValueError, match="it, line 1: expected at most 200,000 characters"):
        next(text_files.pieces(io.BufferedReader(Endless(), buffer_size=4_096), "it"))


CLEAN = [*"abzÄßİΣ.,'\u2028\u0085\ufeff\u202e\u2581\x7f\u05d0\U0001f600", "x", "wort", "<eos>", "=1+1", "\x1b[0m"]
ODD = [b"\n", b"\n\n", b"\r", b"\t", b"\0", b"\xff", b"\xed\xa0\x80", BOM, b"\xff\xfe", b"\x1f\x8b"]
PARTS = st.sampled_from([text.encode() for text in CLEAN] * 5 + [b" "] * 5 + ODD)
CELL = st.lists(PARTS, min_size=1, max_size=4).map(b"".join)


@st.composite
def texts(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """Draw the bytes of two files, or of a TSV, in which a few parts may be wrong."""
    rows = draw(st.lists(st.tuples(CELL, CELL), min_size=1, max_size=4))
    mark, end, last = (draw(st.sampled_from(kinds)) for kinds in ([b"", BOM], [b"\n", b"\r\n"], [b"", b"\n"]))
    if draw(st.booleans()):
        return mark + end.join(map(b"\t".join, rows)) + last, None
    source, target = (mark + end.join(side) + last for side in zip(*rows, strict=True))
    return source, draw(st.sampled_from([target, target, target, target + b"\nx", b""]))


def wrong(content: bytes) -> bool:
    """Return whether a file must be refused, by a simple implementation of the rules."""
    if re.match(rb"\xff\xfe|\xfe\xff|\x1f\x8b|PK\x03\x04|\0\0\xfe\xff", content):
        return True
    try:
        text = content.removeprefix(BOM).decode()
    except UnicodeDecodeError:
        return True
    return "\0" in text or not text.strip() or ("\n" not in text and "\r" in text.strip())


def rows_of(content: bytes) -> list[str]:
    return content.removeprefix(BOM).decode().removesuffix("\n").split("\n")


def must_be_refused(source: bytes, target: bytes | None) -> bool:
    if wrong(source) or (target is not None and wrong(target)):
        return True
    if target is not None:
        sides = [rows_of(source), rows_of(target)]
        if any(all(row.strip().count("\t") == 1 for row in side) for side in sides):
            return True
        return len(sides[0]) != len(sides[1]) or any(not row.strip() for side in sides for row in side)
    cells = [row.split("\t") for row in rows_of(source)]
    return any(len(row) != 2 or not all(cell.strip() for cell in row) for row in cells)


def examine(folder: Path, source: bytes, target: bytes | None) -> str:
    """Compare the result for two files with the rules. Returns "read" or "refused"."""
    data = corpus(folder, source, target)
    if must_be_refused(source, target):
        with pytest.raises(ValueError, match=r"expected") as caught:
            corpora.load(data)
        message = str(caught.value)
        assert caught.type is ValueError
        assert len(message.split("\n")) == 1
        location = re.search(r"train_(?:source|target)(?:, line (\d+))?(?:: | has \d+ lines? and )", message)
        assert location, message
        number = int(location[1] or 1)
        assert 1 <= number <= 1 + max(content.count(b"\n") for content in (source, target or b""))
        return "refused"
    pair = corpora.load(data).splits["train"]
    assert len(pair[0]) == len(pair[1]) == len(rows_of(source))
    raw = [source.split(b"\n"), (source if target is None else target).split(b"\n")]
    for side, lines in enumerate(pair):
        for line, bytes_of_it in zip(lines, raw[side], strict=False):
            assert line == line.strip() != ""
            assert not set(line) & {"\n", "\0"}
            assert line.encode("utf-8") in bytes_of_it
    return "read"


@pytest.mark.parametrize("count", [50, pytest.param(1000, marks=pytest.mark.faults)])
def test_any_bytes_are_read_or_refused(count: int, tmp_path: Path) -> None:
    """Both outcomes are frequent and follow the rules."""
    outcomes: Counter[str] = Counter()

    @settings(max_examples=count, derandomize=True, database=None, deadline=None)
    @given(texts())
    def examine_one(contents: tuple[bytes, bytes | None]) -> None:
        outcomes[examine(tmp_path, *contents)] += 1

    examine_one()
    assert outcomes.total() >= count
    assert min(outcomes["read"], outcomes["refused"]) > 0.2 * count
