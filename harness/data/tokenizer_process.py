"""Tokenizers in a separate process: spaCy imports torch, which must not enter a process that trains Keras models.

Functions that tokenise or train raise ValueError as the tokenizers do, and ProcessFailed if the process fails.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.data import tokenizers
from harness.processes import json_process

MODULE = "harness.data.tokenizer_process"
_shared: json_process.JsonProcess | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerJob:
    """The lines `texts` and the name of a tokenizer; its settings are those of `tokenizers.TextTokenizer`."""

    tokenizer: str
    language: str
    case: str
    texts: Sequence[str]
    model: bytes = b""
    fallback: str = ""


def tokenise(jobs: Sequence[TokenizerJob]) -> list[list[list[str]]]:
    """Return the tokens of each line of each job."""
    encoded = [{**asdict(job), "model": base64.b64encode(job.model).decode()} for job in jobs]
    tokens: list[list[list[str]]] = _request("tokenise", jobs=encoded)
    return tokens


def train_sentencepiece(
    name: str, texts: Sequence[str], *, vocabulary_size: int, case: str, seed: int
) -> tuple[bytes, list[str]]:
    """Train SentencePiece and return the model and its pieces in the order of their ids."""
    settings = {"vocabulary_size": vocabulary_size, "case": case, "seed": seed}
    model, pieces = _request("train_sentencepiece", name=name, texts=list(texts), **settings)
    return base64.b64decode(model), pieces


def train_bpe(sides: Sequence[tuple[str, Sequence[str]]], *, merges: int, case: str) -> bytes:
    """Return the merges of byte-pair encoding learned from texts, given as (language, lines)."""
    return base64.b64decode(_request("train_bpe", sides=list(sides), merges=merges, case=case))


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Send all requests within this context to one process: starting one takes longer than a thousand lines."""
    global _shared
    with json_process.JsonProcess(MODULE, safe_path=True) as _shared:
        try:
            yield
        finally:
            _shared = None


def _request(command: str, **arguments: Any) -> Any:
    global _shared
    try:
        if _shared is not None:
            return _shared.request(command, **arguments)
        return json_process.request_once(MODULE, command, arguments, safe_path=True)
    except json_process.ProcessFailed as error:
        _shared = None  # it may have ended, and later requests can still be answered
        raise json_process.ProcessFailed(f"the tokenizer process failed: {error}") from error


def _tokenise(jobs: Sequence[dict[str, Any]]) -> list[list[list[str]]]:
    tokens = []
    for job in jobs:
        texts = job.pop("texts")
        tokens.append(list(map(_tokenizer(**job).tokenise, texts)))
    return tokens


@functools.lru_cache(maxsize=8)
def _tokenizer(tokenizer: str, language: str, model: str, **settings: str) -> tokenizers.TextTokenizer:
    return tokenizers.tokenizer(tokenizer, language, model=base64.b64decode(model), **settings)


def _train_sentencepiece(name: str, texts: Sequence[str], **settings: Any) -> tuple[str, Sequence[str]]:
    model = tokenizers.train_sentencepiece(name, texts, **settings)
    return base64.b64encode(model).decode(), tokenizers.SentencePieceTokenizer("", model=model).words


def _train_bpe(sides: Sequence[tuple[str, Sequence[str]]], **settings: Any) -> str:
    return base64.b64encode(tokenizers.train_bpe(sides, **settings)).decode()


COMMANDS: dict[str, Callable[..., Any]] = {
    "tokenise": _tokenise,
    "train_sentencepiece": _train_sentencepiece,
    "train_bpe": _train_bpe,
}

if __name__ == "__main__":
    # spaCy imports torch if it is installed. Rule-based tokenizers never use it, and the import takes seconds.
    sys.modules["torch"] = None  # type: ignore[assignment]
    json_process.serve(COMMANDS)
