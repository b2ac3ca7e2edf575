"""Exports the weights of a finished run for other libraries, with its vocabularies, tokenizers and a model card."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from harness.data.dataset import Dataset, of_run
from harness.evaluation.search import suppressed
from harness.experiments.serialization import to_json
from harness.experiments.specs import DecodingSpec
from harness.storage import files, tensors
from harness.storage.records import RunRecord
from harness.training import load, model_card
from impls import registry
from impls.baselines.protocol import Search
from impls.contract import Arrays

CARD = "README.md"


def export(record: RunRecord, results: Path, kind: str, folder: Path) -> None:
    """Write the weights of a run in the form of a library. After a failure nothing of it remains.

    - "ctranslate2": a folder for `ctranslate2.Translator`
    - "huggingface": a folder for `transformers.MarianMTModel.from_pretrained`
    - "safetensors": the weights under their canonical names and the recipe, for `impls.build`

    The record may come from an untrusted source.

    Raises:
        OSError, ValueError: The run has no weights, the library is not installed or cannot express the recipe, or the
            folder is not empty or cannot be written.
    """
    if kind in registry.EXPORTS:
        check_convertible(record, kind, advice="export --to safetensors takes any model")
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder}: expected a folder that does not exist or is empty")
    dataset = of_run(record)
    weights = load.stored_weights(record, results, dataset)
    with _new_folder(folder) as temporary:
        if kind == "safetensors":
            _write_canonical(record, dataset, weights, temporary)
        else:
            convert(record, dataset, weights, kind, temporary)
        _write_tokenizers(dataset, kind, temporary)
        files.write_bytes(temporary / CARD, model_card.text(record, dataset, kind).encode())


def check_convertible(record: RunRecord, kind: str, *, advice: str) -> None:
    """Raise ValueError if a library is not installed, or a run has no recipe; `advice` is what to do then."""
    registry.exporter(kind)
    if record.spec.recipe is None:
        raise ValueError(
            f"run {record.id}: its model is built by the external code {record.spec.variant!r}, and only recipes "
            f"can be converted for {kind}; {advice}"
        )


def convert(record: RunRecord, dataset: Dataset, weights: Arrays, kind: str, folder: Path) -> None:
    """Write the weights of a run in the form of a library into an existing folder.

    Raises: ValueError if the library cannot express the recipe, with the setting.
    """
    words, search = (dataset.source_words, dataset.target_words), search_settings(record.spec.decoding)
    try:
        registry.exporter(kind)(record.spec.recipe, weights, words, str(folder), search=search)
    except ValueError as error:
        raise ValueError(f"run {record.id} cannot be exported to {kind}: {error}") from error


def search_settings(decoding: DecodingSpec) -> Search:
    """Return the settings of a search as other libraries take them."""
    return Search(decoding.beam, decoding.max_tokens, decoding.length_penalty, suppressed(decoding))


def _write_canonical(record: RunRecord, dataset: Dataset, weights: Arrays, folder: Path) -> None:
    """Write the weights under their canonical names, and what `impls.build` needs."""
    recipe = record.spec.recipe
    tensors.write(folder / "model.safetensors", weights)
    configuration = {
        "variant": record.spec.variant,
        "family": recipe.family if recipe else None,
        "recipe": dataclasses.asdict(recipe) if recipe else None,
        "source_vocabulary_size": len(dataset.source_words),
        "target_vocabulary_size": len(dataset.target_words),
        "decoding": to_json(record.spec.decoding),
    }
    files.write_json(folder / "config.json", configuration)


def _write_tokenizers(dataset: Dataset, kind: str, folder: Path) -> None:
    """Write the vocabularies, words in the order of their ids, and the trained models of the tokenizers."""
    for side, words, model in (
        ("source", dataset.source_words, dataset.source_model),
        ("target", dataset.target_words, dataset.target_model),
    ):
        if kind != "ctranslate2":  # which has written them itself
            content = json.dumps(words, indent=1, ensure_ascii=False) + "\n"
            files.write_bytes(folder / f"{side}_vocabulary.json", content.encode())
        if model:
            files.write_bytes(folder / f"{side}_tokenizer.model", model)


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `folder` if the block succeeds and is removed otherwise.

    Raises: OSError, which names `folder`, if it or a file of the block cannot be written.
    """
    parent = next(path for path in folder.absolute().parents if path.is_dir())
    temporary = parent / f".export-{uuid.uuid4().hex[:12]}"
    try:
        temporary.mkdir()
        yield temporary
        for path in temporary.iterdir():  # safetensors writes files that only their owner can read
            path.chmod(0o644)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            folder.rmdir()
        temporary.rename(folder)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(folder)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
