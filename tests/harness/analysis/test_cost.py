"""Epochs and operations for the same quality, on curves with known crossings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from record_factory import record

from harness.analysis.cost import epoch_operations, table_cost
from harness.analysis.grouping import groups
from harness.reporting import bench_report
from harness.reporting.document import Disclosure, find
from harness.storage.records import RunRecord
from impls import weights
from impls.contract import Training


def run(
    variant: str, perplexities: Sequence[float | None], bleu: Sequence[float | None] = (), **changes: Any
) -> RunRecord:
    run_record = record(variant, training=Training(epochs=len(perplexities)), **changes)
    values = zip(run_record.curve, perplexities, bleu or [None] * len(perplexities), strict=True)
    curve = [replace(epoch, validation_perplexity=loss, validation_bleu=score) for epoch, loss, score in values]
    return replace(run_record, curve=tuple(curve))


def cost(*records: RunRecord) -> Any:
    (table,) = groups(records)
    return table_cost(table)


def test_table_cost_of_two_rows_returns_interpolated_epochs_to_the_easier_median() -> None:
    costs = cost(run("learned_positions", [10, 6, 4], [5, 20, 30]), run("conv_ffn", [12, 8, 5], [2, 10, 25]))
    assert costs.targets == {"validation_perplexity": 5.0, "validation_bleu": 25.0}
    assert costs.rows["learned_positions"].epochs == pytest.approx(dict.fromkeys(costs.targets, 2.5))
    assert costs.rows["conv_ffn"].epochs == dict.fromkeys(costs.targets, 3.0)


def test_table_cost_of_three_rows_leaves_out_a_row_that_misses_the_target() -> None:
    costs = cost(
        run("learned_positions", [10, 6, 4.001]), run("conv_ffn", [12, 8, 5]), run("sinusoidal_handmade", [9, 3, 3])
    )
    assert costs.targets == {"validation_perplexity": 4.01}  # rounded up: easier
    assert costs.rows["conv_ffn"].epochs == {"validation_perplexity": None}
    assert costs.rows["sinusoidal_handmade"].epochs["validation_perplexity"] == pytest.approx(1 + 4.99 / 6)


def test_table_cost_uses_the_mean_curve_up_to_the_last_epoch_that_all_seeds_measured() -> None:
    costs = cost(
        run("learned_positions", [10, 6, 4, 2]),
        run("learned_positions", [10, 8, 6, None], seed=1),
        run("conv_ffn", [11, 9, 5, 2.5]),
        run("conv_ffn", [11, 9, 5, 2.5], seed=1),
    )
    assert costs.targets == {"validation_perplexity": 5.0}  # 10, 7, 5 against 2.5
    assert costs.rows["learned_positions"].epochs == {"validation_perplexity": 3.0}


def test_table_cost_of_runs_that_stop_early_compares_at_the_shortest_run_of_any_seed() -> None:
    perplexities = [[10, 8, 6], [10, 8, 6, 4, 5]]
    costs = []
    for of_seeds in (perplexities, perplexities[::-1]):
        stopped = [run("learned_positions", values, seed=seed) for seed, values in enumerate(of_seeds)]
        training = Training(epochs=10, patience=1)
        stopped = [replace(each, spec=replace(each.spec, training=training)) for each in stopped]
        whole = run("conv_ffn", [11, 9, 5, 4.5, 4])
        costs.append(cost(*stopped, replace(whole, spec=replace(whole.spec, training=training))))
    assert costs[0] == costs[1]
    assert costs[0].rows["learned_positions"].at_equal_cost == {"validation_perplexity": 6.0}


def test_table_cost_of_runs_that_end_within_an_epoch_counts_its_part() -> None:
    records = [run("learned_positions", [10, 6, 4]), run("conv_ffn", [12, 8, 5])]
    whole = cost(*records)
    cut = [
        replace(each, curve=(*each.curve[:-1], replace(each.curve[-1], tokens=each.curve[0].tokens // 10)))
        for each in records
    ]
    partial = cost(*cut)
    assert [epoch_operations(record) for record in cut] == [epoch_operations(record) for record in records]
    assert partial.operations == pytest.approx(whole.operations * 2.1 / 3, rel=1e-3)
    cheapest = partial.rows["learned_positions"]
    assert cheapest.epochs == pytest.approx({"validation_perplexity": 2.05}), "half of the last 0.1 epochs"
    assert cheapest.at_equal_cost == pytest.approx({"validation_perplexity": 4.0}), "all of its training"


def test_table_cost_keeps_the_best_epoch_and_compares_at_the_operations_of_the_cheapest() -> None:
    costs = cost(run("learned_positions", [10, 4, 6]), run("conv_ffn", [12, 8, 5]))
    cheap, dear = costs.rows["learned_positions"], costs.rows["conv_ffn"]
    assert costs.operations == 3 * cheap.operations < 3 * dear.operations
    assert cheap.at_equal_cost == {"validation_perplexity": 4.0}
    at_epoch = 3 * cheap.operations / dear.operations
    assert dear.at_equal_cost == pytest.approx({"validation_perplexity": 8 - 3 * (at_epoch - 2)})


@pytest.mark.parametrize("lost", [{"source_words": math.nan}, {"target_words": 0}, {"train_pairs": 1e300}])
def test_operations_of_unusable_sizes_are_unknown(lost: dict[str, float]) -> None:
    known, other = run("learned_positions", [10, 6, 4]), run("conv_ffn", [12, 8, 5])
    costs = cost(known, replace(other, sizes={**other.sizes, **lost}))
    assert costs.rows["conv_ffn"].operations is None
    assert costs.rows["conv_ffn"].at_equal_cost == {"validation_perplexity": None}
    assert costs.operations == 3 * costs.rows["learned_positions"].operations


def test_epoch_operations_are_six_per_kernel_weight_and_token() -> None:
    run_record = record("learned_positions")
    shapes = weights.shapes(run_record.spec.recipe, 7_853, 5_893)
    kernels = sum(math.prod(shape) for name, shape in shapes.items() if name.endswith(".kernel"))
    assert epoch_operations(run_record) == 6 * kernels * 400_000


@pytest.mark.parametrize(
    "records",
    [
        [run("learned_positions", [10, 6, 4])],
        [run("learned_positions", [10, 6]), run("conv_ffn", [10, 6])],
        [run("learned_positions", [10, 6, 4]), run("conv_ffn", [10, None, 4])],
    ],
    ids=["one row", "two epochs", "an epoch without a value"],
)
def test_table_cost_without_enough_points_is_none(records: list[RunRecord]) -> None:
    assert cost(*records) is None


def cost_tables(runs: list[RunRecord]) -> list[Any]:
    """Return the tables of costs of a report."""
    parts = find(bench_report.document(runs).blocks, Disclosure)
    return [part.blocks[0] for part in parts if part.summary.startswith("Cost of equal quality")]


@pytest.mark.parametrize(("budget", "count"), [("controlled", 1), ("source", 0)])
def test_report_shows_the_cost_of_controlled_tables_alone(budget: str, count: int) -> None:
    shown = cost_tables(
        [run("learned_positions", [10, 6, 4], budget=budget), run("conv_ffn", [12, 8, 5], budget=budget)]
    )
    assert ["epochs to perplexity 5.00" in table.heads for table in shown] == [True] * count


def test_report_of_small_runs_names_their_operations_not_zero() -> None:
    runs = [run(name, [10, 6, 4]) for name in ("learned_positions", "conv_ffn")]
    runs = [replace(each, curve=tuple(replace(epoch, tokens=5_000) for epoch in each.curve)) for each in runs]
    (table,) = cost_tables(runs)
    assert table.heads[-1] == "perplexity at 0.490 TFLOP"
