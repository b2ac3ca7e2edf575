"""The process of one framework: `python -m keras_worker FOLDER BACKEND` does the tasks that BACKEND.json names."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import parity_cases
import pytest
from keras_plants import planted
from parity_cases import case, measured
from small_models import MAX_LENGTH, SOURCE_WORDS, all_recipes, target_words
from worker_tasks import PATIENCE_SECONDS, Task, answer, read

import impls
from harness.conformance.law_runner import LAWS, check_subject, for_variant
from harness.conformance.models_under_test import SIZES, ModelUnderTest, dropping, padded
from impls import registry
from impls.contract import EOS, PAD, SOS, Arrays, Batch, Recipe, Seq2SeqModel, Training

FRAMEWORKS = {"torch", "tensorflow", "jax"}
Found = tuple[Arrays, dict[str, Any]]

DROPOUT_RATES: dict[str, dict[str, float]] = {
    "attention": {"attention_dropout": 0.5, "activation_dropout": 0.0},
    "activation": {"attention_dropout": 0.0, "activation_dropout": 0.5},
    "all": {"dropout": 0.5},
    "all, in words": {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5},
    "all but attention": {"dropout": 0.5, "attention_dropout": 0.0},
    "all but activation": {"dropout": 0.5, "activation_dropout": 0.0},
}
MUTED = {"nothing": (), "attention": (".self.output.kernel", ".cross.output.kernel"), "activation": (".outer.kernel",)}
"""The kernels that follow attention weights and hidden units: where they are 0, dropout before them has no effect."""


def subject(recipe: Recipe, framework: str = "keras", *, still: bool = False, **settings: Any) -> ModelUnderTest:
    """Return a recipe for the laws; `still`: with no dropout at all, so that one program serves all laws."""

    def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
        kept = dropping(recipe, 0.0 if still else dropout)
        words = SOURCE_WORDS, target_words(recipe)
        return impls.build(kept, *words, training=training, seed=seed, framework=framework, **settings)

    return ModelUnderTest(build, SOURCE_WORDS, target_words(recipe), MAX_LENGTH, dropout_is_fixed=still)


def small(name: str, *, layers: int | None = None) -> Recipe:
    """Return a recipe of `small_models`, or a small one of a variant, with so many layers where it has any."""
    recipe = all_recipes().get(name)
    if recipe is None:
        recipe = registry.recipe(name)
        recipe = replace(recipe, **SIZES[recipe.family])
    return recipe if layers is None or not hasattr(recipe, "layers") else replace(recipe, layers=layers)


def framework_of(task: Task) -> str:
    """Return what `impls.build` calls the framework of a task."""
    return "torch" if task.backend == "torch" else "keras"


# Tasks ----------------------------------------------------------------------------------------------------------------


def laws(task: Task, folder: Path) -> Found:
    """Test a small recipe; of one layer and fast where the size is "small" or "dropout".

    Where it is "small" there is no dropout, and the model is measured too.
    """
    still, fast = task.size == "small", task.size in ("small", "dropout")
    tried = subject(small(task.subject, layers=1 if fast else None), still=still)
    found = check_subject(replace(tried, fast=fast))
    return computed(tried) if still else {}, {"laws": [vars(one) for one in found]}


def word(task: Task, folder: Path) -> Found:
    """Measure in torch what `laws` measures in Keras."""
    return computed(subject(small(task.subject, layers=1), "torch", still=True)), {}


def computed(tried: ModelUnderTest) -> Arrays:
    """Return the logits and the gradients of a recipe, at weights that every framework has."""
    training, batch = Training(clip_norm=None, label_smoothing=0.1), tried.batch()
    model = tried.model(training=training)
    model.set_weights(parity_cases.lively(model.recipe, model.weights()))
    return parity_cases.slopes_and_logits(model, batch, training)


def variant_laws(task: Task, folder: Path) -> Found:
    """Test a variant by name; law 13 resumes in a new process, the others are fast where the size is "small"."""
    others = {law.number for law in LAWS} - {13}
    found = list(for_variant(task.subject, framework="keras", laws=others, fast=task.size == "small"))
    found += for_variant(task.subject, framework="keras", laws={13})
    return {}, {"laws": [vars(one) for one in sorted(found, key=lambda one: one.number)]}


def parity(task: Task, folder: Path) -> Found:
    """Measure one side of a comparison; torch's weights, taught further, are what both translate with."""
    one, framework = case(task.subject, task.size), framework_of(task)
    with planted(task.plant):
        found, model = measured(one, framework)
        if task.plant:
            return found, {}
        if task.backend == "torch":
            taught = parity_cases.teach(one, model)
            answer(folder, replace(task, kind="taught"), taught, {})
        else:
            taught = _awaited(folder, replace(task, backend="torch", kind="taught"))
        return {**found, **parity_cases.translations(one, model, taught, ties=task.backend == "torch")}, {}


def nudged(task: Task, folder: Path) -> Found:
    """Measure models in which one weight of one tensor is a thousandth too large."""
    logits = {name: found["logits"] for name, found in parity_cases.nudged(case(task.subject, task.size), "keras")}
    return logits, {}


def noise(task: Task, folder: Path) -> Found:
    """Return what one update after another loses to dropout, in several circumstances."""
    tried = subject(small(task.subject, layers=1))
    batch = tried.batch()

    model = tried.shaken(dropout=0.5)
    straight = losses(model, batch, 4)
    disturbed = tried.shaken(dropout=0.5)
    first = losses(disturbed, batch, 2)
    disturbed.logits(batch.source, batch.target_in)
    disturbed.begin_decoding(batch.source).step(batch.target_in[:, 0], 1)
    tried.shaken(dropout=0.5).train_step(batch, 0.0)
    saved = disturbed.training_state()
    other = tried.model(seed=1, dropout=0.5)
    other.set_weights(model.weights())
    resumed = tried.model(seed=1, dropout=0.5)
    resumed.set_training_state(saved)
    return {
        "straight": straight,
        "disturbed": np.concatenate([first, losses(disturbed, batch, 2)]),
        "resumed": losses(resumed, batch, 2),
        "other seed": losses(other, batch, 4),
    }, {}


def losses(model: Seq2SeqModel, batch: Batch, updates: int) -> Any:
    """Return the loss of each of some updates at rate 0: they differ by dropout alone."""
    found = []
    for _ in range(updates):
        model.train_step(batch, 0.0)
        found.append(model.take_totals().nats)
    return np.array(found)


def rates(task: Task, folder: Path) -> Found:
    """Return the losses of updates at rate 0 for several dropout rates, with each of `MUTED` at 0 in turn."""
    found: Arrays = {}
    for name, chosen in DROPOUT_RATES.items():
        tried = subject(replace(small("base", layers=1), **chosen), framework_of(task))
        for part, kernels in MUTED.items():
            model = tried.shaken(dropout=chosen.get("dropout", 1e-9))  # 0 would turn off the other two rates as well
            weights = model.weights().items()
            model.set_weights({one: np.zeros_like(value) if one.endswith(kernels) else value for one, value in weights})
            found[f"{name}/{part}"] = losses(model, tried.batch(), 3)
    return found, {}


def packing(task: Task, folder: Path) -> Found:
    """Return what an update and `token_nats` compute on real positions alone, and on padding as well."""
    from impls.keras3.keras_packing import Packing

    training = Training(clip_norm=None, label_smoothing=0.1, teacher_forcing=0.5)
    tried, found = subject(small(task.subject, layers=1), still=True), {}
    batch, real_alone = tried.batch(sentences=40), Packing.of
    for name, of in (("packed", real_alone), ("padded", lambda real: real_alone(np.ones_like(real)))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Packing, "of", of)
            model = tried.shaken(training=training, dropout=0.0)
            model.train_step(batch, 0.0)
            found |= {f"{name}/{one}": value for one, value in model.training_state().items()}
            found[f"{name}/token_nats"] = model.token_nats(batch)
            found[f"{name} rows"] = np.array(_rows(model, batch))
    return {**found, "tokens": np.array(batch.tokens)}, {}


def compilations(task: Task, folder: Path) -> Found:
    """Return how often an update is compiled, and how many rows it computes on, over two epochs of random batches.

    The lengths of the sentences are spread as those of Multi30k are. Nothing is compiled: shapes decide it.
    """
    from impls.keras3.backends import backend

    model = impls.build(replace(small("base", layers=1), max_length=100), 10, 10, framework="keras")
    generator, kinds, rows, tokens = np.random.default_rng(0), set(), 0, 0
    for pairs in [*[128] * 226, 72] * 2:
        lengths = np.clip(generator.gamma(10.0, 1.4, pairs).astype(int), 4, 40)
        sentences = [[SOS, *[5] * length, EOS] for length in lengths]
        batch = Batch(
            padded(sentences), padded([one[:-1] for one in sentences]), padded([one[1:] for one in sentences])
        )
        kinds.add(backend().kinds((None, model._given(batch))))
        rows, tokens = rows + _rows(model, batch), tokens + batch.tokens
    return {"compilations": np.array(len(kinds)), "rows": np.array(rows), "tokens": np.array(tokens)}, {}


def _rows(model: Any, batch: Batch) -> int:
    """Return on how many target positions a Keras model computes."""
    return len(model._given(batch).answers)


def bfloat16(task: Task, folder: Path) -> Found:
    """Return logits and losses in both precisions, and what the weights and a decoding of the lower one are like."""
    recipe = small(task.subject, layers=1)
    plain, low = subject(recipe), subject(recipe, precision="bfloat16")
    batch = plain.batch()
    real = batch.target_in != PAD
    models = {"float32": plain.shaken(dropout=0.0), "bfloat16": low.shaken(dropout=0.0)}
    found: Arrays = {
        f"logits {name}": model.logits(batch.source, batch.target_in)[real] for name, model in models.items()
    }
    step = models["bfloat16"].begin_decoding(batch.source).step(batch.target_in[:, 0], 3)
    found["log-probabilities"] = step.log_probabilities
    found["losses"] = _learned(models["bfloat16"], batch)
    return found, {"types": sorted({str(value.dtype) for value in models["bfloat16"].weights().values()})}


def _learned(model: Seq2SeqModel, batch: Batch) -> Any:
    losses = [float(model.token_nats(batch).sum())]
    for _ in range(40):
        model.train_step(batch, 1e-3)
    return np.array([*losses, float(model.token_nats(batch).sum())])


def _awaited(folder: Path, task: Task) -> Arrays:
    """Return the arrays of another process's task, once they are there."""
    until = time.monotonic() + PATIENCE_SECONDS
    whole = replace(task, kind="parity")
    while not (folder / task.file).exists():
        if (folder / whole.file).exists():
            read(folder, whole)  # raises where torch's process failed on the way
        if time.monotonic() > until:
            raise RuntimeError(f"{task} does not come")
        time.sleep(0.1)
    return read(folder, task)[0]


TASKS: dict[str, Callable[[Task, Path], Found]] = {
    one.__name__: one
    for one in (laws, word, variant_laws, parity, nudged, noise, rates, packing, compilations, bfloat16)
}


def main(folder: Path, backend: str) -> None:
    """Do all tasks; one that fails leaves its traceback, and the others go on."""
    for words in json.loads((folder / f"{backend}.json").read_text(encoding="utf-8")):
        task = Task(**words)
        began, processor = time.perf_counter(), time.process_time()
        try:
            arrays, remarks = TASKS[task.kind](task, folder)
            remarks["frameworks"] = sorted(FRAMEWORKS & sys.modules.keys())
        except Exception:
            arrays, remarks = {}, {"error": traceback.format_exc()}
        remarks["seconds"] = time.perf_counter() - began
        remarks["processor_seconds"] = time.process_time() - processor
        answer(folder, task, arrays, remarks)


def _end_with_standard_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    main(Path(sys.argv[1]), sys.argv[2])
    os._exit(0)  # the thread that waits for standard input would make an orderly end fail
