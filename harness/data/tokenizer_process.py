"""Runs tokenizers in a process of its own: spaCy imports torch, which must not enter a process that trains Keras."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.data import tokenizers


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
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "harness.data.tokenizer_process"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    ) as process:
        try:
            answer, complaint = process.communicate(json.dumps(request).encode())
        except BaseException:
            process.kill()
            raise
    if process.returncode or not answer:
        last = complaint.decode(errors="replace").strip().rpartition("\n")[2]
        raise RuntimeError(f"the process that tokenises ended with status {process.returncode}: {last}")
    found = json.loads(answer)
    if "refused" in found:
        raise ValueError(found["refused"])
    return found["answer"]


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
    """Answer the request on standard input, on standard output: JSON, with nothing a library prints in between."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # spaCy imports torch where it is there, for what a rule tokenizer never does: that takes longer than all else here.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        found = {"answer": _answer(json.loads(sys.stdin.buffer.read()))}
    except ValueError as error:
        found = {"refused": str(error)}
    with answers:
        json.dump(found, answers)


if __name__ == "__main__":
    main()
