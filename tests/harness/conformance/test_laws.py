"""The laws hold for every variant and every value of every recipe, and each law detects its planted faults.

By default the laws run on the combined recipes and on the variants, on small batches; the full matrix is slow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from faults import planted
from places import ROOT
from realistic_faults import REALISTIC, REALISTIC_SEARCHES, BlindToEarlierTargetWords
from small_models import (
    BASE,
    GRU,
    PLAIN,
    REFERENCE,
    TARGET_VOCABULARY_SIZE,
    THREE_RATES,
    all_recipes,
    assert_obeys,
    combinations,
    subject,
)
from torch import nn
from training_faults import FAULTS, SEARCHES
from update_faults import UPDATES

import impls
from harness.conformance import causality_law, law_runner, models_under_test, training_laws
from harness.conformance.assertions import LawViolated, assert_close, assert_same_bits
from harness.conformance.diagnosis import CAUSES, diagnosis
from harness.conformance.law_runner import LawResult, check
from harness.conformance.models_under_test import ModelUnderTest, named
from harness.processes.environment_variables import thread_environment
from impls import registry
from impls.contract import Recipe, Seq2SeqModel, Training

pytestmark = pytest.mark.usefixtures("single_thread")

RECIPES = all_recipes()
ONE_LAYER = replace(BASE, layers=1)
EXTERNAL_RECIPE = replace(BASE, positions="rotary")
LARGE_LOGITS = replace(
    BASE, norm="none", norm_order="pre", tying="output", embedding_init="normal", embedding_scale="none"
)
FAMILIES: dict[str, Recipe] = {"base": ONE_LAYER, "gru": GRU, "torch_reference": REFERENCE, "plain": PLAIN}
COVERED = {"learned_positions", "paper_base"}
"""Variants that other cases cover by default: the first on realistic batches, the second by `paper`, its small copy."""
REALISTIC_FAULTS = REALISTIC + UPDATES
TWO_LAYERS = {"MoreDropoutInLargeBatches"}
"""Faults that show too little in the losses of one layer."""


def external_builder(*sizes: int, dropout: float | None = None, **settings: Any) -> Seq2SeqModel:
    """Build an external model with a dropout rate of its own."""
    return impls.build(replace(ONE_LAYER, dropout=0.05 if dropout is None else dropout), *sizes, **settings)


def builder_with_fixed_dropout(*sizes: int, **settings: Any) -> Seq2SeqModel:
    return external_builder(*sizes, dropout=0.05, **settings)


def builder_without_dropout(*sizes: int, **settings: Any) -> Seq2SeqModel:
    return external_builder(*sizes, dropout=0.0, **settings)


def builder_of_long_sentences(*sizes: int, **settings: Any) -> Seq2SeqModel:
    return impls.build(replace(ONE_LAYER, max_length=300), *sizes, **settings)


def builder_of_a_position_less_than_declared(*sizes: int, **settings: Any) -> Seq2SeqModel:
    model: Any = impls.build(replace(ONE_LAYER, max_length=299), *sizes, **settings)
    model.max_length = 300
    return model  # type: ignore[no-any-return]


class ModelThatRaises(nn.Module):
    """Accepts the two sentences that `impls.wrap` tries, and no more."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.positions = nn.Embedding(1, words)

    def encode(self, source: Any) -> Any:
        return source

    def decode(self, memory: Any, target_in: Any) -> Any:
        if len(memory) > 2:
            raise IndexError("too many")
        return self.positions.weight[None].expand(len(memory), target_in.shape[1], -1) + 0.0


class OneScale(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 8)
        self.scale = nn.Parameter(torch.tensor([1e4]))  # rounding hides small differences

    def encode(self, source: Any) -> Any:
        return source

    def decode(self, memory: Any, target_in: Any) -> Any:
        return self.embedding(target_in) @ self.embedding.weight.T * self.scale / 1e4


def builder_of_a_model_that_raises(*sizes: int, **settings: Any) -> Seq2SeqModel:
    return impls.wrap(lambda: ModelThatRaises(sizes[1]), *sizes, **settings)


def builder_of_one_scale(*sizes: int, **settings: Any) -> Seq2SeqModel:
    return impls.wrap(lambda: OneScale(sizes[1]), *sizes, **settings)


def result_of(law: int, recipe: Recipe, fault: type | None = None, *, fast: bool = True) -> LawResult:
    under_test = replace(subject(recipe), fast=fast)
    if fault is not None:
        under_test = replace(under_test, build=planted(under_test.build, fault))
    (result,) = check(under_test, {law})
    return result


def assert_detected(result: LawResult) -> None:
    """Assert that a law fails because of what it found, not because the fault raises an error."""
    assert not result.passed
    assert "Error" not in result.detail.split(":")[0], result.detail


def slow_unless(names: Iterable[str], default: Container[str]) -> list[Any]:
    """Return a parameter for each name, marked slow unless it is one of `default`."""
    return [pytest.param(name, marks=[] if name in default else [pytest.mark.slow]) for name in names]


@pytest.mark.parametrize("name", slow_unless(RECIPES, (*combinations(), THREE_RATES)))
def test_recipe_obeys_every_law_on_small_batches(name: str) -> None:
    """The combinations have one layer; the variants below have two."""
    recipe = combinations().get(name)
    recipe = RECIPES[name] if recipe is None else replace(recipe, layers=1)
    assert_obeys(replace(subject(recipe), fast=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_recipe_obeys_every_law_on_realistic_batches(name: str) -> None:
    assert_obeys(subject(RECIPES[name]))


@pytest.mark.parametrize("variant", slow_unless(registry.names(), ["learned_positions"]))
def test_variant_obeys_every_law_on_realistic_batches(variant: str) -> None:
    assert_obeys(named(variant))


@pytest.mark.parametrize("variant", slow_unless(registry.names(), set(registry.names()) - COVERED))
def test_variant_obeys_every_law_on_small_batches(variant: str) -> None:
    assert_obeys(named(variant, fast=True))


@pytest.mark.parametrize("variant", slow_unless(registry.names(), ["bahdanau_gru", "torch_reference"]))
def test_variant_resumes_in_a_new_process(variant: str) -> None:
    assert list(check(named(variant), laws={13})) == [LawResult(13, "resumption", True, "")]


@pytest.mark.parametrize("name", ["EXTERNAL_RECIPE", "LARGE_LOGITS", "external_builder", "builder_without_dropout"])
def test_external_variant_with_dropout_is_tested_for_it(name: str) -> None:
    law_results = list(check(named(f"test_laws:{name}", fast=True), laws={1, 14}))
    assert [result.passed for result in law_results] == [True, True]
    dropout_tested = "not tested" not in law_results[-1].detail
    assert dropout_tested is (name != "builder_without_dropout")


def test_external_variant_with_fixed_dropout_fails_law_1_with_advice() -> None:
    (result,) = check(named("test_laws:builder_with_fixed_dropout"), laws={1})
    assert not result.passed
    assert "give its builder a keyword argument dropout=None" in result.detail


@pytest.mark.parametrize("family", slow_unless(FAMILIES, ["base"]))
@pytest.mark.parametrize(("number", "fault"), FAULTS, ids=[fault.__name__ for _, fault in FAULTS])
def test_law_detects_its_planted_fault(number: int, fault: type, family: str) -> None:
    assert_detected(result_of(number, FAMILIES[family], fault))


@pytest.mark.parametrize(
    "fast", [pytest.param(True, id="small"), pytest.param(False, id="full", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(("number", "fault"), REALISTIC_FAULTS, ids=[fault.__name__ for _, fault in REALISTIC_FAULTS])
def test_law_detects_faults_of_large_batches_long_sentences_and_updates(number: int, fault: type, fast: bool) -> None:
    recipe = ONE_LAYER if fast and fault.__name__ not in TWO_LAYERS else BASE
    assert_detected(result_of(number, recipe, fault, fast=fast))


def test_every_law_has_a_fault() -> None:
    guarded = {number for number, _ in FAULTS} | ({12} if SEARCHES else set())
    assert guarded == set(range(1, 14))
    assert {number for number, _ in REALISTIC_FAULTS} == set(range(1, len(law_runner.LAWS) + 1))
    assert len({fault.__name__ for _, fault in REALISTIC_FAULTS}) == len(REALISTIC_FAULTS) > 80


@pytest.mark.parametrize("search", SEARCHES + REALISTIC_SEARCHES, ids=lambda search: search.__name__)
def test_law_12_detects_wrong_searches(search: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_laws, "translate", search)
    assert_detected(result_of(12, ONE_LAYER))


def test_law_that_raises_fails_with_first_line_of_error() -> None:
    def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        raise RuntimeError("no such device\nand more")

    result = list(check(ModelUnderTest(build), laws={2, 9}))
    assert result == [
        LawResult(2, "determinism", False, "RuntimeError: no such device"),
        LawResult(9, "standstill", False, "RuntimeError: no such device"),
    ]
    assert str(replace(result[0], seconds=0.0)) == "law 2 determinism, 0.00 s … FAILED RuntimeError: no such device"


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"max_length": 8}, "max_length=8: the laws need models of at least 9"),
        ({"source_vocabulary_size": 6}, "source_vocabulary_size=6: the laws need models of at least 7"),
        ({"target_vocabulary_size": 6}, "target_vocabulary_size=6: the laws need models of at least 7"),
    ],
)
def test_model_under_test_size_that_is_impossible_raises(sizes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(subject(BASE), **sizes)


def test_check_law_that_does_not_exist_raises() -> None:
    with pytest.raises(ValueError, match=r"laws=\[15\]: expected numbers from 1 to 14"):
        list(check(subject(BASE), laws={3, 15}))


def test_smallest_model_obeys_every_law() -> None:
    words, length = models_under_test.SMALLEST_VOCABULARY, models_under_test.SHORTEST

    def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        recipe = replace(ONE_LAYER, max_length=length, dropout=dropout)
        return impls.build(recipe, words, words, training=training, seed=seed)

    assert_obeys(ModelUnderTest(build, words, words, length, fast=True))


def test_huge_logits_of_a_few_words_hide_no_difference() -> None:
    for ruled_out in (-1e9, -np.inf, 1e9):
        expected = np.random.default_rng(0).standard_normal((8, 60)).astype(np.float32)
        expected[:, 3] = ruled_out
        actual = expected.copy()
        actual[0, 0] += 1e-4
        with pytest.raises(LawViolated), np.errstate(invalid="ignore"):
            assert_close("logits", actual, expected)


def test_law_3_names_the_position_that_has_no_influence() -> None:
    class BlindAtPositionThree:
        def weights(self) -> Any:
            return {}

        def set_weights(self, weights: Any) -> None:
            pass

        def logits(self, source: Any, target_in: Any) -> Any:
            seen = np.where(np.arange(source.shape[1]) == 3, 0, source).sum(1) + 50 * target_in.cumsum(1).T
            return np.repeat(seen.T[..., None], TARGET_VOCABULARY_SIZE, 2).astype(np.float32)

    model: Any = BlindAtPositionThree()
    with pytest.raises(LawViolated, match=r"do not depend on the source token at position 3$"):
        causality_law._real_causality(subject(BASE), model)


def test_law_3_detects_a_decoder_that_sees_the_newest_target_word_only() -> None:
    result = result_of(3, replace(ONE_LAYER, positions="none"), BlindToEarlierTargetWords)
    assert "depend on no earlier target word at position" in result.detail


@pytest.mark.parametrize(
    ("positions", "remark"), [("none", "the order of the source words makes no difference"), ("rotary", "")]
)
def test_law_3_remarks_that_the_order_of_source_words_does_not_matter(positions: Any, remark: str) -> None:
    result = result_of(3, replace(ONE_LAYER, positions=positions))
    assert result.passed
    assert result.detail == remark


def test_law_1_tests_all_positions_that_an_external_model_declares() -> None:
    assert named("test_laws:builder_of_long_sentences").max_length == 300
    (result,) = check(named("test_laws:builder_of_a_position_less_than_declared", fast=True), laws={1})
    assert result.detail.startswith("ValueError: 300 positions exceed max_length=299: ")


def test_law_result_str_is_one_line() -> None:
    assert str(LawResult(3, "causality", True, seconds=1.234)) == "law 3 causality, 1.23 s … ok"
    remark = LawResult(13, "resumption", True, "in this process", 2.0)
    assert str(remark) == "law 13 resumption, 2.00 s … ok (in this process)"


@pytest.mark.parametrize(
    ("broken", "start"),
    [
        ({}, ""),
        ({1: "off by 0.1", 2: "other bits", 14: "off by 0.1"}, "Start with law 2: Two evaluations of the same input"),
        ({1: "off by 0.1", 3: "off by 0.1"}, "Start with law 3: A prediction sees later target words"),
        ({8: "other bits", 13: "other bits"}, "Start with law 8: The weights do not determine the results. Are layers"),
        ({4: "off by 0.1", 5: "off by 0.1"}, "Start with law 4: Padding changes a result."),
        ({2: "other bits", 4: "logits: off by nan"}, "Start with law 4: Numbers are not finite"),
    ],
)
def test_diagnosis_names_the_law_to_start_with(broken: dict[int, str], start: str) -> None:
    law_results = [LawResult(number, "name", number not in broken, broken.get(number, "")) for number in range(1, 15)]
    assert diagnosis(law_results).startswith(start)
    assert bool(diagnosis(law_results)) is bool(broken)


def test_diagnosis_of_law_4_asks_for_dropout_in_evaluation_which_no_earlier_law_finds_in_keras() -> None:
    assert "dropout" in diagnosis([LawResult(2, "determinism", True), LawResult(4, "padding", False, "off by 0.1")])


def test_diagnosis_of_an_error_names_no_cause_of_a_wrong_result() -> None:
    results = [
        LawResult(2, "determinism", False, "RuntimeError: sizes (mine.py, line 3)", raised=True),
        LawResult(3, "causality", False),
    ]
    assert diagnosis(results).startswith("Start with law 2: The model raises the error of that line.")


def test_error_of_a_tensorflow_graph_says_what_failed_and_its_law_what_usually_breaks_it() -> None:
    message = (
        "Graph execution error:\n\nDetected at node {{node dense/MatMul}}\n  File x\nIn[0]: [4,8]\n\t [[{{node a}}]]"
    )
    detail = models_under_test.in_one_line(RuntimeError(message), None)
    assert detail == "RuntimeError: Graph execution error: In[0]: [4,8]"
    assert diagnosis([LawResult(7, "reordering", False, detail, raised=True)]) == f"Start with law 7: {CAUSES[7]}"


def test_law_that_raises_names_the_line_of_the_external_model() -> None:
    (result,) = check(named("test_laws:builder_of_a_model_that_raises", fast=True), laws={2})
    assert result.raised
    line = ModelThatRaises.decode.__code__.co_firstlineno + 2
    assert result.detail.endswith(f"IndexError: too many (test_laws.py, line {line})")


def test_law_11_accepts_a_parameter_of_one_number_that_two_seeds_move_alike() -> None:
    subject = named("test_laws:builder_of_one_scale", fast=True)
    scales = [subject.trained(subject.model(seed=seed), range(3)).weights()["scale"] for seed in (0, 1)]
    assert scales[0] == scales[1]
    assert list(check(subject, laws={11})) == [LawResult(11, "reproducibility", True, "")]


def test_laws_of_a_model_whose_weights_are_all_0_say_so_in_a_few_words() -> None:
    words = models_under_test.SMALLEST_VOCABULARY

    def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        recipe = replace(ONE_LAYER, dropout=dropout)
        model = impls.build(recipe, words, words, training=training, seed=seed)
        model.set_weights({name: np.zeros_like(weight) for name, weight in model.weights().items()})
        return model

    found = list(check(ModelUnderTest(build, words, words, fast=True), laws={10, 11}))
    assert re.search(r"from \d\.\d{3} to \d\.\d{3} nats per token, expected \d\.\d{3} at most$", found[0].detail)
    assert re.fullmatch(r"two seeds give the same [\w.]+, [\w.]+, [\w.]+ and \d+ more", found[1].detail)
    assert "are initial weights all 0 or too large?" in diagnosis(found)


def test_documentation_has_the_causes_of_every_law() -> None:
    page = ROOT / "docs" / "your-own-variant.md"
    rows = [f"| {number} | {cause} |" for number, cause in CAUSES.items()]
    assert "\n".join(rows) in page.read_text(encoding="utf-8")
    assert sorted(CAUSES) == list(range(1, len(law_runner.LAWS) + 1))


def test_documentation_has_the_vocabularies_that_a_builder_must_accept() -> None:
    page = (ROOT / "docs" / "your-own-variant.md").read_text(encoding="utf-8")
    source, target = models_under_test.SOURCE_VOCABULARY_SIZE, models_under_test.TARGET_VOCABULARY_SIZE
    assert f"vocabularies of {source} source and {target} target words" in " ".join(page.split())


def test_resuming_process_has_same_threads_and_reports_its_error() -> None:
    assert models_under_test.threads() == thread_environment(1, None)
    assert torch.get_num_threads() == 1
    describe = '{"variant": "no_such_variant"}'
    with pytest.raises(RuntimeError, match="there is no variant 'no_such_variant'"):
        models_under_test.resumed_in_new_process(describe, {})


def test_assertions_reject_nan_and_compare_signs_of_zero() -> None:
    with pytest.raises(LawViolated, match="off by nan"):
        assert_close("logits", np.array([np.nan]), np.array([np.nan]))
    with pytest.raises(LawViolated, match="zero has other bits"):
        assert_same_bits("weights", {"zero": np.array([-0.0])}, {"zero": np.array([0.0])})
