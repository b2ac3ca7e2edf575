"""`translate`: translate sentences, a file, standard input or the test set with one or more trained runs."""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import numpy as np

from harness import text
from harness.analysis.row_labels import changed_fields
from harness.cli import folder_options, options, score, translation_engine
from harness.cli.console import say, warn
from harness.data import text_files
from harness.data.dataset import Dataset, Encoded, encode, of_run, unknown_words
from harness.evaluation import ensemble, search
from harness.evaluation.search import Decoded
from harness.experiments.specs import DecodingSpec, Unknown
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import load, reuse
from impls.contract import EOS, SOS, SPECIAL_TOKENS, Ids, Seq2SeqModel

if TYPE_CHECKING:
    from harness.training.converted import Translate

IMAGE_SUFFIXES = (".png", ".svg", ".pdf")
STEP = 100

SUMMARY = "translate with one or more trained runs"
EXAMPLES = (
    ("translate a sentence", "--run paper 'Ein Hund springt über einen Zaun.'"),
    ("translate a file with beam search", "--run paper --file german.txt --beam 5"),
    ("draw the attention of a sentence", "--run paper --attention heads.png 'Ein Hund springt über einen Zaun.'"),
    ("translate with CTranslate2 and weights of 8 bits", "--run paper --engine ctranslate2 --compute-type int8 --test"),
    ("score an ensemble of two runs on the test set", "--run paper --run conv_ffn --test --beam 5"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        action="append",
        required=True,
        metavar="RUN",
        help="the id of a run or its beginning, or a variant for its latest run; repeatable: several runs "
        "of one corpus translate as an ensemble, with the mean of their next-token probabilities",
    )
    parser.add_argument("sentence", nargs="*", help="sentences to translate (default: standard input, one per line)")
    parser.add_argument("--file", type=Path, help="a file with one sentence per line (default: none)")
    parser.add_argument("--beam", type=options.positive, metavar="WIDTH", help="beam width (default: the run's)")
    parser.add_argument(
        "--unknown",
        choices=get_args(Unknown),
        help="whether translations may contain <unk>, written as ⁇ (default: the run's)",
    )
    parser.add_argument(
        "--test",
        action="store_true",
        help="translate the test set of the run and print its scores (default: translate sentences)",
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
    translation_engine.add_options(parser, native="the library that the run was trained with")
    parser.add_argument("--device", default="cpu", help="device of the model, cpu or cuda (default cpu)")
    parser.add_argument(
        "--import-builder",
        action="store_true",
        help="import and execute the external builder, package.module:NAME, that a record names (default: refuse)",
    )
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Print a translation of each sentence; standard input is translated as it arrives. Returns 0."""
    records = [completed_run(arguments.results, prefix) for prefix in arguments.run]
    records.sort(key=lambda record: record.id)
    _check_options(arguments, len(records))
    if arguments.every_hundredth:
        return _list(records[0], arguments.results)
    ensemble.check_members(records)
    decoding = ensemble.shared_decoding(records, beam=arguments.beam, unknown=arguments.unknown)
    blocks = iter([()]) if arguments.test else _blocks(arguments)
    first = next(blocks)
    if arguments.attention is not None and len(first) != 1:
        raise ValueError(f"--attention draws one sentence, not {len(first)}")
    dataset, models, engine = _load(arguments, records)
    if arguments.test:
        return _test(arguments, records, models, dataset, engine, decoding)
    position = 0
    for sentences in itertools.chain([first], blocks):
        if any(sentences):
            decoded = _translate(sentences, engine, dataset, decoding, position=position)
            if arguments.attention is not None:
                _draw(models[0], *decoded, dataset, arguments.attention)
        else:
            say("\n" * (len(sentences) - 1))
        position += len(sentences)
    return 0


def _load(arguments: argparse.Namespace, records: Sequence[RunRecord]) -> tuple[Dataset, list[Seq2SeqModel], Translate]:
    results, device = arguments.results, arguments.device
    if translation_engine.uses_library(arguments):
        dataset, engine = translation_engine.translator(
            records[0], results, device=device, compute_type=arguments.compute_type
        )
        return dataset, [], engine
    dataset = of_run(records[0])
    models = [
        load.load_model(record, results, dataset, device=device, import_builder=arguments.import_builder)
        for record in records
    ]
    for record in filter(reuse.has_other_builder, records):
        warn(reuse.other_builder(record))
    return dataset, models, functools.partial(search.translate, ensemble.joint(models, len(dataset.target_words)))


def completed_run(results: Path, name: str) -> RunRecord:
    """Return the completed run that an id or its beginning names, or a variant's latest, its own recipe first."""
    every = run_store.completed(results, name)
    runs = [run for run in every if not changed_fields(run.spec)] or every  # those of an ablation come last
    if len(every) > 1:
        own = f" with its own recipe ({len(every)} in all)" if len(runs) < len(every) else ""
        warn(f"using {runs[-1].id}, the latest of {text.count(len(runs), 'run')} of {name}{own}")
    record = runs[-1] if runs else run_store.find(results, name)
    run_store.check_completed(record)
    return record


def _check_options(arguments: argparse.Namespace, runs: int) -> None:
    image = arguments.attention
    if image is not None and image.suffix.lower() not in IMAGE_SUFFIXES:
        raise ValueError(f"--attention {image}: the file name must end in {' or '.join(IMAGE_SUFFIXES)}")
    if runs > 1 and (image or arguments.every_hundredth):
        raise ValueError("--attention and --every-hundredth are about one run: give one --run")
    library = translation_engine.uses_library(arguments)
    if library and (runs > 1 or image):
        option = "--attention" if image else "several --run"
        raise ValueError(f"--engine ctranslate2 does not support {option}: use --engine native")
    if arguments.test and (arguments.sentence or arguments.file or image):
        raise ValueError("--test translates the test set; it takes no sentence, no --file and no --attention")
    settings = arguments.beam or arguments.unknown or image or arguments.test or library
    if arguments.every_hundredth and (arguments.sentence or arguments.file or settings):
        raise ValueError("--every-hundredth prints stored translations; it takes no sentence and no other option")


def _test(
    arguments: argparse.Namespace,
    records: Sequence[RunRecord],
    models: Sequence[Seq2SeqModel],
    dataset: Dataset,
    engine: Translate,
    decoding: DecodingSpec,
) -> int:
    """Translate the test set and print its scores: those of the translations alone without models. Returns 0."""
    from harness.evaluation import evaluate

    values = {}
    if models:
        loss, _ = evaluate.test_nats(ensemble.joint(models, len(dataset.target_words)), dataset)
        values = evaluate.perplexities(loss)
    hypotheses = evaluate.as_hypotheses(dataset, engine(dataset.test.source, decoding))
    scores = evaluate.test_scores(dataset, hypotheses, decoding.unknown)
    for name, value in {**values, **scores.values}.items():
        say(score.score_line(name, value, scores.signatures.get(name, "")))
    if not models:
        equal = translation_engine.equal_translations(records[0], arguments.results, hypotheses, decoding)
        translation_engine.say_equal(equal, len(hypotheses))
    return 0


def _translate(
    sentences: Sequence[str], engine: Translate, dataset: Dataset, decoding: DecodingSpec, *, position: int
) -> tuple[Encoded, Decoded]:
    """Print one translation per sentence, and return what was translated: the sentences that are not empty.

    `position` is the number of sentences before these.
    """
    from harness.evaluation import evaluate

    indices = [index for index, sentence in enumerate(sentences) if sentence]
    nonempty = [sentences[index] for index in indices]
    encoded = encode(dataset, nonempty)
    _warn_of_cuts(encoded, [position + index for index in indices], dataset.data.max_length)
    if unknown := unknown_words(dataset, encoded):
        warn(unknown)
    with evaluate.naming(nonempty):
        decoded = engine(encoded.ids, decoding)
    lines = [""] * len(sentences)
    for index, hypothesis in zip(indices, evaluate.as_hypotheses(dataset, decoded), strict=True):
        lines[index] = hypothesis.text
    for line in lines:
        say(text.one_line(line))
    return encoded, decoded


def _draw(model: Seq2SeqModel, encoded: Encoded, decoded: Decoded, dataset: Dataset, image: Path) -> None:
    from harness.reporting.concept_plots import attention_heat_map

    translation = decoded.translations[0]
    target: Ids = np.array([[SOS, *translation.tokens]], dtype=np.int32)
    weights = model.cross_attention(encoded.ids[0][None], target)[0]
    if not weights.size:
        raise ValueError(f"--attention {image}: the model has no attention")
    source_words = encoded.tokens[0][: len(encoded.ids[0]) - 2]
    start, end = SPECIAL_TOKENS[SOS], SPECIAL_TOKENS[EOS]
    words = [dataset.target_words[token] for token in translation.tokens] + [end] * translation.finished
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        attention_heat_map(weights[:, :, : len(words)], [start, *source_words, end], words, image)
    for line in dict.fromkeys(str(each.message) for each in caught):
        warn(line)
    say(f"Attention: {image}")


def _blocks(arguments: argparse.Namespace) -> Iterator[Sequence[str]]:
    """Yield the sentences: all at once, or in blocks from standard input."""
    if arguments.sentence and arguments.file:
        raise ValueError(f"--file {arguments.file}: give either a file or sentences")
    if arguments.sentence:
        sentences = text_files.stripped(" ".join(sentence.splitlines()) for sentence in arguments.sentence)
        if "" in sentences:
            raise ValueError(f"sentence {sentences.index('') + 1} of {len(sentences)} is empty; give at least one word")
        for number, sentence in enumerate(sentences, start=1):
            if sentence != sentence.encode(errors="replace").decode():  # a lone surrogate stands for another byte
                raise ValueError(f"sentence {number} of {len(sentences)} is not UTF-8; expected UTF-8")
        yield sentences
        return
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
