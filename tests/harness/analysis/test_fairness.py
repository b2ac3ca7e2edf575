"""Runs are only compared if they agree in everything except what the table compares."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from record_factory import SIGNATURES, broken, record, runs, with_digests

from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups
from harness.experiments.specs import Budget
from harness.reporting import bench_report, render_text
from harness.storage.records import RunRecord
from impls.recipes import RECIPES


def mismatches(records: Sequence[RunRecord], budget: Budget = "controlled") -> list[str]:
    return [str(mismatch) for mismatch in find_mismatches(records, budget)]


def spec_change(**changes: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda run: replace(run, spec=replace(run.spec, **changes), id=run.id + "-changed")


def part_change(part: str, **changes: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda run: spec_change(**{part: replace(getattr(run.spec, part), **changes)})(run)


data_change, training_change = partial(part_change, "data"), partial(part_change, "training")


def digest_change(**changes: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda run: with_digests(run, **changes)


def tensor_change(digest: str) -> Callable[[RunRecord], RunRecord]:
    return lambda run: with_digests(run, weights={**run.fingerprints["weights"], "encoder.0.self.query.kernel": digest})


def file_change(**files: str) -> Callable[[RunRecord], RunRecord]:
    return lambda run: with_digests(run, files={"train.de": run.fingerprints["files"]["train.de"], **files})


DIFFERENCES: dict[str, tuple[Callable[[RunRecord], RunRecord], str]] = {
    "a data file": (file_change(**{"train.en": "0" * 64}), "train.en"),
    "a missing file": (file_change(), "train.en"),
    "source words": (digest_change(source_vocabulary="1" * 64), "source vocabulary"),
    "target words": (digest_change(target_vocabulary="1" * 64), "target vocabulary"),
    "ids": (digest_change(tokenised="1" * 64), "tokenised"),
    "the stream": (digest_change(stream="1" * 64), "stream of batches, seed 1"),
    "no stream": (digest_change(stream=None), "stream of batches, seed 1: .*missing"),
    "a tensor": (tensor_change("256x256:" + "0" * 64), "initial weights, seed 1: encoder.0.self.query.kernel"),
    "no tensors": (digest_change(weights={}), "initial weights, seed 1: missing"),
    "a signature": (
        lambda run: replace(run, signatures={**run.signatures, "bleu_sacre": "tok:intl"}),
        "signature of bleu_sacre",
    ),
    "no signature": (lambda run: replace(run, signatures={}), "signature of chrf"),
    "updates": (lambda run: replace(run, curve=run.curve[:-1]), "updates: 2270 in .*2043"),
    "the test split": (data_change(test_split="test_2017_flickr"), "data.test_split"),
    "the tokenizer": (data_change(tokenizer="moses"), "data.tokenizer"),
    "the rate": (training_change(peak_rate=1e-3), "training.peak_rate"),
    "smoothing": (training_change(label_smoothing=0.1), "training.label_smoothing"),
    "the update limit": (spec_change(updates=200), "update limit"),
    "the seed": (spec_change(seed=7), "seeds"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_is_named_and_the_runs_are_not_compared(name: str) -> None:
    change, expected = DIFFERENCES[name]
    records = runs("learned_positions", "sinusoidal_handmade", "paper")
    changed = [*records[:-1], change(records[-1])]
    lines = mismatches(changed)
    assert any(re.search(expected, line) for line in lines), lines
    if len(groups(changed)) == 1 and name != "the seed":  # these are compared at their common seeds
        output = render_text.document(bench_report.document(changed))
        assert "not comparable" in output
        assert "training tokens/s" not in output


def test_a_single_difference_gives_a_single_line() -> None:
    records = runs(*RECIPES)
    assert mismatches(records) == []
    lines = mismatches([*records[:-1], with_digests(records[-1], source_vocabulary="1" * 64)])
    assert len(lines) == 1
    assert "torch_reference" in lines[0]


def test_tensors_of_other_shapes_and_other_draws_are_not_compared() -> None:
    records = runs("learned_positions", "sinusoidal_handmade")
    assert mismatches([*records[:-1], tensor_change("128x256:" + "0" * 64)(records[-1])]) == []
    names = [run.fingerprints["weights"]["source.embedding"] for run in records]
    assert names[0] != names[2], "a normal and a Xavier embedding differ by design"


def test_position_vectors_with_other_initialisers_are_not_compared() -> None:
    recipe: Any = RECIPES["learned_positions"]
    own = with_digests(record("learned_positions"), weights={"source.positions": "100x256:" + "a" * 64})
    other = record("learned_positions", recipe=replace(recipe, embedding_init="normal"))
    other = with_digests(other, weights={"source.positions": "100x256:" + "b" * 64})
    assert mismatches([own, other]) == []
    assert recipe.embedding_init != "normal"


def test_teacher_forcing_matters_to_recurrent_decoders_only() -> None:
    records = runs("learned_positions", "paper")
    assert mismatches([*records[:2], *map(training_change(teacher_forcing=0.5), records[2:])]) == []


def test_runs_that_did_not_complete_are_checked_as_far_as_they_got() -> None:
    records = runs()
    assert mismatches([*records[:-1], replace(broken(records[-1]), fingerprints={})]) == []
    assert mismatches([*records[:-1], with_digests(broken(records[-1]), tokenised="1" * 64)]) != []


def test_many_tensors_are_one_line() -> None:
    names = {f"encoder.{layer}.self.query.kernel": "256x256:" + "a" * 64 for layer in range(30)}
    records = [with_digests(run, weights=names) for run in runs("learned_positions", "paper", seeds=1)]
    changed = {name: digest.replace("a", "b") for name, digest in names.items()}
    lines = mismatches([records[0], with_digests(records[1], weights=changed)])
    assert len(lines) == 1
    assert "and 22 more" in lines[0]


@pytest.mark.parametrize(("digest", "expected"), [("a", []), ("c", ["batches of epoch 1, seed 0"])])
def test_runs_that_stop_early_agree_in_the_batches_of_their_first_epoch(digest: str, expected: list[str]) -> None:
    first, second = map(training_change(patience=2), runs("learned_positions", "paper", seeds=1))
    first = with_digests(first, batches={"227": "a" * 64, "2270": "b" * 64}, stream="b" * 64)
    second = with_digests(second, batches={"227": digest * 64, "908": "d" * 64}, stream="d" * 64)
    lines = mismatches([first, replace(second, curve=second.curve[:4])])
    assert [line.partition(":")[0] for line in lines] == expected


@pytest.mark.parametrize(("budget", "expected"), [("source", 0), ("controlled", len(SIGNATURES))])
def test_only_source_budgets_may_differ_in_whether_translations_have_unknown_words(
    budget: Budget, expected: int
) -> None:
    first, second = runs("learned_positions", "paper", seeds=1, budget=budget)
    records = [
        replace(run, signatures={name: f"{item}|unk:{unknown}" for name, item in run.signatures.items()})
        for run, unknown in ((first, "never"), (second, "allowed"))
    ]
    assert len(mismatches(records, budget)) == expected


@pytest.mark.parametrize("budget", ["tuned", "pilot"])
def test_tuned_runs_and_pilots_may_differ_in_the_learning_rate_alone(budget: Budget) -> None:
    first, second = runs("learned_positions", "paper", seeds=1, budget=budget)
    assert mismatches([first, training_change(peak_rate=1e-3)(second)], budget) == []
    assert mismatches([first, training_change(label_smoothing=0.1)(second)], budget) != []


@pytest.mark.parametrize(
    "change", [{"direction": "en-de"}, {"test_split": "test_2017_flickr"}, {"training_pairs": 1_000}], ids=str
)
def test_source_budgets_agree_in_direction_test_set_and_training_pairs(change: dict[str, Any]) -> None:
    first, second = runs("learned_positions", "paper", seeds=1, budget="source")
    (line,) = mismatches([first, data_change(**change)(second)], "source")
    assert line.startswith(f"data.{next(iter(change))}: ")


def test_source_budgets_may_differ_in_training_but_not_in_data_or_signatures() -> None:
    records = runs(*RECIPES, seeds=1, budget="source")
    assert mismatches(records, "source") == []
    assert mismatches(records) == [], "the check of controlled runs leaves them alone"
    assert mismatches([*records[:-1], with_digests(records[-1], files={"train.de": "0" * 64})], "source")
    assert mismatches([*records[:-1], replace(records[-1], signatures={"bleu_sacre": "tok:intl"})], "source")
    subwords = replace(records[-1], signatures={**records[-1].signatures, "bleu_tutorial": "tok:subwords"})
    assert mismatches([*records[:-1], with_digests(subwords, target_vocabulary="1" * 64)], "source") == []


@pytest.mark.parametrize("budget", ["controlled", "source"])
def test_seeds_of_two_versions_of_a_module_are_not_one_variant(budget: Budget) -> None:
    built = [with_digests(run, builder="a" * 64) for run in runs("mine:build", "other:build", seeds=3, budget=budget)]
    assert mismatches(built, budget) == []
    others = [with_digests(built[2], builder="b" * 64), with_digests(built[3], builder="c" * 64)]
    changed = [*built[:2], *others, *built[4:]]
    lines = [line for line in mismatches(changed, budget) if line.startswith("module of ")]
    assert lines == [
        "module of mine:build: aaaaaaaaaaaa… in seeds 0, 1; bbbbbbbbbbbb… in seed 2",
        "module of other:build: cccccccccccc… in seed 0; aaaaaaaaaaaa… in seeds 1, 2",
    ]
    assert mismatches([*built[:-1], with_digests(broken(built[-1]), builder="b" * 64)], budget) == []
