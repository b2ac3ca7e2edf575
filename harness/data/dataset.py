"""A corpus made ready for training: vocabularies and ids of all splits, from the cache where they are there already."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.data import cache, corpora, portable_corpus, preprocess, tokenizer_process, vocabulary
from harness.data.corpora import Digests
from harness.data.tokenizers import UNKNOWN_TEXT, tokenizer
from harness.data.vocabulary import Split
from harness.experiments.specs import DataSpec
from harness.storage.records import RunRecord
from impls.contract import Ids

__all__ = [
    "Dataset",
    "Encoded",
    "Split",
    "at_hand",
    "describe",
    "detokenise",
    "encode",
    "moses_tokens",
    "of_run",
    "prepare",
    "remark",
    "score_tokens",
    "text_digests",
    "unavailable",
]

Tokens = tuple[tuple[str, ...], ...]

_LETTER = "\ua66e"
"""A letter of hardly any text, in the place of `UNKNOWN_TEXT` while Moses cuts it."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The ids that models see, and the test set as text and tokens for scoring.

    `key` names the cache entry. The first four of `source_words` and `target_words` are the special words; with one
    joint vocabulary the two are equal. `test_target_tokens` are the references as the tutorials' BLEU takes them: the
    model's own tokens, or, where those are parts of words, lower-cased spaCy tokens. `test_target_moses` are the
    references' lower-cased Moses tokens. `source_model` and `target_model` are what the tokenizer learned, else empty.

    `digests`: SHA-256 of `files` (name -> digest), `source_vocabulary`, `target_vocabulary`, `tokenised` (all ids), and
    `source_model`, `target_model` where there are any.

    `figures`: vocabulary sizes; of each split its pairs, left-out pairs and cut sentences; of each side of it the share
    of unknown words and quantiles of the length (`<sos>` and `<eos>` count; before anything is left out or cut);
    training pairs that repeat another, and test pairs that training has too.
    """

    data: DataSpec
    key: str
    source_words: tuple[str, ...] = field(repr=False)
    target_words: tuple[str, ...] = field(repr=False)
    train: Split = field(repr=False)
    validation: Split = field(repr=False)
    test: Split = field(repr=False)
    test_source_text: tuple[str, ...] = field(repr=False)
    test_target_text: tuple[str, ...] = field(repr=False)
    test_target_tokens: Tokens = field(repr=False)
    test_target_moses: Tokens = field(repr=False)
    source_model: bytes = field(repr=False)
    target_model: bytes = field(repr=False)
    digests: dict[str, Any]
    figures: dict[str, float]


@dataclass(frozen=True)
class Encoded:
    """Sentences as tokens and as ids, `<sos>` words `<eos>`; `cut` of them were longer than allowed and end early."""

    tokens: list[list[str]]
    ids: list[Ids]
    cut: int


def prepare(data: DataSpec, digests: Digests | None = None) -> Dataset:
    """Return the corpus as ids: from the cache, or tokenised by a process of its own and put there.

    What another machine has handed over for `data` comes first. `digests` are those of `corpora.load`.

    Raises: DataUnavailable where Multi30k is not available; ValueError, one line, for what is wrong in the corpus, the
    settings or the machine.
    """
    handed = portable_corpus.find(data)
    if handed is not None:
        return _prepared(data, preprocess.key(handed[0]["identity"]), *handed)
    signature = corpora.signature(data)
    corpus = corpora.load(data, digests) if signature is None else None
    identity = preprocess.identity(data, corpus.digests if corpus else signature or {})
    found = _cached(identity)
    if found is None:
        description, files = preprocess.make(data, corpus or corpora.load(data), identity)
        key = preprocess.key(identity)
        cache.write_entry(_entry(key), description, files)
        found = key, description, files
    return _prepared(data, *found)


def unavailable(data: DataSpec) -> str | None:
    """Return None where `prepare` can have what it needs, downloading it if need be, and else why not, in one line.

    A corpus that is in the cache ready-made needs no text.

    Raises: ValueError for a direction or a test split that there is not.
    """
    signature = corpora.signature(data)
    if data.corpus != "multi30k" or signature is None or _cached(preprocess.identity(data, signature)) is not None:
        return None
    return corpora.multi30k_reason(data)


def text_digests(data: DataSpec) -> dict[str, str]:
    """Return the SHA-256 of each of the user's files that `prepare` would take. Raises: ValueError naming a file."""
    handed = portable_corpus.find(data)
    found: dict[str, str] = corpora.file_digests(data) if handed is None else handed[0]["digests"]["files"]
    return found


def of_run(record: RunRecord) -> Dataset:
    """Return the corpus of a run; its record may be a stranger's, and names any file of this machine.

    Raises: as `prepare`; ValueError naming a file that is not the one that the run was made from.
    """
    return prepare(record.spec.data, record.fingerprints.get("files") or {})


def at_hand(record: RunRecord) -> Dataset | None:
    """Return what `of_run` does, or None where it would have to download something. Raises: as `of_run`."""
    data = record.spec.data
    signature = corpora.signature(data)
    ready = signature is not None and _cached(preprocess.identity(data, signature)) is not None
    if not ready and data.corpus == "multi30k" and corpora.multi30k_missing(data):
        return None
    return of_run(record)


# Text to tokens, ids and back, for later use --------------------------------------------------------------------------


def encode(prepared: Dataset, sentences: Sequence[str]) -> Encoded:
    """Return sentences of the source language as the model's tokens and ids.

    Raises: ValueError where the tokenizer's library is missing.
    """
    data = prepared.data
    job = preprocess.job(data, data.source_language, [one.strip() for one in sentences], prepared.source_model)
    tokens = tokenizer_process.tokenise([job])[0]
    ids = vocabulary.encode(tokens, prepared.source_words)
    split = vocabulary.cut(ids, [], data.max_length)
    return Encoded(tokens, split.source, split.cut)


def detokenise(prepared: Dataset, token_lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the text of lists of target tokens; one character, `UNKNOWN_TEXT`, stands for each `<unk>`.

    Raises: ValueError where sacremoses is missing.
    """
    tool = tokenizer(prepared.data.tokenizer, prepared.data.target_language, case=prepared.data.case)
    return [tool.detokenise(tokens) for tokens in token_lists]


def score_tokens(prepared: Dataset, texts: Sequence[str]) -> list[list[str]]:
    """Return the tokens of target text as `test_target_tokens` has them.

    Raises: ValueError where the tokenizer's library is missing.
    """
    return tokenizer_process.tokenise([preprocess.score_job(prepared.data, texts)])[0]


def moses_tokens(prepared: Dataset, texts: Sequence[str]) -> list[list[str]]:
    """Return the lower-cased Moses tokens of target text, as `test_target_moses` has them.

    An unknown word is cut as a word of letters is, not as a symbol: its "'s" is a token of its own in English.

    Raises: ValueError where sacremoses is missing.
    """
    tool = tokenizer("moses", prepared.data.target_language)
    tokens = (tool.tokenise(text.replace(UNKNOWN_TEXT, _LETTER)) for text in texts)
    return [[token.replace(_LETTER, UNKNOWN_TEXT) for token in one] for one in tokens]


# The cache ------------------------------------------------------------------------------------------------------------


def _entry(key: str) -> Path:
    return cache.folder() / "prepared" / key


def _cached(identity: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, bytes]] | None:
    """Return the entry of this identity.

    Where a library is not installed, its version is not compared: a cache that was carried to such a machine serves, if
    exactly one entry fits.
    """
    keys = [preprocess.key(identity)]
    if "" in identity["versions"].values():
        keys = [path.name for path in sorted(cache.folder().glob("prepared/[!.]*")) if _fits(path, identity)]
    if len(keys) != 1:
        return None
    found = cache.read_entry(_entry(keys[0]))
    return None if found is None else (keys[0], *found)


def _fits(path: Path, identity: dict[str, Any]) -> bool:
    description = cache.read_description(path)
    if description is None:
        return False
    versions = {
        library: "" if identity["versions"].get(library) == "" else version
        for library, version in description["identity"]["versions"].items()
    }
    return {**description["identity"], "versions": versions} == identity


def _prepared(data: DataSpec, key: str, description: dict[str, Any], files: dict[str, bytes]) -> Dataset:
    texts = json.loads(files["texts.json"])
    splits = preprocess.splits_of(files["ids.npz"], description["figures"])
    return Dataset(
        data=data,
        key=key,
        source_words=tuple(texts["source_words"]),
        target_words=tuple(texts["target_words"]),
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        test_source_text=tuple(texts["test_source_text"]),
        test_target_text=tuple(texts["test_target_text"]),
        test_target_tokens=tuple(map(tuple, texts["test_target_tokens"])),
        test_target_moses=tuple(map(tuple, texts["test_target_moses"])),
        source_model=files.get("source.model", b""),
        target_model=files.get("target.model", b""),
        digests=description["digests"],
        figures=description["figures"],
    )


# For people -----------------------------------------------------------------------------------------------------------


def describe(prepared: Dataset) -> str:
    """Return a page about the corpus: sizes, vocabularies, unknown words, lengths, repetitions and digests."""
    data, figures = prepared.data, prepared.figures
    lines = [
        f"corpus {data.corpus}, {data.direction}, tokenizer {data.tokenizer}, case {data.case}, "
        f"vocabulary {data.vocabulary}",
        "",
        f"{'':24}{'train':>12}{'validation':>12}{'test':>12}",
    ]

    def row(title: str, name: str, kind: str = ",.0f") -> None:
        values = (figures[name.format(split=split)] for split in preprocess.SPLITS)
        lines.append(f"{title:24}" + "".join(f"{value:>12{kind}}" for value in values))

    row("pairs", "{split}_pairs")
    row("left out (too long)", "{split}_left_out")
    row("sentences cut", "{split}_cut")
    for side in preprocess.SIDES:
        row(f"unknown words, {side}", f"{{split}}_{side}_unknown_rate", ".2%")
    for side in preprocess.SIDES:
        for quantile in preprocess.QUANTILES:
            row(f"{side} length, {quantile} %", f"{{split}}_{side}_length_{quantile}")
    lines += [
        "",
        f"vocabulary               {figures['source_words']:,.0f} source words, {figures['target_words']:,.0f} target "
        "words, the 4 special ones included",
        f"training pairs           {figures['train_duplicate_pairs']:,.0f} of them repeat another",
        f"test pairs in training   {figures['test_pairs_in_train']:,.0f}",
        "lengths                  <sos> and <eos> included",
        "",
        "SHA-256",
    ]
    files = sorted(prepared.digests["files"].items())
    others = sorted((name, digest) for name, digest in prepared.digests.items() if name != "files")
    return "\n".join(lines + [f"{name:24} {digest}" for name, digest in files + others])


def remark(data: DataSpec, figures: dict[str, Any]) -> str:
    """Return a line about a corpus: its training pairs, what is left out or cut, and what it has twice.

    `figures` are a prepared corpus's or a record's sizes.
    """
    pairs = figures["train_pairs"] + figures["train_left_out"]
    cut = figures["validation_cut"] + figures["test_cut"]
    words = [f"{pairs:,.0f} training pairs, {figures['train_duplicate_pairs']:,.0f} of them repeat another"]
    words.append(
        f"{figures['test_pairs_in_train']:,.0f} of {figures['test_pairs']:,.0f} test pairs are in training too"
    )
    if figures["train_left_out"] or cut:
        words.append(
            f"longer than max_length={data.max_length}: {figures['train_left_out']:,.0f} training pairs left out, "
            f"{cut:,.0f} validation and test sentences cut"
        )
    return f"Data: {data.corpus}, {data.direction}: {'; '.join(words)}."
