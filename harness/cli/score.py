"""`score`: recompute every score from the stored translations and compare it with the record."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
OTHER_MACHINE = 1e-4
"""How far, as a share, a perplexity may be from the record's because another machine computed it."""


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("score", help="recompute scores from the stored translations", description=__doc__)
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
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Compare stored with recomputed scores, or rewrite them. Returns 0, or 1 if one differs."""
    results: Path = arguments.results
    if arguments.rescore and arguments.sentences:
        raise ValueError("give either --rescore or --sentences: --rescore rewrites the counts that --sentences adds")
    if arguments.run:
        chosen = [run_store.find(results, prefix) for prefix in arguments.run]
    else:
        chosen = [one for one in run_store.records(results, complain=warn) if one.status == "completed"]
    if not chosen:
        raise ValueError(f"there is no completed run in {results}")
    if arguments.rescore:
        for record in chosen:
            _rescore(record, results)
        return 0
    return max([_compare(record, arguments) for record in chosen])


def _rescore(record: RunRecord, results: Path) -> None:
    """Write the scores of a run again from its tokens and print what changed."""
    from harness.data.dataset import of_run
    from harness.evaluation.rescoring import rescore

    found = rescore(results, record, of_run(record))
    if found is None:
        say(f"{record.id}: up to date, nothing written")
        return
    before, after = record.scores["bleu_sacre"], found.record.scores["bleu_sacre"]
    say(
        f"{record.id}: sacreBLEU {before:.2f} before, {after:.2f} now; {found.changed_texts:,} texts changed, "
        f"{found.record.decode['unknown_tokens']:,} unknown tokens"
    )


def _compare(record: RunRecord, arguments: argparse.Namespace) -> int:
    from harness.data.dataset import of_run
    from harness.evaluation.evaluate import check_words, test_scores

    results: Path = arguments.results
    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs can be scored")
    hypotheses = run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    prepared = of_run(record)
    if prepared.digests["files"] != record.fingerprints.get("files"):
        raise ValueError(f"run {record.id}: the corpus here is not the one it was scored on")
    check_words(hypotheses, f"run {record.id}: {run_store.HYPOTHESES}")
    found = test_scores(prepared, hypotheses, record.spec.decoding.unknown)
    if "brevity_penalty" not in record.scores:
        found = as_version_1(found)
        say("  made by an earlier version: unknown words may count as three; see --rescore")
    differences = _compare_scores(record, found)
    if run_store.has_sentences(results, record.id):
        stored = run_store.load_sentences(results, record.id, record.fingerprints.get("sentences"))
        differences += _compare_sentences(record, stored, found.statistics)
    elif not arguments.sentences:
        say(f"  sentences            none stored: --sentences --run {record.id} writes them")
    say(f"{record.id}: {'every score agrees' if not differences else f'{differences} scores differ'}")
    if arguments.sentences:
        _write_sentences(record, arguments, prepared, found.statistics, hypotheses, differences)
    return int(differences > 0)


def _compare_scores(record: RunRecord, found: Scores) -> int:
    """Return how many scores are not the record's."""
    differences = 0
    for name, value in found.values.items():
        stored = record.scores.get(name)
        same = stored is not None and math.isclose(stored, value, rel_tol=0, abs_tol=TOLERANCE)
        differences += not same
        remark = "" if same else f"   the record says {stored}"
        if record.signatures.get(name) != found.signatures[name]:
            remark += f"   (the record's signature: {one_line(str(record.signatures.get(name)))})"
        say(f"  {name:20} {value:9.4f}  {found.signatures[name]}{remark}")
    return differences


def _compare_sentences(record: RunRecord, stored: Arrays, statistics: Arrays) -> int:
    """Return how many scores have stored counts of sentences that are not those of the translations."""
    names = sorted({*stored, *statistics} - {"nats", "tokens"})
    wrong = [name for name in names if not np.array_equal(stored.get(name, ()), statistics.get(name, ()))]
    if not _is_perplexity(record, stored):
        wrong.append("test_perplexity")
    remark = f"   not those of {', '.join(wrong)}" if wrong else ""
    say(f"  sentences            {len(stored['nats']):,}, with what each adds to the scores{remark}")
    return len(wrong)


def _is_perplexity(record: RunRecord, sentences: Arrays) -> bool:
    perplexity = float(perplexity_from_sums(sentences["nats"].sum(), sentences["tokens"].sum()))
    stored = record.scores.get("test_perplexity")
    return math.isclose(math.inf if stored is None else stored, perplexity, rel_tol=OTHER_MACHINE)


def _write_sentences(
    record: RunRecord,
    arguments: argparse.Namespace,
    prepared: Dataset,
    statistics: Arrays,
    hypotheses: list[run_store.Hypothesis],
    differences: int,
) -> None:
    """Store what each sentence adds to the scores of a run, and its attention, where it is without; and the digests."""
    from harness.evaluation.evaluate import ATTENDED, test_attention, test_nats

    results: Path = arguments.results
    if differences:
        raise ValueError(f"run {record.id}: --sentences needs a run whose scores agree")
    there = {
        "sentences": run_store.has_sentences(results, record.id),
        "attention": run_store.has_attention(results, record.id),
    }
    files = {"sentences": run_store.SENTENCES, "attention": run_store.ATTENTION}
    missing = [name for name, found in there.items() if not (found and name in record.fingerprints)]
    for name in [name for name in there if name not in missing]:
        say(f"{record.id}: {files[name]} is there already")
    if not missing:
        return
    try:
        model = load.load_model(
            record, results, prepared, device=arguments.device, import_builder=arguments.import_builder
        )
    except ValueError as error:
        raise ValueError(f"run {record.id}: --sentences needs its model with the stored weights: {error}") from error
    evaluation, nats = test_nats(model, prepared)
    if not _is_perplexity(record, nats):
        raise ValueError(
            f"run {record.id}: its weights give test_perplexity={evaluation.perplexity:.6f} here, the record says "
            f"{record.scores.get('test_perplexity')}; they may differ by a share of {OTHER_MACHINE:.0e}"
        )
    if "sentences" in missing:
        digest = run_store.save_sentences(results, record.id, {**nats, **statistics})
        run_store.add_fingerprint(results, record.id, "sentences", digest)
    if "attention" in missing:
        ids = {word: number for number, word in enumerate(prepared.target_words)}
        translations = [[ids[token] for token in one.tokens] for one in hypotheses[:ATTENDED]]
        digest = run_store.save_attention(results, record.id, test_attention(model, prepared, translations))
        run_store.add_fingerprint(results, record.id, "attention", digest)
    for name in missing:
        say(f"{record.id}: {files[name]} is written")
