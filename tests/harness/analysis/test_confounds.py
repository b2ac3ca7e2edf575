"""Confounds of an ablation: the size of embeddings relative to positions, and batches that differ on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from record_factory import record as factory_record
from small_runs import TINY, spec

from harness.analysis.ablation import Analysis, analyse
from harness.analysis.ablation_study import studies
from harness.analysis.confounds import confounds, embedding_ratio
from harness.analysis.fairness import find_mismatches
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
TARGET_SHARE = 0.9
"""The size of target embeddings relative to source embeddings."""
POSITION_RMS = {"learned": 0.075, "sinusoidal": 0.707}
EMBEDDING_RMS = {"xavier": 0.016, "width": 1 / 16, "normal": 1.0}
"""Approximate values at width 256, embeddings before they are scaled."""
BATCHINGS = ("random", "length", "tokens")
TWO_BY_TWO = {"batching": ("random", "tokens"), "norm": ("layernorm", "rms")}


def run(levels: Mapping[str, str], seed: int = 0, **changes: Any) -> RunRecord:
    """Return a synthetic run with these levels; its batches depend on seed and batching."""
    fields = {name: level for name, level in levels.items() if name != "batching"}
    batching: Any = levels.get("batching", "random")
    settings = {"training": Training(batching=batching), "recipe": replace(LEARNED_POSITIONS, **fields)}  # type: ignore[arg-type]
    record = factory_record("learned_positions", seed, final=2.0 + 0.01 * len("".join(levels.values())), **settings)
    updates = {"random": 227, "length": 227, "tokens": 61}[batching]
    curve = tuple(replace(epoch, updates=epoch.epoch * updates) for epoch in record.curve)
    fingerprints = {**record.fingerprints, "stream": f"{batching} {seed}", **changes.pop("fingerprints", {})}
    embedding = EMBEDDING_RMS[levels.get("embedding_init", "xavier")]
    embedding *= {"sqrt_width": 16, "none": 1}[levels.get("embedding_scale", "sqrt_width")]
    position = POSITION_RMS.get(levels.get("positions", "learned"), 0.0)
    sizes = {**record.sizes, **dict(zip(RMS, (embedding, TARGET_SHARE * embedding, position), strict=True))}
    return replace(record, curve=curve, fingerprints=fingerprints, sizes=sizes, **changes)


def grid(levels: Mapping[str, tuple[str, ...]], seeds: int = 2) -> list[RunRecord]:
    """Return the runs of every combination of levels."""
    combinations = itertools.product(*levels.values())
    return [run(dict(zip(levels, words, strict=True)), seed) for words in combinations for seed in range(seeds)]


def analysed(records: list[RunRecord]) -> Analysis:
    return analyse(records, lambda record: None)


def confounded_fields(records: list[RunRecord]) -> list[str]:
    return [confound.field for confound in analysed(records).studies[0].confounds]


def page(analysis: Analysis, folder: Path, suffix: str) -> str:
    path = ablation_report.write(ablation_report.document(analysis), analysis, folder)
    return path.with_suffix(suffix).read_text()


def findings(records: list[RunRecord]) -> str:
    analysis = analysed(records)
    return "\n".join([*ablation_findings.findings(analysis), *ablation_findings.warnings(analysis)])


# The size of embeddings relative to positions -------------------------------------------------------------------------


def test_confounds_field_that_changes_the_ratio_is_warned_of_in_every_report(tmp_path: Path) -> None:
    records = grid({"positions": ("learned", "sinusoidal", "none")})
    analysis = analysed(records)
    (confound,) = analysis.studies[0].confounds
    assert (confound.field, list(confound.ratios)) == ("positions", ["sinusoidal", "learned"])
    assert confound.ratios == pytest.approx({"sinusoidal": 16 * 0.016 / 0.707, "learned": 16 * 0.016 / 0.075})
    assert "0.36 with sinusoidal, 3.41 with learned" in findings(records)
    bench_page = bench_report.write(bench_report.document(records), records, tmp_path).read_text()
    for text in (findings(records), page(analysis, tmp_path, ".md"), bench_page):
        assert WARNING in text


def test_embedding_ratio_without_position_vectors_is_none() -> None:
    assert embedding_ratio(run({"positions": "none"})) is None
    assert WARNING not in findings(grid({"positions": ("learned", "rotary", "alibi", "none")}))


def test_confounds_fields_that_keep_the_ratio_are_not_warned_of() -> None:
    star = [*grid({"norm": ("layernorm", "rms", "none")}), *grid({"ffn": ("gated",)}), *grid({"activation": ("tanh",)})]
    assert confounded_fields(star) == []


@pytest.mark.parametrize(
    "crossed", [{"embedding_init": ("xavier", "width")}, {"embedding_scale": ("sqrt_width", "none")}]
)
def test_confounds_field_crossed_with_the_size_of_embeddings_is_separated(crossed: dict[str, tuple[str, ...]]) -> None:
    records = grid({"positions": ("learned", "sinusoidal"), **crossed})
    assert analysed(records).studies[0].factorial is not None
    assert confounded_fields(records) == []


@pytest.mark.parametrize(
    "grids",
    [
        [{"positions": ("learned", "sinusoidal")}, {"embedding_init": ("width", "normal")}],
        [{"positions": ("learned", "sinusoidal"), "norm": ("layernorm", "rms")}],
    ],
    ids=["size varied in another grid", "crossed with another field"],
)
def test_confounds_field_not_crossed_with_the_size_of_embeddings_is_warned_of(
    grids: list[dict[str, tuple[str, ...]]],
) -> None:
    assert confounded_fields([record for levels in grids for record in grid(levels)]) == ["positions"]


@pytest.mark.parametrize(("change", "warned"), [(1.9, False), (2.1, True)])
def test_confounds_recorded_ratios_are_compared_with_a_limit_of_2(change: float, warned: bool) -> None:
    sizes = {"source_embedding_rms": 0.5, "target_embedding_rms": 0.5, "position_rms": 0.4}
    base, tanh = run({}), run({"activation": "tanh"})
    base = replace(base, sizes={**base.sizes, **sizes})
    tanh = replace(tanh, sizes={**tanh.sizes, **sizes, "position_rms": 0.4 / change})
    (study,) = studies([base, tanh])
    assert bool(confounds(study, ())) is warned
    assert confounds(study, ("activation", "embedding_init")) == ()


def test_train_stores_the_sizes_and_check_recomputes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr("harness.processes.machine.commit", lambda: {"digest": "a" * 40, "dirty": False})
    results = tmp_path / "results"
    settings = spec("learned_positions", replace(TINY, positions="sinusoidal", embedding_init="width"), updates=2)
    trained = train.run(settings, results)
    prepared = prepare(settings.data)
    assert settings.recipe is not None
    initial = weights.initial(settings.recipe, len(prepared.source_words), len(prepared.target_words), 0)
    assert {name: trained.sizes[name] for name in RMS} == weights.embedding_rms(settings.recipe, initial)
    assert trained.sizes["position_rms"] == pytest.approx(0.5**0.5)
    assert not check(results).failed
    wrong = [{**trained.sizes, name: trained.sizes[name] * 1.01} for name in RMS]
    missing = {name: size for name, size in trained.sizes.items() if name != "position_rms"}
    for sizes in (*wrong, missing):
        run_store.save_record(results, replace(trained, sizes=sizes))
        assert {outcome.rule.code for outcome in check(results).failed} == {"C28"}


# Batching -------------------------------------------------------------------------------------------------------------


def test_analyse_batching_is_compared_although_batches_and_updates_differ(tmp_path: Path) -> None:
    analysis = analysed(grid({"batching": BATCHINGS}))
    (effects,) = analysis.studies
    assert effects.study.differences == ()
    assert effects.study.base["batching"] == "random"
    assert effects.fields[0].levels == BATCHINGS
    assert all(effect.mean is not None for effect in effects.fields[0].effects["validation_loss"])
    html = page(analysis, tmp_path, ".html")
    assert (
        "Batching is compared at equal epochs (10): every level sees each training pair once per epoch. The number of "
        "updates differs: 2,270 with random, 2,270 with length, 610 with tokens."
    ) in html
    apart_from_batching = "training settings apart from batching"
    assert apart_from_batching in html
    (norm_effects,) = analysed(grid({"norm": ("layernorm", "rms")})).studies
    assert apart_from_batching not in ablation_findings.agreement(norm_effects.study)


def test_analyse_batching_crosses_with_fields_of_the_recipe() -> None:
    factorial = analysed(grid(TWO_BY_TWO)).studies[0].factorial
    assert factorial is not None
    assert (factorial.fields, factorial.missing) == (("norm", "batching"), ())


@pytest.mark.parametrize("batching", ["random", "tokens"])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"fingerprints": {"stream": "another"}}, "stream of batches, seed 1, batching={}"),
        ({"fingerprints": {"weights": {}}}, "initial weights, seed 1"),
        ({"updates": 60}, "updates, batching={}"),
    ],
    ids=["stream", "weights", "updates"],
)
def test_studies_runs_with_one_batching_that_differ_are_not_comparable(
    batching: str, change: dict[str, Any], expected: str
) -> None:
    changed = run({"batching": batching, "norm": "rms"}, 1, fingerprints=change.get("fingerprints", {}))
    if updates := change.get("updates"):
        changed = replace(
            changed, curve=tuple(replace(epoch, updates=epoch.epoch * updates) for epoch in changed.curve)
        )
    records = [changed if record.id == changed.id else record for record in grid(TWO_BY_TWO)]
    (study,) = studies(records)
    assert any(line.startswith(expected.format(batching)) for line in study.differences)


def test_studies_other_settings_of_batches_are_no_level_of_batching() -> None:
    base, tokens = run({}), run({"batching": "tokens"})
    larger = replace(tokens.spec, training=replace(tokens.spec.training, batch_tokens=2_000))
    assert len(studies([base, tokens])) == 1
    assert studies([base, replace(tokens, spec=larger, id=larger.id)]) == ()


def test_groups_runs_with_different_batching_are_in_separate_tables() -> None:
    tables = groups(grid({"batching": BATCHINGS}))
    assert len(tables) == 3
    assert {table.title.rpartition(", ")[2] for table in tables} == {
        "test_2016_flickr",
        "batches of similar length",
        "batches by tokens",
    }
    assert [find_mismatches(table.records, "controlled") for table in tables] == [[], [], []]
    assert find_mismatches(grid({"batching": ("random", "tokens")}), "controlled")


@pytest.mark.parametrize(
    ("limit", "updates", "expected"),
    [
        (50, {"random": 50, "tokens": 50}, "at an equal number of updates (50), not of epochs"),
        (100, {"random": 100, "tokens": 61}, "neither epochs nor updates equal"),
    ],
)
def test_findings_with_a_limit_on_updates_name_the_basis_of_the_comparison(
    limit: int, updates: dict[str, int], expected: str
) -> None:
    records = []
    for record in grid({"batching": ("random", "tokens")}):
        limited = replace(record.spec, updates=limit)
        curve = (replace(record.curve[0], updates=updates[record.spec.training.batching]),)
        records.append(replace(record, spec=limited, id=limited.id, curve=curve, chosen_epochs=(1,)))
    assert expected in findings(records)
