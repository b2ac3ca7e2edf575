"""`score`: recompute every score from the stored translations and compare it with the record.

With --engine ctranslate2 the test set is translated again, with the stored weights in CTranslate2. Scores that differ
are then no fault: the exit code stays 0.
"""

from __future__ import annotations

import argparse
import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.cli import folder_options, options, translation_engine
from harness.cli.console import say, say_json, warn
from harness.data import tokenizer_process
from harness.data.dataset import Dataset, of_run
from harness.evaluation.metrics import Scores, perplexity_from_sums
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import count, one_line
from impls.contract import Arrays

TOLERANCE = 1e-6
PERPLEXITY_TOLERANCE = 1e-4
"""The relative difference between the perplexities of two machines that is accepted."""

SUMMARY = "recompute scores from the stored translations"
EXAMPLES = (
    ("recompute the scores of every run", ""),
    ("of the runs of one variant", "--run paper"),
    ("of translations with weights of 8 bits", "--run paper --engine ctranslate2 --compute-type int8"),
    ("of the published runs, as JSON", "--results results/published --json"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        action="append",
        metavar="RUN",
        help="a run's id or the beginning of it, or a variant for all its completed runs; repeatable (default: all)",
    )
    translation_engine.add_options(parser, native="the stored translations")
    options.add_json(parser, "every recomputed and recorded score")
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Compare stored with recomputed scores. Returns 0, or 1 if one differs or a run cannot be read or scored."""
    results: Path = arguments.results
    library = translation_engine.uses_library(arguments)
    unreadable: list[str] = []
    if arguments.run:
        matching = [run_store.completed(results, name) or [run_store.find(results, name)] for name in arguments.run]
        chosen = list(itertools.chain.from_iterable(matching))
    else:
        records = run_store.records(results, complain=unreadable.append)
        chosen = [record for record in records if record.status == "completed"]
    for complaint in unreadable:
        warn(complaint)
    if not chosen:
        raise ValueError(f"there is no completed run in {results}: name a folder with --results")
    rescored: list[_Rescored] = []
    faults: dict[str, Exception] = {}
    with tokenizer_process.one_process():
        for record in chosen:
            try:
                run_store.check_completed(record)
                rescored.append(_translate_again(record, arguments) if library else _rescore(record, results))
            except (ValueError, OSError) as error:
                faults[record.id] = error
                continue
            if not arguments.json:
                _say(rescored[-1])
    if not rescored:
        raise next(iter(faults.values()))
    if arguments.json:
        say_json([_json(run) for run in rescored])
    for run_id, fault in faults.items():
        warn(f"{run_id}: not scored: {fault}")
    differ = not library and any(run.differences for run in rescored)
    return int(bool(unreadable) or bool(faults) or differ)


@dataclass(frozen=True)
class _Rescored:
    """A run with the scores of its stored translations.

    Attributes:
        sentences: The number of sentences with stored counts; None if the run has none.
        wrong_counts: The scores whose stored counts are not those of the translations.
        translated: The number of sentences that CTranslate2 has translated; None without it.
        equal: How many of its translations are those that the run has stored.
    """

    record: RunRecord
    scores: Scores
    sentences: int | None
    wrong_counts: list[str]
    translated: int | None = None
    equal: int | None = None

    @property
    def wrong_scores(self) -> list[str]:
        """The scores that differ from those in the record."""
        stored = {name: value for name, value in self.record.scores.items() if value is not None}
        return [
            name
            for name, value in self.scores.values.items()
            if not math.isclose(stored.get(name, math.nan), value, rel_tol=0, abs_tol=TOLERANCE)
        ]

    @property
    def differences(self) -> int:
        return len(self.wrong_scores) + len(self.wrong_counts)


def _check_text(record: RunRecord, dataset: Dataset) -> None:
    if dataset.digests["files"] != record.fingerprints.get("files"):
        raise ValueError(f"run {record.id}: the corpus here is not the one it was scored on")


def _translate_again(record: RunRecord, arguments: argparse.Namespace) -> _Rescored:
    from harness.evaluation import evaluate

    results, decoding = arguments.results, record.spec.decoding
    dataset, translate = translation_engine.translator(
        record, results, device="cpu", compute_type=arguments.compute_type
    )
    _check_text(record, dataset)
    hypotheses = evaluate.as_hypotheses(dataset, translate(dataset.test.source, decoding))
    scores = evaluate.test_scores(dataset, hypotheses, decoding.unknown)
    equal = translation_engine.equal_translations(record, results, hypotheses, decoding)
    return _Rescored(record, scores, None, [], translated=len(hypotheses), equal=equal)


def _rescore(record: RunRecord, results: Path) -> _Rescored:
    from harness.evaluation.evaluate import check_words, test_scores

    hypotheses = run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    dataset = of_run(record)
    _check_text(record, dataset)
    check_words(hypotheses, f"run {record.id}: {run_store.HYPOTHESES}")
    scores = test_scores(dataset, hypotheses, record.spec.decoding.unknown)
    stored = run_store.sentences_of(run_store.run_folder(results, record.id), record)
    if stored is None:
        return _Rescored(record, scores, None, [])
    return _Rescored(record, scores, len(stored["nats"]), _wrong_counts(record, stored, scores.statistics))


def _say(run: _Rescored) -> None:
    """Print every score of a run, and what differs from its record."""
    say(f"{run.record.id}:")
    for name, value in run.scores.values.items():
        signature, stored = run.scores.signatures[name], run.record.signatures.get(name)
        remark = f"   the record says {run.record.scores.get(name)}" if name in run.wrong_scores else ""
        if stored != signature:
            remark += f"   (the record's signature: {one_line(str(stored))})"
        say(score_line(name, value, f"{signature}{remark}"))
    if run.sentences is not None:
        remark = f"   wrong for {', '.join(run.wrong_counts)}" if run.wrong_counts else ""
        say(f"  sentences            {run.sentences:,}, with their counts for each score{remark}")
    if run.translated is not None:
        translation_engine.say_equal(run.equal, run.translated)
    if run.differences:
        say(f"  {count(run.differences, 'score')} {'differs' if run.differences == 1 else 'differ'}")
    else:
        say("  every score agrees")


def _json(run: _Rescored) -> dict[str, Any]:
    record, scores = run.record, run.scores
    return {
        "run": record.id,
        "agrees": not run.differences,
        "scores": {
            name: {
                "recomputed": value,
                "recorded": record.scores.get(name),
                "agrees": name not in run.wrong_scores,
                "signature": scores.signatures[name],
                "recorded_signature": record.signatures.get(name),
            }
            for name, value in scores.values.items()
        },
        "sentences": run.sentences,
        "wrong_counts": run.wrong_counts,
        "translated": run.translated,
        "equal_translations": run.equal,
    }


def score_line(name: str, value: float, remark: str) -> str:
    return f"  {name:20} {value:9.4f}  {remark}".rstrip()


def _wrong_counts(record: RunRecord, stored: Arrays, statistics: Arrays) -> list[str]:
    """Return the scores whose stored counts of sentences are not those of the translations."""
    names = sorted({*stored, *statistics} - {"nats", "tokens"})
    wrong = [name for name in names if not np.array_equal(stored.get(name, ()), statistics.get(name, ()))]
    perplexity = float(perplexity_from_sums(stored["nats"].sum(), stored["tokens"].sum()))
    recorded = record.scores.get("test_perplexity")
    recorded = math.inf if recorded is None else recorded  # JSON has no infinity
    is_equal = math.isclose(recorded, perplexity, rel_tol=PERPLEXITY_TOLERANCE)
    return wrong if is_equal else [*wrong, "test_perplexity"]
