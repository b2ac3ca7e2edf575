"""The results page repeats the comparison on a GPU, that of `plain` on a CPU, and the speed on a GPU."""

from __future__ import annotations

import re

import numpy as np
import published_pages
import pytest
from places import ROOT
from published_records import FOLDERS, REPORTS, RESULTS_PAGE, controlled_differences, joined, section

from harness.analysis.leaderboard import analyse_bench
from harness.cli.main import main
from harness.reporting.speed_tables import interval
from harness.speed import speed_document
from harness.storage.records import RunRecord

GPU = FOLDERS[published_pages.GPU]
CPU = [
    run
    for run in (*FOLDERS[published_pages.RESULTS], *FOLDERS[published_pages.PLAIN])
    if (run.spec.budget, run.environment["framework"]) == ("controlled", "torch")
]
SECTION = joined(section("The same comparison on a GPU"))
VARIANTS = sorted({run.spec.variant for run in GPU})
BASE = "learned_positions"
SEEDS, COMMON_SEEDS = range(5), range(3)


def scores(runs: list[RunRecord], variant: str, metric: str = "bleu_sacre") -> list[float]:
    """Return the scores of a variant by seed."""
    by_seed = {run.spec.seed: run.scores[metric] or 0.0 for run in runs if run.spec.variant == variant}
    return [by_seed[seed] for seed in range(len(by_seed))]


def test_results_page_repeats_the_comparison_on_a_gpu() -> None:
    effects = controlled_differences(REPORTS / "gpu" / "index.md")
    from_base = {variant: effect for (variant, base), effect in effects.items() if base == BASE}
    differences = {name: "{} ({} to {}; p {})".format(*effect) for name, effect in from_base.items()}
    assert set(differences) == set(VARIANTS) - {BASE}
    moves = {}
    for variant in VARIANTS:
        assert (len(scores(GPU, variant)), len(scores(CPU, variant))) == (len(SEEDS), len(COMMON_SEEDS))
        bleu, perplexity = (
            [float(np.mean(scores(runs, variant, metric))) for runs in (GPU, CPU)]
            for metric in ("bleu_sacre", "test_perplexity")
        )
        cells = [*(f"{value:.1f}" for value in bleu), *(f"{value:.2f}" for value in perplexity)]
        assert f"| `{variant}` | {' | '.join(cells)} | {differences.get(variant, '–')} |" in SECTION
        moves[variant] = [gpu - cpu for gpu, cpu in zip(scores(GPU, variant), scores(CPU, variant), strict=False)]
    assert f"no mean moves by more than {max(abs(np.mean(values)) for values in moves.values()):.1f} BLEU" in SECTION
    lower = {name: sorted(-value for value in values) for name, values in moves.items() if max(values) < 0}
    named = [f"`{name}` by {values[0]:.2f} to {values[-1]:.2f}" for name, values in sorted(lower.items())]
    assert f"Three variants are lower with each of these seeds: {', '.join(named[:-1])} and {named[-1]}." in SECTION


def test_results_page_repeats_the_lead_with_new_seeds() -> None:
    leads = [a - b for a, b in zip(scores(GPU, "paper"), scores(GPU, BASE), strict=True)][len(COMMON_SEEDS) :]
    assert f"`paper` is ahead of `{BASE}` by {' and '.join(f'{lead:.2f}' for lead in leads)}" in SECTION


def test_results_page_repeats_who_is_behind() -> None:
    (judged,) = analyse_bench(GPU, ROOT / published_pages.GPU).tables
    worse: dict[str, set[str]] = {name: set() for name in VARIANTS}
    for effect in judged.leaderboards["bleu_sacre"].comparisons.differences:
        if effect.significant:
            pair = (effect.first, effect.second)
            worse[pair[effect.mean > 0]].add(pair[effect.mean < 0])
    assert worse.pop("paper") == set()
    behind = {"sinusoidal_handmade", "bahdanau_gru"}
    for name, better in worse.items():
        assert better >= ({"paper", *worse} - behind if name in behind else {"paper"})
        assert name in behind or better == {"paper"}


def test_runs_on_gpu_and_cpu_have_the_same_batches_and_initial_weights() -> None:
    on_cpu = {(run.spec.variant, run.spec.seed): run for run in CPU}
    assert {run.environment["machine"]["gpu"] for run in GPU} == {"NVIDIA H200"}
    for run in (run for run in GPU if run.spec.seed in COMMON_SEEDS):
        other = on_cpu[run.spec.variant, run.spec.seed].fingerprints
        assert all(run.fingerprints[name] == other[name] for name in ("weights", "batches", "tokenised"))


def test_results_page_repeats_the_difference_of_plain_on_a_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "plain", BASE, "--results", str(ROOT / published_pages.PLAIN)]) == 0
    found = re.search(r"minus A \(plain\): (\S+) \(95 % interval (\S+ to \S+)\)", capsys.readouterr().out)
    assert f"`{BASE}` differs from `plain` by {found[1]} ({found[2]};" in SECTION


def test_results_page_repeats_the_speed_on_a_gpu() -> None:
    document = speed_document.load(ROOT / published_pages.SPEED_GPU)
    subject = document.subject(f"{BASE}/torch")
    update = subject.training.update_seconds
    times = {
        pair.work: "{:.1f} times ({:.1f} to {:.1f})".format(pair.ratio.median, *interval(pair.ratio))
        for pair in document.comparisons
        if pair.baseline == "plain"
    }
    seconds = {way.name: way.thousand_seconds for way in subject.decoding}
    for sentence in (
        f"an update of `{BASE}` takes {1e3 * update:.1f} ms, an epoch {update * document.data.epoch_updates:.1f} s",
        f"`plain` {times['training']} as long. MFU is {100 * document.mfu(subject).median:.0f} %",
        f"1,000 sentences take {seconds['greedy']:.2f} s greedily and {seconds['beam']:.2f} s with beam 5",
        f"they take {seconds['single_greedy']:.0f} s, {times['single_greedy']} as fast as `plain`",
    ):
        assert sentence in joined(RESULTS_PAGE)
    page = REPORTS / "gpu" / "speed" / "index.md"
    assert "cuda, float32, matmul precision high, CUDA graphs." in page.read_text(encoding="utf-8")
