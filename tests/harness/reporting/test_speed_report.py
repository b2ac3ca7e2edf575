"""The page of a speed document, from made-up documents: its figures, what it says is missing, and what it may hold."""

from __future__ import annotations

import html as escaping
import re
import subprocess
import sys
import xml.etree.ElementTree as tree
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import speed_factory as made
from hostile_text import HOSTILE
from markdown_it import MarkdownIt
from places import ROOT
from test_render_html import Outline

from harness.cli.main import main
from harness.reporting import speed_findings, speed_plots, speed_report, speed_tables
from harness.reporting.document import Table, figures, tables
from harness.reporting.formatting import MISSING, significant_digits
from harness.speed import document_store
from harness.speed.speed_document import SpeedDocument, SpeedRatio
from harness.speed.timing import Samples

EVERY = ("comparisons", "overview", "training", "decoding", "cost", "limits", "method")
PICTURES = {"training", "decoding", "ratios", "breakdown", "scaling"}


@pytest.fixture(scope="module")
def document() -> SpeedDocument:
    return made.document()


@pytest.fixture(scope="module")
def folder(document: SpeedDocument, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speed")
    assert speed_report.write(document, path) == path / "index.html"
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(folder: Path) -> str:
    return (folder / "index.md").read_text(encoding="utf-8")


def cells(table: Table, name: str) -> dict[str, str]:
    """Return the row that begins with a name, by heading."""
    (row,) = (row for row in table.rows if row[0] == name)
    return dict(zip(table.heads, map(str, row), strict=True))


# What the page is -----------------------------------------------------------------------------------------------------


def test_every_section_is_there_in_order_and_in_the_contents(page: str, markdown: str) -> None:
    assert tuple(re.findall(r'<section id="(\w+)"', page)) == ("verdict", *EVERY)
    assert tuple(re.findall(r'<li><a href="#(\w+)">', page)) == EVERY
    titles = re.findall(r"^## (.*)$", markdown, re.MULTILINE)
    assert titles == ["Compared with baselines", "At a glance", "Training", "Decoding", "Limits"]
    assert len(markdown.split("\n")) <= 150


def test_the_html_loads_nothing_and_every_reference_meets_an_id(page: str) -> None:
    found = Outline(page)
    assert not {"iframe", "object", "embed", "img", "base", "form"} & set(found.tags)
    assert not [name for _, name in found.attributes if name.startswith("on") or name == "src"]
    assert len(found.ids) == len(set(found.ids))
    wanted = {re.sub(r"^(?:url\()?#|\)$", "", one) for one in found.references if not one.startswith("data:")}
    assert len(wanted) > 30
    assert wanted <= set(found.ids)
    assert "default-src &#39;none&#39;" in page
    assert page.count("<script>") == 1


def test_every_picture_shows_something_and_says_what(folder: Path, page: str, document: SpeedDocument) -> None:
    assert {path.name for path in (folder / "figures").iterdir()} == {f"{name}.svg" for name in PICTURES}
    for figure in figures(speed_report.report(document).blocks):
        assert len(list(tree.parse(folder / "figures" / f"{figure.name}.svg").iter())) > 50
        assert len(figure.alt) > 40
        assert f'aria-label="{escaping.escape(figure.alt, quote=False)}"' in page.replace("&#39;", "'")
    assert page.count('class="drawn"') == len(PICTURES)


def test_the_same_document_gives_the_same_bytes(document: SpeedDocument, folder: Path, tmp_path: Path) -> None:
    speed_report.write(document, tmp_path)
    paths = [path.relative_to(folder) for path in sorted(folder.rglob("*.*"))]
    assert len(paths) == 3 + len(PICTURES)
    assert all((folder / path).read_bytes() == (tmp_path / path).read_bytes() for path in paths)


def test_html_page_has_every_cell(document: SpeedDocument, page: str) -> None:
    seen = " ".join(escaping.unescape(re.sub(r"<[^>]*>", " ", page)).split())
    for table in tables(speed_report.report(document).blocks):
        for cell in (cell for row in table.rows for cell in row):
            for part in (cell,) if isinstance(cell, str) else (cell.text, cell.detail):
                assert " ".join(part.split()) in seen, (table.title, part)


def rendered(markdown: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown)


# Figures --------------------------------------------------------------------------------------------------------------


def test_the_table_of_training_is_the_document_s(document: SpeedDocument) -> None:
    (table,) = speed_tables.training(document)
    assert [row[0] for row in table.rows] == [made.OURS, made.OTHER, made.PLAIN]
    rounds = np.array([one + 0.01 * place for place, one in enumerate(made.NOISE)])
    low, middle, high = np.quantile(rounds, (0.25, 0.5, 0.75))
    ours = cells(table, made.OURS)
    assert ours["update, ms"] == f"{100 * middle:.0f} ({100 * low:.0f} to {100 * high:.0f})"
    assert ours["target tokens/s"] == f"{2_000 / middle:,.0f}"
    assert ours["epoch, s"].startswith(f"{10 * middle:.1f} (")
    assert ours["GFLOP/s"] == f"{60 / middle:.1f}"
    shares = np.array([60 * 0.5 * noise / 50 for noise in made.NOISE]) / rounds
    assert ours["MFU, %"].startswith(f"{100 * np.median(shares):.1f} (")
    assert (ours["first update, s"], ours["peak memory, MiB"]) == ("3.46", "941")
    assert ours["training loop ÷ bare loop"].startswith("1.02 (")
    other, plain = cells(table, made.OTHER), cells(table, made.PLAIN)
    assert other["MFU, %"] == plain["training loop ÷ bare loop"] == MISSING


def test_evaluation_decoding_and_breakdown_are_the_document_s(document: SpeedDocument) -> None:
    (table,) = speed_tables.evaluation(document)
    found = cells(table, made.OURS)
    assert (found["seconds"], found["nats per token"]) == ("2.10 (2.00 to 2.20)", "4.5678")
    assert found["peak memory, MiB"] == "unknown"
    tables = speed_tables.decoding(document)
    assert [one.title for one in tables] == ["Greedy, in batches", "Beam 5, in batches", "Greedy, one by one"]
    plain = cells(tables[2], made.PLAIN)
    assert plain["equal translations"] == f"39 of 40 ({made.OURS})"
    assert (plain["seconds"], plain["sentences/s"]) == ("60.0 (57.0 to 63.0)", "0.667")
    assert plain["seconds for 1,000"] == "1,500"
    (table,) = speed_tables.breakdown(document)
    assert cells(table, "matrix products")[made.OURS] == "62.5 (321)"
    assert cells(table, "profiled ÷ unprofiled time")[made.OURS] == "1.21"


def test_ratios_are_those_of_the_samples_round_by_round(document: SpeedDocument) -> None:
    (table,) = speed_tables.comparisons(document)
    found = {(row[3], row[4]): str(row[5]) for row in table.rows}
    assert found == {
        ("training", "training"): "4.00",
        ("greedy, in batches", "greedy, one by one"): "375",
        ("greedy, one by one", "greedy, one by one"): "30.0",
    }


def _untrue(document: SpeedDocument, place: str) -> SpeedDocument:
    """Return the document with one ratio that its samples do not give."""
    ours = document.subjects[0]
    assert ours.training is not None
    changed: dict[str, Any] = {}
    if place == "comparisons":
        first, *others = document.comparisons
        changed["comparisons"] = (replace(first, ratio=Samples.of([9.0] * len(first.ratio))), *others)
    elif place == "a comparison of nothing":
        more = SpeedRatio(subject=made.OTHER, baseline=made.PLAIN, what="greedy", baseline_what="greedy",
                          ratio=Samples.of([2.0]))  # fmt: skip
        changed["comparisons"] = (more,)
    elif place == "operations":
        changed["rates"] = tuple(replace(one, operations=0, operations_per_second=0.0) for one in document.rates)
    elif place == "exponent":
        changed["scaling"] = (replace(document.scaling[0], exponent=1.0),)
    else:
        series = Samples.of([0.99] * made.ROUNDS)
        changed["subjects"] = (
            replace(ours, training=replace(ours.training, **{place: series})),
            *document.subjects[1:],
        )
    return replace(document, **changed)


@pytest.mark.parametrize(
    "place", ["comparisons", "a comparison of nothing", "operations", "exponent", "limit_share", "loop_ratio"]
)
def test_a_ratio_that_is_not_that_of_the_samples_is_refused(
    place: str, document: SpeedDocument, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="expected "):
        speed_report.write(_untrue(document, place), tmp_path / "page")
    assert not list(tmp_path.iterdir())


def test_a_document_begun_on_no_day_is_refused(document: SpeedDocument) -> None:
    with pytest.raises(ValueError, match=r"started='\$\(reboot\)': expected a date"):
        replace(document, started="$(reboot)")


def test_the_exponent_has_its_standard_error_and_is_drawn(document: SpeedDocument) -> None:
    fits, points = speed_tables.scaling(document)
    batch, threads = (cells(fits, speed_tables.AXES[one]) for one in ("batch_size", "threads"))
    assert (batch["exponent of time"], batch["sizes"]) == ("0.90 ± 0.00", "3")
    assert threads["exponent of time"] == MISSING
    assert "two are needed for a fit" in threads["remark"]
    assert len(points.rows) == 4
    drawn = speed_plots.scaling(document)
    assert drawn is not None
    first, second = (axes for axes in drawn.axes if axes.get_visible())
    assert (first.get_xscale(), first.get_yscale()) == ("log", "log")
    (fitted,) = (line for line in first.lines if line.get_linestyle() == "--")
    x, y = np.log(np.asarray(fitted.get_data(), np.float64))
    assert (y[1] - y[0]) / (x[1] - x[0]) == pytest.approx(0.9)
    assert not [line for line in second.lines if line.get_linestyle() == "--"]


def test_the_stacked_bar_is_the_shares_end_to_end(document: SpeedDocument) -> None:
    drawn = speed_plots.breakdown(document)
    assert drawn is not None
    bars = sorted((bar.get_x(), bar.get_width()) for bar in drawn.axes[0].patches)  # type: ignore[attr-defined]
    assert [width for _, width in bars] == pytest.approx([62.5, 12.5, 19, 4, 2])
    assert [start for start, _ in bars] == pytest.approx([0, 62.5, 75, 94, 98])


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0.000"), (0.00123, "0.0012"), (0.08, "0.080"), (0.1234, "0.123"), (1.234, "1.23"), (12.34, "12.3"),
     (123.4, "123"), (12_345.6, "12,346")],
)  # fmt: skip
def test_figures_have_the_digits_that_count(value: float, written: str) -> None:
    assert significant_digits(value) == written


# Words ----------------------------------------------------------------------------------------------------------------


def test_headline_has_the_ratios_and_the_findings_the_rest(document: SpeedDocument) -> None:
    headline = speed_findings.headline(document)
    assert headline.finding.startswith(
        f"Training {made.OURS} is 4.00× faster than plain. Its decoding (greedy, one by one)"
    )
    assert "is 30.0× faster than plain" in headline.finding
    assert "report only ratios" in headline.caveat
    said = " ".join(speed_findings.findings(document))
    assert said.startswith(f"An update of {made.OURS}, 128 sentences, takes 109 ms (quartiles 100 to 111)")
    assert "takes 1.12 times as long as the bare updates for paper/torch" in said
    unknown = speed_findings.unknown(document)
    assert "marian: failed: its process ended with code -9" in unknown
    assert "ctranslate2: missing: it is not installed" in unknown
    assert "Left out: beam 5, one by one of paper/torch: it would take too long" in unknown
    assert any("1 of 40 translations differ from those of" in one for one in unknown)
    assert any("Samples are few (3 to 5 each)" in one for one in unknown)
    assert speed_findings.warnings(document) == []


@pytest.mark.parametrize(
    ("rounds", "decided"),
    [
        ((1.2,), False),
        ((1.01, 1.03, 1.06), False),  # all above 1, as in one of four cases where there is no difference
        ((1.28, 1.3, 1.31), True),
        ((0.69, 0.7, 0.72), True),
        ((0.97, 1.02, 1.03, 1.05, 1.06), False),
        ((2.0, 2.0), True),
    ],
)
def test_a_ratio_is_told_from_1_by_the_interval_of_its_mean(rounds: tuple[float, ...], decided: bool) -> None:
    assert speed_findings.undecided(Samples.of(rounds)) != decided


def test_a_ratio_whose_interval_holds_1_is_no_difference(document: SpeedDocument) -> None:
    ratio = Samples.of([0.8, 0.9, 1.3, 1.4])
    found = replace(document, comparisons=(replace(document.comparisons[0], ratio=ratio),))
    assert speed_findings.headline(found).finding.endswith("is not distinguishable from plain.")
    said = " ".join(speed_findings.findings(found))
    assert "because the 95 % interval of the ratio holds 1: plain, training (0.875 to 1.32)" in said


def test_what_is_wrong_with_a_measurement_stands_on_top() -> None:
    small = replace(made.settings(), size="toy", parts=("training", "decoding"))
    found = made.document(
        status="incomplete",
        reason="interrupted by SIGINT",
        settings=small,
        machine=made.machine(load_before=7.5),
        data=replace(made.data(), spec=replace(made.data().spec, corpus="captions")),
        subjects=(replace(made.subjects()[0], evaluation=None, breakdown=None, idle_share=0.2), *made.subjects()[1:]),
        comparisons=(),
        scaling=(),
        rates=(),
    )
    incomplete, toy, captions, busy = speed_findings.warnings(found)
    assert incomplete.startswith("Incomplete: interrupted by SIGINT.")
    assert toy.startswith("Toy size")
    assert "not Multi30k" in captions
    assert "load average was 7.50 before it began" in busy
    unknown = " ".join(speed_findings.unknown(found))
    assert "Not requested, and so not measured: evaluation, breakdown, scaling." in unknown
    assert "Requested and missing" not in unknown
    assert f"while others were timed, whose times are too long: {made.OURS} (20 %)" in unknown
    assert "The matmul peak of the machine is unknown, and so is the MFU." in unknown
    empty = replace(found.subjects[2], training=None, decoding=())
    unknown = " ".join(speed_findings.unknown(replace(found, subjects=(found.subjects[0], empty))))
    assert "plain: started, but nothing was measured." in unknown


# Documents that are not whole -----------------------------------------------------------------------------------------


def bare(**changes: Any) -> SpeedDocument:
    """Return a document that was broken off after one round of training."""
    ours, *_, missing = made.subjects()
    assert ours.training is not None
    one = Samples.of(ours.training.seconds.values[:1])
    training = replace(
        ours.training, seconds=one, limit_share=None, harness_seconds=None, loop_ratio=None, update_seconds=np.nan,
        target_per_second=np.nan, tokens_per_second=np.nan, epoch_seconds=np.nan, operations_per_second=np.nan,
    )  # fmt: skip
    ours = replace(ours, training=training, evaluation=None, decoding=(), breakdown=None)
    fields: dict[str, Any] = {"subjects": (ours, missing), "rates": (), "comparisons": (), "scaling": ()}
    return made.document(status="incomplete", reason="interrupted by SIGTERM", **{**fields, **changes})


def test_an_incomplete_document_has_a_page_that_says_so(tmp_path: Path) -> None:
    page = speed_report.write(bare(), tmp_path).read_text(encoding="utf-8")
    markdown = (tmp_path / "index.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r'<section id="(\w+)"', page)) == (
        "verdict", "overview", "training", "limits", "method"
    )  # fmt: skip
    assert [path.name for path in sorted((tmp_path / "figures").iterdir())] == ["training.svg"]
    assert '<p class="warning">Incomplete: interrupted by SIGTERM.' in page
    assert "**Incomplete: interrupted by SIGTERM." in markdown.split("## ")[0]
    assert "Requested and missing: evaluation, decoding, breakdown, scaling." in markdown
    assert "Samples are few (1 each)" in markdown
    assert "ctranslate2: missing: it is not installed" in markdown
    assert "quartiles 1" not in markdown, "one sample has none"


def test_without_any_whole_round_there_is_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = document_store.save(tmp_path, bare(subjects=made.subjects()[3:]))
    assert main(["speed", "--from", str(path), "--reports", str(tmp_path / "reports")]) == 2
    told = capsys.readouterr().err
    assert "no complete round, so there is nothing to show" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "reports").exists()


# Text from strangers --------------------------------------------------------------------------------------------------


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    text = " ".join(HOSTILE)
    names = {made.OURS: f"{HOSTILE[0]} | {HOSTILE[7]} [x](javascript:1)", made.FAILED: f"`{HOSTILE[3]}`\u202e|"}
    subjects = [
        replace(
            one, name=names.get(one.name, one.name), weights_from=text, variant=f"{one.variant}{HOSTILE[6]}",
            reason=text if one.reason else "", left_out={HOSTILE[1]: text}, environment={HOSTILE[2]: HOSTILE[5]},
            training=None if one.training is None else replace(one.training, limit_share=None), decoding=(),
        )
        for one in made.subjects()
    ]  # fmt: skip
    first, second = made.document().scaling
    found = made.document(
        subjects=tuple(subjects),
        command=text,
        note=text,
        reason=text,
        status="incomplete",
        machine=made.machine(processor=text, system=text, versions={HOSTILE[0]: HOSTILE[1]}, commit=HOSTILE[12]),
        comparisons=(made.compared(subjects[0], subjects[2], "training", "training",
                                   made.document().comparisons[0].ratio.values),),
        scaling=(replace(first, subject=names[made.OURS], fixed={HOSTILE[4]: 1.0}),
                 replace(second, points=(), reason=text)),
    )  # fmt: skip
    page = speed_report.write(found, tmp_path).read_text(encoding="utf-8")
    told = rendered((tmp_path / "index.md").read_text(encoding="utf-8"))
    for shown in (page, told):
        outline = Outline(shown)
        allowed = {"meta", "link"} if shown is page else set()
        assert not {"iframe", "math", "base", "meta", "link"} & set(outline.tags) - allowed
        assert not [name for _, name in outline.attributes if name.startswith("on")]
        assert outline.tags.count("script") == (1 if shown is page else 0)
        assert outline.tags.count("a") < 20
        assert not any("javascript" in one for one in outline.references)
        assert "\u202e" not in shown
        assert shown is told or "window.ran=1" in escaping.unescape(shown)
    assert outline.tags.count("img") == 2, "training and ratios"


def test_a_picture_of_very_many_subjects_stays_small(document: SpeedDocument) -> None:
    plain = document.subject(made.PLAIN)
    many = tuple(replace(plain, name=f"plain {number}", decoding=()) for number in range(200))
    drawn = speed_plots.training(replace(document, subjects=many, comparisons=()))
    assert drawn is not None
    assert drawn.get_size_inches()[1] < 30


# The command ----------------------------------------------------------------------------------------------------------


def test_the_page_is_made_again_from_a_stored_document_without_a_framework(
    document: SpeedDocument, folder: Path, tmp_path: Path
) -> None:
    path = document_store.save(tmp_path, document)
    words = ["speed", "--from", str(path), "--reports", str(tmp_path / "reports")]
    code = (
        "import sys\nfrom harness.cli.main import main\n"
        f"assert main({words!r}) == 0\n"
        "print('LOADED', sorted({'torch', 'tensorflow', 'jax', 'keras', 'spacy'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          cwd=ROOT)  # fmt: skip
    assert done.stdout.endswith("LOADED []\n"), done.stderr
    page = tmp_path / "reports" / "speed" / "index.html"
    assert f"The page: {page} (as Markdown: {page.with_name('index.md')})" in done.stdout
    assert page.read_bytes() == (folder / "index.html").read_bytes()


@pytest.mark.parametrize(
    "option", [["--rounds", "3"], ["--size", "toy"], ["--variant", "paper"], ["--corpus", "captions"], ["--note", "x"],
               ["--set", "recipe.dropout=0"], ["--weights", "x"], ["--train-source", "x"], ["--results", "x"]]
)  # fmt: skip
def test_what_is_to_be_measured_and_a_stored_document_exclude_each_other(
    option: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["speed", "--from", "x.json", *option]) == 2
    told = capsys.readouterr().err
    assert f"{option[0]} with --from: --from measures nothing, so give one or the other" in told
    assert told.count("\n") == 1


def test_a_document_that_is_not_there_or_edited_is_one_line(
    document: SpeedDocument, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = document_store.save(tmp_path, document)
    path.write_text(path.read_text(encoding="utf-8").replace("Ditto(R)", "Faster(R)"), encoding="utf-8")
    for name, message in ((path, "seal"), (tmp_path / "nothing.json", "cannot be read")):
        assert main(["speed", "--from", str(name), "--reports", str(tmp_path / "reports")]) == 2
        told = capsys.readouterr().err
        assert message in told
        assert str(name) in told
        assert told.count("\n") == 1
    assert not (tmp_path / "reports").exists()
