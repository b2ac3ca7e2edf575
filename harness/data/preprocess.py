"""Makes a corpus ready: text to tokens to vocabularies to ids, and what determines them, for the cache."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import io
import itertools
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.data import cache, corpora, tokenizer_process, vocabulary
from harness.data.tokenizers import LIBRARIES
from harness.data.vocabulary import Split
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import DataSpec
from impls.contract import UNK, Ids

FORMAT = 4
SENTENCEPIECE = {"vocabulary_size", "seed"}
USED = {
    "moses-bpe": {"merges"},
    "sentencepiece-bpe": SENTENCEPIECE,
    "sentencepiece-unigram": SENTENCEPIECE,
}
"""The settings that tokenizers with subwords use; the others use `minimum_frequency`."""

QUANTILES = (0, 25, 50, 75, 95, 100)
SIDES = ("source", "target")
SPLITS = {"train": "train", "validation": "val", "test": "test"}
Words = list[tuple[str, ...]]
Tokens = list[list[str]]


def identity(data: DataSpec, text: dict[str, str]) -> dict[str, Any]:
    """Return everything that determines the ids: the text, the settings that matter, the libraries' versions.

    `text` are the digests of the corpus, or its signature.
    """
    settings = to_json(data)
    used = USED.get(data.tokenizer, {"minimum_frequency"})
    for name in ("files", *({"minimum_frequency", "vocabulary_size", "merges", "seed"} - used)):
        del settings[name]
    if data.corpus != "multi30k":
        del settings["test_split"]
    return {"format": FORMAT, "text": text, "settings": settings, "versions": _versions(data)}


def _versions(data: DataSpec) -> dict[str, str]:
    """Return the versions of the libraries that cut this corpus; "" where one is not installed."""
    scoring = ("spacy", "sacremoses") if data.has_subwords else ("sacremoses",)
    found = {}
    for library in sorted({*LIBRARIES[data.tokenizer], *scoring}):
        try:
            found[library] = importlib.metadata.version(library)
        except importlib.metadata.PackageNotFoundError:
            found[library] = ""
    return found


def key(identity: dict[str, Any]) -> str:
    """Return the SHA-256 of an identity."""
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()


def job(data: DataSpec, language: str, texts: Sequence[str], model: bytes) -> tokenizer_process.TokenizerJob:
    """Return what cuts lines into the model's tokens."""
    return tokenizer_process.TokenizerJob(
        tokenizer=data.tokenizer,
        language=language,
        case=data.case,
        texts=list(texts),
        model=base64.b64encode(model).decode(),
    )


def score_job(data: DataSpec, texts: Sequence[str]) -> tokenizer_process.TokenizerJob:
    """Return what cuts target lines into the tokens of the tutorials' BLEU: the model's, or spaCy's for subwords."""
    if not data.has_subwords:
        return job(data, data.target_language, texts, b"")
    return tokenizer_process.TokenizerJob(
        tokenizer="spacy", language=data.target_language, case="lower", texts=list(texts), fallback="xx"
    )


def make(data: DataSpec, corpus: corpora.Corpus, identity: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Tokenise a corpus and return the description and the files of its cache entry.

    The vocabulary is that of the first `training_pairs` pairs, also of those that `max_length` leaves out: so it is the
    same for every `max_length`.

    Raises: ValueError as the tokenizers do, or where no training pair is left.
    """
    text = {split: corpus.splits[name] for split, name in SPLITS.items()}
    text["train"] = text["train"][0][: data.training_pairs], text["train"][1][: data.training_pairs]
    models, words = _train(data, text["train"])
    tokens, score, moses = _tokenise(data, text, models)
    words = words or _count(data, tokens["train"])
    ids = {split: [vocabulary.encode(side, words[n]) for n, side in enumerate(tokens[split])] for split in SPLITS}
    splits = {
        "train": vocabulary.leave_out(ids["train"][0], ids["train"][1], data.max_length),
        "validation": vocabulary.cut(ids["validation"][0], ids["validation"][1], data.max_length),
        "test": vocabulary.cut(ids["test"][0], ids["test"][1], data.max_length),
    }
    texts = {
        "source_words": words[0],
        "target_words": words[1],
        "test_source_text": text["test"][0],
        "test_target_text": text["test"][1],
        "test_target_tokens": score,
        "test_target_moses": moses,
    }
    digests = {
        "files": corpus.digests,
        "source_vocabulary": vocabulary.digest_words(words[0]),
        "target_vocabulary": vocabulary.digest_words(words[1]),
        "tokenised": vocabulary.digest_ids(*splits.values()),
    }
    files = {"ids.npz": _arrays(splits), "texts.json": canonical_json(to_json(texts)).encode()}
    for side, model in zip(SIDES, models, strict=True):
        if model:
            files[f"{side}.model"] = model
            digests[f"{side}_model"] = cache.digest(model)
    figures = _sizes(ids, splits, words) | _repetitions(text)
    return {"identity": identity, "digests": digests, "figures": figures}, files


def splits_of(content: bytes, figures: dict[str, float]) -> dict[str, Split]:
    """Return the splits that `make` wrote into "ids.npz".

    Raises: ValueError where its arrays are compressed, so that none is larger than the file.
    """
    found = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
            raise ValueError("ids.npz: expected arrays that are not compressed")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for split in SPLITS:
            source, target = (
                _cut_up(arrays[f"{split}_{side}_ids"], arrays[f"{split}_{side}_lengths"]) for side in SIDES
            )
            left_out, cut = int(figures[f"{split}_left_out"]), int(figures[f"{split}_cut"])
            found[split] = Split(source, target, left_out=left_out, cut=cut)
    return found


def _cut_up(ids: Ids, lengths: npt.NDArray[np.int64]) -> list[Ids]:
    ends = [0, *np.cumsum(lengths).tolist()]
    return [ids[start:end] for start, end in itertools.pairwise(ends)]


def _arrays(splits: dict[str, Split]) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, split in splits.items():
        for side, sentences in zip(SIDES, (split.source, split.target), strict=True):
            arrays[f"{name}_{side}_ids"] = np.concatenate(sentences)
            arrays[f"{name}_{side}_lengths"] = np.array([len(one) for one in sentences], dtype=np.int64)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _train(data: DataSpec, text: Sequence[Sequence[str]]) -> tuple[list[bytes], Words]:
    """Return what the tokenizer learns from each side, if anything, and SentencePiece's pieces."""
    if data.tokenizer == "moses-bpe":
        sides = list(zip((data.source_language, data.target_language), text, strict=True))
        parts = [sides] if data.vocabulary == "joint" else [[side] for side in sides]
        learned = [tokenizer_process.train_bpe(part, merges=data.merges, case=data.case) for part in parts]
        return [learned[0], learned[-1]], []
    if not data.tokenizer.startswith("sentencepiece"):
        return [b"", b""], []
    found = [
        tokenizer_process.train(
            data.tokenizer, part, vocabulary_size=data.vocabulary_size, case=data.case, seed=data.seed
        )
        for part in ([[*text[0], *text[1]]] if data.vocabulary == "joint" else text)
    ]
    source, target = found[0], found[-1]
    return [source[0], target[0]], [tuple(source[1]), tuple(target[1])]


def _tokenise(
    data: DataSpec, text: dict[str, tuple[corpora.Lines, corpora.Lines]], models: Sequence[bytes]
) -> tuple[dict[str, list[Tokens]], Tokens, Tokens]:
    """Return the tokens of both sides of each split, and the references' tokens for both tokenised scores."""
    languages = (data.source_language, data.target_language)
    jobs = [job(data, languages[side], text[split][side], models[side]) for split in SPLITS for side in (0, 1)]
    references = text["test"][1]
    moses = tokenizer_process.TokenizerJob(tokenizer="moses", language=languages[1], case="lower", texts=references)
    *found, score, moses_tokens = tokenizer_process.tokenise([*jobs, score_job(data, references), moses])
    return {split: found[2 * n : 2 * n + 2] for n, split in enumerate(SPLITS)}, score, moses_tokens


def _count(data: DataSpec, tokens: Sequence[Tokens]) -> Words:
    least = 1 if data.has_subwords else data.minimum_frequency
    if data.vocabulary == "joint":
        return [vocabulary.build(*tokens, minimum_frequency=least)] * 2
    return [vocabulary.build(side, minimum_frequency=least) for side in tokens]


def _sizes(ids: dict[str, list[list[Ids]]], splits: dict[str, Split], words: Words) -> dict[str, float]:
    figures: dict[str, float] = {"source_words": len(words[0]), "target_words": len(words[1])}
    for name, split in splits.items():
        figures |= {f"{name}_pairs": len(split), f"{name}_left_out": split.left_out, f"{name}_cut": split.cut}
        for side, sentences in zip(SIDES, ids[name], strict=True):
            everything = np.concatenate(sentences)
            count = max(1, len(everything) - 2 * len(sentences))
            figures[f"{name}_{side}_unknown_rate"] = float((everything == UNK).sum() / count)
            lengths = np.percentile([len(one) for one in sentences], QUANTILES, method="inverted_cdf")
            for quantile, length in zip(QUANTILES, lengths, strict=True):
                figures[f"{name}_{side}_length_{quantile}"] = int(length)
    return figures


def _repetitions(text: dict[str, tuple[corpora.Lines, corpora.Lines]]) -> dict[str, float]:
    pairs = list(zip(*text["train"], strict=True))
    known = set(pairs)
    repeated = sum(pair in known for pair in zip(*text["test"], strict=True))
    return {"train_duplicate_pairs": len(pairs) - len(known), "test_pairs_in_train": repeated}
