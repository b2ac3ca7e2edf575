"""What an ablation must not mix up: the size of embeddings beside positions, and batches that differ on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_factory import record as made_up
from small_runs import TINY, spec

from harness.analysis.ablation import Analysis, analyse
from harness.analysis.ablation_study import studies
from harness.analysis.confounds import confounds, embedding_ratio
from harness.analysis.fairness import fairness
from harness.analysis.grouping import groups
from harness.audit.rules import check
from harness.data.dataset import prepare
from harness.reporting import ablation_findings, ablation_report, bench_report
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import train
from impls import weights
from impls.contract import Training
from impls.recipes import LEARNED_POSITIONS

WARNING = "positions also changes the size of word embeddings relative to position vectors."
RMS = ("source_embedding_rms", "target_embedding_rms", "position_rms")


def record(levels: Mapping[str, str], seed: int = 0, **changes: Any) -> RunRecord:
    """Return a made-up run with these levels; its batches depend on seed and batching."""
    fields = {name: level for name, level in levels.items() if name != "batching"}
    batching: Any = levels.get("batching", "random")
    settings = {"training": Training(batching=batching), "recipe": replace(LEARNED_POSITIONS, **fields)}  # type: ignore[arg-type]
    one = made_up("learned_positions", seed, final=2.0 + 0.01 * len("".join(levels.values())), **settings)
    updates = {"random": 227, "length": 227, "tokens": 61}[batching]
    curve = tuple(replace(line, updates=line.epoch * updates) for line in one.curve)
    prints = {**one.fingerprints, "stream": f"{batching} {seed}", **changes.pop("fingerprints", {})}
    return replace(one, curve=curve, fingerprints=prints, **changes)


def grid(choices: Mapping[str, tuple[str, ...]], seeds: int = 2) -> list[RunRecord]:
    combinations = itertools.product(*choices.values())
    return [record(dict(zip(choices, one, strict=True)), seed) for one in combinations for seed in range(seeds)]


def analysed(records: list[RunRecord]) -> Analysis:
    return analyse(records, lambda one: None)


def page_of(found: Analysis, folder: Path, suffix: str) -> str:
    page = ablation_report.write(ablation_report.document(found), found, folder)
    return page.with_suffix(suffix).read_text()


def said(records: list[RunRecord]) -> str:
    found = analysed(records)
    return "\n".join([*ablation_findings.findings(found), *ablation_findings.warnings(found)])


# The size of embeddings beside positions ------------------------------------------------------------------------------


def test_a_field_that_changes_the_ratio_is_warned_of_wherever_effects_are_shown(tmp_path: Path) -> None:
    records = grid({"positions": ("learned", "sinusoidal", "none")})
    found = analysed(records)
    (one,) = found.studies[0].confounds
    assert (one.field, list(one.ratios)) == ("positions", ["sinusoidal", "learned"])
    expected = {p: embedding_ratio(record({"positions": p})) for p in ("sinusoidal", "learned")}
    assert one.ratios == expected
    assert f"{one.ratios['sinusoidal']:.2f} with sinusoidal, {one.ratios['learned']:.2f} with learned" in said(records)
    assert WARNING in said(records)
    assert WARNING in page_of(found, tmp_path, ".md")
    assert WARNING in bench_report.write(bench_report.document(records), records, tmp_path).read_text()


def test_none_rotary_and_alibi_have_no_ratio_and_other_fields_change_none() -> None:
    assert embedding_ratio(record({"positions": "none"})) is None
    assert WARNING not in said(grid({"positions": ("learned", "rotary", "alibi", "none")}))
    star = [*grid({"norm": ("layernorm", "rms", "none")}), *grid({"ffn": ("gated",)}), *grid({"activation": ("tanh",)})]
    assert analysed(star).studies[0].confounds == ()


@pytest.mark.parametrize(
    "crossed", [{"embedding_init": ("xavier", "width")}, {"embedding_scale": ("sqrt_width", "none")}]
)
def test_a_field_crossed_with_the_size_of_embeddings_is_no_confound(crossed: dict[str, tuple[str, ...]]) -> None:
    found = analysed(grid({"positions": ("learned", "sinusoidal"), **crossed}))
    assert found.studies[0].factorial is not None
    assert found.studies[0].confounds == ()


def test_varying_the_size_in_a_grid_of_its_own_does_not_separate_positions_from_it() -> None:
    star = [*grid({"positions": ("learned", "sinusoidal")}), *grid({"embedding_init": ("width", "normal")})]
    assert [one.field for one in analysed(star).studies[0].confounds] == ["positions"]
    other = grid({"positions": ("learned", "sinusoidal"), "norm": ("layernorm", "rms")})
    assert [one.field for one in analysed(other).studies[0].confounds] == ["positions"]


@pytest.mark.parametrize(("change", "warned"), [(1.9, False), (2.1, True)])
def test_the_limit_is_a_factor_of_2_in_what_the_records_hold(change: float, warned: bool) -> None:
    base, other = record({}), record({"activation": "tanh"})
    sizes = {"source_embedding_rms": 0.5, "target_embedding_rms": 0.5, "position_rms": 0.4}
    base = replace(base, sizes={**base.sizes, **sizes})
    other = replace(other, sizes={**other.sizes, **sizes, "position_rms": 0.4 / change})
    (study,) = studies([base, other])
    assert bool(confounds(study, ())) is warned
    assert confounds(study, ("activation", "embedding_init")) == ()


def test_a_trained_run_stores_the_sizes_and_check_computes_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("harness.processes.machine.commit", lambda: {"digest": "a" * 40, "dirty": False})
    results = tmp_path / "results"
    settings = spec("learned_positions", replace(TINY, positions="sinusoidal", embedding_init="width"), updates=2)
    trained = train.run(settings, results)
    prepared = prepare(settings.data)
    assert settings.recipe is not None
    drawn = weights.initial(settings.recipe, len(prepared.source_words), len(prepared.target_words), 0)
    assert {name: trained.sizes[name] for name in RMS} == weights.embedding_rms(settings.recipe, drawn)
    assert trained.sizes["position_rms"] == pytest.approx(0.5**0.5)
    assert not check(results).failed
    for name in RMS:
        run_store.save_record(results, replace(trained, sizes={**trained.sizes, name: trained.sizes[name] * 1.01}))
        assert {one.rule.code for one in check(results).failed} == {"C28"}
    run_store.save_record(
        results, replace(trained, sizes={n: v for n, v in trained.sizes.items() if n != "position_rms"})
    )
    assert {one.rule.code for one in check(results).failed} == {"C28"}


# Batching -------------------------------------------------------------------------------------------------------------

LEVELS: tuple[str, ...] = ("random", "length", "tokens")


def test_batching_is_compared_although_batches_and_updates_differ_between_its_levels(tmp_path: Path) -> None:
    found = analysed(grid({"batching": LEVELS}))
    (study,) = found.studies
    assert study.study.differences == ()
    assert study.study.base["batching"] == "random"
    assert study.fields[0].words == LEVELS
    assert all(effect.mean is not None for effect in study.fields[0].effects["validation_loss"])
    page = page_of(found, tmp_path, ".html")
    held = (
        "Batching is compared at equal epochs (10): every level sees each training pair once per epoch. The number of "
    )
    held += "updates differs: 2,270 with random, 2,270 with length, 610 with tokens."
    assert held in page
    assert "training settings apart from batching" in page
    assert "training settings apart from batching" not in ablation_findings.agreement(
        analysed(grid({"norm": ("layernorm", "rms")})).studies[0].study
    )


def test_batching_crosses_with_other_fields() -> None:
    found = analysed(grid({"batching": ("random", "tokens"), "norm": ("layernorm", "rms")}))
    crossed = found.studies[0].factorial
    assert crossed is not None
    assert (crossed.fields, crossed.missing) == (("norm", "batching"), ())


@pytest.mark.parametrize("level", ["random", "tokens"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"fingerprints": {"stream": "another"}}, "stream of batches, seed 1, batching={}"),
        ({"fingerprints": {"weights": {}}}, "initial weights, seed 1"),
        ({"curve": 60}, "updates, batching={}"),
    ],
)
def test_within_a_level_batches_and_updates_must_agree(level: str, change: dict[str, Any], expected: str) -> None:
    records = grid({"batching": ("random", "tokens"), "norm": ("layernorm", "rms")})
    (bad,) = [
        one for one in records if (one.spec.training.batching, one.spec.seed) == (level, 1) and "rms" in str(one.spec)
    ]
    levels = {"batching": level, "norm": "rms"}
    if "curve" in change:
        changed = replace(bad, curve=tuple(replace(line, updates=line.epoch * 60) for line in bad.curve))
    else:
        changed = record(levels, 1, **change)
    (study,) = studies([changed if one is bad else one for one in records])
    assert any(line.startswith(expected.format(level)) for line in study.differences)


def test_other_settings_of_the_batches_are_no_level_of_batching() -> None:
    records = [record({}), record({"batching": "tokens"})]
    settings = replace(records[1].spec.training, batch_tokens=2_000)
    other = replace(records[1].spec, training=settings)
    assert studies([records[0], replace(records[1], spec=other, id=other.id)]) == ()


def test_runs_with_other_batches_stand_in_tables_of_their_own() -> None:
    found = groups(grid({"batching": LEVELS}))
    assert len(found) == 3
    assert {group.title.rpartition(", ")[2] for group in found} == {
        "test_2016_flickr",
        "batches of similar length",
        "batches by tokens",
    }
    assert [fairness(group.records) for group in found] == [[], [], []]
    assert fairness(grid({"batching": ("random", "tokens")}))


def test_a_limit_on_updates_is_said_instead_of_epochs() -> None:
    def limited(updates: int, counts: Mapping[str, int]) -> str:
        found = []
        for one in grid({"batching": ("random", "tokens")}):
            told = replace(one.spec, updates=updates)
            curve = (replace(one.curve[0], updates=counts[one.spec.training.batching]),)
            found.append(replace(one, spec=told, id=told.id, curve=curve, chosen_epochs=(1,)))
        return said(found)

    assert "at an equal number of updates (50), not of epochs" in limited(50, {"random": 50, "tokens": 50})
    assert "neither epochs nor updates equal" in limited(100, {"random": 100, "tokens": 61})
