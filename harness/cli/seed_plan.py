"""`bench --plan`: the number of seeds that detects a difference, and the time of their runs."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.cli import sweep
from harness.cli.console import say, warn
from harness.experiments.specs import RunSpec
from harness.processes import machine
from harness.processes.progress import duration
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import count, did_you_mean

if TYPE_CHECKING:
    from harness.analysis.power import NoiseEstimate

PUBLISHED = Path(__file__).resolve().parents[2] / "results" / "published"
FORM = "give detect=NUMBER or detect=NUMBER,METRIC, such as detect=0.5,chrf"


@dataclass(frozen=True)
class Goal:
    """The true difference of two rows to detect, in the units of the metric."""

    difference: float
    figure: str


def goal(text: str) -> Goal:
    """Parse "detect=0.5" or "detect=0.5,METRIC"; the default metric is sacreBLEU.

    Raises:
        argparse.ArgumentTypeError: the form is another one, the number is not positive, or the metric is unknown.
    """
    from harness.analysis.metric_registry import LEADERBOARD, MAIN

    key, _, value = text.partition("=")
    number, _, figure = (part.strip() for part in value.partition(","))
    figure = figure or MAIN
    try:
        difference = float(number)
    except ValueError:
        difference = math.nan
    if key.strip() != "detect" or not 0 < difference < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: {FORM}; the number is positive")
    if figure not in LEADERBOARD:
        hint = did_you_mean(figure, LEADERBOARD)
        raise argparse.ArgumentTypeError(f"{text!r}: the metrics are {', '.join(LEADERBOARD)}{hint}")
    return Goal(difference, figure)


def report(wanted: Goal, specs: Sequence[RunSpec], arguments: argparse.Namespace) -> int:
    """Print how many seeds the runs of a suite need, and how long they take. Nothing is run. Returns 0.

    Raises:
        ValueError: no runs with two seeds or more show the noise, or the difference is out of range.
    """
    from harness.analysis.metric_registry import LEADERBOARD, scale_of
    from harness.analysis.power import MOST_SEEDS, detectable_with, seeds_needed, upper_bound

    single = list({spec.id: spec for spec in (replace(one, seed=0) for one in specs)}.values())
    pilot, records, where = _pilot(single, wanted.figure, arguments.results)
    measure, scale = LEADERBOARD[wanted.figure], scale_of(wanted.figure)
    rows = max(2, *(sum(spec.budget == budget for spec in single) for budget in {spec.budget for spec in single}))
    comparisons = rows * (rows - 1) // 2
    difference = scale.natural(wanted.difference, pilot.level)
    say(
        f"To detect a true difference of {wanted.difference:g} {measure.title} between two of {rows} rows "
        f"({count(comparisons, 'comparison')}, Holm's correction) with 80 % probability:"
    )
    needed = seeds_needed(pilot.noise, difference, rows, comparisons)
    if needed is None:
        least = detectable_with(pilot.noise, MOST_SEEDS, rows, comparisons)
        shown = abs(float(scale.shown(least, scale.forward(pilot.level))))
        say(
            f"  no number of seeds is enough. With {MOST_SEEDS:,} seeds the smallest is {shown:.{measure.digits}f}: "
            "the rest is due to the test sentences, so a larger test set is needed."
        )
    else:
        runs = needed * len(single)
        say(f"  {needed} seeds: {runs} runs, {_time(single, records, needed, arguments)}.")
        upper = seeds_needed(upper_bound(pilot.noise), difference, rows, comparisons)
        more = "more than 1,000" if upper is None else str(upper)
        say(f"  {more} seeds if the noise is as large as the upper end of its 80 % interval.")
    for line in _basis(pilot, wanted.figure, where):
        say(f"  {line}")
    return 0


def _pilot(single: Sequence[RunSpec], figure: str, results: Path) -> tuple[NoiseEstimate, list[RunRecord], str]:
    """Return the noise of finished runs of the plan, otherwise of published runs; their records; and their source."""
    from harness.analysis.evidence import stored_sentences
    from harness.analysis.power import estimate_noise

    ids = {spec.id for spec in single}
    own = run_store.records(results, complain=warn) if results.is_dir() else []
    own = [record for record in own if replace(record.spec, seed=0).id in ids]
    candidates = [(own, results, f"the runs of this plan in {results}")]
    for folder in (PUBLISHED, PUBLISHED / "ablation"):
        if folder.is_dir():
            candidates.append((run_store.records(folder, complain=warn), folder, f"the published runs in {folder}"))
    found: list[tuple[NoiseEstimate, list[RunRecord], str]] = []
    for place, (records, folder, where) in enumerate(candidates):
        pilot = estimate_noise(records, figure, stored_sentences(folder))
        if pilot is not None:
            found.append((pilot, records, where))
        if place == 0 and found:
            return found[0]
    if not found:
        raise ValueError(
            f"--plan: no two seeds of one row in {results} or among the published runs show the noise of {figure}: "
            "run a pilot first, such as: python -m harness bench --seed 0-2"
        )
    return max(found, key=lambda one: one[0].noise.degrees)


def _time(single: Sequence[RunSpec], records: Sequence[RunRecord], seeds: int, arguments: argparse.Namespace) -> str:
    """Return the time of all runs: that of the pilot, or a forecast for this machine."""
    gpus = machine.gpus() if all(spec.device == "cuda" for spec in single) else []
    jobs = arguments.jobs or sweep.jobs_at_once(list(single), gpus)
    taken: dict[str, list[float]] = {}
    for record in records:
        seconds = record.speed.get("total_seconds")
        if seconds and record.status == "completed":
            taken.setdefault(replace(record.spec, seed=0).id, []).append(seconds)
    known = {spec.id: statistics.fmean(taken[spec.id]) for spec in single if spec.id in taken}
    unknown = [spec for spec in single if spec.id not in known]
    guesses = sweep.forecast_runs(unknown, arguments.results, jobs).estimates if unknown else {}
    if unknown and not guesses:
        return "whose time is unknown before a first run on this device"
    total = sum(known.values()) + sum(one.seconds() for one in guesses.values())
    how = "as long as in the pilot" if not unknown else "by a forecast for this machine"
    return f"about {duration(seeds * total / jobs)} with {jobs} at once, {how}"


def _basis(found: NoiseEstimate, figure: str, where: str) -> list[str]:
    """Return the assumptions of the plan, in sentences."""
    from harness.analysis.effects import NORMAL_SEEDS
    from harness.analysis.metric_registry import LEADERBOARD, scale_of

    measure, scale = LEADERBOARD[figure], scale_of(figure)
    middle = scale.forward(found.level)
    deviation = float(scale.shown(math.sqrt(found.noise.run_variance), middle))
    said = (
        f"Noise: from {where}: {found.title}, {count(found.rows, 'row')} over {found.seeds} seeds; "
        f"a run's standard deviation over seeds is {deviation:.{measure.digits}f} at {found.level:.{measure.digits}f}, "
        f"with {found.noise.degrees:.0f} degrees of freedom."
    )
    lines = [said]
    if not found.paired:
        lines.append("There is one row, so variance shared by paired seeds is not removed: pairs may need fewer seeds.")
    if found.with_sentences:
        error = float(scale.shown(math.sqrt(found.noise.sentence_variance), middle))
        lines.append(f"Other test sentences change a difference by {error:.{measure.digits}f} at any number of seeds.")
    else:
        lines.append("The variance due to other test sentences is unknown and not included.")
    lines.append(f"Below {NORMAL_SEEDS} seeds this assumes normally distributed seed noise. Nothing was run.")
    return lines
