"""Plots on synthetic records: they are drawn, no two variants look alike, and hostile labels stay text."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from record_factory import record

from harness.analysis.grouping import rows
from harness.reporting import concept_plots, plot_style, run_plots
from harness.reporting.run_plots import LOSSES
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TRAININGS, TUTORIAL


def pixels(picture: Figure) -> Any:
    buffer = io.BytesIO()
    plot_style.styled(picture.savefig)(buffer, format="png", dpi=50)
    buffer.seek(0)
    return imread(buffer)[..., :3]


def is_drawn(image: Any) -> bool:
    ink = (image < 0.9).any(-1)
    return bool(ink.mean() > 0.005) and len(np.unique(image[::2, ::2].sum(-1).round(2))) > 4


HOSTILE = "evil.mod:$\\frac{x}_y$_a_|<b>`t`|[l](http://x.y)"


def broken(record: RunRecord, status: Any = "failed", **fields: Any) -> RunRecord:
    empty: dict[str, Any] = {"curve": (), "scores": {}, "speed": {}, "sizes": {}, "signatures": {}}
    return replace(record, status=status, reason="out of memory", **{**empty, **fields})


MANY = [record(variant) for variant in RECIPES]
AWKWARD = [
    broken(record("paper")),
    broken(record("conv_ffn", seed=1), "diverged", curve=record("conv_ffn").curve[:2]),
    record("learned_positions", training=replace(TUTORIAL, epochs=1)),
    record(HOSTILE),
    record("a_company.with.a.very.long.path.to.its_models:AND_A_VERY_LONG_NAME_OF_A_VARIANT"),
    record(recipe=replace(RECIPES["learned_positions"], dropout=0.3)),
]


DRAW: dict[str, Callable[[Any, Any], Figure]] = {
    "curves": lambda table, labels: run_plots.learning_curves(table, labels, LOSSES),
    "scores": lambda table, labels: run_plots.scores(table, labels, ["bleu_sacre", "test_perplexity"]),
    "speed": lambda table, labels: run_plots.quality_against_speed(
        table, labels, run_plots.speeds(table, "bleu_sacre")
    ),
}


@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("records", [MANY, AWKWARD], ids=["many", "awkward"])
def test_plots_of_records_are_drawn(name: str, records: list[RunRecord]) -> None:
    table = rows(records)
    assert is_drawn(pixels(DRAW[name](table, [row.label for row in table])))


def test_curves_need_two_epochs_and_speed_two_points() -> None:
    short = rows([replace(record(), curve=record().curve[:1])])
    assert not run_plots.has_curves(short, LOSSES)
    assert run_plots.has_curves(rows([record()]), LOSSES)
    assert run_plots.speeds(rows([record()]), "bleu_sacre") == []
    assert len(run_plots.speeds(rows(MANY), "bleu_sacre")) == 2


def test_pareto_front_holds_what_nothing_beats_in_both() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (3.0, 5.0)]
    assert run_plots.pareto_front(points) == [(1.0, 9.0), (3.0, 6.0), (4.0, 1.0)]


def test_curve_readings_carry_every_epoch_where_it_is_drawn() -> None:
    table = rows(MANY[:2])
    labels = [row.label for row in table]
    reading = run_plots.curve_reading(table, labels, LOSSES, run_plots.learning_curves(table, labels, LOSSES))
    assert reading["labels"] == [f"epoch {number}" for number in range(1, len(reading["labels"]) + 1)]
    assert [panel["name"] for panel in reading["panels"]] == labels
    for panel in reading["panels"]:
        assert panel["x"] == sorted(panel["x"])
        assert panel["left"] <= panel["x"][0] < panel["x"][-1] <= panel["right"]
        assert " to " not in panel["texts"][0], "one seed has no interval"


@pytest.mark.parametrize(
    "draw",
    [
        concept_plots.sinusoid_table,
        lambda: concept_plots.learning_rates(TRAININGS),
        concept_plots.padded_masks,
        concept_plots.activations,
    ],
    ids=["sinusoids", "rates", "masks", "activations"],
)
def test_pictures_of_the_models_are_drawn(draw: Callable[[], Figure]) -> None:
    assert is_drawn(pixels(draw()))


def test_a_variant_looks_the_same_everywhere_and_no_two_look_alike() -> None:
    styles = [plot_style.style(name) for name in RECIPES]
    for part in ("colour", "marker", "dashes"):
        assert len({str(getattr(style, part)) for style in styles}) == len(RECIPES)
    table = rows(AWKWARD + MANY)
    assert len({(style.colour, style.marker, style.hollow) for style in plot_style.row_styles(table)}) == len(table)
    assert plot_style.row_styles(rows(MANY[3:4]))[0] == plot_style.row_styles(rows(MANY))[3]
    assert plot_style.style("pkg.mod:NAME") == plot_style.style("pkg.mod:NAME")


def test_hostile_labels_are_no_formulas() -> None:
    picture = run_plots.scores(rows([record(HOSTILE)]), [HOSTILE], ["bleu_sacre"])
    (label,) = picture.axes[0].get_yticklabels()
    assert "$" in label.get_text()
    assert not label.get_parse_math()


def test_labels_never_overlap() -> None:
    for heights in ([0.5] * 7, [0.0, 0.01, 0.9, 0.91, 0.92, 0.93, 1.0], list(np.linspace(1, 0, 7))):
        places = plot_style.spread(heights, [0.1] * 7, 0.0, 1.0)
        ordered = sorted(places)
        assert min(np.diff(ordered)) > 0.1 - 1e-9
        assert ordered[0] >= 0.05 - 1e-9
        assert ordered[-1] <= 0.95 + 1e-9
        assert np.argsort(places, kind="stable").tolist() == np.argsort(heights, kind="stable").tolist()
    assert plot_style.spread([0.2, 0.8], [0.1, 0.1], 0.0, 1.0) == pytest.approx([0.2, 0.8])


def test_a_label_has_at_most_two_lines() -> None:
    for label in ("short", "learned_positions, conv_ffn, torch_reference", "x" * 40, "y" * 500):
        lines = plot_style.short(label).split("\n")
        assert len(lines) <= 2
        assert max(map(len, lines)) <= 31


def test_the_user_s_own_matplotlib_settings_do_not_matter() -> None:
    import matplotlib as mpl

    labels = ["a", "b"]
    before = pixels(run_plots.learning_curves(rows(MANY[:2]), labels, LOSSES))
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.facecolor": "red"}):
        after = pixels(run_plots.learning_curves(rows(MANY[:2]), labels, LOSSES))
        assert mpl.rcParams["font.size"] == 30
    assert (before == after).all()


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 5)])
def test_attention_is_drawn_head_by_head(layers: int, heads: int, tmp_path: Path) -> None:
    source, target = ["<sos>", "ein", "$x_y$", "<eos>"], ["a", "ünïcode", ""]
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (layers, heads, 3)).astype(np.float32)
    concept_plots.attention_heat_map(weights, source, target, tmp_path / "heads.png")
    assert is_drawn(imread(tmp_path / "heads.png")[..., :3])


def test_attention_of_the_wrong_shape_or_ending_is_refused(tmp_path: Path) -> None:
    weights = np.ones((1, 1, 2, 3))
    with pytest.raises(ValueError, match=r"weights of shape \(1, 1, 2, 3\): expected .*4 target tokens, 3 source"):
        concept_plots.attention_heat_map(weights, list("abc"), list("abcd"), tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"picture 'x.gif' must end in .png, .svg or .pdf"):
        concept_plots.attention_heat_map(weights, list("abc"), list("ab"), tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []
