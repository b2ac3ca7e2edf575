"""`list`: list variants, frameworks, suites, and the runs in a folder with the settings in which they differ."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cli import folder_options, options
from harness.cli.console import say, say_json, warn
from harness.experiments import suites
from harness.experiments.run_names import run_names
from harness.storage import checkpoint_files, locks, results_folders, run_store
from harness.storage.records import RunRecord
from harness.text import one_line, short_line
from impls import registry

REASON_CHARACTERS = 100

SUMMARY = "list variants, frameworks, suites and runs"
EXAMPLES = (
    ("what is available, and the runs in results/local", ""),
    ("the published runs", "--results results/published"),
    ("for other programs", "--json"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_json(parser, "all of it")
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Print what is available. Returns 0."""
    records = run_store.records(arguments.results, complain=warn)
    variants = {name: registry.recipe(name).source for name in registry.names()}
    frameworks = _frameworks()
    purposes = {suite.name: suite.purpose for suite in suites.SUITES.values()}
    names = run_names([record.spec for record in records])
    if arguments.json:
        runs = [_run(record, name) for record, name in zip(records, names, strict=True)]
        contents = {"variants": variants, "frameworks": frameworks, "suites": purposes, "runs": runs}
        say_json(contents)
        return 0
    _say_names("Variants (or package.module:NAME, your own recipe or builder):", variants)
    _say_names("\nFrameworks:", frameworks)
    _say_names("\nSuites:", purposes)
    _say_runs(records, names, arguments.results)
    return 0


def _frameworks() -> dict[str, str]:
    states = {}
    for framework in dict.fromkeys(framework for _, framework in registry.BUILDERS):
        for backend in registry.BACKENDS if framework == "keras" else (None,):
            name = framework if backend is None else f"{framework} on {backend}"
            states[name] = registry.missing(framework, backend) or "installed"
    return states


def _say_names(title: str, descriptions: dict[str, str]) -> None:
    say(title)
    for name, description in descriptions.items():
        say(f"  {name:22} {description}")


def _say_runs(records: Sequence[RunRecord], names: Sequence[str], results: Path) -> None:
    begun = _begun(results)
    if not records and not begun:
        say(f"\nRuns in {results}: none; train some with: {results_folders.command_on(results, 'bench')}")
        return
    say(f"\nRuns in {results}:{'' if records else ' none has ended'}")
    if records:
        _say_table(records, names)
    for name, state in begun.items():
        say(f"  {one_line(name)}: {state}")


def _begun(results: Path) -> dict[str, str]:
    """Return the state of each run that has no record yet, by its id."""
    states = {}
    for folder in results_folders.run_folders(results):
        if run_store.has(results, folder.name, run_store.RECORD):
            continue
        if locks.is_held(results, folder.name):
            states[folder.name] = f"in progress, by {locks.owner(results, folder.name)}"
        elif checkpoint_files.exists(results, folder.name):
            states[folder.name] = "was killed; repeat its command to resume it"
    return states


def _say_table(records: Sequence[RunRecord], names: Sequence[str]) -> None:
    rows = [("started", "epochs", "BLEU", "run", "id")]
    rows += [(*_cells(record), name, one_line(record.id)) for record, name in zip(records, names, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for started, epochs, score, name, run in rows:
        say(f"  {started:{widths[0]}}  {epochs:>{widths[1]}}  {score:>{widths[2]}}  {name:{widths[3]}}  {run}")
    for record in records:
        if record.status != "completed":
            say(f"  {one_line(record.id)}: {short_line(record.ending, longest=REASON_CHARACTERS)}")


def _cells(record: RunRecord) -> tuple[str, str, str]:
    """Return the date of a run, its epochs, and its sacreBLEU or status."""
    score = record.scores.get("bleu_sacre")
    score_or_status = record.status if record.status != "completed" or score is None else f"{score:.2f}"
    return one_line(record.started[:10]), str(len(record.curve)), score_or_status


def _run(record: RunRecord, name: str) -> dict[str, Any]:
    spec = record.spec
    return {
        "id": record.id,
        "name": name,
        "variant": spec.variant,
        "budget": spec.budget,
        "seed": spec.seed,
        "status": record.status,
        "reason": record.reason,
        "started": record.started,
        "epochs": len(record.curve),
        "bleu_sacre": record.scores.get("bleu_sacre"),
    }
