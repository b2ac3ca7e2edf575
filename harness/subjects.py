"""What the laws are tried on: models built on demand, batches for them, and a new process that resumes their training.

`python -m harness.subjects SUBJECT STATE OUT` is that process: it rebuilds the model, loads the training state, trains
on and writes what came of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import impls
from impls import registry
from impls.contract import EOS, PAD, SOS, UNK, Arrays, Batch, Decoding, Ids, Recipe, Seq2SeqModel, Training

Build = Callable[[Training, int, float], Seq2SeqModel]
"""build(training, seed, dropout): a fresh model. Only an outsider's builder may ignore the dropout."""

TRANSFORMER_SIZES = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 64, "max_length": 24}
SIZES = {
    "transformer": TRANSFORMER_SIZES,
    "torch_reference": TRANSFORMER_SIZES,
    "plain": TRANSFORMER_SIZES,
    "gru": {"width": 64, "embedding_width": 48},
}
"""What each family's recipes are set to: small enough for all laws to take seconds."""

DROPOUT = 0.1
RANDOM = Training(label_smoothing=0.1, teacher_forcing=0.5)
"""A training that draws on all the randomness there is: dropout and, where the model is recurrent, coins."""

SAVED, TRAINED = 2, 4
"""After how many updates the training state is saved, and how many there are in all."""


@dataclass(frozen=True)
class Subject:
    """A way to build models, the sizes it was made for, and (`describe`, JSON) how a new process rebuilds it."""

    build: Build
    source_words: int
    target_words: int
    max_length: int
    describe: str | None = None

    def model(self, *, training: Training | None = None, seed: int = 0, dropout: float = DROPOUT) -> Seq2SeqModel:
        """Build a model as it starts."""
        return self.build(training or Training(), seed, dropout)

    def shaken(self, *, training: Training | None = None, seed: int = 0, dropout: float = DROPOUT) -> Seq2SeqModel:
        """Build a model and move every weight, so that no fault hides behind weights that start at 0 or close to it.

        Matrices are halved first, so that a model without norms keeps its logits where 1e-5 is more than rounding.
        """
        model = self.model(training=training, seed=seed, dropout=dropout)
        generator = np.random.default_rng(seed)
        model.set_weights(
            {
                name: (value * (0.5 if value.ndim > 1 else 1) + 0.1 * generator.standard_normal(value.shape)).astype(
                    np.float32
                )
                for name, value in model.weights().items()
            }
        )
        return model

    def batch(self, seed: int = 0, sentences: int = 5) -> Batch:
        """Return sentences of different lengths, the longest with room for two more columns of padding."""
        generator = np.random.default_rng([seed, 1])
        longest = min(7, self.max_length - 4)
        lengths = [longest, *map(int, generator.integers(1, longest, sentences - 1))]
        sources = [_words(generator, length, self.source_words) for length in lengths]
        targets = [_words(generator, length, self.target_words) for length in np.roll(lengths, 1)]
        return Batch(
            padded([[SOS, *one, EOS] for one in sources]),
            padded([[SOS, *one] for one in targets]),
            padded([[*one, EOS] for one in targets]),
        )

    def trained(self, model: Seq2SeqModel, seeds: Iterable[int]) -> Seq2SeqModel:
        """Train `model` by one update for each seed of a batch, and return it."""
        for seed in seeds:
            model.train_step(self.batch(seed), 1e-3)
        return model

    def resumed(self, saved: Arrays) -> Arrays:
        """Return the outcome of a fresh model that went on from `saved`."""
        model = self.model(training=RANDOM)
        model.set_training_state(saved)
        return outcome(self.trained(model, range(SAVED, TRAINED)))


def outcome(model: Seq2SeqModel) -> Arrays:
    """Return what training made of a model: its weights, and each of its `Totals` as `totals/…`."""
    totals = {f"totals/{name}": np.array(value) for name, value in vars(model.take_totals()).items()}
    return model.weights() | totals


def padded(sentences: list[list[int]]) -> Ids:
    """Return sentences as ids [B, longest], with PAD on the right."""
    longest = max(map(len, sentences))
    return np.array([sentence + [PAD] * (longest - len(sentence)) for sentence in sentences], np.int32)


def _words(generator: np.random.Generator, length: int, words: int) -> list[int]:
    """Draw words, the unknown word among them."""
    return [int(word) if word > EOS else UNK for word in generator.integers(EOS, words, length)]


def log_probabilities(subject: Subject, decoded: Decoding, last: Ids) -> npt.NDArray[np.float64]:
    """Advance one step and return the log-probabilities [B,V] in the order of the vocabulary."""
    candidates = decoded.step(last, best=subject.target_words)
    table = np.full((len(last), subject.target_words), np.nan)
    np.put_along_axis(table, candidates.tokens, candidates.log_probabilities, -1)
    return table


def walk(subject: Subject, decoded: Decoding, fed: Ids) -> npt.NDArray[np.float64]:
    """Return the log-probabilities [B,T,V] of a decoding that is fed these words."""
    return np.stack([log_probabilities(subject, decoded, last) for last in fed.T], 1)


def evaluation(subject: Subject, model: Seq2SeqModel, batch: Batch) -> Arrays:
    """Return all that a model computes for a batch in evaluation mode."""
    return {
        "logits": model.logits(batch.source, batch.target_in),
        "token_nats": model.token_nats(batch),
        "cross_attention": model.cross_attention(batch.source, batch.target_in),
        "steps": walk(subject, model.begin_decoding(batch.source), batch.target_in),
    }


# By name, and in a new process ----------------------------------------------------------------------------------------


def named(variant: str, *, framework: str = "torch", device: str = "cpu") -> Subject:
    """Return a built-in variant, or an outsider's "package.module:NAME", at small sizes where it is a recipe.

    Raises: ValueError where there is no such variant, or it is neither a recipe nor a builder.
    """
    found = registry.load(variant) if ":" in variant else registry.recipe(variant)
    describe = json.dumps({"variant": variant, "framework": framework, "device": device})
    source_words, target_words = 37, 41
    if isinstance(found, Recipe):
        sizes: dict[str, Any] = SIZES[found.family]
        recipe: Recipe = replace(found, **sizes)
        if getattr(recipe, "tying", "none") == "all":
            target_words = source_words

        def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
            kept = replace(recipe, dropout=dropout)
            return impls.build(
                kept, source_words, target_words, training=training, framework=framework, seed=seed, device=device
            )
    elif callable(found):

        def build(training: Training, seed: int, dropout: float) -> Seq2SeqModel:
            model: Seq2SeqModel = found(
                source_words, target_words, training=training, seed=seed, device=device, precision="float32"
            )
            return model
    else:
        raise ValueError(f"{variant!r} is a {type(found).__name__}: allowed is a recipe, or a builder of models")
    return Subject(build, source_words, target_words, TRANSFORMER_SIZES["max_length"], describe)


def resumed_in_new_process(describe: str, saved: Arrays) -> Arrays:
    """Return what `Subject.resumed` gives in a new process with this one's number of threads.

    Raises: RuntimeError with the last line that the process wrote, where it fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        state, out = Path(folder, "state.npz"), Path(folder, "weights.npz")
        _write(state, saved)
        environment = {**os.environ, **threads()}
        paths = [path or os.curdir for path in sys.path]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        command = [sys.executable, "-m", "harness.subjects", describe, str(state), str(out)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the new process failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
        return _read(out)


def threads() -> dict[str, str]:
    """Return the environment that gives a new process this one's number of threads: torch's, where it is loaded."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {"OMP_NUM_THREADS": str(torch.get_num_threads()), "MKL_NUM_THREADS": str(torch.get_num_threads())}


def _write(path: Path, arrays: Arrays) -> None:
    named_arrays: dict[str, Any] = {**arrays}
    np.savez(path, **named_arrays)


def _read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _resume(describe: str, state: str, out: str) -> None:
    """Be the new process."""
    _write(Path(out), named(**json.loads(describe)).resumed(_read(Path(state))))


if __name__ == "__main__":
    _resume(*sys.argv[1:])
