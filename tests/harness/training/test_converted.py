"""Translating with converted weights: equal translations, our length penalty, and the folder that keeps them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stored_weights import LEARNED, stored

from harness.audit import rules
from harness.data.dataset import Dataset, prepare
from harness.evaluation import search
from harness.experiments.specs import DecodingSpec
from harness.storage import leftovers, run_store
from harness.storage.records import RunRecord
from harness.training import converted, load, weight_export
from impls import registry
from impls.baselines.protocol import Candidate
from impls.contract import EOS, UNK

pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.usefixtures("single_thread", "cache")

SENTENCES = 100
FILES = ["config.json", "contents.json", "model.bin", "source_vocabulary.json", "target_vocabulary.json"]


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


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the runs whose weights have been converted since."""
    runs: list[str] = []
    convert = weight_export.convert

    def counting(record: RunRecord, dataset: Dataset, *rest: Any) -> None:
        runs.append(record.id)
        convert(record, dataset, *rest)

    monkeypatch.setattr(weight_export, "convert", counting)
    return runs


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


# The folder of converted weights --------------------------------------------------------------------------------------


def test_weights_are_converted_once_and_the_folder_is_no_file_of_the_run(
    tmp_path: Path, conversions: list[str]
) -> None:
    record = stored(tmp_path)
    (tmp_path / record.id / "hypotheses.jsonl").write_bytes(b"")
    before = rules.failures(rules.check(tmp_path))
    first = translated(record, tmp_path)
    assert translated(record, tmp_path) == first
    assert conversions == [record.id]
    assert sorted(os.listdir(tmp_path / record.id / converted.KIND)) == FILES
    assert rules.failures(rules.check(tmp_path)) == before
    assert [run.id for run in run_store.records(tmp_path)] == [record.id]
    assert not list(leftovers.of_results(tmp_path))


@pytest.mark.parametrize("name", FILES)
def test_damaged_folder_is_converted_again(name: str, tmp_path: Path, conversions: list[str]) -> None:
    record = stored(tmp_path)
    first, path = translated(record, tmp_path), tmp_path / record.id / converted.KIND / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert translated(record, tmp_path) == first
    path.unlink()
    assert translated(record, tmp_path) == first
    assert len(conversions) == 3
    assert path.read_bytes() == content


def test_folder_of_other_weights_is_converted_again(tmp_path: Path, conversions: list[str]) -> None:
    record = stored(tmp_path)
    first = translated(record, tmp_path)
    again = biased(record, tmp_path)
    with pytest.raises(ValueError, match=r"weights\.safetensors: damaged"):  # the record is that of the first ones
        translated(record, tmp_path)
    second = translated(again, tmp_path)
    assert second != first
    assert [line.tokens for line in second] == [line.tokens for line in natively(again, tmp_path, record.spec.decoding)]
    assert len(conversions) == 2


def test_folder_does_not_stand_in_for_weights_or_the_corpus(tmp_path: Path) -> None:
    record = stored(tmp_path)
    translated(record, tmp_path)
    changed = replace(record, fingerprints={**record.fingerprints, "target_vocabulary": "0" * 64})
    with pytest.raises(ValueError, match="its corpus has another target vocabulary here than in training"):
        translated(changed, tmp_path)
    (tmp_path / record.id / run_store.WEIGHTS).unlink()
    with pytest.raises(ValueError, match="does not have its weights"):
        translated(record, tmp_path)


def test_published_results_and_links_are_not_written_to(tmp_path: Path, conversions: list[str]) -> None:
    published = tmp_path / run_store.PUBLISHED
    record = stored(published)
    before = sorted(published.rglob("*"))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / record.id).symlink_to(published / record.id)
    for results in (published, tmp_path / "linked"):
        assert [line.tokens for line in translated(record, results)] == [
            line.tokens for line in natively(record, results, record.spec.decoding)
        ]
    assert sorted(published.rglob("*")) == before
    assert len(conversions) == 2


def test_folder_that_is_a_link_is_neither_followed_nor_replaced(tmp_path: Path, conversions: list[str]) -> None:
    record = stored(tmp_path)
    folder = tmp_path / record.id / converted.KIND
    first = translated(record, tmp_path)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert translated(record, tmp_path) == first
    assert len(conversions) == 2
    assert folder.is_symlink()


# Refusals -------------------------------------------------------------------------------------------------------------


def test_recipe_that_the_library_lacks_is_refused_by_its_setting(tmp_path: Path) -> None:
    record = stored(tmp_path, replace(LEARNED, positions="rotary"))
    with pytest.raises(ValueError, match=r"CTranslate2 with positions='rotary': it implements only 'learned'"):
        translated(record, tmp_path)
    assert not (tmp_path / record.id / converted.KIND).exists()
