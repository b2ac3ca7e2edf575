"""The report of runs on synthetic records: leaderboards, headline, CSV files and pages."""

from __future__ import annotations

import html as escaping
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from places import FIXTURES, ROOT
from record_factory import broken, narrow, record, runs, with_digests

from harness.analysis.effects import Method
from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups, rows
from harness.analysis.leaderboard import analyse_bench
from harness.analysis.metric_registry import DEFAULT_COLUMNS, LEADERBOARD
from harness.cli.report_options import without_disturbed_rates
from harness.experiments.specs import DataSpec
from harness.reporting import bench_report, csv_export, leaderboard_table, render_markdown, render_text
from harness.reporting.document import Cell, Figure, Heading, Table, Text, find
from harness.reporting.render_markdown import text
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TUTORIAL

HOSTILE = "evil.mod:$\\frac{x}_y$_a_|<b>`t`|[l](http://x.y)"
QUICK = Method(resamples=50, trials=50)


# Tables ---------------------------------------------------------------------------------------------------------------


def terminal(records: list[RunRecord]) -> str:
    return render_text.document(bench_report.document(records, method=QUICK))


def markdown(records: list[RunRecord]) -> str:
    return render_markdown.document(bench_report.document(records, method=QUICK))


def test_leaderboard_shows_means_and_intervals() -> None:
    records = [replace(run, scores={"bleu_tutorial": 35.0 + run.spec.seed}) for run in runs("paper", seeds=3)]
    (judged,) = analyse_bench(records, method=QUICK).tables
    table = leaderboard_table.leaderboard(judged)
    (cells,) = (dict(zip(table.heads, row, strict=True)) for row in table.rows)
    bleu = cells["tutorial BLEU"]
    assert isinstance(bleu, Cell)
    assert (bleu.text, bleu.value) == ("36.00", pytest.approx(36.0, abs=0.01))
    assert re.fullmatch(r"33\.\d\d to 38\.\d\d", bleu.detail)
    assert str(cells["seeds"]) == "3"


def test_leaderboard_has_seven_columns_and_the_rest_on_request() -> None:
    (judged,) = analyse_bench(runs("paper", "conv_ffn"), method=QUICK).tables
    table = leaderboard_table.leaderboard(judged)
    default = ("variant", "sacreBLEU", "test perplexity", "parameters", "training tokens/s", "sentences/s", "seeds")
    assert table.without_optional().heads == default
    assert {"chrF", "tutorial BLEU", "BLEU-4 cumulative", "peak memory, MiB"} <= set(table.heads)
    assert {table.heads[index] for index in table.descending} >= {"sacreBLEU", "sentences/s"}


def test_leaderboard_ranks_the_best_row_first_with_rank_intervals() -> None:
    records = [
        replace(run, scores={"bleu_sacre": 30.0 + 5 * (run.spec.variant == "paper") + 0.1 * (run.spec.seed % 2)})
        for run in runs("learned_positions", "paper", seeds=5)
    ]
    (judged,) = analyse_bench(records, method=QUICK).tables
    rows = leaderboard_table.leaderboard(judged).rows
    assert [str(row[0]) for row in rows] == ["paper (rank 1)", "learned_positions (rank 2)"]
    assert [cell.mark for cell in (row[1] for row in rows) if isinstance(cell, Cell)] == ["", "▼"]


def test_leaderboard_says_which_rows_are_tied_with_the_best() -> None:
    noise = {"learned_positions": (0.0, 2.0, -2.0, 1.0, -1.0), "paper": (-1.0, 1.0, 2.0, -2.0, 0.1)}
    records = [
        replace(run, scores={"bleu_sacre": 30.0 + noise[run.spec.variant][run.spec.seed]})
        for run in runs("learned_positions", "paper", seeds=5)
    ]
    (judged,) = analyse_bench(records, method=QUICK).tables
    rows = leaderboard_table.leaderboard(judged).rows
    assert [str(row[0]) for row in rows] == [
        "paper (rank 1–2)",
        "learned_positions (rank 1–2, tied with the best)",
    ]


def test_one_seed_says_that_its_noise_is_unknown() -> None:
    assert "seed noise is unknown" in terminal(runs(seeds=1))


@pytest.mark.parametrize(
    ("seeds", "expected"),
    [
        (1, "reaches 35.0 sacreBLEU (1 seed) on"),
        (2, "reaches 35.5 sacreBLEU (2 seeds, 35.0 and 36.0) on"),
        (3, "reaches 36.0 sacreBLEU (3 seeds, 95 % interval 33.6 to 38.5) on"),
    ],
)
def test_headline_names_the_interval_of_the_table(seeds: int, expected: str) -> None:
    records = [replace(run, scores={"bleu_sacre": 35.0 + run.spec.seed}) for run in runs("paper", seeds=seeds)]
    assert expected in bench_report.document(records, method=QUICK).headline.finding


def test_leaderboard_costs_have_intervals_too() -> None:
    records = [
        replace(run, speed={"training_tokens_per_second": 4000.0 + 10 * run.spec.seed})
        for run in runs("paper", seeds=3)
    ]
    (judged,) = analyse_bench(records, method=QUICK).tables
    table = leaderboard_table.leaderboard(judged)
    cell = table.rows[0][table.heads.index("training tokens/s")]
    assert str(cell) == "4,010 (3,985 to 4,035)"


def on_machine(run: RunRecord, processor: str) -> RunRecord:
    return replace(run, environment={**run.environment, "machine": {"processor": processor, "cores": 2}})


def test_speeds_are_compared_on_one_kind_of_machine_only() -> None:
    same = [on_machine(run, "A") for run in runs("learned_positions", "paper", seeds=2)]
    mixed = [on_machine(run, "B") if run.spec.variant == "paper" else run for run in same]
    for records, is_shown in ((same, True), (mixed, False)):
        (judged,) = analyse_bench(records, method=QUICK).tables
        heads = leaderboard_table.leaderboard(judged).heads
        assert ("training tokens/s" in heads) is ("sentences/s" in heads) is ("one epoch, s" in heads) is is_shown
        assert "peak memory, MiB" in heads
        page = bench_report.document(records, method=QUICK)
        assert any(figure.name.endswith("-speed") for figure in find(page.blocks, Figure)) is is_shown
        reason = "No speed columns: measured on different machines (A, 2 cores; B, 2 cores). runs.csv has the speeds."
        assert (reason in [block.text for block in find(page.blocks, Text)]) is not is_shown


def test_a_speed_that_a_completed_row_lacks_is_left_out_with_the_reason() -> None:
    name = "training_tokens_per_second"
    records = [
        replace(run, speed={key: value for key, value in run.speed.items() if key != name})
        if run.spec.variant == "paper"
        else run
        for run in runs("learned_positions", "paper", seeds=2)
    ]
    (judged,) = analyse_bench(records, method=QUICK).tables
    heads = leaderboard_table.leaderboard(judged).heads
    assert "training tokens/s" not in heads
    assert "sentences/s" in heads
    assert "No training tokens/s in this table: not measured for paper." in terminal(records)
    failed = [replace(run, status="failed") if run.spec.variant == "paper" else run for run in records]
    (judged,) = analyse_bench(failed, method=QUICK).tables
    assert "training tokens/s" in leaderboard_table.leaderboard(judged).heads


def test_unlike_runs_never_share_a_table() -> None:
    records = [
        record(),
        record(budget="source"),
        record(data=DataSpec(direction="en-de")),
        record(data=DataSpec(test_split="test_2017_mscoco")),
        record(data=DataSpec(training_pairs=10_000)),
        record(data=DataSpec(corpus="captions")),
        record(recipe=narrow(RECIPES["learned_positions"])),
        record(updates=200),
    ]
    tables = groups(records)
    assert len({group.heading for group in tables}) == len(tables) == len(records)
    assert sum("data.training_pairs" in str(mismatch) for mismatch in find_mismatches(records, "controlled")) == 1


def test_longest_trained_table_comes_first_and_gives_the_headline() -> None:
    short = [replace(run, curve=run.curve[:2]) for run in runs(seeds=1)]
    longer = runs("paper", seeds=1, budget="source")
    for records in ([*short, *longer], [*runs(seeds=1), *longer]):
        assert [group.budget for group in groups(records)] == ["source", "controlled"]
    assert bench_report.document([*short, *longer]).headline.finding.startswith("After 20 epochs paper reaches ")


@pytest.mark.parametrize(("load", "has_rates"), [(None, False), (2.4, True), (2.6, False)])
def test_published_pages_leave_out_rates_measured_on_a_busy_machine(load: float | None, has_rates: bool) -> None:
    (run,) = runs("paper", seeds=1)
    speed = {**run.speed, "peak_memory_bytes": 1e9} | ({} if load is None else {"load_average": load})
    run = replace(run, speed=speed, environment={**run.environment, "machine": {"cores": 2}})
    published = without_disturbed_rates(run)
    assert ("training_tokens_per_second" in published.speed) is has_rates
    assert ("decoding_sentences_per_second" in published.speed) is has_rates
    assert published.speed["peak_memory_bytes"] == 1e9
    assert replace(published, speed=run.speed) == run


def test_reduced_runs_are_not_comparable_with_published_figures() -> None:
    quick = record(data=DataSpec(training_pairs=10_000), recipe=narrow(RECIPES["learned_positions"]))
    expected = "Not comparable with published figures: 10,000 training pairs only; reduced size (width 128)"
    assert expected in terminal([quick])
    assert "Not comparable" not in terminal([record()])
    assert "Not comparable" in terminal([record(training=replace(TUTORIAL, epochs=2))])
    assert "trained otherwise than by its source" in terminal([record("paper")])


def test_captions_are_named_with_the_reason_in_every_format() -> None:
    captions = replace(record(data=DataSpec(corpus="captions")), note="Multi30k is missing: no network")
    for page in (terminal([captions]), markdown([captions])):
        assert "It is not Multi30k. Multi30k is missing: no network." in page


@pytest.mark.parametrize("status", ["failed", "diverged", "interrupted"])
def test_runs_that_did_not_complete_are_listed(status: str) -> None:
    records = runs()
    output = terminal([*records[:-1], broken(records[-1], status, curve=records[-1].curve[:3])])
    assert f"1 completed, 1 {status}" in output
    assert f"bahdanau_gru, seed 1: {status} after 3 epochs: out of memory" in output
    assert status in markdown([broken(records[0], status)])


def test_large_perplexities_keep_few_digits() -> None:
    records = [replace(record(), scores={"test_perplexity": value}) for value in (5.31642, 812.25, 3.2e6)]
    for run, digits in zip(records, ("5.316", "812.2", "3,200,000"), strict=True):
        assert digits in terminal([run])


def test_settings_tell_rows_of_one_variant_apart() -> None:
    ablated = replace(RECIPES["learned_positions"], dropout=0.3)
    records = [record(), record(recipe=ablated), record("paper", framework="keras"), record("paper")]
    labels = [row.label for row in rows(records)]
    assert labels == sorted(set(labels), key=labels.index)
    assert any("dropout=0.3" in label for label in labels)
    assert [label for label in labels if "keras" in label] == ["paper (keras on tensorflow)"]
    assert [row.label for row in rows([record(recipe=ablated)])] == ["learned_positions (dropout=0.3)"]


def test_another_vocabulary_is_marked_in_the_source_table() -> None:
    records = runs("learned_positions", "paper", "conv_ffn", seeds=1, budget="source")
    records[2] = with_digests(records[2], target_vocabulary="1" * 64)
    (judged,) = analyse_bench(records, method=QUICK).tables
    marked = {
        str(row[0]).partition(" ")[0]
        for row in leaderboard_table.leaderboard(judged).rows
        for cell in row
        if isinstance(cell, Cell) and cell.mark == leaderboard_table.OTHER_VOCABULARY
    }
    assert marked == {"conv_ffn"}
    assert "another vocabulary than most rows" in terminal(records)


# Significance ---------------------------------------------------------------------------------------------------------


def test_matrix_has_each_pair_once_and_none_with_one_seed() -> None:
    many = runs("learned_positions", "paper", "conv_ffn", seeds=3)
    (matrix,) = (
        block for block in bench_report.document(many).blocks if isinstance(block, Table) and block.kind == "matrix"
    )
    filled = [[bool(str(cell)) for cell in row[1:]] for row in matrix.rows]
    assert filled == [[True, False], [True, True]]
    single = bench_report.document([run for run in many if run.spec.seed == 0])
    assert not [table for table in find(single.blocks, Table) if table.kind == "matrix"]


# Pages ----------------------------------------------------------------------------------------------------------------


def page_records() -> list[RunRecord]:
    captions = DataSpec(corpus="captions")
    changes: dict[str, Any] = {"training": replace(TUTORIAL, epochs=2), "data": captions}
    note = "Multi30k is missing: <no> $network$"
    records = [record(variant, **changes) for variant in ("learned_positions", HOSTILE)]
    return [*(replace(run, note=note) for run in records), replace(broken(record("paper", **changes)), note=note)]


RUN_IDS = [run.id for run in page_records()]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return write(page_records(), folder, command="python -m harness bench")


def write(records: list[RunRecord], folder: Path, **options: Any) -> Path:
    """Write a report and return its Markdown page."""
    return bench_report.write(bench_report.document(records, **options), records, folder).with_suffix(".md")


def test_page_opens_with_the_headline_that_every_format_has(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    headline = json.loads((page.parent / "headline.json").read_text(encoding="utf-8"))
    assert content.startswith(f"# Benchmark: generated captions de-en\n\n{text(headline['finding'])}\n")
    assert text(headline["caveat"]) in content
    html_page = escaping.unescape(page.with_suffix(".html").read_text(encoding="utf-8"))
    output = terminal(page_records())
    for line in (headline["finding"], headline["caveat"]):
        assert line in html_page
        assert line in output
    assert output.rstrip("\n").endswith(headline["caveat"])
    assert "It is not Multi30k. Multi30k is missing: &#60;no&#62; &#36;network&#36;." in content
    assert len(content.split("\n")) <= 150


def test_page_names_the_command_and_every_run(page: Path) -> None:
    content = page.with_suffix(".html").read_text(encoding="utf-8")
    for word in ("python -m harness bench", "29,000 training pairs", "tok:13a", "commit", *RUN_IDS):
        assert word in content


def test_links_of_the_page_lead_to_files_and_every_picture_is_shown(page: Path) -> None:
    content = re.sub(r"`[^\n]*`", "", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)]+)\)", content)
    assert {"models.html", "runs.csv", "curves.csv", "figures/controlled-loss.svg"} <= set(links)
    assert all((page.parent / link).stat().st_size > 200 for link in links)
    plots = {f"figures/{path.name}" for path in (page.parent / "figures").iterdir()}
    assert plots == {link for link in links if link.startswith("figures/")}


def test_models_page_is_written_once_and_linked_from_the_folder_below(tmp_path: Path) -> None:
    for folder, address in ((tmp_path, "models.html"), (tmp_path / "captions", "../models.html")):
        content = write(page_records(), folder).read_text(encoding="utf-8")
        assert re.findall(r"\]\(([./]*models\.html)\)", content) == [address]
    assert (tmp_path / "models.html").is_file()
    assert not (tmp_path / "captions" / "models.html").exists()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ([DataSpec()], "Benchmark: Multi30k de-en"),
        ([DataSpec(), DataSpec(direction="en-de")], "Benchmark: Multi30k de-en and Multi30k en-de"),
    ],
)
def test_title_names_the_corpus(data: list[DataSpec], expected: str) -> None:
    assert bench_report.document([record(data=spec) for spec in data], method=QUICK).title == expected


def test_no_chart_has_a_single_point(tmp_path: Path) -> None:
    lone = replace(record(), curve=record().curve[:1])
    blocks = bench_report.document([lone]).blocks
    assert not list(find(blocks, Figure))
    assert "Scores" not in [block.text for block in blocks if isinstance(block, Heading)]


# Data files -----------------------------------------------------------------------------------------------------------


def test_csv_files_hold_every_run_and_every_epoch(page: Path) -> None:
    table, curves = (pd.read_csv(page.parent / name) for name in ("runs.csv", "curves.csv"))
    records = page_records()
    assert dict(zip(table["run"], table["status"], strict=True)) == {run.id: run.status for run in records}
    for run in records:
        losses = curves[curves["run"] == run.id].sort_values("epoch")["validation_loss_nats"]
        assert losses.tolist() == pytest.approx([epoch.validation_loss for epoch in run.curve])


def test_csv_grouped_by_label_gives_the_leaderboard(tmp_path: Path) -> None:
    records = runs("learned_positions", "paper", "conv_ffn", seeds=3)
    csv_export.save(records, tmp_path)
    table = pd.read_csv(tmp_path / "runs.csv")
    means = table[table.status == "completed"].groupby("label")[["parameters", "training_tokens_per_second"]].mean()
    (judged,) = analyse_bench(records, method=QUICK).tables
    board = leaderboard_table.leaderboard(judged)
    for row in board.rows:
        cells = dict(zip(board.heads, row, strict=True))
        label = cells["variant"].value
        for name, head in (("parameters", "parameters"), ("training_tokens_per_second", "training tokens/s")):
            assert cells[head].value == pytest.approx(means.loc[label, name])


def test_csv_has_at_most_40_columns_among_them_every_setting_that_differs(tmp_path: Path) -> None:
    records = [record(seed=0), record(seed=1, data=DataSpec(training_pairs=10_000)), record("paper", threads=4)]
    csv_export.save(records, tmp_path)
    for name in ("runs.csv", "curves.csv"):
        columns = pd.read_csv(tmp_path / name).columns
        assert len(columns) <= 40
        settings = {"label", "table", "framework", "backend", "device", "threads", "precision", "data.training_pairs"}
        assert settings <= set(columns)


def test_csv_keeps_every_setting_that_differs_and_drops_other_metrics_first(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {"norm": "rms", "norm_order": "pre", "positions": "rotary", "activation": "gelu"}
    recipe |= {"dropout": 0.3, "layers": 2, "heads": 4, "ffn_width": 64, "tying": "output", "norm_epsilon": 1e-3}
    training = {"epochs": 3, "peak_rate": 1e-4, "clip_norm": 2.0, "batch_size": 64, "label_smoothing": 0.2}
    training |= {"warmup_updates": 7, "averaged_epochs": 2, "epsilon": 1e-3, "teacher_forcing": 0.5}
    changed = {"recipe": replace(RECIPES["learned_positions"], **recipe), "training": replace(TUTORIAL, **training)}
    records = [record(), record(seed=1, **changed)]
    csv_export.save(records, tmp_path)
    for name in ("runs.csv", "curves.csv"):
        columns = set(pd.read_csv(tmp_path / name).columns)
        assert {f"training.{setting}" for setting in training} <= columns
        assert {f"recipe.{setting}" for setting in recipe} <= columns
    runs_columns = pd.read_csv(tmp_path / "runs.csv").columns
    assert {*DEFAULT_COLUMNS, *LEADERBOARD} <= set(runs_columns)
    assert "total_seconds" not in runs_columns


# Safety ---------------------------------------------------------------------------------------------------------------


def test_nothing_hostile_becomes_markup(page: Path) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    html = markdown_it.MarkdownIt("commonmark", {"linkify": False}).enable("table").render(page.read_text())
    assert "<b>" not in html
    assert 'href="http' not in html
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", page.read_text(encoding="utf-8"))
    assert "$" not in outside_code


def test_the_same_records_give_the_same_bytes_in_any_order_and_process(page: Path, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
        "from test_bench_report import page_records, write\n"
        "write(page_records()[::-1], pathlib.Path(sys.argv[1]), command='python -m harness bench')\n"
        "unwanted = {'torch', 'tensorflow', 'keras', 'jax', 'matplotlib.pyplot'}\n"
        "print(sorted(unwanted & set(sys.modules)))\n"
    )
    folders = map(str, (tmp_path, Path(__file__).parent, FIXTURES, ROOT))
    process = subprocess.run([sys.executable, "-c", program, *folders], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
    first = {path.relative_to(page.parent): path.read_bytes() for path in page.parent.rglob("*") if path.is_file()}
    second = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_unfair_runs_get_no_pictures(tmp_path: Path) -> None:
    records = runs(seeds=1)
    content = write([records[0], with_digests(records[1], tokenised="1" * 64)], tmp_path).read_text(encoding="utf-8")
    assert "No table: these runs are not comparable." in content
    assert "tokenised: " in content
    assert not (tmp_path / "figures").exists()


def test_no_records_are_refused() -> None:
    with pytest.raises(ValueError, match="no run records"):
        bench_report.document([])


def test_scores_published_elsewhere_stand_beside_their_test_set_only() -> None:
    def outside(data: DataSpec) -> list[tuple[str, ...]]:
        records = [replace(run, spec=replace(run.spec, data=data)) for run in runs("paper")]
        tables = find(bench_report.document(records, method=QUICK).blocks, Table)
        return [tuple(map(str, row)) for table in tables if table.heads[0] == "system" for row in table.rows]

    systems = outside(DataSpec(corpus="multi30k", direction="de-en"))
    assert ("41.0", "de-en, test_2016_flickr") in {(row[1], row[2]) for row in systems}
    assert {row[2] for row in systems} == {"de-en, test_2016_flickr"}
    elsewhere = outside(DataSpec(corpus="multi30k", direction="en-de", test_split="test_2017_mscoco"))
    assert [row[1] for row in elsewhere] == ["31.95", "30.6", "34.2"]
    assert outside(DataSpec(corpus="multi30k", direction="en-fr")) == []
    assert outside(DataSpec(corpus="captions", tokenizer="whitespace")) == []
