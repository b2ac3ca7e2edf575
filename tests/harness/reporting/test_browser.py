"""The HTML report in a browser: it draws, sorts, filters and explores; loads nothing; and runs nothing that is text."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pages_factory
import pytest
import speed_factory
from hostile_text import HOSTILE
from record_factory import record

from harness.analysis.effects import Method
from harness.reporting import bench_report, speed_report
from harness.reporting.run_files import CorpusText
from harness.storage import run_store
from harness.storage.records import RunRecord

pytestmark = pytest.mark.browser
playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install '.[browser]'")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe: pip install '.[browser]'")

QUICK = Method(resamples=50, trials=50)
VARIANTS = ("learned_positions", "conv_ffn", "bahdanau_gru")
COUNT = 40
SIZES = {"desk": (1440, 900), "phone": (320, 640)}
ALL = (
    "verdict",
    "leaderboard",
    "curves",
    "scores",
    "speed",
    "ablation",
    "significance",
    "translations",
    "attention",
    "positions",
    "method",
)


def write(records: list[RunRecord], folder: Path, **options: Any) -> Path:
    """Write a report and return its HTML page."""
    return bench_report.write(bench_report.document(records, method=QUICK, **options), records, folder)


def executable() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("BAKEOFF_CHROMIUM") or next((path for name in names if (path := shutil.which(name))), None)
    if not found:
        pytest.skip(f"needs a browser: none of {', '.join(names)} is installed, and BAKEOFF_CHROMIUM is not set")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = executable()
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@dataclass
class Seen:
    """A page that is open, and what it did: requests beside its own file, messages, errors and dialogs."""

    page: Any
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def all(self, selector: str) -> list[str]:
        """Return the text of every element that can be seen."""
        return [one.inner_text() for one in self.page.locator(selector).all() if one.is_visible()]


Open = Callable[..., Seen]


@pytest.fixture
def opened(browser: Any) -> Iterator[Open]:
    contexts = []

    def open_page(path: Path, *, size: str = "desk", theme: str = "light", scripts: bool = True) -> Seen:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=theme, java_script_enabled=scripts
        )
        contexts.append(context)
        seen = Seen(context.new_page())
        seen.page.set_default_timeout(60_000)
        address = path.as_uri()
        seen.page.on("request", lambda one: seen.requests.append(one.url) if one.url != address else None)
        seen.page.on("console", lambda one: seen.messages.append(one.text))
        seen.page.on("pageerror", lambda one: seen.messages.append(str(one)))
        seen.page.on("dialog", lambda one: (seen.messages.append(f"dialog {one.message}"), one.dismiss()))
        seen.page.goto(address)
        return seen

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with everything in it: two budgets, a run that diverged, an ablation, attention and corpus text."""
    results = tmp_path_factory.mktemp("results")
    records = pages_factory.folder(results, VARIANTS, seeds=3, count=COUNT, weights=True)
    records += pages_factory.folder(results, VARIANTS[:2], seeds=1, count=COUNT, budget="source")
    for positions in ("sinusoidal", "none"):
        base = records[0].spec.recipe
        assert base is not None
        for seed in range(3):
            changed = replace(base, positions=positions)  # type: ignore[call-arg]
            records.append(record("learned_positions", seed, recipe=changed))
    place, lost = next(
        (place, one) for place, one in enumerate(records) if (one.spec.variant, one.spec.seed) == ("conv_ffn", 2)
    )
    records[place] = replace(lost, status="diverged", reason="loss is nan", scores={}, curve=lost.curve[:2])
    return write(records, tmp_path_factory.mktemp("report"), results=results, texts=pages_factory.texts(COUNT))


# It works -------------------------------------------------------------------------------------------------------------


def test_every_section_is_drawn(report: Path, opened: Open) -> None:
    seen = opened(report)
    assert [one.get_attribute("id") for one in seen.page.locator("main > section").all()] == list(ALL)
    for name in ALL:
        box = seen.page.locator(f"#{name}").bounding_box()
        assert box["height"] > 40, name
    for name in ("curves", "scores", "speed", "ablation"):
        for drawn in seen.page.locator(f"#{name} svg.drawn").all():
            assert drawn.bounding_box()["height"] > 80
    assert seen.page.locator("#curves svg.drawn path").count() > 40
    height = seen.page.evaluate("document.documentElement.scrollHeight")
    assert height <= 9 * SIZES["desk"][1]
    assert (seen.requests, seen.messages) == ([], [])


def test_without_scripts_the_page_can_be_read(report: Path, opened: Open) -> None:
    seen = opened(report, scripts=False)
    assert seen.all("#verdict p")
    assert len(seen.all("#translations article")) == 5
    assert not seen.all(".controls")
    seen.page.locator("#attention details").evaluate("one => { one.open = true; }")
    assert seen.all("#attention td")


def test_leaderboard_sorts_every_column_best_first(report: Path, opened: Open) -> None:
    seen = opened(report)
    table = seen.page.locator("table.board").first
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
            orders[direction] = [one for one in values if one]
        numbers = all(_number(one) is not None for one in orders["ascending"])
        keys = {name: [float(one) if numbers else one.lower() for one in order] for name, order in orders.items()}
        assert keys["ascending"] == sorted(keys["ascending"])
        assert keys["descending"] == sorted(keys["descending"], reverse=True)
    assert table.locator("th[aria-sort]").count() == 1


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def test_leaderboard_columns_sort_and_theme_are_kept_in_the_address(report: Path, opened: Open) -> None:
    seen = opened(report)
    controls, table = seen.page.locator(".board-controls").first, seen.page.locator("table.board").first
    assert not table.locator("thead th", has_text="chrF").is_visible()
    controls.locator("summary").click()
    controls.locator("label", has_text="chrF").first.locator("input").check()
    assert table.locator("thead th", has_text="chrF").is_visible()
    table.locator("thead th", has_text="parameters").locator("button").click()
    seen.page.click("#theme")
    address = seen.page.url
    again = opened(report)
    again.page.goto("about:blank")
    again.page.goto(address)
    table = again.page.locator("table.board").first
    assert table.locator("thead th", has_text="chrF").is_visible()
    assert table.locator("thead th", has_text="parameters").get_attribute("aria-sort") == "ascending"
    assert again.page.evaluate("document.documentElement.dataset.theme") == "dark"


@pytest.mark.parametrize("size", SIZES)
def test_leaderboard_columns_can_be_reached_and_the_first_stays(report: Path, opened: Open, size: str) -> None:
    seen = opened(report, size=size)
    region = seen.page.locator("#leaderboard .scroll").first
    wide = region.evaluate("one => [one.scrollWidth, one.clientWidth]")
    if size == "desk":
        assert wide[0] <= wide[1], "all default columns are visible"
    region.evaluate("one => { one.scrollLeft = one.scrollWidth; }")
    left = region.bounding_box()["x"]
    assert abs(region.locator("tbody th").first.bounding_box()["x"] - left) < 2


def test_curves_can_be_read_by_pointer_and_by_keyboard(report: Path, opened: Open) -> None:
    seen = opened(report)
    figure = seen.page.locator("figure.readable").first
    chart = figure.locator(".chart")
    assert figure.locator(".at").inner_text() == "epoch 10"
    chart.focus()
    seen.page.keyboard.press("Home")
    assert figure.locator(".at").inner_text() == "epoch 1"
    seen.page.keyboard.press("ArrowRight")
    assert chart.get_attribute("aria-valuenow") == "2"
    assert chart.get_attribute("aria-valuetext").startswith("epoch 2: learned_positions")
    box = chart.locator("svg").bounding_box()
    seen.page.mouse.move(box["x"] + 0.12 * box["width"], box["y"] + 0.5 * box["height"])
    near = int(figure.locator(".at").inner_text().split()[1])
    seen.page.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.5 * box["height"])
    assert int(figure.locator(".at").inner_text().split()[1]) > near


def test_the_explorer_searches_filters_pages_and_marks(report: Path, opened: Open) -> None:
    seen = opened(report)
    part = seen.page.locator(".explorer[data-ready]").first
    part.wait_for()

    def control(name: str) -> Any:
        return part.locator(f'[data-control="{name}"]')

    def count() -> str:
        return str(part.locator(".count").inner_text())

    assert count() == f"1 to 5 of {COUNT} sentences"
    part.locator('[data-turn="1"]').click()
    assert count() == f"6 to 10 of {COUNT} sentences"
    control("search").fill("#7")
    assert [one.split(",")[0] for one in seen.all(".explorer h4")] == ["Sentence 7"]
    assert pages_factory.SOURCE in part.locator(".sentences").inner_text()
    control("search").fill("no such word")
    assert count() == "0 to 0 of 0 sentences"
    control("search").fill("")
    control("kind").select_option("same")
    assert count() == "0 to 0 of 0 sentences"
    for box in part.locator('[data-control="side"]').all()[1:]:
        box.uncheck()
    assert count() == f"1 to 5 of {COUNT} sentences"
    control("kind").select_option("differ")
    assert count() == "0 to 0 of 0 sentences"
    for box in part.locator('[data-control="side"]').all():
        box.check()
    assert count() == f"1 to 5 of {COUNT} sentences"
    assert part.locator("ins").count() > 10
    assert part.locator("del").count() > 10
    control("against").select_option("")
    assert part.locator("ins, del").count() == 0
    control("order").select_option("number")
    assert part.locator("h4").first.inner_text().startswith("Sentence 0,")


def test_a_sentence_has_an_address_of_its_own(report: Path, opened: Open) -> None:
    seen = opened(report)
    seen.page.goto("about:blank")
    seen.page.goto(f"{report.as_uri()}#s=7")
    part = seen.page.locator(".explorer[data-ready]").first
    part.wait_for()
    assert [one.split(",")[0] for one in seen.all(".explorer h4")] == ["Sentence 7"]


def test_a_translation_is_the_stored_one(report: Path, opened: Open) -> None:
    seen = opened(report)
    part = seen.page.locator(".explorer[data-ready]").first
    part.wait_for()
    part.locator('[data-control="against"]').select_option("")
    part.locator('[data-control="search"]').fill("#11")
    found = part.locator(".sentences dd").all_inner_texts()
    assert pages_factory.translations(VARIANTS[0], 0, COUNT)[11].text in found


def test_attention_follows_its_controls(report: Path, opened: Open) -> None:
    seen = opened(report)
    seen.page.locator("#attention details").evaluate("one => { one.open = true; }")
    part = seen.page.locator(".attention")
    before = part.locator("td").all_inner_texts()
    part.locator('[data-control="layer"]').select_option("2")
    after = part.locator("td").all_inner_texts()
    assert "layer 3" in part.locator("caption").inner_text()
    assert before != after
    part.locator('[data-control="run"]').select_option("1")
    assert part.locator("caption").inner_text().startswith("conv_ffn")


def test_the_theme_follows_the_system_until_it_is_chosen(report: Path, opened: Open) -> None:
    def colour(seen: Seen) -> str:
        return str(seen.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light, dark = opened(report), opened(report, theme="dark")
    assert colour(light) == "rgb(255, 255, 255)"
    assert colour(dark) != colour(light)
    light.page.click("#theme")
    assert colour(light) == colour(dark)
    assert light.page.inner_text("#theme") == "Light theme"


def test_the_keyboard_reaches_everything_in_the_order_of_the_page(report: Path, opened: Open) -> None:
    seen = opened(report)
    places = []
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        found = seen.page.evaluate(
            "() => { const at = document.activeElement; const style = getComputedStyle(at); "
            "return [[...document.querySelectorAll('*')].indexOf(at), at.className || at.id || at.tagName, "
            "style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]; }"
        )
        places.append(found)
    assert places[0][1] == "skip"
    assert [one[0] for one in places] == sorted(one[0] for one in places)
    assert all(seen_focus for *_, seen_focus in places)
    assert {"theme", "scroll"} <= {str(name) for _, name, _ in places} | {
        str(seen.page.evaluate("place => document.querySelectorAll('*')[place].id", place)) for place, *_ in places
    }


# It is kept -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_loaded_said_cut_off_or_out_of_reach(report: Path, opened: Open, size: str, theme: str) -> None:
    seen = opened(report, size=size, theme=theme)
    for one in seen.page.locator("details").all():
        one.evaluate("one => { one.open = true; }")
    wide = seen.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]
    found = axe.Axe().run(seen.page).response["violations"]
    assert [(one["id"], [node["target"] for node in one["nodes"]][:3]) for one in found] == []
    assert (seen.requests, seen.messages) == ([], [])


def hostile_records(results: Path) -> list[RunRecord]:
    """Return runs with a hostile text in every free field, each of the texts in each kind of field."""
    made = []
    for place, text in enumerate(HOSTILE):
        others = [HOSTILE[(place + shift) % len(HOSTILE)] for shift in range(1, 8)]
        one = record(f"mine:{text}", place % 2)
        one = replace(
            one,
            note=others[0],
            command=others[1],
            started=others[2],
            environment={"commit": others[3], others[4]: text, "versions": {"torch": others[5]}},
            signatures={**one.signatures, "chrf": one.signatures["chrf"]},
        )
        tokens = (text, *others[:3])
        hypotheses = [run_store.Hypothesis(number, tokens, " ".join(tokens)) for number in range(2)]
        made.append(pages_factory.save_run(results, one, hypotheses))
    failed = record("paper")
    made.append(replace(failed, status="failed", reason=HOSTILE[0], scores={}, curve=()))
    return made


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("hostile")
    records = hostile_records(results)
    return write(records, results / "page", results=results, texts=hostile_texts())


def hostile_texts() -> Any:
    (data,) = pages_factory.texts(2)
    text = CorpusText(HOSTILE[:2], HOSTILE[2:4], [("<sos>", *HOSTILE[:4], "<eos>")] * 2)
    return {data: text}


def test_hostile_text_shows_as_text_and_runs_nothing(hostile: Path, opened: Open) -> None:
    seen = opened(hostile)
    part = seen.page.locator(".explorer[data-ready]").first
    part.wait_for()
    part.locator('[data-control="order"]').select_option("number")
    part.locator('[data-control="against"]').select_option("")
    words = part.locator(".sentences").inner_text() + seen.page.locator("#leaderboard").inner_text()
    for text in HOSTILE:
        shown = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
        assert shown in words.replace("\xa0", " "), text
    for one in seen.page.locator("details").all():
        one.evaluate("one => { one.open = true; }")
    assert seen.page.evaluate("typeof window.ran") == "undefined"
    assert seen.page.locator("script").count() == seen.page.locator('script[type="application/json"]').count() + 1
    assert seen.page.locator("iframe, base, img, form, math").count() == 0
    assert seen.page.locator("meta[http-equiv=refresh]").count() == 0
    assert (seen.requests, seen.messages) == ([], [])


# The page of speed ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def speed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speed_report.write(speed_factory.document(), tmp_path_factory.mktemp("speed"))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_of_speed_is_drawn_loads_nothing_and_can_be_reached(
    speed: Path, opened: Open, size: str, theme: str
) -> None:
    seen = opened(speed, size=size, theme=theme)
    for one in seen.page.locator("details").all():
        one.evaluate("one => { one.open = true; }")
    pictures = seen.page.locator("svg.drawn").all()
    assert len(pictures) == 5
    for drawn in pictures:
        assert drawn.bounding_box()["height"] > 40
    wide = seen.page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide[0] <= wide[1]
    found = axe.Axe().run(seen.page).response["violations"]
    assert [(one["id"], [node["html"][:120] for node in one["nodes"]][:3]) for one in found] == []
    colour = "getComputedStyle(document.body).backgroundColor"
    before = seen.page.evaluate(colour)
    seen.page.locator("#theme").click()
    assert seen.page.evaluate(colour) != before
    assert (seen.requests, seen.messages) == ([], [])
