"""Datasets: vocabularies as in torchtext, subwords, and no spaCy in the process that trains."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import imported
from consumed_batches import expected_batches
from small_corpora import TRAIN, same, small

from harness.data import cache, corpora, tokenizer_process, vocabulary
from harness.data.dataset import describe, detokenise, encode, prepare
from harness.data.tokenizers import tokenizer
from harness.experiments.specs import DataSpec
from impls.contract import EOS, SOS, SPECIAL_TOKENS, UNK, Training

WORDS = DataSpec(corpus="captions", tokenizer="whitespace")


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.usefixtures("one_process")
def test_prepare_matches_a_corpus_worked_by_hand(tmp_path: Path) -> None:
    data = prepare(small(tmp_path))
    assert data.source_words == (*SPECIAL_TOKENS, "ein", "hund")
    assert data.target_words == (*SPECIAL_TOKENS, "a", "dog")
    assert [ids.tolist() for ids in data.train.source] == [
        [2, 4, 5, 0, 3],
        [2, 4, 5, 3],
        [2, 4, 0, 5, 0, 0, 3],
        [2, 4, 5, 3],
    ]
    assert [ids.tolist() for ids in data.test.target] == [[2, 4, 5, 3], [2, 4, 0, 0, 3]]
    assert data.test.source[1].tolist() == [SOS, UNK, 5, UNK, EOS], "a word of the text never becomes a special word"
    assert all(ids.dtype == np.int32 for ids in (*data.train.source, *data.validation.target))
    assert data.test_source_text == ("Ein Hund", "<eos> Hund <unk>")
    assert data.test_target_text == ("A dog", "A <pad> dog's")
    assert data.test_target_tokens == (("a", "dog"), ("a", "<pad>", "dog's"))
    assert data.test_target_moses == (("a", "dog"), ("a", "<", "pad", ">", "dog", "'s"))
    figures = data.figures
    assert (figures["train_pairs"], figures["validation_pairs"], figures["test_pairs"]) == (4, 1, 2)
    assert (figures["source_words"], figures["target_words"]) == (6, 6)
    assert figures["train_source_unknown_rate"] == 4 / 12
    assert figures["validation_target_unknown_rate"] == 3 / 4
    assert [figures[f"train_source_length_{q}"] for q in (0, 50, 100)] == [4, 4, 7]
    assert (figures["train_duplicate_pairs"], figures["test_pairs_in_train"]) == (1, 1)
    assert sorted(data.digests["files"]) == ["test_source", "train_source", "validation_source"]


@pytest.mark.usefixtures("one_process")
def test_encode_overlong_word_is_refused(tmp_path: Path) -> None:
    message = r"sentence '\.{78}…: 1,001 characters without a space; expected at most 1,000"
    with pytest.raises(ValueError, match=message):
        encode(prepare(small(tmp_path)), ["Ein Hund", "." * 1_001])


@pytest.mark.usefixtures("one_process")
def test_prepare_follows_the_settings(tmp_path: Path) -> None:
    data = small(tmp_path)
    first_two = prepare(replace(data, training_pairs=2))
    assert len(first_two.train) == 2
    assert first_two.target_words == (*SPECIAL_TOKENS, "a", "dog")
    with pytest.raises(ValueError, match=r"training_pairs=1000: the corpus has \d training pairs$"):
        prepare(replace(data, training_pairs=1_000))
    every_word = prepare(replace(data, minimum_frequency=1))
    assert every_word.target_words[4:] == ("a", "dog", "red", "runs", "sleeps", "today")
    assert prepare(replace(data, case="kept")).source_words[4:] == ("Ein", "Hund")
    joint = prepare(replace(data, vocabulary="joint"))
    assert joint.source_words == joint.target_words == (*SPECIAL_TOKENS, "a", "dog", "ein", "hund")
    assert joint.train.target[1].tolist() == [2, 4, 5, 3]


@pytest.mark.usefixtures("one_process")
def test_prepare_leaves_out_long_training_pairs_and_cuts_others(tmp_path: Path) -> None:
    data = prepare(small(tmp_path, max_length=5))
    assert [len(ids) for ids in data.train.source] == [5, 4, 4]
    assert (data.train.left_out, data.train.cut) == (1, 0)
    assert data.validation.cut == 2
    assert data.validation.source[0].tolist() == [SOS, 4, UNK, UNK, EOS]
    assert (data.validation.left_out, data.test.cut) == (0, 0)
    assert data.figures["train_left_out"] == 1
    assert data.figures["train_source_length_100"] == 7, "lengths are those of the corpus"
    assert data.source_words == prepare(small(tmp_path)).source_words
    with pytest.raises(ValueError, match="max_length=3: no training pair is that short; expected at least 4"):
        prepare(small(tmp_path, max_length=3))


def torchtext_words(sentences: list[list[str]], minimum_frequency: int = 2) -> list[str]:
    """Return the vocabulary that torchtext builds from tokenised sentences."""
    data = pytest.importorskip("torchtext.data", reason="needs torchtext 0.6.0")
    field = data.Field(tokenize=lambda text: text, init_token="<sos>", eos_token="<eos>", lower=True)
    columns = [("text", field)]
    dataset = data.Dataset([data.Example.fromlist([sentence], columns) for sentence in sentences], columns)
    field.build_vocab(dataset, min_freq=minimum_frequency)
    words: list[str] = field.vocab.itos
    return words


def test_vocabularies_match_torchtexts() -> None:
    pairs = corpora.load(WORDS).splits["train"]
    for side in pairs:
        sentences = [[*text.split(), "<eos>", "Zwei\u00a0Wörter", "\u2028"] for text in side[:1500]]
        lower = [[word.lower() for word in sentence] for sentence in sentences]
        for least in (1, 2, 7):
            assert list(vocabulary.build(lower, minimum_frequency=least)) == torchtext_words(sentences, least)


def test_spacy_end_to_end_is_not_imported(tmp_path: Path) -> None:
    """Prepare, encode, tokenise and detokenise in a new process, and list its imports."""
    small(
        tmp_path, train=TRAIN.replace("runs", "doesn't run"), test="Ein Hund läuft\tA dog doesn't run in a t-shirt.\n"
    )
    code = """
import sys
from harness.data import batches
from harness.data.dataset import describe, detokenise, encode, moses_tokens, prepare, score_tokens
from harness.experiments.specs import DataSpec, FileSpec
names = FileSpec(**{f"{n}_source": f"{sys.argv[1]}/{n}.tsv" for n in ("train", "validation", "test")})
data = DataSpec(corpus="files", files=names, max_length=6)
for _ in range(2):
    found = prepare(data)
assert found.test_target_tokens == (("a", "dog", "does", "n't", "run", "in", "a", "t", "-", "shirt", "."),)
assert detokenise(found, found.test_target_tokens) == ["a dog doesn't run in a t-shirt."]
coded = encode(found, ["  Ein Hund!\\n", "", "ein ein ein ein ein"])
assert coded.tokens == [["ein", "hund", "!"], [], ["ein"] * 5], coded
assert [ids.tolist() for ids in coded.ids] == [[2, 4, 5, 0, 3], [2, 3], [2, 4, 4, 4, 4, 3]], coded
assert coded.cut == 1
assert tuple(map(tuple, score_tokens(found, found.test_target_text))) == found.test_target_tokens
assert tuple(map(tuple, moses_tokens(found, found.test_target_text))) == found.test_target_moses
assert "5,893" not in describe(found)
"""
    assert not imported(code, str(tmp_path)) & {"spacy", "torch", "sentencepiece", "requests", "torchtext"}


SUBWORDS: dict[str, dict[str, Any]] = {
    "sentencepiece-bpe": {"vocabulary_size": 33},
    "moses-bpe": {"merges": 9},
}


@pytest.mark.parametrize("shared", ["separate", "joint"])
@pytest.mark.parametrize("name", SUBWORDS)
def test_subwords_end_to_end(tmp_path: Path, name: Any, shared: Any) -> None:
    """Models and vocabularies depend on the training split only; pieces that occur once are words too."""
    settings = {"tokenizer": name, "vocabulary": shared, **SUBWORDS[name]}
    data = small(tmp_path, test="Ein Hund \u2026\tA dog's.\n", **settings)
    prepared = prepare(data)
    assert prepared.source_words[:4] == prepared.target_words[:4] == SPECIAL_TOKENS
    assert (prepared.source_words == prepared.target_words) == (shared == "joint")
    assert (prepared.source_model == prepared.target_model) == (shared == "joint")
    assert prepared.digests["source_model"] == cache.digest(prepared.source_model)
    texts = [text.lower() for text in corpora.load(data).splits["train"][1]]
    tokens = [[prepared.target_words[number] for number in ids[1:-1]] for ids in prepared.train.target]
    assert detokenise(prepared, tokens) == texts
    assert prepared.test_target_tokens == (("a", "dog", "'s", "."),), "the tutorials' BLEU uses spaCy's tokens"
    assert encode(prepared, ["Ein Hund \u2026"]).ids[0].tolist() == prepared.test.source[0].tolist()
    if name == "moses-bpe":
        assert prepared.source_model.decode().startswith("#version: 0.2\nu n\nun d</w>\n")
        assert prepared.figures["test_source_unknown_rate"] > 0, "training has no full stop in German"
    else:
        assert len(prepared.source_words) == len(prepared.target_words) == 33
    assert prepared.figures["train_source_unknown_rate"] == prepared.figures["train_target_unknown_rate"] == 0
    assert same(prepare(data), prepared)
    retested = prepare(small(tmp_path, test="Ein Hund\tzzz zzz\n", **settings))
    assert (retested.source_model, retested.target_words) == (prepared.source_model, prepared.target_words)


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(
    ("size", "shared", "message"),
    [
        (33, "separate", "target: vocabulary_size=33: .* at most 7;"),
        (12, "separate", "source: vocabulary_size=12: .* at least 17;"),
        (12, "joint", "source and target: vocabulary_size=12: .* at least 18;"),
    ],
)
def test_sentencepiece_impossible_size_names_the_side(tmp_path: Path, size: int, shared: Any, message: str) -> None:
    settings: dict[str, Any] = {"vocabulary": shared, "vocabulary_size": size}
    with pytest.raises(ValueError, match=f"^{message}"):
        prepare(small(tmp_path, train="Ein roter Hund läuft\ta a\n" * 4, tokenizer="sentencepiece-bpe", **settings))


@pytest.mark.usefixtures("one_process")
def test_describe_shows_the_figures(tmp_path: Path) -> None:
    data = prepare(small(tmp_path, max_length=5))
    page = describe(data)
    assert describe(prepare(data.data)) == page, "from the cache as when it was made"
    for text in ("corpus files, de-en, tokenizer whitespace", "6 source words", "33.33%", data.digests["tokenised"]):
        assert text in page
    rows = {line[:24].strip(): line[24:].split() for line in page.splitlines()}
    assert rows["pairs"] == ["3", "1", "2"]
    assert rows["left out (too long)"] == ["1", "0", "0"]
    assert rows["sentences cut"] == ["0", "2", "0"]
    assert rows["source length, 100 %"] == ["7", "6", "5"]
    assert rows["training pairs"][:1] == ["1"]
    assert rows["train_source"] == [data.digests["files"]["train_source"]]


def test_multi30k_with_spacy_matches_the_tutorials(multi30k_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabularies are the tutorials', batches have little padding, and detokenising restores the text."""
    monkeypatch.setenv("MULTI30K_DIR", str(multi30k_folder))
    data = DataSpec()
    cut: list[list[list[str]]] = []
    tokenise = tokenizer_process.tokenise

    def listen(jobs: list[tokenizer_process.TokenizerJob]) -> list[list[list[str]]]:
        cut[:] = tokenise(jobs)
        return cut

    monkeypatch.setattr(tokenizer_process, "tokenise", listen)
    prepared = prepare(data)
    assert [len(prepared.source_words), len(prepared.target_words)] == [7_853, 5_893]
    assert [len(prepared.train), len(prepared.validation), len(prepared.test)] == [29_000, 1_014, 1_000]
    assert list(prepared.source_words) == torchtext_words(cut[0])
    assert list(prepared.target_words) == torchtext_words(cut[1])
    tool = tokenizer("spacy", "en")
    lines = corpora.load(data).splits["train"][1]
    back = sum(
        tool.detokenise(tokens) == " ".join(line.lower().split()) for tokens, line in zip(cut[1], lines, strict=True)
    )
    assert back / len(lines) > 0.998
    for batching, most in (("length", (0.07, 0.045)), ("random", (0.55, 0.55))):
        shares = expected_batches(
            prepared.train, Training(batching=batching, batch_size=128), seed=0, updates=[227]
        ).statistics()
        assert shares["source_padding_rate"] < most[0]
        assert shares["target_padding_rate"] < most[1]
