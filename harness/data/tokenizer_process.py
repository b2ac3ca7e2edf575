"""Tokenizers in a separate process: spaCy imports torch, which must not enter a process that trains Keras models.

All functions raise ValueError as the tokenizers do, and RuntimeError if the process fails.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.data import tokenizers
from harness.processes import json_process


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


def _request(command: str, **arguments: Any) -> Any:
    try:
        return json_process.request_once("harness.data.tokenizer_process", command, arguments, safe_path=True)
    except json_process.ProcessFailed as error:
        raise RuntimeError(f"the tokenizer process failed: {error}") from error


# In the process -------------------------------------------------------------------------------------------------------


def _tokenise(jobs: Sequence[dict[str, Any]]) -> list[list[list[str]]]:
    tokens = []
    for job in jobs:
        model = base64.b64decode(job["model"])
        tokenizer = tokenizers.tokenizer(
            job["tokenizer"], job["language"], case=job["case"], model=model, fallback=job["fallback"]
        )
        tokens.append([tokenizer.tokenise(text) for text in job["texts"]])
    return tokens


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
