"""The sides of a comparison: variants, runs and files; ambiguous and unknown names."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compare_cases import FIRST, SECOND, save_record
from record_factory import record

from harness.analysis import selection
from harness.experiments.specs import DataSpec, FileSpec
from harness.storage import run_store
from impls.recipes import RECIPES


def test_sides_are_variants_runs_and_files(variant_pair: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    outside = save_record(elsewhere, "paper", 0)
    run = record(FIRST, 1).id
    names = [SECOND, run[:-4], str(elsewhere / outside.id), f"{FIRST}@seed=2"]
    sides = selection.find(names, variant_pair, complain=pytest.fail)
    assert [side.letter for side in sides] == ["A", "B", "C", "D"]
    assert [side.seeds for side in sides] == [(0, 1, 2), (1,), (0,), (2,)]
    assert [side.label for side in sides] == [SECOND, f"{FIRST}, seed 1", "paper", f"{FIRST}, seed 2"]
    record_path = str(elsewhere / outside.id / "record.json")
    (side, _) = selection.find([record_path, SECOND], variant_pair, complain=pytest.fail)
    assert side.records[0].id == outside.id


def test_variant_with_several_rows_is_refused_with_names_for_each(variant_pair: Path) -> None:
    for updates in (5, 7):
        for variant in (FIRST, SECOND):
            run_store.save_record(variant_pair, record(variant, 0, updates=updates))
    with pytest.raises(ValueError, match="3 rows of runs") as refusal:
        selection.find([FIRST, SECOND], variant_pair, complain=pytest.fail)
    names = re.findall(r"'(learned_positions@[^']+)'", str(refusal.value))
    assert len(names) == 3
    for name in names:
        updates_text = name.partition("@updates=")[2]
        (side, _) = selection.find([name, f"{SECOND}@updates={updates_text}"], variant_pair, complain=pytest.fail)
        assert str(side.records[0].spec.updates).lower() == updates_text


def test_find_by_a_name_that_the_refusal_offers_chooses_one_of_two_test_files(tmp_path: Path) -> None:
    for test_file in ("/texts/test.tsv", "/texts/news.tsv"):
        files = FileSpec(train_source="train.tsv", validation_source="valid.tsv", test_source=test_file)
        for variant in (FIRST, SECOND):
            run_store.save_record(tmp_path, record(variant, data=DataSpec(corpus="files", files=files)))
    with pytest.raises(ValueError, match="2 rows of runs; choose one") as refusal:
        selection.find([f"{FIRST}@seed=0", f"{SECOND}@seed=0"], tmp_path, complain=pytest.fail)
    names = re.findall(r"'(learned_positions@[^']+)'", str(refusal.value).partition("choose one: ")[2])
    assert [name.rpartition(",")[2] for name in names] == [
        "test_source=/texts/news.tsv",
        "test_source=/texts/test.tsv",
    ]
    (side, _) = selection.find([names[0], f"{SECOND}@test_source=/texts/news.tsv"], tmp_path, complain=pytest.fail)
    assert side.records[0].spec.data.test_set == "news.tsv"


def test_find_variant_with_several_rows_chooses_the_controlled_torch_runs(variant_pair: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"updates": 5},
        {"recipe": replace(RECIPES[FIRST], positions="alibi")},
        {"framework": "keras", "backend": "jax"},
        {"budget": "source"},
    ]
    for change in changes:
        run_store.save_record(variant_pair, record(FIRST, 0, **change))
    remarks: list[str] = []
    (side, _) = selection.find([FIRST, SECOND], variant_pair, complain=remarks.append)
    assert side.seeds == (0, 1, 2)
    assert all(run.spec.framework == "torch" and run.spec.budget == "controlled" for run in side.records)
    (remark,) = remarks
    assert "5 rows of runs: comparing 'learned_positions@" in remark
    assert all(text in remark for text in ("positions=alibi", "framework=keras", "budget=source", "updates=5"))
    with pytest.raises(ValueError, match="rows of runs; choose one") as refusal:
        selection.find([f"{FIRST}@seed=0", SECOND], variant_pair, complain=pytest.fail)
    names = str(refusal.value).partition("choose one: ")[2].split("', '")
    assert all(f"{FIRST}@seed=0," in name for name in names), "the names keep what was selected"


def test_find_with_a_number_in_another_form_selects_the_same_runs(variant_pair: Path) -> None:
    names = [f"{FIRST}@peak_rate={number},seed=1.0" for number in ("0.0005", "5e-4")]
    for name in names:
        (side, _) = selection.find([name, SECOND], variant_pair, complain=pytest.fail)
        assert side.seeds == (1,)


def test_hypotheses_of_a_side_are_those_of_all_runs_or_none(tmp_path: Path) -> None:
    runs = tuple(selection.Run(record(FIRST, seed), tmp_path) for seed in (0, 1))
    for run, hypotheses in zip(runs, ([1, 2, 3], None), strict=True):
        vars(run)["hypotheses"] = hypotheses
    side = selection.Side("A", FIRST, runs)
    assert side.hypotheses([0], 3) == [[1, 2, 3]]
    assert side.hypotheses([0], 2) is None
    assert side.hypotheses([0, 1], 3) is None


def test_letters_of_sides_continue_after_z() -> None:
    assert [selection._letter(index) for index in (0, 25, 26, 52, 701, 702)] == ["A", "Z", "AA", "BA", "ZZ", "AAA"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([FIRST], "give two or more"),
        ([FIRST, "conv_fnn"], "did you mean 'conv_ffn'?"),
        ([FIRST, FIRST], "name the same runs"),
        ([FIRST, f"{FIRST}@seed=9"], "'seed=9' matches no run; the values are 0, 1, 2"),
        ([FIRST, f"{FIRST}@sed=0"], "did you mean 'seed'?"),
        ([FIRST, f"{FIRST}@max_length=100"], "data.max_length"),
        ([FIRST, "no/such/record.json"], "there is no record.json"),
        ([FIRST, __file__], "is neither a record.json"),
    ],
)
def test_unknown_side_is_refused_in_one_line(variant_pair: Path, words: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=".") as refusal:
        selection.find(words, variant_pair, complain=pytest.fail)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert "?;" not in str(refusal.value), "a question is the end"
