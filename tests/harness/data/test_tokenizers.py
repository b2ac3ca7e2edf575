"""Tokenizers: their tokens, detokenising, and the separate process that they run in."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.data import tokenizer_process
from harness.data.tokenizer_process import TokenizerJob
from harness.data.tokenizers import (
    TOKENIZERS,
    UNKNOWN_TEXT,
    SentencePieceTokenizer,
    tokenizer,
    train_bpe,
    train_sentencepiece,
)
from harness.experiments import specs
from harness.processes import json_process
from impls.contract import SPECIAL_TOKENS

SENTENCES = (
    "Two boys don't wear t-shirts near the women's black-and-white dog.",
    "Nobody cannot see #8, can he?",
    "A man - tall - sells 3-wheelers for $20 (cheap!).",
    'The sign says "open", doesn\'t it?',
    "They're here, and I'm at the Jones' house.",
    "Er trägt ein T-Shirt.",
)


def cut(name: str, language: str, text: str) -> list[list[str]]:
    return tokenizer_process.tokenise([TokenizerJob(tokenizer=name, language=language, case="lower", texts=[text])])[0]


@functools.cache
def pieces_of(text: str, name: str = "sentencepiece-unigram", size: int = 70) -> bytes:
    return train_sentencepiece(name, text.split("\n"), vocabulary_size=size, case="lower", seed=0)


def merges_of(text: str, count: int = 60, case: str = "lower") -> bytes:
    return train_bpe([("en", text.split("\n"))], merges=count, case=case)


TEXT = "\n".join(
    f"{sentence} {number} of {word}" for number, word in enumerate(["dog", "cat", "bird"]) for sentence in SENTENCES
)


def test_tokenizer_exists_for_every_name_of_the_spec() -> None:
    assert set(TOKENIZERS) == set(get_args(specs.Tokenizer))
    for name in TOKENIZERS:
        model = pieces_of(TEXT, name) if name.startswith("sentencepiece") else merges_of(TEXT)
        tool = tokenizer(name, "en", model=model)
        assert tool.detokenise(["a"]) == "a"


CASES = [
    ("spacy", "en", "A t-shirt don't fit.", "lower", ["a", "t", "-", "shirt", "do", "n't", "fit", "."]),
    ("spacy", "de", "Ein T-Shirt, z.B. rot.", "lower", ["ein", "t-shirt", ",", "z.b.", "rot", "."]),
    ("spacy", "fr", "L'homme s'assoit.", "lower", ["l'", "homme", "s'", "assoit", "."]),
    ("spacy", "de", "Ein Hund", "kept", ["Ein", "Hund"]),
    ("moses", "en", "A t-shirt don't & <b>.", "lower", ["a", "t-shirt", "don", "'t", "&", "<", "b", ">", "."]),
    ("moses", "fr", "L'homme.", "lower", ["l'", "homme", "."]),
    ("moses", "de", "Ein Hund", "kept", ["Ein", "Hund"]),
    ("whitespace", "en", " A  t-shirt. ", "lower", ["a", "t-shirt."]),
    ("whitespace", "de", "Ein Hund", "kept", ["Ein", "Hund"]),
]
OTHERS = [
    ("de", "Der Mann („Opa“) trägt T-Shirts."),
    ("fr", "L'homme s\u2019assoit, n'est-ce pas ?"),
    ("en", "\u201cA dog\u2019s bone,\u201d says Tom. \u201cI don\u2019t want \u2018no\u2019.\u201d"),
]


@pytest.fixture(scope="module")
def tokens_of() -> dict[tuple[str, str, str], list[str]]:
    """Return the tokens of all texts below by (tokenizer, language, text), from one process to save time."""
    texts = [(name, language, text, case) for name, language, text, case, _ in CASES]
    texts += [(name, "en", text, "lower") for name in ("spacy", "moses") for text in SENTENCES]
    texts += [("spacy", language, text, "lower") for language, text in OTHERS]
    jobs = [
        TokenizerJob(tokenizer=name, language=language, case=case, texts=[text]) for name, language, text, case in texts
    ]
    token_lists = tokenizer_process.tokenise(jobs)
    return {text[:3]: tokens for text, (tokens,) in zip(texts, token_lists, strict=True)}


@pytest.mark.parametrize(("name", "language", "text", "case", "tokens"), CASES)
def test_tokenise_returns_the_expected_tokens(
    tokens_of: dict[tuple[str, str, str], list[str]], name: str, language: str, text: str, case: str, tokens: list[str]
) -> None:
    assert tokens_of[name, language, text] == tokens


def test_sentencepiece_without_text_or_with_a_seed_beyond_its_range_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary_size=80"):
        train_sentencepiece("sentencepiece-bpe", [], vocabulary_size=80, case="kept", seed=0)
    with pytest.raises(ValueError, match="^seed=4294967296: expected less than 4,294,967,296 with sentencepiece-bpe$"):
        train_sentencepiece("sentencepiece-bpe", TEXT.split("\n"), vocabulary_size=70, case="kept", seed=2**32)


def test_sentencepiece_learns_from_long_lines_too_and_keeps_the_case() -> None:
    long = " ".join(["cat and dog"] * 500) + " \u272a"
    model = train_sentencepiece("sentencepiece-bpe", [*TEXT.split("\n"), long], vocabulary_size=80, case="kept", seed=0)
    tool = SentencePieceTokenizer("en", "kept", model)
    assert "\u272a" in "".join(tool.words)
    assert "".join(tool.tokenise("The Jones")) == "\u2581The\u2581Jones"


@pytest.mark.parametrize("name", ["spacy", "moses"])
def test_detokenise_restores_the_text(tokens_of: dict[tuple[str, str, str], list[str]], name: str) -> None:
    """A dash is restored as a hyphen, because tokens do not distinguish them and hyphens are far more frequent."""
    for language, text in [("en", text) for text in SENTENCES] + (OTHERS if name == "spacy" else []):
        tokens = tokens_of[name, language, text]
        assert tokenizer(name, language).detokenise(tokens) == text.replace(" - ", "-").lower()


def test_detokenise_any_tokens_loses_no_letter() -> None:
    """Models may output unknown words, single marks or nothing."""
    for tokens in ([], ["-"], ["n't"], ["#"], ["-", "-", "a"], ["<unk>", ".", "<unk>"], [" ", "\u00a0", "a"], ["'"]):
        for name in ("spacy", "moses", "whitespace"):
            text = tokenizer(name, "en").detokenise(tokens)
            expected = "".join("".join(tokens).replace("<unk>", UNKNOWN_TEXT).split())
            assert "".join(text.split()) == expected


def test_detokenise_unknown_piece_matches_sentencepiece() -> None:
    model = pieces_of(TEXT)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    words = SentencePieceTokenizer("en", model=model).words
    for ids in ([5, 0, 6], [0, 0, 7], [8, 9, 0], [0]):
        text = SentencePieceTokenizer("en", model=model).detokenise([words[number] for number in ids])
        assert text == " ".join(processor.decode(ids).split())
        assert text.count(UNKNOWN_TEXT) == ids.count(0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abcdeghinorst-.,'", min_size=1, max_size=9), max_size=9))
def test_detokenise_restores_pieces_and_words_exactly(words: list[str]) -> None:
    text = " ".join(words)
    for tool in (tokenizer("whitespace", "en"), SentencePieceTokenizer("en", model=pieces_of(TEXT))):
        assert tool.detokenise(tool.tokenise(text)) == text


def test_train_bpe_matches_merges_worked_by_hand() -> None:
    """The example of Sennrich, Haddow and Birch 2016, figure 1: the most frequent pair is merged first."""
    text = "\n".join(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3)
    model = merges_of(text, 4)
    assert model.decode().split("\n")[1:] == ["s t</w>", "e st</w>", "l o", "w est</w>", ""]
    assert tokenizer("moses-bpe", "en", model=model).tokenise("Lowest!") == ["lo@@", "west", "!"]
    assert merges_of(text) == merges_of(text, 10_000), "no pair is left that occurs twice"


def test_train_bpe_learns_from_moses_tokens_in_the_given_case() -> None:
    moses = tokenizer("moses", "en")
    for case in ("lower", "kept"):
        model = merges_of(TEXT, 10_000, case)
        assert merges_of(TEXT, 10_000, case) == model
        tool = tokenizer("moses-bpe", "en", case=case, model=model)
        for text in (text for text in SENTENCES if '"' not in text):  # Moses moves punctuation into English quotes
            pieces = tool.tokenise(text)
            words = " ".join(pieces).replace("@@ ", "").split()
            assert [word.lower() for word in words] == moses.tokenise(text)
            comes_back = text.replace(" - ", "-")
            assert tool.detokenise(pieces) == (comes_back.lower() if case == "lower" else comes_back)
    few = tokenizer("moses-bpe", "en", model=merges_of(TEXT, 20))
    assert few.detokenise(few.tokenise(SENTENCES[0])) == SENTENCES[0].lower()
    assert len(few.tokenise(SENTENCES[0])) > len(moses.tokenise(SENTENCES[0])) + 10


def test_detokenise_unknown_piece_is_a_separate_word() -> None:
    tool = tokenizer("moses-bpe", "en", model=merges_of(TEXT))
    assert tool.detokenise(["lo@@", "<unk>", "west", "<unk>", "a@@"]) == f"lo {UNKNOWN_TEXT} west {UNKNOWN_TEXT} a"


def test_train_bpe_joint_merges_keep_the_rules_of_each_language() -> None:
    model = train_bpe([("fr", ["l'homme"] * 3), ("en", ["don't"] * 3)], merges=100, case="lower")
    assert tokenizer("moses-bpe", "fr", model=model).tokenise("L'homme") == ["l'", "homme"]
    assert tokenizer("moses-bpe", "en", model=model).tokenise("Don't") == ["don", "'t"]


def test_moses_bpe_normalises_punctuation() -> None:
    model = merges_of("ab ...\nab ...")
    pieces = tokenizer("moses-bpe", "de", model=model).tokenise("\u201eAB\u201c \u2013 ab\u2026")
    assert pieces == ['"', "ab", '"', "-", "ab", "..."]
    assert tokenizer("moses-bpe", "en", model=model).tokenise('"ab",') == ['"', "ab", ",", '"']


@pytest.mark.parametrize("text", ["a b", "", "ab cd"])
def test_train_bpe_without_repeated_pairs_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^merges=5: no two letters follow each other twice"):
        tokenizer_process.train_bpe([("en", [text])], merges=5, case="lower")


@pytest.mark.parametrize("name", ["sentencepiece-bpe", "sentencepiece-unigram"])
def test_train_sentencepiece_is_deterministic_and_has_the_special_words(name: str) -> None:
    first = pieces_of(TEXT, name)
    assert pieces_of.__wrapped__(TEXT, name) == first
    words = SentencePieceTokenizer("en", model=first).words
    assert words[:4] == SPECIAL_TOKENS
    assert len(words) == len(set(words)) == 70
    assert pieces_of(TEXT + "\nanother line", name) != first
    for text in ("<eos>", "<s> a </s>", "a <pad> <unk>"):
        assert not set(SentencePieceTokenizer("en", model=first).tokenise(text)) & set(SPECIAL_TOKENS)


@pytest.mark.parametrize("name", ["sentencepiece-bpe", "sentencepiece-unigram"])
@pytest.mark.parametrize(("size", "allowed"), [(5000, r"at most \d+"), (9, r"at least \d+")])
def test_train_sentencepiece_impossible_size_is_refused(name: str, size: int, allowed: str) -> None:
    message = rf"^vocabulary_size={size}: expected with {name} and this training text: {allowed}; give --set data.voc"
    with pytest.raises(ValueError, match=message) as caught:
        tokenizer_process.train_sentencepiece(name, TEXT.split("\n"), vocabulary_size=size, case="lower", seed=0)
    bound = int(str(caught.value).rpartition("give --set data.vocabulary_size=")[2])
    assert len(SentencePieceTokenizer("en", model=pieces_of(TEXT, name, bound)).words) == bound


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("spacy", "spacy"),
        ("moses", "sacremoses"),
        ("moses-bpe", "sacremoses"),
        ("moses-bpe", "subword-nmt"),
        ("sentencepiece-bpe", "sentencepiece"),
    ],
)
def test_tokenise_missing_library_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    model = merges_of(TEXT)
    monkeypatch.setitem(sys.modules, library.replace("-", "_"), None)
    for module in [key for key in sys.modules if key.startswith("subword_nmt.") and library == "subword-nmt"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"^{library} is not installed: python -m pip install '\.\[data\]'$"):
        tokenizer(name, "en", model=model).tokenise("a")
    if name == "spacy":
        assert tokenizer(name, "en").detokenise(["a", "."]) == "a."


def test_tokenise_broken_library_is_not_called_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sacremoses.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "sacremoses", raising=False)
    with pytest.raises(ValueError, match="^sacremoses cannot be imported: No module named 'no_such_module'$"):
        tokenizer("moses", "en").tokenise("a")


def test_tokenizer_process_refusal_is_one_line() -> None:
    score = TokenizerJob(tokenizer="spacy", language="tlh", case="lower", texts=["It isn't."], fallback="xx")
    with pytest.raises(ValueError, match="^language='tlh': spaCy has no rules for it here; expected") as caught:
        tokenizer_process.tokenise([score, TokenizerJob(tokenizer="spacy", language="tlh", case="lower", texts=["a"])])
    assert "\n" not in str(caught.value)


def test_one_tokenizer_process_answers_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    start = json_process.start_module
    monkeypatch.setattr(json_process, "start_module", lambda *a, **k: started.append(start(*a, **k)) or started[-1])
    with tokenizer_process.one_process():
        assert cut("whitespace", "en", "a b") == [["a", "b"]]
        assert cut("moses", "en", "don't") == [["don", "'t"]]
        with pytest.raises(ValueError, match="^language='tlh'"):
            cut("spacy", "tlh", "a")
        assert cut("spacy", "de", "ein Hund.") == [["ein", "hund", "."]]
        assert len(started) == 1
        started[0].kill()
        with pytest.raises(RuntimeError, match="the tokenizer process failed: killed by SIGKILL"):
            cut("whitespace", "en", "a")
        assert cut("whitespace", "en", "a") == [["a"]]
    assert cut("whitespace", "en", "a") == [["a"]]
    assert len(started) == 3
    assert all(process.poll() is not None for process in started)
