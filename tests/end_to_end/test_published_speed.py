"""The results page repeats the measurements of speed on a CPU."""

from __future__ import annotations

import re

import published_pages
from places import ROOT
from published_records import joined, section

from harness.reporting.speed_tables import interval
from harness.speed import speed_document

ENGINES = {
    "learned_positions/torch": "`learned_positions` in torch",
    "torch_reference/torch": "`torch_reference` in torch",
    "learned_positions/keras-tensorflow": "Keras on TensorFlow",
    "learned_positions/keras-jax": "Keras on JAX",
    "learned_positions/keras-torch": "Keras on PyTorch",
    "plain": "`plain`",
    "nn_transformer": "`nn_transformer`",
    "marian": "Marian",
    "ctranslate2": "CTranslate2",
    "ctranslate2_int8": "CTranslate2, int8",
}
SECTION = joined(section("How fast"))


def text(ratio: float, low: float, high: float, digits: int = 1) -> str:
    """Return a ratio with its interval as the page shows it."""
    return f"{ratio:.{digits}f} times ({low:.{digits}f} to {high:.{digits}f})"


def test_results_page_repeats_the_speed_of_engines() -> None:
    document = speed_document.load(ROOT / published_pages.ENGINES)
    assert {subject.name for subject in document.subjects} == {*ENGINES, "ctranslate2_bfloat16"}
    for name, title in ENGINES.items():
        subject = document.subject(name)
        cells = [title, "–", "–"]
        if subject.training is not None:
            share = document.mfu(subject).median
            cells[1:] = [f"{1e3 * subject.training.update_seconds:.0f}", f"{100 * share:.0f} %"]
        seconds = {way.name: f"{way.thousand_seconds:.1f}" for way in subject.decoding}
        cells += [seconds.get(way, "–") for way in ("greedy", "beam", "single_greedy")]
        assert f"| {' | '.join(cells)} |" in SECTION
    ratios = {
        (pair.baseline, pair.work): (pair.ratio.median, *interval(pair.ratio))
        for pair in document.comparisons
        if pair.subject == "learned_positions/torch"
    }
    times = {pair: text(*ratio, digits=2 if pair[1] == "training" else 1) for pair, ratio in ratios.items()}
    slower = {
        way: text(1 / ratio, 1 / high, 1 / low)
        for (name, way), (ratio, low, high) in ratios.items()
        if name == "ctranslate2"
    }
    alike = [name for (name, way), (_, low, high) in ratios.items() if way == "single_greedy" and low < 1 < high]
    assert alike == ["nn_transformer", "marian"]
    base = "as fast as `learned_positions` greedily"
    for sentence in (
        *(f"{times[name, 'training']} as fast as `{name}`" for name in ("plain", "nn_transformer")),
        f"{times['marian', 'training']} as fast as Marian",
        f"{times['marian', 'greedy']} as fast as Marian greedily, and {times['marian', 'beam']} with beam 5",
        f"is {slower['greedy']} {base}, and {slower['beam']} with beam 5",
        f"`learned_positions` is {times['plain', 'single_greedy']} as fast as `plain`, and not distinguishable from",
        f"{times['plain', 'single_beam']} as fast as `plain`, and {times['marian', 'single_beam']} as fast as Marian",
        f"CTranslate2 is {slower['single_greedy']} {base}, and {slower['single_beam']} with beam 5",
    ):
        assert sentence in SECTION


def test_results_page_repeats_the_speed_of_variants() -> None:
    document = speed_document.load(ROOT / published_pages.VARIANTS)
    for subject in document.subjects:
        name, training = subject.name.removesuffix("/torch"), subject.training
        milliseconds, share = 1e3 * training.update_seconds, 100 * document.mfu(subject).median
        if name != "plain":
            assert re.search(rf"`{name}` {milliseconds:.0f} ms (per update )?\((MFU )?{share:.0f} %\)", SECTION)
