"""Models under test: built on demand, with small and realistic batches, and a new process that resumes their training.

Run as a module, this file is that process: it rebuilds the model, loads the training state, continues training and
writes the resulting weights and totals.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import impls
from harness.data.batches import pad
from harness.processes import json_process
from harness.processes.environment_variables import thread_environment
from harness.storage import tensors
from impls import registry
from impls.contract import (
    EOS,
    SOS,
    UNK,
    Arrays,
    Batch,
    Decoding,
    Ids,
    Recipe,
    Seq2SeqModel,
    Training,
    TransformerRecipe,
)

Build = Callable[[Training, int, float], Seq2SeqModel]
"""build(training, seed, dropout) returns a new model. External builders without `dropout` ignore the last one."""

LONGEST = 40
"""Positions of the longest sentences of a realistic batch: about as long as the longest of Multi30k."""

TRANSFORMER_SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 64, "max_length": LONGEST}
SIZES = {
    "transformer": TRANSFORMER_SIZES,
    "torch_reference": TRANSFORMER_SIZES,
    "plain": TRANSFORMER_SIZES,
    "gru": {"width": 64, "embedding_width": 48},
}
"""Small sizes for the recipes of each family."""

SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE = 37, 41
SMALLEST_VOCABULARY = 7
"""The special words and three others, which the laws exchange for one another."""

SHORTEST = 9
"""Positions: law 12 decodes `<sos>` and eight tokens."""

MOST_POSITIONS = 1_000
"""The largest `max_length` of an external model that law 1 tests; attention takes its square of memory."""

DROPOUT = 0.1
RANDOM = Training(label_smoothing=0.1, teacher_forcing=0.5)
"""Training settings with all sources of randomness: dropout and, in recurrent models, teacher forcing."""

MODULE = "harness.conformance.models_under_test"
SAVED, TRAINED = 2, 4
"""The number of updates after which the training state is saved, and the number of updates in all."""


class ModelSize(NamedTuple):
    """The number of sentences in a realistic batch, and the number of positions of its longest ones."""

    sentences: int
    longest: int


REAL = ModelSize(64, LONGEST)
FAST = ModelSize(20, 24)
"""A smaller batch for `laws --fast`, still with more than 16 sentences and more than 12 positions."""


class Probe(NamedTuple):
    """A batch on which a law is tested, and its description for error messages."""

    name: str
    batch: Batch


@dataclass(frozen=True)
class ModelUnderTest:
    """A way to build models, their sizes, and whether to test faster.

    Attributes:
        max_length: The largest number of positions that the models accept, at least `SHORTEST`.
        describe: JSON from which a new process rebuilds the model, as in `named`. Without it law 13 resumes in this
            process and says so.
        dropout_is_fixed: Whether the builder is an external one without a `dropout` argument.
        file: The file of an external model, whose line is shown if the model raises an exception.

    Raises:
        ValueError: A vocabulary or `max_length` is too small for the batches of the laws.
    """

    build: Build
    source_vocabulary_size: int = SOURCE_VOCABULARY_SIZE
    target_vocabulary_size: int = TARGET_VOCABULARY_SIZE
    max_length: int = LONGEST
    describe: str | None = None
    dropout_is_fixed: bool = False
    fast: bool = False
    file: str | None = None

    def __post_init__(self) -> None:
        least = {
            "source_vocabulary_size": SMALLEST_VOCABULARY,
            "target_vocabulary_size": SMALLEST_VOCABULARY,
            "max_length": SHORTEST,
        }
        for name, minimum in least.items():
            if getattr(self, name) < minimum:
                raise ValueError(f"{name}={getattr(self, name)}: the laws need models of at least {minimum}")

    @property
    def real(self) -> ModelSize:
        """The size of the realistic batch, whose longest sentences have at most `max_length` positions."""
        size = FAST if self.fast else REAL
        return size._replace(longest=min(size.longest, self.max_length))

    def model(self, *, training: Training | None = None, seed: int = 0, dropout: float = DROPOUT) -> Seq2SeqModel:
        """Build a model with its initial weights."""
        return self.build(training or Training(), seed, dropout)

    def perturbed(self, *, training: Training | None = None, dropout: float = DROPOUT) -> Seq2SeqModel:
        """Build a model and perturb every weight, so that weights with initial values near 0 cannot hide faults.

        Matrices are halved first, so that the logits of a model without norms stay small enough for a tolerance of
        1e-5.
        """
        model = self.model(training=training, dropout=dropout)
        generator, weights = np.random.default_rng(0), {}
        for name, value in model.weights().items():
            noise = np.float32(0.1) * generator.standard_normal(value.shape, np.float32)
            weights[name] = value * np.float32(0.5 if value.ndim > 1 else 1) + noise
        model.set_weights(weights)
        return model

    def batch(self, seed: int = 0, sentences: int = 5) -> Batch:
        """Return sentences of different lengths that leave room for two more columns of padding."""
        generator = np.random.default_rng([seed, 1])
        longest = min(7, self.max_length - 4)
        lengths = [longest, *map(int, generator.integers(1, longest, sentences - 1))]
        return self._of_lengths(generator, lengths, list(np.roll(lengths, 1)))

    def realistic_batch(self, seed: int = 0) -> Batch:
        """Return a batch of realistic size; at least a quarter of the sentences of each side have maximum length."""
        generator = np.random.default_rng([seed, 2])
        sentences, longest = self.real
        lengths = generator.integers(1, longest - 1, sentences)
        lengths[: -(-sentences // 4)] = longest - 2
        source, target = (generator.permutation(lengths) for _ in range(2))
        return self._of_lengths(generator, list(source), [length + (length == longest - 2) for length in target])

    def probes(self) -> tuple[Probe, Probe]:
        """Return a small batch, on which failures are easy to understand, and one of realistic size."""
        small, real = (
            Probe(f"{len(batch.source)} sentences of up to {batch.source.shape[1]} ids", batch)
            for batch in (self.batch(), self.realistic_batch())
        )
        return small, real

    def _of_lengths(self, generator: np.random.Generator, source: list[int], target: list[int]) -> Batch:
        sources = [_draw_tokens(generator, length, self.source_vocabulary_size) for length in source]
        targets = [_draw_tokens(generator, length, self.target_vocabulary_size) for length in target]
        return Batch(
            pad([[SOS, *tokens, EOS] for tokens in sources]),
            pad([[SOS, *tokens] for tokens in targets]),
            pad([[*tokens, EOS] for tokens in targets]),
        )

    def trained(self, model: Seq2SeqModel, seeds: Iterable[int]) -> Seq2SeqModel:
        """Train `model` by one update for each seed of a batch, realistic ones for odd seeds, and return it."""
        for seed in seeds:
            model.train_step(self.realistic_batch(seed) if seed % 2 else self.batch(seed), 1e-3)
        return model

    def resumed(self, saved: Arrays) -> Arrays:
        """Return the outcome of a new model that continues from `saved`."""
        model = self.model(training=RANDOM)
        model.set_training_state(saved)
        return outcome(self.trained(model, range(SAVED, TRAINED)))


def outcome(model: Seq2SeqModel) -> Arrays:
    """Return the weights of a trained model, and each of its `Totals` as `totals/…`."""
    totals = {f"totals/{name}": np.array(value) for name, value in vars(model.take_totals()).items()}
    return model.weights() | totals


def mapped(batch: Batch, change: Callable[[Ids], Ids]) -> Batch:
    """Return a batch with the same change of its source, `target_in` and `target_out`."""
    return Batch(*map(change, vars(batch).values()))


def _draw_tokens(generator: np.random.Generator, length: int, vocabulary_size: int) -> list[int]:
    """Draw tokens, including `<unk>`."""
    return [int(token) if token > EOS else UNK for token in generator.integers(EOS, vocabulary_size, length)]


def log_probabilities(subject: ModelUnderTest, decoded: Decoding, last: Ids) -> npt.NDArray[np.float64]:
    """Advance one step and return the log-probabilities [B,V] in the order of the vocabulary."""
    candidates = decoded.step(last, best=subject.target_vocabulary_size)
    table = np.full((len(last), subject.target_vocabulary_size), np.nan)
    np.put_along_axis(table, candidates.tokens, candidates.log_probabilities, -1)
    return table


def decode_stepwise(subject: ModelUnderTest, decoded: Decoding, target_in: Ids) -> npt.NDArray[np.float64]:
    """Return the log-probabilities [B,T,V] of a decoding that reads these tokens."""
    return np.stack([log_probabilities(subject, decoded, last) for last in target_in.T], 1)


def evaluation(subject: ModelUnderTest, model: Seq2SeqModel, batch: Batch) -> Arrays:
    """Return the results of every evaluation method for a batch."""
    return {
        "logits": model.logits(batch.source, batch.target_in),
        "token_nats": model.token_nats(batch),
        "cross_attention": model.cross_attention(batch.source, batch.target_in),
        "steps": decode_stepwise(subject, model.begin_decoding(batch.source), batch.target_in),
    }


# By name, and in a new process ----------------------------------------------------------------------------------------


def with_dropout(recipe: Recipe, dropout: float) -> Recipe:
    """Return the recipe with another dropout rate; 0 switches all dropout off."""
    if dropout == 0 and isinstance(recipe, TransformerRecipe):
        return replace(recipe, dropout=0.0, attention_dropout=None, activation_dropout=None)
    return replace(recipe, dropout=dropout)


def named(variant: str, *, framework: str = "torch", device: str = "cpu", fast: bool = False) -> ModelUnderTest:
    """Return a built-in or an external variant ("package.module:NAME"); recipes get small sizes.

    Raises:
        ValueError: There is no such variant, or it is neither a recipe nor a builder.
    """
    loaded = registry.load(variant) if ":" in variant else registry.recipe(variant)
    describe = json.dumps({"variant": variant, "framework": framework, "device": device, "fast": fast})
    sizes, max_length, fixed = (SOURCE_VOCABULARY_SIZE, TARGET_VOCABULARY_SIZE), LONGEST, False
    if isinstance(loaded, Recipe):
        small: dict[str, Any] = SIZES[loaded.family]
        recipe: Recipe = replace(loaded, **small)
        if getattr(recipe, "tying", "none") == "all":
            sizes = (SOURCE_VOCABULARY_SIZE,) * 2

        def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
            settings: dict[str, Any] = {"framework": framework, "seed": seed, "device": device}
            return impls.build(with_dropout(recipe, dropout), *sizes, training=training, **settings)
    else:
        fixed = not _takes_dropout(loaded)

        def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
            settings: dict[str, Any] = {} if fixed else {"dropout": dropout}
            settings |= {"training": training, "seed": seed, "device": device, "precision": "float32"}
            return _built(variant, *sizes, **settings)

        max_length = min(registry.max_length(build(Training(), 0, 0.0)) or LONGEST, MOST_POSITIONS)
    return ModelUnderTest(build, *sizes, max_length, describe, fixed, fast, _file(variant))


def _built(variant: str, *sizes: int, **settings: Any) -> Seq2SeqModel:
    """Return the model of an external variant with vocabularies of these sizes.

    Raises:
        ValueError: The object is not a builder, or it fails or returns something else than a `Seq2SeqModel`.
    """
    try:
        return registry.build_external(variant, *sizes, **settings)
    except ValueError:
        raise
    except Exception as error:
        reason = f"{variant!r} fails with {in_one_line(error, _file(variant))}"
        raise ValueError(f"{reason}; {registry.EXTERNAL_VARIANT}") from error


def _file(variant: str) -> str | None:
    """Return the file of the module of package.module:NAME, once it is imported."""
    return getattr(sys.modules.get(variant.partition(":")[0]), "__file__", None)


def in_one_line(error: Exception, file: str | None) -> str:
    """Return the type of an error, the first line of its message, and the last line of `file` that led to it.

    In TensorFlow the first line may be only a title, "Graph execution error:"; the last line without indent says why.
    """
    lines = [line for line in str(error).splitlines() if line[:1].strip()] or [""]
    message = " ".join([lines[0], *(lines[1:][-1:] if lines[0].endswith(":") else [])])
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {message}{where}"


def _takes_dropout(builder: Any) -> bool:
    try:
        return "dropout" in inspect.signature(builder).parameters
    except (TypeError, ValueError):
        return False


def resumed_in_new_process(describe: str, saved: Arrays) -> Arrays:
    """Run `ModelUnderTest.resumed` in a new process with this one's number of threads.

    Raises:
        RuntimeError: The process failed; the message has its last line of output.
    """
    with tempfile.TemporaryDirectory() as folder:
        state, out = Path(folder, "state.safetensors"), Path(folder, "outcome.safetensors")
        tensors.write(state, saved)
        paths = os.pathsep.join(path or os.curdir for path in sys.path)
        arguments = {"describe": describe, "state": str(state), "out": str(out)}
        environment = {**threads(), "PYTHONPATH": paths}
        try:
            json_process.request_once(MODULE, "resume", arguments, environment=environment)
        except (json_process.ProcessFailed, json_process.RequestRefused) as error:
            raise RuntimeError(f"the new process failed: {error}") from error
        return tensors.read(out)


def threads() -> dict[str, str]:
    """Return environment variables that give a new process torch's number of threads, if torch is loaded."""
    torch = sys.modules.get("torch")
    return {} if torch is None else thread_environment(torch.get_num_threads(), None)


def _resume(describe: str, state: str, out: str) -> None:
    """Continue the training of a stored state; this runs in the new process."""
    tensors.write(Path(out), named(**json.loads(describe)).resumed(tensors.read(Path(state))))


if __name__ == "__main__":
    json_process.serve({"resume": _resume})
