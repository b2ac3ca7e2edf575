"""`score`: recompute every score from the stored translations and compare it with the record."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import numpy as np

from harness.cli import options
from harness.cli.console import say, warn
from harness.evaluation.metrics import Scores, perplexity_from_sums
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import one_line
from impls.contract import Arrays

TOLERANCE = 1e-6
PERPLEXITY_TOLERANCE = 1e-4
"""The relative difference between the perplexities of two machines that is accepted."""


SUMMARY = "recompute scores from the stored translations"
EXAMPLES = (
    ("recompute the scores of every run", ""),
    ("of the runs of one variant", "--run paper"),
    ("of the published runs", "--results results/published"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--run", action="append", metavar="ID", help="a run, or the beginning of its id; repeatable (default: all)"
    )
    options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Compare stored with recomputed scores. Returns 0, or 1 if one differs."""
    results: Path = arguments.results
    if arguments.run:
        chosen = [run_store.find(results, prefix) for prefix in arguments.run]
    else:
        chosen = [record for record in run_store.records(results, complain=warn) if record.status == "completed"]
    if not chosen:
        raise ValueError(f"there is no completed run in {results}: name a folder with --results")
    return max([_compare(record, results) for record in chosen])


def _compare(record: RunRecord, results: Path) -> int:
    from harness.data.dataset import of_run
    from harness.evaluation.evaluate import check_words, test_scores

    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs can be scored")
    hypotheses = run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    dataset = of_run(record)
    if dataset.digests["files"] != record.fingerprints.get("files"):
        raise ValueError(f"run {record.id}: the corpus here is not the one it was scored on")
    check_words(hypotheses, f"run {record.id}: {run_store.HYPOTHESES}")
    scores = test_scores(dataset, hypotheses, record.spec.decoding.unknown)
    differences = _compare_scores(record, scores)
    if run_store.has_sentences(results, record.id):
        stored = run_store.sentences_of(results, record)
        differences += _compare_sentences(record, stored, scores.statistics)
    say(f"{record.id}: {'every score agrees' if not differences else f'{differences} scores differ'}")
    return int(differences > 0)


def _compare_scores(record: RunRecord, scores: Scores) -> int:
    """Print the recomputed scores, and return how many differ from the record."""
    differences = 0
    for name, value in scores.values.items():
        stored = record.scores.get(name)
        same = stored is not None and math.isclose(stored, value, rel_tol=0, abs_tol=TOLERANCE)
        differences += not same
        remark = "" if same else f"   the record says {stored}"
        if record.signatures.get(name) != scores.signatures[name]:
            remark += f"   (the record's signature: {one_line(str(record.signatures.get(name)))})"
        say(line(name, value, f"{scores.signatures[name]}{remark}"))
    return differences


def line(name: str, value: float, remark: str) -> str:
    """Return a score in one line, with a remark."""
    return f"  {name:20} {value:9.4f}  {remark}".rstrip()


def _compare_sentences(record: RunRecord, stored: Arrays, statistics: Arrays) -> int:
    """Return how many scores have stored counts of sentences that differ from those of the translations."""
    names = sorted({*stored, *statistics} - {"nats", "tokens"})
    wrong = [name for name in names if not np.array_equal(stored.get(name, ()), statistics.get(name, ()))]
    if not _is_perplexity(record, stored):
        wrong.append("test_perplexity")
    remark = f"   wrong for {', '.join(wrong)}" if wrong else ""
    say(f"  sentences            {len(stored['nats']):,}, with their counts for each score{remark}")
    return len(wrong)


def _is_perplexity(record: RunRecord, sentences: Arrays) -> bool:
    perplexity = float(perplexity_from_sums(sentences["nats"].sum(), sentences["tokens"].sum()))
    stored = record.scores.get("test_perplexity")
    return math.isclose(math.inf if stored is None else stored, perplexity, rel_tol=PERPLEXITY_TOLERANCE)
