"""What rules on several runs compare: numbers for the test sentences of a run, a tenth of the size of its files."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.audit.run_folder import Skipped, StoredRun
from harness.evaluation.metrics import SMOOTHING

UNREADABLE_FILE = (Skipped, ValueError, OSError)
"""Why a file cannot be used here; other rules report it."""


@dataclass(frozen=True)
class SentenceTraces:
    """The traces of the test sentences of a run.

    Attributes:
        texts: A number for each translation, which equal translations share; None without readable translations.
        nats: The loss of each sentence; NaN without readable statistics.
        counts: Digests of the numbers of target tokens, and of reference tokens by score; empty without statistics.
    """

    texts: npt.NDArray[np.int64] | None
    nats: npt.NDArray[np.float64]
    counts: dict[str, bytes]


def traces(stored: StoredRun) -> SentenceTraces:
    """Return the traces of a run, which are computed once; its files are read unless they are in memory."""
    return stored.context.cached(("traces", stored.folder), lambda: _traces(stored))


def _traces(stored: StoredRun) -> SentenceTraces:
    texts, nats, counts = None, np.empty(0), {}
    with contextlib.suppress(*UNREADABLE_FILE):
        encoded = ("\0".join(line.tokens).encode("utf-8", "surrogatepass") for line in stored.hypotheses)
        texts = np.frombuffer(b"".join(_digest(text)[:8] for text in encoded), np.int64)
    with contextlib.suppress(*UNREADABLE_FILE):
        sentences = stored.sentences
        nats = np.array(sentences["nats"])
        counts["target tokens of the test sentences"] = _digest(sentences["tokens"].tobytes())
        for name in SMOOTHING:
            if name in sentences and sentences[name].shape[1] > 1:
                counts[f"reference tokens of {name}"] = _digest(sentences[name][:, 1].tobytes())
    if texts is not None and len(nats) != len(texts):
        nats = np.full(len(texts), np.nan)
    return SentenceTraces(texts, nats, counts)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
