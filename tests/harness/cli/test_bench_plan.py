"""The variants and frameworks that `bench` runs, and `--plan`."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pages_factory
import pytest
import scipy.special
from command_line import Refused
from record_factory import record

from harness.analysis.evidence import stored_sentences
from harness.analysis.power import estimate_noise
from harness.cli import bench, seed_plan
from harness.cli.main import main, parser
from harness.experiments.specs import DataSpec
from harness.experiments.suites import SUITES, VARIANTS
from harness.processes.progress import duration
from harness.storage import run_store
from impls import registry


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
    assert planned("--variant", "paper") == [("paper", "torch")]
    frameworks = ["--framework", "torch", "--framework", "keras"]
    assert planned("--variant", "paper", *frameworks) == [("paper", "torch"), ("paper", "keras")]
    assert planned("--variant", "torch_reference", *frameworks) == [("torch_reference", "torch")]
    assert {framework for _, framework in planned("--framework", "keras")} == {"keras"}


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


# How many seeds -------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_published_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_plan, "PUBLISHED", tmp_path / "nothing")
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))


PLAN = ["bench", "--variant", "learned_positions", "--variant", "paper"]
PLAN += ["--budget", "controlled", "--suite", "standard"]
CAPTIONS = ["--corpus", "captions", "--tokenizer", "whitespace", "--jobs", "1"]


def store_pilot(results: Path, deviation: float, seeds: int = 4) -> None:
    """Store runs of both variants whose sacreBLEU varies over seeds."""
    noise = np.random.default_rng(0)
    for base in bench._plan(parser().parse_args([*PLAN, *CAPTIONS]))[1]:
        if base.seed == 0:
            for spec in (replace(base, seed=seed) for seed in range(seeds)):
                run = record(spec.variant, spec.seed)
                scores = {"bleu_sacre": 35 + deviation * noise.standard_normal()}
                speed = {**run.speed, "total_seconds": 600.0}
                run_store.save_record(results, replace(run, id=spec.id, spec=spec, scores=scores, speed=speed))


@pytest.mark.usefixtures("no_published_runs")
def test_plan_prints_seeds_and_time_and_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = tmp_path / "results"
    store_pilot(results, 0.3)
    before = sorted(path.name for path in results.iterdir())
    needed = {}
    for difference in ("2", "0.5"):
        line = [*PLAN, *CAPTIONS, "--results", str(results), "--plan", f"detect={difference}"]
        assert main(line) == 0
        output = capsys.readouterr().out
        match = re.search(r"(\d+) seeds: (\d+) runs, about (.+?) with 1 at once, as long as in the pilot\.", output)
        assert match
        needed[difference] = int(match[1])
        assert int(match[2]) == 2 * needed[difference]
        assert match[3] == duration(600.0 * int(match[2]))
        assert "2 rows over 4 seeds" in output
        assert "The variance due to other test sentences is unknown and not included." in output
        assert "Nothing was run." in output
    assert 3 <= needed["2"] < needed["0.5"]
    assert sorted(path.name for path in results.iterdir()) == before


@pytest.mark.usefixtures("no_published_runs")
def test_plan_without_a_pilot_names_the_command_for_one(tmp_path: Path, refused: Refused) -> None:
    store_pilot(tmp_path / "results", 0.3, seeds=1)
    line = [*PLAN, *CAPTIONS, "--results", str(tmp_path / "results"), "--plan", "detect=1"]
    refused(line, "run a pilot first, such as: python -m harness bench --seed 0-2")


@pytest.mark.parametrize("folder", [seed_plan.PUBLISHED, seed_plan.PUBLISHED / "ablation"], ids=lambda path: path.name)
def test_plan_uses_the_published_runs_of_its_own_size(folder: Path) -> None:
    """The ablation has more runs, but smaller ones."""
    single = [replace(run.spec, seed=0) for run in run_store.records(folder) if run.spec.budget == "controlled"]
    assert seed_plan._pilot_runs(single, "bleu_sacre", Path("no such folder")).source.endswith(f" {folder}")


def test_plan_prefers_published_runs_on_its_own_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any folder of published runs is read, and other settings on the same corpus come before another corpus."""
    published = seed_plan.PUBLISHED
    monkeypatch.setattr(seed_plan, "PUBLISHED", tmp_path)
    store_pilot(tmp_path / "captions", 0.3, seeds=3)
    for path in published.glob("*controlled*"):
        shutil.copytree(path, tmp_path / path.name)
    captions = run_store.records(tmp_path / "captions")[0].spec
    other = replace(captions, seed=0, threads=7)
    for spec, folder in ((other, tmp_path / "captions"), (replace(other, data=DataSpec()), tmp_path)):
        assert seed_plan._pilot_runs([spec], "bleu_sacre", Path("no such folder")).source.endswith(f" {folder}")


def test_estimate_has_the_noise_of_paired_seeds_and_sentences(tmp_path: Path) -> None:
    records = pages_factory.folder(tmp_path, ("learned_positions", "paper", "conv_ffn"), seeds=3, count=40)
    sentences = stored_sentences(tmp_path)
    estimate = estimate_noise(records, "bleu_sacre", sentences)
    assert estimate is not None
    assert (estimate.rows, estimate.seeds, estimate.with_sentences, estimate.paired) == (3, 3, True, True)
    bleu = np.reshape([record.scores["bleu_sacre"] or 0.0 for record in records], (3, 3))
    logits = scipy.special.logit(bleu / 100)
    residuals = logits - logits.mean(axis=1, keepdims=True) - logits.mean(axis=0) + logits.mean()
    assert estimate.noise.run_variance == pytest.approx((residuals**2).sum() / 4)
    assert estimate.noise.degrees == 4
    assert estimate.level == pytest.approx(np.median(bleu.mean(axis=1)))
    one_row = [record for record in records if record.spec.variant == "paper"]
    estimate = estimate_noise(one_row, "bleu_sacre", sentences)
    assert estimate is not None
    assert (estimate.paired, estimate.with_sentences, estimate.noise.degrees) == (False, False, 2)
    assert estimate.noise.run_variance == pytest.approx(logits[1].var(ddof=1))
    assert estimate.noise.sentence_variance == 0


def test_estimate_includes_the_variance_of_sentences_that_all_seeds_share() -> None:
    generator, tokens = np.random.default_rng(0), np.full(200, 10, np.int32)
    harder_for_paper, records, stored = 5 * generator.normal(size=200), [], {}
    for variant, effect in (("learned_positions", 0.0), ("paper", harder_for_paper)):
        for seed in range(3):
            run, nats = record(variant, seed), 15 + effect + 0.1 * generator.normal(size=200)
            stored[run.id] = {"nats": nats, "tokens": tokens}
            scores = {**run.scores, "test_perplexity": math.exp(nats.sum() / tokens.sum())}
            records.append(replace(run, scores=scores))
    estimate = estimate_noise(records, "test_perplexity", lambda run: stored[run.id])
    assert estimate is not None
    assert estimate.with_sentences
    of_losses = (harder_for_paper / 10).var() / 200
    assert estimate.noise.sentence_variance == pytest.approx(of_losses, rel=0.2)
