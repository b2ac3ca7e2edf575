"""The rule that no run of a table is a copy of another, in its results or its times."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.analysis.fairness import DIGESTS
from harness.audit.run_folder import StoredRun, skip_unless
from harness.audit.sentence_traces import traces
from harness.audit.table_rules import ComparedRuns
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from harness.storage.records import RunRecord
from impls.contract import TransformerRecipe

SHARE, FEWEST_LOSSES = 0.01, 3
"""The share and the number of sentences from which equal losses are reported.

Single losses are equal by chance: 5 in a million pairs on Multi30k, so one table in five of 30 runs with 100 sentences
has such a pair.
"""

NEAR = 1e-6
"""Relative tolerance between equal losses of runs with different seeds."""

ALIKE, ALIKE_MORE = 0.6, 0.3
"""The share of equal translations that is reported: at least 0.6, and at least BLEU / 100 + 0.3.

On Multi30k, runs of up to 36 BLEU share less than 0.35; models that are nearly always right agree with each other.
"""

FEWEST, VARIED = 10, 0.2
"""The number and the share of sentences with translations of their own from which `ALIKE` applies.

A model that has learned little translates many sentences alike, and so do two such models.
"""

NEARLY_RIGHT = 95.0
"""The tutorials' BLEU from which all translations of two runs may be equal."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class _Results:
    """The losses and translations of the sentences of a run, as in `SentenceTraces`."""

    stored: StoredRun
    nats: npt.NDArray[np.float64]
    texts: npt.NDArray[np.int64]

    @property
    def spec(self) -> RunSpec:
        return self.stored.record.spec

    @property
    def bleu(self) -> float:
        return self.stored.record.scores.get("bleu_tutorial") or 0.0

    @functools.cached_property
    def effective(self) -> str:
        return _effective(self.stored.record)

    @functools.cached_property
    def distinct(self) -> npt.NDArray[np.bool_]:
        """Whether no other sentence has the translation of a sentence."""
        _, indices, times = np.unique(self.texts, return_inverse=True, return_counts=True)
        return np.asarray(times[indices] == 1)

    @functools.cached_property
    def evidence(self) -> set[tuple[str, object]]:
        """Values that no two runs share: digests of trained weights, and the seconds of the epochs."""
        record = self.stored.record
        values: list[tuple[str, object]] = [("trained weights", record.fingerprints.get("trained_weights"))]
        digests = (record.fingerprints.get("weights_after") or {}).values()
        values += [("weights during training", digest) for digest in digests]
        values += [("seconds of each epoch", tuple(line.training_seconds for line in record.curve))]
        return {(name, value) for name, value in values if value}


def copies(comparison: ComparedRuns) -> Iterator[str]:
    """No two runs of a table have the same losses, translations, weights or times, whatever their seeds or threads."""
    found = [(stored, traces(stored)) for stored in comparison.stored]
    # Another rule reports missing translations.
    runs = [_Results(stored, traced.nats, traced.texts) for stored, traced in found if traced.texts is not None]
    skip_unless(len(runs) > 1, "fewer than two completed runs")
    for first, second in ((runs[low], runs[high]) for low, high in sorted(_suspects(runs))):
        same = [*_same_results(first, second), *sorted({name for name, _ in first.evidence & second.evidence})]
        if same and first.effective != second.effective:  # with equal settings they may agree to the bit
            yield f"{first.stored.name} and {second.stored.name} have the same {', '.join(same)}"


def _suspects(runs: Sequence[_Results]) -> set[Pair]:
    """Return every pair of runs that may have something in common, by their places; thousands of runs have few.

    The limits are those of `_same_results` or slightly lower. Each run is compared with all later ones at once.
    """
    by_value: dict[object, list[int]] = {}
    by_sentences: dict[int, list[int]] = {}
    for place, run in enumerate(runs):
        by_sentences.setdefault(len(run.texts), []).append(place)
        for value in run.evidence:
            by_value.setdefault(value, []).append(place)
    suspects = {pair for places in by_value.values() for pair in itertools.combinations(places, 2)}
    by_sentences.pop(0, None)
    for sentences, places in by_sentences.items():
        names = ("nats", "texts", "distinct")
        nats, texts, distinct = (np.array([getattr(runs[place], name) for place in places]) for name in names)
        for low in range(len(places) - 1):
            with np.errstate(invalid="ignore"):  # infinite losses
                near = np.abs(nats[low + 1 :] - nats[low]) <= 2 * NEAR * np.abs(nats[low])
            compared = distinct[low + 1 :] & distinct[low]
            equal = compared & (texts[low + 1 :] == texts[low])
            fewest = np.maximum(max(FEWEST, VARIED * sentences), compared.sum(axis=1))
            alike = (near.sum(axis=1) >= _suspicious(sentences)) | (equal.sum(axis=1) >= ALIKE * fewest)
            suspects |= {(places[low], places[low + 1 + index]) for index in np.flatnonzero(alike).tolist()}
    return suspects


def _same_results(first: _Results, second: _Results) -> Iterator[str]:
    """Yield the equal losses and translations of two runs."""
    sentences = len(first.texts)
    if len(second.texts) != sentences or not sentences:
        return
    tolerance = 0.0 if first.spec.seed == second.spec.seed else NEAR
    near = int((np.abs(first.nats - second.nats) <= tolerance * np.abs(first.nats)).sum())
    distinct = first.distinct & second.distinct
    equal, compared = int((first.texts == second.texts)[distinct].sum()), int(distinct.sum())
    share = min(1.0, max(ALIKE, ALIKE_MORE + max(first.bleu, second.bleu) / 100))
    may_agree = compared < max(FEWEST, VARIED * sentences) or max(first.bleu, second.bleu) >= NEARLY_RIGHT
    same_losses, same_translations = near >= _suspicious(sentences), not may_agree and equal >= share * compared
    if not same_losses and not same_translations:
        return
    nearly_one_run = _without_threads_and_epsilon(first.spec) == _without_threads_and_epsilon(second.spec)
    if same_losses and (near == sentences or not nearly_one_run):
        yield f"losses in {near:,} of {sentences:,} sentences"
    if same_translations and (equal == compared or not nearly_one_run):
        yield f"translations of {equal:,} of {compared:,} sentences"


def _without_threads_and_epsilon(spec: RunSpec) -> dict[str, Any]:
    """Return the settings without those that hardly change a short run, so that single equal results prove nothing."""
    settings: dict[str, Any] = to_json(spec)
    recipe = {**(settings["recipe"] or {}), "norm_epsilon": None}  # a builder's run has no recipe
    recipe |= {"norm": "layernorm"} if recipe.get("norm") == "handmade" else {}
    return settings | {"recipe": recipe, "threads": None}


def _suspicious(sentences: int) -> float:
    """Return the number of equal losses of two runs that is reported."""
    return max(min(FEWEST_LOSSES, sentences), SHARE * sentences)


def _effective(record: RunRecord) -> str:
    """Return the settings that change the trained weights, as text.

    The others: an earlier end may keep the same best epoch, a convolution of width 1 is a linear layer, an absent norm
    has no order, only learned positions depend on the maximum length, and a GPU ignores threads. Of the data only the
    vocabularies and ids count: two tokenizers may split a text alike.
    """
    spec, settings = record.spec, to_json(record.spec)
    digests = [record.fingerprints.get(name) for name in DIGESTS]
    settings["data"] = digests if all(digests) else settings["data"]
    recipe = settings["recipe"]
    if isinstance(spec.recipe, TransformerRecipe):
        recipe |= {
            "head_width": spec.recipe.key_width,
            "attention_dropout": spec.recipe.attention_rate,
            "activation_dropout": spec.recipe.activation_rate,
            "norm_epsilon": spec.recipe.epsilon,
        }
        recipe |= {"norm_order": None, "norm_epsilon": None} if recipe["norm"] == "none" else {}
        recipe |= {"max_length": None} if recipe["positions"] != "learned" else {}
        recipe["ffn"] = "linear" if recipe["ffn"] == "conv1d" else recipe["ffn"]
        recipe["norm"] = "layernorm" if recipe["norm"] == "handmade" else recipe["norm"]
        del recipe["name"], recipe["source"]
    for name in ("epochs", "averaged_epochs", "patience"):
        del settings["training"][name]
    for name in ("variant", "decoding", "updates", "cuda_graphs", *["threads"] * spec.device.startswith("cuda")):
        del settings[name]
    return canonical_json(settings)
