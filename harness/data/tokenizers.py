"""Text to tokens and back: spaCy's rules, Moses, byte-pair encoding, SentencePiece, and white space.

Libraries are imported on first use. spaCy imports torch if it is installed, so spaCy's `tokenise` only runs in a
separate process (`harness.data.tokenizer_process`); `detokenise` needs at most sacremoses.
"""

from __future__ import annotations

import functools
import importlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from impls.contract import SPECIAL_TOKENS, UNK

EQUAL_TEXTS = 50_000
"""The detokenised texts in memory: runs have many translations in common, and a check detokenises those of all."""
SPACE_MARK = "\u2581"
BPE_MARK = "@@"
UNKNOWN_TEXT = "\u2047"
"""The character for an unknown word (`<unk>` among tokens) in text, as in SentencePiece's own decoding.

The word `<unk>` would count as three words in sacreBLEU's default tokenisation.
"""

OPENING_QUOTES, CLOSING_QUOTES = "\u2018\u201c", "\u2019\u201d"
"""The curved quotation marks of English, of which sacremoses knows only those of German."""


@dataclass
class TextTokenizer:
    """Splits text into tokens and joins tokens to text. Its methods raise ValueError if a library is missing.

    Attributes:
        case: "lower" to lower-case text, "kept" otherwise.
        model: The trained model, for tokenizers that have one.
        fallback: The language whose rules spaCy uses if it has none for `language`.
        libraries: The libraries that `tokenise` needs.
    """

    libraries: ClassVar[tuple[str, ...]] = ()

    language: str
    case: str = "lower"
    model: bytes = b""
    fallback: str = ""

    def tokenise(self, text: str) -> list[str]:
        """Return the tokens of a line."""
        raise NotImplementedError

    def detokenise(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens, as far as they determine it, with `UNKNOWN_TEXT` for `<unk>`."""
        return _detokenise(tuple(tokens), self.language)


class SpacyTokenizer(TextTokenizer):
    """The rules of spaCy's blank pipeline, which needs no model; tokens are lower-cased afterwards.

    Source: the tutorials' `[token.text for token in spacy_en.tokenizer(text)]`, torchtext's `Field(lower=True)`.
    """

    libraries = ("spacy",)

    @cached_property
    def _tokenizer(self) -> Any:
        spacy = _import("spacy")
        try:
            return spacy.blank(self.language).tokenizer
        except ImportError as error:
            if self.fallback:
                return spacy.blank(self.fallback).tokenizer
            raise ValueError(
                f"language={self.language!r}: spaCy has no rules for it here; expected a language of spaCy, such as "
                "de, en, fr, or another tokenizer"
            ) from error

    def tokenise(self, text: str) -> list[str]:
        return [_cased(token.text, self.case) for token in self._tokenizer(text)]


class MosesTokenizer(TextTokenizer):
    """The Moses tokenizer without XML escapes; text is lower-cased first, so no rule depends on the case."""

    libraries: ClassVar[tuple[str, ...]] = ("sacremoses",)

    @cached_property
    def _tokenizer(self) -> Any:
        return _import("sacremoses").MosesTokenizer(lang=self.language)

    def tokenise(self, text: str) -> list[str]:
        return list(self._tokenizer.tokenize(_cased(text, self.case), escape=False))


class MosesBpeTokenizer(MosesTokenizer):
    """Moses tokens with normalised punctuation, split by learned merges; all pieces but a token's last end in "@@".

    Source: Sennrich, Haddow and Birch 2016, section 3.2, by subword-nmt.
    """

    libraries = ("sacremoses", "subword-nmt")

    @cached_property
    def _normaliser(self) -> Any:
        return _import("sacremoses").MosesPunctNormalizer(lang=self.language)

    @cached_property
    def _merges(self) -> Any:
        return _import("subword_nmt.apply_bpe").BPE(io.StringIO(self.model.decode()), separator=BPE_MARK)

    def moses_tokens(self, text: str) -> list[str]:
        """Return the tokens before they are split by merges."""
        return super().tokenise(self._normaliser.normalize(text))

    def tokenise(self, text: str) -> list[str]:
        return list(self._merges.segment_tokens(self.moses_tokens(text)))

    def detokenise(self, tokens: Sequence[str]) -> str:
        text = " ".join(_with_unknown_text(tokens)).replace(f"{BPE_MARK} {UNKNOWN_TEXT}", f" {UNKNOWN_TEXT}")
        return super().detokenise(text.replace(f"{BPE_MARK} ", "").removesuffix(BPE_MARK).split())


class SentencePieceTokenizer(TextTokenizer):
    """The pieces of a trained SentencePiece model; text is lower-cased first."""

    libraries = ("sentencepiece",)

    @cached_property
    def _tokenizer(self) -> Any:
        return _import("sentencepiece").SentencePieceProcessor(model_proto=self.model)

    @property
    def words(self) -> tuple[str, ...]:
        """All pieces in the order of their ids, special words first."""
        return tuple(self._tokenizer.id_to_piece(number) for number in range(self._tokenizer.get_piece_size()))

    def tokenise(self, text: str) -> list[str]:
        return list(self._tokenizer.encode(_cased(text, self.case), out_type=str))

    def detokenise(self, tokens: Sequence[str]) -> str:
        text = "".join(f" {token} " if token == UNKNOWN_TEXT else token for token in _with_unknown_text(tokens))
        return re.sub(" +", " ", text.replace(SPACE_MARK, " ")).strip()


class WhitespaceTokenizer(TextTokenizer):
    """The words between white space."""

    def tokenise(self, text: str) -> list[str]:
        return _cased(text, self.case).split()

    def detokenise(self, tokens: Sequence[str]) -> str:
        return " ".join(_with_unknown_text(tokens))


TOKENIZERS: dict[str, type[TextTokenizer]] = {
    "spacy": SpacyTokenizer,
    "moses": MosesTokenizer,
    "moses-bpe": MosesBpeTokenizer,
    "sentencepiece-bpe": SentencePieceTokenizer,
    "sentencepiece-unigram": SentencePieceTokenizer,
    "whitespace": WhitespaceTokenizer,
}
"""The tokenizers by their names in `DataSpec`."""


def tokenizer(name: str, language: str, **settings: Any) -> TextTokenizer:
    """Return the tokenizer `name` of a language; `settings` are further attributes of `TextTokenizer`."""
    return TOKENIZERS[name](language, **settings)


SENTENCEPIECE_BYTES = 4192
"""SentencePiece's default of `max_sentence_length`, which leaves longer sentences out of the training text."""


def train_sentencepiece(name: str, texts: Iterable[str], *, vocabulary_size: int, case: str, seed: int) -> bytes:
    """Return a SentencePiece model of `texts` with the special words as ids 0 to 3.

    It is trained by one thread on all lines, so the same text and settings give the same bytes.

    Raises: ValueError if the text does not permit a vocabulary of this size, or for a seed that is too large.
    """
    if seed >= 2**32:  # SentencePiece's seed has 32 bits
        raise ValueError(f"seed={seed}: expected less than {2**32:,} with {name}")
    sentencepiece = _import("sentencepiece")
    sentencepiece.set_random_generator_seed(seed)
    model = io.BytesIO()
    special = {f"{key}_piece": word for key, word in zip(("unk", "pad", "bos", "eos"), SPECIAL_TOKENS, strict=True)}
    numbers = {"unk_id": 0, "pad_id": 1, "bos_id": 2, "eos_id": 3}
    lines = [_cased(text, case) for text in texts]
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=name.removeprefix("sentencepiece-"),
            vocab_size=vocabulary_size,
            character_coverage=1.0,
            max_sentence_length=max([SENTENCEPIECE_BYTES, *(len(line.encode()) for line in lines)]),
            normalization_rule_name="identity",
            num_threads=1,
            minloglevel=2,
            **special,
            **numbers,
        )
    except (RuntimeError, OSError) as error:
        bound = re.search(r"<= (\d+)", str(error)) or re.search(
            r"smaller than required_chars\. \d+ vs (\d+)", str(error)
        )
        word = "at most" if bound and bound[0].startswith("<=") else "at least"
        allowed = f"{word} {bound[1]}; give --set data.vocabulary_size={bound[1]}" if bound else ""
        allowed = allowed or " ".join(str(error).split())[-120:]
        raise ValueError(
            f"vocabulary_size={vocabulary_size}: expected with {name} and this training text: {allowed}"
        ) from error
    return model.getvalue()


def train_bpe(sides: Iterable[tuple[str, Iterable[str]]], *, merges: int, case: str) -> bytes:
    """Return merges of byte-pair encoding, learned from texts given as (language, lines), in subword-nmt's format.

    Learning ends before `merges` merges if no pair of symbols occurs twice. The same text gives the same bytes: of
    equally frequent pairs the alphabetically last is merged first.

    Raises: ValueError if no pair of letters occurs twice in the text.
    """
    learning = _import("subword_nmt.learn_bpe")
    lines = []
    for language, texts in sides:
        tool = MosesBpeTokenizer(language, case)
        lines += [" ".join(tool.moses_tokens(text)) for text in texts]
    model = io.StringIO()
    if any(len(word) > 1 for line in lines for word in line.split()):  # else subword-nmt fails
        learning.learn_bpe(lines, model, merges)
    if model.getvalue().count("\n") < 2:  # the first line is the format's version
        raise ValueError(f"merges={merges}: no two letters follow each other twice in the training text; use more text")
    return model.getvalue().encode()


def _cased(text: str, case: str) -> str:
    return text.lower() if case == "lower" else text


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        module = library.partition(".")[0]
        package = module.replace("_", "-")
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").partition(".")[0] != module:
            raise ValueError(f"{package} cannot be imported: {error}") from error
        raise ValueError(f"{package} is not installed: python -m pip install '.[data]'") from error


@functools.lru_cache(maxsize=EQUAL_TEXTS)
def _detokenise(tokens: tuple[str, ...], language: str) -> str:
    """Return the text of Moses or spaCy tokens.

    spaCy also splits "t-shirt" at its hyphen, "est-ce" before its hyphen, "don't" before "n't" and "#8" after "#".
    """
    words = [token for token in _with_unknown_text(tokens) if token.strip()]
    joined: list[str] = []
    for token, after in zip(words, [*words[1:], ""], strict=False):
        before = joined[-1] if joined else ""
        if token == "-" and before[-1:].isalnum() and after[:1].isalnum():
            joined.append("@-@")
        elif before and _belong_together(before, token, language):
            joined[-1] += token
        else:
            joined.append(token)
    text = str(_moses_detokenizer(language).detokenize(joined, unescape=False))
    return re.sub(f" (?=[{CLOSING_QUOTES}])", "", text) if language == "en" else text


@functools.cache
def _moses_detokenizer(language: str) -> Any:
    return _import("sacremoses").MosesDetokenizer(lang=language)


def _with_unknown_text(tokens: Sequence[str]) -> list[str]:
    """Return tokens with `UNKNOWN_TEXT` for `<unk>`."""
    return [UNKNOWN_TEXT if token == SPECIAL_TOKENS[UNK] else token for token in tokens]


def _belong_together(before: str, token: str, language: str) -> bool:
    if language == "en" and (token in ("n't", "n\u2019t") or (before, token) == ("can", "not")):
        return True
    if language == "en" and not before.strip(OPENING_QUOTES):
        return True
    if language == "fr" and (token == "\u2019" or before.endswith("\u2019")):
        return True
    if token[:1] == "-" and token[1:2].isalpha():
        return language == "fr" or before[-1:] == "\u201c"
    return before == "#" and token[:1].isdigit()
