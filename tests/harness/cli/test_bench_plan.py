"""The variants and frameworks that `bench` runs, and `--plan`."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pages_factory
import pytest
import scipy.special
from command_line import Refused
from record_factory import record

from harness.analysis.power import estimate_noise, seeds_needed, upper_bound
from harness.analysis.scales import LOGIT
from harness.cli import bench, chosen_models, seed_plan
from harness.cli.main import main, parser
from harness.experiments import suites
from harness.experiments.specs import DataSpec, RunSpec
from harness.experiments.suites import SUITES, VARIANTS
from harness.processes import machine
from harness.processes.progress import duration
from harness.storage import run_store
from harness.storage.stored_files import StoredFiles
from impls import registry
from impls.recipes import LEARNED_POSITIONS


def planned(*words: str) -> list[tuple[str, str]]:
    arguments = parser().parse_args(["bench", *words])
    models = bench._models(SUITES[arguments.suite or "quick"], arguments)
    return [(model.variant, model.framework) for model in models]


def test_suites_include_keras_variants() -> None:
    torch = [(name, "torch") for name in VARIANTS]
    assert planned() == [*torch, ("learned_positions", "keras")]
    assert planned("--suite", "standard") == [
        *torch,
        *((name, "keras") for name in VARIANTS if name != "torch_reference"),
    ]


def test_options_choose_frameworks() -> None:
    twice = ["--variant", "paper", "--variant", "paper", "--framework", "torch", "--framework", "torch"]
    assert planned("--variant", "paper") == planned(*twice) == [("paper", "torch")]
    frameworks = ["--framework", "torch", "--framework", "keras"]
    assert planned("--variant", "paper", *frameworks) == [("paper", "torch"), ("paper", "keras")]
    assert planned("--variant", "torch_reference", *frameworks) == [("torch_reference", "torch")]
    assert {framework for _, framework in planned("--framework", "keras")} == {"keras"}


@pytest.mark.parametrize(
    ("used", "framework"),
    [
        ({"keras_adapter": ModuleType("impls.keras3.keras_adapter")}, "keras"),
        ({"Network": type("Network", (), {"__module__": "impls.keras3.keras_transformer"})}, "keras"),
        ({"wrap": len, "RECIPE": LEARNED_POSITIONS}, "torch"),
    ],
)
def test_builder_runs_in_its_framework_if_options_name_both(
    used: dict[str, Any], framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ModuleType("mine")
    vars(mine).update(used, build=lambda *sizes, **settings: None)
    monkeypatch.setitem(sys.modules, "mine", mine)
    for both in (("torch", "keras"), ("keras", "torch")):
        options = [word for name in both for word in ("--framework", name)]
        assert planned("--variant", "mine:build", *options) == [("mine:build", framework)]


@pytest.mark.parametrize(("missing", "remaining"), [("keras", "torch"), ("torch", "keras")])
def test_missing_framework_is_left_out_with_a_message(
    missing: str, remaining: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "not here" * (framework == missing))
    assert {framework for _, framework in planned()} == {remaining}
    assert f"in {missing}. not here" in capsys.readouterr().out
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "not here")
    with pytest.raises(ValueError, match="no framework is available: not here"):
        planned()


@pytest.mark.parametrize(
    ("variants", "device", "left_out"),
    [(None, "cuda:0", ["jax"]), (None, "cpu", []), (None, None, []), (["learned_positions"], "cuda", [])],
)
def test_choose_leaves_out_models_of_a_suite_whose_backend_cannot_use_the_gpu(
    variants: list[str] | None, device: str | None, left_out: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "")
    monkeypatch.setattr(machine, "gpu_usable", lambda computes: computes == "torch")
    frameworks = ["keras"] if variants else None
    models, reasons = chosen_models.choose(SUITES["quick"], variants, frameworks, ["torch", "jax"], device)
    assert [model.backend for model in reasons] == left_out
    assert all(reason == f"'{model.backend}' cannot use the GPU here" for model, reason in reasons.items())
    in_keras = [model.name for model in models if model.framework == "keras"]
    assert in_keras == [f"learned_positions/keras-{backend}" for backend in ("torch", "jax") if backend not in left_out]


def test_runs_that_the_report_will_not_compare_are_named_before_training() -> None:
    short = replace(LEARNED_POSITIONS, name="short", max_length=60)
    quick, data = SUITES["quick"], DataSpec(corpus="captions")
    specs = [suites.spec(quick, "learned_positions", budget="controlled", seed=seed, data=data) for seed in (0, 1)]
    other = replace(specs[0], variant="mine:SHORT", recipe=short, data=replace(data, max_length=60))
    assert bench._not_comparable(specs) == []
    (line,) = bench._not_comparable([*specs, other])
    assert "they differ in data.max_length: 100 in learned_positions; 60 in mine:SHORT" in line


# How many seeds -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_published_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_plan, "PUBLISHED", tmp_path / "nothing")
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))


PLAN = ["bench", "--variant", "learned_positions", "--variant", "paper"]
PLAN += ["--budget", "controlled", "--suite", "standard"]
CAPTIONS = ["--corpus", "captions", "--tokenizer", "whitespace", "--jobs", "1"]


def store_pilot(results: Path, seeds: int = 4, options: Sequence[str] = ()) -> None:
    """Store runs of both variants whose sacreBLEU varies over seeds."""
    noise = np.random.default_rng(0)
    for base in bench._plan(parser().parse_args([*PLAN, *CAPTIONS, *options]))[1]:
        if base.seed == 0:
            for spec in (replace(base, seed=seed) for seed in range(seeds)):
                run = record(spec.variant, spec.seed)
                scores = {"bleu_sacre": 35 + 0.3 * noise.standard_normal()}
                speed = {**run.speed, "total_seconds": 600.0}
                run_store.save_record(results, replace(run, id=spec.id, spec=spec, scores=scores, speed=speed))


def source(*specs: RunSpec, results: Path = Path("no such folder")) -> str:
    """Return where the noise of a plan of these runs comes from."""
    return seed_plan._pilot_runs(specs, "bleu_sacre", results).source


@pytest.mark.usefixtures("no_published_runs")
@pytest.mark.parametrize(("jobs", "budget"), [(1, "controlled"), (2, "controlled"), (1, "")])
def test_plan_prints_the_seeds_and_time_by_the_noise_of_the_pilot_and_runs_nothing(
    jobs: int, budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table has the rows of one budget; a run that failed after a second says nothing about the time."""
    store_pilot(tmp_path)
    records = run_store.records(tmp_path)
    failed = replace(records[0], spec=replace(records[0].spec, seed=9), status="failed", reason="out of memory")
    failed = replace(failed, id=failed.spec.id, speed={"total_seconds": 1.0})
    run_store.save_record(tmp_path, failed)
    estimate = estimate_noise(records, "bleu_sacre", lambda run: None)
    noise, level = estimate.noise, LOGIT.forward(estimate.level)
    difference = LOGIT.natural(0.5, estimate.level)
    seeds, more = (seeds_needed(each, difference, 2, 1) for each in (noise, upper_bound(noise)))
    assert seeds is not None
    assert more is not None
    deviation = float(LOGIT.shown(math.sqrt(noise.run_variance), level))
    bleu = np.reshape([run.scores["bleu_sacre"] or 0.0 for run in sorted(records, key=lambda run: run.id)], (2, 4))
    assert deviation == pytest.approx(float(np.std(bleu[0] - bleu[1], ddof=1) / math.sqrt(2)), rel=0.01)

    line = ["bench", "--variant", "learned_positions", "--variant", "paper", "--suite", "standard", *CAPTIONS]
    line += ["--budget", budget] if budget else []
    before = sorted(path.name for path in tmp_path.iterdir())
    assert main([*line, "--jobs", str(jobs), "--results", str(tmp_path), "--plan", "detect=0.5"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    output, time = capsys.readouterr().out, duration(600.0 * seeds * 2 / jobs)
    for text in (
        "between two of 2 rows (1 comparison, Holm's correction)",
        f"  {seeds} seeds: {seeds * (2 if budget else 4)} runs, ",
        f"runs, about {time} with {jobs} at once, as long as in the pilot." * bool(budget),
        f"  {more} seeds if the noise is as large as the upper end of its one-sided 80 % interval.",
        f"a run over seeds relative to the other rows of its seed is {deviation:.2f} at {estimate.level:.2f}, ",
        "2 rows over 4 seeds",
        "The variance due to other test sentences is unknown and not included.",
        "Nothing was run.",
    ):
        assert text in output
    assert "another test set" not in output
    pilot = seed_plan.PilotRuns(estimate, records, "a pilot")
    for data, name in (
        (DataSpec(test_split="test_2017_mscoco"), "multi30k de-en, test_2017_mscoco"),
        (replace(records[0].spec.data, direction="en-de"), "captions en-de, its test split"),
    ):
        assumptions = seed_plan._assumptions(pilot, "bleu_sacre", [replace(records[0].spec, data=data)])
        assert f"These runs have another test set: on {name}, the noise may differ." in assumptions


def test_plan_of_one_row_counts_its_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_pilot(tmp_path, seeds=3)
    line = ["bench", "--variant", "paper", "--suite", "standard", *CAPTIONS, "--budget", "controlled"]
    assert main([*line, "--results", str(tmp_path), "--plan", "detect=0.5"]) == 0
    output = capsys.readouterr().out
    assert "between this row and another, whose runs are not counted (1 comparison, Holm's correction)" in output
    seeds, runs = re.search(r"(\d+) seeds: (\d+) runs", output).groups()
    assert seeds == runs


@pytest.mark.usefixtures("no_published_runs")
def test_plan_without_a_pilot_names_the_command_for_one(tmp_path: Path, refused: Refused) -> None:
    store_pilot(tmp_path / "results", seeds=1)
    line = [*PLAN, *CAPTIONS, "--results", str(tmp_path / "results"), "--plan", "detect=1"]
    refused(line, "run a pilot first, such as: python -m harness bench --seed 0-2")


@pytest.mark.parametrize("folder", [seed_plan.PUBLISHED, seed_plan.PUBLISHED / "ablation"], ids=lambda path: path.name)
def test_plan_uses_the_published_runs_of_its_own_size(folder: Path) -> None:
    """The ablation has more runs, but smaller ones."""
    single = [replace(run.spec, seed=0) for run in run_store.records(folder) if run.spec.budget == "controlled"]
    assert source(*single).endswith(f" {folder}")
    other = [replace(spec, threads=7) for spec in single]
    recipes = {run.spec.recipe for run in seed_plan._pilot_runs(other, "bleu_sacre", Path("no such folder")).records}
    assert {spec.recipe for spec in single} & recipes, "also with settings that no published run has"


def test_plan_prefers_published_runs_on_its_own_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any folder of published runs is read, and other settings on the same test set come before another one."""
    published = seed_plan.PUBLISHED
    monkeypatch.setattr(seed_plan, "PUBLISHED", tmp_path)
    store_pilot(tmp_path / "captions", seeds=3)
    for path in published.glob("*controlled*"):
        shutil.copytree(path, tmp_path / path.name)
    captions = run_store.records(tmp_path / "captions")[0].spec
    other = replace(captions, seed=0, threads=7)
    store_pilot(tmp_path / "english", seeds=9, options=("--direction", "en-de"))
    english = replace(other, data=replace(captions.data, direction="en-de"))
    for spec, folder in (
        (other, tmp_path / "captions"),
        (english, tmp_path / "english"),
        (replace(other, data=DataSpec()), tmp_path),
    ):
        assert source(spec).endswith(f" {folder}")


def test_plan_of_a_new_row_uses_other_runs_on_its_corpus_unless_they_are_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store_pilot(tmp_path, seeds=3)
    first = run_store.records(tmp_path)[0]
    new = replace(first.spec, seed=0, threads=7)
    assert source(new, results=tmp_path) == f"other runs in {tmp_path}"
    multi30k = replace(new, data=DataSpec())
    run_store.save_record(tmp_path, replace(record(), spec=multi30k, id=multi30k.id))
    elsewhere = source(replace(multi30k, threads=8), results=tmp_path)
    assert elsewhere.startswith("the published runs in "), "one run has no noise"
    (run_store.run_folder(tmp_path, first.id) / run_store.SENTENCES).write_bytes(b"damaged")
    assert source(new, results=tmp_path).startswith("the published runs in ")
    assert run_store.SENTENCES in capsys.readouterr().err


def test_plan_prefers_published_runs_of_more_rows_and_then_more_degrees_of_freedom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seed_plan, "PUBLISHED", tmp_path)
    for name, seeds in (("a", 3), ("b", 5), ("c", 4)):
        store_pilot(tmp_path / name, seeds=seeds)
    single = [replace(run.spec, seed=0) for run in run_store.records(tmp_path / "a") if run.spec.seed == 0]
    other = [replace(spec, threads=7) for spec in single]
    for specs in (single, other):
        assert source(*specs).endswith("/b")
    for path in (tmp_path / "b").glob("paper*"):
        shutil.rmtree(path)
    assert source(*single).endswith("/c")


def test_estimate_has_the_noise_of_paired_seeds_and_sentences(tmp_path: Path) -> None:
    records = pages_factory.folder(tmp_path, ("learned_positions", "paper", "conv_ffn"), seeds=3, count=40)
    sentences = StoredFiles(tmp_path).sentences
    estimate = estimate_noise(records, "bleu_sacre", sentences)
    assert (estimate.rows, estimate.seeds, estimate.with_sentences) == (3, 3, True)
    bleu = np.reshape([record.scores["bleu_sacre"] or 0.0 for record in records], (3, 3))
    logits = scipy.special.logit(bleu / 100)
    residuals = logits - logits.mean(axis=1, keepdims=True) - logits.mean(axis=0) + logits.mean()
    assert estimate.noise.run_variance == pytest.approx((residuals**2).sum() / 4)
    assert estimate.noise.degrees == 4
    assert estimate.level == pytest.approx(np.median(bleu.mean(axis=1)))
    one_row = [record for record in records if record.spec.variant == "paper"]
    estimate = estimate_noise(one_row, "bleu_sacre", sentences)
    assert (estimate.rows, estimate.with_sentences, estimate.noise.degrees) == (1, False, 2)
    assert estimate.noise.run_variance == pytest.approx(logits[1].var(ddof=1))
    assert estimate.noise.sentence_variance == 0
