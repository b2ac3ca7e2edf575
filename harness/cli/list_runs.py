"""`list`: the variants, the frameworks, the suites, and the runs that are there."""

from __future__ import annotations

import argparse
from typing import Any

from harness import text
from harness.cli import options
from harness.experiments import suites
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls import registry


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("list", help="variants, frameworks, suites and runs", description=__doc__)
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Print what there is. Returns 0."""
    options.say("Variants (and package.module:NAME, a recipe or a builder of yours):")
    for name in registry.names():
        options.say(f"  {name:22} {registry.recipe(name).source}")
    options.say("\nFrameworks:")
    for framework in dict.fromkeys(framework for _, framework in registry.BUILDERS):
        for backend in registry.BACKENDS if framework == "keras" else (None,):
            name = framework if backend is None else f"{framework} on {backend}"
            options.say(f"  {name:22} {registry.missing(framework, backend) or 'installed'}")
    options.say("\nSuites:")
    for suite in suites.SUITES.values():
        options.say(f"  {suite.name:22} {suite.purpose}")
    found = run_store.records(arguments.results, complain=options.warn)
    options.say(f"\nRuns in {arguments.results}:" + ("" if found else " none"))
    for record in found:
        options.say(f"  {text.one_line(record.id)}  {_line(record)}")
    return 0


def _line(record: RunRecord) -> str:
    if record.status != "completed":
        return f"{record.status} ({' '.join(record.reason.split())[:100]})"
    shown = (("bleu_tutorial", "tutorial BLEU", ".2f"), ("test_perplexity", "test perplexity", ".3f"))
    figures = [(label, record.scores.get(name), kind) for name, label, kind in shown]
    return ", ".join(
        [record.status, *(f"{label} {value:{kind}}" for label, value, kind in figures if value is not None)]
    )
