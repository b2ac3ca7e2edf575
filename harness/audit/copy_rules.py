"""The rule that no run of a table is a copy of another, in its results or its times."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from harness.audit.run_folder import Skipped, StoredRun
from harness.audit.table_rules import ComparedRuns
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import RunSpec
from impls.contract import TransformerRecipe

SHARE = 0.01
"""The share of sentences whose losses may be the same in two runs; in real ones none is."""

NEAR = 1e-6
"""How near losses must be, as a share, to count as the same where the seeds differ."""

ALIKE, ALIKE_MORE = 0.6, 0.3
"""The share of translations that may be the same in two runs: 0.6, or 0.3 more than their BLEU, as a share of 100.

On Multi30k, runs of up to 36 BLEU share less than 0.35; models that are nearly always right agree with each other.
"""

VARIED = 0.2
"""The share of different translations from which `ALIKE` applies: an untrained model repeats one for all sentences."""

NEARLY_RIGHT = 95.0
"""The tutorials' BLEU from which two runs may have the same translations throughout."""


@dataclass(frozen=True)
class _Run:
    stored: StoredRun
    nats: npt.NDArray[np.float64]
    texts: npt.NDArray[np.int64]

    @property
    def spec(self) -> RunSpec:
        return self.stored.known.spec

    @property
    def bleu(self) -> float:
        return self.stored.known.scores.get("bleu_tutorial") or 0.0

    @property
    def varied(self) -> bool:
        return len(set(self.texts.tolist())) >= VARIED * len(self.texts) and self.bleu < NEARLY_RIGHT


def copies(comparison: ComparedRuns) -> Iterator[str]:
    """No two runs of a table have the same losses, translations, weights or times, whatever their seeds or threads."""
    runs = [run for one in comparison.stored if (run := _run(one)) is not None]
    if len(runs) < 2:
        raise Skipped("fewer than two completed runs")
    effective = [canonical_json(to_json(_effective(run.spec))) for run in runs]
    for first, second in sorted(_suspects(runs)):
        if effective[first] == effective[second]:
            continue  # they differ in nothing that changes the result, so they may agree to the bit
        one, other = runs[first], runs[second]
        same = [*_same_results(one, other), *_same_evidence(one.stored, other.stored)]
        if same:
            yield f"{one.stored.name} and {other.stored.name} have the same {', '.join(same)}"


def _suspects(runs: Sequence[_Run]) -> set[tuple[int, int]]:
    """Return the pairs of runs that share a result or a time; vectorised, because there may be many."""
    found: set[tuple[int, int]] = set()
    for length in {len(run.texts) for run in runs}:
        places = [place for place, run in enumerate(runs) if len(run.texts) == length]
        nats, texts = (np.array([getattr(runs[place], name) for place in places]) for name in ("nats", "texts"))
        for number, place in enumerate(places):
            near = np.abs(nats[number + 1 :] - nats[number]) <= NEAR * np.abs(nats[number])
            alike = (texts[number + 1 :] == texts[number]).mean(axis=1) >= ALIKE
            found |= {(place, places[number + 1 + int(one)]) for one in np.flatnonzero(near.any(axis=1) | alike)}
    seen: dict[object, list[int]] = {}
    for place, run in enumerate(runs):
        for key in _evidence(run.stored):
            seen.setdefault(key, []).append(place)
    for same in seen.values():
        found |= set(itertools.combinations(same, 2))
    return found


def _run(stored: StoredRun) -> _Run | None:
    try:
        texts = [_number("\0".join(one.tokens)) for one in stored.hypotheses]
    except (Skipped, ValueError, OSError):
        return None  # another rule reports it
    nats = np.full(len(texts), np.nan)
    with contextlib.suppress(Skipped, ValueError, OSError):
        nats = stored.sentences["nats"] if len(stored.sentences["nats"]) == len(texts) else nats
    return _Run(stored, nats, np.array(texts, np.int64))


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:8], "big", signed=True)


def _same_results(one: _Run, other: _Run) -> Iterator[str]:
    """Yield which losses and translations of two runs are equal."""
    another_seed = one.spec.seed != other.spec.seed
    only_threads = replace(one.spec, threads=other.spec.threads) == other.spec
    if len(one.nats) == len(other.nats):
        near = np.abs(one.nats - other.nats) <= (NEAR if another_seed else 0.0) * np.abs(one.nats)
        # A short run with another number of threads is nearly the same run, so single equal losses prove nothing.
        least = len(near) if only_threads else max(1, SHARE * len(near))
        if near.sum() >= least:
            yield f"losses in {int(near.sum()):,} of {len(near):,} sentences"
    if len(one.texts) == len(other.texts) and one.varied and other.varied:
        equal = int((one.texts == other.texts).sum())
        share = min(1.0, max(ALIKE, ALIKE_MORE + max(one.bleu, other.bleu) / 100))
        if equal >= (1.0 if only_threads else share) * len(one.texts):
            yield f"translations of {equal:,} of {len(one.texts):,} sentences"


def _same_evidence(one: StoredRun, other: StoredRun) -> Iterator[str]:
    yield from sorted({what for what, _ in _evidence(one) & _evidence(other)})


def _evidence(stored: StoredRun) -> set[tuple[str, object]]:
    """Return evidence that no two runs share: digests of trained weights, and the seconds of the epochs."""
    record = stored.known
    found: set[tuple[str, object]] = {("trained weights", record.fingerprints.get("trained_weights"))}
    found |= {("weights in training", digest) for digest in (record.fingerprints.get("weights_after") or {}).values()}
    found |= {("seconds of each epoch", tuple(line.training_seconds for line in record.curve))}
    return {(what, value) for what, value in found if value}


def _effective(spec: RunSpec) -> RunSpec:
    """Return the settings that change the trained weights.

    The others: an earlier end may keep the same best epoch, a convolution of width 1 is a linear layer, and a GPU
    ignores threads.
    """
    recipe = spec.recipe
    if isinstance(recipe, TransformerRecipe):
        recipe = replace(
            recipe,
            ffn="linear" if recipe.ffn == "conv1d" else recipe.ffn,
            norm="layernorm" if recipe.norm == "handmade" else recipe.norm,
            norm_epsilon=recipe.epsilon if recipe.norm != "none" else None,
            name="",
            source="",
        )
    return replace(
        spec,
        variant="",
        recipe=recipe,
        training=replace(spec.training, epochs=1, averaged_epochs=0),
        decoding=type(spec.decoding)(max_tokens=1),
        updates=None,
        cuda_graphs="off",
        threads=1 if spec.device.startswith("cuda") else spec.threads,
    )
