"""Text files of any origin: their bytes become lines and pairs, or one line says what is wrong and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from harness import files

LARGEST_TEXT_BYTES = 1 << 30
LONGEST_LINE = 200_000
LONGEST_WORD = 1_000
"""Characters without white space: spaCy's time grows with the square of a word of nothing but marks, and faster."""

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
        raise ValueError(f"{name}: cannot be read ({reason}); allowed is a text file, one sentence a line") from error


def lines(content: bytes, name: str) -> list[str]:
    """Return the lines of a UTF-8 text, letter for letter: nothing is composed, decomposed or replaced.

    A line ends with LF (or CR LF) and with nothing else that Python takes for the end of one.

    Raises: ValueError naming the file and the line.
    """
    for beginning, kind in FOREIGN.items():
        if content.startswith(beginning):
            raise ValueError(f"{name}, line 1: it begins as a {kind} file; allowed is plain text in UTF-8")
    text = _decoded(content, name)
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{name}, line {number}: a NUL character, as in UTF-16; allowed is text in UTF-8")
    if not text.strip():
        raise ValueError(f"{name}: empty; allowed is one sentence a line")
    if "\n" not in text and "\r" in text.strip():
        raise ValueError(f"{name}, line 1: its lines end with CR alone; allowed is LF or CR LF")
    found = text.removesuffix("\n").split("\n")
    for number, line in enumerate(found, start=1):
        if len(line) > LONGEST_LINE:
            raise ValueError(
                f"{name}, line {number}: {len(line):,} characters; allowed is at most {LONGEST_LINE:,}, a sentence"
            )
        if len(line) > LONGEST_WORD and (longest := max(map(len, line.split()), default=0)) > LONGEST_WORD:
            raise ValueError(
                f"{name}, line {number}: {longest:,} characters without a space; allowed is at most {LONGEST_WORD:,}"
            )
    return found


def _decoded(content: bytes, name: str) -> str:
    body = content.removeprefix(BYTE_ORDER_MARK)
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        number = body.count(b"\n", 0, error.start) + 1
        offset = error.start + len(content) - len(body)
        raise ValueError(
            f"{name}, line {number}: byte {body[error.start]:#04x} (at offset {offset} of the file) is not UTF-8; "
            "allowed is UTF-8"
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
            raise ValueError(f"{name}, line {number}: {len(parts) - 1} tabs; allowed is source, one tab, target")
        source.append(parts[0])
        target.append(parts[1])
    return stripped(source), stripped(target)


def check_pairs(pair: tuple[Lines, Lines], source: str, target: str) -> None:
    """Raise ValueError where two sides differ in length or a sentence is empty, naming the file and the line."""
    if len(pair[0]) != len(pair[1]):
        raise ValueError(
            f"{source} has {len(pair[0])} lines and {target} {len(pair[1])}; allowed is the same number, pair by pair"
        )
    for name, side, found in ((source, "source", pair[0]), (target, "target", pair[1])):
        if "" in found:
            count = found.count("")
            more = f" (and {count - 1:,} more)" if count > 1 else ""
            raise ValueError(
                f"{name}, line {found.index('') + 1}: the {side} is empty{more}; allowed is a sentence on both sides"
            )
