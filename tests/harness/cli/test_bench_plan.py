"""Which variants `bench` runs in which frameworks, what it says of those it leaves out, and `--plan`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pages_factory
import pytest
from record_factory import record

from harness.analysis.effects import Method
from harness.analysis.evidence import stored_sentences
from harness.analysis.power import estimate_noise
from harness.cli import bench, seed_plan
from harness.cli.main import main, parser
from harness.experiments.suites import SUITES, VARIANTS
from harness.storage import run_store
from impls import registry


def planned(*words: str) -> list[tuple[str, str]]:
    given = parser().parse_args(["bench", *words])
    return bench._pairs(given.variant or [], SUITES[given.suite or "quick"], given)


def test_a_suite_runs_what_it_names_in_keras_too() -> None:
    torch = [(name, "torch") for name in VARIANTS]
    assert planned() == [*torch, ("learned_positions", "keras")]
    assert planned("--suite", "standard") == [
        *torch,
        *((name, "keras") for name in VARIANTS if name != "torch_reference"),
    ]


def test_options_choose_frameworks() -> None:
    assert planned("--variant", "paper") == [("paper", "torch")]
    both = ["--framework", "torch", "--framework", "keras"]
    assert planned("--variant", "paper", *both) == [("paper", "torch"), ("paper", "keras")]
    assert planned("--variant", "torch_reference", *both) == [("torch_reference", "torch")]
    assert {framework for _, framework in planned("--framework", "keras")} == {"keras"}


@pytest.mark.parametrize(("gone", "left"), [("keras", "torch"), ("torch", "keras")])
def test_a_framework_that_is_missing_is_left_out_and_said(
    gone: str, left: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "not here" if framework == gone else "")
    assert {framework for _, framework in planned()} == {left}
    assert f"in {gone}. not here" in capsys.readouterr().out
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "not here")
    with pytest.raises(ValueError, match="no framework is available: not here"):
        planned()


# How many seeds -------------------------------------------------------------------------------------------------------


@pytest.fixture
def nothing_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seed_plan, "PUBLISHED", tmp_path / "nothing")
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))


PLAN = [
    "bench",
    "--variant",
    "learned_positions",
    "--variant",
    "paper",
    "--budget",
    "controlled",
    "--suite",
    "standard",
]
CAPTIONS = ["--corpus", "captions", "--tokenizer", "whitespace", "--jobs", "1"]


def pilot(results: Path, deviation: float, seeds: int = 4) -> None:
    """Store runs of both variants whose sacreBLEU varies over seeds."""
    given = parser().parse_args([*PLAN, *CAPTIONS])
    noise = np.random.default_rng(0)
    for spec in bench._plan(given)[1]:
        if spec.seed == 0:
            for seed in range(seeds):
                one = replace(spec, seed=seed)
                bleu = {"bleu_sacre": 35 + deviation * noise.standard_normal()}
                made = record(spec.variant, seed)
                speed = {**made.speed, "total_seconds": 600.0}
                run_store.save_record(results, replace(made, id=one.id, spec=one, scores=bleu, speed=speed))


@pytest.mark.usefixtures("nothing_published")
def test_a_plan_tells_seeds_and_time_from_a_pilot_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results"
    pilot(results, 0.3)
    before = sorted(path.name for path in results.iterdir())
    needed = {}
    for difference in ("2", "0.5"):
        line = [*PLAN, *CAPTIONS, "--results", str(results), "--plan", f"detect={difference}"]
        assert main(line) == 0
        shown = capsys.readouterr().out
        said = re.search(r"(\d+) seeds: (\d+) runs, about (.+?) with 1 at once, as long as in the pilot\.", shown)
        assert said
        needed[difference] = int(said[1])
        assert int(said[2]) == 2 * needed[difference]
        assert "2 rows over 4 seeds" in shown
        assert "The variance due to other test sentences is unknown and not included." in shown
        assert "Nothing was run." in shown
    assert 3 <= needed["2"] < needed["0.5"]
    assert sorted(path.name for path in results.iterdir()) == before


@pytest.mark.usefixtures("nothing_published")
def test_a_plan_without_a_pilot_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pilot(tmp_path / "results", 0.3, seeds=1)
    line = [*PLAN, *CAPTIONS, "--results", str(tmp_path / "results"), "--plan", "detect=1"]
    assert main(line) == 2
    assert "run a pilot first, such as: python -m harness bench --seed 0-2" in capsys.readouterr().err


def test_a_plan_falls_back_on_the_published_runs() -> None:
    single = [record("learned_positions", 0).spec]
    found, records, where = seed_plan._pilot(single, "bleu_sacre", Path("no such folder"))
    assert "the published runs in " in where
    assert found.noise.degrees >= 2
    assert records


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0.5", "give detect=NUMBER"),
        ("detect=0", "the number is positive"),
        ("detect=nan", "the number is positive"),
        ("detect=1,bleu_sacer", "did you mean 'bleu_sacre'?"),
    ],
)
def test_a_plan_that_says_nothing_is_refused(text: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--plan", text]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_noise_of_the_sentences_limits_what_any_number_of_seeds_can_find(tmp_path: Path) -> None:
    records = pages_factory.folder(tmp_path, ("learned_positions", "paper", "conv_ffn"), seeds=3, count=40)
    found = estimate_noise(records, "bleu_sacre", stored_sentences(tmp_path), method=Method(resamples=100))
    assert found is not None
    assert (found.rows, found.seeds, found.with_sentences, found.paired) == (3, 3, True, True)
    assert found.noise.degrees == 4
    alone = estimate_noise(
        [one for one in records if one.spec.variant == "paper"], "bleu_sacre", stored_sentences(tmp_path)
    )
    assert alone is not None
    assert (alone.paired, alone.with_sentences, alone.noise.degrees) == (False, False, 2)
