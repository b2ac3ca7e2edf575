"""The user's text files: bytes to lines and pairs. Errors are one line that names the file and the line number."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import harness.text
from harness.storage import files

LARGEST_TEXT_BYTES = 1 << 30
LONGEST_LINE = 200_000
LONGEST_WORD = 1_000
"""Characters without white space. spaCy's time grows with the square of the length of a word of punctuation."""

PIECE_LINES = 1_000
PIECE_BYTES = 4 << 20
"""A piece of a stream ends with the line that reaches one of these limits."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SIGNATURES = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "ZIP",
}
"""The first bytes of files in other formats; a signature precedes its own prefixes."""

Lines = tuple[str, ...]


def read(name: str) -> bytes:
    """Return the content of a file. Raises: ValueError if it cannot be read or is too large."""
    try:
        return files.read_bytes(Path(name).expanduser(), LARGEST_TEXT_BYTES, links=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ValueError(f"{name}: cannot be read ({reason}); expected a text file, one sentence per line") from error


def lines(content: bytes, name: str) -> list[str]:
    """Return the lines of a UTF-8 text without normalising any character. Raises: as `pieces`."""
    return [line for piece in pieces(io.BytesIO(content), name) for line in piece]


def sentences(content: bytes, name: str) -> Lines:
    """Return the lines of a UTF-8 text without the white space around them. Raises: as `pieces`."""
    return stripped(lines(content, name))


def pieces(stream: BinaryIO, name: str) -> Iterator[list[str]]:
    """Yield the lines of a UTF-8 stream of any length, in pieces.

    Lines end with LF or CR LF, and not with any other character that Python takes for a line end.

    Raises: ValueError, naming the line, if the text is empty or not UTF-8, or has a NUL character or an overlong line
    or word.
    """
    first, offset, is_empty = 1, 0, True
    while content := _piece(stream, name, first):
        piece = _lines(content, name, first=first, offset=offset)
        yield piece
        is_empty = is_empty and not any(map(str.strip, piece))
        first, offset = first + len(piece), offset + len(content)
    if is_empty:
        raise ValueError(f"{name}: empty; expected one sentence per line")


def _piece(stream: BinaryIO, name: str, first: int) -> bytes:
    """Return the next lines of a stream, which begin with line number `first`."""
    piece: list[bytes] = []
    size, most = 0, 4 * (LONGEST_LINE + 2)  # UTF-8 has at most 4 bytes per character
    while len(piece) < PIECE_LINES and size < PIECE_BYTES and (line := stream.readline(most)):
        piece.append(line)
        size += len(line)
        if len(line) == most and not line.endswith(b"\n"):
            raise ValueError(f"{name}, line {first + len(piece) - 1}: expected at most {LONGEST_LINE:,} characters")
    return b"".join(piece)


def _lines(content: bytes, name: str, *, first: int, offset: int) -> list[str]:
    """Return the lines of a piece that begins with line number `first` at byte `offset`."""
    for signature, kind in SIGNATURES.items():
        if not offset and content.startswith(signature):
            raise ValueError(f"{name}, line 1: it begins as a {kind} file; expected plain text in UTF-8")
    body = content if offset else content.removeprefix(BYTE_ORDER_MARK)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + first
        position = offset + error.start + len(content) - len(body)
        raise ValueError(
            f"{name}, line {number}: byte {body[error.start]:#04x} (at offset {position} of the file) is not UTF-8; "
            "expected UTF-8"
        ) from error
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + first
        raise ValueError(f"{name}, line {number}: a NUL character, as in UTF-16; expected text in UTF-8")
    if not offset and "\n" not in text and "\r" in text.strip():
        raise ValueError(f"{name}, line 1: its lines end with CR alone; expected LF or CR LF")
    split = text.removesuffix("\n").split("\n")
    for number, line in enumerate(split, start=first):
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{name}, line {number}: {len(line):,} characters; expected at most {LONGEST_LINE:,} characters"
            )
        check_words(line, f"{name}, line {number}")
    return split


def check_words(line: str, where: str) -> None:
    """Raise ValueError, beginning with `where`, for a word that is too long for tokenizers."""
    if len(line) > LONGEST_WORD and (longest := max(map(len, line.split()), default=0)) > LONGEST_WORD:
        raise ValueError(f"{where}: {longest:,} characters without a space; expected at most {LONGEST_WORD:,}")


def stripped(lines: Iterable[str]) -> Lines:
    """Return lines without the white space around them."""
    return tuple(line.strip() for line in lines)


def columns(content: bytes, name: str) -> tuple[Lines, Lines]:
    """Return the source and the target column of a TSV. Raises: as `pieces`, and ValueError naming the line."""
    source, target = [], []
    for number, line in enumerate(lines(content, name), start=1):
        cells = line.split("\t")
        if len(cells) != 2:
            found = f"{len(cells) - 1} tabs" if line.strip() else "the line is empty"
            raise ValueError(f"{name}, line {number}: {found}; expected source, one tab, target")
        source.append(cells[0])
        target.append(cells[1])
    return stripped(source), stripped(target)


def check_pairs(pair: tuple[Sequence[str], Sequence[str]], source: str, target: str) -> None:
    """Raise ValueError if the sides differ in length, a sentence is empty, or a side is a TSV of both.

    `source` and `target` are file names.
    """
    if len(pair[0]) != len(pair[1]):
        lines_of_source = harness.text.count(len(pair[0]), "line")
        raise ValueError(
            f"{source} has {lines_of_source} and {target} {len(pair[1]):,}; expected the same number, pair by pair"
        )
    for name, side, sentences in ((source, "source", pair[0]), (target, "target", pair[1])):
        if "" in sentences:
            count = sentences.count("")
            more = f" (and {count - 1:,} more)" if count > 1 else ""
            raise ValueError(
                f"{name}, line {sentences.index('') + 1}: the {side} is empty{more}; expected a sentence on both sides"
            )
        if all(sentence.count("\t") == 1 for sentence in sentences):
            raise ValueError(
                f"{name}: every line has a tab, as in a TSV of source and target; give the TSV as the source, and no "
                "target"
            )
