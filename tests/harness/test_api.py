"""The Python interface: runs as tables, comparisons, reports, training and translation."""

from __future__ import annotations

import dataclasses
import errno
import functools
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
import torch
from command_line import HEAVY, imported
from places import ROOT
from record_factory import record, with_digests
from small_runs import TINY

import harness
from harness import api
from harness.experiments.specs import DataSpec, FileSpec
from harness.storage import run_store
from harness.training import load, train
from impls.contract import Training, TransformerRecipe
from impls.recipes import RECIPES, TRAININGS

PUBLISHED = ROOT / "results" / "published"
ABLATION = PUBLISHED / "ablation"
pytestmark = pytest.mark.usefixtures("cache")
SETTINGS = {"data.training_pairs": 200, "training.batch_size": 32, "decoding.max_tokens": 5, "threads": 1}


@pytest.fixture(scope="module")
def ablation() -> api.Runs:
    return harness.load(ABLATION).filter(budget="controlled")


def test_import_and_load_need_no_framework_and_no_plots() -> None:
    number = len(list(PUBLISHED.glob("*/record.json")))
    assert not imported(f"import harness\nassert len(harness.load({str(PUBLISHED)!r})) == {number}") & HEAVY


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("nowhere", "nowhere"),
        (
            next(PUBLISHED.glob("*/record.json")).parent,
            "the folder of one run; load the folder around it, .*published$",
        ),
        (None, "expected a folder of results, such as 'results/local', not None"),
        (ROOT / "README.md", "^load: .*README.md' is a file, not a folder$"),
    ],
)
def test_load_of_something_else_than_a_folder_of_runs_names_it(folder: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        harness.load(folder)


def test_load_warns_of_a_damaged_record_and_of_folders_with_runs(tmp_path: Path) -> None:
    (tmp_path / "lesson" / "x").mkdir(parents=True)
    (tmp_path / "lesson" / "x" / "record.json").write_text("{")
    for folder, message in ((tmp_path / "lesson", "record.json"), (tmp_path, "folders in it have: load .*lesson$")):
        with pytest.warns(UserWarning, match=message) as warned:
            assert len(harness.load(folder)) == 0
        assert [warning.filename for warning in warned] == [__file__]  # the caller's line


def test_runs_loaded_with_a_relative_path_keep_their_statistics_after_chdir(
    ablation: api.Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ABLATION.parent)
    runs = harness.load(ABLATION.name).filter(budget="controlled")
    monkeypatch.chdir(tmp_path)
    assert runs.leaderboard().equals(ablation.leaderboard())


def test_tables_have_a_row_per_run_or_epoch_and_the_documented_columns(ablation: api.Runs) -> None:
    table = ablation.to_pandas()
    assert len(table) == len(ablation) == 50
    assert list(table.columns[: len(api.COLUMNS)]) == list(api.COLUMNS)
    assert set(table["recipe.positions"]) == {"learned", "sinusoidal", "rotary", "alibi", "none"}
    record = ablation[0].record
    row = table[table["run"] == record.id].iloc[0]
    assert row["bleu_sacre"] == record.scores["bleu_sacre"]
    assert row["validation_loss"] == record.curve[-1].validation_loss
    assert table["name"].is_unique
    assert len(ablation.curves()) == sum(len(run.record.curve) for run in ablation)
    assert set(ablation[0].curve()["epoch"]) == {1, 2, 3, 4}


def test_tables_without_runs_have_their_columns(tmp_path: Path) -> None:
    empty = api.Runs((), tmp_path)
    assert set(api.COLUMNS) <= set(empty.to_pandas().columns)
    assert {"run", "variant", "seed", "validation_loss"} <= set(empty.curves().columns)
    assert {"table", "variant", "mean"} <= set(empty.leaderboard().columns)


def test_to_pandas_of_failed_runs_has_numbers_and_settings_before_metrics(ablation: api.Runs) -> None:
    record = dataclasses.replace(ablation[0].record, status="failed", reason="test", curve=(), scores={}, speed={})
    table = api.Runs((record, *ablation.records[1:3]), ablation.results).to_pandas()
    assert table[:1]["bleu_sacre"].isna().all()
    assert table[:1]["bleu_sacre"].round(2).dtype == float
    columns = list(table.columns)
    assert max(map(columns.index, (name for name in columns if "." in name))) < columns.index("bleu_sacre")
    assert len(api.TrainedRun(record, ablation.results).curve().columns) > 5


def test_filter_selects_by_settings_functions_and_collections_of_values(ablation: api.Runs) -> None:
    assert len(ablation.filter(positions="rotary")) == 10
    assert len(ablation.filter(recipe__positions=["rotary", "none"], embedding_init="width", seed=range(2))) == 4
    assert len(ablation.filter(lambda record: record.spec.seed == 1)) == 10
    assert len(ablation.filter(status="failed")) == 0
    assert [run.id for run in ablation.filter(run=ablation[3].id)] == [ablation[3].id]
    assert [run.id for run in ablation[:2]] == [ablation[0].id, ablation[1].id]
    table = ablation.to_pandas()
    chosen = table[table["seed"] < 2]["run"]
    for values in (chosen, chosen.to_numpy(), iter(chosen), set(chosen)):
        assert len(ablation.filter(run=values)) == len(chosen)


def test_filter_by_an_unknown_or_ambiguous_setting_names_it(ablation: api.Runs) -> None:
    with pytest.raises(ValueError, match="nrom: no run has this setting; did you mean 'norm'"):
        ablation.filter(nrom="rms")
    with pytest.raises(ValueError, match="max_length is ambiguous"):
        ablation.filter(max_length=100)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"variant": "papr"}, "variant='papr': expected one of .*; did you mean 'paper'"),
        ({"status": ["failed", "completd"]}, "status='completd': expected one of completed, .*mean 'completed'"),
        ({"budget": "sorce"}, "budget='sorce': expected one of controlled, .*mean 'source'"),
        ({"framework": "pytorch"}, "framework='pytorch': expected one of keras, torch"),
        ({"recipe__norm": "rsm"}, "recipe__norm='rsm': expected one of .*mean 'rms'"),
        ({"seed": "0"}, "seed='0': expected a value such as 0, not text"),
        ({"foo": 1}, "foo: no run has this setting"),
        ({"condition": "paper"}, "filter: 'paper' is not a function of a record"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_filter_by_a_value_that_does_not_exist_names_the_accepted_ones(
    values: dict[str, Any], message: str, ablation: api.Runs, tmp_path: Path
) -> None:
    for runs in (ablation, api.Runs((), tmp_path)):
        with pytest.raises(ValueError, match=message):
            runs.filter(**values)


def test_filter_by_a_value_that_no_run_has_is_empty(ablation: api.Runs, tmp_path: Path) -> None:
    for value in ({"seed": 99}, {"variant": "paper"}, {"framework": "keras"}, {"norm": "rms"}, {"device": "cuda"}):
        assert len(ablation.filter(**value)) == len(api.Runs((), tmp_path).filter(**value)) == 0


def test_filter_selects_runs_on_own_text_by_a_file(tmp_path: Path) -> None:
    for name in ("test.tsv", "news.tsv"):
        files = FileSpec(train_source="train.tsv", validation_source="valid.tsv", test_source=name)
        run_store.save_record(tmp_path, record(data=DataSpec(corpus="files", files=files)))
    run_store.save_record(tmp_path, record())
    assert [run.record.spec.data.test_set for run in api.load(tmp_path).filter(test_source="news.tsv")] == ["news.tsv"]


def test_leaderboard_has_intervals_and_html() -> None:
    runs = harness.load(PUBLISHED).filter(budget="source", variant="learned_positions")
    board = runs.leaderboard()
    assert list(board["variant"]) == ["learned_positions"]
    row = board.iloc[0]
    assert row["low"] < row["mean"] < row["high"]
    assert row["seeds"] == 3
    for shown in (repr(runs), runs._repr_html_()):
        assert "3 runs in" in shown
        assert "learned_positions" in shown
    assert "1 run in" in runs[:1]._repr_html_()
    assert repr(runs.filter(status="failed")) == f"0 runs in {PUBLISHED}"


def test_compare_looks_among_filtered_runs_only() -> None:
    runs = harness.load(PUBLISHED)
    with pytest.warns(UserWarning, match="learned_positions has 2 rows of runs: comparing .*framework=torch") as warned:
        compared = runs.filter(budget="controlled").compare("learned_positions", "torch_reference")
    assert warned[0].filename == __file__
    assert compared.to_pandas()["metric"].is_unique
    with pytest.warns(UserWarning, match="learned_positions has 3 rows of runs: comparing .*framework=torch"):
        everywhere = runs.compare("learned_positions", "torch_reference")  # in the only table with both
    assert everywhere.to_pandas().equals(compared.to_pandas())
    with pytest.raises(ValueError, match="these runs of .*published have no such variant or run"):
        runs.filter(budget="source").compare("learned_positions", "torch_reference")


def test_compare_gives_the_means_intervals_and_p_values_of_the_report() -> None:
    runs = harness.load(PUBLISHED).filter(budget="controlled", framework="torch")
    compared = runs.compare("bahdanau_gru", "paper")
    row: Any = compared.to_pandas().set_index("metric").loc["sacreBLEU"]
    comparisons = runs.analysis.tables[0].leaderboards["bleu_sacre"].comparisons
    reported = comparisons.between("paper", "bahdanau_gru")
    assert (row["difference"], row["low"], row["high"]) == pytest.approx((reported.mean, reported.low, reported.high))
    assert (row["p"], row["p_holm"]) == pytest.approx((reported.p, reported.p_holm))
    assert row["difference"] == pytest.approx(row["paper"] - row["bahdanau_gru"], abs=0.2)
    for shown in (repr(compared), compared._repr_html_()):
        assert "sacreBLEU" in shown
        assert "&lt;0.001" in shown or "<0.001" in shown, "a small p-value is shown as a bound"
    only_two = runs.filter(variant=["bahdanau_gru", "paper"]).compare("bahdanau_gru", "paper").to_pandas()
    assert only_two.set_index("metric").loc["sacreBLEU", "high"] != row["high"]


def test_tables_of_one_seed_have_numbers_where_nothing_is_known(ablation: api.Runs) -> None:
    runs = ablation.filter(seed=0, embedding_init="width", positions=["learned", "rotary"])
    compared = runs.compare(runs[0], runs[1])
    unknown = [compared.to_pandas()["low"], runs.leaderboard()["best rank"], runs[0].curve()["validation_bleu"]]
    assert all(column.isna().all() and pd.api.types.is_numeric_dtype(column) for column in unknown)
    assert "None" not in repr(compared) + compared._repr_html_() + repr(runs)


def test_compare_of_runs_allows_a_difference_by_its_name() -> None:
    runs = harness.load(PUBLISHED).filter(variant="learned_positions", framework="torch", seed=0)
    controlled, source = (runs.filter(budget=budget)[0] for budget in ("controlled", "source"))
    with pytest.raises(ValueError, match=r"To compare them anyway: allow=\['budget'\]$"):
        runs.compare(controlled, source)
    assert len(runs.compare(controlled, source.id, allow="budget").to_pandas())
    with pytest.warns(UserWarning, match=r"^allow=\['budgt'\]: the sides do not differ in it; did you mean 'budget'"):
        runs.compare(controlled, source, allow=["budget", "budgt"])


@pytest.mark.parametrize("side", [0, None, api.Runs((), PUBLISHED)], ids=["int", "None", "Runs"])
def test_compare_says_what_a_side_is(side: Any) -> None:
    runs = harness.load(PUBLISHED)
    for sides in (side, "paper"), ("paper", side):
        with pytest.raises(ValueError, match="^compare: expected a run, or the name of a variant or run, not "):
            runs.compare(*sides)


def test_compare_names_a_path_without_a_run() -> None:
    with pytest.raises(ValueError, match="^side 'no/run': there is no record.json$"):
        harness.load(PUBLISHED).compare(Path("no/run"), "paper")


@pytest.mark.parametrize("allow", [3, None, [3]], ids=str)
def test_compare_says_what_a_difference_to_allow_is(allow: Any) -> None:
    runs = harness.load(PUBLISHED).filter(budget="controlled", framework="torch")
    with pytest.raises(ValueError, match="^allow: expected the names of differences, not "):
        runs.compare("paper", "conv_ffn", allow=allow)


@pytest.mark.parametrize("folder", [3, None, ROOT / "README.md"], ids=["int", "None", "file"])
def test_folder_of_something_else_is_named_with_its_argument(folder: Any) -> None:
    wrong = "is a file, not a folder$" if isinstance(folder, Path) else f"not {folder}$"
    with pytest.raises(ValueError, match=f"^results: .*{wrong}"):
        harness.run(TINY, results=folder, settings=SETTINGS)
    with pytest.raises(ValueError, match=f"^results: .*{wrong}"):
        harness.translate("paper", ["Ein Hund"], results=folder)
    with pytest.raises(ValueError, match=f"^report: .*{wrong}"):
        harness.load(PUBLISHED).report(folder)


def test_report_writes_the_page_and_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = harness.load(PUBLISHED).filter(budget="source").report(tmp_path / "report")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert capsys.readouterr().out == ""


def test_run_trains_stores_and_translates(tmp_path: Path) -> None:
    results = tmp_path / "results"
    recipe = dataclasses.replace(TINY, name="my_recipe")
    torch.set_num_threads(2)  # a notebook that has imported torch
    run = harness.run(recipe, epochs=1, results=results, settings=SETTINGS)
    record = run.record
    assert torch.get_num_threads() == record.spec.threads == 1
    assert record.status == "completed"
    assert (record.spec.variant, record.spec.data.corpus, record.spec.training.epochs) == ("my_recipe", "captions", 1)
    assert run_store.load_record(results, run.id) == record
    assert "bleu_sacre" in run._repr_html_()
    assert repr(run) == f"<TrainedRun {run.id}: completed>"
    translations = harness.translate(run, ["Ein Hund", " ", "Ein Mann"])
    assert len(translations) == 3
    assert translations[1] == ""
    with pytest.MonkeyPatch.context() as read_only:
        read_only.setattr("fcntl.flock", Mock(side_effect=OSError(errno.EROFS, "Read-only file system")))
        assert harness.run(recipe, epochs=1, results=results, settings=SETTINGS).record == record


def test_run_that_fails_or_diverges_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, "training.peak_rate": 1e30}
    with pytest.warns(UserWarning, match=r"^recipe-captions-.*: diverged: epoch 1"):
        assert harness.run(TINY, epochs=1, results=tmp_path, settings=settings).record.status == "diverged"
    monkeypatch.setattr(train, "measure", Mock(side_effect=RuntimeError("a reason")))
    with pytest.raises(harness.RunFailed, match=r"-captions-.*: RuntimeError: a reason$"):
        harness.run(TINY, epochs=1, results=tmp_path, settings=SETTINGS)
    monkeypatch.setattr(train, "measure", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt, match=r"-captions-.*: interrupted after 7 of 7 updates$"):
        harness.run(TINY, epochs=1, results=tmp_path, settings=SETTINGS)


def test_run_trains_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pair = "Ein Hund springt über einen Zaun.\tA dog is jumping over a fence.\n"
    Path("pairs.tsv").write_text(pair * 40, encoding="utf-8")
    names = ("train_source", "validation_source", "test_source")
    settings = {**SETTINGS, "data.tokenizer": "whitespace", "data.training_pairs": None}
    files = {**dict.fromkeys(names, "pairs.tsv"), "train_target": ""}
    run = harness.run(TINY, files=files, epochs=1, settings=settings)
    assert run.record.spec.data.files == FileSpec(**dict.fromkeys(names, str(tmp_path / "pairs.tsv")))
    with pytest.raises(ValueError, match="there is none in elsewhere"):
        harness.translate(run.id, ["Ein Hund"], results="elsewhere")
    assert harness.translate(run.id, ["Ein Hund"], results="results/local") == harness.translate(run, ["Ein Hund"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": "3"}, "epochs='3': expected a whole number"),
        ({"settings": ["recipe.dropout"]}, "settings: expected names and values, as .*, not "),
        ({"settings": {"variant": "paper"}}, "the variant is no setting; give it as the first argument"),
        ({"settings": {"seed": 4}}, r"the seed is no setting; give seed=\.\.\."),
        ({"settings": {"budget": "source"}}, "the budget is no setting; choose it with or without suite"),
        ({"settings": {"data.corpus": "multi30k"}}, "give corpus=..., which also chooses the tokenizer"),
        ({"corpus": "files"}, "expected paths by the names train_source, "),
        ({"files": {"train": "x"}}, "expected paths by the names train_source, "),
        (
            {"files": {"train_source": 1, "validation_source": 2, "test_source": 3}},
            "expected paths by the names train_",
        ),
        ({"files": {"train_source": "x"}, "corpus": "captions"}, "files with corpus='captions'"),
        ({"corpus": "caption"}, "corpus='caption'"),
        ({"suite": "quik"}, "expected one of quick, standard, full; did you mean 'quick'"),
    ],
    ids=str,
)
def test_run_with_other_arguments_names_what_is_accepted(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        harness.run(TINY, results=tmp_path, **values)


def test_run_of_a_variant_has_the_size_and_training_of_a_suite_or_of_its_source() -> None:
    data = DataSpec(corpus="captions", tokenizer="whitespace")
    small, source = (load.base_spec("paper", suite, data, 2) for suite in ("quick", None))
    assert isinstance(small.recipe, TransformerRecipe)
    assert (small.recipe.width, small.budget, small.training.epochs) == (128, "controlled", 2)
    assert small.training.warmup_updates == 0
    assert (source.recipe, source.budget, source.training.epochs) == (RECIPES["paper"], "source", 2)
    assert source.training.warmup_updates < TRAININGS["paper"].warmup_updates
    assert load.base_spec(RECIPES["paper"], None, data, np.arange(3)[2]) == source
    mine = dataclasses.replace(RECIPES["paper"], positions="alibi")
    small, own = (load.base_spec(mine, suite, data, 2) for suite in ("quick", None))
    assert (small.recipe, small.budget, small.training.label_smoothing) == (mine, "controlled", 0)
    assert (own.recipe, own.budget, own.training) == (mine, "source", source.training)


def test_printed_runs_that_are_not_comparable_say_why(ablation: api.Runs) -> None:
    first, second = ablation.filter(seed=0, embedding_init="width").records[:2]
    other = with_digests(second, source_vocabulary="0" * 64)
    runs = api.Runs((first, other), ablation.results)
    assert all("Not comparable: source vocabulary: " in shown for shown in (repr(runs), runs._repr_html_()))


def test_run_of_a_builder_translates_only_with_permission(tmp_path: Path) -> None:
    run = harness.run("counting_model:build", epochs=1, results=tmp_path, settings=SETTINGS)
    with pytest.raises(ValueError, match="import_builder=True"):
        harness.translate(run, ["Ein Hund"])
    assert len(harness.translate(run, ["Ein Hund"], import_builder=True)) == 1


@pytest.mark.parametrize(
    ("run", "sentences", "message"),
    [
        ("any run", other, "expected a list of sentences, not ")
        for other in ("Ein Hund", [1], [["Ein", "Hund"]], 3, None)
    ]
    + [(other, ["a"], "no run; give a run, its id or a list of them, not ") for other in (None, 3, [], [None])],
)
def test_translate_of_something_else_asks_for_runs_and_sentences(run: Any, sentences: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        harness.translate(run, sentences)


def test_public_names_are_found_by_completion_and_others_are_attribute_errors() -> None:
    assert {*dir(harness)} == {*harness.__all__, "__version__"}
    assert all(getattr(harness, name) is not None for name in harness.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        harness.nothing  # noqa: B018


def test_run_of_something_else_names_what_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = types.ModuleType("notebook_without_a_file")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    exec("def build(*sizes, **settings): ...", vars(notebook))
    refused: list[tuple[Any, str]] = [("papr", "paper")]
    refused += [(other, "is not a variant's name, a recipe") for other in (3, Training(), functools.partial(int))]
    for builder in (vars(notebook)["build"], lambda *sizes, **settings: None):
        refused.append((builder, "cannot be imported from a file.* give mine.build or 'mine:build'"))
    for other, message in refused:
        with pytest.raises(ValueError, match=message):
            harness.run(other, results=tmp_path)
