"""What the documentation says about the published runs of `tuned`."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy
from places import ROOT
from published_pages import AVERAGING, CASED, TUNED, TUNED_CPU, TUNED_LEVERS
from published_records import FOLDERS, joined, section

from harness.analysis.effects import CONFIDENCE, Interval
from harness.analysis.evidence import metric_function, sentence_sums
from harness.analysis.inference import combined_degrees, student
from harness.analysis.leaderboard import TableAnalysis, analyse_bench
from harness.analysis.significance import holm, shared_covariance, without_each_sentence
from harness.cli import bench
from harness.cli.main import main, parser
from harness.experiments.specs import DataSpec
from harness.reporting.formatting import between, bounds, number, p_value, signed
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TRAININGS

ALL_ON_CPU = FOLDERS[TUNED_CPU]
ON_2017 = [run for run in ALL_ON_CPU if run.spec.data.test_split != DataSpec().test_split]
ON_2016 = [run for run in ALL_ON_CPU if run not in ON_2017]
PRE_NORM = [run for run in ON_2016 if run.spec.recipe != RECIPES["tuned"]]
OWN, GREEDY, NOT_DIVIDED = (
    [
        run
        for run in ON_2016
        if run not in PRE_NORM and (run.spec.decoding.beam, run.spec.decoding.length_penalty) == search
    ]
    for search in ((5, 1), (1, 1), (5, 0))
)
SECTION = joined(section("A strong recipe"))
README = joined((ROOT / "README.md").read_text(encoding="utf-8"))
DIRECTIONS = ("de-en", "en-de")


def in_direction(direction: str) -> list[RunRecord]:
    return [run for run in FOLDERS[TUNED] if run.spec.data.direction == direction]


ROWS = {
    "`de-en` | own | CPU | 16": (TUNED_CPU, OWN),
    "`de-en` | pre-norm | CPU | 16": (TUNED_CPU, PRE_NORM),
    "`de-en` | pre-norm | GPU | 30": (TUNED, in_direction("de-en")),
    "`en-de` | pre-norm | GPU | 30": (TUNED, in_direction("en-de")),
    "`en-de`, cased | pre-norm | GPU | 30": (CASED, FOLDERS[CASED]),
}
"""The rows of the results page: its first cells, and the folder and runs that it describes."""


def analysed(folder: Path, data: DataSpec) -> TableAnalysis:
    """Return the table of one direction and test set of a folder."""
    (judged,) = analyse_bench([run for run in FOLDERS[folder] if run.spec.data == data], ROOT / folder).tables
    return judged


def label(judged: TableAnalysis, run: RunRecord) -> str:
    return next(row.label for row in judged.table.rows if run in row.records)


def mean(runs: list[RunRecord], metric: str) -> float:
    return float(np.mean([run.scores[metric] or 0.0 for run in runs]))


def curves(runs: list[RunRecord]) -> tuple[list[float], list[float]]:
    """Return validation loss and BLEU after each epoch, averaged over the runs."""
    losses, scores = (
        [[getattr(epoch, name) for epoch in run.curve] for run in runs]
        for name in ("validation_loss", "validation_bleu")
    )
    return list(np.mean(losses, axis=0)), list(np.mean(scores, axis=0))


def test_runs_have_all_epochs_and_the_seeds_of_the_runs_on_a_cpu() -> None:
    for title, (_, runs) in ROWS.items():
        assert {(run.spec.variant, run.status) for run in runs} == {("tuned", "completed")}
        assert {str(len(run.curve)) for run in runs} == {title.split(" | ")[-1]}
        assert sorted(run.spec.seed for run in runs) == list(range(5))
    assert len(OWN[0].curve) == TRAININGS["tuned"].epochs


@pytest.mark.usefixtures("multi30k_folder")
def test_commands_of_the_results_page_plan_the_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (commands,) = re.findall(r"```sh\n(.+?)```", section("A strong recipe"), re.DOTALL)
    lines = [line for line in commands.replace("\\\n", " ").splitlines() if "--device" not in line]
    words = [shlex.split(line, comments=True)[3:] for line in lines]
    planned = [{spec.id for spec in bench._plan(parser().parse_args(line))[1]} for line in words]
    assert planned == [{run.id for run in OWN}, {run.id for run in PRE_NORM}]


@pytest.mark.parametrize("title", ROWS)
def test_results_page_repeats_the_scores(title: str) -> None:
    folder, runs = ROWS[title]
    judged = analysed(folder, runs[0].spec.data)
    interval = judged.leaderboards["bleu_sacre"].intervals[label(judged, runs[0])]
    scores = sorted(run.scores["bleu_sacre"] or 0.0 for run in runs)
    cells = [
        title,
        f"{number(interval.mean, 1)} ({between(interval, 1)})",
        f"{scores[0]:.1f} to {scores[-1]:.1f}",
        f"{mean(runs, 'bleu_tokenised'):.1f}",
        f"{mean(runs, 'test_perplexity'):.2f}",
    ]
    assert f"| {' | '.join(cells)} |" in SECTION


def test_cased_runs_differ_from_the_others_only_in_case() -> None:
    lower = sorted(in_direction("en-de"), key=lambda run: run.spec.seed)
    cased = sorted(FOLDERS[CASED], key=lambda run: run.spec.seed)
    assert [replace(run.spec, data=replace(run.spec.data, case="lower")) for run in cased] == [
        run.spec for run in lower
    ]
    scores = sorted(run.scores["bleu_sacre"] or 0.0 for run in cased)
    assert f"cased `en-de` runs together have 41.0 sacreBLEU, alone {scores[0]:.1f} to {scores[-1]:.1f}" in SECTION


def test_results_page_repeats_the_range_of_the_runs_of_the_ensemble() -> None:
    scores = sorted(run.scores["bleu_sacre"] or 0.0 for run in OWN)
    assert f"settings together have 44.7 sacreBLEU, alone {scores[0]:.1f} to {scores[-1]:.1f}." in SECTION


def test_results_page_repeats_the_curves() -> None:
    gains, falls = [], []
    for direction in DIRECTIONS:
        losses, scores = curves(in_direction(direction))
        *chosen, final = [f"{scores[epoch - 1]:.1f}" for epoch in (4, 8, 12, 16, 20, 24, 28, 30)]
        assert f"{', '.join(chosen)} and {final} for `{direction}`" in SECTION
        last, before = (slice(25, 30), slice(20, 25))
        gains.append(np.mean(scores[last]) - np.mean(scores[before]))
        falls.append(np.mean(losses[before]) - np.mean(losses[last]))
    assert (
        f"rises by {gains[0]:.1f} and {gains[1]:.1f}, and the loss falls by {falls[0]:.3f} and {falls[1]:.3f}"
        in SECTION
    )


def test_results_page_compares_with_a_cpu_and_a_published_system() -> None:
    here, there = ([values[15] for values in curves(runs)] for runs in (in_direction("de-en"), PRE_NORM))
    on_cpu, on_gpu = f"{there[0]:.3f} and {there[1]:.1f} BLEU", f"{here[0]:.3f} and {here[1]:.1f}"
    assert f"on a CPU have a validation loss of {on_cpu}; those on the GPU have {on_gpu}" in SECTION
    scores = [run.scores["bleu_tokenised"] or 0.0 for run in in_direction("en-de")]
    assert max(scores) < 41.0
    assert f"This is {41.0 - np.mean(scores):.1f} above the mean here, and above all five seeds" in SECTION


def test_results_page_repeats_the_gain_over_the_earlier_settings() -> None:
    judged = analysed(TUNED_CPU, OWN[0].spec.data)
    gain = judged.leaderboards["bleu_sacre"].comparisons.between(label(judged, OWN[0]), label(judged, PRE_NORM[0]))
    assert f"They add {number(gain.mean, 1)} BLEU ({between(gain, 1)}) after 16 epochs" in SECTION
    losses, scores = curves(OWN)
    *chosen, final = [f"{scores[epoch - 1]:.1f}" for epoch in (4, 8, 12, 16)]
    assert f"is {', '.join(chosen)} and {final} after 4, 8, 12 and 16 epochs, and the loss {losses[15]:.3f}" in SECTION


def against_own(run: RunRecord) -> tuple[Interval, float]:
    """Return the difference in BLEU of one run from the mean of `OWN`, with its interval and p-value.

    The variance over seeds is that of `OWN`. Otherwise the method is that of `harness.analysis.inference`.
    """
    runs = [*OWN, run]
    folders = {run.id: ROOT / TUNED_CPU for run in OWN} | {run.id: ROOT / TUNED_LEVERS}
    sums = sentence_sums(runs, "bleu_sacre", lambda run: run_store.load_sentences(folders[run.id], run.id))
    metric = metric_function("bleu_sacre")
    *seeds, score = (run.scores["bleu_sacre"] or 0.0 for run in runs)
    left_out = without_each_sentence([sums], metric)
    changes = left_out[..., -1:] - left_out[..., :-1].mean(axis=-1, keepdims=True)
    from_seeds = np.var(seeds, ddof=1) * (1 + 1 / len(seeds))
    total = from_seeds + shared_covariance(changes)[0, 0]
    degrees = combined_degrees(len(seeds) - 1.0, from_seeds, total)
    difference, error = float(score - np.mean(seeds)), float(total**0.5)
    half = float(student(degrees, CONFIDENCE)) * error
    p = 2 * float(scipy.special.stdtr(degrees, -abs(difference) / error))
    return Interval(label=run.id, mean=difference, low=difference - half, high=difference + half), p


def test_results_page_repeats_what_each_setting_taken_back_changes() -> None:
    levers = FOLDERS[TUNED_LEVERS]
    (base,) = (run for run in levers if run in OWN)
    earlier, recipe = PRE_NORM[0].spec, RECIPES["tuned"]
    warmed = replace(TRAININGS["tuned"], batch_size=128, warmup_updates=earlier.training.warmup_updates)
    fields = ("positions", "dropout", "embedding_init", "norm_order")
    names = (
        "sinusoids",
        "dropout 0.3",
        "embeddings of unit variance",
        "pre-norm",
        "batches of 128 and 1,000 updates of warm-up",
    )
    one_back = [(replace(recipe, **{name: getattr(earlier.recipe, name)}), base.spec.training) for name in fields]
    runs = []
    for changed, training in [*one_back, (recipe, warmed)]:
        (run,) = (run for run in levers if (run.spec.recipe, run.spec.training) == (changed, training))
        assert replace(run.spec, recipe=recipe, training=base.spec.training) == base.spec
        runs.append(run)
    assert len(levers) == 1 + len(runs)
    assert {run.environment["commit"]["digest"] for run in [*OWN, *levers]} == {base.environment["commit"]["digest"]}
    effects, p_values = zip(*map(against_own, runs), strict=True)
    for run, name, effect, p in zip(runs, names, effects, holm(p_values), strict=True):
        change = f"{signed(effect.mean, 1)} ({bounds(effect, 1)}; p {p_value(p)})"
        assert f"| {name} | {change} | {run.curve[-1].validation_loss:.3f} |" in SECTION
    pre_norm, sinusoids = effects[-2], effects[0]
    assert f"with one seed, pre-norm changes BLEU by {signed(pre_norm.mean, 1)} ({bounds(pre_norm, 1)})." in README
    lost = [f"{-(value or 0):.1f}" for value in (sinusoids.mean, sinusoids.high, sinusoids.low)]
    assert "with one seed, sinusoids instead cost {} BLEU ({} to {}).".format(*lost) in README
    losses, _ = curves(OWN)
    deviation = np.std([run.scores["bleu_sacre"] or 0.0 for run in OWN], ddof=1)
    assert f"mean validation loss is {losses[-1]:.3f}:" in SECTION
    assert f"whose five seeds have a standard deviation of {deviation:.2f} BLEU" in SECTION


def test_results_page_repeats_what_the_search_contributes() -> None:
    judged = analysed(TUNED_CPU, OWN[0].spec.data)
    by_length, by_beam = (
        judged.leaderboards["bleu_sacre"].comparisons.between(label(judged, runs[0]), label(judged, GREEDY[0]))
        for runs in (OWN, NOT_DIVIDED)
    )
    for runs in (GREEDY, NOT_DIVIDED):
        assert [run.environment["trained_as"] for run in runs] == [run.id for run in OWN]
    scores = [f"{mean(runs, 'bleu_sacre'):.1f}" for runs in (GREEDY, NOT_DIVIDED)]
    assert f"greedy search has {scores[0]} BLEU and beam 5 without this division {scores[1]}" in SECTION
    assert f"difference is {signed(by_beam.mean, 2)} ({bounds(by_beam, 2)})" in SECTION
    assert f"adds {number(by_length.mean, 2)} ({between(by_length, 2)}) to greedy search" in SECTION


def test_results_page_repeats_what_averaging_weights_contributes() -> None:
    averaged, best = (
        [run for run in FOLDERS[AVERAGING] if (run in PRE_NORM) == is_averaged] for is_averaged in (True, False)
    )
    assert [[len(run.chosen_epochs) for run in kind] for kind in (averaged, best)] == [[5] * 5, [1] * 5]
    for kept, again in zip(averaged, best, strict=True):  # the same training
        assert replace(again.spec, training=kept.spec.training) == kept.spec
        assert again.fingerprints["weights_after"] == kept.fingerprints["weights_after"]
        assert [epoch.training_loss for epoch in again.curve] == [epoch.training_loss for epoch in kept.curve]
    judged = analysed(AVERAGING, best[0].spec.data)
    for metric, unit in (("bleu_sacre", " BLEU"), ("test_perplexity", "")):
        rows = [label(judged, kind[0]) for kind in (averaged, best)]
        change = judged.leaderboards[metric].comparisons.between(*rows)
        digits = 2 if unit else 3
        assert f"{signed(change.mean, digits)}{unit} ({bounds(change, digits)}; p {change.p:.3f})" in SECTION, metric
    assert f"alone have {mean(best, 'bleu_sacre'):.1f}" in SECTION


def test_results_page_repeats_the_scores_on_the_test_sets_of_2017() -> None:
    cells = []
    for name in ("test_2017_flickr", "test_2017_mscoco"):
        runs = [run for run in ON_2017 if run.spec.data.test_split == name]
        trained = {run.environment["trained_as"]: run.spec.seed for run in runs}
        assert trained == {run.id: run.spec.seed for run in OWN}
        judged = analysed(TUNED_CPU, runs[0].spec.data)
        (interval,) = judged.leaderboards["bleu_sacre"].intervals.values()
        cells.append(f"{number(interval.mean, 1)} ({between(interval, 1)}) on `{name}`")
    assert " and ".join(cells) in SECTION


def test_comparison_of_the_same_weights_on_two_test_sets_reports_no_copies(capsys: pytest.CaptureFixture[str]) -> None:
    splits = ("test_2017_flickr", "test_2017_mscoco")
    names = ["data.test_split", *(f"file {split}.{language}" for split in splits for language in ("de", "en"))]
    allowed = [argument for name in names for argument in ("--allow", name)]
    sides = [f"tuned@test_split={split}" for split in splits]
    assert main(["compare", *sides, "--results", str(ROOT / TUNED_CPU), *allowed]) == 0
    assert "check:" not in "".join(capsys.readouterr())
