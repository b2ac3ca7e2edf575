"""`check`: a valid set of records passes every rule, and each planted mutation is caught by the rules that should."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_factory import record as made_up
from record_folders import folder_spec, write_run, write_set
from small_runs import TINY, TRAINING, spec

from harness import files, store, training
from harness.__main__ import main
from harness.checking import rules
from harness.checking.rules import RULES, Checked, check
from harness.data import multi30k
from harness.data.prepared import at_hand
from harness.specs import canonical_json, spec_from_json

FIRST = folder_spec("learned_positions", 0).id
SECOND = folder_spec("learned_positions", 1).id
PAPER = folder_spec("paper", 0).id
OTHER = "0" * 64
ROOT = Path(__file__).resolve().parent.parent


pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    results = tmp_path_factory.mktemp("valid")
    write_set(results)
    return results


@pytest.fixture
def results(valid: Path, tmp_path: Path) -> Path:
    """Return a copy of the valid set."""
    shutil.copytree(valid, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def _no_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.data.prepared.at_hand", lambda data: None)


def failed(found: Checked) -> set[str]:
    return {one.rule.code for one in found.failed}


# Mutations ------------------------------------------------------------------------------------------------------------

Mutation = Callable[[Path], None]


def read(results: Path, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((results / run / "record.json").read_text(encoding="utf-8"))
    return found


def write(results: Path, run: str, value: dict[str, Any], *, sealed: bool = True) -> None:
    """Write a record as somebody would who knows of the seal, or as somebody would who does not."""
    if sealed and "seal" in value:
        value["seal"] = store.seal(value)
    (results / run / "record.json").write_text(json.dumps(value, indent=1), encoding="utf-8")


def edit(path: str, change: Any, *, run: str = FIRST, sealed: bool = True) -> Mutation:
    """Change the field at a dotted path to `change`, or to what it makes of the field; `...` removes it."""

    def mutate(results: Path) -> None:
        value = read(results, run)
        *outer, last = [int(one) if one.isdecimal() else one for one in path.split(".")]
        inner: Any = value
        for name in outer:
            inner = inner[name]
        if change is ...:
            del inner[last]
        else:
            inner[last] = change(inner[last]) if callable(change) else change
        write(results, run, value, sealed=sealed)

    return mutate


def respecify(path: str, change: Any, *, run: str = FIRST) -> Mutation:
    """Change a setting as `edit` does, and with it the id and the folder: no trace is left in the record itself."""

    def mutate(results: Path) -> None:
        edit(f"spec.{path}", change, run=run)(results)
        value = read(results, run)
        value["id"] = spec_from_json(value["spec"]).id
        write(results, run, value)
        (results / run).rename(results / value["id"])

    return mutate


def both(*mutations: Mutation) -> Mutation:
    def mutate(results: Path) -> None:
        for one in mutations:
            one(results)

    return mutate


def on_file(name: str, change: Callable[[bytes], bytes], *, digest: str = "", run: str = FIRST) -> Mutation:
    """Change a file beside the record; with `digest`, that fingerprint is made to fit."""

    def mutate(results: Path) -> None:
        path = results / run / name
        path.write_bytes(change(path.read_bytes()))
        if digest:
            edit(f"fingerprints.{digest}", files.file_digest(path), run=run)(results)

    return mutate


def on_lines(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Mutation:
    """Change the translations, and their digest with them."""

    def rewrite(content: bytes) -> bytes:
        lines = [json.loads(line) for line in content.decode().removesuffix("\n").split("\n")]
        return "".join(canonical_json(one) + "\n" for one in change(lines)).encode()

    return on_file("hypotheses.jsonl", rewrite, digest="hypotheses")


def on_arrays(name: str, change: Callable[[dict[str, Any]], None]) -> Mutation:
    """Change stored arrays, and every digest with them."""

    def mutate(results: Path) -> None:
        load, save, digest = {
            "weights": (store.load_weights, store.save_weights, "trained_weights"),
            "sentences": (store.load_sentences, store.save_sentences, "sentences"),
        }[name]
        arrays = {key: np.array(one) for key, one in load(results, FIRST).items()}
        change(arrays)
        edit(f"fingerprints.{digest}", save(results, FIRST, arrays))(results)

    return mutate


def on_attention(change: Callable[[Any], Any]) -> Mutation:
    """Change the attention of the first sentence, and the digest with it."""

    def mutate(results: Path) -> None:
        maps = store.load_attention(results, FIRST)
        digest = store.save_attention(results, FIRST, {**maps, 0: change(maps[0])})
        edit("fingerprints.attention", digest)(results)

    return mutate


def put(name: str, value: Any, *, add: float = 0) -> Callable[[dict[str, Any]], None]:
    """Set the first number of an array to `value`, or add to it."""

    def change(arrays: dict[str, Any]) -> None:
        arrays[name].flat[0] = arrays[name].flat[0] + add if value is None else value

    return change


def flip(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def copy(results: Path) -> None:
    shutil.copytree(results / FIRST, results / "another")


def remove(*parts: str) -> Mutation:
    def mutate(results: Path) -> None:
        path = results.joinpath(*parts)
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return mutate


def swap(lines: list[Any]) -> list[Any]:
    return [lines[1], lines[0], *lines[2:]]


def times(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


def as_seed(results: Path) -> None:
    """Give a run out for one of another seed, but for the digests that tell the seed."""
    donor, taker = read(results, FIRST), read(results, SECOND)
    keep = {name: taker["fingerprints"][name] for name in ("stream", "weights")}
    copied = {**donor, "id": SECOND, "spec": taker["spec"], "fingerprints": {**donor["fingerprints"], **keep}}
    shutil.copytree(results / FIRST, results / SECOND, dirs_exist_ok=True)
    write(results, SECOND, copied)


QUERY = "encoder.0.self.query.kernel"
ONE_WORD = {"tokens": ["a"], "text": "a"}
MUTATIONS: dict[str, tuple[Mutation, set[str]]] = {
    "schema number": (edit("schema", 3), {"C01", "C06", "C48"}),
    "half a record": (on_file("record.json", lambda content: content[:-99]), {"C01", "C06", "C48"}),
    "NaN in the file": (
        on_file("record.json", lambda content: content.replace(b"210000000.0", b"NaN")),
        {"C01", "C06", "C48"},
    ),
    "a number beyond all": (
        on_file("record.json", lambda content: content.replace(b"210000000.0", b"1e999")),
        {"C01", "C06", "C48"},
    ),
    "unknown field": (edit("remark", "x"), {"C02", "C06", "C48"}),
    "unknown setting": (edit("spec.training.momentum", 0.9), {"C02", "C06", "C48"}),
    "missing field": (edit("curve.0.tokens", ...), {"C02", "C06", "C48"}),
    "missing part": (edit("note", ...), {"C02"}),
    "a word for a number": (edit("scores.chrf", "high"), {"C02", "C06", "C48"}),
    "unknown status": (edit("status", "done"), {"C02", "C06", "C48"}),
    "a list of digests": (edit("fingerprints.files", []), {"C02", "C06", "C48"}),
    "id": (edit("id", lambda one: one[:-1] + "0"), {"C03", "C04"}),
    "seed": (edit("spec.seed", 7), {"C03", "C28", "C48"}),
    "setting": (edit("spec.recipe.dropout", 0.5), {"C03", "C48"}),
    "copied folder": (copy, {"C04"}),
    "edited, not resealed": (edit("note", "better", sealed=False), {"C05"}),
    "another seal": (edit("seal", OTHER, sealed=False), {"C05"}),
    "failed": (edit("status", "failed"), {"C06", "C07"}),
    "interrupted": (edit("status", "interrupted"), {"C06", "C07"}),
    "no record": (remove(FIRST, "record.json"), {"C01", "C06", "C48"}),
    "no scores": (both(edit("scores", {}), edit("signatures", {})), {"C07", "C19", "C20", "C25", "C44"}),
    "diverged, and finite": (edit("status", "diverged"), {"C07"}),
    "no translations' digest": (edit("fingerprints.hypotheses", ...), {"C08"}),
    "a digest cut short": (edit("fingerprints.tokenised", "ab"), {"C08", "C42"}),
    "threads of the place": (edit("environment.threads", 16), {"C09"}),
    "threads of a library": (edit("environment.variables.OMP_NUM_THREADS", "16"), {"C09"}),
    "no versions": (edit("environment.versions", {}), {"C09"}),
    "no machine": (edit("environment.machine", ...), {"C09"}),
    "no commit": (edit("environment.commit", None), {"C10"}),
    "commit unsaid": (edit("environment.commit.dirty", ...), {"C10"}),
    "no start": (edit("started", "yesterday"), {"C11"}),
    "start without zone": (edit("started", "2026-01-02T03:04:05"), {"C11"}),
    "total seconds": (edit("speed.total_seconds", 1.0), {"C11"}),
    "tokens per second": (edit("speed.training_tokens_per_second", times(1.5)), {"C11"}),
    "seconds of an epoch": (edit("curve.1.training_seconds", times(0.5)), {"C11"}),
    "seconds of validation": (edit("speed.validation_seconds", times(0.9)), {"C11"}),
    "half a sentence": (edit("sizes.validation_pairs", 10.5), {"C12"}),
    "a share above 1": (edit("sizes.test_source_unknown_rate", 1.5), {"C12"}),
    "training pairs": (edit("sizes.train_pairs", 900), {"C11", "C12", "C15"}),
    "parameters": (edit("sizes.parameters", lambda one: one + 1), {"C13"}),
    "vocabulary size": (edit("sizes.source_words", lambda one: one + 1), {"C13"}),
    "lines of the curve swapped": (edit("curve", swap), {"C14", "C15", "C18"}),
    "validation loss": (edit("curve.0.validation_loss", times(0.99)), {"C14"}),
    "training perplexity": (edit("curve.2.training_perplexity", times(0.99)), {"C14"}),
    "a loss of null": (edit("curve.0.validation_loss", None), {"C14"}),
    "a line less": (edit("curve", lambda lines: lines[:-1]), {"C11", "C15", "C46"}),
    "updates": (edit("curve.2.updates", 22), {"C11", "C15", "C17", "C46"}),
    "tokens": (edit("curve.1.tokens", lambda one: one + 1), {"C16", "C50"}),
    "learning rate": (edit("curve.0.learning_rate", 1e-3), {"C17"}),
    "chosen epoch": (edit("chosen_epochs", [3]), {"C18"}),
    "a better epoch": (
        both(edit("curve.2.validation_loss", 1.0), edit("curve.2.validation_perplexity", float(np.e))),
        {"C18"},
    ),
    "test loss": (edit("scores.test_loss", times(0.99)), {"C19"}),
    "test perplexity": (edit("scores.test_perplexity", times(0.99)), {"C19", "C25"}),
    "loss and perplexity": (
        both(edit("scores.test_loss", 1.0), edit("scores.test_perplexity", float(np.e))),
        {"C25"},
    ),
    "a score of null": (edit("scores.test_loss", None), {"C19"}),
    "tutorial perplexity": (edit("scores.tutorial_perplexity", 0.5), {"C19"}),
    "BLEU": (edit("scores.bleu_tutorial", times(1.01)), {"C20", "C25"}),
    "cumulative BLEU": (edit("scores.bleu_2_cumulative", times(1.01)), {"C20"}),
    "individual BLEU": (edit("scores.bleu_3_individual", times(1.01)), {"C20", "C25"}),
    "sacreBLEU": (edit("scores.bleu_sacre", times(1.01)), {"C25"}),
    "chrF": (edit("scores.chrf", times(1.01)), {"C25"}),
    "BLEU above 100": (edit("scores.bleu_sacre", 101.0), {"C20", "C25"}),
    "a score of its own": (edit("scores.bleu_best", 50.0), {"C20", "C21"}),
    "no signature": (edit("signatures.chrf", ...), {"C21", "C44"}),
    "signature": (edit("signatures.bleu_sacre", lambda one: one.replace("13a", "intl")), {"C21", "C44"}),
    "version of the signature": (edit("signatures.chrf", lambda one: one + "0"), {"C21", "C44"}),
    "ties": (edit("decode.ties", -1), {"C22"}),
    "unfinished": (edit("decode.unfinished", 499), {"C24"}),
    "brevity penalty": (edit("scores.brevity_penalty", times(0.99)), {"C25"}),
    "no brevity penalty": (edit("scores.brevity_penalty", ...), {"C20", "C21"}),
    "unknown tokens": (edit("decode.unknown_tokens", 3), {"C24"}),
    "no unknown tokens": (edit("decode.unknown_tokens", ...), {"C22"}),
    "an unknown word": (
        both(
            on_lines(lambda lines: [{**lines[0], "tokens": ["<unk>", *lines[0]["tokens"][1:]]}, *lines[1:]]),
            edit("decode.unknown_tokens", 1),
        ),
        {"C24"},
    ),
    "unknown words in the signature": (
        edit("signatures.bleu_sacre", lambda one: one.replace("unk:never", "unk:allowed")),
        {"C21", "C44"},
    ),
    "no unknown words in the signature": (
        edit("signatures.chrf", lambda one: one.removesuffix("|unk:never")),
        {"C21", "C44"},
    ),
    "translation edited": (on_file("hypotheses.jsonl", lambda c: c.replace(b'"a"', b'"b"', 1)), {"C23"}),
    "translation lost": (on_file("hypotheses.jsonl", lambda c: c.partition(b"\n")[2]), {"C23", "C24", "C26", "C32"}),
    "translations swapped": (on_lines(swap), {"C24"}),
    "translation gone": (on_lines(lambda lines: lines[:-1]), {"C24", "C26"}),
    "translation made longer": (
        on_lines(lambda lines: [{**lines[0], "tokens": ["a"] * 60}, *lines[1:]]),
        {"C24", "C26", "C32"},
    ),
    "translation made shorter": (on_lines(lambda lines: [{**lines[0], **ONE_WORD}, *lines[1:]]), {"C26", "C32"}),
    "source text beside it": (on_lines(lambda lines: [{**lines[0], "source": "x"}, *lines[1:]]), {"C23"}),
    "no translations": (remove(FIRST, "hypotheses.jsonl"), {"C23", "C24", "C26", "C32"}),
    "counts flipped": (on_file("sentences.safetensors", flip), {"C25", "C26"}),
    "counts of chrF": (on_arrays("sentences", put("chrf", None, add=3)), {"C25"}),
    "nats of a sentence": (on_arrays("sentences", put("nats", 900.0)), {"C25"}),
    "words of a reference": (on_arrays("sentences", put("tokens", None, add=1)), {"C25", "C50"}),
    "counts undigested": (edit("fingerprints.sentences", ...), {"C25", "C26"}),
    "counts gone": (remove(FIRST, "sentences.safetensors"), {"C25", "C26"}),
    "a byte of the attention": (on_file("attention.safetensors", flip), {"C32"}),
    "attention undigested": (edit("fingerprints.attention", ...), {"C32"}),
    "attention that adds up to more": (on_attention(lambda one: one * 2), {"C32"}),
    "attention of another translation": (on_attention(lambda one: one[:, 1:]), {"C32"}),
    "another backend": (edit("environment.backend", "jax"), {"C09"}),
    "a byte of the weights": (on_file("weights.safetensors", flip), {"C27"}),
    "weights cut short": (on_file("weights.safetensors", lambda content: content[:-8]), {"C27"}),
    "weights of another run": (
        lambda results: [
            shutil.copy(results / SECOND / name, results / FIRST) for name in ("weights.json", "weights.safetensors")
        ],
        {"C27"},
    ),
    "a weight of infinity": (on_arrays("weights", put("output.bias", np.inf)), {"C27"}),
    "a foreign weight": (on_arrays("weights", lambda arrays: arrays.update(extra=np.zeros(3, np.float32))), {"C27"}),
    "weights' digest": (edit("fingerprints.trained_weights", OTHER), {"C27"}),
    "an initial tensor": (edit("fingerprints.weights", lambda one: {**one, QUERY: f"16x16:{OTHER}"}), {"C28", "C49"}),
    "a tensor's shape": (
        edit("fingerprints.weights", lambda one: {**one, QUERY: one[QUERY].replace("16x16", "8x32")}),
        {"C13", "C27"},
    ),
    "tensor missing": (
        edit("fingerprints.weights", lambda one: {name: it for name, it in one.items() if name != QUERY}),
        {"C13", "C27"},
    ),
    "no initial tensors": (edit("fingerprints.weights", {}), {"C08", "C13", "C27", "C49"}),
    "the tokenizer, all through": (respecify("data.tokenizer", "moses"), {"C40", "C48"}),
    "a file": (edit("fingerprints.files", lambda one: {**one, "train.de": OTHER}), {"C41"}),
    "a vocabulary": (edit("fingerprints.target_vocabulary", OTHER), {"C42"}),
    "ids": (edit("fingerprints.tokenised", OTHER), {"C42"}),
    "decoding, all through": (respecify("decoding.beam", 5), {"C43", "C48"}),
    "smoothing, all through": (respecify("training.label_smoothing", 0.1), {"C45", "C48"}),
    "the rate, all through": (respecify("training.peak_rate", 0.02), {"C17", "C45", "C48"}),
    "the limit, all through": (respecify("updates", 21), {"C48"}),
    "batches": (edit("fingerprints.stream", OTHER), {"C47"}),
    "no batches": (edit("fingerprints.stream", ...), {"C08", "C47"}),
    "a seed dropped": (remove(SECOND), {"C48"}),
    "a seed, all through": (respecify("seed", 5), {"C28", "C48"}),
    "one run under two seeds": (as_seed, {"C51"}),
}
"""name -> (what is done to a valid set, the rules that fail for it and no other)."""

WITH_CORPUS: dict[str, tuple[Mutation, set[str]]] = {
    "sizes of the corpus": (edit("sizes.test_pairs_in_train", 3), {"C29"}),
    "an invented size": (edit("sizes.test_difficulty", 3), {"C29"}),
    "a vocabulary": (edit("fingerprints.target_vocabulary", OTHER), {"C29"}),
    "ids": (edit("fingerprints.tokenised", OTHER), {"C29"}),
    "batches": (edit("fingerprints.stream", OTHER), {"C30"}),
    "a seed, all through": (respecify("seed", 5), {"C28", "C30"}),
    "a word of a translation": (
        on_lines(lambda lines: [{**lines[0], "tokens": ["x", *lines[0]["tokens"][1:]]}, *lines[1:]]),
        {"C31"},
    ),
    "the text of a translation": (on_lines(lambda lines: [{**lines[0], "text": "x"}, *lines[1:]]), {"C31"}),
    "scores and counts": (
        both(
            on_arrays("sentences", put("chrf", None, add=3)),
            lambda results: edit(
                "scores.chrf",
                float(rules.files.score_from_sums("chrf", store.load_sentences(results, FIRST)["chrf"].sum(axis=0))),
            )(results),
        ),
        {"C31"},
    ),
}
"""The same for mutations that leave the record in itself consistent: the corpus tells."""


def test_every_run_that_is_made_right_passes_every_rule(valid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--results", str(valid)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line[:3] for line in lines[: len(RULES)]] == [rule.code for rule in RULES]
    assert all(" ok (" in line and "not tried" not in line for line in lines[: len(RULES)]), lines
    assert lines[-2].startswith("A fair comparison, in 1 table. 4 runs: all 44 rules")


def test_codes_are_distinct_and_every_rule_says_what_must_hold() -> None:
    for words in ([rule.code for rule in RULES], [rule.name for rule in RULES], [rule.sentence for rule in RULES]):
        assert len(set(words)) == len(words)
    assert all(rule.sentence.endswith((".", ":")) and "\n" not in rule.sentence for rule in RULES)


def test_there_is_a_mutation_for_every_rule() -> None:
    caught = set().union(*(codes for _, codes in (*MUTATIONS.values(), *WITH_CORPUS.values())))
    assert caught == {rule.code for rule in RULES}
    assert len(MUTATIONS) + len(WITH_CORPUS) >= 40


@pytest.mark.usefixtures("_no_corpus")
@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_caught_by_its_rules(results: Path, name: str) -> None:
    mutate, expected = MUTATIONS[name]
    mutate(results)
    assert failed(check(results)) == expected


@pytest.mark.parametrize("name", WITH_CORPUS)
def test_where_the_corpus_is_a_consistent_forgery_is_caught_too(results: Path, name: str) -> None:
    mutate, expected = WITH_CORPUS[name]
    mutate(results)
    run = next(path.name for path in results.iterdir() if path.name not in {SECOND, PAPER} and "learned" in path.name)
    assert failed(check(results, prefixes=[run])) == expected


def leaves(value: Any, *path: str | int) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in pairs:
        if isinstance(one, dict | list) and one:
            yield from leaves(one, *path, name)
        else:
            yield (*path, name), one


def other(value: Any) -> Any:
    """Return a value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f"{value}x" if isinstance(value, str) else 1


@pytest.mark.usefixtures("_no_corpus")
def test_every_value_of_a_record_is_sealed_and_none_breaks_the_check(results: Path) -> None:
    record = read(results, FIRST)
    paths = [(path, value) for path, value in leaves(record) if "weights" not in path and path != ("seal",)]
    assert len(paths) > 150
    for path, value in paths:
        changed = json.loads(json.dumps(record))
        inner = changed
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = other(value)
        write(results, FIRST, changed, sealed=False)
        found = check(results, prefixes=[FIRST])
        assert failed(found) & {"C01", "C05"}, path


# What is no fault, and what cannot be tried ---------------------------------------------------------------------------


def ends(found: Checked) -> dict[str, str]:
    return {one.rule.code: one.end for one in found.outcomes}


@pytest.mark.usefixtures("_no_corpus")
def test_what_is_not_there_is_not_tried_and_why_is_said(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in results.glob("*/weights*"):
        path.unlink()
    for path in results.glob("*/sentences*"):
        path.unlink()
        edit("fingerprints.sentences", ..., run=path.parent.name)(results)
        edit("seal", ..., run=path.parent.name)(results)
    assert main(["check", "--results", str(results)]) == 0
    lines = {line[:3]: line for line in capsys.readouterr().out.split("\n")}
    assert "n/a (not sealed" in lines["C05"]
    assert "n/a (no sentences.safetensors" in lines["C25"]
    assert "n/a (weights not stored" in lines["C27"]
    assert all("n/a (no corpus: " in lines[code] for code in ("C29", "C30", "C31"))


@pytest.mark.usefixtures("_no_corpus")
def test_where_runs_were_made_is_remarked_on(results: Path) -> None:
    edit("environment.commit", {"digest": "b" * 40, "dirty": True})(results)
    edit("environment.machine.processor", "another processor")(results)
    edit("environment.versions.torch", "2.12.0", run=PAPER)(results)
    edit("environment.resumed_after_epochs", [1], run=PAPER)(results)
    respecify("threads", 2, run=SECOND)(results)
    found = check(results)
    text = "\n".join(found.remarks)
    for words in ("commit: ", "processor: ", "torch: ", "not those of the commit: ", "resumed: ", "captions"):
        assert words in text


def diverge(results: Path) -> None:
    value = read(results, FIRST)
    value |= {"status": "diverged", "reason": "epoch 3: the training loss is not finite", "chosen_epochs": []}
    value |= {"scores": {}, "signatures": {}, "decode": {}}
    for name in ("hypotheses", "trained_weights", "sentences", "attention"):
        del value["fingerprints"][name]
    value["curve"][2] |= dict.fromkeys(("training_loss", "training_perplexity", "validation_loss"))
    write(results, FIRST, value)


@pytest.mark.usefixtures("_no_corpus")
def test_a_diverged_run_is_named_and_no_fault(results: Path) -> None:
    diverge(results)
    found = check(results)
    assert not found.failed
    assert any(line.startswith(f"diverged: {FIRST} (epoch 3") for line in found.remarks)


@pytest.mark.usefixtures("_no_corpus")
def test_an_unfinished_run_is_missed(results: Path) -> None:
    with store.open_log(results, "paper-unfinished") as log:
        log.write(b"began\n")
    (results / ".hidden").mkdir()
    assert failed(check(results)) == {"C01", "C06"}


@pytest.mark.usefixtures("_no_corpus")
def test_tables_are_those_of_the_report_unless_runs_are_named(results: Path) -> None:
    other_pairs = replace(FIRST_SPEC.data, training_pairs=150)
    extra = write_run(results, replace(FIRST_SPEC, data=other_pairs))
    found = check(results)
    assert not found.failed
    assert len(found.comparisons) == 2
    assert failed(check(results, prefixes=[extra.id, PAPER])) >= {"C40", "C42", "C46"}


FIRST_SPEC = folder_spec("learned_positions", 0)


def test_a_budget_is_checked_alone(results: Path) -> None:
    sources = results / "sources"
    for variant in ("learned_positions", "paper"):
        write_run(
            sources, folder_spec(variant, 0, budget="source", training=replace(TRAINING, batch_size=40 - len(variant)))
        )
    shutil.copytree(sources, results, dirs_exist_ok=True)
    shutil.rmtree(sources)
    found = check(results, budget="source")
    assert len(found.runs) == 2
    assert not found.failed
    assert {code for code, end in ends(found).items() if end == "n/a"} == {
        "C42",
        "C43",
        "C45",
        "C46",
        "C47",
        "C48",
        "C49",
        "C50",
        "C51",
    }
    assert len(check(results).runs) == 6


def test_all_is_told_as_json(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit("scores.chrf", 1.0)(results)
    assert main(["check", "--results", str(results), "--run", FIRST, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fair"] is False
    assert found["runs"] == [FIRST]
    assert [one["code"] for one in found["rules"]] == [rule.code for rule in RULES]
    (fault,) = next(one["faults"] for one in found["rules"] if one["code"] == "C25")
    assert fault["where"] == FIRST
    assert "chrf=1.0" in fault["what"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--results", "nowhere"], "nowhere: there is no such folder"),
        (["--run", "nothing"], "run 'nothing': there is none"),
        (["--run", "learned"], "2 runs begin so"),
        (["--budget", "source"], "no run with the budget 'source'"),
        (["--budget", "fair"], "'fair': allowed is controlled, source"),
    ],
)
def test_bad_input_is_one_line(
    valid: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["check", "--results", str(valid), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_empty_folder_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--results", str(tmp_path)]) == 2
    assert "there is no record in it" in capsys.readouterr().err


@pytest.mark.parametrize("variant", ["learned_positions", "counting_model:build"])
def test_a_run_that_was_trained_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    monkeypatch.setattr("harness.evidence.commit", lambda: {"digest": "a" * 40, "dirty": False})
    settings = replace(TRAINING, averaged_epochs=2, label_smoothing=0.1)
    recipe = None if ":" in variant else TINY
    record = training.run(spec(variant, recipe, training=settings, updates=12), tmp_path)
    assert record.status == "completed"
    found = check(tmp_path)
    assert not found.failed, found.failed
    untried = {code for code, end in ends(found).items() if end == "n/a" and code < "C40"}
    assert untried == ({"C28"} if recipe is None else set())


def test_it_loads_no_framework_and_no_tables(valid: Path) -> None:
    heavy = {"torch", "tensorflow", "jax", "keras", "spacy", "pandas", "matplotlib"}
    code = (
        "import sys\nfrom harness.__main__ import main\n"
        f"assert main(['check', '--results', {str(valid)!r}]) == 0\n"
        f"print('LOADED', sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n")


def test_nothing_is_downloaded_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setattr(multi30k, "_download", lambda missing: pytest.fail("it downloads"))
    assert at_hand(made_up()) is None
