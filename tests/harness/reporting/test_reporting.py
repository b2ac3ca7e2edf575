"""Tables, the fairness check, pictures and pages, on synthetic records."""

from __future__ import annotations

import io
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from places import FIXTURES, ROOT
from record_factory import narrow, record

from harness.analysis.fairness import unfair
from harness.analysis.grouping import groups, rows
from harness.cli.report_options import without_disturbed_rates
from harness.experiments.specs import DataSpec
from harness.reporting import bench_report, bench_tables, plot_style, run_plots
from harness.reporting.markdown import code, text
from harness.storage.records import RunRecord
from impls.recipes import RECIPES, TRAININGS, TUTORIAL

HOSTILE = "evil.mod:$\\frac{x}_y$_a_|<b>`t`|[l](http://x.y)"
TWO = ("learned_positions", "bahdanau_gru")


def runs(*variants: str, seeds: int = 2, **changes: Any) -> list[RunRecord]:
    return [record(variant, seed, **changes) for variant in variants or TWO for seed in range(seeds)]


def with_print(one: RunRecord, **changes: Any) -> RunRecord:
    return replace(one, fingerprints={**one.fingerprints, **changes})


def broken(one: RunRecord, status: Any = "failed", **kept: Any) -> RunRecord:
    empty: dict[str, Any] = {"curve": (), "scores": {}, "speed": {}, "sizes": {}, "signatures": {}}
    return replace(one, status=status, reason="out of\nmemory", **{**empty, **kept})


# Fairness -------------------------------------------------------------------------------------------------------------


def test_identical_runs_are_fair() -> None:
    assert bench_tables.fairness(runs(*RECIPES)) == []


def spec_change(**changes: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda one: replace(one, spec=replace(one.spec, **changes), id=one.id + "-changed")


def data_change(**changes: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda one: replace(one, spec=replace(one.spec, data=replace(one.spec.data, **changes)), id=one.id + "x")


def training_change(**changes: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda one: replace(
        one, spec=replace(one.spec, training=replace(one.spec.training, **changes)), id=one.id + "x"
    )


def tensor_change(digest: str) -> Callable[[RunRecord], RunRecord]:
    def change(one: RunRecord) -> RunRecord:
        return with_print(one, weights={**one.fingerprints["weights"], "encoder.0.self.query.kernel": digest})

    return change


DIFFERENCES: dict[str, tuple[Callable[[RunRecord], RunRecord], str]] = {
    "a data file": (lambda one: with_print(one, files={**one.fingerprints["files"], "train.en": "0" * 64}), "train.en"),
    "a missing file": (
        lambda one: with_print(one, files={"train.de": one.fingerprints["files"]["train.de"]}),
        "train.en",
    ),
    "source words": (lambda one: with_print(one, source_vocabulary="1" * 64), "source vocabulary"),
    "target words": (lambda one: with_print(one, target_vocabulary="1" * 64), "target vocabulary"),
    "ids": (lambda one: with_print(one, tokenised="1" * 64), "tokenised"),
    "the stream": (lambda one: with_print(one, stream="1" * 64), "stream of batches, seed 1"),
    "no stream": (lambda one: with_print(one, stream=None), "stream of batches, seed 1: .*missing"),
    "a tensor": (tensor_change("256x256:" + "0" * 64), "initial weights, seed 1: encoder.0.self.query.kernel"),
    "no tensors": (lambda one: with_print(one, weights={}), "initial weights, seed 1: missing"),
    "a signature": (
        lambda one: replace(one, signatures={**one.signatures, "bleu_sacre": "tok:intl"}),
        "signature of bleu_sacre",
    ),
    "no signature": (lambda one: replace(one, signatures={}), "signature of chrf"),
    "updates": (lambda one: replace(one, curve=one.curve[:-1]), "updates: 2270 in .*2043"),
    "the test split": (data_change(test_split="test_2017_flickr"), "data.test_split"),
    "the tokenizer": (data_change(tokenizer="moses"), "data.tokenizer"),
    "the rate": (training_change(peak_rate=1e-3), "training.peak_rate"),
    "smoothing": (training_change(label_smoothing=0.1), "training.label_smoothing"),
    "the update limit": (spec_change(updates=200), "update limit"),
    "the seed": (spec_change(seed=7), "seeds"),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_each_difference_is_found_named_and_refused(name: str) -> None:
    change, expected = DIFFERENCES[name]
    found = runs("learned_positions", "sinusoidal_handmade", "paper")
    changed = [*found[:-1], change(found[-1])]
    lines = bench_tables.fairness(changed)
    assert any(re.search(expected, line) for line in lines), lines
    if len(groups(changed)) == 1:
        assert "not comparable" in bench_tables.terminal(changed)
        assert "tokens/s" not in bench_tables.terminal(changed)


def test_a_single_difference_gives_a_single_line() -> None:
    found = runs(*RECIPES)
    lines = bench_tables.fairness([*found[:-1], with_print(found[-1], source_vocabulary="1" * 64)])
    assert len(lines) == 1
    assert "torch_reference" in lines[0]


def test_tensors_of_other_shapes_and_other_draws_are_not_compared() -> None:
    found = runs("learned_positions", "sinusoidal_handmade")
    assert bench_tables.fairness([*found[:-1], tensor_change("128x256:" + "0" * 64)(found[-1])]) == []
    names = [one.fingerprints["weights"]["source.embedding"] for one in found]
    assert names[0] != names[2], "a normal and a Xavier embedding differ by design"


def test_teacher_forcing_matters_to_recurrent_decoders_only() -> None:
    found = runs("learned_positions", "paper")
    assert bench_tables.fairness([*found[:2], *map(training_change(teacher_forcing=0.5), found[2:])]) == []


def test_runs_that_did_not_complete_are_checked_as_far_as_they_got() -> None:
    found = runs()
    assert bench_tables.fairness([*found[:-1], replace(broken(found[-1]), fingerprints={})]) == []
    assert bench_tables.fairness([*found[:-1], with_print(broken(found[-1]), tokenised="1" * 64)]) != []


def test_many_tensors_are_one_line() -> None:
    names = {f"encoder.{layer}.self.query.kernel": "256x256:" + "a" * 64 for layer in range(30)}
    found = [with_print(one, weights=names) for one in runs("learned_positions", "paper", seeds=1)]
    other = {name: digest.replace("a", "b") for name, digest in names.items()}
    lines = bench_tables.fairness([found[0], with_print(found[1], weights=other)])
    assert len(lines) == 1
    assert "and 22 more" in lines[0]


def test_source_budgets_may_differ_in_training_but_not_in_data_or_signatures() -> None:
    found = runs(*RECIPES, seeds=1, budget="source")
    assert unfair(found, "source") == []
    assert bench_tables.fairness(found) == [], "the check of controlled runs leaves them alone"
    assert unfair([*found[:-1], with_print(found[-1], files={"train.de": "0" * 64})], "source")
    assert unfair([*found[:-1], replace(found[-1], signatures={"bleu_sacre": "tok:intl"})], "source")
    other = replace(found[-1], signatures={**found[-1].signatures, "bleu_tutorial": "tok:subwords"})
    assert unfair([*found[:-1], with_print(other, target_vocabulary="1" * 64)], "source") == []


# Tables ---------------------------------------------------------------------------------------------------------------


def test_the_terminal_table_shows_means_and_deviations() -> None:
    found = [replace(one, scores={"bleu_tutorial": 35.0 + one.spec.seed}) for one in runs("paper", seeds=3)]
    table = bench_tables.terminal(found)
    assert "36.00 ± 1.00" in table
    assert "seed noise" not in table


def test_one_seed_says_that_noise_is_unknown() -> None:
    assert "seed noise is unknown" in bench_tables.terminal(runs(seeds=1))
    assert "±" not in bench_tables.terminal(runs(seeds=1))


def test_columns_are_aligned() -> None:
    found = [*runs("paper", seeds=2), *runs("conv_ffn", "bahdanau_gru", seeds=2)]
    lines = [line for line in bench_tables.terminal(found).split("\n") if re.match(r"paper|conv_ffn|bahdanau", line)]
    block = lines[:3]
    assert len({tuple(hit.start() for hit in re.finditer("±", line)) for line in block}) == 1


def test_unlike_runs_never_share_a_table() -> None:
    found = [
        record(),
        record(budget="source"),
        record(data=DataSpec(direction="en-de")),
        record(data=DataSpec(test_split="test_2017_mscoco")),
        record(data=DataSpec(training_pairs=10_000)),
        record(data=DataSpec(corpus="captions")),
        record(recipe=narrow(RECIPES["learned_positions"])),
        record(updates=200),
    ]
    made = groups(found)
    assert len(made) == len(found)
    assert len({group.heading for group in made}) == len(found)
    assert sum("data.training_pairs" in line for line in bench_tables.fairness(found)) == 1


def test_the_longest_trained_table_comes_first() -> None:
    short = [replace(run, curve=run.curve[:2]) for run in runs(seeds=1)]
    longer = runs("paper", seeds=1, budget="source")
    assert [group.budget for group in groups([*short, *longer])] == ["source", "controlled"]
    assert [group.budget for group in groups([*runs(seeds=1), *longer])] == ["source", "controlled"]


@pytest.mark.parametrize(("load", "kept"), [(None, False), (2.4, True), (2.6, False)])
def test_published_pages_leave_out_rates_measured_on_a_busy_machine(load: float | None, kept: bool) -> None:
    (run,) = runs("paper", seeds=1)
    speed = {**run.speed, "peak_memory_bytes": 1e9} | ({} if load is None else {"load_average": load})
    run = replace(run, speed=speed, environment={**run.environment, "machine": {"cores": 2}})
    shown = without_disturbed_rates(run)
    assert ("training_tokens_per_second" in shown.speed) is kept
    assert ("decoding_sentences_per_second" in shown.speed) is kept
    assert shown.speed["peak_memory_bytes"] == 1e9
    assert replace(shown, speed=run.speed) == run


def test_quick_runs_are_not_comparable_with_published_figures() -> None:
    quick = record(data=DataSpec(training_pairs=10_000), recipe=narrow(RECIPES["learned_positions"]))
    table = bench_tables.terminal([quick])
    assert "Not comparable with published figures: 10,000 training pairs only; reduced size (width 128)" in table
    assert "Not comparable" not in bench_tables.terminal([record()])
    assert "Not comparable" in bench_tables.terminal([record(training=replace(TUTORIAL, epochs=2))])
    assert "trained otherwise than by its source" in bench_tables.terminal([record("paper")])


def test_the_embedded_corpus_is_named_with_the_reason() -> None:
    one = replace(record(data=DataSpec(corpus="captions")), note="Multi30k could not be had: no network")
    for shown in (bench_tables.terminal([one]), bench_tables.markdown([one])):
        assert "not Multi30k" in shown
        assert "Multi30k could not be had: no network" in shown


@pytest.mark.parametrize("status", ["failed", "diverged", "interrupted"])
def test_runs_that_did_not_complete_are_shown(status: str) -> None:
    found = runs()
    table = bench_tables.terminal([*found[:-1], broken(found[-1], status, curve=found[-1].curve[:3])])
    assert f"1 completed, 1 {status}" in table
    assert f"bahdanau_gru, seed 1: {status} after 3 epochs: out of memory" in table
    assert status in bench_tables.markdown([broken(found[0], status)])


def test_missing_and_empty_figures_are_dashes() -> None:
    found = runs(seeds=1)
    bare = replace(found[0], scores={"bleu_sacre": None}, speed={}, sizes={}, curve=())
    assert re.search(r"learned_positions +1 .*–", bench_tables.terminal([broken(bare), found[1]]))
    assert bench_tables.terminal([]) == bench_tables.markdown([]) == "There are no runs yet."


def test_large_perplexities_keep_few_digits() -> None:
    found = [replace(record(), scores={"test_perplexity": value}) for value in (5.31642, 812.25, 3.2e6)]
    shown = [bench_tables.terminal([one]) for one in found]
    assert [word in table for word, table in zip(("5.316", "812.2", "3,200,000"), shown, strict=True)] == [True] * 3


def test_settings_tell_rows_of_one_variant_apart() -> None:
    ablated = replace(RECIPES["learned_positions"], dropout=0.3)
    found = [record(), record(recipe=ablated), record("paper", framework="keras"), record("paper")]
    labels = [row.label for row in rows(found)]
    assert labels == sorted(set(labels), key=labels.index)
    assert any("dropout=0.3" in label for label in labels)
    assert [label for label in labels if "keras" in label] == ["paper (keras on tensorflow)"]
    assert [row.label for row in rows([record(recipe=ablated)])] == ["learned_positions (dropout=0.3)"]


def test_another_vocabulary_is_marked_in_the_source_table() -> None:
    found = runs("learned_positions", "paper", "conv_ffn", seeds=1, budget="source")
    found[2] = with_print(found[2], target_vocabulary="1" * 64)
    table = bench_tables.terminal(found)
    assert "another vocabulary than most rows" in table
    lines = [line for line in table.split("\n") if "*" in line and not line.startswith("*")]
    assert lines
    assert all(line.startswith("conv_ffn") for line in lines)


def test_markdown_has_the_orders_of_bleu_and_the_speed() -> None:
    shown = bench_tables.markdown(runs())
    for word in ("cumulative BLEU-4", "individual BLEU-1", "peak memory MiB", "training tokens/s"):
        assert word in shown


# Markup ---------------------------------------------------------------------------------------------------------------


def html(markdown: str) -> Any:
    markdown_it = pytest.importorskip("markdown_it")
    return markdown_it.MarkdownIt("commonmark", {"linkify": False}).enable("table").render(markdown)


@pytest.mark.parametrize(
    "hostile", [HOSTILE, "a*b*c", "__x__", "1. x", "- x", "# x", "<script>", "![i](u)", "\\*", "a\nb"]
)
def test_text_is_shown_as_it_is(hostile: str) -> None:
    shown = html(text(hostile))
    plain = re.sub(r"<(?!/?p>)", "", shown)
    assert plain == shown, "no tag but the paragraph's"
    assert "$" not in text(hostile)
    cell = html(f"| a |\n| --- |\n| {code(hostile, in_table=True)} |\n")
    assert cell.count("<td>") == 1
    assert re.search(r"<td><code>.*</code></td>", cell)


# Pictures -------------------------------------------------------------------------------------------------------------


def pixels(made: Figure) -> Any:
    buffer = io.BytesIO()
    plot_style.styled(made.savefig)(buffer, format="png", dpi=50)
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
    record(HOSTILE),
    record("a_company.with.a.very.long.path.to.its_models:AND_A_VERY_LONG_NAME_OF_A_VARIANT"),
    record(recipe=replace(RECIPES["learned_positions"], dropout=0.3)),
]


@pytest.mark.parametrize("name", run_plots.RECORD_FIGURES)
@pytest.mark.parametrize("found", [MANY, AWKWARD, [broken(record())]], ids=["many", "awkward", "nothing"])
def test_pictures_of_records_are_drawn(name: str, found: list[RunRecord]) -> None:
    image = pixels(run_plots.RECORD_FIGURES[name][1](rows(found)))
    assert is_drawn(image)


@pytest.mark.parametrize(
    "made",
    [
        run_plots.sinusoid_table,
        lambda: run_plots.learning_rates(TRAININGS),
        run_plots.padded_masks,
        run_plots.activations,
    ],
    ids=["sinusoids", "rates", "masks", "activations"],
)
def test_pictures_of_the_models_are_drawn(made: Callable[[], Figure]) -> None:
    assert is_drawn(pixels(made()))


def test_a_variant_looks_the_same_everywhere_and_no_two_look_alike() -> None:
    styles = [plot_style.style(name) for name in RECIPES]
    for part in ("colour", "marker", "dashes"):
        assert len({str(getattr(one, part)) for one in styles}) == len(RECIPES)
    alone, among = plot_style.row_styles(rows(MANY[3:4])), plot_style.row_styles(rows(MANY))
    assert alone[0] == among[3]
    assert plot_style.style("pkg.mod:NAME") == plot_style.style("pkg.mod:NAME")


def test_hostile_labels_are_no_formulas() -> None:
    made = run_plots.bleu(rows([record(HOSTILE)]))
    labels = [label.get_text() for label in made.axes[0].get_yticklabels()]
    assert "$" in labels[0]
    assert not any(label.get_parse_math() for label in made.axes[0].get_yticklabels())


def test_labels_never_overlap() -> None:
    for wanted in ([0.5] * 7, [0.0, 0.01, 0.9, 0.91, 0.92, 0.93, 1.0], list(np.linspace(1, 0, 7))):
        places = plot_style.spread(wanted, [0.1] * 7, 0.0, 1.0)
        ordered = sorted(places)
        assert min(np.diff(ordered)) > 0.1 - 1e-9
        assert ordered[0] >= 0.05 - 1e-9
        assert ordered[-1] <= 0.95 + 1e-9
        assert np.argsort(places, kind="stable").tolist() == np.argsort(wanted, kind="stable").tolist()
    assert plot_style.spread([0.2, 0.8], [0.1, 0.1], 0.0, 1.0) == pytest.approx([0.2, 0.8])


def test_a_label_has_at_most_two_lines() -> None:
    for label in ("short", "learned_positions, conv_ffn, torch_reference", "x" * 40, "y" * 500):
        lines = plot_style.short(label).split("\n")
        assert len(lines) <= 2
        assert max(map(len, lines)) <= 31


def test_the_user_s_own_matplotlib_settings_do_not_matter() -> None:
    import matplotlib as mpl

    before = pixels(run_plots.parameters(rows(MANY[:2])))
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30, "axes.facecolor": "red"}):
        after = pixels(run_plots.parameters(rows(MANY[:2])))
        assert mpl.rcParams["font.size"] == 30
    assert (before == after).all()


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 5)])
def test_attention_is_drawn_head_by_head(layers: int, heads: int, tmp_path: Path) -> None:
    source, target = ["<sos>", "ein", "$x_y$", "<eos>"], ["a", "ünïcode", ""]
    weights = np.random.default_rng(0).dirichlet(np.ones(4), (layers, heads, 3)).astype(np.float32)
    run_plots.attention_heat_map(weights, source, target, tmp_path / "heads.png")
    assert is_drawn(imread(tmp_path / "heads.png")[..., :3])


def test_attention_of_the_wrong_shape_or_ending_is_refused(tmp_path: Path) -> None:
    weights = np.ones((1, 1, 2, 3))
    with pytest.raises(ValueError, match=r"weights of shape \(1, 1, 2, 3\): allowed is .*4 target tokens, 3 source"):
        run_plots.attention_heat_map(weights, list("abc"), list("abcd"), tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"picture 'x.gif': allowed is a name that ends in .png, .svg or .pdf"):
        run_plots.attention_heat_map(weights, list("abc"), list("ab"), tmp_path / "x.gif")
    assert list(tmp_path.iterdir()) == []


# Pages ----------------------------------------------------------------------------------------------------------------


def page_records() -> list[RunRecord]:
    captions = DataSpec(corpus="captions")
    changes: dict[str, Any] = {"training": replace(TUTORIAL, epochs=2), "data": captions}
    note = "Multi30k could not be had: <no> $network$"
    found = [record(variant, **changes) for variant in ("learned_positions", HOSTILE)]
    return [*(replace(one, note=note) for one in found), replace(broken(record("paper", **changes)), note=note)]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    return bench_report.write(page_records(), folder, command="python -m harness bench")


def test_the_page_names_the_corpus_the_command_and_each_run(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    assert content.startswith("# Bakeoff report\n\nWith one seed, learned_positions has the highest sacreBLEU")
    assert "\n\n3 runs (2 completed, 1 failed) of 3 variants on captions" in content
    assert "not comparable with published ones" in content.split("\n")[2]
    assert "| learned_positions |  | +" in content
    assert "It is not Multi30k. Multi30k could not be had: &#60;no&#62; &#36;network&#36;." in content
    assert "    python -m harness bench\n" in content
    assert "29,000 training pairs, 1,014 validation pairs, 1,000 test pairs" in content
    assert "3.10 % unknown source words in the test set" in content
    for one in page_records():
        assert one.id in content
    for word in ("Fairness check", "tok:13a", "commit"):
        assert word in content


def test_links_of_the_page_lead_to_pictures_that_are_not_blank(page: Path) -> None:
    links = re.findall(r"\]\((figures/[^)]+)\)", re.sub(r"`[^\n]*`", "", page.read_text(encoding="utf-8")))
    assert len(links) == 2 * (len(run_plots.RECORD_FIGURES) + 4)
    for link in links:
        assert (page.parent / link).stat().st_size > 2_000
        if link.endswith(".png"):
            assert is_drawn(imread(page.parent / link)[..., :3])
    drawn = {path.name for path in (page.parent / "figures").iterdir()}
    assert drawn == {Path(link).name for link in links}, "nothing is drawn that the page does not show"


def test_the_csv_files_hold_every_run_and_every_epoch(page: Path) -> None:
    table, curves = (pd.read_csv(page.parent / name) for name in ("runs.csv", "curves.csv"))
    given = sorted(page_records(), key=lambda one: one.id)
    assert sorted(table["run"]) == [one.id for one in given]
    assert dict(zip(table["run"], table["status"], strict=True)) == {one.id: one.status for one in given}
    for one in given:
        (line,) = table[table["run"] == one.id].to_dict("records")
        for name, value in {**one.scores, **one.sizes, **one.speed}.items():
            assert math.isnan(line[name]) if value is None else line[name] == pytest.approx(value)
        losses = curves[curves["run"] == one.id].sort_values("epoch")["validation_loss"]
        assert losses.tolist() == pytest.approx([epoch.validation_loss for epoch in one.curve])


def test_nothing_hostile_becomes_markup(page: Path) -> None:
    shown = html(page.read_text(encoding="utf-8"))
    assert "<b>" not in shown
    assert 'href="http' not in shown
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", page.read_text(encoding="utf-8"))
    assert "$" not in outside_code


def test_the_same_records_give_the_same_bytes_in_any_order_and_process(page: Path, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; sys.path[:0] = sys.argv[2:]\n"
        "from test_reporting import page_records\n"
        "from harness.reporting import bench_report\n"
        "bench_report.write(page_records()[::-1], pathlib.Path(sys.argv[1]), command='python -m harness bench')\n"
        "unwanted = {'torch', 'tensorflow', 'keras', 'jax', 'matplotlib.pyplot'}\n"
        "print(sorted(unwanted & set(sys.modules)))\n"
    )
    here = Path(__file__).parent
    arguments = [sys.executable, "-c", program, str(tmp_path), str(here), str(FIXTURES), str(ROOT)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    first = {path.relative_to(page.parent): path.read_bytes() for path in page.parent.rglob("*") if path.is_file()}
    second = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_unfair_runs_get_no_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_report, "_explanations", lambda folder: [])
    found = runs(seeds=1)
    made = bench_report.write([found[0], with_print(found[1], tokenised="1" * 64)], tmp_path)
    content = made.read_text(encoding="utf-8")
    assert "No pictures: these runs are not comparable" in content
    assert "tokenised: " in content
    assert not (tmp_path / "figures").exists()


def test_no_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there are no run records to report"):
        bench_report.write([], tmp_path)
    assert list(tmp_path.iterdir()) == []
