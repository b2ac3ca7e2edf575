"""The HTML report on synthetic records: its sections, size and content, and that equal records give equal bytes."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import page_outline
import pages_factory
import pytest
from command_line import FRAMEWORKS, imported
from page_outline import unpacked
from pages_factory import write
from places import FIXTURES
from record_factory import record, runs, with_digests

from harness.cli.main import main
from harness.experiments.suites import FULL_VARIANTS
from harness.reporting import bench_report
from harness.reporting.translation_explorer import TranslationColumn, explorer
from harness.storage import run_store
from harness.storage.records import RunRecord

TWO = ("learned_positions", "bahdanau_gru")
SECTIONS = ["leaderboard", "curves", "scores", "speed", "significance", "translations", "attention", "positions"]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[RunRecord]]:
    results = tmp_path_factory.mktemp("results")
    pages_factory.folder(results, TWO, seeds=2, count=30, weights=True)
    return results, run_store.records(results)


@pytest.fixture(scope="module")
def folder(stored: tuple[Path, list[RunRecord]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    results, records = stored
    folder = tmp_path_factory.mktemp("report")
    write(records, folder, results=results, texts=pages_factory.texts(30))
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


def test_every_section_is_there_in_order_and_in_the_contents(page: str) -> None:
    assert re.findall(r'<section id="(\w+)"', page) == ["verdict", *SECTIONS, "method"]
    assert re.findall(r'<li><a href="#(\w+)">', page) == [*SECTIONS, "method"]


def test_page_loads_nothing_and_its_references_meet_ids(page: str) -> None:
    page_outline.check(page)


def test_a_page_of_eight_variants_three_seeds_and_a_thousand_sentences_is_under_2_MB(tmp_path: Path) -> None:
    variants = (*FULL_VARIANTS, "mine:ROTARY")
    assert len(variants) == 8
    records = pages_factory.folder(tmp_path, variants, seeds=3, count=1_000)
    path = write(records, tmp_path, results=tmp_path, texts=pages_factory.texts(1_000))
    assert 300_000 < path.stat().st_size < 2_000_000
    (explorer_data,) = unpacked(path.read_text(encoding="utf-8"))
    assert len(explorer_data["sides"]) == 24
    assert len(explorer_data["numbers"]) == 1_000


def test_explorer_holds_the_stored_translations_source_and_reference(
    page: str, stored: tuple[Path, list[RunRecord]]
) -> None:
    results, records = stored
    (explorer_data,) = unpacked(page)
    columns = {(column["label"], column["seed"]): column["text"] for column in explorer_data["sides"]}
    for run in records:
        hypotheses = run_store.load_hypotheses(results, run.id)
        assert columns[run.spec.variant, run.spec.seed] == [hypothesis.text for hypothesis in hypotheses]
    assert explorer_data["source"][3] == f"{pages_factory.SOURCE} nummer 3"
    assert explorer_data["reference"][3] == f"{pages_factory.REFERENCE} number 3"


@pytest.mark.usefixtures("undrawn")
def test_page_without_texts_has_no_text_of_the_corpus(
    stored: tuple[Path, list[RunRecord]], page: str, tmp_path: Path
) -> None:
    results, records = stored
    without = write(records, tmp_path, results=results).read_text(encoding="utf-8")
    for word in (pages_factory.SOURCE, pages_factory.REFERENCE):
        assert word in page
        assert word not in without
        assert word not in json.dumps(unpacked(without))
    assert "this page holds no text of the corpus" in without
    (attention,) = unpacked(without, "maps")
    assert attention[0]["sentences"][0]["source"] == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.usefixtures("undrawn")
def test_report_leaves_the_corpus_out_with_the_option_and_for_published_records(
    stored: tuple[Path, list[RunRecord]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _ = stored
    published = tmp_path / "published"
    shutil.copytree(results, published)
    monkeypatch.setattr("harness.cli.report_writing.test_sets", lambda records: pages_factory.texts(30 * bool(records)))
    for folder, options, has_text in (
        (results, [], True),
        (results, ["--without-corpus-text"], False),
        (published, [], False),
    ):
        words = ["report", "--results", str(folder), "--reports", str(tmp_path / "page"), *options]
        assert main(words) == 1, "these records are made up, which the check says"
        content = (tmp_path / "page" / "index.html").read_text(encoding="utf-8")
        assert (pages_factory.REFERENCE in content) is has_text


@pytest.mark.usefixtures("undrawn")
def test_sentences_are_filtered_by_chrf_only_if_it_is_stored(tmp_path: Path) -> None:
    for has_chrf in (False, True):
        results = tmp_path / str(has_chrf)
        records = pages_factory.folder(results, TWO, seeds=1, count=5)
        if has_chrf:
            sums = {**run_store.load_sentences(results, records[0].id), "chrf": np.ones((5, 18), np.int32)}
            digest = run_store.save_sentences(results, records[0].id, sums)
            records[0] = with_digests(records[0], sentences=digest)
        content = write(records, tmp_path / f"page {has_chrf}", results=results).read_text(encoding="utf-8")
        assert ('data-control="worse"' in content.partition("<script>")[0]) is has_chrf


def test_attention_is_the_stored_one_in_percent(stored: tuple[Path, list[RunRecord]], page: str) -> None:
    results, records = stored
    (attention,) = unpacked(page, "maps")
    assert attention[0]["label"] == "learned_positions, seed 0"
    first = attention[0]["sentences"][1]
    (run,) = (run for run in records if (run.spec.variant, run.spec.seed) == ("learned_positions", 0))
    weights = run_store.load_attention(results, run.id)[1]
    digits = first["layers"][2][1]
    shares = [int(digits[index : index + 2]) for index in range(0, len(digits), 2)]
    assert shares == [min(99, round(100 * float(weight))) for weight in weights[2, 1].ravel()]
    assert first["source"][1] == pages_factory.SOURCE
    assert first["target"][-1] == "<eos>"


def test_explorer_leaves_out_seeds_and_sentences_that_do_not_fit() -> None:
    def column(name: str, seed: int) -> TranslationColumn:
        return TranslationColumn(name, seed, {number: f"{name}{seed} word{number} b" for number in range(100)})

    by_seed = [[column(name, seed) for name in ("x", "y")] for seed in range(3)]
    large, small = (explorer(by_seed, room_bytes=room) for room in (2_100, 800))
    assert (large.data["seeds"], large.seeds_left_out, large.sentences_left_out) == ([0, 1], True, 0)
    assert (small.data["seeds"], small.seeds_left_out) == ([0], True)
    assert 0 < small.sentences_left_out == 100 - len(small.data["numbers"]) < 100
    assert explorer([same[:1] for same in by_seed]) is None


def test_disagreement_is_the_share_of_words_not_in_common() -> None:
    columns = [
        TranslationColumn("x", 0, {0: "a b c d", 1: "same.", 2: "a"}),
        TranslationColumn("y", 0, {0: "a b x y", 1: "same .", 2: "b"}),
    ]
    parts = explorer([columns])
    assert parts.data["disagreement"] == [[50, 0, 100]]
    assert [example["number"] for example in parts.examples] == [2, 0, 1]


@pytest.mark.parametrize(
    ("seeds", "steps", "ending"),
    [
        (1, None, "; with one seed, seed noise is unknown, so no variant can be called better than another."),
        (2, None, " above bahdanau_gru; an interval over seeds needs 3 seeds (--seed 0-2), and a claim 5."),
        (2, (1, 1), ", level with bahdanau_gru; an interval over seeds needs 3 seeds (--seed 0-2), and a claim 5."),
        (4, None, " above bahdanau_gru; 4 seeds are too few for a claim, which needs 5."),
        (5, None, ", significantly above the only other, assuming normally distributed seed noise."),
        (5, (1, 3), "; its lead over no other variant is significant, assuming normally distributed seed noise."),
        (6, None, "significantly above the only other."),
    ],
)
def test_headline_claims_no_more_than_its_seeds_allow(seeds: int, steps: tuple[int, int] | None, ending: str) -> None:
    records = runs(*TWO, seeds=seeds)
    if steps is not None:
        step = dict(zip(TWO, steps, strict=True))
        bleu = {run.id: 30.0 + step[run.spec.variant] * run.spec.seed % 5 for run in records}
        records = [replace(run, scores={"bleu_sacre": bleu[run.id]}) for run in records]
    finding = bench_report.document(records).headline.finding
    number = {1: "1 seed)", 2: "2 seeds, "}.get(seeds, f"{seeds} seeds, 95 % interval ")
    assert re.match(rf"After 10 epochs learned_positions reaches \d\d\.\d sacreBLEU \({re.escape(number)}", finding)
    assert finding.endswith(ending)


def test_unfair_runs_are_refused_and_named(tmp_path: Path) -> None:
    first, second = (record(name) for name in TWO)
    page = write([first, with_digests(second, tokenised="1" * 64)], tmp_path).read_text(encoding="utf-8")
    assert "No table: these runs are not comparable." in page
    assert "The runs: learned_positions (1 completed); bahdanau_gru (1 completed)." in page
    assert not (tmp_path / "figures").exists()
    assert "differ in 1 point in which they must agree" in page
    assert "<li>tokenised: " in page
    assert '<section id="curves"' not in page
    assert '<table class="board">' not in page


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    records = pages_factory.folder(tmp_path, TWO, seeds=1, count=3)
    path = tmp_path / records[0].id / run_store.HYPOTHESES
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        write(records, tmp_path / "page", results=tmp_path)


def test_the_same_records_give_the_same_bytes_whatever_the_order_and_the_hash_seed(
    stored: tuple[Path, list[RunRecord]], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, _ = stored
    program = (
        "import pathlib, sys; sys.path.append(sys.argv[3])\n"
        "import pages_factory\n"
        "from harness.storage import run_store\n"
        "from harness.reporting import bench_report\n"
        "results = pathlib.Path(sys.argv[1])\n"
        "records = sorted(run_store.records(results), key=lambda run: hash(run.id))\n"
        "report = bench_report.document(records, results=results, texts=pages_factory.texts(30))\n"
        "bench_report.write(report, records, pathlib.Path(sys.argv[2]))"
    )
    monkeypatch.setenv("PYTHONHASHSEED", "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1")
    modules = imported(program, str(results), str(tmp_path), str(FIXTURES))
    assert not modules & {*FRAMEWORKS, "matplotlib.pyplot"}
    here, there = (
        {path.relative_to(pages): path.read_bytes() for path in pages.rglob("*") if path.is_file()}
        for pages in (folder, tmp_path)
    )
    assert {Path("index.html"), Path("index.md"), Path("runs.csv")} <= here.keys() == there.keys()
    assert [name for name, content in here.items() if content != there[name]] == []
