"""`translate`: translate sentences, a file or standard input with a trained run."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from harness import text as terminal
from harness.cli import options
from harness.cli.console import say, warn
from harness.experiments.specs import DecodingSpec, Unknown
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import load
from impls.contract import EOS, SOS, SPECIAL_TOKENS, Ids, Seq2SeqModel

if TYPE_CHECKING:
    from harness.data.dataset import Dataset, Encoded

PICTURES = (".png", ".svg", ".pdf")
STEP = 100


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("translate", help="translate with a trained run", description=__doc__)
    parser.add_argument("--run", required=True, metavar="ID", help="a run, or the beginning of its id")
    parser.add_argument("sentence", nargs="*", help="sentences to translate (default: standard input, one per line)")
    parser.add_argument("--file", type=Path, help="a file with one sentence per line (default: none)")
    parser.add_argument("--beam", type=options.positive, metavar="WIDTH", help="beam width (default: the run's)")
    parser.add_argument(
        "--unknown",
        choices=get_args(Unknown),
        help="whether translations may contain <unk>, written as ⁇ (default: the run's)",
    )
    parser.add_argument("--attention", type=Path, metavar="FILE.png", help="draw the cross-attention of one sentence")
    parser.add_argument(
        "--every-hundredth",
        action="store_true",
        help="print every hundredth stored test translation with its reference",
    )
    parser.add_argument("--device", default="cpu", help="(default cpu)")
    options.add_import(parser)
    options.add_results(parser)
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Print a translation of each sentence; standard input is translated as it arrives. Returns 0."""
    record = run_store.find(arguments.results, arguments.run)
    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs can be used")
    if arguments.attention is not None and arguments.attention.suffix not in PICTURES:
        raise ValueError(f"--attention {arguments.attention}: the file name must end in {', '.join(PICTURES)}")
    if arguments.every_hundredth:
        if arguments.sentence or arguments.file or arguments.beam or arguments.unknown or arguments.attention:
            raise ValueError("--every-hundredth prints stored translations; it takes no sentence and no other option")
        return _list(record, arguments.results)
    pieces = _pieces(arguments)
    first = next(pieces)
    if arguments.attention is not None and len(first) != 1:
        raise ValueError(f"--attention draws one sentence, not {len(first)}")
    from harness.data.dataset import of_run

    prepared = of_run(record)
    model = load.load_model(
        record, arguments.results, prepared, device=arguments.device, import_builder=arguments.import_builder
    )
    changes = {"beam": arguments.beam, "unknown": arguments.unknown}
    decoding = replace(record.spec.decoding, **{name: one for name, one in changes.items() if one is not None})
    before = 0
    for sentences in itertools.chain([first], pieces):
        if any(sentences):
            _translate(sentences, model, prepared, decoding, before=before, picture=arguments.attention)
        else:
            say("\n" * (len(sentences) - 1))
        before += len(sentences)
    return 0


def _translate(
    sentences: Sequence[str],
    model: Seq2SeqModel,
    prepared: Dataset,
    decoding: DecodingSpec,
    *,
    before: int,
    picture: Path | None,
) -> None:
    """Print one translation per sentence.

    `before` is the number of sentences printed earlier; `picture`, for a single sentence, is where to draw the
    attention.
    """
    from harness.data.dataset import detokenise, encode
    from harness.evaluation.search import translate
    from harness.reporting.concept_plots import attention_heat_map

    places = [place for place, one in enumerate(sentences) if one]
    encoded = encode(prepared, [sentences[place] for place in places])
    _warn_of_cuts(encoded, [before + place for place in places], prepared.data.max_length)
    decoded = translate(model, encoded.ids, decoding)
    words = [[prepared.target_words[token] for token in one.tokens] for one in decoded.translations]
    lines = [""] * len(sentences)
    for place, text in zip(places, detokenise(prepared, words), strict=True):
        lines[place] = text
    for line in lines:
        say(terminal.one_line(line))
    if picture is not None:
        target: Ids = np.array([[SOS, *decoded.translations[0].tokens]], dtype=np.int32)
        weights = model.cross_attention(encoded.ids[0][None], target)[0]
        source_words = encoded.tokens[0][: len(encoded.ids[0]) - 2]
        start, end = SPECIAL_TOKENS[SOS], SPECIAL_TOKENS[EOS]
        attention_heat_map(weights, [start, *source_words, end], [*words[0], end], picture)
        say(f"Attention: {picture}")


def _pieces(arguments: argparse.Namespace) -> Iterator[Sequence[str]]:
    """Yield the sentences: all at once, or in pieces from standard input."""
    if arguments.sentence and arguments.file:
        raise ValueError(f"--file {arguments.file}: give either a file or sentences")
    if arguments.sentence:
        sentences = [" ".join(one.split()) for one in arguments.sentence]
        if not all(sentences):
            raise ValueError("translate: a sentence is empty; each needs at least one word")
        yield sentences
        return
    from harness.data import text_files

    if arguments.file:
        yield text_files.stripped(text_files.lines(text_files.read(str(arguments.file)), str(arguments.file)))
        return
    for found in text_files.pieces(sys.stdin.buffer, "standard input"):
        yield text_files.stripped(found)


def _warn_of_cuts(encoded: Encoded, places: Sequence[int], max_length: int) -> None:
    longest = max_length - 2
    for place, tokens in zip(places, encoded.tokens, strict=True):
        if len(tokens) > longest:
            warn(f"sentence {place + 1} has {len(tokens)} tokens: cut to its first {longest}")


def _list(record: RunRecord, results: Path) -> int:
    from harness.data.dataset import of_run

    hypotheses = run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    prepared = of_run(record)
    pairs = len(prepared.test_source_text)
    for one in hypotheses[::STEP]:
        if one.sentence >= pairs:
            raise ValueError(f"run {record.id}: translation of sentence {one.sentence}, but the test set has {pairs}")
        say(f"{one.sentence}")
        say(f"  source       {terminal.one_line(prepared.test_source_text[one.sentence])}")
        say(f"  translation  {terminal.one_line(one.text)}")
        say(f"  reference    {terminal.one_line(prepared.test_target_text[one.sentence])}")
    return 0
