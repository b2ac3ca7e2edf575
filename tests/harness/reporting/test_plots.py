"""Plots on synthetic records: they are drawn, no two variants look alike, and hostile labels stay text."""

from __future__ import annotations

import io
import itertools
import random
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hostile_text import HOSTILE_NAME
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Text
from record_factory import broken, record, scored

from harness.analysis.grouping import rows
from harness.reporting import (
    bench_report,
    concept_plots,
    document,
    inline_svg,
    plot_style,
    render_html,
    run_plots,
)
from harness.reporting.run_plots import BLEU, LOSSES
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TUTORIAL


def pixels(picture: Figure) -> Any:
    buffer = io.BytesIO()
    plot_style.styled(picture.savefig)(buffer, format="png", dpi=50)
    buffer.seek(0)
    return imread(buffer)[..., :3]


def is_drawn(image: Any) -> bool:
    ink = (image < 0.9).any(-1)
    return bool(ink.mean() > 0.005) and len(np.unique(image[::2, ::2].sum(-1).round(2))) > 4


MANY = [record(variant) for variant in RECIPES]
AWKWARD = [
    broken(record("paper")),
    broken(record("conv_ffn", seed=1), "diverged", curve=record("conv_ffn").curve[:2]),
    record("learned_positions", training=replace(TUTORIAL, epochs=1)),
    record(HOSTILE_NAME),
    record("a_company.with.a.very.long.path.to.its_models:AND_A_VERY_LONG_NAME_OF_A_VARIANT"),
    record(recipe=replace(RECIPES["learned_positions"], dropout=0.3)),
]


FORTY = scored({f"a_company.its_models:A_LONG_NAME_OF_VARIANT_{number}": [20 + number / 4] for number in range(40)})
DRAW: dict[str, Callable[..., Figure]] = {
    "curves": lambda table, labels, **layout: run_plots.learning_curves(
        run_plots.panels(table, labels, LOSSES), LOSSES, **layout
    ),
    "scores": lambda table, labels, **layout: run_plots.scores(table, labels, ["bleu_sacre"], {}, **layout),
    "speed": lambda table, labels, **layout: run_plots.quality_against_speed(
        table, labels, run_plots.speeds(table), **layout
    ),
}


def drawn(name: str, records: list[RunRecord], **layout: Any) -> Figure:
    """Draw a plot of some runs with the labels of their rows."""
    table = rows(records)
    return DRAW[name](table, [row.label for row in table], **layout)


def visible_texts(picture: Figure) -> list[Text]:
    """Lay a figure out and return its texts, without the numbers of horizontal axes."""
    plot_style.styled(plot_style.lay_out)(picture)
    picture.draw_without_rendering()
    texts = list(picture.texts)
    for axes in picture.axes:
        if axes.get_visible():
            texts += [child for child in axes.get_children() if isinstance(child, Text)]
            texts += [axes.xaxis.label, axes.yaxis.label, *axes.get_yticklabels()]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def check_layout(picture: Figure, layout: plot_style.Layout) -> None:
    """Check that all text is inside the figure, and that the narrow figure is readable on a phone without scaling."""
    texts, whole = visible_texts(picture), picture.bbox
    boxes = {text.get_text(): text.get_window_extent() for text in texts}
    assert [text for text, box in boxes.items() if box.x0 < whole.x0 - 2 or box.x1 > whole.x1 + 2] == []
    assert is_drawn(pixels(picture))
    if layout == "narrow":
        assert picture.get_figwidth() <= plot_style.NARROW
        assert min(text.get_fontsize() for text in texts) >= 6.5


@pytest.mark.parametrize("layout", plot_style.LAYOUTS)
@pytest.mark.parametrize("name", DRAW)
@pytest.mark.parametrize("records", [MANY, AWKWARD, FORTY], ids=["many", "awkward", "forty"])
def test_plots_of_records_are_drawn(name: str, records: list[RunRecord], layout: plot_style.Layout) -> None:
    check_layout(drawn(name, records, layout=layout), layout)


def test_labels_of_forty_variants_do_not_overlap_beside_speeds() -> None:
    texts = visible_texts(drawn("speed", FORTY))
    boxes = [text.get_window_extent() for text in texts if "VARIANT" in text.get_text()]
    labels = sorted((box.y0, box.y1) for box in boxes)
    assert len(labels) == 40
    assert all(upper[0] > lower[1] - 1 for lower, upper in itertools.pairwise(labels))


@pytest.mark.parametrize("layout", plot_style.LAYOUTS)
@pytest.mark.parametrize(("slowest", "fastest"), [(13_763.0, 36_200.0), (120_000.0, 180_000.0)])
def test_numbers_on_the_axes_of_speeds_do_not_overlap(
    slowest: float, fastest: float, layout: plot_style.Layout
) -> None:
    speeds = {"paper": slowest, "conv_ffn": fastest}
    records = [replace(record(name), speed=dict.fromkeys(run_plots.SPEEDS, speed)) for name, speed in speeds.items()]
    picture = drawn("speed", records, layout=layout)
    plot_style.lay_out(picture)
    picture.draw_without_rendering()
    for axes in picture.axes:
        low, high = axes.get_xlim()
        shown = [label for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
        boxes = [label.get_window_extent() for label in shown]
        assert len(boxes) > 1
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_every_colour_of_a_plot_is_in_the_style_sheet() -> None:
    style_sheet = (render_html.TEMPLATES / "report.css").read_text(encoding="utf-8")
    names = {value.removeprefix("var(").removesuffix(")") for value in inline_svg.COLOURS.values()}
    assert not [name for name in names if name.startswith("--") and f"{name}: light-dark(" not in style_sheet]


DEFICIENCIES = {
    "none": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "red": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "green": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "blue": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""Colours as dichromats see them, in linear RGB. Source: Machado, Oliveira and Fernandes 2009."""


def perceived(colours: list[str], deficiency: Any) -> Any:
    """Return colours in Oklab, where distances are alike everywhere. Source: Ottosson 2020."""
    shares = np.array([[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in colours]) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(deficiency).T, 0, 1)
    cones = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
    axes = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    return np.cbrt(seen @ np.array(cones).T) @ np.array(axes).T


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_of_variants_differ_for_the_colour_blind(theme: int) -> None:
    style_sheet = (render_html.TEMPLATES / "report.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--series-\d: light-dark\((#\w{6}), (#\w{6})\)", style_sheet)
    assert len(pairs) == len(plot_style.STYLES)
    for deficiency in DEFICIENCIES.values():
        seen = perceived([pair[theme] for pair in pairs], deficiency)
        distances = np.linalg.norm(seen[:, None] - seen, axis=-1)[np.triu_indices(len(pairs), 1)]
        assert distances.min() > 0.09


def test_of_many_rows_the_first_and_the_best_have_panels() -> None:
    recipes = [replace(RECIPES["learned_positions"], dropout=number / 100) for number in range(20)]
    runs = [
        replace(run := record(recipe=recipe), scores={**run.scores, "bleu_sacre": 30 - recipe.dropout})
        for recipe in recipes
    ]
    table = rows(random.Random(0).sample(runs, len(runs)))
    scores = [row.by_seed("bleu_sacre")[0] for row in table]
    panels = run_plots.panels(table, [str(number) for number in range(20)], LOSSES)
    shown = [int(panel.label) for panel in panels]
    assert len(shown) == run_plots.MOST_PANELS
    assert shown[0] == 0
    assert min(scores[number] for number in shown[1:]) > max(scores[number] for number in {*range(1, 20)} - {*shown})


def test_panels_of_runs_that_failed_before_training_are_left_out() -> None:
    table = rows([broken(record("conv_ffn"), curve=()), record("paper"), broken(record("plain"), curve=())])
    labels = [row.label for row in table]
    (panel,) = run_plots.panels(table, labels, LOSSES)
    assert (table[0].variant, panel.label) == ("conv_ffn", "paper"), "the first panel is the grey line of the others"
    assert run_plots.panels(table[:1], labels[:1], LOSSES) == []


def test_cross_of_a_diverged_run_is_at_its_last_finite_loss() -> None:
    run = record("paper")
    lost = replace(run.curve[2], validation_loss=None, training_loss=None)
    records = [record(), broken(run, "diverged", curve=(*run.curve[:2], lost))]
    panel = drawn("curves", records).axes[1]
    (cross,) = (line for line in panel.lines if line.get_marker() == "x")
    assert (cross.get_xdata(), cross.get_ydata()) == ([2], [run.curve[1].validation_loss])
    for shown, has_cross in ((records, True), (records[:1], False)):
        caption = next(document.find(bench_report.document(shown).blocks, document.Figure)).caption
        assert ("× ends a run" in caption) is has_cross


@pytest.mark.parametrize(("name", "order"), [("bleu_sacre", [2, 0, 1, 3]), ("test_perplexity", [0, 2, 1, 3])])
def test_chart_of_scores_is_sorted_by_its_first_score_with_the_best_on_top(name: str, order: list[int]) -> None:
    values = [{"bleu_sacre": 30.0, "test_perplexity": 5.0}, {"bleu_sacre": 20.0, "test_perplexity": 7.0}]
    values += [{"bleu_sacre": 40.0, "test_perplexity": 6.0}, {}]
    variants = ("learned_positions", "paper", "conv_ffn", "bahdanau_gru")
    table = rows([replace(record(variant), scores=scores) for variant, scores in zip(variants, values, strict=True)])
    picture = run_plots.scores(table, [row.label for row in table], [name], {})
    labels = [label.get_text() for label in picture.axes[0].get_yticklabels()]
    assert labels == [variants[index] for index in order]
    assert picture.axes[0].yaxis_inverted()
    markers = [line.get_markeredgecolor() for line in picture.axes[0].lines if line.get_marker() not in ("None", "")]
    assert markers == [plot_style.style(variants[index]).colour for index in order[:3]]


def test_completed_run_without_a_score_is_not_called_completed_in_the_chart() -> None:
    (axes,) = drawn("scores", [record(), replace(record("paper"), scores={}), broken(record("conv_ffn"))]).axes
    texts = [text.get_text() for text in axes.texts if text.get_color() == plot_style.FAINT]
    assert texts == ["1 failed", "no value"]


@pytest.mark.parametrize(
    ("seeds", "bleu", "expected"),
    [
        (1, 0, ""),
        (1, 30, "Axes do not start at 0"),
        (2, 30, "Rings are seeds, markers their means; axes do not start at 0"),
        (3, 30, "Lines are 95 % intervals over seeds; rings are seeds, markers their means; axes do not start at 0"),
    ],
)
def test_chart_of_scores_says_what_its_intervals_cover_and_where_its_axes_start(
    seeds: int, bleu: float, expected: str
) -> None:
    scores = [bleu + seed for seed in range(seeds)]
    blocks = bench_report.document(scored({"paper": scores, "conv_ffn": scores})).blocks
    (figure,) = (block for block in document.find(blocks, document.Figure) if block.name == "controlled-scores")
    assert figure.draw().get_suptitle() == expected


def test_pareto_front_holds_what_nothing_beats_in_both() -> None:
    points = [(1.0, 9.0), (2.0, 5.0), (3.0, 6.0), (4.0, 1.0), (3.0, 5.0)]
    assert run_plots.pareto_front(points) == [(1.0, 9.0), (3.0, 6.0), (4.0, 1.0)]


def validated(run: RunRecord, epochs: Iterable[int]) -> RunRecord:
    """Return a run with validation BLEU at some epochs: 20 plus the epoch and the seed."""
    curve = [
        replace(line, validation_bleu=20.0 + line.epoch + run.spec.seed if line.epoch in epochs else None)
        for line in run.curve
    ]
    return replace(run, curve=tuple(curve))


def test_validation_bleu_has_a_panel_for_each_row_with_two_scored_epochs() -> None:
    runs = [record("learned_positions"), *(validated(record("paper", seed), (2, 4, 6)) for seed in range(3))]
    table = rows([*runs, validated(record("conv_ffn"), (4,)), validated(record("bahdanau_gru"), (2, 4))])
    panels = run_plots.panels(table, [row.label for row in table], BLEU)
    data = run_plots.curve_data(panels, BLEU)
    assert data.heads == ("epoch", "paper, validation BLEU", "bahdanau_gru, validation BLEU")
    assert [row[::2] for row in data.rows] == [("2", "22.00"), ("4", "24.00"), ("6", "–")]
    assert [str(row[1]).split(" (")[0] for row in data.rows] == ["23.00", "25.00", "27.00"]
    picture = run_plots.learning_curves(panels, BLEU)
    paper, gru = (axes for axes in picture.axes if axes.get_visible())
    assert [axes.get_title(loc="left") for axes in (paper, gru)] == ["paper", "bahdanau_gru"]
    assert [line.get_color() for line in gru.lines] == ["#BBBBBB", plot_style.style("bahdanau_gru").colour]
    assert np.array_equal(gru.lines[1].get_xdata(), [2, 4])
    reading = run_plots.curve_reading(panels, BLEU, picture)
    assert reading["labels"] == ["epoch 2", "epoch 4", "epoch 6"]
    for panel, seeds in zip(reading["panels"], (3, 1), strict=True):
        assert panel["left"] <= panel["x"][0] < panel["x"][1] < panel["x"][2] <= panel["right"]
        assert (" to " in panel["texts"][0]) is (seeds == 3), "one seed has no interval"


def test_a_variant_looks_the_same_everywhere_and_no_two_look_alike() -> None:
    styles = [plot_style.style(name) for name in RECIPES]
    for part in ("colour", "marker", "dashes"):
        assert len({str(getattr(style, part)) for style in styles}) == len(RECIPES)
    table = rows(AWKWARD + MANY)
    assert len({(style.colour, style.marker, style.hollow) for style in plot_style.row_styles(table)}) == len(table)
    assert plot_style.row_styles(rows(MANY[3:4]))[0] == plot_style.row_styles(rows(MANY))[3]
    same: Any = [SimpleNamespace(variant="paper")] * 200  # more than all combinations
    looks = {(style.colour, style.marker, style.hollow) for style in plot_style.row_styles(same)}
    assert len(looks) == 1 + 10 * (len(plot_style.STYLES) - 1)


def test_hostile_labels_are_no_formulas() -> None:
    (axes,) = DRAW["scores"](rows([record(HOSTILE_NAME)]), [HOSTILE_NAME]).axes
    (label,) = axes.get_yticklabels()
    assert "$" in label.get_text()
    assert not label.get_parse_math()


@pytest.mark.parametrize("heights", [[0.5] * 7, [0.0, 0.01, 0.9, 0.91, 0.92, 0.93, 1.0], list(np.linspace(1, 0, 7))])
def test_labels_never_overlap(heights: list[float]) -> None:
    places = plot_style.spread(heights, [0.1] * 7, 0.0, 1.0)
    ordered = sorted(places)
    assert min(np.diff(ordered)) > 0.1 - 1e-9
    assert 0.05 - 1e-9 <= ordered[0] < ordered[-1] <= 0.95 + 1e-9
    assert np.argsort(places, kind="stable").tolist() == np.argsort(heights, kind="stable").tolist()
    assert plot_style.spread([0.2, 0.8], [0.1, 0.1], 0.0, 1.0) == pytest.approx([0.2, 0.8])


def test_a_label_has_at_most_two_lines() -> None:
    for label in ("short", "learned_positions, conv_ffn, torch_reference", "x" * 40, "y" * 500):
        lines = plot_style.short(label).split("\n")
        assert len(lines) <= 2
        assert max(map(len, lines)) <= 31


FOUR = [
    f"learned_positions (tying={tying}, label_smoothing={smoothing})"
    for tying in ("all", "none")
    for smoothing in (0.0, 0.1)
]


def test_learning_curves_of_long_names_have_titles_inside_the_picture() -> None:
    picture = DRAW["curves"](rows(MANY[:4]), FOUR)
    buffer = io.BytesIO()
    plot_style.styled(picture.savefig)(buffer, format="png", dpi=picture.dpi)
    for axes in picture.axes:
        title = next(text for text in axes.findobj(Text) if text.get_text() == axes.get_title(loc="left"))
        assert title.get_window_extent().x1 <= picture.bbox.x1


@pytest.mark.parametrize("width", [15, 19, 21, 24, 27, 30])
def test_short_names_of_settings_of_one_variant_differ(width: int) -> None:
    assert len(set(plot_style.shorts(FOUR, width=width))) == len(FOUR)
    assert plot_style.shorts(["paper", "conv_ffn"], width=width) == ["paper", "conv_ffn"]


@pytest.mark.parametrize("width", [15, 21, 24, 30])
def test_short_names_of_settings_that_differ_in_the_middle_differ_beside_another_variant(width: int) -> None:
    ends = [f"positions={end}, norm=rms, norm_order=pre, activation=gelu)" for end in ("rotary", "alibi")]
    names = ["conv_ffn", *(f"paper (dropout=0.2, heads=4, {end}" for end in ends)]
    first, *others = [" ".join(name.split()) for name in plot_style.shorts(names, width=width)]
    assert (first, others) == ("conv_ffn", ["paper … positions=rotary", "paper … positions=alibi"])
    names = [f"positions=sinusoidal, {more}learning rate 0.002" for more in ("", "norm=rms, ")]
    expected = [plot_style.short(names[0], width=19), "positions=sinusoi …\nnorm=rms"]
    assert plot_style.shorts([*names, "base"], width=19)[:2] == expected


def test_matplotlib_settings_of_the_user_do_not_matter() -> None:
    import matplotlib as mpl

    before = pixels(drawn("curves", MANY[:2]))
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.facecolor": "red"}):
        after = pixels(drawn("curves", MANY[:2]))
        assert mpl.rcParams["font.size"] == 30
    assert (before == after).all()


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 5)])
def test_attention_is_drawn_head_by_head(
    layers: int, heads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Mock(wraps=plot_style.write)
    monkeypatch.setattr(plot_style, "write", write)
    source, target = ["<sos>", "ein", "$x_y$", "<eos>"], ["a", "ünïcode", ""]
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (layers, heads, 3)).astype(np.float32)
    concept_plots.attention_heat_map(weights, source, target, tmp_path / "heads.png")
    assert is_drawn(imread(tmp_path / "heads.png")[..., :3])
    shown = [image.get_array() for axes in write.call_args.args[0].axes for image in axes.images]
    np.testing.assert_array_equal(shown, weights.reshape(layers * heads, 3, 4))


def test_title_of_the_attention_to_a_short_sentence_fits_into_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures: list[Figure] = []
    monkeypatch.setattr(plot_style, "write", lambda picture, path: pictures.append(picture))
    concept_plots.attention_heat_map(np.ones((1, 1, 1, 2)), list("ab"), ["a"], tmp_path / "heads.png")
    (title,) = pictures[0].findobj(lambda artist: isinstance(artist, Text) and "Attention" in artist.get_text())
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= pictures[0].bbox.width


def test_attention_heat_map_finds_fonts_for_other_scripts_and_names_characters_without(tmp_path: Path) -> None:
    picture, weights = tmp_path / "heads.png", np.ones((1, 1, 1, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        concept_plots.attention_heat_map(weights, ["a", "\u210a"], ["a"], picture)
    with pytest.warns(UserWarning, match="no installed font has \U000f1234: they are drawn as boxes") as caught:
        concept_plots.attention_heat_map(weights, ["a", "\U000f1234"], ["a"], picture)
    assert len(caught) == 1


def test_attention_of_the_wrong_shape_or_ending_is_refused(tmp_path: Path) -> None:
    weights = np.ones((1, 1, 2, 3))
    with pytest.raises(ValueError, match=r"weights of shape \(1, 1, 2, 3\): expected .*4 target tokens, 3 source"):
        concept_plots.attention_heat_map(weights, list("abc"), list("abcd"), tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"picture 'x.gif' must end in .png, .svg or .pdf"):
        concept_plots.attention_heat_map(weights, list("abc"), list("ab"), tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []
