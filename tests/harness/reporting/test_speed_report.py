"""The page of a speed document, from made-up documents: its values, its limits, and hostile text."""

from __future__ import annotations

import html as escaping
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import page_outline
import pytest
import speed_factory
from command_line import FRAMEWORKS, Refused, imported_by
from hostile_text import HOSTILE, rendered
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure as Picture
from scipy import stats
from speed_factory import FAILED, NOISE, OTHER, OURS, PLAIN

from harness.reporting import speed_findings, speed_plots, speed_report, speed_tables
from harness.reporting.document import Figure, Table, find
from harness.reporting.formatting import MISSING
from harness.speed import speed_document
from harness.speed.speed_document import SpeedDocument
from harness.speed.timing import Samples

DOCUMENT = speed_factory.document()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return speed_report.write(DOCUMENT, tmp_path_factory.mktemp("speed")).read_text(encoding="utf-8")


def cells(table: Table, name: str) -> dict[str, str]:
    """Return the row that begins with a name, by heading."""
    (row,) = (row for row in table.rows if row[0] == name)
    return dict(zip(table.heads, map(str, row), strict=True))


def test_the_html_loads_nothing_and_every_reference_meets_an_id(page: str) -> None:
    outline = page_outline.check(page)
    assert all("#" in link for link in outline.references if not link.startswith("data:"))


def test_table_of_training_has_the_values_of_the_document() -> None:
    (table,) = speed_tables.training(DOCUMENT)
    assert [row[0] for row in table.rows] == [OURS, OTHER, PLAIN]
    rounds = np.array([noise + 0.01 * number for number, noise in enumerate(NOISE)])
    low, middle, high = np.quantile(rounds, (0.25, 0.5, 0.75))
    ours = cells(table, OURS)
    assert ours["update, ms"] == f"{100 * middle:.0f} ({100 * low:.0f} to {100 * high:.0f})"
    assert ours["target tokens/s"] == f"{2_000 / middle:,.0f}"
    assert ours["epoch, s"].startswith(f"{10 * middle:.1f} (")
    assert ours["GFLOP/s"] == f"{60 / middle:.1f}"
    shares = np.array([60 * 0.5 * noise / 50 for noise in NOISE]) / rounds
    assert ours["MFU, %"].startswith(f"{100 * np.median(shares):.1f} (")
    assert (ours["first update, s"], ours["peak memory, MiB"]) == ("3.46", "941")
    assert cells(table, OTHER)["MFU, %"] == MISSING
    (overview,) = speed_tables.at_a_glance(DOCUMENT)
    assert cells(overview, OURS)["training, target tokens/s"] == ours["target tokens/s"]
    assert cells(overview, OURS)["MFU, %"] == f"{100 * np.median(shares):.1f}"


def test_interval_of_a_ratio_is_a_t_interval_over_rounds() -> None:
    logarithms = np.log(speed_factory.TIMES_AS_LONG)
    low, high = np.exp(stats.t.interval(0.95, 4, logarithms.mean(), stats.sem(logarithms)))
    changed = speed_factory.with_plain(DOCUMENT, speed_factory.TIMES_AS_LONG)
    ((*_, cell),) = speed_tables.comparisons(changed, changed.comparisons)[0].rows
    assert str(cell) == f"1.20 ({low:.3f} to {high:.2f})"
    (axes,) = speed_plots.ratios(changed).axes
    assert np.asarray(axes.lines[0].get_xdata()) == pytest.approx([low, high])
    single = speed_factory.with_plain(DOCUMENT, speed_factory.TIMES_AS_LONG[:1])
    ((*_, cell),) = speed_tables.comparisons(single, single.comparisons)[0].rows
    assert str(cell) == "0.800", "one round has no interval"
    assert speed_tables.interval(Samples.of([1.2])) == (0, math.inf)


def test_the_exponent_has_its_standard_error_and_is_drawn() -> None:
    fits, points = speed_tables.scaling(DOCUMENT)
    batch, threads = (cells(fits, speed_tables.AXES[axis]) for axis in ("batch_size", "threads"))
    assert fits.title == f"Fitted exponents of {OURS}"
    assert (batch["exponent of time"], batch["sizes"]) == ("0.90 ± 0.00", "3")
    assert threads["exponent of time"] == MISSING
    assert "two are needed for a fit" in threads["remark"]
    assert len(points.rows) == 4
    plot = speed_plots.scaling(DOCUMENT)
    first, second = (axes for axes in plot.axes if axes.get_visible())
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    (fitted,) = (line for line in first.lines if line.get_linestyle() == "--")
    x, y = np.log(np.asarray(fitted.get_data(), np.float64))
    assert (y[1] - y[0]) / (x[1] - x[0]) == pytest.approx(0.9)
    assert not [line for line in second.lines if line.get_linestyle() == "--"]


def test_every_group_of_the_breakdown_has_a_colour_of_its_own() -> None:
    assert len(set(speed_plots.GROUPS.values())) == len(speed_plots.GROUPS)


def test_values_in_bars_have_a_contrast_of_at_least_four() -> None:
    axes = speed_plots.breakdown(DOCUMENT).axes[0]
    colours = {bar.get_x() + bar.get_width() / 2: bar.get_facecolor() for bar in axes.patches}
    assert axes.texts
    for text in axes.texts:
        pair = colours[text.get_position()[0]], to_rgba(text.get_color())
        dark, light = sorted(
            0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2 for red, green, blue, _ in pair
        )
        assert (light + 0.05) / (dark + 0.05) > 4


def bare(**changes: Any) -> SpeedDocument:
    """Return a document of a measurement that was interrupted after one round of training."""
    ours, *_, missing = speed_factory.subjects()
    training = replace(ours.training, seconds=Samples.of(ours.training.seconds.values[:1]))
    ours = replace(ours, training=training, evaluation=None, decoding=(), breakdown=None)
    fields: dict[str, Any] = {"subjects": (ours, missing), "rates": (), "scaling": ()}
    return speed_factory.document(status="incomplete", reason="interrupted by SIGTERM", **{**fields, **changes})


def test_an_incomplete_document_has_a_page_that_says_so(tmp_path: Path) -> None:
    page = speed_report.write(bare(), tmp_path).read_text(encoding="utf-8")
    markdown = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert re.findall(r'<section id="(\w+)"', page) == ["verdict", "overview", "details", "limits", "method"]
    assert [path.name for path in sorted((tmp_path / "figures").iterdir())] == ["training.svg"]
    assert '<p class="warning">Incomplete: interrupted by SIGTERM.' in page
    assert "**Incomplete: interrupted by SIGTERM." in markdown.split("## ")[0]
    assert "Requested and missing: evaluation, decoding, breakdown, scaling." in markdown
    assert "Samples are few (1 each)" in markdown
    assert "ctranslate2: missing: it is not installed" in markdown
    assert "quartiles 1" not in markdown, "one sample has none"


def test_without_any_whole_round_there_is_no_page(tmp_path: Path, refused: Refused) -> None:
    path = speed_document.save(tmp_path, bare(subjects=speed_factory.subjects()[3:]))
    words = ["speed", "--from", str(path), "--reports", str(tmp_path / "reports")]
    refused(words, "no complete round, so there is nothing to show")
    assert not (tmp_path / "reports").exists()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = " ".join(HOSTILE)
    names = {OURS: f"{HOSTILE[0]} | {HOSTILE[7]} [x](javascript:1)", FAILED: f"`{HOSTILE[3]}`\u202e|"}
    subjects: dict[str, Any] = {"weights_from": text, "left_out": {HOSTILE[1]: text}, "decoding": ()}
    subjects |= {"environment": {HOSTILE[2]: HOSTILE[5]}, "variant": HOSTILE[6]}
    changed = [
        replace(model, name=names.get(model.name, model.name), reason=text if model.reason else "", **subjects)
        for model in speed_factory.subjects()
    ]
    first, second = DOCUMENT.scaling
    scaling = replace(first, subject=names[OURS], fixed={HOSTILE[4]: 1.0}), replace(second, points=(), reason=text)
    facts = {"processor": text, "system": text, "versions": {HOSTILE[0]: HOSTILE[1]}, "commit": HOSTILE[12]}
    texts: dict[str, Any] = {"command": text, "note": text, "reason": text, "status": "incomplete"}
    document = speed_factory.document(
        subjects=tuple(changed), machine=speed_factory.machine(**facts), scaling=scaling, **texts
    )
    page = speed_report.write(document, tmp_path).read_text(encoding="utf-8")
    for content in (page, rendered((tmp_path / "index.md").read_text(encoding="utf-8"))):
        outline = page_outline.Outline(content)
        allowed = {"meta", "link"} if content is page else set()
        assert not {"iframe", "math", "base", "meta", "link"} & set(outline.tags) - allowed
        assert not [name for _, name in outline.attributes if name.startswith("on")]
        assert outline.tags.count("script") == (1 if content is page else 0)
        assert outline.tags.count("a") < 20
        assert not any("javascript" in reference for reference in outline.references)
        assert "\u202e" not in content
        assert content is not page or "window.ran=1" in escaping.unescape(content)
    assert outline.tags.count("img") == 1, "ratios"


def test_a_picture_of_very_many_subjects_stays_small() -> None:
    plain = DOCUMENT.subject(PLAIN)
    many = tuple(replace(plain, name=f"plain {number}", decoding=()) for number in range(200))
    plot = speed_plots.training(replace(DOCUMENT, subjects=many))
    assert plot.get_size_inches()[1] < 30


@pytest.mark.parametrize(("copies", "drawn"), [(1, "all"), (30, "main")])
def test_plot_of_many_ratios_has_those_of_the_main_subject(copies: int, drawn: str) -> None:
    others = [replace(DOCUMENT.subject(OURS), name=f"another {number}") for number in range(copies)]
    changed = replace(DOCUMENT, subjects=(*DOCUMENT.subjects, *others))
    (axes,) = speed_plots.ratios(changed).axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert len(rows) == (len(changed.comparisons) if drawn == "all" else len(DOCUMENT.comparisons))
    assert any("another" in row for row in rows) == (drawn == "all")
    (figure,) = (figure for figure in find(speed_report.report(changed).blocks, Figure) if figure.name == "ratios")
    omission = f" {len(rows)} of {len(changed.comparisons)} ratios are drawn; “Every ratio” has all."
    assert figure.caption == speed_report.FIGURES["ratios"][1] + omission * (drawn == "main")


def test_terminal_has_the_headline_and_every_ratio() -> None:
    output = speed_report.terminal(DOCUMENT)
    assert speed_findings.headline(DOCUMENT).finding in output
    assert "30.0 to 30.0" in output
    assert "0.90 ± 0.00" in output


def test_the_page_is_made_again_from_a_stored_document_without_a_framework(page: str, tmp_path: Path) -> None:
    path = speed_document.save(tmp_path, DOCUMENT)
    words = ["speed", "--from", str(path), "--reports", str(tmp_path / "reports")]
    assert not imported_by(*words) & {*FRAMEWORKS, "spacy"}
    assert (tmp_path / "reports" / "speed" / "index.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("ends", [(0.177, 79.8), (1.0, 1.1), (0.5, 3.0), (1e-3, 1e3)])
def test_log_limits_leave_room_for_the_labels_of_the_ends(ends: tuple[float, float]) -> None:
    axes = Picture().add_subplot()
    speed_plots._log_limits([axes], ends, ticks=5)
    low, high = axes.get_xlim()
    first, last = (math.log(end / low) / math.log(high / low) for end in ends)
    assert first > 0.08
    assert last < 0.92
    assert high / low > 2
