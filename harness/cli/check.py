"""`check`: whether a set of records is a fair comparison; the verdict first, then every rule that fails."""

from __future__ import annotations

import argparse
import json
import typing
from typing import TYPE_CHECKING, Any

from harness.cli import options
from harness.cli.console import say, warn
from harness.experiments import specs
from harness.text import count, did_you_mean

if TYPE_CHECKING:
    from harness.audit.rules import AuditReport, RuleOutcome

SHOWN = 3
"""How many findings of a rule its line shows; --json shows all."""

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
        help="a run, or the beginning of its id; repeatable (default: all)",
    )
    parser.add_argument(
        "--budget", choices=typing.get_args(specs.Budget), help="only the runs of one budget (default: all)"
    )
    parser.add_argument(
        "--published",
        action="store_true",
        default=None,
        help='apply the rules for published results (default: in folders called "published" and below)',
    )
    parser.add_argument(
        "--rerun",
        type=options.positive,
        default=0,
        metavar="N",
        help="train N random runs again for 50 updates (default 0)",
    )
    parser.add_argument(
        "--rerun-epoch",
        action="store_true",
        help="with --rerun: train the first epoch, and compare its loss too (default: 50 updates)",
    )
    parser.add_argument(
        "--rerun-seed", type=options.count, metavar="SEED", help="seed of the choice of --rerun (default: random)"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for every rule (default: only findings)")
    parser.add_argument("--explain", metavar="CODE", help="print what a rule requires, such as C05, and check nothing")
    options.add_json(parser, "every finding and rule")
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Apply every rule. Returns 0 if all rules that could be applied pass, otherwise 1."""
    from harness.audit import rules

    if arguments.explain is not None:
        return _explain(arguments.explain)
    if not arguments.rerun and (arguments.rerun_epoch or arguments.rerun_seed is not None):
        raise ValueError("--rerun-epoch and --rerun-seed need --rerun N, the number of runs to train again")
    found = rules.check(
        arguments.results, prefixes=arguments.run, budget=arguments.budget, published=arguments.published
    )
    if arguments.rerun:
        from harness.audit import rerun_rules

        plan = rerun_rules.RerunPlan(arguments.rerun, seed=arguments.rerun_seed, whole_epoch=arguments.rerun_epoch)
        found = rerun_rules.add(found, arguments.results, plan, tell=warn)
    if arguments.json:
        say(json.dumps(_json(found), indent=1, ensure_ascii=False))
    else:
        _say(found, verbose=arguments.verbose)
    return int(bool(found.failed))


def _say(report: AuditReport, *, verbose: bool) -> None:
    """Print the verdict, then the rules that fail or warn; with `verbose` all of them."""
    say(report.verdict)
    outcomes = (*report.outcomes, *report.warnings)
    shown = [outcome for outcome in outcomes if verbose or outcome.end in ("fail", "warn")]
    for outcome in shown:
        say(_line(outcome))
    for remark in report.remarks:
        say(f"Remark: {remark}")
    if not verbose:
        passed = sum(outcome.end == "ok" for outcome in outcomes)
        skipped = len(outcomes) - passed - len(shown)
        say(f"{count(passed, 'rule')} passed, {skipped} skipped. --verbose lists them; --explain CODE explains one.")


def _explain(code: str) -> int:
    from harness.audit import rerun_rules, rules

    known = {rule.code: rule for rule in (*rules.RULES, *rules.WARNINGS, *rerun_rules.RULES)}
    rule = known.get(code.upper())
    if rule is None:
        raise ValueError(
            f"--explain {code}: no rule has this code{did_you_mean(code.upper(), known)}; codes are "
            f"{min(known)} to {max(known)}"
        )
    say(f"{rule.code} {rule.name}: {rule.sentence}")
    if rule.needs_corpus:
        say("It needs the corpus, and is skipped if the corpus is not available.")
    return 0


def _line(outcome: RuleOutcome) -> str:
    from harness.audit.rules import OF_COMPARISONS, WARNINGS_OF_COMPARISONS, lines

    head = f"{outcome.rule.code} {outcome.rule.name:14} "
    reasons = "; ".join(f"{number} skipped: {_plain(reason)}" for reason, number in outcome.untried.items())
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
