"""Parallel text: Multi30k, the embedded captions, or the user's own files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.data import cache, multi30k
from harness.data.multi30k import DataUnavailable
from harness.specs import DataSpec

__all__ = ["SPLITS", "Corpus", "DataUnavailable", "load", "multi30k_reason", "signature"]

SPLITS = ("train", "val", "test")
Lines = tuple[str, ...]


@dataclass(frozen=True)
class Corpus:
    """A corpus as text: for each of "train", "val" and "test" the source and the target lines, stripped.

    `digests`: name of each file -> SHA-256 of its uncompressed bytes.
    """

    name: str
    direction: str
    splits: dict[str, tuple[Lines, Lines]]
    digests: dict[str, str]


def load(data: DataSpec) -> Corpus:
    """Read, generate or download the corpus that `data` names; all of it, whatever `training_pairs` says.

    Raises: DataUnavailable where Multi30k cannot be had; ValueError, one line, for what is wrong in a file.
    """
    readers = {"multi30k": _multi30k, "captions": _captions, "files": _files}
    return readers[data.corpus](data)


def signature(data: DataSpec) -> dict[str, str] | None:
    """Return what determines the text, where that is known without having it: so a ready-made corpus needs no text.

    That is the digests of Multi30k's files, or the generator's code and seed for captions; None for the user's files.
    """
    if data.corpus == "multi30k":
        names = multi30k.names(data.direction, data.test_split)
        return {name: multi30k.DIGESTS[name] for pair in names.values() for name in pair}
    if data.corpus == "captions":
        code = {name: Path(__file__).with_name(name).read_bytes() for name in ("captions.py", "captions_lexicon.py")}
        return {**{name: cache.digest(one) for name, one in code.items()}, "seed": str(data.seed)}
    return None


def multi30k_reason(data: DataSpec) -> str | None:
    """Return None where Multi30k can be had, downloading it if need be, and else why not, in one line.

    Raises: ValueError for a direction or a test split that there is not.
    """
    names = multi30k.names(data.direction, data.test_split)
    try:
        multi30k.texts([name for pair in names.values() for name in pair])
    except DataUnavailable as error:
        return str(error)
    return None


def multi30k_missing(data: DataSpec) -> list[str]:
    """Return the files of Multi30k that `load` would download. Raises: as `multi30k_reason`; DataUnavailable."""
    names = multi30k.names(data.direction, data.test_split)
    return multi30k.absent([name for pair in names.values() for name in pair])


def _multi30k(data: DataSpec) -> Corpus:
    names = multi30k.names(data.direction, data.test_split)
    texts = multi30k.texts([name for pair in names.values() for name in pair])
    splits = {
        split: (_stripped(_lines(texts[source], source)), _stripped(_lines(texts[target], target)))
        for split, (source, target) in names.items()
    }
    return Corpus("multi30k", data.direction, splits, {name: cache.digest(text) for name, text in texts.items()})


def _captions(data: DataSpec) -> Corpus:
    if data.direction not in ("de-en", "en-de"):
        raise ValueError(f"direction={data.direction!r}: allowed with corpus='captions' is de-en, en-de")
    from harness.data import captions

    splits: dict[str, tuple[Lines, Lines]] = {}
    digests: dict[str, str] = {}
    for split, pairs in captions.pairs(seed=data.seed).items():
        german, english = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        splits[split] = (german, english) if data.direction == "de-en" else (english, german)
        for language, lines in (("de", german), ("en", english)):
            digests[f"{split}.{language}"] = cache.digest("".join(f"{line}\n" for line in lines).encode())
    return Corpus("captions", data.direction, splits, digests)


# The user's own files -------------------------------------------------------------------------------------------------


def _files(data: DataSpec) -> Corpus:
    assert data.files is not None
    splits: dict[str, tuple[Lines, Lines]] = {}
    digests: dict[str, str] = {}
    for split, word in zip(SPLITS, ("train", "validation", "test"), strict=True):
        source: str = getattr(data.files, f"{word}_source")
        target: str = getattr(data.files, f"{word}_target")
        first = _read(source)
        digests[f"{word}_source"] = cache.digest(first)
        if target:
            second = _read(target)
            digests[f"{word}_target"] = cache.digest(second)
            pair = _stripped(_lines(first, source)), _stripped(_lines(second, target))
        else:
            pair = _columns(_lines(first, source), source)
        _check_pairs(pair, source, target or source)
        splits[split] = pair
    return Corpus("files", data.direction, splits, digests)


def _read(name: str) -> bytes:
    try:
        return Path(name).expanduser().read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"{name}: cannot be read ({reason}); allowed is a text file, one sentence a line") from error


def _lines(content: bytes, name: str) -> list[str]:
    """Return the lines of a UTF-8 text.

    A line ends with LF (or CR LF) and with nothing else that Python takes for the end of one.

    Raises: ValueError naming the file and the line.
    """
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{name}, line {number}: byte {content[error.start]:#04x} (number {error.start} of the text) is not UTF-8; "
            "allowed is UTF-8"
        ) from error
    if "\0" in text:
        number = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"{name}, line {number}: a NUL character; allowed is text")
    if not text.strip():
        raise ValueError(f"{name}: empty; allowed is one sentence a line")
    return text.removesuffix("\n").split("\n")


def _stripped(lines: Iterable[str]) -> Lines:
    return tuple(line.strip() for line in lines)


def _columns(lines: Sequence[str], name: str) -> tuple[Lines, Lines]:
    """Return the source and the target column of a TSV."""
    source, target = [], []
    for number, line in enumerate(lines, start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(f"{name}, line {number}: {len(columns) - 1} tabs; allowed is source, one tab, target")
        source.append(columns[0])
        target.append(columns[1])
    return _stripped(source), _stripped(target)


def _check_pairs(pair: tuple[Lines, Lines], source: str, target: str) -> None:
    if len(pair[0]) != len(pair[1]):
        raise ValueError(
            f"{source} has {len(pair[0])} lines and {target} {len(pair[1])}; allowed is the same number, pair by pair"
        )
    for name, lines, side in ((source, pair[0], "source"), (target, pair[1], "target")):
        if "" in lines:
            raise ValueError(
                f"{name}, line {lines.index('') + 1}: the {side} is empty; allowed is a sentence on both sides"
            )
