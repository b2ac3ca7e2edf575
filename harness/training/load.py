"""Finds the variant of a new run, and loads the model of a finished one."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.dataset import Dataset, of_run
from harness.experiments import suites
from harness.experiments.overrides import check_used, override
from harness.experiments.specs import Budget, DataSpec, FileSpec, RunSpec, lengths_within
from harness.processes.environment_variables import worker_environment
from harness.processes.progress_display import Display
from harness.processes.workers import ProcessSettings
from harness.storage import locks, run_store
from harness.storage.records import RunRecord
from harness.text import brief, did_you_mean
from harness.training import reuse
from impls import registry
from impls.contract import Arrays, GruRecipe, Recipe, Seq2SeqModel, TorchReferenceRecipe, TransformerRecipe
from impls.recipes import RECIPES, TRAININGS, TUTORIAL
from impls.weights import shapes

TRAIN_AGAIN = "remove its folder and train it again, or train it in another folder of results"
"""A completed run is not trained again as long as its record is there."""


def find_variant(name: str) -> str:
    """Return `name` if it is a variant. The module of package.module:NAME may be in the current folder.

    Raises: ValueError if no variant has this name, with the closest one.
    """
    folder = os.getcwd()
    if ":" in name and folder not in sys.path:
        sys.path.insert(0, folder)
    suites.resolve(name)
    return name


def choose_backend(settings: Mapping[str, Any] | None) -> None:
    """Choose the backend of Keras that settings name, before the import of an external builder that imports Keras."""
    if isinstance(settings, Mapping) and settings.get("framework") == "keras":
        backend = settings.get("backend") or registry.BACKENDS[0]
        if backend in registry.BACKENDS:
            os.environ["KERAS_BACKEND"] = backend


def base_spec(
    recipe_or_builder: str | Recipe | Callable[..., Seq2SeqModel], suite: str | None, data: DataSpec, epochs: int
) -> RunSpec:
    """Return a run with seed 0 of a variant by its name, a recipe, or an importable function that builds a model.

    A variant has the size and training of `suite`, or else of its source. A recipe keeps its size; without a suite it
    has the training of the variant of its name, or else of the tutorials.

    Raises:
        ValueError: The first argument is something else, there is no such variant or suite, `epochs` is no number, or
            the module of the variant has changed since it was imported.
    """
    if suite is not None and suite not in suites.SUITES:
        names = list(suites.SUITES)
        raise ValueError(f"suite={suite!r}: expected one of {', '.join(names)}{did_you_mean(suite, names)}")
    if isinstance(epochs, np.integer):
        epochs = epochs.item()
    if not isinstance(epochs, int):
        raise ValueError(f"epochs={brief(epochs)}: expected a whole number")
    size = replace(suites.SUITES[suite or "standard"], epochs=epochs)
    budget: Budget = "controlled" if suite else "source"
    if isinstance(recipe_or_builder, TransformerRecipe | GruRecipe | TorchReferenceRecipe):
        recipe = recipe_or_builder
        suites.check_recipe(recipe)
        if suite is not None or RECIPES.get(recipe.name) != recipe:
            training = size.training if suite else TRAININGS.get(recipe.name, TUTORIAL)
            training = suites.shortened(training, epochs)
            settings: Any = {"training": training, "budget": budget, **lengths_within(recipe, data)}
            return RunSpec(variant=recipe.name or "recipe", recipe=recipe, **settings)
        recipe_or_builder = recipe.name
    if isinstance(recipe_or_builder, str):
        variant = find_variant(recipe_or_builder)
    elif hasattr(recipe_or_builder, "__qualname__"):
        module, name = recipe_or_builder.__module__, recipe_or_builder.__qualname__
        # A run remembers the digest of this file. Without it, a function that has changed would get the old run.
        if "<" in name or not getattr(sys.modules.get(module), "__file__", None):
            raise ValueError(
                f"{name!r} cannot be imported from a file, as a run needs it: write it into a module, such as mine.py, "
                "and give mine.build or 'mine:build'"
            )
        variant = find_variant(f"{module}:{name}")
    else:
        raise ValueError(f"{recipe_or_builder!r} is not a variant's name, a recipe or a function that builds a model")
    if ":" in variant:
        reuse.imported_digest(variant)
    return suites.spec(size, variant, budget=budget, seed=0, data=data)


def data_spec(corpus: str | None, files: Mapping[str, str | Path] | None) -> DataSpec:
    """Return the settings of a corpus: by default the captions, or "files" if there are any.

    Raises: ValueError if a name of `files` is unknown or missing, or `files` are given for another corpus.
    """
    corpus = corpus or ("files" if files else "captions")
    if corpus == "files":
        names = [field.name for field in fields(FileSpec)]
        # An empty target is that of a TSV file, as in `FileSpec`.
        given = {name: path for name, path in files.items() if path} if isinstance(files, Mapping) else {}
        is_path = all(isinstance(path, str | Path) for path in given.values())
        if not ({*names[:3]} <= {*given} <= {*names} and is_path):
            raise ValueError(
                f"files={brief(files)}: expected paths by the names {', '.join(names)}; the targets optional"
            )
        return DataSpec(corpus="files", files=FileSpec.located(given))
    if files:
        raise ValueError(f"files with corpus={corpus!r}: they are only for corpus='files'")
    name: Any = corpus
    return DataSpec(corpus=name, tokenizer="whitespace") if corpus == "captions" else DataSpec(corpus=name)


def with_settings(spec: RunSpec, seed: int, settings: Mapping[str, Any] | None) -> RunSpec:
    """Return a run with a seed, and with settings by their dotted names. Raises: ValueError, as `override`."""
    if not isinstance(settings, Mapping | None):
        raise ValueError(f"settings: expected names and values, as {{'recipe.dropout': 0.3}}, not {brief(settings)}")
    for name, advice in (
        ("variant", "the variant is no setting; give it as the first argument"),
        ("seed", "the seed is no setting; give seed=..."),
        ("budget", "the budget is no setting; choose it with or without suite"),
        ("data.corpus", "data.corpus: give corpus=..., which also chooses the tokenizer"),
    ):
        if name in (settings or {}):
            raise ValueError(f"settings: {advice}")
    values = {"seed": seed, **(settings or {})}
    changed = override(spec, [f"{name}={'none' if value is None else value}" for name, value in values.items()])
    for name in values:
        check_used([changed], name)
    return changed


def finished_or_trained(spec: RunSpec, results: Path, note: str) -> RunRecord:
    """Return the record of a run, which is trained in this process if it is not finished. Raises: as `train.run`."""
    os.environ.update(worker_environment(spec))
    from harness.training import train

    if finished := reuse.reusable_records(results, [spec]):  # without a lock: the folder may be read-only
        return finished[0]
    settings = ProcessSettings(note=note, command="harness.run")
    with locks.hold(results, spec.id), contextlib.closing(Display.of_session(spec)) as display:
        return train.run(spec, results, settings, progress=display)


def load_model(
    record: RunRecord, results: Path, dataset: Dataset, *, device: str, import_builder: bool = False
) -> Seq2SeqModel:
    """Build the model of a run and load its stored weights; it multiplies without CUDA graphs in full precision.

    The record may come from an untrusted source; `import_builder` is whether code that it names may be imported and
    executed.

    Raises:
        ValueError: The weights are missing or damaged, do not have the shapes of the recipe, or the record names an
            external builder and `import_builder` is false.
    """
    from harness.training.train import build_model

    spec = replace(record.spec, cuda_graphs="off", matmul_precision="highest", device=device)
    if spec.recipe is None and not import_builder:
        raise ValueError(
            f"run {record.id}: its model is built by the external code {spec.variant!r}; --import-builder imports "
            "and executes it (in Python: import_builder=True)"
        )
    weights = stored_weights(record, results, dataset)
    os.environ.update(worker_environment(spec))  # before the import of an external builder, which may import Keras
    if spec.recipe is None:
        find_variant(spec.variant)
    model = build_model(spec, dataset)
    try:
        model.set_weights(weights)
    except ValueError as error:
        if not reuse.has_other_builder(record):
            raise
        raise ValueError(f"{reuse.other_builder(record)}, and its weights do not fit: {error}") from error
    return model


def stored_weights(record: RunRecord, results: Path, dataset: Dataset) -> Arrays:
    """Return the stored weights of a run.

    Raises:
        ValueError: They are missing or damaged, do not have the shapes of the recipe, or the dataset has other
            vocabularies than the run.
    """
    if not run_store.has(results, record.id, run_store.WEIGHTS):
        raise ValueError(
            f"run {record.id}: {results} does not have its weights; published runs have none: {TRAIN_AGAIN}"
        )
    for name in ("source_vocabulary", "target_vocabulary"):
        if record.fingerprints.get(name) != dataset.digests[name]:
            raise ValueError(
                f"run {record.id}: its corpus has another {name.replace('_', ' ')} here than in training: the text, or "
                f"a tokenizer's library, has changed; use the versions in its record, or {TRAIN_AGAIN}"
            )
    weights = run_store.load_weights(results, record.id, record.fingerprints.get("trained_weights"))
    recipe = record.spec.recipe
    stored = {name: array.shape for name, array in weights.items()}
    if recipe is not None and stored != dict(shapes(recipe, *dataset.vocabulary_sizes)):
        raise ValueError(f"run {record.id}: the shapes of its weights are not those of its recipe and vocabularies")
    return weights


def stored_model(
    record: RunRecord, results: Path, device: str, *, import_builder: bool = False
) -> tuple[Dataset, Seq2SeqModel]:
    """Return the corpus and the model of a run; the last eight stay in memory. Raises: as `load_model`.

    A warning says if the module of its builder has changed.
    """
    weights = record.fingerprints.get("trained_weights")
    with locks.alone():
        loaded = _stored_model(record.id, weights, results.resolve(), device, import_builder)
    if reuse.has_other_builder(record):
        warnings.warn(reuse.other_builder(record), stacklevel=3)
    return loaded


@functools.lru_cache(maxsize=8)
def _stored_model(
    run_id: str, weights: str | None, results: Path, device: str, import_builder: bool
) -> tuple[Dataset, Seq2SeqModel]:
    """Return what `stored_model` returns; `weights` is the digest of the weights, which another training changes."""
    record = run_store.find(results, run_id)
    if record.fingerprints.get("trained_weights") != weights:
        raise ValueError(f"run {run_id}: it was trained again since its record was read; read it again")
    dataset = of_run(record)
    return dataset, load_model(record, results, dataset, device=device, import_builder=import_builder)
