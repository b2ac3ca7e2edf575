"""`check`: test whether a set of records is a fair comparison, and print the verdict and every rule that fails."""

from __future__ import annotations

import argparse
import functools
import typing
from typing import TYPE_CHECKING, Any

from harness.cli import folder_options, options
from harness.cli.console import say, say_json, warn
from harness.experiments import specs
from harness.text import count, did_you_mean, short_line

if TYPE_CHECKING:
    from harness.audit.rules import AuditReport, RuleOutcome

LIMITS = """\
No inspection of records can detect figures that were invented consistently with each other (losses, times, the name of
the machine or of the commit), a run that was repeated until its result was good, or seeds that were left out. --rerun N
detects invented runs: it trains N of them again for 50 updates and compares the digests of batches and weights. Weights
are bit-identical only on the same machine, with the same versions, threads and commit. Elsewhere a difference proves
nothing, and the warning W04 says so. --rerun-epoch also compares the training loss of the first epoch, up to 0.03 nats.
--rerun leaves out the runs of builders, whose code it does not execute, and does not detect changes to later parts of a
run.
"""

SUMMARY = "test whether records are a fair comparison"
EXAMPLES = (
    ("check the runs in results/local", ""),
    ("train two random runs again for 50 updates and compare", "--rerun 2"),
    ("what a rule requires", "--explain C20"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.epilog = " ".join(LIMITS.split())
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
        help="train N random runs again for 50 updates and compare (default 0)",
    )
    parser.add_argument(
        "--rerun-epoch",
        action="store_true",
        help="with --rerun: train the first epoch, and compare its loss too (default: 50 updates)",
    )
    parser.add_argument(
        "--rerun-seed",
        type=options.count,
        metavar="SEED",
        help="seed that chooses the runs of --rerun (default: random)",
    )
    parser.add_argument("--verbose", action="store_true", help="print a line for every rule (default: only findings)")
    parser.add_argument(
        "--explain", metavar="CODE", help="print what a rule, such as C05, requires, and check nothing (default: check)"
    )
    options.add_json(parser, "every finding and rule")
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Apply every rule. Returns 0 if all rules that could be applied pass, otherwise 1."""
    from harness.audit import rules

    if arguments.explain is not None:
        return _explain(arguments.explain)
    if not arguments.rerun and (arguments.rerun_epoch or arguments.rerun_seed is not None):
        raise ValueError("--rerun-epoch and --rerun-seed need --rerun N, the number of runs to train again")
    report = rules.check(
        arguments.results, prefixes=arguments.run, budget=arguments.budget, published=arguments.published
    )
    if arguments.rerun:
        from harness.audit import rerun_rules

        choice = {"seed": arguments.rerun_seed, "whole_epoch": arguments.rerun_epoch}
        report = rerun_rules.add(report, arguments.results, arguments.rerun, **choice, log=warn)
    if arguments.json:
        say_json(_json(report))
    else:
        _say(report, verbose=arguments.verbose)
    return int(bool(report.failed))


def _say(report: AuditReport, *, verbose: bool) -> None:
    """Print the verdict, then the rules that fail or warn; with `verbose` all of them."""
    say(report.verdict)
    outcomes = (*report.outcomes, *report.warnings)
    printed = [outcome for outcome in outcomes if verbose or outcome.end in ("fail", "warn")]
    for outcome in printed:
        say(_line(outcome))
    for remark in report.remarks:
        say(f"Remark: {remark}")
    if not verbose:
        passed = sum(outcome.end == "ok" for outcome in outcomes)
        say(f"{count(passed, 'rule')} passed. --verbose lists them; --explain CODE explains one.")


def _explain(code: str) -> int:
    from harness.audit import rerun_rules, rules

    by_code = {rule.code: rule for rule in (*rules.RULES, *rules.WARNINGS, *rerun_rules.RULES, *rerun_rules.WARNINGS)}
    rule = by_code.get(code.upper())
    if rule is None:
        hint = did_you_mean(code.upper(), by_code) or "; --verbose lists all codes"
        raise ValueError(f"--explain {code}: no rule has this code{hint}")
    say(f"{rule.code} {rule.name}: {rule.sentence}")
    if rule.needs_corpus:
        say("It needs the corpus, and is skipped if the corpus is not available.")
    return 0


def _line(outcome: RuleOutcome) -> str:
    from harness.audit.rules import OF_COMPARISONS, WARNINGS_OF_COMPARISONS, summary

    plain = functools.partial(short_line, longest=400)
    head = f"{outcome.rule.code} {outcome.rule.name:19} "
    reasons = "; ".join(f"{number} skipped: {plain(reason)}" for reason, number in outcome.skips.items())
    if outcome.end == "n/a":
        return f"{head} skipped ({'; '.join(map(plain, outcome.skips)) or 'nothing to compare'})"
    unit = "table" if outcome.rule in (*OF_COMPARISONS, *WARNINGS_OF_COMPARISONS) else "run"
    if outcome.end == "ok":
        return f"{head} ok ({count(outcome.applied, unit)}{'; ' * bool(reasons)}{reasons})"
    word = "FAIL" if outcome.end == "fail" else "warning"
    return f"{head} {word}: {summary([plain(str(finding)) for finding in outcome.findings])}"


def _json(report: AuditReport) -> dict[str, Any]:
    return {
        "fair": not report.failed,
        "verdict": report.verdict,
        "runs": list(report.runs),
        "tables": [
            {"heading": compared.group.heading, "runs": [record.id for record in compared.group.records]}
            for compared in report.comparisons
        ],
        "skipped": [outcome.rule.code for outcome in report.skipped],
        "rules": list(map(_outcome, report.outcomes)),
        "warnings": list(map(_outcome, report.warnings)),
        "remarks": list(report.remarks),
    }


def _outcome(outcome: RuleOutcome) -> dict[str, Any]:
    return {
        "code": outcome.rule.code,
        "name": outcome.rule.name,
        "sentence": outcome.rule.sentence,
        "result": outcome.end,
        "applied": outcome.applied,
        "findings": [{"where": finding.where, "what": finding.message} for finding in outcome.findings],
        "skipped": outcome.skips,
    }
