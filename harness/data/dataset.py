"""Datasets: tokenised corpora with vocabularies and splits, from the cache or newly preprocessed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.data import cache, corpora, preprocess, text_files, tokenizer_process, vocabulary
from harness.data.corpora import Digests
from harness.data.multi30k import DataUnavailable
from harness.data.tokenizers import UNKNOWN_TEXT, tokenizer
from harness.data.vocabulary import Split
from harness.experiments.serialization import json_digest, to_json
from harness.experiments.specs import DataSpec
from harness.storage.records import RunRecord
from harness.text import brief, count, first_few
from impls.contract import UNK, Ids

Tokens = tuple[tuple[str, ...], ...]
PackedCorpus = tuple[dict[str, Any], dict[str, bytes]]
"""The description and the files of a cache entry."""

MOST_UNKNOWN = 10
"""How many unknown words a warning names."""

_LETTER = "\ua66e"
"""A rare letter that replaces `UNKNOWN_TEXT` while Moses tokenises a text."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """The ids that models see, and the test set as text and tokens for scoring.

    Attributes:
        data: The corpus and its settings.
        key: The name of the cache entry.
        source_words, target_words: The vocabularies, special words first; equal if the vocabulary is joint.
        test_target_tokens: The references as the tutorials' BLEU takes them: the model's tokens, or lower-cased spaCy
            tokens if those are subwords.
        test_target_moses: The references as lower-cased Moses tokens.
        source_model, target_model: The trained models of the tokenizers; empty for tokenizers without one.
        digests: SHA-256 of `files` (by name), `source_vocabulary`, `target_vocabulary`, `tokenised` (all ids), and
            `source_model` and `target_model` if they exist.
        figures: Vocabulary sizes; for each split its pairs, left-out pairs and cut sentences; for each side of a split
            the share of unknown words and quantiles of the length, with `<sos>` and `<eos>`, before pairs are left out
            or cut; training pairs that repeat another, and test pairs that are also training pairs.
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

    @property
    def vocabulary_sizes(self) -> tuple[int, int]:
        """The numbers of source and of target words, special words included."""
        return len(self.source_words), len(self.target_words)


@dataclass(frozen=True)
class Encoded:
    """Sentences as tokens and as ids, `<sos>` words `<eos>`; `cut` is the number of those that were too long."""

    tokens: list[list[str]]
    ids: list[Ids]
    cut: int


def prepare(data: DataSpec, digests: Digests | None = None) -> Dataset:
    """Return a dataset from the cache, or preprocess the corpus in a separate process and add it to the cache.

    A corpus that another machine has sent for `data` takes precedence. `digests` are those of `corpora.load`.

    Raises: as `corpora.load`; also ValueError if a setting is wrong or a library is missing.
    """
    packed = cache.read_entry(_handed(data))
    if packed is not None:
        return _dataset(data, json_digest(packed[0]["identity"]), *packed)
    signature = corpora.signature(data)
    corpus = corpora.load(data, digests) if signature is None else None
    identity = preprocess.identity(data, corpus.digests if corpus else signature or {})
    cached = _cached(identity)
    if cached is None:
        entry = preprocess.preprocess(data, corpus or corpora.load(data), identity)
        cached = json_digest(identity), *entry
        cache.write_entry(_entry(cached[0]), *entry)
    return _dataset(data, *cached)


def unavailable(data: DataSpec) -> str | None:
    """Return why `prepare` cannot load a corpus, in one line; None if it can, possibly after a download.

    Raises: ValueError for an unknown direction or test split of Multi30k.
    """
    if data.corpus == "multi30k" and not _is_cached(data):
        try:
            corpora.load(data)
        except DataUnavailable as error:
            return str(error)
    return None


def text_digests(data: DataSpec) -> dict[str, str]:
    """Return the SHA-256 of each of the user's files that `prepare` would use. Raises: ValueError naming a file."""
    packed = cache.read_entry(_handed(data))
    digests: dict[str, str] = corpora.file_digests(data) if packed is None else packed[0]["digests"]["files"]
    return digests


def of_run(record: RunRecord) -> Dataset:
    """Return the dataset of a run, whose record may come from an untrusted source and name any local file.

    Raises: as `prepare`, and ValueError if one of the user's files is not the one that the run was trained on.
    """
    return prepare(record.spec.data, record.fingerprints.get("files") or {})


def of_run_offline(record: RunRecord) -> Dataset | None:
    """Return `of_run(record)`, or None if that would download a file. Raises: as `of_run`."""
    data = record.spec.data
    return of_run(record) if _is_cached(data) or not corpora.needs_download(data) else None


# Corpora for other machines, which then need neither the text nor the same tokenizers ---------------------------------


def pack(prepared: Dataset) -> PackedCorpus:
    """Return a prepared corpus to send. Raises: ValueError if the cache no longer has it."""
    entry = cache.read_entry(_entry(prepared.key))
    if entry is None:
        raise ValueError(
            f"the prepared corpus {prepared.data.corpus} is no longer in the cache folder {cache.folder()}: start again"
        )
    return entry


def unpack(data: DataSpec, packed: PackedCorpus) -> None:
    """Write a packed corpus into the cache, where `prepare` looks for it first. Raises: ValueError."""
    cache.write_entry(_handed(data), *packed)


def _handed(data: DataSpec) -> Path:
    return cache.folder() / "handed" / json_digest(to_json(data))


# Text to tokens, ids and back, for later use --------------------------------------------------------------------------


def encode(prepared: Dataset, sentences: Sequence[str]) -> Encoded:
    """Return source sentences as the model's tokens and ids.

    Raises: ValueError for a word that is too long for tokenizers, and if a library is missing.
    """
    for sentence in sentences:
        text_files.check_words(sentence, f"sentence {brief(sentence)}")
    data = prepared.data
    job = preprocess.job(data, data.source_language, text_files.stripped(sentences), prepared.source_model)
    tokens = tokenizer_process.tokenise([job])[0]
    ids = vocabulary.encode(tokens, prepared.source_words)
    split = vocabulary.cut(ids, [], data.max_length)
    return Encoded(tokens, split.source, split.cut)


def unknown_words(prepared: Dataset, encoded: Encoded) -> str:
    """Return a line that names the source words that are not in the vocabulary; "" for none, or for subwords."""
    if prepared.data.has_subwords:
        return ""
    pairs = (zip(tokens, ids[1:-1], strict=False) for tokens, ids in zip(encoded.tokens, encoded.ids, strict=True))
    words = dict.fromkeys(token for sentence in pairs for token, number in sentence if number == UNK)
    return f"unknown source words: {first_few(list(words), MOST_UNKNOWN)}" if words else ""


def detokenise(prepared: Dataset, token_lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the texts of lists of target tokens, with `UNKNOWN_TEXT` for each `<unk>`.

    Raises: ValueError if sacremoses is missing.
    """
    tool = tokenizer(prepared.data.tokenizer, prepared.data.target_language, case=prepared.data.case)
    return [tool.detokenise(tokens) for tokens in token_lists]


def score_tokens(prepared: Dataset, texts: Sequence[str]) -> list[list[str]]:
    """Return target texts as tokens like `test_target_tokens`. Raises: ValueError if a library is missing."""
    return tokenizer_process.tokenise([preprocess.score_job(prepared.data, texts)])[0]


def moses_tokens(prepared: Dataset, texts: Sequence[str]) -> list[list[str]]:
    """Return target texts as lower-cased Moses tokens. Raises: ValueError if sacremoses is missing.

    Unknown words are treated as words of letters, not as symbols: in English a following "'s" is a separate token.
    """
    tool = tokenizer("moses", prepared.data.target_language)
    token_lists = (tool.tokenise(text.replace(UNKNOWN_TEXT, _LETTER)) for text in texts)
    return [[token.replace(_LETTER, UNKNOWN_TEXT) for token in tokens] for tokens in token_lists]


# The cache ------------------------------------------------------------------------------------------------------------


def _entry(key: str) -> Path:
    return cache.folder() / "prepared" / key


def _is_cached(data: DataSpec) -> bool:
    signature = corpora.signature(data)
    return signature is not None and _cached(preprocess.identity(data, signature)) is not None


def _cached(identity: dict[str, Any]) -> tuple[str, dict[str, Any], dict[str, bytes]] | None:
    """Return the key, description and files of the entry with this identity, or None.

    Versions of libraries that are not installed are not compared, if exactly one entry matches: so a cache can be
    copied to a machine without them.
    """
    keys = [json_digest(identity)]
    if "" in identity["versions"].values():
        keys = [path.name for path in sorted(cache.folder().glob("prepared/[!.]*")) if _matches(path, identity)]
    entry = cache.read_entry(_entry(keys[0])) if len(keys) == 1 else None
    return None if entry is None else (keys[0], *entry)


def _matches(path: Path, identity: dict[str, Any]) -> bool:
    description = cache.read_description(path)
    if description is None:
        return False
    versions = {
        library: "" if identity["versions"].get(library) == "" else version
        for library, version in description["identity"]["versions"].items()
    }
    return {**description["identity"], "versions": versions} == identity


def _dataset(data: DataSpec, key: str, description: dict[str, Any], files: dict[str, bytes]) -> Dataset:
    parts: dict[str, Any] = {**preprocess.splits_of(files["ids.npz"], description["figures"])}
    for name, items in json.loads(files["texts.json"]).items():
        parts[name] = tuple(tuple(item) if isinstance(item, list) else item for item in items)
    return Dataset(
        **parts,
        data=data,
        key=key,
        source_model=files.get("source.model", b""),
        target_model=files.get("target.model", b""),
        digests=description["digests"],
        figures=description["figures"],
    )


# Summaries ------------------------------------------------------------------------------------------------------------


def describe(prepared: Dataset) -> str:
    """Return a page with sizes, vocabularies, unknown words, lengths, repetitions and digests of a dataset."""
    data, figures = prepared.data, prepared.figures
    test_pairs = list(zip(prepared.test_source_text, prepared.test_target_text, strict=True))
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
        "words, including the 4 special words",
        f"training pairs           {figures['train_duplicate_pairs']:,.0f} of them repeat another",
        f"test pairs in training   {figures['test_pairs_in_train']:,.0f}",
        f"test pairs               {len(test_pairs) - len(set(test_pairs)):,} of them repeat another",
        "lengths                  <sos> and <eos> included",
        "",
        "SHA-256",
    ]
    files = sorted(prepared.digests["files"].items())
    digests = files + sorted((name, digest) for name, digest in prepared.digests.items() if name != "files")
    return "\n".join(lines + [f"{name:24} {digest}" for name, digest in digests])


def remark(data: DataSpec, figures: dict[str, Any]) -> str:
    """Return a line about the training pairs, repetitions and overlong sentences of a corpus.

    `figures` are those of a dataset, or the sizes of a record.
    """
    pairs = figures["train_pairs"] + figures["train_left_out"]
    cut = figures["validation_cut"] + figures["test_cut"]
    words = [f"{pairs:,.0f} training pairs, {figures['train_duplicate_pairs']:,.0f} of them repeat another"]
    words.append(
        f"{figures['test_pairs_in_train']:,.0f} of {figures['test_pairs']:,.0f} test pairs are in training too"
    )
    if figures["train_left_out"] or cut:
        words.append(
            f"longer than max_length={data.max_length}: {count(int(figures['train_left_out']), 'training pair')} left "
            f"out, {count(int(cut), 'validation and test sentence')} cut"
        )
    return f"Data: {data.corpus}, {data.direction}: {'; '.join(words)}."
