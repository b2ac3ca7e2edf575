"""The rule that no run of a table is a copy of another, in its results or its times."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.audit.run_folder import Skipped, StoredRun, skip_unless
from harness.audit.table_rules import ComparedRuns
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from impls.contract import TransformerRecipe

SHARE = 0.01
"""The share of sentences from which equal losses are reported; in real runs no two losses are equal."""

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


@dataclass(frozen=True)
class _Results:
    """The losses of the sentences of a run (NaN if not stored), and a number for each translation."""

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
    runs = [results for stored in comparison.stored if (results := _results(stored)) is not None]
    skip_unless(len(runs) > 1, "fewer than two completed runs")
    for first, second in itertools.combinations(runs, 2):
        same = [*_same_results(first, second), *sorted({name for name, _ in first.evidence & second.evidence})]
        if same and _effective(first.spec) != _effective(second.spec):  # with equal settings they may agree to the bit
            yield f"{first.stored.name} and {second.stored.name} have the same {', '.join(same)}"


def _results(stored: StoredRun) -> _Results | None:
    try:
        texts = [_number("\0".join(hypothesis.tokens)) for hypothesis in stored.hypotheses]
    except (Skipped, ValueError, OSError):
        return None  # another rule reports it
    nats = np.full(len(texts), np.nan)
    with contextlib.suppress(Skipped, ValueError, OSError):
        nats = stored.sentences["nats"] if len(stored.sentences["nats"]) == len(texts) else nats
    return _Results(stored, nats, np.array(texts, np.int64))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


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
    same_losses, same_translations = near >= max(1, SHARE * sentences), not may_agree and equal >= share * compared
    if not same_losses and not same_translations:
        return
    # A short run with another number of threads is nearly the same run, so single equal losses prove nothing.
    only_threads = replace(first.spec, threads=second.spec.threads) == second.spec
    if same_losses and (near == sentences or not only_threads):
        yield f"losses in {near:,} of {sentences:,} sentences"
    if same_translations and (equal == compared or not only_threads):
        yield f"translations of {equal:,} of {compared:,} sentences"


def _effective(spec: RunSpec) -> str:
    """Return the settings that change the trained weights, as text.

    The others: an earlier end may keep the same best epoch, a convolution of width 1 is a linear layer, an absent norm
    has no order, and a GPU ignores threads.
    """
    settings = to_json(spec)
    recipe = settings["recipe"]
    if isinstance(spec.recipe, TransformerRecipe):
        recipe |= {
            "head_width": spec.recipe.key_width,
            "attention_dropout": spec.recipe.attention_rate,
            "activation_dropout": spec.recipe.activation_rate,
            "norm_epsilon": spec.recipe.epsilon,
        }
        recipe |= {"norm_order": None, "norm_epsilon": None} if recipe["norm"] == "none" else {}
        recipe["ffn"] = "linear" if recipe["ffn"] == "conv1d" else recipe["ffn"]
        recipe["norm"] = "layernorm" if recipe["norm"] == "handmade" else recipe["norm"]
        del recipe["name"], recipe["source"]
    for name in ("epochs", "averaged_epochs", "patience"):
        del settings["training"][name]
    for name in ("variant", "decoding", "updates", "cuda_graphs", *["threads"] * spec.device.startswith("cuda")):
        del settings[name]
    return canonical_json(settings)
