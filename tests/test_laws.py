"""The laws hold for every variant and every word of every recipe; and each law notices the fault it is there for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from faults import FAULTS, SEARCHES, planted
from small_models import (
    BASE,
    GRU,
    MAX_LENGTH,
    PLAIN,
    REFERENCE,
    SOURCE_WORDS,
    TARGET_WORDS,
    all_recipes,
    one_thread,
    subject,
)

import impls
from harness import laws, subjects
from harness.expectations import Broken
from harness.laws import LawResult, check, for_variant
from impls import registry
from impls.contract import Recipe, Seq2SeqModel, Training

RECIPES = all_recipes()
OUTSIDE_RECIPE = replace(BASE, positions="rotary")
NOT_A_VARIANT = 3
FAMILIES = {"transformer": BASE, "gru": GRU, "torch_reference": REFERENCE, "plain": PLAIN}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def outside_builder(
    source_words: int, target_words: int, *, training: Training, seed: int, device: str, precision: str
) -> Seq2SeqModel:
    """Be a builder from outside, with a dropout of its own."""
    settings = {"training": training, "seed": seed, "device": device, "precision": precision}
    return impls.build(replace(BASE, dropout=0.05), source_words, target_words, **settings)


def results(recipe: Recipe, fault: type | None = None, numbers: set[int] | None = None) -> list[LawResult]:
    tried = subject(recipe)
    build = tried.build if fault is None else planted(tried.build, fault)
    words = {"source_words": tried.source_words, "target_words": tried.target_words}
    return list(check(build, **words, max_length=tried.max_length, laws=numbers))


@pytest.mark.parametrize("name", RECIPES)
def test_every_word_of_every_recipe_keeps_every_law(name: str) -> None:
    found = results(RECIPES[name])
    assert [one.number for one in found] == list(range(1, 14))
    assert not [str(one) for one in found if not one.passed]


@pytest.mark.parametrize("variant", registry.names())
def test_every_variant_keeps_every_law_and_resumes_in_a_new_process(variant: str) -> None:
    found = list(for_variant(variant))
    assert not [str(one) for one in found if not one.passed]
    assert found[-1] == LawResult(13, "resumption", True, "")


@pytest.mark.parametrize("name", ["OUTSIDE_RECIPE", "outside_builder"])
def test_variants_from_outside_keep_every_law(name: str) -> None:
    found = list(for_variant(f"test_laws:{name}"))
    assert len(found) == 13
    assert not [str(one) for one in found if not one.passed]


@pytest.mark.parametrize("recipe", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("number", sorted({number for number, _ in FAULTS}))
def test_each_law_fails_on_the_faults_it_guards_against(number: int, recipe: Recipe) -> None:
    blind = [
        fault.__name__
        for guarded, fault in FAULTS
        if guarded == number and all(one.passed for one in results(recipe, fault, {number}))
    ]
    assert not blind


def test_every_law_has_a_fault() -> None:
    guarded = {number for number, _ in FAULTS} | ({12} if SEARCHES else set())
    assert guarded == {law.number for law in laws.LAWS} == set(range(1, 14))


@pytest.mark.parametrize("search", SEARCHES, ids=lambda search: search.__name__)
def test_law_12_fails_on_a_search_that_errs(search: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "translate", search)
    (result,) = results(BASE, numbers={12})
    assert not result.passed


def test_a_law_that_raises_is_a_failure_with_its_first_line() -> None:
    def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        raise RuntimeError("no such device\nand more")

    found = list(check(build, laws={2, 9}))
    assert found == [
        LawResult(2, "determinism", False, "RuntimeError: no such device"),
        LawResult(9, "standstill", False, "RuntimeError: no such device"),
    ]
    assert str(found[0]) == "law 2 determinism … FAILED RuntimeError: no such device"


def test_results_read_as_one_line() -> None:
    assert str(LawResult(3, "causality", True)) == "law 3 causality … ok"
    assert str(LawResult(13, "resumption", True, "in this process")) == "law 13 resumption … ok (in this process)"


def test_something_else_than_a_recipe_or_a_builder_is_refused() -> None:
    with pytest.raises(ValueError, match="'test_laws:NOT_A_VARIANT' is a int: allowed is a recipe, or a builder"):
        for_variant("test_laws:NOT_A_VARIANT")


def test_the_new_process_has_as_many_threads_and_says_why_it_failed() -> None:
    import torch

    assert subjects.threads() == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    assert torch.get_num_threads() == 1
    describe = '{"variant": "no_such_variant"}'
    with pytest.raises(RuntimeError, match="ValueError: there is no variant 'no_such_variant'"):
        subjects.resumed_in_new_process(describe, {})


def test_a_number_that_is_not_a_number_is_never_close() -> None:
    import numpy as np

    from harness.expectations import close, same_bits

    with pytest.raises(Broken, match="off by nan"):
        close("logits", np.array([np.nan]), np.array([np.nan]))
    with pytest.raises(Broken, match="zero has other bits"):
        same_bits("weights", {"zero": np.array([-0.0])}, {"zero": np.array([0.0])})


def test_batches_of_the_laws_have_sentences_of_different_lengths_and_room_for_padding() -> None:
    batch = subject(BASE).batch()
    lengths = (batch.source != 1).sum(1)
    assert len(set(lengths.tolist())) > 1
    assert batch.source.shape[1] + 2 <= MAX_LENGTH
    assert batch.source.max() < SOURCE_WORDS
    assert batch.target_out.max() < TARGET_WORDS
