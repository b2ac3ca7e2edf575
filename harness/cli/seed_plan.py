"""`bench --plan`: the number of seeds that detects a difference, and the time of their runs."""

from __future__ import annotations

import argparse
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.analysis.row_labels import SIZES
from harness.cli import sweep
from harness.cli.console import say, warn
from harness.experiments.specs import RunSpec
from harness.processes.progress import duration
from harness.storage import results_folders, run_store
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import count, did_you_mean

if TYPE_CHECKING:
    from harness.analysis.power import NoiseEstimate

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"
FORM = "give detect=NUMBER or detect=NUMBER,METRIC, such as detect=0.5,chrf"


@dataclass(frozen=True)
class Goal:
    """The true difference between two rows to detect, in the units of the metric."""

    difference: float
    metric: str


def goal(text: str) -> Goal:
    """Parse "detect=0.5" or "detect=0.5,METRIC"; the default metric is sacreBLEU."""
    from harness.analysis.metric_registry import LEADERBOARD, MAIN

    key, _, value = text.partition("=")
    number, _, metric = (part.strip() for part in value.partition(","))
    metric = metric or MAIN
    try:
        difference = float(number)
    except ValueError:
        difference = math.nan
    if key.strip() != "detect" or not 0 < difference < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: {FORM}; the number is positive")
    if metric not in LEADERBOARD:
        hint = did_you_mean(metric, LEADERBOARD)
        raise argparse.ArgumentTypeError(f"{text!r}: the metrics are {', '.join(LEADERBOARD)}{hint}")
    return Goal(difference, metric)


@dataclass(frozen=True)
class PilotRuns:
    """Runs that show the noise: the noise, the runs, and a description of their source."""

    estimate: NoiseEstimate
    records: list[RunRecord]
    source: str


def report(goal: Goal, specs: Sequence[RunSpec], arguments: argparse.Namespace) -> int:
    """Print how many seeds the runs of a suite need, and how long they take. Nothing is run. Returns 0.

    Raises: ValueError if no runs with two seeds or more show the noise, or the difference is out of range.
    """
    from harness.analysis.metric_registry import LEADERBOARD
    from harness.analysis.power import MOST_SEEDS, detectable_with, seeds_needed, upper_bound

    single = list({spec.id: spec for spec in (replace(spec, seed=0) for spec in specs)}.values())
    runs = _pilot_runs(single, goal.metric, arguments.results)
    noise, level = runs.estimate.noise, runs.estimate.level
    metric, scale = LEADERBOARD[goal.metric], runs.estimate.scale
    planned = max(Counter(spec.budget for spec in single).values())
    rows = max(2, planned)
    pair = f"two of {rows} rows" if planned > 1 else "this row and another, whose runs are not counted"
    comparisons = rows * (rows - 1) // 2
    difference = scale.natural(goal.difference, level)
    say(
        f"To detect a true difference of {goal.difference:g} {metric.title} between {pair} "
        f"({count(comparisons, 'comparison')}, Holm's correction) with 80 % probability:"
    )
    seeds = seeds_needed(noise, difference, rows, comparisons)
    if seeds is None:
        smallest = detectable_with(noise, MOST_SEEDS, rows, comparisons)
        smallest_text = f"{abs(float(scale.shown(smallest, scale.forward(level)))):.{metric.digits}f}"
        say(
            f"  no number of seeds is enough. With {MOST_SEEDS:,} seeds the smallest detectable one is "
            f"{smallest_text}: the rest is due to the test sentences, so a larger test set is needed."
        )
    else:
        say(f"  {seeds} seeds: {seeds * len(single)} runs, {_time(single, runs.records, seeds, arguments)}.")
        upper = seeds_needed(upper_bound(noise), difference, rows, comparisons)
        upper_text = f"more than {MOST_SEEDS:,}" if upper is None else str(upper)
        say(f"  {upper_text} seeds if the noise is as large as the upper end of its one-sided 80 % interval.")
    for line in _assumptions(runs, goal.metric, single):
        say(f"  {line}")
    return 0


def _pilot_runs(single: Sequence[RunSpec], metric: str, results: Path) -> PilotRuns:
    """Return the noise of finished runs of the plan, otherwise of another table in `results` or of published runs.

    The table with most rows of the plan is preferred, then one on the same test set, then one on the same corpus, then
    one with models of the same size, then that with most degrees of freedom.
    """
    from harness.analysis.grouping import groups
    from harness.analysis.power import estimate_noise

    def size(spec: RunSpec) -> tuple[object, ...]:
        return tuple(getattr(spec.recipe, name, None) for name in SIZES)

    ids, corpora, sizes = {spec.id for spec in single}, {spec.data.corpus for spec in single}, set(map(size, single))
    tests = set(map(_test_set, single))
    stored = {results: run_store.records(results, complain=warn)}
    of_plan = [record for record in stored[results] if replace(record.spec, seed=0).id in ids]
    estimate = estimate_noise(of_plan, metric, StoredFiles(results).sentences)
    if estimate is not None:
        return PilotRuns(estimate, of_plan, f"the runs of this plan in {results}")
    for folder in sorted({path.parents[1] for path in PUBLISHED.rglob(run_store.RECORD)}):
        stored.setdefault(folder, run_store.records(folder, complain=warn))
    tables = []
    for folder, table in ((folder, table) for folder, records in stored.items() for table in groups(records)):
        try:
            estimate = estimate_noise(table.records, metric, StoredFiles(folder).sentences)
        except ValueError as error:  # a damaged file of a run that is not part of the plan
            warn(str(error))
            continue
        if estimate is not None:
            kind = "other runs" if folder == results else "the published runs"
            tables.append(PilotRuns(estimate, list(table.records), f"{kind} in {folder}"))
    if not tables:
        raise ValueError(
            f"--plan: no two seeds of one row in {results} or among the published runs show the noise of {metric}: "
            f"run a pilot first, such as: {results_folders.command_on(results, 'bench --seed 0-2')}"
        )

    def fit(runs: PilotRuns) -> tuple[int, bool, bool, bool, float]:
        rows = len(ids & {replace(record.spec, seed=0).id for record in runs.records})
        spec = runs.records[0].spec
        same_size = any(size(run.spec) in sizes for run in runs.records)
        return rows, _test_set(spec) in tests, spec.data.corpus in corpora, same_size, runs.estimate.noise.degrees

    return max(tables, key=fit)


def _test_set(spec: RunSpec) -> str:
    return f"{spec.data.corpus} {spec.data.direction}, {spec.data.test_set}"


def _time(single: Sequence[RunSpec], records: Sequence[RunRecord], seeds: int, arguments: argparse.Namespace) -> str:
    """Return the time of all runs: that of the pilot, or a forecast for this machine."""
    jobs, _ = sweep.jobs_and_gpus(list(single), arguments)
    seconds_of: dict[str, list[float]] = {}
    for record in records:
        seconds = record.speed.get("total_seconds")
        if seconds and record.status == "completed":
            seconds_of.setdefault(replace(record.spec, seed=0).id, []).append(seconds)
    unknown = [spec for spec in single if spec.id not in seconds_of]
    estimates = sweep.forecast_runs(unknown, arguments.results, jobs).estimates if unknown else {}
    if unknown and not estimates:
        return "whose time is unknown before a first run on this device"
    total = sum(statistics.fmean(seconds_of[spec.id]) for spec in single if spec.id in seconds_of)
    total += sum(estimate.seconds() for estimate in estimates.values())
    basis = "by a forecast for this machine" if unknown else "as long as in the pilot"
    return f"about {duration(seeds * total / jobs)} with {jobs} at once, {basis}"


def _assumptions(runs: PilotRuns, metric_name: str, single: Sequence[RunSpec]) -> list[str]:
    from harness.analysis.effects import NORMAL_SEEDS
    from harness.analysis.metric_registry import LEADERBOARD
    from harness.reporting.formatting import listed

    metric, estimate = LEADERBOARD[metric_name], runs.estimate
    scale = estimate.scale
    middle = scale.forward(estimate.level)
    digits = metric.digits
    deviation = float(scale.shown(math.sqrt(estimate.noise.run_variance), middle))
    among = " relative to the other rows of its seed" if estimate.rows > 1 else ""
    lines = [
        f"Noise: from {runs.source}: {estimate.title}, {count(estimate.rows, 'row')} over {estimate.seeds} seeds; "
        f"the standard deviation of a run over seeds{among} is {deviation:.{digits}f} at {estimate.level:.{digits}f}, "
        f"with {estimate.noise.degrees:.0f} degrees of freedom."
    ]
    planned = set(map(_test_set, single))
    if planned.isdisjoint(_test_set(record.spec) for record in runs.records):
        lines.append(f"These runs have another test set: on {listed(sorted(planned))}, the noise may differ.")
    if estimate.rows == 1:
        lines.append("There is one row, so variance shared by paired seeds is not removed: pairs may need fewer seeds.")
    if estimate.with_sentences:
        error = float(scale.shown(math.sqrt(estimate.noise.sentence_variance), middle))
        lines.append(f"The choice of test sentences adds a deviation of {error:.{digits}f} at any number of seeds.")
    else:
        lines.append("The variance due to other test sentences is unknown and not included.")
    lines.append(f"Below {NORMAL_SEEDS} seeds this assumes normally distributed seed noise. Nothing was run.")
    return lines
