"""Parallel text: Multi30k, the embedded captions, or the user's own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.data import cache, multi30k, text_files
from harness.data.text_files import Lines
from harness.experiments.specs import DataSpec

SPLITS = ("train", "val", "test")
Digests = Mapping[str, Any]
"""SHA-256 by file name, possibly from an untrusted record."""


@dataclass(frozen=True)
class Corpus:
    """A corpus as text.

    Attributes:
        splits: The source and the target lines of "train", "val" and "test", without surrounding white space.
        digests: The SHA-256 of the uncompressed content of each file, by file name.
    """

    splits: dict[str, tuple[Lines, Lines]]
    digests: dict[str, str]


def load(data: DataSpec, digests: Digests | None = None) -> Corpus:
    """Read, generate or download a corpus with all its training pairs.

    If there are `digests`, the user's files must have this SHA-256; others are rejected before they are parsed.

    Raises: DataUnavailable for Multi30k; ValueError for a file that is missing, malformed or another one, and for an
    unknown direction or test set.
    """
    if data.corpus == "files":
        return _files(data, digests)
    return _multi30k(data) if data.corpus == "multi30k" else _captions(data)


def file_digests(data: DataSpec) -> dict[str, str]:
    """Return the SHA-256 of each of the user's files. Raises: ValueError if one cannot be read."""
    return {field: cache.digest(content) for field, content in _contents(data).items()}


def signature(data: DataSpec) -> dict[str, str] | None:
    """Return values that determine the text of a corpus without its text.

    These are the digests of Multi30k's files, or the code and seed of the captions; None for the user's files. With
    them a cached corpus is found although its text is not available.

    Raises: ValueError for an unknown direction or test set.
    """
    if data.corpus == "multi30k":
        return {name: multi30k.DIGESTS[name] for name in _multi30k_names(data)}
    if data.corpus == "captions":
        _check_only_test_set(data)
        paths = [Path(__file__).with_name(name) for name in ("captions.py", "captions_lexicon.py")]
        return {**{path.name: cache.digest(path.read_bytes()) for path in paths}, "seed": str(data.seed)}
    return None


def needs_download(data: DataSpec) -> bool:
    """Return whether `load` would download a file. Raises: as `load`."""
    return data.corpus == "multi30k" and not all(multi30k.local_texts(_multi30k_names(data)).values())


def _multi30k_names(data: DataSpec) -> list[str]:
    return [name for pair in multi30k.names(data.direction, data.test_split).values() for name in pair]


def _multi30k(data: DataSpec) -> Corpus:
    texts = multi30k.texts(_multi30k_names(data))
    splits = {
        split: (text_files.sentences(texts[source], source), text_files.sentences(texts[target], target))
        for split, (source, target) in multi30k.names(data.direction, data.test_split).items()
    }
    return Corpus(splits, {name: cache.digest(text) for name, text in texts.items()})


def _check_only_test_set(data: DataSpec) -> None:
    """Raise ValueError if a test set is named although the corpus has one only."""
    if data.test_split != DataSpec().test_split:
        raise ValueError(
            f"test_split={data.test_split!r}: the corpus {data.corpus!r} has one test set, so leave the setting out; "
            f"with corpus='multi30k' it is {', '.join(multi30k.TEST_SPLITS)}"
        )


def _captions(data: DataSpec) -> Corpus:
    _check_only_test_set(data)
    if data.direction not in ("de-en", "en-de"):
        raise ValueError(f"direction={data.direction!r}: expected de-en, en-de with corpus='captions'")
    from harness.data import captions

    splits: dict[str, tuple[Lines, Lines]] = {}
    digests: dict[str, str] = {}
    for split, pairs in captions.pairs(seed=data.seed).items():
        german, english = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        splits[split] = (german, english) if data.direction == "de-en" else (english, german)
        for language, lines in (("de", german), ("en", english)):
            digests[f"{split}.{language}"] = cache.digest("".join(f"{line}\n" for line in lines).encode())
    return Corpus(splits, digests)


def _paths(data: DataSpec) -> dict[str, str]:
    assert data.files is not None
    return {field: path for field, path in asdict(data.files).items() if path}


def _contents(data: DataSpec) -> dict[str, bytes]:
    return {field: text_files.read(path) for field, path in _paths(data).items()}


def _files(data: DataSpec, expected: Digests | None) -> Corpus:
    _check_only_test_set(data)
    paths = _paths(data)
    try:
        contents = _contents(data)
        digests = {field: cache.digest(content) for field, content in contents.items()}
        for field, digest in digests.items():
            if expected is not None and expected.get(field) != digest:
                raise ValueError(f"{paths[field]}: its SHA-256 is not that of the run's {field}")
    except ValueError as error:
        if expected is None:
            raise
        hint = "copy the files that it was trained on to the same paths"
        raise ValueError(f"the text of the run is not available: {error}; {hint}") from error
    splits: dict[str, tuple[Lines, Lines]] = {}
    for split, word in zip(SPLITS, ("train", "validation", "test"), strict=True):
        source, target = f"{word}_source", f"{word}_target"
        if target in contents:
            pair = (
                text_files.sentences(contents[source], paths[source]),
                text_files.sentences(contents[target], paths[target]),
            )
        else:
            pair = text_files.columns(contents[source], paths[source])
        text_files.check_pairs(pair, paths[source], paths.get(target, paths[source]))
        splits[split] = pair
    return Corpus(splits, digests)
