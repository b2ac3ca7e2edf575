"""Runs tokenizers in a process of its own: spaCy imports torch, which must not enter a process that trains Keras."""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness.data import tokenizers
from harness.processes import json_process


@dataclass(frozen=True, kw_only=True)
class TokenizerJob:
    """Lines to cut with one tokenizer.

    `model` is what was trained for the tokenizer, in base64. `fallback` is the language whose rules serve where spaCy
    has none for `language`.
    """

    tokenizer: str
    language: str
    case: str
    texts: Sequence[str]
    model: str = ""
    fallback: str = ""


def tokenise(jobs: Sequence[TokenizerJob]) -> list[list[list[str]]]:
    """Return the tokens of each line of each job.

    Raises: ValueError as the tokenizers do; RuntimeError where the process ends without an answer.
    """
    found: list[list[list[str]]] = _in_a_process({"task": "tokenise", "jobs": [asdict(job) for job in jobs]})
    return found


def train(name: str, texts: Sequence[str], *, vocabulary_size: int, case: str, seed: int) -> tuple[bytes, list[str]]:
    """Train SentencePiece and return the model with its pieces in the order of their ids.

    Raises: as `tokenise` does.
    """
    settings = {"name": name, "vocabulary_size": vocabulary_size, "case": case, "seed": seed}
    found = _in_a_process({"task": "train", "settings": settings, "texts": list(texts)})
    return base64.b64decode(found["model"]), found["words"]


def train_bpe(sides: Sequence[tuple[str, Sequence[str]]], *, merges: int, case: str) -> bytes:
    """Learn the merges of byte-pair encoding from texts, given as (language, lines).

    Raises: as `tokenise` does.
    """
    found = _in_a_process({"task": "train_bpe", "settings": {"merges": merges, "case": case}, "sides": list(sides)})
    return base64.b64decode(found)


def _in_a_process(request: dict[str, Any]) -> Any:
    try:
        return json_process.request_once(
            "harness.data.tokenizer_process", "answer", {"request": request}, safe_path=True
        )
    except json_process.ProcessFailed as error:
        raise RuntimeError(f"the process that tokenises: {error}") from error


def _answer(request: dict[str, Any]) -> Any:
    if request["task"] == "train":
        settings = request["settings"]
        model = tokenizers.train_sentencepiece(settings.pop("name"), request["texts"], **settings)
        return {
            "model": base64.b64encode(model).decode(),
            "words": tokenizers.SentencePieceTokenizer(model).words,
        }
    if request["task"] == "train_bpe":
        return base64.b64encode(tokenizers.train_bpe(request["sides"], **request["settings"])).decode()
    return [_tokens(TokenizerJob(**job)) for job in request["jobs"]]


def _tokens(job: TokenizerJob) -> list[list[str]]:
    model = base64.b64decode(job.model)
    tokenizer = tokenizers.tokenizer(job.tokenizer, job.language, case=job.case, model=model, fallback=job.fallback)
    return [tokenizer.tokenise(text) for text in job.texts]


def main() -> None:
    """Answer requests; nothing that a library prints gets into the answers."""
    # spaCy imports torch if it is installed. Rule-based tokenizers never use it, and the import takes longer than them.
    sys.modules["torch"] = None  # type: ignore[assignment]
    json_process.serve({"answer": _answer})


if __name__ == "__main__":
    main()
