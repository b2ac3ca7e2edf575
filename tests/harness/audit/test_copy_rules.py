"""The rule against copies reports equal results, but not those of settings that amount to the same."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_factory import record
from record_folders import folder_spec
from small_runs import TINY

from harness.audit.copy_rules import _Results, _same_results, _suspects
from harness.audit.run_folder import AuditContext, StoredRun
from harness.experiments.specs import DecodingSpec, RunSpec
from impls.contract import Training, TransformerRecipe

pytestmark = pytest.mark.usefixtures("cache")

RECIPE = folder_spec("learned_positions", 0).recipe


def results(spec: RunSpec, texts: list[int], nats: list[float] | None = None, bleu: float = 20.0) -> _Results:
    """Return the results of a run: a number for each translation, and the losses of the sentences."""
    run = replace(
        record(spec.variant), spec=spec, id=spec.id, scores={"bleu_tutorial": bleu}, fingerprints={}, curve=()
    )
    stored = StoredRun(Path("results"), spec.id, AuditContext(), parsed=run)
    losses = [math.nan] * len(texts) if nats is None else nats
    return _Results(stored, np.array(losses), np.array(texts))


def equal_parts(
    equal: int, sentences: int, *, bleu: tuple[float, float] = (20.0, 20.0), noise: float = 0.0, **changes: Any
) -> tuple[list[str], list[str]]:
    """Return what is reported of two runs with so many equal losses, and with so many equal translations.

    Args:
        bleu: The BLEU of either run.
        noise: The relative difference of the equal losses.
        changes: The settings in which the second run differs; a seed if there are none.
    """
    first = folder_spec("learned_positions", 0)
    second = replace(first, **(changes or {"seed": 1}))
    texts, losses = list(range(sentences)), [1.0 + number for number in range(sentences)]
    other_texts = texts[:equal] + [-1 - number for number in range(equal, sentences)]
    other_losses = [loss * (1 + noise) for loss in losses[:equal]] + [loss + 0.5 for loss in losses[equal:]]
    of_losses = results(first, [0] * sentences, losses), results(second, [1] * sentences, other_losses)
    of_texts = results(first, texts, bleu=bleu[0]), results(second, other_texts, bleu=bleu[1])
    return list(_same_results(*of_losses)), list(_same_results(*of_texts))


@pytest.mark.parametrize(
    ("equal", "sentences", "changes", "reported"),
    [
        (9, 1_000, {}, False),
        (10, 1_000, {}, True),
        (10, 1_000, {"noise": 0.9e-6}, True),
        (10, 1_000, {"noise": 1.1e-6}, False),
        (10, 1_000, {"precision": "bfloat16"}, True),
        (10, 1_000, {"precision": "bfloat16", "noise": 1e-9}, False),  # of one seed, computed in another way
        (999, 1_000, {"threads": 2}, False),
        (1_000, 1_000, {"threads": 2}, True),
        (999, 1_000, {"recipe": replace(RECIPE, norm="handmade")}, False),  # with another epsilon
        (999, 1_000, {"recipe": replace(RECIPE, norm_epsilon=1e-3)}, False),
        (1_000, 1_000, {"recipe": replace(RECIPE, norm="handmade")}, True),
        (10, 1_000, {"recipe": replace(RECIPE, norm="rms")}, True),
        (10, 1_000, {"recipe": None, "variant": "mine:build"}, True),
        (2, 40, {}, False),
        (3, 40, {}, True),
    ],
)
def test_copies_losses_are_reported_from_their_share(
    equal: int, sentences: int, changes: dict[str, Any], reported: bool
) -> None:
    assert equal_parts(equal, sentences, **changes)[0] == [f"losses in {equal:,} of {sentences:,} sentences"] * reported


@pytest.mark.parametrize(
    ("equal", "changes", "reported"),
    [
        (59, {}, False),
        (60, {}, True),
        (69, {"bleu": (40.0, 10.0)}, False),
        (70, {"bleu": (10.0, 40.0)}, True),
        (100, {"bleu": (94.9, 10.0)}, True),
        (100, {"bleu": (10.0, 95.0)}, False),
        (99, {"threads": 2}, False),
        (100, {"threads": 2}, True),
        (99, {"recipe": replace(RECIPE, norm="handmade")}, False),
        (100, {"recipe": replace(RECIPE, norm="handmade")}, True),
        (60, {"recipe": replace(RECIPE, norm="rms")}, True),
    ],
)
def test_copies_translations_are_reported_from_a_share_that_grows_with_bleu(
    equal: int, changes: dict[str, Any], reported: bool
) -> None:
    assert equal_parts(equal, 100, **changes)[1] == [f"translations of {equal} of 100 sentences"] * reported


def effective(spec: RunSpec, fingerprints: Mapping[str, Any] | None = None) -> str:
    run = results(spec, [])
    stored = replace(run.stored, parsed=replace(run.stored.record, fingerprints=fingerprints or {}))
    return replace(run, stored=stored).effective


NO_NORM = replace(TINY, norm="none")


@pytest.mark.parametrize(
    ("recipe", "changes", "same"),
    [
        (TINY, {"decoding": DecodingSpec(beam=5)}, True),
        (TINY, {"updates": 100}, True),
        (TINY, {"training": Training(epochs=7)}, True),
        (TINY, {"training": Training(averaged_epochs=2)}, True),
        (TINY, {"training": Training(patience=3)}, True),
        (TINY, {"training": Training(batch_size=64)}, False),
        (TINY, {"threads": 2}, False),
        (TINY, {"seed": 1}, False),
        (TINY, {"framework": "keras"}, False),
        (TINY, {"precision": "bfloat16"}, False),
        (TINY, {"norm_order": "pre"}, False),
        (TINY, {"max_length": 300}, False),
        (replace(TINY, positions="sinusoidal"), {"max_length": 300}, True),
        (NO_NORM, {"norm_order": "pre"}, True),
        (NO_NORM, {"norm_epsilon": 1e-3}, True),
        (TINY, {"attention_dropout": 0.5}, False),
        (TINY, {"attention_dropout": TINY.dropout}, True),
        (TINY, {"activation_dropout": TINY.dropout}, True),
        (TINY, {"head_width": TINY.width // TINY.heads}, True),
    ],
)
def test_effective_settings_are_those_that_change_the_trained_weights(
    recipe: TransformerRecipe, changes: dict[str, Any], same: bool
) -> None:
    base = replace(folder_spec("learned_positions", 0), training=Training(), recipe=recipe)
    of_recipe = {name: value for name, value in changes.items() if hasattr(recipe, name)}
    of_spec = {name: value for name, value in changes.items() if name not in of_recipe}
    changed = replace(base, **of_spec, recipe=replace(recipe, **of_recipe))
    assert (effective(base) == effective(changed)) is same


@pytest.mark.parametrize(("changed", "same"), [(None, True), ("tokenised", False), ("target_vocabulary", False)])
def test_effective_settings_of_two_tokenizers_are_equal_if_their_ids_are(changed: str | None, same: bool) -> None:
    spec = folder_spec("learned_positions", 0)
    other = replace(spec, data=replace(spec.data, tokenizer="spacy"))
    digests = {"source_vocabulary": "a", "target_vocabulary": "b", "tokenised": "c"}
    assert spec.data != other.data
    assert (effective(spec, digests) == effective(other, digests | ({changed: "d"} if changed else {}))) is same
    assert effective(spec) != effective(other), "without digests nothing says that the ids are equal"


@pytest.mark.parametrize(
    ("distinct", "sentences", "reported"), [(19, 100, False), (20, 100, True), (9, 9, False), (10, 10, True)]
)
def test_copies_translations_that_one_run_repeats_are_not_compared(
    distinct: int, sentences: int, reported: bool
) -> None:
    first, second = folder_spec("learned_positions", 0), folder_spec("learned_positions", 1)
    texts = list(range(sentences))
    runs = results(first, texts), results(second, texts[:distinct] + [-1] * (sentences - distinct))
    assert list(_same_results(*runs)) == [f"translations of {distinct} of {distinct} sentences"] * reported


@pytest.mark.parametrize("seed", range(10))
def test_suspects_include_every_pair_with_equal_results(seed: int) -> None:
    """Three runs share a part of their results with three others; single losses are equal by chance."""
    random, sentences = np.random.default_rng(seed), 40
    texts = np.arange(6 * sentences).reshape(6, sentences)
    nats = (1.0 + random.integers(40, size=(6, sentences))) * (1 + random.uniform(0, 0.9e-6, (6, sentences)))
    for low in range(3):
        copied = random.random(sentences) < random.uniform(0.5, 0.9)
        texts[low, copied], nats[low, copied] = texts[low + 3, copied], nats[low + 3, copied]
    texts[random.random(texts.shape) < random.uniform(0, 0.5)] = -1  # one translation of many sentences
    runs = [
        results(folder_spec("learned_positions", number), texts[number].tolist(), nats[number].tolist(), bleu=0.0)
        for number in range(6)
    ]
    if seed % 2:
        runs = [replace(run, nats=np.full(sentences, math.nan)) for run in runs]
    pairs = itertools.combinations(range(len(runs)), 2)
    equal = {(low, high) for low, high in pairs if list(_same_results(runs[low], runs[high]))}
    assert equal <= _suspects(runs)
    assert len(equal) < 15, "not all pairs"
    unlike = [
        replace(run, texts=run.texts + number / 10, nats=run.nats + 0.137 * number) for number, run in enumerate(runs)
    ]
    assert _suspects(unlike) == set(), "so that few of the pairs of many runs are compared"


@pytest.mark.filterwarnings("error")
def test_suspects_with_infinite_losses_are_found_without_warnings() -> None:
    losses = [math.inf, *map(float, range(1, 40))]
    runs = [results(folder_spec("learned_positions", seed), list(range(40)), losses) for seed in range(2)]
    assert _suspects(runs) == {(0, 1)}
