"""`score`: every score computed again from the stored translations, and compared with the record."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from harness import store
from harness.commands import options
from harness.specs import RunRecord

TOLERANCE = 1e-6


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("score", help="recompute scores from the stored translations", description=__doc__)
    parser.add_argument("--run", action="append", metavar="ID", help="a run, or how its id begins (all runs)")
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Compare stored with recomputed scores. Returns 0, or 1 where one differs."""
    results: Path = arguments.results
    if arguments.run:
        chosen = [store.find(results, prefix) for prefix in arguments.run]
    else:
        chosen = [one for one in store.records(results, complain=options.warn) if one.status == "completed"]
    if not chosen:
        raise ValueError(f"there is no completed run in {results}")
    return max([_compare(record, results) for record in chosen])


def _compare(record: RunRecord, results: Path) -> int:
    from harness.data.prepared import prepare
    from harness.measuring import test_scores

    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}: allowed is a completed run")
    hypotheses = store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    prepared = prepare(record.spec.data)
    if prepared.digests["files"] != record.fingerprints.get("files"):
        raise ValueError(f"run {record.id}: the corpus here is not the one it was scored on")
    found = test_scores(prepared, hypotheses)
    differences = 0
    for name, value in found.values.items():
        stored = record.scores.get(name)
        same = stored is not None and math.isclose(stored, value, rel_tol=0, abs_tol=TOLERANCE)
        differences += not same
        remark = "" if same else f"   the record says {stored}"
        if record.signatures.get(name) != found.signatures[name]:
            remark += f"   (the record's signature: {record.signatures.get(name)})"
        options.say(f"  {name:20} {value:9.4f}  {found.signatures[name]}{remark}")
    options.say(f"{record.id}: {'every score agrees' if not differences else f'{differences} scores differ'}")
    return int(differences > 0)
