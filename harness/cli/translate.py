"""`translate`: translate sentences, a file or standard input with a trained run."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from harness import text
from harness.cli import options
from harness.cli.console import say, warn
from harness.experiments.specs import DecodingSpec, Unknown
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import load
from impls.contract import EOS, SOS, SPECIAL_TOKENS, Ids, Seq2SeqModel

if TYPE_CHECKING:
    from harness.data.dataset import Dataset, Encoded

IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
STEP = 100


SUMMARY = "translate with a trained run"
EXAMPLES = (
    ("translate a sentence", "--run paper 'Ein Hund läuft.'"),
    ("translate a file with beam search", "--run paper --file german.txt --beam 5"),
    ("draw the attention of a sentence", "--run paper --attention heads.png 'Ein Hund läuft.'"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--run", required=True, metavar="ID", help="a run, or the beginning of its id")
    parser.add_argument("sentence", nargs="*", help="sentences to translate (default: standard input, one per line)")
    parser.add_argument("--file", type=Path, help="a file with one sentence per line (default: none)")
    parser.add_argument("--beam", type=options.positive, metavar="WIDTH", help="beam width (default: the run's)")
    parser.add_argument(
        "--unknown",
        choices=get_args(Unknown),
        help="whether translations may contain <unk>, written as ⁇ (default: the run's)",
    )
    parser.add_argument(
        "--attention",
        type=Path,
        metavar="FILE.png",
        help="draw the cross-attention of one sentence into a PNG, SVG or PDF file (default: none)",
    )
    parser.add_argument(
        "--every-hundredth",
        action="store_true",
        help="print every hundredth stored test translation with its reference",
    )
    parser.add_argument("--device", default="cpu", help="device of the model, cpu or cuda (default cpu)")
    options.add_import(parser)
    options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Print a translation of each sentence; standard input is translated as it arrives. Returns 0."""
    record, image = run_store.find(arguments.results, arguments.run), arguments.attention
    if record.status != "completed":
        raise ValueError(f"run {record.id}: its status is {record.status}; only completed runs can be used")
    if image is not None and image.suffix not in IMAGE_SUFFIXES:
        raise ValueError(f"--attention {image}: the file name must end in {', '.join(IMAGE_SUFFIXES)}")
    if arguments.every_hundredth:
        if arguments.sentence or arguments.file or arguments.beam or arguments.unknown or image:
            raise ValueError("--every-hundredth prints stored translations; it takes no sentence and no other option")
        return _list(record, arguments.results)
    blocks = _blocks(arguments)
    first = next(blocks)
    if image is not None and len(first) != 1:
        raise ValueError(f"--attention draws one sentence, not {len(first)}")
    from harness.data.dataset import of_run

    dataset = of_run(record)
    model = load.load_model(
        record, arguments.results, dataset, device=arguments.device, import_builder=arguments.import_builder
    )
    changes = {"beam": arguments.beam, "unknown": arguments.unknown}
    decoding = replace(record.spec.decoding, **{name: value for name, value in changes.items() if value is not None})
    position = 0
    for sentences in itertools.chain([first], blocks):
        if any(sentences):
            _translate(sentences, model, dataset, decoding, position=position, image=image)
        else:
            say("\n" * (len(sentences) - 1))
        position += len(sentences)
    return 0


def _translate(
    sentences: Sequence[str],
    model: Seq2SeqModel,
    dataset: Dataset,
    decoding: DecodingSpec,
    *,
    position: int,
    image: Path | None,
) -> None:
    """Print one translation per sentence.

    Args:
        sentences: The sentences; translations of empty ones are empty.
        model: The model.
        dataset: Its corpus.
        decoding: How to search.
        position: The number of sentences before these.
        image: Where to draw the attention of a single sentence; None for nowhere.
    """
    from harness.data.dataset import detokenise, encode
    from harness.evaluation.search import translate
    from harness.reporting.concept_plots import attention_heat_map

    indices = [index for index, sentence in enumerate(sentences) if sentence]
    encoded = encode(dataset, [sentences[index] for index in indices])
    _warn_of_cuts(encoded, [position + index for index in indices], dataset.data.max_length)
    translations = translate(model, encoded.ids, decoding).translations
    words = [[dataset.target_words[token] for token in translation.tokens] for translation in translations]
    lines = [""] * len(sentences)
    for index, line in zip(indices, detokenise(dataset, words), strict=True):
        lines[index] = line
    for line in lines:
        say(text.one_line(line))
    if image is not None:
        target: Ids = np.array([[SOS, *translations[0].tokens]], dtype=np.int32)
        weights = model.cross_attention(encoded.ids[0][None], target)[0]
        source_words = encoded.tokens[0][: len(encoded.ids[0]) - 2]
        start, end = SPECIAL_TOKENS[SOS], SPECIAL_TOKENS[EOS]
        attention_heat_map(weights, [start, *source_words, end], [*words[0], end], image)
        say(f"Attention: {image}")


def _blocks(arguments: argparse.Namespace) -> Iterator[Sequence[str]]:
    """Yield the sentences: all at once, or in blocks from standard input."""
    if arguments.sentence and arguments.file:
        raise ValueError(f"--file {arguments.file}: give either a file or sentences")
    if arguments.sentence:
        sentences = [" ".join(sentence.split()) for sentence in arguments.sentence]
        if not all(sentences):
            raise ValueError("translate: a sentence is empty; each needs at least one word")
        yield sentences
        return
    from harness.data import text_files

    if arguments.file:
        yield text_files.stripped(text_files.lines(text_files.read(str(arguments.file)), str(arguments.file)))
        return
    for lines in text_files.pieces(sys.stdin.buffer, "standard input"):
        yield text_files.stripped(lines)


def _warn_of_cuts(encoded: Encoded, positions: Sequence[int], max_length: int) -> None:
    longest = max_length - 2
    for position, tokens in zip(positions, encoded.tokens, strict=True):
        if len(tokens) > longest:
            warn(f"sentence {position + 1} has {len(tokens)} tokens: cut to its first {longest}")


def _list(record: RunRecord, results: Path) -> int:
    """Print every hundredth stored translation with its source and reference."""
    from harness.data.dataset import of_run

    hypotheses = run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))
    dataset = of_run(record)
    pairs = len(dataset.test_source_text)
    for hypothesis in hypotheses[::STEP]:
        number = hypothesis.sentence
        if number >= pairs:
            raise ValueError(f"run {record.id}: translation of sentence {number}, but the test set has {pairs}")
        say(f"{number}")
        say(f"  source       {text.one_line(dataset.test_source_text[number])}")
        say(f"  translation  {text.one_line(hypothesis.text)}")
        say(f"  reference    {text.one_line(dataset.test_target_text[number])}")
    return 0
