"""Translating with converted weights: equal translations, our length penalty, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_weights import LEARNED, stored

from harness.data.dataset import prepare
from harness.evaluation import search
from harness.experiments.specs import DecodingSpec
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import converted, load
from impls import registry
from impls.baselines.protocol import Candidate
from impls.contract import EOS, UNK

pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.usefixtures("single_thread", "cache")

SENTENCES = 100


def translated(record: RunRecord, results: Path, decoding: DecodingSpec | None = None) -> Sequence[search.Translation]:
    """Translate test sentences in float32."""
    prepared = prepare(record.spec.data)
    translate = converted.translator(record, results, prepared, device="cpu", compute_type="float32")
    return translate(prepared.test.source[:SENTENCES], decoding or record.spec.decoding).translations


def natively(record: RunRecord, results: Path, decoding: DecodingSpec) -> Sequence[search.Translation]:
    prepared = prepare(record.spec.data)
    model = load.load_model(record, results, prepared, device="cpu")
    return search.translate(model, prepared.test.source[:SENTENCES], decoding).translations


def biased(record: RunRecord, results: Path) -> RunRecord:
    """Store other weights for a run, with which translations end early and may contain <unk>, and return its record."""
    weights = run_store.load_weights(results, record.id)
    weights["output.bias"][[UNK, EOS]] += (3.0, 4.0)
    digest = run_store.save_weights(results, record.id, weights)
    return replace(record, fingerprints={**record.fingerprints, "trained_weights": digest})


@pytest.mark.parametrize(("chosen", "used"), [(None, "0"), ("1", "1")])
def test_translator_in_float32_does_without_mkl_unless_told(
    chosen: str | None, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CT2_USE_MKL", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CT2_USE_MKL", chosen)
    translated(stored(tmp_path), tmp_path)
    assert os.environ["CT2_USE_MKL"] == used


# Translations ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unknown", ["never", "allowed"])
def test_greedy_translations_are_the_native_ones(unknown: Any, tmp_path: Path) -> None:
    record = biased(stored(tmp_path), tmp_path)
    decoding = replace(record.spec.decoding, unknown=unknown)
    expected, actual = natively(record, tmp_path, decoding), translated(record, tmp_path, decoding)
    assert [line.tokens for line in actual] == [line.tokens for line in expected]
    assert [line.finished for line in actual] == [line.finished for line in expected]
    assert len({line.tokens for line in actual}) > SENTENCES / 10, "translations must depend on the sources"
    assert any(UNK in line.tokens for line in actual) == (unknown == "allowed")


def test_beam_search_is_mostly_the_native_one(tmp_path: Path) -> None:
    record = biased(stored(tmp_path), tmp_path)
    decoding = replace(record.spec.decoding, beam=4)
    pairs = list(zip(natively(record, tmp_path, decoding), translated(record, tmp_path, decoding), strict=True))
    equal = [(ours, theirs) for ours, theirs in pairs if ours.finished and ours.tokens == theirs.tokens]
    assert len(equal) > SENTENCES / 2
    # The library normalises over the tokens that may be chosen, which makes them more probable.
    gains = [theirs.log_probability - ours.log_probability for ours, theirs in equal]
    assert 0 < min(gains) < max(gains) < 0.2


@pytest.mark.parametrize(("formula", "chosen"), [("wu", (5,)), ("power", (6, 6, 6))])
def test_hypotheses_are_ranked_by_the_length_formula(
    formula: Any, chosen: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Model:
        def candidates(self, sources: Any, **_: Any) -> list[list[Candidate]]:
            # Per length: wu -1 / (7/6) = -0.86 and -1.5 / (9/6) = -1; power -1 / 2 = -0.5 and -1.5 / 4 = -0.375
            found = [Candidate((6, 6, 6), -1.5, True), Candidate((5,), -1.0, True), Candidate((7, 7, 7), -0.1, False)]
            return [found for _ in sources]

    monkeypatch.setattr(registry, "load_exported", lambda *_, **__: Model())
    record = stored(tmp_path)
    decoding = replace(record.spec.decoding, beam=3, length_penalty=1.0, length_formula=formula)
    assert {line.tokens for line in translated(record, tmp_path, decoding)} == {chosen}


# Weights --------------------------------------------------------------------------------------------------------------


def test_weights_and_corpus_must_be_those_of_the_record_and_nothing_is_kept(tmp_path: Path) -> None:
    record = stored(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    translated(record, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
    changed = replace(record, fingerprints={**record.fingerprints, "target_vocabulary": "0" * 64})
    with pytest.raises(ValueError, match="its corpus has another target vocabulary here than in training"):
        translated(changed, tmp_path)
    biased(record, tmp_path)
    with pytest.raises(ValueError, match=r"weights\.safetensors: damaged"):  # the record is that of the first ones
        translated(record, tmp_path)
    (tmp_path / record.id / run_store.WEIGHTS).unlink()
    with pytest.raises(ValueError, match="does not have its weights"):
        translated(record, tmp_path)


# Refusals -------------------------------------------------------------------------------------------------------------


def test_recipe_that_the_library_lacks_is_refused_by_its_setting(tmp_path: Path) -> None:
    record = stored(tmp_path, replace(LEARNED, positions="alibi"))
    with pytest.raises(ValueError, match=r"CTranslate2 with positions='alibi': it implements only 'learned'"):
        translated(record, tmp_path)
