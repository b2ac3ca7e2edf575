"""The HTML reports in a browser: they are drawn, sort, filter and explore; load nothing; and run no hostile text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pages_factory
import pytest
import speed_factory
from browser_view import SIZES, View, launched, open_view
from hostile_text import HOSTILE
from pages_factory import write
from record_factory import record

from harness.experiments.specs import DataSpec
from harness.reporting import speed_report
from harness.reporting.run_files import CorpusText
from harness.storage import run_store

pytestmark = pytest.mark.browser
for package in ("playwright", "axe_playwright_python"):
    pytest.importorskip(package, reason=f"needs {package}: pip install '.[browser]'")

Open = Callable[..., View]
VARIANTS = ("learned_positions", "conv_ffn", "bahdanau_gru")
COUNT = 40
SECTIONS = ["verdict", "leaderboard", "curves", "scores", "speed", "ablation"]
SECTIONS += ["significance", "translations", "attention", "positions", "method"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as chromium:
        yield chromium


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    contexts: list[Any] = []
    yield partial(open_view, browser, contexts)
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with every section: two budgets, a diverged run, an ablation, attention and corpus text."""
    results = tmp_path_factory.mktemp("results")
    records = pages_factory.folder(results, VARIANTS, seeds=3, count=COUNT, weights=True)
    records += pages_factory.folder(results, VARIANTS[:2], seeds=1, count=COUNT, budget="source")
    for positions in ("sinusoidal", "none"):
        base = records[0].spec.recipe
        for seed in range(3):
            changed = replace(base, positions=positions)
            records.append(record("learned_positions", seed, recipe=changed))
    runs = [(run.spec.variant, run.spec.seed) for run in records]
    index = runs.index(("conv_ffn", 2))
    lost = records[index]
    records[index] = replace(lost, status="diverged", reason="loss is nan", scores={}, curve=lost.curve[:2])
    return write(records, tmp_path_factory.mktemp("report"), results=results, texts=pages_factory.texts(COUNT))


def test_every_section_is_drawn(report: Path, open_page: Open) -> None:
    view = open_page(report)
    assert [section.get_attribute("id") for section in view.page.locator("main > section").all()] == SECTIONS
    for name in SECTIONS:
        box = view.page.locator(f"#{name}").bounding_box()
        assert box["height"] > 40, name
    for name in ("curves", "scores", "speed", "ablation"):
        for plot in view.page.locator(f"#{name} svg.drawn:visible").all():
            assert plot.bounding_box()["height"] > 80
    assert view.page.locator("#curves svg.drawn:visible path").count() > 40
    height = view.page.evaluate("document.documentElement.scrollHeight")
    assert height <= 9 * SIZES["desk"][1]
    assert (view.requests, view.messages) == ([], [])


def test_without_scripts_the_page_can_be_read(report: Path, open_page: Open) -> None:
    view = open_page(report, scripts=False)
    assert view.visible_texts("#verdict p")
    assert len(view.visible_texts("#translations article")) == 3
    assert not view.visible_texts(".controls")
    view.open_details("#attention details")
    assert view.visible_texts("#attention td")


def test_leaderboard_sorts_every_column_best_first(report: Path, open_page: Open) -> None:
    view = open_page(report)
    table = view.page.locator("table.board").first
    heads = [head for head in table.locator("thead th").all() if head.is_visible()]
    assert len(heads) in (7, 8)
    for column, head in enumerate(heads):
        first = head.get_attribute("data-first") or "ascending"
        orders = {}
        for direction in (first, "descending" if first == "ascending" else "ascending"):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == direction
            values = table.evaluate(
                "(table, column) => [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value)", column
            )
            orders[direction] = [value for value in values if value]
        key = float if all(re.fullmatch(r"[-+.e\d]+", value) for value in orders["ascending"]) else str.lower
        keys = {name: list(map(key, order)) for name, order in orders.items()}
        assert keys["ascending"] == sorted(keys["ascending"])
        assert keys["descending"] == sorted(keys["descending"], reverse=True)
    assert table.locator("th[aria-sort]").count() == 1


def test_leaderboard_columns_sort_and_theme_are_kept_in_the_address(report: Path, open_page: Open) -> None:
    view = open_page(report)
    controls, table = view.page.locator(".board-controls").first, view.page.locator("table.board").first
    assert not table.locator("thead th", has_text="chrF").is_visible()
    controls.locator("summary").click()
    controls.locator("label", has_text="chrF").first.locator("input").check()
    assert table.locator("thead th", has_text="chrF").is_visible()
    table.locator("thead th", has_text="parameters").locator("button").click()
    view.page.click("#theme")
    address = view.page.url
    reopened = open_page(report)
    reopened.page.goto("about:blank")
    reopened.page.goto(address)
    table = reopened.page.locator("table.board").first
    assert table.locator("thead th", has_text="chrF").is_visible()
    assert table.locator("thead th", has_text="parameters").get_attribute("aria-sort") == "ascending"
    assert reopened.page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("size", SIZES)
def test_leaderboard_columns_can_be_reached_and_the_first_stays(report: Path, open_page: Open, size: str) -> None:
    view = open_page(report, size=size)
    region = view.page.locator("#leaderboard .scroll").first
    content_width, width = region.evaluate("region => [region.scrollWidth, region.clientWidth]")
    if size == "desk":
        assert content_width <= width, "all default columns are visible"
    region.evaluate("region => { region.scrollLeft = region.scrollWidth; }")
    x = region.bounding_box()["x"]
    assert abs(region.locator("tbody th").first.bounding_box()["x"] - x) < 2


def test_curves_can_be_read_by_pointer_and_by_keyboard(report: Path, open_page: Open) -> None:
    view = open_page(report)
    figure = view.page.locator("figure.readable").first
    chart = figure.locator(".chart:visible")
    assert figure.locator(".at").inner_text() == "epoch 10"
    chart.focus()
    view.page.keyboard.press("Home")
    assert figure.locator(".at").inner_text() == "epoch 1"
    view.page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-valuenow") == "2"
    assert chart.get_attribute("aria-valuetext").startswith("epoch 2: learned_positions")
    box = chart.locator("svg").bounding_box()
    view.page.mouse.move(box["x"] + 0.12 * box["width"], box["y"] + 0.3 * box["height"])
    near = int(figure.locator(".at").inner_text().split()[1])
    view.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.3 * box["height"])
    assert int(figure.locator(".at").inner_text().split()[1]) > near


def test_series_are_highlighted_and_switched_off(report: Path, open_page: Open) -> None:
    view = open_page(report)
    for name in ("curves", "speed"):
        figure = view.page.locator(f"#{name} figure").first
        labels = figure.locator(".legend button").all_inner_texts()
        control = figure.locator(".legend button").first
        series, others = (figure.locator(f'.wide [data-series="{label}"]') for label in labels[:2])
        others = others.first
        control.hover()
        assert series.first.evaluate("part => getComputedStyle(part).opacity") == "1"
        assert others.evaluate("part => getComputedStyle(part).opacity") == "0.15"
        control.click()
        view.page.mouse.move(0, 0)
        assert control.get_attribute("aria-pressed") == "false"
        control.blur()
        assert {part.evaluate("part => getComputedStyle(part).opacity") for part in series.all()} == {"0.15"}
        assert others.evaluate("part => getComputedStyle(part).opacity") == "1"


def explorer(view: View) -> Any:
    """Return the first explorer of a page when it is ready."""
    part = view.page.locator(".explorer[data-ready]").first
    part.wait_for()
    return part


def test_the_explorer_searches_filters_pages_and_marks(report: Path, open_page: Open) -> None:
    view = open_page(report)
    part = explorer(view)

    def control(name: str) -> Any:
        return part.locator(f'[data-control="{name}"]')

    def count() -> str:
        return str(part.locator(".count").inner_text())

    assert count() == f"1 to 3 of {COUNT} sentences"
    part.locator('[data-turn="1"]').click()
    assert count() == f"4 to 6 of {COUNT} sentences"
    control("search").fill("#7")
    assert [title.split(",")[0] for title in view.visible_texts(".explorer h4")] == ["Sentence 7"]
    assert pages_factory.SOURCE in part.locator(".sentences").inner_text()
    control("search").fill("no such word")
    assert count() == "0 to 0 of 0 sentences"
    control("search").fill("")
    control("kind").select_option("same")
    assert count() == "0 to 0 of 0 sentences"
    for box in part.locator('[data-control="side"]').all()[1:]:
        box.uncheck()
    assert count() == f"1 to 3 of {COUNT} sentences"
    control("kind").select_option("differ")
    assert count() == "0 to 0 of 0 sentences"
    for box in part.locator('[data-control="side"]').all():
        box.check()
    assert count() == f"1 to 3 of {COUNT} sentences"
    assert part.locator("ins").count() > 10
    assert part.locator("del").count() > 10
    control("against").select_option("")
    assert part.locator("ins, del").count() == 0
    control("order").select_option("number")
    assert part.locator("h4").first.inner_text().startswith("Sentence 0,")


def test_a_sentence_has_an_address_of_its_own_and_the_stored_translation(report: Path, open_page: Open) -> None:
    view = open_page(report)
    view.page.goto("about:blank")
    view.page.goto(f"{report.as_uri()}#s=11")
    part = explorer(view)
    assert [title.split(",")[0] for title in view.visible_texts(".explorer h4")] == ["Sentence 11"]
    part.locator('[data-control="against"]').select_option("")
    texts = part.locator(".sentences dd").all_inner_texts()
    assert pages_factory.translations(VARIANTS[0], 0, COUNT)[11].text in texts


def test_a_space_before_punctuation_is_not_marked(open_page: Open, tmp_path: Path) -> None:
    texts = {"learned_positions": "a ball.", "paper": "a ball ."}
    runs = [
        pages_factory.save_run(tmp_path, record(variant), [run_store.Hypothesis(0, tuple(text.split()), text)])
        for variant, text in texts.items()
    ]
    part = explorer(open_page(write(runs, tmp_path, results=tmp_path)))
    assert "a ball ." in part.locator(".sentences").inner_text()
    assert part.locator("ins, del").count() == 0


def test_attention_follows_its_controls(report: Path, open_page: Open) -> None:
    view = open_page(report)
    view.open_details("#attention details")
    part = view.page.locator(".attention[data-ready]")
    part.wait_for()
    before = part.locator("td").all_inner_texts()
    part.locator('[data-control="layer"]').select_option("2")
    after = part.locator("td").all_inner_texts()
    assert "layer 3" in part.locator("caption").inner_text()
    assert before != after
    part.locator('[data-control="head"]').select_option("1")
    assert "layer 3, head 2" in part.locator("caption").inner_text()
    assert part.locator("td").all_inner_texts() != after
    part.locator('[data-control="run"]').select_option("1")
    assert part.locator("caption").inner_text().startswith("conv_ffn")


def test_words_are_aligned_to_the_source_and_lead_to_the_attention(report: Path, open_page: Open) -> None:
    view = open_page(report)
    part = explorer(view)
    part.locator('[data-control="kind"]').select_option("attended")
    assert part.locator("article").count() == pages_factory.ATTENDED
    sentence = part.locator("article").last
    word = sentence.locator("[data-to]").first
    word.hover()
    attended = sentence.locator(".attended")
    assert attended.count() == 1
    assert attended.get_attribute("data-at") == word.get_attribute("data-to")
    sentence.get_by_text("attention", exact=True).click()
    number = re.findall(r"a=(\d+)", view.page.url)
    assert f"sentence {number[0]}," in view.page.locator(".attention caption").inner_text()
    assert view.page.locator(".attention table").is_visible()


def test_the_theme_follows_the_system_until_it_is_chosen(report: Path, open_page: Open) -> None:
    def colour(view: View) -> str:
        return str(view.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = open_page(report), open_page(report, theme="dark")
    assert colour(light) == "rgb(255, 255, 255)"
    assert colour(dark) != colour(light)
    light.page.click("#theme")
    assert colour(light) == colour(dark)
    assert light.page.inner_text("#theme") == "Light theme"


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(report: Path, open_page: Open) -> None:
    view = open_page(report)
    stops = []
    for _ in range(40):
        view.page.keyboard.press("Tab")
        stops.append(
            view.page.evaluate(
                "() => { const element = document.activeElement; const style = getComputedStyle(element); "
                "return [[...document.querySelectorAll('*')].indexOf(element), element.id, element.className, "
                "style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]; }"
            )
        )
    positions = [position for position, *_ in stops]
    assert positions == sorted(positions)
    assert all(has_focus_ring for *_, has_focus_ring in stops)
    assert stops[0][2] == "skip"
    assert {"theme", "scroll"} <= {name for _, identifier, classes, _ in stops for name in (identifier, classes)}


@pytest.fixture(scope="module")
def speed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speed_report.write(speed_factory.document(), tmp_path_factory.mktemp("speed"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["report", "speed"])
def test_page_fits_is_accessible_and_loads_nothing(
    name: str, size: str, theme: str, open_page: Open, request: pytest.FixtureRequest
) -> None:
    view = open_page(request.getfixturevalue(name), size=size, theme=theme)
    view.open_details()
    view.check()
    plots = view.page.locator("svg.drawn:visible").all()
    assert len(plots) >= 5
    for plot in plots:
        width, drawn_width = plot.bounding_box()["width"], float(plot.get_attribute("viewBox").split()[2])
        assert drawn_width * 0.95 < width < SIZES[size][0], "text of 8 points has at least 7.6 pixels"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Return a page with a hostile text in every free field, each text in each kind of field."""
    records = []
    for number, text in enumerate(HOSTILE):
        texts = [HOSTILE[(number + shift) % len(HOSTILE)] for shift in range(1, 8)]
        environment = {"commit": {"digest": texts[3]}, texts[4]: text, "versions": {"torch": texts[5]}}
        run = record(f"mine:{text}", number % 2)
        run = replace(run, note=texts[0], command=texts[1], started=texts[2], environment=environment)
        tokens = (text, *texts[:3])
        hypotheses = [run_store.Hypothesis(sentence, tokens, " ".join(tokens)) for sentence in range(2)]
        records.append(pages_factory.save_run(tmp_path, run, hypotheses))
    records.append(replace(record("paper"), status="failed", reason=HOSTILE[0], scores={}, curve=()))
    corpus = CorpusText(HOSTILE[:2], HOSTILE[2:4], [("<sos>", *HOSTILE[:4], "<eos>")] * 2)
    return write(records, tmp_path / "page", results=tmp_path, texts={DataSpec(): corpus})


def test_hostile_text_shows_as_text_and_runs_nothing(hostile: Path, open_page: Open) -> None:
    view = open_page(hostile)
    part = explorer(view)
    part.locator('[data-control="order"]').select_option("number")
    part.locator('[data-control="against"]').select_option("")
    words = part.locator(".sentences").inner_text() + view.page.locator("#leaderboard").inner_text()
    for text in HOSTILE:
        printable = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        assert printable in words.replace("\xa0", " "), text
    view.open_details()
    assert view.page.evaluate("typeof window.ran") == "undefined"
    assert view.page.locator("script:not([type^='application/'])").count() == 1
    assert view.page.locator("iframe, base, img, form, math").count() == 0
    assert view.page.locator("meta[http-equiv=refresh]").count() == 0
    assert (view.requests, view.messages) == ([], [])
