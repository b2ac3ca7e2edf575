"""Runs scored again from their tokens: records of an earlier version get the current text, scores, counts and seal."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import ROOT
from record_folders import SCHEDULE, folder_spec, write_run

from harness.cli.main import main
from harness.data.dataset import Dataset, moses_tokens, of_run, prepare
from harness.evaluation.evaluate import test_scores as scores_of
from harness.evaluation.metrics import as_version_1, score
from harness.evaluation.rescoring import NOTE
from harness.experiments.specs import ADDED_FIELDS, DecodingSpec
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.storage.run_store import Hypothesis
from impls.contract import SPECIAL_TOKENS, UNK

PUBLISHED = ROOT / "results" / "published"
RUN = folder_spec(
    "learned_positions",
    0,
    training=replace(SCHEDULE, batching="length"),
    decoding=DecodingSpec(max_tokens=40, unknown="allowed"),
)
UNKNOWN = SPECIAL_TOKENS[UNK]


def edited(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a record that has no seal."""
    value = json.loads((folder / run_store.RECORD).read_text(encoding="utf-8"))
    value.pop(run_store.SEAL, None)
    change(value)
    files.write_json(folder / run_store.RECORD, value)


def as_earlier(results: Path, record: RunRecord, prepared: Dataset) -> RunRecord:
    """Store a run as version 1 did: unknown words spelled out in the text, fewer fields and scores, no seal."""
    hypotheses = run_store.load_hypotheses(results, record.id)
    for hypothesis in hypotheses[::3]:
        tokens = (UNKNOWN, *hypothesis.tokens[1:])
        hypotheses[hypothesis.sentence] = Hypothesis(hypothesis.sentence, tokens, f"{UNKNOWN} {hypothesis.text}")
    scores = as_version_1(scores_of(prepared, hypotheses, "allowed"))
    sentences = run_store.load_sentences(results, record.id)
    digests = {
        "hypotheses": run_store.save_hypotheses(results, record.id, hypotheses),
        "sentences": run_store.save_sentences(results, record.id, {**sentences, **scores.statistics}),
    }

    def change(value: dict[str, Any]) -> None:
        value["schema"] = 1
        for part, name in ADDED_FIELDS:
            value["spec"][part].pop(name, None)
        del value["decode"]["unknown_tokens"], value["scores"]["brevity_penalty"]
        value["scores"] |= scores.values
        value["signatures"] = scores.signatures
        value["fingerprints"] |= digests

    edited(run_store.run_folder(results, record.id), change)
    earlier = run_store.load_record(results, record.id)
    assert earlier is not None
    return earlier


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    results = tmp_path_factory.mktemp("earlier")
    return results, as_earlier(results, write_run(results, RUN), prepare(RUN.data))


@pytest.fixture
def results(earlier: tuple[Path, RunRecord], tmp_path: Path) -> Path:
    shutil.copytree(earlier[0], tmp_path / "results")
    return tmp_path / "results"


def rescore(results: Path) -> int:
    return main(["score", "--rescore", "--results", str(results)])


def test_score_record_of_version_1_agrees(results: Path, earlier: tuple[Path, RunRecord], capsys: Any) -> None:
    assert earlier[1].spec == RUN
    assert earlier[1].id == RUN.id
    assert main(["score", "--results", str(results)]) == 0
    output = capsys.readouterr().out
    assert "every score agrees" in output
    assert "made by an earlier version" in output


def test_rescore_writes_text_scores_counts_and_seal(
    results: Path, earlier: tuple[Path, RunRecord], capsys: Any
) -> None:
    before, folder = earlier[1], results / RUN.id
    tokens = [hypothesis.tokens for hypothesis in run_store.load_hypotheses(results, RUN.id)]
    old = json.loads((folder / run_store.RECORD).read_text(encoding="utf-8"))
    losses = run_store.load_sentences(results, RUN.id)
    assert rescore(results) == 0
    count = sum(sentence.count(UNKNOWN) for sentence in tokens)
    assert f"{count:,} texts changed, {count:,} unknown tokens" in capsys.readouterr().out

    new = json.loads((folder / run_store.RECORD).read_text(encoding="utf-8"))
    assert new["schema"] == 2
    assert new[run_store.SEAL] == files.seal(new)
    changed = {"schema", "spec", "note", "fingerprints", "scores", "signatures", "decode", run_store.SEAL}
    assert {name for name in new if new[name] != old.get(name)} == changed
    digests = {name for name, digest in new["fingerprints"].items() if digest != old["fingerprints"][name]}
    assert digests == {"hypotheses", "sentences"}
    record = run_store.load_record(results, RUN.id)
    assert record is not None
    assert (record.id, record.spec, record.note) == (RUN.id, RUN, NOTE)
    assert record.environment == before.environment
    hypotheses = run_store.load_hypotheses(results, RUN.id, record.fingerprints["hypotheses"])
    assert [hypothesis.tokens for hypothesis in hypotheses] == tokens
    assert not any(UNKNOWN in hypothesis.text for hypothesis in hypotheses)
    assert sum(hypothesis.text.count("⁇") for hypothesis in hypotheses) == record.decode["unknown_tokens"] == count
    expected = scores_of(prepare(RUN.data), hypotheses, "allowed")
    assert {name: record.scores[name] for name in expected.values} == expected.values
    assert record.signatures == expected.signatures
    assert record.scores["bleu_tutorial"] == before.scores["bleu_tutorial"]
    assert record.scores["bleu_sacre"] > before.scores["bleu_sacre"]  # type: ignore[operator]
    arrays = run_store.load_sentences(results, RUN.id, record.fingerprints["sentences"])
    for name, array in (losses | expected.statistics).items():
        assert np.array_equal(arrays[name], array)
    assert main(["check", "--results", str(results)]) == 0, capsys.readouterr().out


def test_rescore_again_writes_nothing(results: Path, capsys: Any) -> None:
    assert rescore(results) == 0
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results.rglob("*") if path.is_file()}
    assert rescore(results) == 0
    assert "up to date, nothing written" in capsys.readouterr().out
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before


def with_value(*path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Return a change of one field of a record; None removes it."""

    def change(record: dict[str, Any]) -> None:
        *parents, name = path
        for parent in parents:
            record = record[parent]
        if value is None:
            del record[name]
        else:
            record[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_value("scores", "chrf", value=99.0), "chrf="),
        (with_value("signatures", "chrf", value="nrefs:1|nw:2"), "the signature of chrf is"),
        (with_value("environment", "versions", "sacrebleu", value="99.0"), "scored with sacrebleu 99.0, installed is"),
        (with_value("fingerprints", "tokenised", value="0" * 64), "tokenised of the corpus here is not that of"),
        (with_value("fingerprints", "hypotheses", value=None), "its record has no digest of hypotheses.jsonl"),
    ],
)
def test_rescore_with_foreign_scores_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, results: Path, capsys: Any
) -> None:
    edited(results / RUN.id, change)
    before = {path: path.read_bytes() for path in results.rglob("*") if path.is_file()}
    assert rescore(results) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before


def test_rescore_with_foreign_translations_is_refused(results: Path, capsys: Any) -> None:
    path = results / RUN.id / run_store.HYPOTHESES
    path.write_bytes(path.read_bytes().replace(b"a", b"b", 1))
    assert rescore(results) == 2
    assert "hypotheses.jsonl" in capsys.readouterr().err


def test_rescore_with_sentences_is_refused(results: Path, capsys: Any) -> None:
    assert main(["score", "--rescore", "--sentences", "--results", str(results)]) == 2
    assert "give either --rescore or --sentences" in capsys.readouterr().err


# The published records ------------------------------------------------------------------------------------------------

FOLDERS = (PUBLISHED, PUBLISHED / "ablation")
STAND_INS = ("ꙮ", "☐", "ß", "¤")
"""Letters and signs that no reference of Multi30k has. Moses treats an unknown word as a word of letters."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_published_records_state_the_use_of_unk(folder: Path) -> None:
    for record in run_store.records(folder):
        assert record.note == (NOTE if "weights_after" not in record.fingerprints else "")
        unknown = f"|unk:{record.spec.decoding.unknown}"
        assert all(signature.endswith(unknown) for signature in record.signatures.values())
        hypotheses = run_store.load_hypotheses(folder, record.id, record.fingerprints["hypotheses"])
        count = record.decode["unknown_tokens"]
        assert count == sum(hypothesis.tokens.count(UNKNOWN) for hypothesis in hypotheses)
        assert count == sum(hypothesis.text.count("⁇") for hypothesis in hypotheses)
        assert not any(UNKNOWN in hypothesis.text for hypothesis in hypotheses)
        words, reference_words = run_store.load_sentences(folder, record.id)["bleu_sacre"][:, :2].sum(axis=0)
        expected = min(1.0, math.exp(1 - reference_words / words))
        assert record.scores["brevity_penalty"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.usefixtures("multi30k_folder")
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_scores_do_not_depend_on_the_character_for_unk(folder: Path) -> None:
    for number, record in enumerate(run_store.records(folder)):
        prepared, stand_in = of_run(record), STAND_INS[number % len(STAND_INS)]
        assert not any(character in text for text in prepared.test_target_text for character in (stand_in, "⁇"))
        hypotheses = run_store.load_hypotheses(folder, record.id)
        texts = [hypothesis.text.replace("⁇", stand_in) for hypothesis in hypotheses]
        values = score(
            [hypothesis.tokens for hypothesis in hypotheses],
            prepared.test_target_tokens,
            texts=texts,
            reference_texts=prepared.test_target_text,
            moses=moses_tokens(prepared, texts) if stand_in.isalpha() else None,
            reference_moses=prepared.test_target_moses if stand_in.isalpha() else None,
            case=prepared.data.case,
            unknown=record.spec.decoding.unknown,
        ).values
        assert {name: record.scores[name] for name in values} == pytest.approx(values, rel=0, abs=1e-9)


def test_tutorial_seeds_differ_by_a_fifth_of_a_bleu_point() -> None:
    scores = [
        record.scores["bleu_sacre"]
        for record in run_store.records(PUBLISHED)
        if (record.spec.variant, record.spec.budget) == ("learned_positions", "source")
    ]
    assert len(scores) == 3
    assert statistics.stdev(map(float, scores)) == pytest.approx(0.195, abs=0.005)  # type: ignore[arg-type]
