"""`score`: recompute every score from the stored translations and compare it with the record."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from harness.cli import options
from harness.cli.console import say, warn
from harness.evaluation.metrics import Scores, as_version_1, perplexity_from_sums
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import one_line
from harness.training import load
from impls.contract import Arrays

if TYPE_CHECKING:
    from harness.data.dataset import Dataset

TOLERANCE = 1e-6
PERPLEXITY_TOLERANCE = 1e-4
"""The relative difference between the perplexities of two machines that is accepted."""


SUMMARY = "recompute scores from the stored translations"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--run", action="append", metavar="ID", help="a run, or the beginning of its id; repeatable (default: all)"
    )
    parser.add_argument(
        "--sentences",
        action="store_true",
        help=f"write missing {run_store.SENTENCES} and {run_store.ATTENTION} of older runs, from their stored weights",
    )
    parser.add_argument(
        "--rescore",
        action="store_true",
        help="rewrite texts, scores and counts from the stored tokens, for records of an earlier version",
    )
    parser.add_argument("--device", default="cpu", help="device of --sentences (default cpu)")
    options.add_import(parser)
    options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Compare stored with recomputed scores, or rewrite them. Returns 0, or 1 if one differs."""
    results: Path = arguments.results
    if arguments.rescore and arguments.sentences:
        raise ValueError("give either --rescore or --sentences: --rescore rewrites the counts that --sentences adds")
    if arguments.run:
        chosen = [run_store.find(results, prefix) for prefix in arguments.run]
    else:
        chosen = [record for record in run_store.records(results, complain=warn) if record.status == "completed"]
    if not chosen:
        raise ValueError(f"there is no completed run in {results}: name a folder with --results")
    if arguments.rescore:
        for record in chosen:
            _rescore(record, results)
        return 0
    return max([_compare(record, arguments) for record in chosen])


def _rescore(record: RunRecord, results: Path) -> None:
    """Rewrite the scores of a run from its tokens and print the changes."""
    from harness.data.dataset import of_run
    from harness.evaluation.rescoring import rescore

    rescored = rescore(results, record, of_run(record))
    if rescored is None:
        say(f"{record.id}: up to date, nothing written")
        return
    before, after = record.scores["bleu_sacre"], rescored.record.scores["bleu_sacre"]
    say(
        f"{record.id}: sacreBLEU {before:.2f} before, {after:.2f} now; {rescored.changed_texts:,} texts changed, "
        f"{rescored.record.decode['unknown_tokens']:,} unknown tokens"
    )


def _compare(record: RunRecord, arguments: argparse.Namespace) -> int:
    from harness.data.dataset import of_run
    from harness.evaluation.evaluate import check_words, test_scores

    results: Path = arguments.results
    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs can be scored")
    hypotheses = run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    dataset = of_run(record)
    if dataset.digests["files"] != record.fingerprints.get("files"):
        raise ValueError(f"run {record.id}: the corpus here is not the one it was scored on")
    check_words(hypotheses, f"run {record.id}: {run_store.HYPOTHESES}")
    scores = test_scores(dataset, hypotheses, record.spec.decoding.unknown)
    if "brevity_penalty" not in record.scores:
        scores = as_version_1(scores)
        say("  made by an earlier version: unknown words may count as three; see --rescore")
    differences = _compare_scores(record, scores)
    if run_store.has_sentences(results, record.id):
        stored = run_store.load_sentences(results, record.id, record.fingerprints.get("sentences"))
        differences += _compare_sentences(record, stored, scores.statistics)
    elif not arguments.sentences:
        say(f"  sentences            none stored: --sentences --run {record.id} writes them")
    say(f"{record.id}: {'every score agrees' if not differences else f'{differences} scores differ'}")
    if arguments.sentences:
        if differences:
            raise ValueError(f"run {record.id}: --sentences needs a run whose scores agree")
        _write_sentences(record, arguments, dataset, scores.statistics, hypotheses)
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
        say(f"  {name:20} {value:9.4f}  {scores.signatures[name]}{remark}")
    return differences


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


def _write_sentences(
    record: RunRecord,
    arguments: argparse.Namespace,
    dataset: Dataset,
    statistics: Arrays,
    hypotheses: list[run_store.Hypothesis],
) -> None:
    """Store the counts of each sentence and the attention of a run if they are missing, and their digests."""
    from harness.evaluation.evaluate import ATTENDED, test_attention, test_nats

    results: Path = arguments.results
    is_stored = {
        "sentences": run_store.has_sentences(results, record.id),
        "attention": run_store.has_attention(results, record.id),
    }
    files = {"sentences": run_store.SENTENCES, "attention": run_store.ATTENTION}
    missing = [name for name in files if not (is_stored[name] and name in record.fingerprints)]
    for name in files:
        if name not in missing:
            say(f"{record.id}: {files[name]} is there already")
    if not missing:
        return
    try:
        model = load.load_model(
            record, results, dataset, device=arguments.device, import_builder=arguments.import_builder
        )
    except ValueError as error:
        raise ValueError(f"run {record.id}: --sentences needs its model with the stored weights: {error}") from error
    evaluation, nats = test_nats(model, dataset)
    if not _is_perplexity(record, nats):
        raise ValueError(
            f"run {record.id}: its weights give test_perplexity={evaluation.perplexity:.6f} here, the record says "
            f"{record.scores.get('test_perplexity')}; accepted is a relative difference of {PERPLEXITY_TOLERANCE:.0e}"
        )
    if "sentences" in missing:
        digest = run_store.save_sentences(results, record.id, {**nats, **statistics})
        run_store.add_fingerprint(results, record.id, "sentences", digest)
    if "attention" in missing:
        ids = {word: number for number, word in enumerate(dataset.target_words)}
        translations = [[ids[token] for token in hypothesis.tokens] for hypothesis in hypotheses[:ATTENDED]]
        digest = run_store.save_attention(results, record.id, test_attention(model, dataset, translations))
        run_store.add_fingerprint(results, record.id, "attention", digest)
    for name in missing:
        say(f"{record.id}: {files[name]} is written")
