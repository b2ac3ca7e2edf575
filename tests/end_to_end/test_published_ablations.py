"""What the documentation says about the published ablations, beside their records and pages."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from places import ROOT
from published_pages import ABLATION, LAYERS, LAYERS_TEN_EPOCHS, SMALLER, TUTORIAL_SIZE, TYING
from published_records import (
    FOLDERS,
    RECORDS,
    REPORTS,
    RESULTS_PAGE,
    grouped,
    joined,
    lowest_loss_and_bleu,
    section,
)

from harness.execution import rate_tuning
from harness.experiments.run_names import flat_settings
from harness.storage.records import RunRecord
from impls.recipes import LEARNED_POSITIONS


def by_budget(folder: Path) -> dict[str, list[RunRecord]]:
    return grouped(FOLDERS[folder], lambda run: run.spec.budget)


def assert_effects_are_published(text: str, pages: str, count: int) -> None:
    """Assert that a section has this number of effects, all of which are on the page of an ablation."""
    page = re.sub(r" (▲|▼|&#126;|\?)", "", (REPORTS / pages / "index.md").read_text(encoding="utf-8"))
    effects = re.findall(r"[+−]?\d\.\d+ \([^)]+ to [^)]+\)", joined(text))
    assert len(effects) == count
    assert not [effect for effect in effects if effect not in page]


@pytest.mark.parametrize(
    ("folder", "title", "pages", "effects"),
    [
        (ABLATION, "Which detail matters?", "ablation", 11),
        (TUTORIAL_SIZE, "The same at the tutorials' size", "tutorial-size/ablation", 9),
    ],
)
def test_results_page_repeats_the_ablation(folder: Path, title: str, pages: str, effects: int) -> None:
    budgets = by_budget(folder)
    cells = grouped(budgets["controlled"], positions_and_init)
    assert {len(records) for records in cells.values()} == {5}
    text = section(title)
    for positions in {positions for positions, _ in cells}:
        values = [lowest_loss_and_bleu(cells[positions, init]) for init in ("xavier", "width")]
        row = [f"`{positions}`", *itertools.chain(*zip(*values, strict=True))]
        assert f"| {' | '.join(row)} |" in text
    assert_effects_are_published(text, pages, effects)


CHOSEN: dict[Path, tuple[str, float, dict[tuple[str, str], float], tuple[str, ...]]] = {
    SMALLER: (
        "The same at a smaller size",
        0.002,
        {("rotary", "xavier"): 0.004},
        ("Nine of the ten choose 0.002; rotary positions with `xavier` choose 0.004.",),
    ),
    ABLATION: (
        "Which detail matters?",
        0.001,
        {("rotary", "width"): 0.002, ("alibi", "width"): 0.002},
        ("Eight of the ten choose 0.001", "With `width`, rotary positions and ALiBi choose 0.002"),
    ),
    TUTORIAL_SIZE: ("The same at the tutorials' size", 0.0005, {}, ("All eight recipes choose 0.0005",)),
}
"""The section on an ablation of positions, the rate that most recipes choose, the other rates, and the text."""


@pytest.mark.parametrize("folder", CHOSEN, ids=lambda folder: folder.name)
def test_results_page_repeats_the_chosen_rates(folder: Path) -> None:
    title, usual, others, sentences = CHOSEN[folder]
    pilots = grouped((run for run in FOLDERS[folder] if run.spec.budget == "pilot"), positions_and_init)
    assert {pair: rate_tuning.choose(runs).rate for pair, runs in pilots.items()} == dict.fromkeys(
        pilots, usual
    ) | others
    text = joined(section(title))
    assert all(sentence in text for sentence in sentences)


def test_results_page_repeats_where_pilots_chose_wrongly() -> None:
    budgets = by_budget(ABLATION)
    tuned, fixed = (grouped(budgets[name], positions_and_init) for name in ("tuned", "controlled"))
    pairs = [("rotary", "width"), ("alibi", "width")]
    rows = [(lowest_loss_and_bleu(tuned[pair]), lowest_loss_and_bleu(fixed[pair])) for pair in pairs]
    losses, scores = ([f"{after[index]} instead of {before[index]}" for after, before in rows] for index in range(2))
    text = joined(section("Which detail matters?"))
    assert f"loss {' and '.join(losses)}, BLEU {' and '.join(scores)}" in text


def test_results_page_repeats_the_tuned_ablation() -> None:
    budgets = by_budget(SMALLER)
    fixed, tuned = (grouped(budgets[name], positions_and_init) for name in ("controlled", "tuned"))
    assert {len(runs) for runs in (*fixed.values(), *tuned.values())} == {5}
    text = section("The same at a smaller size")
    for positions in {positions for positions, _ in tuned}:
        cells = [lowest_loss_and_bleu(runs[positions, init]) for runs in (tuned, fixed) for init in ("xavier", "width")]
        losses, scores = zip(*cells, strict=True)
        assert f"| {' | '.join([f'`{positions}`', *losses[:2], *scores])} |" in text
    assert_effects_are_published(text, "smaller/ablation", 14)


def positions_and_init(record: RunRecord) -> tuple[str, str]:
    return record.spec.recipe.positions, record.spec.recipe.embedding_init


def positions_and_tying(record: RunRecord) -> tuple[str, str]:
    return record.spec.recipe.positions, record.spec.recipe.tying


def changed_level(record: RunRecord) -> str:
    recipe = record.spec.recipe
    levels = {name: getattr(recipe, name) for name in ("norm", "norm_order", "ffn", "activation")}
    changed = {name: level for name, level in levels.items() if level != getattr(LEARNED_POSITIONS, name)}
    return ", ".join(f"{name}={level}" for name, level in changed.items()) or "base"


def test_results_page_repeats_the_ablation_of_layers() -> None:
    pilots, runs = (by_budget(LAYERS)[budget] for budget in ("pilot", "controlled"))
    levels = grouped(runs, changed_level)
    assert {len(records) for records in levels.values()} == {5}
    text = section("Norms, activations and feed-forward")
    chosen = {rate_tuning.choose(records).rate for records in grouped(pilots, changed_level).values()}
    assert chosen == {0.001}
    assert "All eight recipes choose 0.001" in joined(text)
    for level, records in levels.items():
        loss, bleu = lowest_loss_and_bleu(records)
        assert f"| `{level}` | {loss} | {bleu} |" in text
    assert_effects_are_published(text, "layers/ablation", 2 * (len(levels) - 1))


def test_results_page_repeats_the_ablation_of_layers_after_ten_epochs() -> None:
    levels = grouped(by_budget(LAYERS_TEN_EPOCHS)["controlled"], changed_level)
    text = section("The same after ten epochs")
    for level, records in levels.items():
        assert sorted(record.spec.seed for record in records) == list(range(5))
        assert {(record.spec.training.peak_rate, record.spec.training.epochs) for record in records} == {(0.001, 10)}
        loss, bleu = lowest_loss_and_bleu(records)
        epochs = [min(run.curve, key=lambda epoch: epoch.validation_loss or math.inf).epoch for run in records]
        if level == "norm=rms, norm_order=pre":
            assert f"have a loss of {loss} and {bleu} BLEU (" in joined(text)
        else:
            assert f"| `{level}` | {loss} | {bleu} | {min(epochs)} to {max(epochs)} |" in text
    table, _, rest = text.partition("**Pre-norm is worse with both norms")
    combined, _, tuned = rest.partition("**RMS norm, GELU")
    assert_effects_are_published(table, "layers-ten-epochs/ablation", 2 * (len(levels) - 2))
    assert_effects_are_published(combined, "norm-and-order/ablation", 3)
    assert_effects_are_published(tuned, "norm-order/ablation", 2)


def test_documentation_repeats_the_detectable_effect_of_layers_after_ten_epochs() -> None:
    page = (REPORTS / "layers-ten-epochs" / "ablation" / "index.md").read_text(encoding="utf-8")
    (detected,) = re.findall(r"detects with 80 % probability, [^\n]*sacreBLEU (\d\.\d\d)\.", page)
    text = joined(section("The same after ten epochs"))
    readme = joined((ROOT / "README.md").read_text(encoding="utf-8"))
    assert f"They find a true difference of {detected} BLEU in 80 % of cases." in text
    assert f"five seeds often miss a difference below {detected}." in readme


def test_results_page_repeats_that_the_pilots_of_ten_epochs_chose_wrongly() -> None:
    budgets = {name: grouped(runs, changed_level) for name, runs in by_budget(LAYERS_TEN_EPOCHS).items()}
    assert {level: rate_tuning.choose(pilots).rate for level, pilots in budgets["pilot"].items()} == {
        "base": 0.0005,
        "norm_order=pre": 0.001,
    }
    pilots = {run.spec.training.peak_rate: lowest_loss_and_bleu([run])[0] for run in budgets["pilot"]["base"]}
    (loss, bleu), (other_loss, other_bleu) = (
        lowest_loss_and_bleu(budgets[name]["base"]) for name in ("tuned", "controlled")
    )
    text = joined(section("The same after ten epochs"))
    assert f"a loss of {pilots[0.0005]} instead of {pilots[0.001]}" in text
    assert f"loss {loss} instead of {other_loss}, BLEU {bleu} instead of {other_bleu}" in text


@pytest.mark.parametrize(
    ("pages", "level", "sentence"),
    [
        ("layers", "pre", "is {} BLEU below post-norm, and"),
        ("layers", "none", "and no norm {} below LayerNorm."),
        ("layers-ten-epochs", "none", "no norm is {} below ({} to {})."),
        ("layers-ten-epochs", "pre", "with LayerNorm alone, its BLEU is {} lower ({} to {}), which is inconclusive"),
        (
            "norm-and-order",
            "pre",
            "[{} below](reports/published/norm-and-order/ablation/index.md) post-norm ({} to {});",
        ),
    ],
)
def test_readme_repeats_the_effects_of_norms(pages: str, level: str, sentence: str) -> None:
    page = (REPORTS / pages / "ablation" / "index.md").read_text(encoding="utf-8")
    tables = page.rpartition("**Main effects")[2]
    row_of_level = rf"^\| [^|]*\| `{level}` \|(?: [^|]+ \|){{3}} −([^|]+)\|"
    (row,) = re.findall(row_of_level, tables, re.MULTILINE)
    effect, high, low = re.findall(r"\d\.\d\d", row)
    assert sentence.format(effect, low, high) in joined((ROOT / "README.md").read_text(encoding="utf-8"))
    assert ("inconclusive" in sentence) == ("&#126;" in row)


def test_results_page_repeats_the_runs_on_tying() -> None:
    text = section("Why is `paper` ahead?")
    controlled = [run for run in RECORDS if run.spec.budget == "controlled"]
    paper = [run for run in controlled if (run.spec.variant, run.spec.seed) == ("paper", 0)]
    budgets = by_budget(TYING)
    pilots = grouped(budgets["pilot"], positions_and_tying)
    assert {rate_tuning.choose(runs).rate for runs in pilots.values()} == {0.001}
    assert "(0.001 for all, chosen by runs with another seed)" in text
    cells = grouped([*budgets["controlled"], *paper], positions_and_tying)
    assert len(cells) == 4
    for (positions, tying), runs in cells.items():
        sizes = grouped(runs, lambda run: run.spec.recipe.width > 128)
        smaller, full = sizes[False], sizes[True]
        assert sorted(record.spec.seed for record in smaller) == list(range(5))
        assert [record.spec.seed for record in full] == [0]
        row = [f"`{positions}`", f"`{tying}`", *lowest_loss_and_bleu(smaller), *lowest_loss_and_bleu(full)]
        assert f"| {' | '.join(row)} |" in text
    assert_effects_are_published(text, "tying/ablation", 3)


def test_results_page_names_the_settings_in_which_the_sizes_of_tying_differ() -> None:
    training = {
        run.spec.recipe.width: flat_settings(replace(run.spec, variant="", recipe=None))
        for run in FOLDERS[TYING]
        if run.spec.budget == "controlled"
    }
    small, large = training[128], training[256]
    differing = {name for name in small if small[name] != large[name]}
    assert differing == {f"training.{name}" for name in ("epochs", "peak_rate", "batch_size", "batching")}
    assert "The two settings also differ in learning rate, batch size and batching." in joined(RESULTS_PAGE)
