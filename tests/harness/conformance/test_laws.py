"""The laws hold for every variant and every word of every recipe; and each law notices the fault it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from faults import FAULTS, SEARCHES, planted
from realistic_faults import LATE_SEARCHES, REALISTIC
from small_models import (
    BASE,
    GRU,
    MAX_LENGTH,
    PLAIN,
    REFERENCE,
    SOURCE_VOCABULARY_SIZE,
    TARGET_VOCABULARY_SIZE,
    all_recipes,
    one_thread,
    subject,
)
from update_faults import UPDATES

import impls
from harness.conformance import evaluation_laws, law_runner, models_under_test, training_laws
from harness.conformance.assertions import LawViolated
from harness.conformance.law_runner import LawResult, check, check_subject, for_variant
from impls import registry
from impls.contract import PAD, Recipe, Seq2SeqModel, Training

RECIPES = all_recipes()
OUTSIDE_RECIPE = replace(BASE, positions="rotary")
NOT_A_VARIANT = 3
FAMILIES = {"transformer": BASE, "gru": GRU, "torch_reference": REFERENCE, "plain": PLAIN}
THOROUGH = ("learned_positions", "bahdanau_gru")
"""Variants whose laws are tested at full size by default."""

LATE = (*REALISTIC, *((14, fault) for fault in UPDATES))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def outside_builder(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    seed: int,
    device: str,
    precision: str,
    dropout: float | None = None,
) -> Seq2SeqModel:
    """Be a builder from outside, with a dropout of its own."""
    settings = {"training": training, "seed": seed, "device": device, "precision": precision}
    rate = 0.05 if dropout is None else dropout
    return impls.build(replace(BASE, dropout=rate), source_vocabulary_size, target_vocabulary_size, **settings)


def builder_with_its_own_dropout(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    seed: int,
    device: str,
    precision: str,
) -> Seq2SeqModel:
    return outside_builder(
        source_vocabulary_size,
        target_vocabulary_size,
        training=training,
        seed=seed,
        device=device,
        precision=precision,
        dropout=0.05,
    )


def builder_without_dropout(
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    seed: int,
    device: str,
    precision: str,
) -> Seq2SeqModel:
    return outside_builder(
        source_vocabulary_size,
        target_vocabulary_size,
        training=training,
        seed=seed,
        device=device,
        precision=precision,
        dropout=0.0,
    )


def results(
    recipe: Recipe, fault: type | None = None, numbers: set[int] | None = None, *, fast: bool = False
) -> list[LawResult]:
    tried = replace(subject(recipe), fast=fast)
    if fault is not None:
        tried = replace(tried, build=planted(tried.build, fault))
    return list(check_subject(tried, numbers))


def broken(found: list[LawResult]) -> list[str]:
    assert [one.number for one in found] == list(range(1, 15))
    return [str(one) for one in found if not one.passed]


@pytest.mark.parametrize("name", RECIPES)
def test_every_word_of_every_recipe_keeps_every_law(name: str) -> None:
    assert not broken(results(RECIPES[name], fast=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_word_of_every_recipe_keeps_every_law_on_large_batches(name: str) -> None:
    assert not broken(results(RECIPES[name]))


@pytest.mark.parametrize(
    "variant", [pytest.param(one, marks=[] if one in THOROUGH else [pytest.mark.slow]) for one in registry.names()]
)
def test_every_variant_keeps_every_law(variant: str) -> None:
    assert not broken(list(for_variant(variant)))


@pytest.mark.parametrize("variant", [one for one in registry.names() if one not in THOROUGH])
def test_every_variant_keeps_every_law_tested_fast_and_resumes_in_a_new_process(variant: str) -> None:
    assert not broken(list(for_variant(variant, fast=True)))
    assert list(for_variant(variant, laws={13})) == [LawResult(13, "resumption", True, "")]


@pytest.mark.parametrize("name", ["OUTSIDE_RECIPE", "outside_builder", "builder_without_dropout"])
def test_variants_from_outside_keep_every_law(name: str) -> None:
    found = list(for_variant(f"test_laws:{name}", fast=True))
    assert not broken(found)
    tested = "not tested" not in found[-1].detail
    assert tested is (name != "builder_without_dropout")


def test_dropout_that_cannot_be_switched_off_is_no_excuse_for_other_sums() -> None:
    (result,) = for_variant("test_laws:builder_with_its_own_dropout", laws={1})
    assert not result.passed
    assert "give its builder a keyword argument dropout=None" in result.detail


@pytest.mark.parametrize("recipe", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("number", sorted({number for number, _ in FAULTS}))
def test_each_law_fails_on_the_faults_it_guards_against(number: int, recipe: Recipe) -> None:
    blind = [
        fault.__name__
        for guarded, fault in FAULTS
        if guarded == number and all(one.passed for one in results(recipe, fault, {number}, fast=True))
    ]
    assert not blind


@pytest.mark.parametrize(("number", "fault"), LATE, ids=[fault.__name__ for _, fault in LATE])
def test_laws_fail_on_faults_of_large_batches_long_sentences_and_updates(number: int, fault: type) -> None:
    (result,) = results(BASE, fault, {number})
    assert not result.passed
    assert "Error" not in result.detail.split(":")[0], "a fault is to be found, not to raise"


def test_every_law_has_a_fault() -> None:
    guarded = {number for number, _ in FAULTS} | ({12} if SEARCHES else set())
    assert guarded == set(range(1, 14))
    assert {number for number, _ in LATE} == {law.number for law in law_runner.LAWS} == set(range(1, 15))
    assert len({fault.__name__ for _, fault in LATE}) == len(LATE) > 80


@pytest.mark.parametrize("search", SEARCHES + LATE_SEARCHES, ids=lambda search: search.__name__)
def test_law_12_fails_on_a_search_that_errs(search: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_laws, "translate", search)
    (result,) = results(BASE, numbers={12})
    assert not result.passed


@pytest.mark.parametrize(("sentences", "longest"), [(20, 3), (20, 14), (20, 24), (64, 3), (64, 14), (64, 40)])
def test_the_changes_of_law_3_come_to_every_position(sentences: int, longest: int) -> None:
    lengths = np.full(sentences, longest)
    lengths[sentences // 4 :] = np.random.default_rng(0).integers(1, longest + 1, sentences - sentences // 4)
    found = [evaluation_laws.cuts(lengths, turn) for turn in range(evaluation_laws.ROUNDS)]
    assert all((one < lengths).all() for one in found)
    assert set(np.concatenate(found)) == set(range(longest))


@pytest.mark.parametrize("fast", [False, True])
def test_realistic_batches_are_as_large_and_as_long_as_promised(fast: bool) -> None:
    size = (20, 24) if fast else (64, 40)
    batch = replace(subject(BASE), fast=fast).realistic_batch()
    for ids in (batch.source, batch.target_in, batch.target_out):
        lengths = (ids != PAD).sum(1)
        assert ids.shape == size
        assert (lengths == size[1]).sum() >= size[0] // 4
        assert len(set(lengths.tolist())) > size[0] // 4


def test_a_law_that_raises_is_a_failure_with_its_first_line() -> None:
    def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        raise RuntimeError("no such device\nand more")

    found = list(check(build, laws={2, 9}))
    assert found == [
        LawResult(2, "determinism", False, "RuntimeError: no such device"),
        LawResult(9, "standstill", False, "RuntimeError: no such device"),
    ]
    assert str(replace(found[0], seconds=0.0)) == "law 2 determinism, 0.00 s … FAILED RuntimeError: no such device"


def test_results_read_as_one_line() -> None:
    assert str(LawResult(3, "causality", True, seconds=1.234)) == "law 3 causality, 1.23 s … ok"
    remark = LawResult(13, "resumption", True, "in this process", 2.0)
    assert str(remark) == "law 13 resumption, 2.00 s … ok (in this process)"


def test_something_else_than_a_recipe_or_a_builder_is_refused() -> None:
    with pytest.raises(ValueError, match="'test_laws:NOT_A_VARIANT' is of type int; an external variant is a recipe"):
        for_variant("test_laws:NOT_A_VARIANT")


def test_the_new_process_has_as_many_threads_and_says_why_it_failed() -> None:
    import torch

    assert models_under_test.threads() == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert torch.get_num_threads() == 1
    describe = '{"variant": "no_such_variant"}'
    with pytest.raises(RuntimeError, match="ValueError: there is no variant 'no_such_variant'"):
        models_under_test.resumed_in_new_process(describe, {})


def test_a_number_that_is_not_a_number_is_never_close() -> None:
    from harness.conformance.assertions import close, same_bits

    with pytest.raises(LawViolated, match="off by nan"):
        close("logits", np.array([np.nan]), np.array([np.nan]))
    with pytest.raises(LawViolated, match="zero has other bits"):
        same_bits("weights", {"zero": np.array([-0.0])}, {"zero": np.array([0.0])})


def test_batches_of_the_laws_have_sentences_of_different_lengths_and_room_for_padding() -> None:
    batch = subject(BASE).batch()
    lengths = (batch.source != 1).sum(1)
    assert len(set(lengths.tolist())) > 1
    assert batch.source.shape[1] + 2 <= MAX_LENGTH
    assert batch.source.max() < SOURCE_VOCABULARY_SIZE
    assert batch.target_out.max() < TARGET_VOCABULARY_SIZE
