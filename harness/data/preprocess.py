"""Preprocessing: text to tokens, vocabularies, ids and statistics, and the identity of the result in the cache."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.data import cache, corpora, tokenizer_process, vocabulary
from harness.data.text_files import Lines
from harness.data.tokenizer_process import TokenizerJob
from harness.data.tokenizers import TOKENIZERS
from harness.data.vocabulary import Split
from harness.experiments.serialization import canonical_json, json_digest, to_json
from harness.experiments.specs import DataSpec
from harness.processes import machine
from impls.contract import UNK, Ids

FORMAT = 4
VOCABULARY_SETTINGS = {
    "moses-bpe": {"merges"},
    "sentencepiece-bpe": {"vocabulary_size", "seed"},
    "sentencepiece-unigram": {"vocabulary_size", "seed"},
}
"""The settings that tokenizers with subwords use; all others use `minimum_frequency`."""

QUANTILES = (0, 25, 50, 75, 95, 100)
SIDES = ("source", "target")
SPLITS = {"train": "train", "validation": "val", "test": "test"}
Words = list[tuple[str, ...]]
Tokens = list[list[str]]


def identity(data: DataSpec, text: dict[str, str]) -> dict[str, Any]:
    """Return everything that determines the ids: the text, the relevant settings and the versions of libraries.

    `text` has the digests of the corpus, or its signature.
    """
    settings = to_json(data)
    used = VOCABULARY_SETTINGS.get(data.tokenizer, {"minimum_frequency"})
    for name in ("files", *({"minimum_frequency", "vocabulary_size", "merges", "seed"} - used)):
        del settings[name]
    if data.corpus != "multi30k":
        del settings["test_split"]
    return {"format": FORMAT, "text": text, "settings": settings, "versions": _versions(data)}


def _versions(data: DataSpec) -> dict[str, str]:
    """Return the versions of the libraries that tokenise a corpus; "" for those that are not installed."""
    scoring = ("spacy", "sacremoses") if data.has_subwords else ("sacremoses",)
    libraries = sorted({*TOKENIZERS[data.tokenizer].libraries, *scoring})
    return dict.fromkeys(libraries, "") | machine.versions(libraries)


def check_libraries(data: DataSpec) -> None:
    """Raise ValueError if a library that tokenises the corpus or scores translations is missing.

    Called before training, so that none ends without scores.
    """
    for library, version in _versions(data).items():
        if not version:
            raise ValueError(f"{library} is not installed: python -m pip install '.[data]'")


def job(data: DataSpec, language: str, texts: Sequence[str], model: bytes) -> TokenizerJob:
    """Return the job that cuts lines into the model's tokens."""
    return TokenizerJob(tokenizer=data.tokenizer, language=language, case=data.case, texts=list(texts), model=model)


def score_job(data: DataSpec, texts: Sequence[str]) -> TokenizerJob:
    """Return the job that cuts target lines into the tokens of the tutorials' BLEU: the model's, or spaCy's words."""
    if not data.has_subwords:
        return job(data, data.target_language, texts, b"")
    return TokenizerJob(
        tokenizer="spacy", language=data.target_language, case="lower", texts=list(texts), fallback="xx"
    )


def preprocess(
    data: DataSpec, corpus: corpora.Corpus, identity: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Tokenise a corpus, build its vocabularies, and return the description and the files of its cache entry.

    The vocabularies are those of the first `training_pairs` pairs, including pairs that `max_length` leaves out, so
    they are the same for every `max_length`.

    Raises: ValueError if a tokenizer fails, no training pair is short enough, or the corpus has too few.
    """
    text = {split: corpus.splits[name] for split, name in SPLITS.items()}
    if data.training_pairs is not None and data.training_pairs > (pairs := len(text["train"][0])):
        raise ValueError(f"data.training_pairs={data.training_pairs}: the corpus has {pairs:,} training pairs")
    text["train"] = text["train"][0][: data.training_pairs], text["train"][1][: data.training_pairs]
    models, words = _train(data, text["train"])
    tokens, score, moses = _tokenise(data, text, models)
    words = words or _count(data, tokens["train"])
    ids = {split: list(map(vocabulary.encode, tokens[split], words)) for split in SPLITS}
    splits = {
        split: (vocabulary.leave_out if split == "train" else vocabulary.cut)(source, target, data.max_length)
        for split, (source, target) in ids.items()
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
        "source_vocabulary": json_digest(words[0]),
        "target_vocabulary": json_digest(words[1]),
        "tokenised": vocabulary.digest_ids(*splits.values()),
    }
    files = {"ids.npz": _arrays(splits), "texts.json": canonical_json(to_json(texts)).encode()}
    for side, model in zip(SIDES, models, strict=True):
        if model:
            files[f"{side}.model"] = model
            digests[f"{side}_model"] = cache.digest(model)
    figures = _sizes(ids, splits, words) | count_repetitions(text)
    return {"identity": identity, "digests": digests, "figures": figures}, files


def splits_of(content: bytes, figures: dict[str, float]) -> dict[str, Split]:
    """Return the splits of the file "ids.npz".

    Raises: ValueError if its arrays are compressed, so that none can be larger than the file.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("ids.npz: expected arrays that are not compressed")
    splits = {}
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for split in SPLITS:
            source, target = (
                np.split(arrays[f"{split}_{side}_ids"], np.cumsum(arrays[f"{split}_{side}_lengths"])[:-1])
                for side in SIDES
            )
            left_out, cut = int(figures[f"{split}_left_out"]), int(figures[f"{split}_cut"])
            splits[split] = Split(source, target, left_out=left_out, cut=cut)
    return splits


def _arrays(splits: dict[str, Split]) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {}
    for name, split in splits.items():
        for side, sentences in zip(SIDES, (split.source, split.target), strict=True):
            arrays[f"{name}_{side}_ids"] = np.concatenate(sentences)
            arrays[f"{name}_{side}_lengths"] = np.array(list(map(len, sentences)), dtype=np.int64)
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _train(data: DataSpec, text: Sequence[Sequence[str]]) -> tuple[list[bytes], Words]:
    """Return the trained model of each side, empty for tokenizers without one, and SentencePiece's pieces."""
    is_joint = data.vocabulary == "joint"
    if data.tokenizer == "moses-bpe":
        sides = list(zip((data.source_language, data.target_language), text, strict=True))
        parts = [sides] if is_joint else [[side] for side in sides]
        merges = [tokenizer_process.train_bpe(part, merges=data.merges, case=data.case) for part in parts]
        return [merges[0], merges[-1]], []
    if not data.tokenizer.startswith("sentencepiece"):
        return [b"", b""], []
    named = [("source and target", [*text[0], *text[1]])] if is_joint else list(zip(SIDES, text, strict=True))
    trained = []
    for name, part in named:
        try:
            trained.append(
                tokenizer_process.train_sentencepiece(
                    data.tokenizer, part, vocabulary_size=data.vocabulary_size, case=data.case, seed=data.seed
                )
            )
        except ValueError as error:  # the source may need more pieces than the target permits
            raise ValueError(f"{name}: {error}") from error
    (source, source_pieces), (target, target_pieces) = trained[0], trained[-1]
    return [source, target], [tuple(source_pieces), tuple(target_pieces)]


def _tokenise(
    data: DataSpec, text: dict[str, tuple[Lines, Lines]], models: Sequence[bytes]
) -> tuple[dict[str, list[Tokens]], Tokens, Tokens]:
    """Return the tokens of both sides of each split, and the references' tokens for both tokenised scores."""
    languages = (data.source_language, data.target_language)
    jobs = [job(data, languages[side], text[split][side], models[side]) for split in SPLITS for side in (0, 1)]
    references = text["test"][1]
    moses = TokenizerJob(tokenizer="moses", language=languages[1], case="lower", texts=references)
    *sides, score, moses_tokens = tokenizer_process.tokenise([*jobs, score_job(data, references), moses])
    return {split: sides[2 * n : 2 * n + 2] for n, split in enumerate(SPLITS)}, score, moses_tokens


def _count(data: DataSpec, tokens: Sequence[Tokens]) -> Words:
    minimum = 1 if data.has_subwords else data.minimum_frequency
    if data.vocabulary == "joint":
        return [vocabulary.build(*tokens, minimum_frequency=minimum)] * 2
    return [vocabulary.build(side, minimum_frequency=minimum) for side in tokens]


def _sizes(ids: dict[str, list[list[Ids]]], splits: dict[str, Split], words: Words) -> dict[str, float]:
    figures: dict[str, float] = {"source_words": len(words[0]), "target_words": len(words[1])}
    for name, split in splits.items():
        figures |= {f"{name}_pairs": len(split), f"{name}_left_out": split.left_out, f"{name}_cut": split.cut}
        for side, sentences in zip(SIDES, ids[name], strict=True):
            all_ids = np.concatenate(sentences)
            count = max(1, len(all_ids) - 2 * len(sentences))
            figures[f"{name}_{side}_unknown_rate"] = float((all_ids == UNK).sum() / count)
            lengths = np.percentile(list(map(len, sentences)), QUANTILES, method="inverted_cdf")
            for quantile, length in zip(QUANTILES, lengths, strict=True):
                figures[f"{name}_{side}_length_{quantile}"] = int(length)
    return figures


def count_repetitions(text: dict[str, tuple[Lines, Lines]]) -> dict[str, float]:
    """Return the number of training pairs that repeat another, and of test pairs that are also training pairs."""
    pairs = list(zip(*text["train"], strict=True))
    distinct = set(pairs)
    repeated = sum(pair in distinct for pair in zip(*text["test"], strict=True))
    return {"train_duplicate_pairs": len(pairs) - len(distinct), "test_pairs_in_train": repeated}
