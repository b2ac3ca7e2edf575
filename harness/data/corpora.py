"""Parallel text: Multi30k, the embedded captions, or the user's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.data import cache, multi30k, text_files
from harness.data.multi30k import DataUnavailable
from harness.data.text_files import Lines
from harness.experiments.specs import DataSpec

__all__ = ["SPLITS", "Corpus", "DataUnavailable", "Lines", "load", "multi30k_reason", "signature"]

SPLITS = ("train", "val", "test")
Digests = Mapping[str, Any]
"""The SHA-256 of files by name, as a record has them, which may be a stranger's."""


@dataclass(frozen=True)
class Corpus:
    """A corpus as text: for each of "train", "val" and "test" the source and the target lines, stripped.

    `digests`: name of each file -> SHA-256 of its uncompressed bytes.
    """

    name: str
    direction: str
    splits: dict[str, tuple[Lines, Lines]]
    digests: dict[str, str]


def load(data: DataSpec, digests: Digests | None = None) -> Corpus:
    """Read, generate or download the corpus that `data` names; all of it, whatever `training_pairs` says.

    `digests`: the SHA-256 that each of the user's files has to have; of another one nothing but that is looked at.

    Raises: DataUnavailable where Multi30k is not available; ValueError, one line, for what is wrong in a file.
    """
    if data.corpus == "files":
        return _files(data, digests)
    return _multi30k(data) if data.corpus == "multi30k" else _captions(data)


def file_digests(data: DataSpec) -> dict[str, str]:
    """Return the SHA-256 of each of the user's files. Raises: ValueError naming one that cannot be read."""
    assert data.files is not None
    names = {name: value for name, value in asdict(data.files).items() if value}
    return {name: cache.digest(text_files.read(value)) for name, value in names.items()}


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
        split: (
            text_files.stripped(text_files.lines(texts[source], source)),
            text_files.stripped(text_files.lines(texts[target], target)),
        )
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


def _files(data: DataSpec, expected: Digests | None) -> Corpus:
    assert data.files is not None

    def read(field: str, path: str) -> bytes:
        try:
            content = text_files.read(path)
            digests[field] = cache.digest(content)
            if expected is not None and expected.get(field) != digests[field]:
                raise ValueError(f"{path}: its SHA-256 is not that of the run's {field}")
        except ValueError as error:
            raise error if expected is None else ValueError(f"the text of the run is not available: {error}") from error
        return content

    splits: dict[str, tuple[Lines, Lines]] = {}
    digests: dict[str, str] = {}
    for split, word in zip(SPLITS, ("train", "validation", "test"), strict=True):
        source: str = getattr(data.files, f"{word}_source")
        target: str = getattr(data.files, f"{word}_target")
        first = read(f"{word}_source", source)
        if target:
            second = read(f"{word}_target", target)
            pair = (
                text_files.stripped(text_files.lines(first, source)),
                text_files.stripped(text_files.lines(second, target)),
            )
        else:
            pair = text_files.columns(text_files.lines(first, source), source)
        text_files.check_pairs(pair, source, target or source)
        splits[split] = pair
    return Corpus("files", data.direction, splits, digests)
