"""`check`: whether a set of records is a fair comparison, one line for each rule."""

from __future__ import annotations

import argparse
import json
import typing
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.experiments import specs
from harness.text import count

if TYPE_CHECKING:
    from harness.audit.rules import AuditReport, RuleOutcome

SHOWN = 3
"""How many faults of a rule its line shows; --json shows all."""

LIMITS = """\
No inspection of records can detect figures that were invented consistently with each other (losses, times, the name of
the machine or of the commit), a run that was repeated until it was good, or the last seeds left out. --rerun N detects
invented runs: it trains N of them again for 50 updates and compares the digests of batches and weights. Weights are the
same to the bit only on the same machine, with the same versions, threads and commit; elsewhere a difference is reported
as "cannot tell", and --rerun-epoch compares the training loss of the first epoch instead. It does not detect what
happened later in a run, or seeds left out.
"""


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser(
        "check", help="whether records are a fair comparison", description=__doc__, epilog=" ".join(LIMITS.split())
    )
    parser.add_argument(
        "--run",
        action="append",
        default=[],
        metavar="ID",
        help="a run, or how its id begins (all)",
    )
    parser.add_argument("--budget", choices=typing.get_args(specs.Budget), help="only the runs of one budget (all)")
    parser.add_argument(
        "--published",
        action="store_true",
        default=None,
        help='apply the rules for published results (only in a folder "published" and those in it)',
    )
    parser.add_argument(
        "--rerun", type=options.positive, default=0, metavar="N", help="train N random runs again for 50 updates (0)"
    )
    parser.add_argument(
        "--rerun-epoch", action="store_true", help="train them for their first epoch, and compare its loss too"
    )
    parser.add_argument("--rerun-seed", type=options.count, metavar="SEED", help="which runs --rerun chooses (random)")
    parser.add_argument("--json", action="store_true", help="everything as JSON, each fault and each rule's sentence")
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Apply every rule. Returns 0 where all that could be tried pass, else 1."""
    from harness.audit import rules

    if not arguments.rerun and (arguments.rerun_epoch or arguments.rerun_seed is not None):
        raise ValueError("--rerun-epoch and --rerun-seed need --rerun N, the number of runs to train again")
    found = rules.check(
        arguments.results, prefixes=arguments.run, budget=arguments.budget, published=arguments.published
    )
    if arguments.rerun:
        from harness.audit import rerun_rules

        plan = rerun_rules.RerunPlan(arguments.rerun, seed=arguments.rerun_seed, whole_epoch=arguments.rerun_epoch)
        found = rerun_rules.add(found, arguments.results, plan, tell=options.warn)
    if arguments.json:
        options.say(json.dumps(_json(found), indent=1, ensure_ascii=False))
    else:
        for one in (*found.outcomes, *found.warnings):
            options.say(_line(one))
        for remark in found.remarks:
            options.say(f"Remark: {remark}")
        options.say(found.verdict)
    return int(bool(found.failed))


def _line(outcome: RuleOutcome) -> str:
    from harness.audit.rules import OF_COMPARISONS, WARNINGS_OF_COMPARISONS, lines

    head = f"{outcome.rule.code} {outcome.rule.name:14} "
    reasons = "; ".join(f"{count} skipped: {_plain(reason)}" for reason, count in outcome.untried.items())
    if outcome.end == "n/a":
        return f"{head} skipped ({'; '.join(map(_plain, outcome.untried)) or 'nothing to compare'})"
    unit = "table" if outcome.rule in (*OF_COMPARISONS, *WARNINGS_OF_COMPARISONS) else "run"
    tried = count(outcome.tried, unit)
    if outcome.end == "ok":
        return f"{head} ok ({tried}{'; ' * bool(reasons)}{reasons})"
    found = lines(outcome)
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    word = "FAIL" if outcome.end == "fail" else "warning"
    return f"{head} {word}: {'; '.join(map(_plain, found[:SHOWN]))}{more}"


def _plain(text: str) -> str:
    from harness.text import short_line

    return short_line(text, longest=400)


def _json(found: AuditReport) -> dict[str, Any]:
    return {
        "fair": not found.failed,
        "verdict": found.verdict,
        "runs": list(found.runs),
        "tables": [
            {"heading": one.group.heading, "runs": [record.id for record in one.group.records]}
            for one in found.comparisons
        ],
        "skipped": [one.rule.code for one in found.skipped],
        "rules": list(map(_outcome, found.outcomes)),
        "warnings": list(map(_outcome, found.warnings)),
        "remarks": list(found.remarks),
    }


def _outcome(one: RuleOutcome) -> dict[str, Any]:
    return {
        "code": one.rule.code,
        "name": one.rule.name,
        "sentence": one.rule.sentence,
        "end": one.end,
        "tried": one.tried,
        "faults": [{"where": fault.where, "what": fault.what} for fault in one.findings],
        "not_tried": one.untried,
    }
