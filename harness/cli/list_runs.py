"""`list`: variants, frameworks, suites, and the runs in a folder with what differs between them."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.cli import options
from harness.cli.console import say, warn
from harness.experiments import suites
from harness.experiments.run_names import run_names
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import one_line, short_line
from impls import registry

LONGEST_REASON = 100


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("list", help="list variants, frameworks, suites and runs", description=__doc__)
    options.add_json(parser, "all of it")
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Print what is available. Returns 0."""
    records = run_store.records(arguments.results, complain=warn)
    variants = {name: registry.recipe(name).source for name in registry.names()}
    frameworks = _frameworks()
    purposes = {suite.name: suite.purpose for suite in suites.SUITES.values()}
    names = run_names([record.spec for record in records])
    if arguments.json:
        runs = [_run(record, name) for record, name in zip(records, names, strict=True)]
        say(
            json.dumps(
                {"variants": variants, "frameworks": frameworks, "suites": purposes, "runs": runs},
                indent=1,
                ensure_ascii=False,
            )
        )
        return 0
    _say_words("Variants (or package.module:NAME, your own recipe or builder):", variants)
    _say_words("\nFrameworks:", frameworks)
    _say_words("\nSuites:", purposes)
    _say_runs(records, names, arguments.results)
    return 0


def _frameworks() -> dict[str, str]:
    """Return whether each framework is installed, by its name."""
    found = {}
    for framework in dict.fromkeys(framework for _, framework in registry.BUILDERS):
        for backend in registry.BACKENDS if framework == "keras" else (None,):
            name = framework if backend is None else f"{framework} on {backend}"
            found[name] = registry.missing(framework, backend) or "installed"
    return found


def _say_words(title: str, words: dict[str, str]) -> None:
    say(title)
    for name, meaning in words.items():
        say(f"  {name:22} {meaning}")


def _say_runs(records: Sequence[RunRecord], names: Sequence[str], results: Path) -> None:
    if not records:
        say(f"\nRuns in {results}: none; train some with: python -m harness bench")
        return
    say(f"\nRuns in {results}:")
    rows = [("started", "epochs", "BLEU", "run", "id")]
    rows += [(*_cells(record), name, one_line(record.id)) for record, name in zip(records, names, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for started, epochs, score, name, run in rows:
        line = f"  {started:{widths[0]}}  {epochs:>{widths[1]}}  {score:>{widths[2]}}  {name:{widths[3]}}  {run}"
        say(line)
    for record in records:
        if record.status != "completed":
            say(f"  {one_line(record.id)}: {record.status} ({short_line(record.reason, longest=LONGEST_REASON)})")


def _cells(record: RunRecord) -> tuple[str, str, str]:
    """Return the date of a run, its epochs, and its sacreBLEU or status."""
    score = record.scores.get("bleu_sacre")
    shown = record.status if record.status != "completed" or score is None else f"{score:.2f}"
    return one_line(record.started[:10]), str(len(record.curve)), shown


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
