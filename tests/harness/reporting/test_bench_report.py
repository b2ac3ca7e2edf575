"""The report of runs on synthetic records: tables, headline and pages."""

from __future__ import annotations

import html as escaping
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ablation_factory import pilot
from hostile_text import HOSTILE_NAME
from pages_factory import write
from record_factory import broken, narrow, record, runs, scored, with_digests
from test_leaderboard_table import texts

from harness.analysis.fairness import find_mismatches
from harness.analysis.grouping import groups
from harness.cli.report_writing import without_disturbed_rates
from harness.experiments import suites
from harness.experiments.specs import DataSpec
from harness.reporting import bench_report, render_markdown, render_text
from harness.reporting.document import Code, Figure, Table, find
from harness.reporting.render_markdown import text
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TUTORIAL


def terminal(records: list[RunRecord]) -> str:
    return render_text.document(bench_report.document(records))


def markdown(records: list[RunRecord]) -> str:
    return render_markdown.document(bench_report.document(records))


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


@pytest.mark.parametrize("same_weights", [True, False])
def test_learning_curves_of_the_same_weights_are_drawn_once(same_weights: bool) -> None:
    trained, other = record(), record(data=DataSpec(test_split="test_2017_mscoco"))
    other = replace(other, environment={**other.environment, **({"trained_as": trained.id} if same_weights else {})})
    figures = [figure.name for figure in find(bench_report.document([trained, other]).blocks, Figure)]
    assert sum(name.endswith("-loss") for name in figures) == 2 - same_weights


def test_headline_counts_updates_where_these_end_the_training() -> None:
    finding = bench_report.document(runs("paper", seeds=1, updates=2)).headline.finding
    assert finding.startswith("After 2 updates paper reaches ")
    finding = bench_report.document(runs("paper", seeds=1, updates=10**9)).headline.finding
    assert re.match(r"After \d+ epochs? paper reaches ", finding), "training ended before the limit"


def test_headline_of_runs_that_stopped_early_has_their_fewest_and_most_epochs() -> None:
    first, second = runs("paper", seeds=2, training=replace(TUTORIAL, patience=2))
    early = replace(second, curve=second.curve[:4])
    finding = bench_report.document([first, early]).headline.finding
    assert finding.startswith(f"After 4 to {len(first.curve)} epochs paper reaches ")


def test_longest_trained_table_comes_first_and_gives_the_headline() -> None:
    short = [replace(run, curve=run.curve[:2]) for run in runs(seeds=1)]
    longer = runs("paper", seeds=1, budget="source")
    for records in ([*short, *longer], [*runs(seeds=1), *longer]):
        assert [group.budget for group in groups(records)] == ["source", "controlled"]
    assert bench_report.document([*short, *longer]).headline.finding.startswith("After 20 epochs paper reaches ")
    beside_shorter = [*longer, *runs("learned_positions", seeds=1, budget="source")]
    assert [group.budget for group in groups([*runs(seeds=1), *beside_shorter])] == ["controlled", "source"]


def test_headline_of_a_table_split_by_seeds_names_the_rows_that_its_part_lacks() -> None:
    records = [*runs("paper", "learned_positions", seeds=3), *runs("conv_ffn", seeds=1)]
    caveat = bench_report.document(records).headline.caveat
    assert "This table leaves out conv_ffn, which lacks some of its seeds." in caveat
    assert "leaves out" not in bench_report.document(records[:-1]).headline.caveat


@pytest.mark.parametrize(
    ("device", "load", "has_rates"),
    [("cpu", None, False), ("cpu", 4.9, True), ("cpu", 5.1, False), ("cuda", 1.9, True), ("cuda", 2.1, False)],
)
def test_published_pages_leave_out_rates_measured_on_a_busy_machine(
    device: str, load: float | None, has_rates: bool
) -> None:
    (run,) = runs("paper", seeds=1, device=device)
    speed = {**run.speed, "peak_memory_bytes": 1e9} | ({} if load is None else {"load_average": load})
    run = replace(run, speed=speed, environment={**run.environment, "machine": {"cores": 4}})
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
    several = terminal([record(variant) for variant in ("learned_positions", "paper", "bahdanau_gru")])
    assert "not trained as in their sources (paper, bahdanau_gru)." in several


@pytest.mark.parametrize("changes", [{}, {"vocabulary": "separate"}, {"direction": "en-de"}])
def test_published_words_are_those_of_the_variants_source(changes: dict[str, Any]) -> None:
    source = suites.spec(suites.SUITES["standard"], "tuned", budget="source", seed=0, data=DataSpec())
    tuned = record(
        "tuned",
        budget="source",
        recipe=source.recipe,
        training=source.training,
        data=replace(source.data, **changes),
        decoding=source.decoding,
    )
    expected = f"data settings other than the published ones ({', '.join(changes)})"
    assert (expected in terminal([tuned])) is bool(changes)


@pytest.mark.parametrize("status", ["failed", "diverged", "interrupted"])
def test_runs_that_did_not_complete_are_listed(status: str) -> None:
    records = runs()
    output = terminal([*records[:-1], broken(records[-1], status, curve=records[-1].curve[:3])])
    assert f"1 completed, 1 {status}" in output
    assert f"bahdanau_gru, seed 1: {status} after 3 epochs: out of memory" in output
    assert status in markdown([broken(records[0], status)])


def test_run_whose_reason_begins_with_its_status_is_listed_without_repeating_it() -> None:
    reason = "interrupted by SIGINT after 5 of 70 updates"
    output = terminal([record(), replace(record(seed=1), status="interrupted", reason=reason, curve=())])
    assert f"learned_positions, seed 1: {reason}" in output
    assert "interrupted: " not in output


@pytest.mark.parametrize(
    ("paper", "mean", "lead"),
    [
        ((15.0, 30.0, 35.0), 26.7, "5.60"),  # as the table of differences has it
        ((5.0, 30.0, 35.0), 23.3, "3.33"),  # of the means, because the mean paired difference of logits is negative
    ],
)
def test_headline_leads_by_the_tested_difference_if_it_has_the_sign_of_the_ranking(
    paper: tuple[float, ...], mean: float, lead: str
) -> None:
    finding = bench_report.document(scored({"paper": paper, "conv_ffn": (20.0,) * 3})).headline.finding
    assert f"paper reaches {mean} sacreBLEU" in finding
    assert f", {lead} above conv_ffn" in finding


def test_headline_of_a_row_with_a_diverged_run_calls_it_not_compared() -> None:
    scores = {"paper": 38.0, "learned_positions": 35.0, "conv_ffn": 34.0, "plain": 37.9}
    records = [
        replace(record(variant, seed), scores={"bleu_sacre": score + 0.2 * (noise * seed % 5)})
        for noise, (variant, score) in enumerate(scores.items(), start=1)
        for seed in range(5)
    ]

    def finding_without(variant: str) -> str:
        lost = [
            broken(run, "diverged") if run.spec.seed == 1 and run.spec.variant == variant else run for run in records
        ]
        return bench_report.document(lost).headline.finding

    expected = "significantly above 1 of the 3 others, while plain is tied with it and conv_ffn is not compared with it"
    assert expected in finding_without("conv_ffn")
    expected = ", 0.15 above plain; its lead is not tested (paper: no value for seed 1 (diverged or missing))."
    assert finding_without("paper").endswith(expected)


def test_runs_that_stop_early_are_not_said_to_agree_in_updates() -> None:
    full, early = runs("learned_positions", "paper", seeds=1), []
    for name, epochs in (("plain", 6), ("conv_ffn", 10)):
        run = record(name, training=replace(TUTORIAL, patience=2))
        run = with_digests(run, batches={str(run.curve[0].updates): "1" * 64})
        early.append(replace(run, curve=run.curve[:epochs]))
    for records, is_stated in ((full, True), (early, False)):
        lines = texts(records)
        assert any("same optimiser, batches and number of updates for all" in line for line in lines) is is_stated
        assert any("updates, seeds, the stream of batches" in line for line in lines) is is_stated
        assert any("the batches of the first epoch" in line for line in lines) is not is_stated


def test_caveat_names_the_rows_that_have_not_converged() -> None:
    def caveat(epochs: int) -> str:
        training = replace(TUTORIAL, epochs=epochs)
        records = [record(variant, training=training) for variant in ("learned_positions", "paper")]
        return str(bench_report.document(records).headline.caveat)

    expected = (
        r"may change the order: .* the validation loss of learned_positions and paper still fell by up to (\d+) %"
    )
    match = re.search(expected, caveat(3))
    assert 10 < int(match[1]) < 20  # the factory's curve: 1.6 + 2.4 exp(-epoch / 2.2)
    assert "Longer training" not in caveat(20)
    assert "Longer training" not in caveat(1)


def test_caveat_mentions_an_order_only_if_rows_are_ranked() -> None:
    def caveat(*records: RunRecord) -> str:
        return str(bench_report.document(records).headline.caveat)

    training = replace(TUTORIAL, epochs=3)
    alone = record(training=training)
    longer = record("paper", training=replace(training, epochs=4))
    assert find_mismatches([alone, longer], "controlled")
    for text_of in (caveat(alone), caveat(alone, longer)):
        assert "Longer training may change the scores: " in text_of


@pytest.mark.parametrize(("corpus", "is_cited"), [("multi30k", True), ("captions", False)])
def test_multi30k_is_cited_only_if_it_is_used(corpus: str, is_cited: bool) -> None:
    blocks = bench_report.document([record(data=DataSpec(corpus=corpus))]).blocks
    entries = [block.text for block in find(blocks, Code) if block.text.startswith("@")]
    assert ["elliott-etal-2016-multi30k" in entry for entry in entries] == [True, False][not is_cited :]


def test_caveat_without_a_completed_run_claims_nothing() -> None:
    headline = bench_report.document([broken(record(), "diverged", curve=record().curve[:3])]).headline
    assert headline.finding.startswith("No run on multi30k de-en")
    expected = "1 of 1 run did not complete (1 diverged). Not comparable with published figures: no run completed."
    assert headline.caveat == expected


def test_matrix_has_each_pair_once_and_none_with_one_seed() -> None:
    many = runs("learned_positions", "paper", "conv_ffn", seeds=3)
    (matrix,) = (
        block for block in bench_report.document(many).blocks if isinstance(block, Table) and block.kind == "matrix"
    )
    filled = [[bool(str(cell)) for cell in row[1:]] for row in matrix.rows]
    assert filled == [[True, False], [True, True]]
    single = bench_report.document([run for run in many if run.spec.seed == 0])
    assert not [table for table in find(single.blocks, Table) if table.kind == "matrix"]


def page_records() -> list[RunRecord]:
    captions = DataSpec(corpus="captions")
    changes: dict[str, Any] = {"training": replace(TUTORIAL, epochs=2), "data": captions}
    note = "Multi30k is missing: <no> $network$"
    records = [record(variant, **changes) for variant in ("learned_positions", HOSTILE_NAME)]
    return [*(replace(run, note=note) for run in records), replace(broken(record("paper", **changes)), note=note)]


@pytest.mark.usefixtures("undrawn")
def test_page_opens_with_the_headline_that_every_format_has(tmp_path: Path) -> None:
    page = write(page_records(), tmp_path)
    content, output = page.with_suffix(".md").read_text(encoding="utf-8"), terminal(page_records())
    headline = json.loads((tmp_path / "headline.json").read_text(encoding="utf-8"))
    assert content.startswith(f"# Benchmark: generated captions de-en\n\n{text(headline['finding'])}\n")
    assert text(headline["caveat"]) in content
    html_page = escaping.unescape(page.read_text(encoding="utf-8"))
    for line in (headline["finding"], headline["caveat"]):
        assert line in html_page
        assert line in output
    assert output.rstrip("\n").endswith(headline["caveat"])
    assert "It is not Multi30k. Multi30k is missing: &#60;no&#62; &#36;network&#36;." in content
    assert "It is not Multi30k. Multi30k is missing: <no> $network$." in output


@pytest.mark.usefixtures("undrawn")
def test_models_page_is_written_once_and_linked_from_the_folder_below(tmp_path: Path) -> None:
    for folder, address in ((tmp_path, "models.html"), (tmp_path / "captions", "../models.html")):
        content = write(page_records(), folder).with_suffix(".md").read_text(encoding="utf-8")
        assert re.findall(r"\]\(([./]*models\.html)\)", content) == [address]
    assert (tmp_path / "models.html").is_file()
    assert not (tmp_path / "captions" / "models.html").exists()


def test_title_names_the_corpora() -> None:
    records = [record(), record(seed=1), record(data=DataSpec(direction="en-de"))]
    assert bench_report.document(records).title == "Benchmark: Multi30k de-en and Multi30k en-de"


def test_no_chart_has_a_single_point() -> None:
    lone = replace(record(), curve=record().curve[:1])
    assert not list(find(bench_report.document([lone]).blocks, Figure))
    assert "## Scores" not in markdown([lone])


@pytest.mark.parametrize(
    ("records", "reason"),
    [([], "no run records to report"), ([pilot(1e-3, [3.0])], "only pilots of a learning rate, which no table has")],
)
def test_records_without_a_table_are_refused_with_the_reason(records: list[RunRecord], reason: str) -> None:
    with pytest.raises(ValueError, match=f"there are {reason}; train something first: "):
        bench_report.document(records)


def test_scores_published_elsewhere_stand_beside_their_test_set_only() -> None:
    def outside(data: DataSpec) -> list[tuple[str, ...]]:
        records = [replace(run, spec=replace(run.spec, data=data)) for run in runs("paper")]
        tables = find(bench_report.document(records).blocks, Table)
        return [tuple(map(str, row)) for table in tables if table.heads[0] == "system" for row in table.rows]

    systems = outside(DataSpec(corpus="multi30k", direction="de-en"))
    assert ("41.0", "de-en, test_2016_flickr") in {(row[1], row[2]) for row in systems}
    assert {row[2] for row in systems} == {"de-en, test_2016_flickr"}
    elsewhere = outside(DataSpec(corpus="multi30k", direction="en-de", test_split="test_2017_mscoco"))
    assert [row[1] for row in elsewhere] == ["31.95", "30.6", "34.2"]
    assert outside(DataSpec(corpus="multi30k", direction="en-fr")) == []
    assert outside(DataSpec(corpus="captions", tokenizer="whitespace")) == []
