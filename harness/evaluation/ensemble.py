"""Ensembles: several runs that translate together, with the mean of their next-token probabilities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import reduce
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from harness.evaluation.metrics import TokenScorer
from harness.evaluation.search import Decodable
from harness.experiments.serialization import to_json
from harness.experiments.specs import DecodingSpec, Unknown
from harness.storage.records import RunRecord
from harness.text import brief
from impls.contract import PAD, Batch, Candidates, Decoding, Ids, Numbers

_Reals = npt.NDArray[np.float64]


class Translator(Decodable, TokenScorer, Protocol):
    """The members of `Seq2SeqModel` that translate and score."""


class Ensemble:
    """Models of the same vocabularies as one model.

    Formula: log p(y | ...) = log(1/k * sum of p_m(y | ...) over the k models), computed from the logarithms. Each model
    decodes with its own caches.
    """

    def __init__(self, models: Sequence[Translator], target_vocabulary_size: int) -> None:
        self.models = tuple(models)
        self.target_vocabulary_size = target_vocabulary_size

    def begin_decoding(self, source: Ids) -> Decoding:
        """Encode `source` [B,S] with every model and return their joint `Decoding`."""
        return _JointDecoding([model.begin_decoding(source) for model in self.models], self.target_vocabulary_size)

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the negative logarithm of the mean probability of each target token, [B,T]; 0 at padding."""
        nats = -_log_mean([-model.token_nats(batch).astype(np.float64) for model in self.models])
        return np.where(batch.target_out == PAD, 0, nats).astype(np.float32)


class _JointDecoding:
    """Incremental decoding of a batch by all models of an ensemble."""

    def __init__(self, decodings: Sequence[Decoding], target_vocabulary_size: int) -> None:
        self._decodings = decodings
        self._words = target_vocabulary_size

    def step(self, last: Ids, best: int) -> Candidates:
        joint = _log_mean([self._all_words(decoding.step(last, self._words)) for decoding in self._decodings])
        best = min(best, self._words)
        tokens = np.argpartition(-joint, best - 1, axis=1)[:, :best]
        order = np.argsort(-np.take_along_axis(joint, tokens, axis=1), axis=1, kind="stable")
        tokens = np.take_along_axis(tokens, order, axis=1)
        return Candidates(np.take_along_axis(joint, tokens, axis=1).astype(np.float32), tokens.astype(np.int32))

    def reorder(self, rows: npt.NDArray[np.intp]) -> None:
        for decoding in self._decodings:
            decoding.reorder(rows)

    def _all_words(self, candidates: Candidates) -> _Reals:
        """Return the log-probability of every word, [B,V], in the order of their ids."""
        log_probabilities = np.full((len(candidates.tokens), self._words), -np.inf)
        np.put_along_axis(log_probabilities, candidates.tokens.astype(np.intp), candidates.log_probabilities, axis=1)
        return log_probabilities


def _log_mean(logarithms: Sequence[_Reals]) -> _Reals:
    """Return log(mean(exp(...))) of arrays of the same shape; of equal arrays it is that array up to rounding."""
    mean: _Reals = reduce(np.logaddexp, logarithms) - np.log(len(logarithms))
    return mean


def joint(models: Sequence[Translator], target_vocabulary_size: int) -> Translator:
    """Return one model as it is, and several as an `Ensemble`."""
    return models[0] if len(models) == 1 else Ensemble(models, target_vocabulary_size)


# Runs -----------------------------------------------------------------------------------------------------------------


def check_members(records: Sequence[RunRecord]) -> None:
    """Check that runs can translate together.

    Raises:
        ValueError: A run is there twice, or two runs differ in the framework, the corpus or a vocabulary.
    """
    first, *others = records
    twice = next((run for run, times in Counter(record.id for record in records).items() if times > 1), None)
    if twice is not None:
        raise ValueError(f"run {twice} is given twice; an ensemble needs different runs")
    for other in others:
        for (name, value), differing in zip(_shared(first).items(), _shared(other).values(), strict=True):
            if value != differing:
                raise ValueError(
                    f"runs {first.id} and {other.id} cannot translate together: {name} differs ({brief(value)} and "
                    f"{brief(differing)}); an ensemble needs runs of one corpus, vocabulary and framework"
                )


def _shared(record: RunRecord) -> dict[str, Any]:
    """Return what the runs of an ensemble have in common. The paths of a corpus may differ, its digests may not."""
    spec = record.spec
    data = {f"data.{name}": value for name, value in to_json(spec.data).items() if name != "files"}
    digests = ("files", "source_vocabulary", "target_vocabulary")
    return {
        "framework": spec.framework,
        "backend": spec.backend,
        **data,
        **{f"the SHA-256 of {name}": record.fingerprints.get(name) for name in digests},
    }


def shared_decoding(
    records: Sequence[RunRecord], *, beam: int | None = None, unknown: Unknown | None = None
) -> DecodingSpec:
    """Return how runs translate together: as each of them does alone, unless an argument says otherwise.

    Raises:
        ValueError: The settings of the runs differ.
    """
    changes: dict[str, Any] = {"beam": beam.item() if isinstance(beam, np.integer) else beam, "unknown": unknown}
    changes = {name: value for name, value in changes.items() if value is not None}
    changes["batch_size"] = min(record.spec.decoding.batch_size for record in records)
    first, *others = [replace(record.spec.decoding, **changes) for record in records]
    unused = ("length_penalty", "length_formula") if first.beam == 1 else ()
    for name in (field.name for field in fields(DecodingSpec) if field.name not in unused):
        values = [getattr(decoding, name) for decoding in (first, *others)]
        if any(value != values[0] for value in values):
            option = f": give --{name} (in Python: {name}=...)" if name in ("beam", "unknown") else ""
            raise ValueError(
                f"the runs translate with different settings, decoding.{name}={', '.join(map(str, values))}{option}"
            )
    return first
