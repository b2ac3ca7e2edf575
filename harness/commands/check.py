"""`check`: whether a set of records is a fair comparison, one line for each rule."""

from __future__ import annotations

import argparse
import json
import typing
from typing import TYPE_CHECKING, Any

from harness import specs
from harness.commands import options

if TYPE_CHECKING:
    from harness.checking.rules import Checked, Outcome

SHOWN = 3
"""How many faults of a rule its line tells; --json tells all."""


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("check", help="whether records are a fair comparison", description=__doc__)
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="ID",
        help="a run, or how its id begins (all)",
    )
    parser.add_argument("--budget", choices=typing.get_args(specs.Budget), help="only the runs of one budget (all)")
    parser.add_argument("--json", action="store_true", help="everything as JSON, each fault and each rule's sentence")
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Try every rule. Returns 0 where all that could be tried pass, else 1."""
    from harness.checking.rules import check

    found = check(arguments.results, prefixes=arguments.run, budget=arguments.budget)
    if arguments.json:
        options.say(json.dumps(_json(found), indent=1, ensure_ascii=False))
    else:
        for one in found.outcomes:
            options.say(_line(one))
        for remark in found.remarks:
            options.say(f"Remark: {remark}")
        options.say(found.verdict)
    return int(bool(found.failed))


def _line(outcome: Outcome) -> str:
    from harness.checking.rules import OF_COMPARISONS

    head = f"{outcome.rule.code} {outcome.rule.name:14} "
    reasons = "; ".join(f"{count} not tried: {_plain(reason)}" for reason, count in outcome.untried.items())
    if outcome.end == "n/a":
        return f"{head} n/a ({'; '.join(map(_plain, outcome.untried)) or 'nothing to compare'})"
    unit = "table" if outcome.rule in OF_COMPARISONS else "run"
    tried = f"{outcome.tried} {unit}{'s' * (outcome.tried != 1)}"
    if outcome.end == "ok":
        return f"{head} ok ({tried}{'; ' * bool(reasons)}{reasons})"
    lines = [f"{one.where}: {one.what}" if one.where else one.what for one in outcome.findings]
    more = f"; and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    return f"{head} FAIL: {'; '.join(map(_plain, lines[:SHOWN]))}{more}"


def _plain(text: str) -> str:
    from harness.reporting.groups import plain

    return plain(text, longest=400)


def _json(found: Checked) -> dict[str, Any]:
    return {
        "fair": not found.failed,
        "verdict": found.verdict,
        "runs": list(found.runs),
        "tables": [
            {"heading": one.group.heading, "runs": [record.id for record in one.group.records]}
            for one in found.comparisons
        ],
        "rules": [
            {
                "code": one.rule.code,
                "name": one.rule.name,
                "sentence": one.rule.sentence,
                "end": one.end,
                "tried": one.tried,
                "faults": [{"where": fault.where, "what": fault.what} for fault in one.findings],
                "not_tried": one.untried,
            }
            for one in found.outcomes
        ],
        "remarks": list(found.remarks),
    }
