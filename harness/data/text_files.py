"""Text files of any origin: their bytes become lines and pairs, or one line says what is wrong and where."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from harness.storage import files

LARGEST_TEXT_BYTES = 1 << 30
LONGEST_LINE = 200_000
LONGEST_WORD = 1_000
"""Characters without white space: spaCy's time grows with the square of a word of nothing but marks, and faster."""

PIECE_LINES = 1_000
PIECE_BYTES = 4 << 20
"""After so many of either a piece of a stream ends, with its line."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
FOREIGN = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "ZIP",
}
"""How files begin that are none of ours; the longer beginning first."""

Lines = tuple[str, ...]


def read(name: str) -> bytes:
    """Return the bytes of a file. Raises: ValueError naming it where it is no file, cannot be read or is too large."""
    try:
        return files.read_bytes(Path(name).expanduser(), LARGEST_TEXT_BYTES, links=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ValueError(f"{name}: cannot be read ({reason}); expected a text file, one sentence a line") from error


def lines(content: bytes, name: str) -> list[str]:
    """Return the lines of a UTF-8 text, letter for letter: nothing is composed, decomposed or replaced.

    A line ends with LF (or CR LF) and with nothing else that Python takes for the end of one.

    Raises: ValueError naming the file and the line.
    """
    _check_beginning(content, name)
    found = _lines(content, name, first=1, offset=0)
    if not any(map(str.strip, found)):
        raise _empty(name)
    return found


def pieces(stream: BinaryIO, name: str) -> Iterator[list[str]]:
    """Yield the lines of a stream of any length, some at a time, each as soon as its piece is there.

    Raises: as `lines`, when it comes to what is wrong; where all is empty, at the end.
    """
    first, offset, written = 1, 0, False
    while content := _piece(stream, name, first):
        if not offset:
            _check_beginning(content, name)
        found = _lines(content, name, first=first, offset=offset)
        yield found
        written = written or any(map(str.strip, found))
        first, offset = first + len(found), offset + len(content)
    if not written:
        raise _empty(name)


def _piece(stream: BinaryIO, name: str, first: int) -> bytes:
    """Return the next lines of a stream, of which the first is number `first`."""
    found: list[bytes] = []
    size, most = 0, 4 * (LONGEST_LINE + 2)  # no character of UTF-8 has more bytes
    while len(found) < PIECE_LINES and size < PIECE_BYTES and (line := stream.readline(most)):
        found.append(line)
        size += len(line)
        if len(line) == most and not line.endswith(b"\n"):
            raise _too_long(f"{name}, line {first + len(found) - 1}", "more")
    return b"".join(found)


def _check_beginning(content: bytes, name: str) -> None:
    for beginning, kind in FOREIGN.items():
        if content.startswith(beginning):
            raise ValueError(f"{name}, line 1: it begins as a {kind} file; expected plain text in UTF-8")


def _empty(name: str) -> ValueError:
    return ValueError(f"{name}: empty; expected one sentence a line")


def _too_long(where: str, found: str) -> ValueError:
    return ValueError(f"{where}: {found} characters; expected at most {LONGEST_LINE:,}, a sentence")


def _lines(content: bytes, name: str, *, first: int, offset: int) -> list[str]:
    """Return the lines of a text, or of a piece of one that begins with line `first` at byte `offset`."""
    text = _decoded(content, name, first, offset)
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + first
        raise ValueError(f"{name}, line {number}: a NUL character, as in UTF-16; expected text in UTF-8")
    if "\n" not in text and "\r" in text.strip():
        raise ValueError(f"{name}, line {first}: its lines end with CR alone; expected LF or CR LF")
    found = text.removesuffix("\n").split("\n")
    for number, line in enumerate(found, start=first):
        if len(line) > LONGEST_LINE:
            raise _too_long(f"{name}, line {number}", f"{len(line):,}")
        check_words(line, f"{name}, line {number}")
    return found


def check_words(line: str, where: str) -> None:
    """Raise ValueError with `where` for a word that no tokenizer should be given."""
    if len(line) > LONGEST_WORD and (longest := max(map(len, line.split()), default=0)) > LONGEST_WORD:
        raise ValueError(f"{where}: {longest:,} characters without a space; expected at most {LONGEST_WORD:,}")


def _decoded(content: bytes, name: str, first: int, offset: int) -> str:
    body = content if offset else content.removeprefix(BYTE_ORDER_MARK)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + first
        place = offset + error.start + len(content) - len(body)
        raise ValueError(
            f"{name}, line {number}: byte {body[error.start]:#04x} (at offset {place} of the file) is not UTF-8; "
            "expected UTF-8"
        ) from error


def stripped(found: Iterable[str]) -> Lines:
    """Return lines without the white space around them."""
    return tuple(line.strip() for line in found)


def columns(found: Sequence[str], name: str) -> tuple[Lines, Lines]:
    """Return the source and the target column of a TSV. Raises: ValueError naming the file and the line."""
    source, target = [], []
    for number, line in enumerate(found, start=1):
        parts = line.split("\t")
        if len(parts) != 2:
            raise ValueError(f"{name}, line {number}: {len(parts) - 1} tabs; expected source, one tab, target")
        source.append(parts[0])
        target.append(parts[1])
    return stripped(source), stripped(target)


def check_pairs(pair: tuple[Lines, Lines], source: str, target: str) -> None:
    """Raise ValueError where two sides differ in length or a sentence is empty, naming the file and the line."""
    if len(pair[0]) != len(pair[1]):
        raise ValueError(
            f"{source} has {len(pair[0])} lines and {target} {len(pair[1])}; expected the same number, pair by pair"
        )
    for name, side, found in ((source, "source", pair[0]), (target, "target", pair[1])):
        if "" in found:
            count = found.count("")
            more = f" (and {count - 1:,} more)" if count > 1 else ""
            raise ValueError(
                f"{name}, line {found.index('') + 1}: the {side} is empty{more}; expected a sentence on both sides"
            )
