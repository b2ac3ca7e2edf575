"""Ablations: the grids, the command, and effects, main effects and interactions worked by hand on made-up records."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from markdown_it import MarkdownIt
from places import FIXTURES
from record_factory import record as made_up
from scipy import stats

from harness.analysis.ablation import Analysis, FieldEffects, analyse
from harness.analysis.ablation_study import studies
from harness.analysis.contrasts import AblationEffect
from harness.analysis.effects import Conclusion
from harness.analysis.fairness import fairness
from harness.analysis.grouping import groups
from harness.cli import ablate, bench
from harness.cli.main import main, parser
from harness.execution import local
from harness.experiments import ablation_grids, suites
from harness.experiments.ablation_grids import FACTORIAL, FIELDS, ONE_AT_A_TIME, Grid, cells, grids, levels
from harness.experiments.specs import DataSpec, RunSpec
from harness.reporting import ablation_findings, ablation_report, render_text
from harness.reporting.ablation_tables import field_rows, signed
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.contract import TransformerRecipe
from impls.recipes import LEARNED_POSITIONS, PAPER, RECIPES

LOSS = "validation_loss"
TINY = ["--corpus", "captions", "--tokenizer", "whitespace", "--threads", "1", "--updates", "2"]
TINY += [f"--set={one}" for one in ("data.training_pairs=200", "decoding.max_tokens=5", "training.batch_size=32")]
TINY += [f"--set=recipe.{one}" for one in ("width=16", "ffn_width=16", "layers=1", "heads=2")]


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MULTI30K_DIR", str(tmp_path_factory.mktemp("nothing") / "there"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(FIXTURES))
        patch.setattr("harness.processes.machine.gpus", list)
        yield


# Grids ----------------------------------------------------------------------------------------------------------------


def run_spec(recipe: TransformerRecipe = LEARNED_POSITIONS) -> RunSpec:
    return RunSpec(variant=recipe.name, recipe=recipe)


def flat(spec: RunSpec) -> dict[str, Any]:
    parts = {"": spec, "recipe.": spec.recipe, "training.": spec.training, "data.": spec.data}
    found = {
        f"{prefix}{one.name}": getattr(part, one.name)
        for prefix, part in parts.items()
        for one in fields(part)  # type: ignore[arg-type]
    }
    return {name: value for name, value in found.items() if name not in ("recipe", "training", "data")}


@pytest.mark.parametrize("base", [LEARNED_POSITIONS, PAPER], ids=lambda recipe: recipe.name)
def test_every_cell_of_every_grid_differs_from_its_base_in_one_field(base: TransformerRecipe) -> None:
    for grid in ONE_AT_A_TIME:
        own, *others = cells(grid, run_spec(base))
        (field,) = grid.fields
        assert own.recipe == base
        setting = f"training.{field}" if field == "batching" else f"recipe.{field}"
        assert [flat(cell)[setting] for cell in others] == [
            word for word in levels(field) if word != flat(own)[setting]
        ]
        for cell in others:
            different = [name for name, value in flat(cell).items() if value != flat(own)[name]]
            assert different == [setting]


def test_the_fields_are_the_closed_words_of_a_recipe_and_crossing_takes_every_combination() -> None:
    assert {grid.fields for grid in ONE_AT_A_TIME} == {(field,) for field in FIELDS}
    assert [len(cells(grid, run_spec())) for grid in ONE_AT_A_TIME] == [len(levels(field)) for field in FIELDS]
    crossed = cells(FACTORIAL, run_spec())
    assert len({cell.recipe for cell in crossed}) == len(crossed) == 5 * 4 * 4
    assert crossed[0].recipe == LEARNED_POSITIONS
    assert {(cell.recipe.positions, cell.recipe.norm, cell.recipe.activation) for cell in crossed} == set(  # type: ignore[union-attr]
        itertools.product(levels("positions"), levels("norm"), levels("activation"))
    )


def test_tying_has_one_vocabulary_throughout_and_a_base_of_its_own() -> None:
    plain, tied = cells(Grid(("norm",)), run_spec()), cells(Grid(("tying",)), run_spec())
    assert {cell.data.vocabulary for cell in plain} == {"separate"}
    assert {cell.data.vocabulary for cell in tied} == {"joint"}
    assert plain[0].recipe == tied[0].recipe
    assert plain[0].id != tied[0].id
    assert {cell.data.vocabulary for cell in cells(Grid(("norm", "tying")), run_spec())} == {"joint"}


def test_fields_are_chosen_once_and_crossed_where_asked() -> None:
    assert grids() == ONE_AT_A_TIME
    assert grids(["norm", "positions", "norm"]) == (Grid(("positions",)), Grid(("norm",)))
    assert grids(factorial=True) == (FACTORIAL,)
    assert grids(["norm_order", "positions"], factorial=True) == (Grid(("positions", "norm_order")),)


# The command ----------------------------------------------------------------------------------------------------------


def planned(line: list[str]) -> list[RunSpec]:
    given = parser().parse_args(line)
    given.typed = ""
    return ablate._plan(given).specs if line[0] == "ablate" else bench._plan(given)[1]


def test_the_default_is_all_fields_of_learned_positions_with_three_seeds() -> None:
    found = planned(["ablate", *TINY])
    assert len(found) == (1 + 4 + 3 + 1 + 3 + 2 + 1 + 1 + 2 + 2 + 2) * 3
    assert {spec.seed for spec in found} == {0, 1, 2}
    assert {spec.budget for spec in found} == {"controlled"}
    assert len({spec.seed for spec in planned(["ablate", *TINY, "--suite", "full"])}) == 8


def test_a_cell_is_the_run_that_bench_makes_of_the_same_settings() -> None:
    cell = planned(["ablate", *TINY, "--field", "positions", "--seed", "3"])[2]
    setting = f"--set=recipe.positions={cell.recipe.positions}"  # type: ignore[union-attr]
    assert cell.recipe.positions != "learned"  # type: ignore[union-attr]
    asked = ["bench", *TINY, "--variant", "learned_positions", "--budget", "controlled", "--seed", "3", setting]
    assert [spec.id for spec in planned(asked)] == [cell.id]


def test_set_changes_the_base_and_so_every_cell(tmp_path: Path, monkeypatch: Any) -> None:
    found = planned(["ablate", *TINY, "--field", "norm", "--set=recipe.norm=rms", "--set=recipe.dropout=0", "--seed=0"])
    assert [spec.recipe.norm for spec in found] == ["rms", "layernorm", "handmade", "none"]  # type: ignore[union-attr]
    assert {spec.recipe.dropout for spec in found} == {0.0}  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)
    Path("mine_to_ablate.py").write_text(
        "from dataclasses import replace\nfrom impls.recipes import PAPER\nMINE = replace(PAPER, positions='rotary')\n"
    )
    outside = planned(["ablate", *TINY, "--field", "positions", "--base", "mine_to_ablate:MINE", "--seed=0"])
    assert [spec.recipe.positions for spec in outside][0] == "rotary"  # type: ignore[union-attr]
    assert {spec.recipe.tying for spec in outside} == {"output"}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--base bahdanau_gru", "base 'bahdanau_gru' is of the family 'gru', which has no field 'positions'"),
        ("--base torch_reference", "is of the family 'torch_reference'"),
        ("--base counting_model:build", "is a builder, which has no field"),
        ("--base papre", "did you mean 'paper'?"),
        ("--field norms", "did you mean 'norm'?"),
        ("--field norm --factorial", "--factorial with --field norm alone: give --field twice or more"),
        ("--corpus multi30k", "MULTI30K_DIR"),
        ("--set recipe.width=129", "heads=8: expected a divisor of width=129"),
        ("--budget source", "there is no argument '--budget'"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    line: str, expected: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ablate", *line.split()]) == 2
    error = capsys.readouterr().err
    assert error.startswith("bakeoff: ")
    assert error.count("\n") == 1
    assert expected in error
    assert os.listdir(tmp_path) == []


def test_a_grid_is_run_reported_and_then_only_what_is_missing(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["ablate", *TINY, "--field", "norm_order", "--seed", "0"]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "2 recipes, 1 seed: 2 runs on captions de-en" in shown
    assert "2 to run" in shown
    assert "finished earlier" not in shown
    page, results = Path("reports/local/ablation/index.md"), Path("results/local")
    assert str(page) in shown
    assert "seed noise is unknown" in page.read_text()
    found = {one.spec.recipe.norm_order: one for one in run_store.records(results)}  # type: ignore[union-attr]
    assert [one.status for one in found.values()] == ["completed"] * 2
    run_store.remove_record(results, found["pre"].id)
    ran: list[str] = []
    execute = local.execute

    def watched(specs: list[RunSpec], *arguments: Any, **named: Any) -> Any:
        ran.extend(spec.id for spec in specs)
        return execute(specs, *arguments, **named)

    monkeypatch.setattr("harness.execution.local.execute", watched)
    assert main(line) == 0
    assert "1 of them finished earlier and are not run again." in capsys.readouterr().out
    assert ran == [found["pre"].id]
    page.unlink()
    assert main(line) == 0
    assert ran == [found["pre"].id]
    assert page.is_file()


# Effects by hand ------------------------------------------------------------------------------------------------------


def record(recipe: TransformerRecipe, seed: int, loss: float, **changes: Any) -> RunRecord:
    """Return a run whose validation loss is `loss` and something that its seed alone decides."""
    return made_up("learned_positions", seed, recipe=recipe, final=loss, **changes)


def planted(
    choices: Mapping[str, tuple[str, ...]], loss: Callable[[Mapping[str, str], int], float], seeds: int = 3
) -> list[RunRecord]:
    """Return a run for each combination of words and each seed, with the loss that a function gives it."""
    found = []
    for combination in itertools.product(*choices.values()):
        chosen = dict(zip(choices, combination, strict=True))
        recipe = replace(LEARNED_POSITIONS, **chosen)  # type: ignore[arg-type]
        found += [record(recipe, seed, loss(chosen, seed)) for seed in range(seeds)]
    return found


def nothing_stored(one: RunRecord) -> None:
    return None


def broken(one: RunRecord, status: Any = "diverged") -> RunRecord:
    return replace(one, status=status, scores={}, curve=one.curve[:1], reason="not finite")


def analysed(records: list[RunRecord]) -> Analysis:
    return analyse(records, nothing_stored)


def findings(analysis: Analysis) -> list[str]:
    return [*ablation_findings.findings(analysis), *ablation_findings.warnings(analysis)]


def terminal(analysis: Analysis) -> str:
    return render_text.document(ablation_report.document(analysis))


def page_of(analysis: Analysis, folder: Path, **options: Any) -> str:
    """Write a report and return its Markdown page."""
    report = ablation_report.document(analysis, **options)
    return ablation_report.write(report, analysis, folder).with_suffix(".md").read_text()


def of_word(found: tuple[FieldEffects, ...], field: str, word: str, figure: str = LOSS) -> AblationEffect:
    (one,) = [one for one in found if one.field == field]
    (effect,) = [effect for effect in one.effects[figure] if effect.contrast.changed == ((field, word),)]
    return effect


RISES = {"relu": (0.0, 0.0, 0.0), "gelu": (0.1, 0.2, 0.3), "tanh": (0.50, 0.51, 0.52)}
ACTIVATIONS = {"activation": tuple(RISES)}


def test_an_effect_its_interval_and_its_p_by_hand() -> None:
    found = analysed(planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])).studies[0]
    gelu, tanh = (of_word(found.fields, "activation", word) for word in ("gelu", "tanh"))
    half = stats.t.ppf(0.975, 2) * 0.1 / math.sqrt(3)
    assert gelu.mean == pytest.approx(0.2)
    assert (gelu.low, gelu.high) == (pytest.approx(0.2 - half), pytest.approx(0.2 + half))
    p_gelu, p_tanh = (stats.ttest_1samp(RISES[word], 0).pvalue for word in ("gelu", "tanh"))
    assert (gelu.p, gelu.p_holm) == (pytest.approx(p_gelu), pytest.approx(p_gelu))
    assert (tanh.p, tanh.p_holm) == (pytest.approx(p_tanh), pytest.approx(2 * p_tanh))
    assert (gelu.significant, tanh.significant) == (False, True)
    assert (gelu.conclusion, tanh.conclusion) == (Conclusion.INCONCLUSIVE, Conclusion.WORSE)
    assert gelu.contrast.seeds == (0, 1, 2)
    shown = terminal(analysed(planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])))
    assert "with 80 % probability, assuming normally distributed seed noise: validation loss 0." in shown


def test_the_spread_is_from_the_best_word_to_the_worst_and_holds_for_all_pairs() -> None:
    falls = {"relu": (0.0, 0.0, 0.0), "gelu": (-0.1, -0.2, -0.3), "tanh": (0.5, 0.51, 0.52)}
    found = analysed(planted(ACTIVATIONS, lambda words, seed: 2 + falls[words["activation"]][seed])).studies[0]
    spread = found.fields[0].spread[LOSS]
    assert spread is not None
    assert (spread.best, spread.worst) == ("gelu", "tanh")
    apart = np.array(falls["tanh"]) - np.array(falls["gelu"])
    half = stats.t.ppf(1 - 0.025 / 3, 2) * apart.std(ddof=1) / math.sqrt(3)
    assert spread.effect.mean == pytest.approx(apart.mean())
    assert spread.effect.high == pytest.approx(apart.mean() + half)
    assert spread.effect.p_holm == pytest.approx(3 * stats.ttest_1samp(apart, 0).pvalue)
    bleu = found.fields[0].spread["bleu_sacre"]
    assert bleu is not None
    assert (bleu.best, bleu.worst) == ("gelu", "tanh")
    assert bleu.effect.mean is not None
    assert bleu.effect.mean < 0


def test_the_field_with_the_largest_effect_ranks_first_and_is_named_in_the_finding() -> None:
    losses = {"gelu": 0.1, "none": -0.6, "rms": 0.3}

    def loss(words: Mapping[str, str], seed: int) -> float:
        return 2 + sum(losses.get(word, 0.0) for word in words.values()) + noise(words, seed)

    star = [
        *planted({"activation": ("gelu",)}, loss, seeds=5),
        *planted({"positions": ("none",)}, loss, seeds=5),
        *planted({"norm": ("layernorm", "rms")}, loss, seeds=5),
    ]
    found = analysed(star)
    ranks = found.rankings["learned_positions"][LOSS]
    assert [rank.field for rank in ranks] == ["positions", "norm", "activation"]
    said = findings(found)[0]
    most = "positions has the largest effect on the validation loss, assuming normally distributed seed noise: "
    assert f"{most}none instead of learned changes it by −0." in said
    assert said.index("norm (rms") < said.index("activation (gelu")
    few = findings(analysed([one for one in star if one.spec.seed < 4]))[0]
    assert "has the largest effect" not in few
    assert "Fewer than 5 seeds are too few for a claim. Largest effects on the validation loss: positions" in few


CORNERS = {"positions": ("learned", "none"), "norm": ("layernorm", "rms"), "activation": ("relu", "tanh")}
ALONE = {"none": 0.5, "rms": -0.2, "tanh": 0.1}


def added(words: Mapping[str, str], seed: int) -> float:
    return 2 + sum(ALONE.get(word, 0.0) for word in words.values())


def noise(words: Mapping[str, str], seed: int) -> float:
    return float(0.01 * np.random.default_rng([seed, *"".join(words.values()).encode()]).standard_normal())


def test_in_an_additive_world_main_effects_are_what_was_planted_and_interactions_are_zero() -> None:
    found = analysed(planted(CORNERS, added))
    crossed = found.studies[0].factorial
    assert crossed is not None
    assert crossed.fields == ("positions", "norm", "activation")
    assert (crossed.combinations, crossed.missing, crossed.left_out) == (8, (), ())
    for field, pair in CORNERS.items():
        effect = of_word(crossed.main, field, pair[1])
        assert effect.mean == pytest.approx(ALONE[pair[1]])
        assert effect.contrast.combinations == 4
    assert [effect.mean for effect in crossed.interactions[LOSS]] == [pytest.approx(0, abs=1e-9)] * 3
    assert not any(effect.significant for effect in crossed.interactions[LOSS])


def test_planted_interactions_are_found_where_they_are_and_averaged_over_the_other_field() -> None:
    def loss(words: Mapping[str, str], seed: int) -> float:
        both = words["positions"] == "none" and words["norm"] == "rms"
        all_three = both and words["activation"] == "tanh"
        return added(words, seed) + 0.4 * both + 0.2 * all_three + noise(words, seed)

    records = planted(CORNERS, loss)
    crossed = analysed(records).studies[0].factorial
    assert crossed is not None
    by_cell = {
        (one.spec.recipe.positions, one.spec.recipe.norm, one.spec.recipe.activation, one.spec.seed): one  # type: ignore[union-attr]
        for one in records
    }

    def y(*key: Any) -> float:
        return by_cell[key].curve[-1].validation_loss or 0.0

    def together(activation: str, seed: int) -> float:
        rms = y("none", "rms", activation, seed) - y("learned", "rms", activation, seed)
        return rms - y("none", "layernorm", activation, seed) + y("learned", "layernorm", activation, seed)

    expected = [np.mean([together(activation, seed) for activation in CORNERS["activation"]]) for seed in range(3)]
    pairs = {effect.contrast.label: effect for effect in crossed.interactions[LOSS]}
    found = pairs["positions=none with norm=rms"]
    assert found.mean == pytest.approx(np.mean(expected))
    assert found.mean == pytest.approx(0.4 + 0.2 / 2, abs=0.03)
    assert found.p is not None
    assert found.p < stats.ttest_1samp(expected, 0).pvalue, "8 rows estimate the variance together"
    assert found.contrast.combinations == 2
    assert found.significant
    assert pairs["positions=none with activation=tanh"].mean == pytest.approx(0.2 / 2, abs=0.03)
    main = of_word(crossed.main, "positions", "none")
    assert main.mean == pytest.approx(0.5 + 0.4 / 2 + 0.2 / 4, abs=0.03)
    said = "\n".join(findings(analysed(records)))
    assert "the largest is that of positions=none with norm=rms" in said


def test_what_is_missing_from_a_factorial_is_named_and_left_out_of_the_averages() -> None:
    choices = {"positions": ("learned", "none", "rotary"), "norm": ("layernorm", "rms")}
    records = planted(choices, lambda words, seed: 2 + 0.3 * (words["positions"] == "none") + noise(words, seed))

    def at(one: RunRecord, positions: str, norm: str) -> bool:
        return (one.spec.recipe.positions, one.spec.recipe.norm) == (positions, norm)  # type: ignore[union-attr]

    without = [one for one in records if not at(one, "rotary", "rms")]
    damaged = [broken(one) if at(one, "none", "rms") and one.spec.seed == 1 else one for one in without]
    crossed = analysed(damaged).studies[0].factorial
    assert crossed is not None
    assert crossed.missing == ("positions=rotary, norm=rms",)
    assert crossed.left_out == ("positions=none, norm=rms",)
    effect = of_word(crossed.main, "positions", "none")
    assert effect.contrast.combinations == 1
    assert effect.mean == of_word(analysed(damaged).studies[0].fields, "positions", "none").mean
    unknown = [one for one in crossed.interactions[LOSS] if one.contrast.label == "positions=rotary with norm=rms"]
    assert [one.mean for one in unknown] == [None]


# Runs that did not complete, fairness, bases --------------------------------------------------------------------------


def test_a_diverged_run_is_shown_and_its_word_keeps_the_other_seeds() -> None:
    records = planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])
    one = [broken(r) if r.spec.seed == 2 and r.spec.recipe.activation == "gelu" else r for r in records]  # type: ignore[union-attr]
    found = analysed(one)
    effect = of_word(found.studies[0].fields, "activation", "gelu")
    assert effect.contrast.seeds == (0, 1)
    assert effect.mean == pytest.approx(0.15)
    assert (effect.low, effect.p, effect.conclusion) == (None, None, Conclusion.NOT_TESTED)
    assert effect.values == pytest.approx((0.1, 0.2))
    assert of_word(found.studies[0].fields, "activation", "tanh").contrast.seeds == (0, 1, 2)
    (line,) = [one for one in field_rows(found.studies[0].study, found.studies[0].fields) if one.level == "gelu"]
    assert (line.status, line.seeds) == ("1 of 3 diverged", 2)
    assert "1 of 3 diverged" in terminal(found)
    assert "activation=gelu (1 of 3 diverged)" in "\n".join(findings(found))


def test_a_word_that_only_diverged_ranks_its_field_first(tmp_path: Path) -> None:
    star = [
        *planted(
            {"activation": ("relu", "tanh")},
            lambda words, seed: 2 + 0.9 * (words["activation"] == "tanh") + noise(words, seed),
        ),
        *map(broken, planted({"norm": ("none",)}, lambda words, seed: 2.0)),
    ]
    found = analysed(star)
    ranks = found.rankings["learned_positions"][LOSS]
    assert [(rank.field, rank.lost) for rank in ranks] == [("norm", ("none",)), ("activation", ())]
    assert ranks[0].effect is None
    assert "every run diverged: norm=none" in findings(found)[0]
    page = page_of(found, tmp_path)
    assert "| 1 | norm | none: diverged |" in page
    assert "| 3 of 3 diverged |" in page


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"source_vocabulary": "1" * 64}, "source vocabulary"),
        ({"stream": "1" * 64}, "stream of batches, seed 1"),
        ({"weights": {}}, "initial weights, seed 1: missing in learned_positions (activation=gelu)"),
    ],
)
def test_runs_that_are_not_comparable_are_refused_by_name(
    change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    records = planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])
    (bad,) = [r for r in records if r.spec.seed == 1 and r.spec.recipe.activation == "gelu"]  # type: ignore[union-attr]
    changed = replace(bad, fingerprints={**bad.fingerprints, **change})
    found = analysed([changed if one is bad else one for one in records])
    (study,) = found.studies
    assert any(expected in line for line in study.study.differences)
    assert (study.fields, study.factorial) == ((), None)
    page = page_of(found, tmp_path)
    assert "not comparable" in page
    assert expected.split(":")[0] in page
    assert "not comparable" in terminal(found)
    assert ablation_findings.limits(found) == []


def test_a_seed_that_one_recipe_lacks_is_no_reason_to_refuse_the_others() -> None:
    records = planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])
    fewer = [r for r in records if not (r.spec.seed == 2 and r.spec.recipe.activation == "tanh")]  # type: ignore[union-attr]
    whole = analysed(fewer)
    found = whole.studies[0]
    assert "tanh: +0.505 (seeds: +0.500; +0.510) ?, of 2 seeds" in findings(whole)[0]
    assert found.study.differences == ()
    assert of_word(found.fields, "activation", "tanh").contrast.seeds == (0, 1)
    assert of_word(found.fields, "activation", "gelu").contrast.seeds == (0, 1, 2)


def test_the_base_is_the_middle_of_the_grid_or_what_is_given() -> None:
    star = [record(replace(LEARNED_POSITIONS, positions="rotary", norm=norm), 0, 2.0) for norm in levels("norm")]  # type: ignore[arg-type]
    star += [
        record(replace(LEARNED_POSITIONS, positions=one), 0, 2.0) for one in levels("positions") if one != "rotary"
    ]  # type: ignore[arg-type]
    (middle,) = studies(star)
    assert (middle.base["positions"], middle.base["norm"]) == ("rotary", "layernorm")
    (given,) = studies(star, base=run_spec())
    assert given.base["positions"] == "learned"
    pair = [record(replace(LEARNED_POSITIONS, activation=one), 0, 2.0) for one in ("gelu", "relu")]  # type: ignore[arg-type]
    (own,) = studies(pair)
    assert own.base["activation"] == "relu"


def test_a_study_is_runs_that_agree_in_all_but_closed_words() -> None:
    records = [made_up(name, seed) for name in RECIPES for seed in (0, 1)]
    assert studies(records) == ()
    wide = [record(replace(LEARNED_POSITIONS, activation=one, width=512), 0, 2.0) for one in ("relu", "gelu")]  # type: ignore[arg-type]
    tied = [
        record(replace(LEARNED_POSITIONS, tying=one), 0, 2.0, data=DataSpec(vocabulary="joint"))
        for one in levels("tying")
    ]  # type: ignore[arg-type]
    found = studies([*records, *wide, *tied])
    assert [(one.joint, len(one.cells)) for one in found] == [(False, 2), (True, 3)]
    assert all("=" in cell.label for one in found for cell in one.cells[1:])
    assert found[1].title.endswith("joint vocabulary")
    tables = groups([one for study in found for one in study.records])
    assert [group.title.endswith("joint vocabulary") for group in tables] == [False, True]
    assert [fairness(group.records) for group in tables] == [[], []]


# Words, intervals over sentences, pages -------------------------------------------------------------------------------


def test_with_one_seed_nothing_is_significant_and_the_page_says_why() -> None:
    found = analysed(planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed], seeds=1))
    effect = of_word(found.studies[0].fields, "activation", "tanh")
    assert effect.mean == pytest.approx(0.5)
    assert (effect.low, effect.high, effect.significant) == (None, None, False)
    assert any("seed noise is unknown" in line for line in ablation_findings.limits(found))
    assert "Fewer than 5 seeds are too few for a claim." in findings(found)[0]


def test_stored_sentences_widen_the_interval_of_a_score_and_are_named() -> None:
    draw = np.random.default_rng(0)
    tokens = draw.integers(5, 20, 200).astype(np.int32)
    harder_for_tanh = draw.normal(size=200) * 5
    kept = {}
    records = planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])
    for number, one in enumerate(records):
        level = 1.5 + RISES[one.spec.recipe.activation][one.spec.seed]  # type: ignore[union-attr]
        nats = tokens * level + np.random.default_rng(number).normal(size=200)
        nats += harder_for_tanh * (one.spec.recipe.activation == "tanh")  # type: ignore[union-attr]
        kept[one.id] = {"nats": nats, "tokens": tokens}
        perplexity = math.exp(nats.sum() / tokens.sum())
        records[number] = replace(one, scores={**one.scores, "test_perplexity": perplexity})
    with_them = analyse(records, lambda one: kept[one.id])
    alone = analysed(records)
    both = [of_word(one.studies[0].fields, "activation", "tanh", "test_perplexity") for one in (with_them, alone)]
    assert [one.basis for one in both] == ["seeds and sentences", "seeds"]
    assert both[0].mean == pytest.approx(both[1].mean)
    with_sentences, seeds_alone = ((one.high or 0.0) - (one.low or 0.0) for one in both)
    assert with_sentences > seeds_alone > 0
    assert of_word(with_them.studies[0].fields, "activation", "tanh").basis == "seeds"


def test_limits_name_size_seeds_and_what_one_field_at_a_time_cannot_show() -> None:
    star = planted(ACTIVATIONS, lambda words, seed: 2 + RISES[words["activation"]][seed])
    said = "\n".join(ablation_findings.limits(analysed(star)))
    for words_ in (
        "width 256",
        "rest on 3 seeds, assuming normally distributed seed noise",
        "one at a time",
        "learning rate",
        "Speed",
        "parameters",
    ):
        assert words_ in said
    crossed = planted(CORNERS, lambda words, seed: 2 + noise(words, seed))
    said = "\n".join(ablation_findings.limits(analysed(crossed)))
    assert "one at a time" not in said
    assert "three fields" in said


@pytest.mark.parametrize(
    ("value", "expected"), [(0.1234, "+0.123"), (-0.1234, "−0.123"), (0.0004, "0.000"), (-0.0001, "0.000"), (None, "–")]
)
def test_differences_have_a_sign_unless_they_round_to_zero(value: float | None, expected: str) -> None:
    assert signed(value, LOSS) == expected


def test_the_page_its_pictures_and_its_data_are_the_same_bytes_each_time(tmp_path: Path) -> None:
    records = planted(CORNERS, lambda words, seed: added(words, seed) + noise(words, seed))
    for folder, order in (("one", records), ("two", records[::-1])):
        page_of(analysed(order), tmp_path / folder, command="python -m harness ablate --factorial")
    names = sorted(str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert {"index.md", "effects.csv", "runs.csv", "figures/ablation-1.svg", "figures/ablation-1-main.svg"} <= set(
        names
    )
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    page = (tmp_path / "one" / "index.md").read_text()
    assert "python -m harness ablate --factorial" in (tmp_path / "one" / "index.html").read_text()
    for name in names:
        if name.startswith("figures"):
            assert f"({name})" in page
    lines = pd.read_csv(tmp_path / "one" / "effects.csv")
    kinds = lines[lines.figure == LOSS].groupby("kind").size().to_dict()
    assert kinds["interaction"] == kinds["main effect"] == kinds["word"] == 3
    planted_ = lines[(lines.figure == LOSS) & (lines.kind == "main effect") & (lines.changed == "positions=none")]
    assert planted_.effect.item() == pytest.approx(0.5, abs=0.03)


def test_a_hostile_variant_name_is_shown_and_does_nothing(tmp_path: Path) -> None:
    name = "evil.mod:$\\frac{x}_y$_a_|<b>`t`|[l](http://x.y)"
    records = [
        made_up(name, seed, recipe=replace(LEARNED_POSITIONS, activation=one), final=2.0)  # type: ignore[arg-type]
        for one in ("relu", "gelu")
        for seed in (0, 1)
    ]
    page = page_of(analysed(records), tmp_path, command="python -m harness ablate")
    shown = MarkdownIt("commonmark").enable("table").render(page)
    assert "<b>" not in shown
    assert 'href="http' not in shown
    assert "&lt;b&gt;" in shown
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", page)
    assert "$" not in outside_code


def test_nothing_to_compare_is_said() -> None:
    found = analysed([record(LEARNED_POSITIONS, seed, 2.0) for seed in range(3)])
    assert found.studies == ()
    assert findings(found) == ["No ablation: no two runs differ only in the levels of their recipes."]
    assert ablation_report.document(found).blocks == ()


def test_a_base_that_cannot_take_a_word_is_refused() -> None:
    narrow = replace(LEARNED_POSITIONS, width=18, heads=6)
    with pytest.raises(ValueError, match="even .*positions='rotary'"):
        cells(Grid(("positions",)), run_spec(narrow))
    with pytest.raises(ValueError, match="has no field 'positions'"):
        ablation_grids.check_base("bahdanau_gru", suites.resolve("bahdanau_gru")[0])
