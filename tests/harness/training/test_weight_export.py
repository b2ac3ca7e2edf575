"""Exported weights, loaded and used as their model card says, translate like the run they come from."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_models import GRU
from small_runs import DATA
from stored_weights import LEARNED, stored

from harness.data.dataset import Dataset, prepare
from harness.evaluation.search import translate
from harness.experiments.specs import DecodingSpec, LengthFormula
from harness.training import load, model_card, weight_export
from impls import registry
from impls.contract import Recipe

pytestmark = pytest.mark.usefixtures("single_thread", "cache")

SENTENCES = 100
JOINT = replace(LEARNED, tying="all", positions="sinusoidal")
CONVERTED: tuple[tuple[str, Recipe], ...] = (
    *(("huggingface", recipe) for recipe in (LEARNED, JOINT)),
    *(("ctranslate2", recipe) for recipe in (LEARNED, JOINT)),
    *(("safetensors", recipe) for recipe in (LEARNED, GRU)),
)
"""Kinds of files and recipes; tests/impls/test_baselines.py converts every recipe that the libraries support."""


def needs(kind: str) -> str:
    reason = registry.missing_baseline(registry.EXPORTS[kind]) if kind in registry.EXPORTS else ""
    if reason:
        pytest.skip(reason)
    return kind


def code(folder: Path) -> str:
    """Return the code of the model card, without its example sentences."""
    card = (folder / weight_export.CARD).read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", card, re.MULTILINE | re.DOTALL)
    without, count = re.subn(r"^sentences = .*\n", "", block, flags=re.MULTILINE)
    assert count == 1
    return without


def in_words(prepared: Dataset) -> list[list[str]]:
    return [[prepared.source_words[token] for token in ids[1:-1]] for ids in prepared.test.source[:SENTENCES]]


@pytest.mark.parametrize(("kind", "recipe"), CONVERTED, ids=lambda value: value if isinstance(value, str) else "")
def test_export_translates_like_the_run(
    kind: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs(kind)
    record, folder = stored(tmp_path, recipe), tmp_path / "exported"
    weight_export.export(record, tmp_path, kind, folder)
    prepared = prepare(record.spec.data)
    model = load.load_model(record, tmp_path, prepared, device="cpu")
    decoded = translate(model, prepared.test.source[:SENTENCES], record.spec.decoding)
    expected = [[prepared.target_words[token] for token in line.tokens] for line in decoded.translations]
    assert len(set(map(tuple, expected))) > SENTENCES / 10, "translations must depend on the sources"
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"sentences": in_words(prepared)}
    exec(code(folder), names)
    assert names["translations"] == expected
    assert f"{expected}\n" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["ctranslate2", "huggingface", "safetensors"])
def test_export_has_vocabularies_and_a_card_without_scores(kind: str, tmp_path: Path) -> None:
    needs(kind)
    record, folder = stored(tmp_path), tmp_path / "new" / "exported"
    weight_export.export(record, tmp_path, kind, folder)
    prepared = prepare(record.spec.data)
    for side, words in (("source", prepared.source_words), ("target", prepared.target_words)):
        stored_words = json.loads((folder / f"{side}_vocabulary.json").read_text(encoding="utf-8"))
        assert stored_words == list(words)
    card = (folder / weight_export.CARD).read_text(encoding="utf-8")
    for part in (
        record.id,
        'language: ["de", "en"]',
        '"positions": "learned"',
        '"batch_size": 32',
        "200 training pairs",
    ):
        assert part in card
    assert "1 epoch, 227 updates; weights of epoch 1." in card
    assert "`0123456789abcdef`" in card
    assert "Run this in the folder of this card:\n\n```python\n" in card  # its paths are relative
    assert ("length_penalty=0.6," in card) == (kind == "ctranslate2")
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in folder.iterdir()), "readable by all"
    assert "test_split" not in card, "only Multi30k has several test sets"
    assert not re.search("31.4|bleu|perplexity", card, re.IGNORECASE)
    weight_export.export(replace(record, chosen_epochs=[1, 2]), tmp_path, kind, tmp_path / "averaged")
    averaged = (tmp_path / "averaged" / weight_export.CARD).read_text(encoding="utf-8")
    assert "1 epoch, 227 updates; mean of the weights of epochs 1 and 2." in averaged


@pytest.mark.parametrize(("direction", "first"), [("de-en", "ein"), ("en-de", "a")])
def test_example_of_a_card_is_in_the_source_language(direction: str, first: str, tmp_path: Path) -> None:
    record, folder = stored(tmp_path, data=replace(DATA, direction=direction)), tmp_path / "exported"
    weight_export.export(record, tmp_path, "safetensors", folder)
    assert f'sentences = [["{first}", ' in (folder / weight_export.CARD).read_text(encoding="utf-8")


@pytest.mark.parametrize(("formula", "differs"), [("wu", True), ("power", False)])
def test_card_says_whether_libraries_divide_by_another_function_of_the_length(
    formula: LengthFormula, differs: bool, tmp_path: Path
) -> None:
    record = stored(tmp_path, decoding=DecodingSpec(beam=5, length_formula=formula))
    card = model_card.text(record, prepare(record.spec.data), "ctranslate2")
    assert ("another function of the length" in card) == differs


@pytest.mark.parametrize("side", ["source", "target"])
def test_export_with_another_vocabulary_than_in_training_is_refused(side: str, tmp_path: Path) -> None:
    record = stored(tmp_path)
    changed = replace(record, fingerprints={**record.fingerprints, f"{side}_vocabulary": "0" * 64})
    with pytest.raises(ValueError, match=f"its corpus has another {side} vocabulary here than in training"):
        weight_export.export(changed, tmp_path, "safetensors", tmp_path / "exported")


def test_export_of_subwords_has_the_models_of_the_tokenizers(tmp_path: Path) -> None:
    pytest.importorskip("sentencepiece")
    data = replace(DATA, tokenizer="sentencepiece-bpe", vocabulary_size=300)
    record = stored(tmp_path, data=data)
    weight_export.export(record, tmp_path, "safetensors", tmp_path / "exported")
    assert (tmp_path / "exported" / "source_tokenizer.model").read_bytes() == prepare(data).source_model
    assert "the pieces of *_tokenizer.model" in (tmp_path / "exported" / weight_export.CARD).read_text()


def test_export_of_an_external_builder_has_its_weights_alone(tmp_path: Path) -> None:
    record, folder = stored(tmp_path, None), tmp_path / "exported"
    record = replace(record, fingerprints={**record.fingerprints, "builder": "0123" * 16})
    weight_export.export(record, tmp_path, "safetensors", folder)
    assert json.loads((folder / "config.json").read_text())["recipe"] is None
    card = (folder / weight_export.CARD).read_text(encoding="utf-8")
    assert "build the model with `counting_model:build`" in card
    assert f"`counting_model:build` builds it. It is in a file with the SHA-256 `{'0123' * 16}`." in card
    assert "null" not in card.partition("## Corpus")[0]
    assert not re.search("impls.build|translations of Bakeoff", card)
    needs("ctranslate2")
    with pytest.raises(ValueError, match="only recipes can be converted .*; export --to safetensors takes any"):
        weight_export.export(record, tmp_path, "ctranslate2", tmp_path / "other")


# Failures -------------------------------------------------------------------------------------------------------------


def test_export_into_a_folder_that_cannot_be_made_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    record = stored(tmp_path, LEARNED)
    monkeypatch.setattr(Path, "mkdir", no_space)
    with pytest.raises(OSError, match="No space left on device") as raised:
        weight_export.export(record, tmp_path, "safetensors", tmp_path / "exported")
    assert raised.value.filename == str(tmp_path / "exported")


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    ("kind", "recipe", "message"),
    [
        ("ctranslate2", replace(LEARNED, positions="alibi"), "to ctranslate2: CTranslate2 with positions='alibi'"),
        ("ctranslate2", replace(LEARNED, head_width=6), "CTranslate2 with head_width=6: it needs"),
        ("ctranslate2", GRU, "CTranslate2 implements Transformers, not the 'gru' recipe"),
        ("huggingface", replace(LEARNED, norm_order="pre"), "to huggingface: Marian with norm_order='pre'"),
        (
            "huggingface",
            replace(LEARNED, ffn="gated"),
            "Marian with ffn='gated': it implements only 'linear', 'conv1d'",
        ),
        ("huggingface", replace(LEARNED, norm="handmade"), "Marian with norm_epsilon=1e-09: the library has only"),
    ],
)
def test_export_of_a_recipe_that_the_library_lacks_names_the_setting(
    kind: str, recipe: Recipe, message: str, tmp_path: Path
) -> None:
    needs(kind)
    record = stored(tmp_path, recipe)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        weight_export.export(record, tmp_path, kind, tmp_path / "new" / "exported")
    assert contents(tmp_path) == before


def test_export_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = stored(tmp_path)
    (tmp_path / "empty").mkdir()
    before = contents(tmp_path)

    def fail(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model_card, "text", fail)
        for name in ("exported", "empty", "new/exported"):
            with pytest.raises(OSError, match="No space left") as raised:
                weight_export.export(record, tmp_path, "safetensors", tmp_path / name)
            assert raised.value.filename == str(tmp_path / name)
    assert contents(tmp_path) == before
    weight_export.export(record, tmp_path, "safetensors", tmp_path / "empty")
    assert contents(tmp_path / "empty") == [
        weight_export.CARD,
        "config.json",
        "model.safetensors",
        "source_vocabulary.json",
        "target_vocabulary.json",
    ]


def test_export_into_a_used_place_is_refused(tmp_path: Path) -> None:
    record = stored(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").write_text("kept")
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    before = contents(tmp_path)
    for name in ("file", "used", "link"):
        with pytest.raises(ValueError, match=f"{name}: expected a folder that does not exist or is empty"):
            weight_export.export(record, tmp_path, "safetensors", tmp_path / name)
    assert contents(tmp_path) == before


def test_export_without_weights_or_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = stored(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"'ctranslate2' is not installed: python -m pip install"):
            weight_export.export(record, tmp_path, "ctranslate2", tmp_path / "exported")
    (tmp_path / record.id / "weights.safetensors").unlink()
    with pytest.raises(ValueError, match="published runs have none: remove its folder and train it again"):
        weight_export.export(record, tmp_path, "safetensors", tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def test_card_quotes_foreign_text(tmp_path: Path) -> None:
    record = stored(tmp_path, replace(LEARNED, name="x\n```\n# heading\u202e"))
    card = model_card.text(record, prepare(record.spec.data), "safetensors")
    assert "\n# heading" not in card
    assert "\u202e" not in card
    assert card.count("\n```") == 8
