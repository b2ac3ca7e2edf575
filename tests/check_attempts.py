"""Attempts to publish false records, sealed and digested anew, with the rule that reports each, or why none can."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
from record_edits import (
    FIRST,
    OTHER,
    SECOND,
    Mutation,
    as_seed,
    both,
    edit,
    on_arrays,
    on_attention,
    on_lines,
    put,
    read,
    remove,
    respecify,
    times,
    write,
)
from record_folders import SCHEDULE, folder_spec, write_run

from harness.audit import batch_reference
from harness.data import multi30k
from harness.data.dataset import detokenise, prepare
from harness.evaluation.evaluate import test_scores
from harness.experiments.specs import spec_from_json
from harness.processes.machine import commit
from harness.storage import run_store
from harness.storage.run_store import Hypothesis

QUERY = "encoder.0.self.query.kernel"
Base = Literal["captions", "multi30k", "schema 1"]


@dataclass(frozen=True)
class Attempt:
    """What is done to valid runs, the code that reports it, and what the check is given.

    `corpus` says whether the corpus must be at hand, `published` whether the rules for published results apply.
    """

    mutate: Mutation
    code: str
    base: Base = "captions"
    corpus: bool = False
    published: bool = False


# Consistent edits -----------------------------------------------------------------------------------------------------


def to_all(path: str, change: Any) -> Mutation:
    """Edit the same field of both seeds of the variant."""
    return both(edit(path, change), edit(path, change, run=SECOND))


def claim(path: str, change: Any, *, environment: str = "") -> Mutation:
    """Change a setting of both seeds of the variant, with ids and folders, and in the environment too."""

    def mutate(results: Path) -> None:
        for run in (FIRST, SECOND):
            if environment:
                edit(f"environment.{environment}", change, run=run)(results)
            respecify(path, change, run=run)(results)

    return mutate


def trained(**changes: Any) -> Mutation:
    """Put runs of the variant in the place of both seeds that were really made with other settings."""

    def mutate(results: Path) -> None:
        for seed, run in enumerate((FIRST, SECOND)):
            remove(run)(results)
            spec = folder_spec("learned_positions", seed)
            own = {name: value for name, value in changes.items() if name != "recipe"}
            write_run(results, replace(spec, **own, recipe=replace(spec.recipe, **changes.get("recipe", {}))))

    return mutate


def set_loss(factor: float) -> Mutation:
    """Multiply the losses of all test sentences, and every figure that follows from them."""

    def mutate(results: Path) -> None:
        def scale(arrays: dict[str, Any]) -> None:
            arrays["nats"] = arrays["nats"] * factor

        on_arrays("sentences", scale)(results)
        arrays = run_store.load_sentences(results, FIRST)
        loss = float(arrays["nats"].sum() / arrays["tokens"].sum())
        edit("scores.test_loss", loss)(results)
        edit("scores.test_perplexity", math.exp(loss))(results)
        edit("scores.tutorial_perplexity", lambda one: one**factor)(results)

    return mutate


def set_curve(part: str, factor: float) -> Mutation:
    """Multiply the training or the validation losses of all epochs, and their perplexities accordingly."""

    def mutate(results: Path) -> None:
        value = read(results, FIRST)
        for line in value["curve"]:
            line[f"{part}_loss"] *= factor
            line[f"{part}_perplexity"] = math.exp(line[f"{part}_loss"])
        write(results, FIRST, value)

    return mutate


def translated(change: Callable[[Hypothesis, tuple[str, ...]], tuple[str, ...]]) -> Mutation:
    """Change tokens as `change` says from a translation and its reference, and all that follows from them."""

    def mutate(results: Path) -> None:
        value = read(results, FIRST)
        prepared = prepare(spec_from_json(value["spec"]).data)
        found = run_store.load_hypotheses(results, FIRST)
        tokens = [change(one, tuple(words)) for one, words in zip(found, prepared.test_target_tokens, strict=True)]
        texts = detokenise(prepared, tokens)
        made = [Hypothesis(number, *one) for number, one in enumerate(zip(tokens, texts, strict=True))]
        scores = test_scores(prepared, made, spec_from_json(value["spec"]).decoding.unknown)
        digest = run_store.save_hypotheses(results, FIRST, made)
        on_arrays("sentences", lambda arrays: arrays.update(scores.statistics))(results)
        value = read(results, FIRST)
        value["fingerprints"]["hypotheses"] = digest
        value["scores"] |= scores.values
        write(results, FIRST, value)

    return mutate


def raise_counts(name: str, column: int) -> Mutation:
    """Add matches to the counts of each sentence, and the score that they make."""

    def mutate(results: Path) -> None:
        from harness.evaluation.metrics import score_from_sums

        def more(arrays: dict[str, Any]) -> None:
            arrays[name][:, column] += 1

        on_arrays("sentences", more)(results)
        sums = run_store.load_sentences(results, FIRST)[name].sum(axis=0)
        edit(f"scores.{name}", float(score_from_sums(name, sums)))(results)

    return mutate


def times_of(factor: float) -> Mutation:
    """Make a run faster in all its figures."""

    def mutate(results: Path) -> None:
        value = read(results, FIRST)
        for line in value["curve"]:
            line["training_seconds"] *= factor
            line["validation_seconds"] *= factor
        for name in value["speed"]:
            if name.endswith("_per_second"):
                value["speed"][name] /= factor
            elif name.endswith("_seconds"):
                value["speed"][name] *= factor
        write(results, FIRST, value)

    return mutate


def drop_epoch(*, relabelled: bool) -> Mutation:
    """Leave out the first epoch and number the others anew; `relabelled` does the same to the digests."""

    def mutate(results: Path) -> None:
        value = read(results, FIRST)
        each = value["curve"][0]["updates"]
        value["curve"] = [
            {**line, "epoch": number, "updates": number * each, "learning_rate": old["learning_rate"]}
            for number, (line, old) in enumerate(zip(value["curve"][1:], value["curve"], strict=False), start=1)
        ]
        value["chosen_epochs"] = [1]
        if relabelled:
            for name in ("batches", "weights_after"):
                found = value["fingerprints"][name]
                moved = {str(number * each): found[str((number + 1) * each)] for number in (1, 2)}
                early = {mark: digest for mark, digest in found.items() if int(mark) % each and int(mark) < 2 * each}
                value["fingerprints"][name] = {**early, **moved}
            value["fingerprints"]["stream"] = value["fingerprints"]["batches"][str(2 * each)]
        write(results, FIRST, value)
        respecify("training.epochs", 2)(results)

    return mutate


def consumed(change: Callable[[list[list[int]]], list[list[int]]]) -> Mutation:
    """Give a run the digests of other batches, as if it had been trained on them."""

    def mutate(results: Path) -> None:
        value = read(results, FIRST)
        spec = spec_from_json(value["spec"])
        epoch = batch_reference._epoch
        try:
            batch_reference._epoch = lambda *settings: change(epoch(*settings))  # type: ignore[assignment]
            updates = [line["updates"] for line in value["curve"]]
            found = batch_reference.expected(prepare(spec.data).train, spec.training, seed=spec.seed, updates=updates)
        finally:
            batch_reference._epoch = epoch
        value["fingerprints"]["batches"] = {str(mark): digest for mark, digest in found.marks.items()}
        value["fingerprints"]["stream"] = found.marks[max(found.marks)]
        value["sizes"] |= found.statistics
        write(results, FIRST, value)

    return mutate


def change_an_id(results: Path) -> None:
    """Give a run the digests of batches in which one id is another."""
    value = read(results, FIRST)
    spec = spec_from_json(value["spec"])
    train = prepare(spec.data).train
    source = [np.array(ids) for ids in train.source]
    source[0][1] += 1
    updates = [line["updates"] for line in value["curve"]]
    found = batch_reference.expected(replace(train, source=source), spec.training, seed=spec.seed, updates=updates)
    value["fingerprints"]["batches"] = {str(mark): digest for mark, digest in found.marks.items()}
    value["fingerprints"]["stream"] = found.marks[max(found.marks)]
    write(results, FIRST, value)


def pair_replaced(rows: list[list[int]]) -> list[list[int]]:
    """Return batches whose first has another pair in the place of its first."""
    return [[rows[1][0], *rows[0][1:]], *rows[1:]]


def take(*names: str, share: float = 1.0, noise: float = 0.0) -> Mutation:
    """Copy stored arrays of the first run's sentences to the second, or a part of them."""

    def mutate(results: Path) -> None:
        mine, theirs = (dict(run_store.load_sentences(results, run)) for run in (SECOND, FIRST))
        for name in names:
            part = slice(0, int(share * len(theirs[name])))
            copied = np.array(mine[name])
            copied[part] = theirs[name][part] * (1 + noise)
            mine[name] = copied
        edit("fingerprints.sentences", run_store.save_sentences(results, SECOND, mine), run=SECOND)(results)

    return mutate


def take_translations(results: Path) -> None:
    shutil.copy(results / FIRST / run_store.HYPOTHESES, results / SECOND / run_store.HYPOTHESES)
    edit("fingerprints.hypotheses", read(results, FIRST)["fingerprints"]["hypotheses"], run=SECOND)(results)


def take_seconds(results: Path) -> None:
    value, donor = read(results, SECOND), read(results, FIRST)
    for line, other in zip(value["curve"], donor["curve"], strict=True):
        line["training_seconds"] = other["training_seconds"]
    write(results, SECOND, value)


def as_threads(results: Path) -> None:
    """Show both seeds of the variant as runs with 2 threads too."""
    for run in (FIRST, SECOND):
        shutil.copytree(results / run, results / "copy")
        for name in ("environment.threads", "spec.threads"):
            edit(name, 2, run="copy")(results)
        edit("environment.variables.OMP_NUM_THREADS", "2", run="copy")(results)
        value = read(results, "copy")
        value["id"] = spec_from_json(value["spec"]).id
        for line in value["curve"]:
            line["training_seconds"] *= 1.01
        write(results, "copy", value)
        (results / "copy").rename(results / value["id"])


def resumed_rate(results: Path) -> None:
    """Claim a resumption, after which rates need not be those of the epochs, and a rate."""
    edit("environment.resumed_after_epochs", [1])(results)
    edit("speed.training_tokens_per_second", times(2))(results)
    edit("speed.epoch_seconds", times(0.5))(results)


def compiled_rate(results: Path) -> None:
    edit("speed.compilation_seconds", 5.0)(results)
    edit("speed.compilations", 1)(results)
    edit("speed.training_tokens_per_second", times(2))(results)
    edit("speed.epoch_seconds", times(0.5))(results)


def slow_start(results: Path) -> None:
    """Call most of the training its first update."""
    value = read(results, FIRST)
    spent = sum(line["training_seconds"] for line in value["curve"])
    factor = (spent - 6.0) / (spent - value["speed"]["first_update_seconds"])
    value["speed"] |= {
        "first_update_seconds": 6.0,
        "epoch_seconds": value["speed"]["epoch_seconds"] * factor,
        "training_tokens_per_second": value["speed"]["training_tokens_per_second"] / factor,
    }
    write(results, FIRST, value)


def other_library(name: str, *mutations: Mutation) -> Mutation:
    """Blame another version of a library for what differs."""
    return both(edit(f"environment.versions.{name}", "0.1"), *mutations)


def resign(results: Path) -> None:
    """Make the signatures name the version of sacreBLEU in the environment."""

    def name_version(signatures: dict[str, str]) -> dict[str, str]:
        parts = {name: one.split("|") for name, one in signatures.items()}
        return {
            name: "|".join("version:0.1" if part.startswith("version:") else part for part in one)
            for name, one in parts.items()
        }

    for run in (path.name for path in results.iterdir()):
        edit("environment.versions.sacrebleu", "0.1", run=run)(results)
        edit("signatures", name_version, run=run)(results)


def publish(results: Path) -> None:
    """Give all runs a clean commit, that of this checkout, and the time now."""
    found = {"digest": (commit() or {"digest": "a" * 40})["digest"], "dirty": False}
    for run in (path.name for path in results.iterdir()):
        edit("environment.commit", found, run=run)(results)
        edit("started", datetime.now(UTC).isoformat(timespec="seconds"), run=run)(results)


def started(ago: timedelta) -> Mutation:
    return edit("started", (datetime.now(UTC) - ago).isoformat(timespec="seconds"))


def other_query(weights: dict[str, str]) -> dict[str, str]:
    """Return digests of initial weights with another one for the queries."""
    return {**weights, QUERY: f"16x16:{OTHER}"}


def in_reverse(rows: list[list[int]]) -> list[list[int]]:
    return [rows[1], rows[0], *rows[2:]]


# The table ------------------------------------------------------------------------------------------------------------

REFERENCE = translated(lambda one, words: words if one.sentence % 2 else one.tokens)
ATTEMPTS: dict[str, Attempt] = {
    # Scores
    "a text is polished": Attempt(on_lines(lambda ls: [{**ls[0], "text": ls[0]["text"].capitalize()}, *ls[1:]]), "C37"),
    "a word is replaced": Attempt(
        on_lines(lambda ls: [{**ls[0], "tokens": ["x", *ls[0]["tokens"][1:]]}, *ls[1:]]), "C37"
    ),
    "two translations are swapped": Attempt(on_lines(lambda ls: [ls[1], ls[0], *ls[2:]]), "C24"),
    "a hard sentence is left out": Attempt(on_lines(lambda ls: ls[:-1]), "C24"),
    "a translation is cut": Attempt(on_lines(lambda ls: [{**ls[0], "tokens": ["a"], "text": "a"}, *ls[1:]]), "C26"),
    "a translation is longer than the search allows": Attempt(
        on_lines(lambda ls: [{**ls[0], "tokens": ["a"] * 60, "text": " ".join(["a"] * 60)}, *ls[1:]]), "C24"
    ),
    "the tutorials' perplexity is a tenth lower": Attempt(edit("scores.tutorial_perplexity", times(0.9)), "C38"),
    "the tutorials' perplexity is a hundredth lower": Attempt(
        edit("scores.tutorial_perplexity", times(0.99)), "C61", corpus=True
    ),
    "the test loss is lower": Attempt(edit("scores.test_loss", times(0.9)), "C19"),
    "test loss and perplexity are lower": Attempt(
        both(edit("scores.test_loss", 1.0), edit("scores.test_perplexity", math.e)), "C25"
    ),
    "the loss of one sentence is lower": Attempt(on_arrays("sentences", put("nats", 0.01)), "C25"),
    "sacreBLEU is higher": Attempt(edit("scores.bleu_sacre", times(1.01)), "C25"),
    "chrF is higher": Attempt(edit("scores.chrf", times(1.01)), "C25"),
    "the tutorials' BLEU is higher": Attempt(
        both(edit("scores.bleu_tutorial", times(1.01)), edit("scores.bleu_4_cumulative", times(1.01))), "C20"
    ),
    "BLEU-2 is higher": Attempt(edit("scores.bleu_2_cumulative", times(1.01)), "C20"),
    "sacreBLEU and its counts are higher": Attempt(raise_counts("bleu_sacre", 2), "C31", corpus=True),
    "chrF and its counts are higher": Attempt(raise_counts("chrf", 2), "C31", corpus=True),
    "references are shorter, so that brevity costs nothing": Attempt(raise_counts("bleu_sacre", 1), "C50"),
    "another tokenisation is claimed": Attempt(
        edit("signatures.bleu_sacre", lambda one: one.replace("13a", "intl")), "C21"
    ),
    "a score of another name": Attempt(edit("scores.bleu_best", 99.0), "C20"),
    "another library for another score": Attempt(
        both(resign, edit("scores.bleu_sacre", times(1.01))), "C31", corpus=True
    ),
    # Curves
    "a validation loss is lower": Attempt(edit("curve.0.validation_loss", times(0.9)), "C14"),
    "the best epoch on the test set is kept": Attempt(edit("chosen_epochs", [3]), "C18"),
    "the last epoch is left out": Attempt(edit("curve", lambda lines: lines[:-1]), "C15"),
    "epochs are counted from 0": Attempt(
        both(*(edit(f"curve.{number}.epoch", number) for number in range(3)), edit("chosen_epochs", [1])), "C14"
    ),
    "the first epoch is left out and the others renumbered": Attempt(drop_epoch(relabelled=False), "C60"),
    "so too in the digests": Attempt(drop_epoch(relabelled=True), "C30", corpus=True),
    "an epoch had more words": Attempt(edit("curve.1.tokens", times(2)), "C16"),
    "all epochs had more words": Attempt(
        both(*(edit(f"curve.{number}.tokens", lambda one: one + 100) for number in range(3))), "C62", corpus=True
    ),
    "another learning rate": Attempt(edit("curve.0.learning_rate", 1e-3), "C17"),
    "fewer updates": Attempt(edit("curve.2.updates", 19), "C15"),
    # Settings of one row
    "dropout of one row": Attempt(claim("recipe.dropout", 0.5), "C52"),
    "dropout of the attention in one row": Attempt(trained(recipe={"attention_dropout": 0.5}), "C52"),
    "precision of one row": Attempt(claim("precision", "bfloat16", environment="precision"), "C52"),
    "initialisation of one row": Attempt(trained(recipe={"embedding_init": "normal"}), "C52"),
    "scale of the embeddings in one row": Attempt(trained(recipe={"embedding_scale": "none"}), "C52"),
    "order of the norms in one row": Attempt(trained(recipe={"norm_order": "pre"}), "C52"),
    "epsilon of the norms in one row": Attempt(trained(recipe={"norm_epsilon": 1e-3}), "C52"),
    "width of one row": Attempt(trained(recipe={"width": 32}), "C52"),
    "label smoothing of one row": Attempt(claim("training.label_smoothing", 0.1), "C45"),
    "batches of one row": Attempt(trained(training=replace(SCHEDULE, batch_size=16)), "C45"),
    "the rate of one row": Attempt(claim("training.peak_rate", 0.02), "C45"),
    "the beam of one row": Attempt(claim("decoding.beam", 5), "C43"),
    "unknown words in one row": Attempt(claim("decoding.unknown", "allowed"), "C43"),
    "the tokenizer of one row": Attempt(claim("data.tokenizer", "moses"), "C40"),
    "the longest sentence of one row": Attempt(claim("data.max_length", 60), "C40"),
    # Seeds and copies
    "a bad seed of one row is left out": Attempt(remove(SECOND), "C48"),
    "a run under another seed": Attempt(respecify("seed", 5), "C28"),
    "a run is copied as another seed": Attempt(as_seed, "C53"),
    "runs are copied as runs with more threads": Attempt(as_threads, "C53"),
    "the losses of another seed": Attempt(take("nats"), "C53"),
    "a tenth of the losses of another seed": Attempt(take("nats", share=0.1), "C53"),
    "the losses of another seed with noise": Attempt(take("nats", noise=1e-8), "C53"),
    "the translations of another seed": Attempt(take_translations, "C53"),
    "the seconds of another seed": Attempt(take_seconds, "C53"),
    "the curve of another seed": Attempt(
        lambda results: edit("curve", read(results, FIRST)["curve"], run=SECOND)(results), "C51"
    ),
    # Data
    "the files of another test set": Attempt(
        edit("fingerprints.files", lambda one: {name.replace("2016", "2017"): it for name, it in one.items()}),
        "C35",
        base="multi30k",
    ),
    "another text under a file's name": Attempt(
        edit("fingerprints.files", lambda one: {**one, "train.de": OTHER}), "C35", base="multi30k"
    ),
    "the test set of another year": Attempt(respecify("data.test_split", "test_2017_flickr"), "C35", base="multi30k"),
    "the digest of another year's file": Attempt(
        edit(
            "fingerprints.files",
            lambda one: {**one, "test_2016_flickr.de": multi30k.DIGESTS["test_2017_flickr.de"]},
        ),
        "C35",
        base="multi30k",
    ),
    "a file without a digest": Attempt(
        edit("fingerprints.files", lambda one: {name: it for name, it in one.items() if name != "val.de"}), "C35"
    ),
    "fewer validation sentences": Attempt(edit("sizes.validation_pairs", 1_000), "C36", base="multi30k"),
    "another vocabulary": Attempt(edit("fingerprints.target_vocabulary", OTHER), "C42"),
    "another vocabulary by another library": Attempt(
        other_library("sacremoses", to_all("fingerprints.target_vocabulary", OTHER)), "C29", corpus=True
    ),
    "no test sentence in training": Attempt(edit("sizes.test_pairs_in_train", 3), "C29", corpus=True),
    # Training
    "every epoch's first batch, again and again": Attempt(
        consumed(lambda rows: [rows[0]] * len(rows)), "C30", corpus=True
    ),
    "two batches are swapped": Attempt(consumed(in_reverse), "C30", corpus=True),
    "one id is another": Attempt(change_an_id, "C30", corpus=True),
    "a pair is replaced": Attempt(consumed(pair_replaced), "C30", corpus=True),
    "a sentence is dropped from a batch": Attempt(consumed(lambda rows: [rows[0][1:], *rows[1:]]), "C30", corpus=True),
    "no digests of batches": Attempt(edit("fingerprints.batches", ...), "C60"),
    "one digest of the weights for all epochs": Attempt(
        edit("fingerprints.weights_after", lambda one: dict.fromkeys(one, OTHER)), "C60"
    ),
    "the weights of another epoch are stored": Attempt(
        on_arrays("weights", lambda arrays: arrays.update({QUERY: arrays[QUERY] + np.float32(1e-3)})), "C27"
    ),
    "other initial weights": Attempt(to_all("fingerprints.weights", other_query), "C28"),
    "other initial weights by another library": Attempt(
        other_library("numpy", to_all("fingerprints.weights", other_query)), "C28"
    ),
    "fewer parameters": Attempt(edit("sizes.parameters", times(0.5)), "C13"),
    "attention of another translation": Attempt(on_attention(lambda one: one[:, 1:]), "C32"),
    # Times
    "more words per second": Attempt(edit("speed.training_tokens_per_second", times(1.5)), "C11"),
    "fewer seconds in an epoch": Attempt(edit("speed.epoch_seconds", times(0.5)), "C11"),
    "a slow first update": Attempt(slow_start, "C39"),
    "compilation where nothing compiles": Attempt(compiled_rate, "C39"),
    "a resumption, and more words per second": Attempt(resumed_rate, "C39"),
    "a total without the translating": Attempt(
        edit("speed", lambda one: {**one, "total_seconds": one["total_seconds"] - 12}), "C39"
    ),
    "less memory than the parameters take": Attempt(edit("speed.peak_memory_bytes", 1_000.0), "C39"),
    "more memory than there is": Attempt(edit("speed.peak_memory_bytes", 1e12), "C39"),
    # Provenance
    "a dirty checkout": Attempt(edit("environment.commit.dirty", True), "C33", published=True),
    "a start in the future": Attempt(started(timedelta(days=-2)), "C33", published=True),
    "a run that cannot be over": Attempt(
        both(started(timedelta(hours=1)), edit("speed.total_seconds", 90_000.0)), "C33", published=True
    ),
    "an unknown commit": Attempt(edit("environment.commit.digest", "b" * 40), "C34", published=True),
    "no commit": Attempt(edit("environment.commit", None), "C10"),
    "a start before the commit": Attempt(started(timedelta(days=9_000)), "C34", published=True),
    "no seal": Attempt(edit("seal", ...), "C05"),
    "an edit under the old seal": Attempt(edit("note", "better", sealed=False), "C05"),
    "no seal in an old schema": Attempt(edit("seal", ...), "C33", base="schema 1", published=True),
    "settings of schema 2 in an old schema": Attempt(edit("schema", 1), "C02"),
    "threads of the environment": Attempt(edit("environment.threads", 16), "C09"),
    "another id": Attempt(edit("id", lambda one: one[:-1] + "0"), "C03"),
    "a failed run as a completed one": Attempt(edit("reason", "RuntimeError: out of memory"), "C07"),
    # Warnings
    "a test loss far from the validation loss": Attempt(set_loss(0.8), "W01"),
    "BLEU out of proportion to the loss": Attempt(set_loss(0.3), "W02", base="multi30k"),
    "a bad seed in the middle is left out everywhere": Attempt(
        lambda results: [write_run(results, folder_spec(one, 3)) for one in ("learned_positions", "paper")], "W03"
    ),
}
"""name -> what is done to a valid set, and the code of the rule that reports it."""

UNDETECTABLE: dict[str, tuple[Mutation, str]] = {
    "lower test losses": (
        set_loss(0.97),
        "The losses of the sentences are the source of every figure on them; only a large change gives a warning.",
    ),
    "lower validation losses": (
        set_curve("validation", 0.97),
        "Nothing else in a record depends on the validation losses.",
    ),
    "lower training losses": (
        set_curve("training", 0.9),
        "Nothing else in a record depends on them, but --rerun-epoch compares the first epoch's.",
    ),
    "better translations, scored honestly": (
        REFERENCE,
        "Who edits tokens can score them; on Multi30k there is a warning where BLEU is out of proportion to the loss.",
    ),
    "the last seed of all rows is left out": (
        both(remove(SECOND), lambda results: remove(folder_spec("paper", 1).id)(results)),
        "A run that is not there leaves no trace, unless a later seed is.",
    ),
    "a run that was repeated until it was good": (
        edit("command", "python -m harness run learned_positions --seed 0 # the fourth time"),
        "Earlier runs leave no trace.",
    ),
    "a faster machine": (times_of(0.5), "All times fit each other; only the machine itself could tell."),
    "another processor": (
        edit("environment.machine.processor", "a slow processor"),
        "Only the machine itself could tell; runs of one table on different processors give a remark.",
    ),
    "an earlier start": (edit("started", "2026-01-01T00:00:00+00:00"), "No clock but that of the machine saw it."),
    "smaller gradients": (edit("curve.0.largest_gradient_norm", 0.5), "Nothing else in a record depends on them."),
    "fewer ties": (edit("decode.ties", 0), "Ties are not stored one by one."),
    "invented digests of weights": (
        both(
            edit("fingerprints.weights_after", lambda one: {mark: OTHER[: -len(mark)] + mark for mark in one}),
            remove(FIRST, "weights.json"),
            remove(FIRST, "weights.safetensors"),
        ),
        "Without the weights a digest says nothing; --rerun compares those of the first 50 updates.",
    ),
}
"""name -> what is done to a valid set, and why no inspection of records can detect it."""
