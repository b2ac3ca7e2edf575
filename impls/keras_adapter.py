"""Turns the Keras networks of this package into a `Seq2SeqModel`: updates, Adam, decoding, weights in and out.

Weights and moments are plain tensors that go into compiled functions and come out of them, so the models of one recipe
share what was compiled. Nothing here is torch's: the formulas are those of the papers once more.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from impls import keras_backends, weights
from impls.contract import (
    PAD,
    Arrays,
    Batch,
    Candidates,
    Compilation,
    GruRecipe,
    Ids,
    Numbers,
    Recipe,
    Totals,
    Training,
)
from impls.keras_backends import Compiled, Tensor, Tensors, backend, bucket, keras, ops
from impls.keras_gru import network as gru
from impls.keras_transformer import canonical
from impls.keras_transformer import network as transformer

PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
COLUMNS, ROWS = 8, 32
"""The steps of the buckets to which a backend that compiles for each shape pads positions and sentences."""

TINY = 1e-6
"""Added to the norm of the gradients that they are divided by, as torch does it."""

GRU_VARIABLES = {
    "kernel": (("input.kernel", None),),
    "recurrent_kernel": (("hidden.kernel", None),),
    "bias": (("input.bias", 0), ("hidden.bias", 1)),
}
"""What Keras calls the variables of a GRU, and the canonical tensors in each: all of it, or one of its rows."""


class Slot(NamedTuple):
    """Where a canonical tensor lies: a variable's number, one of its rows, and whether its gates stand otherwise."""

    variable: int
    row: int | None = None
    gates: bool = False

    def read(self, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Numbers:
        """Return the canonical tensor that lies in a variable's array. A copy."""
        found = array if self.row is None else array[self.row]
        return np.array(self._swapped(found).reshape(shape), np.float32)

    def write(self, array: np.ndarray[Any, Any], canonical_array: Numbers) -> None:
        """Put a canonical tensor into its place in a variable's array."""
        place = array if self.row is None else array[self.row]
        place[...] = self._swapped(np.asarray(canonical_array, np.float32)).reshape(place.shape)

    def _swapped(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Change between Keras's order of gates (update, reset, candidate) and ours (reset, update, candidate)."""
        if not self.gates:
            return array
        first, second, third = np.split(array, 3, axis=-1)
        return np.concatenate([second, first, third], axis=-1)


def slots(variables: list[Any]) -> dict[str, Slot]:
    """Return where each canonical tensor lies in the variables of a network."""
    found = {}
    for number, variable in enumerate(variables):
        parts = [part for part in variable.path.split("/") if part != "gru_cell"]
        if parts[-2] in ("encoder-forward", "encoder-backward", "decoder"):
            layer = parts[-2].replace("-", ".")
            found |= {f"{layer}.{name}": Slot(number, row, gates=True) for name, row in GRU_VARIABLES[parts[-1]]}
        else:
            found[canonical(variable)] = Slot(number)
    return found


class Held(NamedTuple):
    """What an update changes: one tensor a variable each."""

    weights: Tensors
    first_moment: Tensors
    second_moment: Tensors


class Update(NamedTuple):
    """The numbers of one update, each a scalar.

    `step` is rate / (1 - beta1^n), `correction` sqrt(1 - beta2^n), after n updates. What is left of 1 is handed over,
    because 1 - beta in float32 is not.
    """

    step: Tensor
    correction: Tensor
    epsilon: Tensor
    left1: Tensor
    left2: Tensor
    clip_norm: Tensor
    smoothing: Tensor
    tokens: Tensor


class Sums(NamedTuple):
    """What an update gives for the totals."""

    objective_nats: Tensor
    nats: Tensor
    gradient_norm: Tensor


class Program:
    """A network and its compiled functions, for all models of a recipe. Its own variables' values are never used."""

    def __init__(self, recipe: Recipe, source_words: int, target_words: int, policy: str) -> None:
        with _policy(policy):
            build: Any = gru if isinstance(recipe, GruRecipe) else transformer
            self.network = build(recipe, source_words, target_words)
        expected = weights.shapes(recipe, source_words, target_words)
        variables = self.network.trainable_variables
        found = slots(variables)
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        self.variables, self.slots, self.shapes = variables, found, expected
        self.seeds = [one for one in self.network.non_trainable_variables if one.path.endswith("seed_generator_state")]
        self.seed_type = np.dtype(keras.backend.standardize_dtype(self.seeds[0].dtype)) if self.seeds else np.int64
        self.seconds: list[float] = []
        self.update = Compiled(self._update, self.seconds, gives_back=True)
        self.nats = Compiled(self._nats, self.seconds)
        self.logits = Compiled(self._logits, self.seconds)
        self.attention = Compiled(self._attention, self.seconds)
        self.begin = Compiled(self._begin, self.seconds)
        self.steps: dict[int, Compiled] = {}

    def step(self, best: int) -> Compiled:
        """Return the function that advances a decoding and ranks the `best` next words."""
        if best not in self.steps:
            self.steps[best] = Compiled(functools.partial(self._step, best), self.seconds)
        return self.steps[best]

    def _with(self, values: Tensors, seeds: Tensor | None = None) -> keras.StatelessScope:
        """Return a scope in which the network has these weights, and its dropout these seeds."""
        pairs = list(zip(self.variables, values, strict=True))
        if seeds is not None:
            seeds = ops.reshape(seeds, (-1, 2))
            pairs += [(variable, seeds[index]) for index, variable in enumerate(self.seeds)]
        return keras.StatelessScope(state_mapping=pairs)

    def _chosen(self, features: Tensor, places: Tensor) -> Tensor:
        """Return the float32 logits of some of all positions. Shapes: [B,T,...], [N] to [N,V]."""
        flat = ops.reshape(features, (-1, features.shape[-1]))
        return ops.cast(self.network.project(ops.take(flat, places, axis=0)), "float32")

    def _update(
        self, held: Held, number: Update, seeds: Tensor, words: tuple[Tensor, Tensor], ends: tuple[Tensor, Tensor], fed: Any
    ) -> tuple[Held, Sums]:
        """Return what one update makes of `held`, and its sums.

        Shapes: words are source [B,S] and target_in [B,T]; ends are places [N] and the target words there [N]; fed
        holds the coins [T], or nothing.
        """
        places, target = ends
        real = ops.cast(ops.not_equal(target, PAD), "float32")

        def mean(values: Tensors) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            with self._with(values, seeds):
                logits = self._chosen(self.network(*words, *fed, training=True), places)
            logs = ops.log_softmax(logits, axis=-1)
            nats = -ops.sum(real * ops.take_along_axis(logs, target[:, None], axis=1)[:, 0])
            smooth = -ops.sum(real * ops.mean(logs, axis=-1))
            # Szegedy et al. 2016, section 7: the smoothed share is spread evenly over all words.
            objective = (1 - number.smoothing) * nats + number.smoothing * smooth
            return objective / number.tokens, (objective, nats)

        slopes, (objective, nats) = backend().gradients(mean, held.weights)
        norm = ops.sqrt(sum(ops.sum(ops.square(one)) for one in slopes))
        scale = ops.minimum(number.clip_norm / (norm + TINY), 1.0)
        changed = [_adam(number, scale * slope, *one) for slope, *one in zip(slopes, *held, strict=True)]
        after = Held(*(list(one) for one in zip(*changed, strict=True)))
        return after, Sums(objective, nats, norm)

    def _nats(self, values: Tensors, words: tuple[Tensor, Tensor], ends: tuple[Tensor, Tensor]) -> Tensor:
        """Return the negative log-likelihood of the target words at some places, [N]."""
        places, target = ends
        with self._with(values):
            logits = self._chosen(self.network(*words), places)
        found = ops.take_along_axis(logits, target[:, None], axis=1)[:, 0]
        return ops.logsumexp(logits, axis=-1) - found

    def _logits(self, values: Tensors, words: tuple[Tensor, Tensor]) -> Tensor:
        with self._with(values):
            return ops.cast(self.network.project(self.network(*words)), "float32")

    def _attention(self, values: Tensors, words: tuple[Tensor, Tensor]) -> Tensor:
        with self._with(values):
            return ops.cast(self.network.cross_attention(*words), "float32")

    def _begin(self, values: Tensors, source: Tensor) -> dict[str, Tensor]:
        with self._with(values):
            found: dict[str, Tensor] = self.network.begin(source)
        return found

    def _step(
        self, best: int, values: Tensors, state: dict[str, Tensor], last: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-probabilities and words [B,N], and the state after them."""
        with self._with(values):
            features, after = self.network.advance(state, last, position)
            logits = ops.cast(self.network.project(features), "float32")
        scores, tokens = ops.top_k(logits, best)
        return scores - ops.logsumexp(logits, axis=-1, keepdims=True), tokens, after


def _adam(number: Update, slope: Tensor, weight: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Return the weight and its moments after one step of Adam (Kingma and Ba 2015, algorithm 1)."""
    first = first + number.left1 * (slope - first)
    second = second + number.left2 * (ops.square(slope) - second)
    # Epsilon is added after the correction of the root, as the paper's algorithm says and its section 2 does not.
    weight = weight - number.step * first / (ops.sqrt(second) / number.correction + number.epsilon)
    return weight, first, second


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
    """Let the layers that are built meanwhile compute in this precision."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@functools.lru_cache(maxsize=16)
def program(recipe: Recipe, source_words: int, target_words: int, policy: str, device: str) -> Program:
    """Return the program of a recipe, made once."""
    with keras.device(device):
        return Program(recipe, source_words, target_words, policy)


class KerasDecoding:
    """Sentences half way through decoding; `rows` of the state's rows are sentences, the rest fills the bucket."""

    def __init__(self, model: KerasModel, state: dict[str, Tensor], rows: int) -> None:
        self._model, self._state, self._rows, self._position = model, state, rows, 0

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest word of each row, [B], and return the `best` most probable next words."""
        model, most = self._model, self._model.program.network.max_length
        if most is not None and self._position >= most:
            raise ValueError(f"{self._position + 1} positions: allowed is at most max_length={most}")
        with model.device():
            self._state = model.program.network.with_room(self._state, self._position)
            fed = model.place(_filled(last, model.rows(self._rows)))
            call = model.program.step(min(best, model.target_words))
            scores, tokens, self._state = call(model.held.weights, self._state, fed, model.place([self._position]))
        self._position += 1
        found = (ops.convert_to_numpy(one)[: self._rows] for one in (scores, tokens))
        return Candidates(next(found), next(found).astype(np.int32))

    def select(self, rows: np.ndarray[Any, np.dtype[np.intp]]) -> None:
        """Keep, drop, repeat or reorder rows."""
        self._rows = len(rows)
        with self._model.device():
            chosen = self._model.place(_filled(rows, self._model.rows(self._rows), 0))
            self._state = {name: ops.take(one, chosen, axis=0) for name, one in self._state.items()}


class KerasModel:
    """A `Seq2SeqModel` around a program."""

    def __init__(
        self, recipe: Recipe, source_words: int, target_words: int, *, training: Training, seed: int, device: str, precision: str
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r}: allowed is {', '.join(PRECISIONS)}")
        self.recipe, self.target_words = recipe, target_words
        self._device = device_of(device)
        self.program = program(recipe, source_words, target_words, PRECISIONS[precision], self._device)
        self._training, self._seed, self._updates = training, seed, 0
        self._sums: list[Sums] = []
        self._tokens = 0
        self.set_weights(weights.initial(recipe, source_words, target_words, seed))
        self.held = Held(self.held.weights, self._zeros(), self._zeros())

    # Training ---------------------------------------------------------------------------------------------------------

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Enqueue one update at `learning_rate`; never waits for the device."""
        self._updates += 1
        words, ends, shape = self._placed(batch)
        fed: tuple[Tensor, ...] = ()
        if isinstance(self.recipe, GruRecipe) and self._training.teacher_forcing < 1:
            fed = (self.place(self._training.forcing(self._seed, self._updates, shape[1])),)
        drawn = np.random.SeedSequence([self._seed, self._updates]).generate_state(2 * len(self.program.seeds))
        seeds = (drawn >> 1).astype(self.program.seed_type).reshape(-1, 2)
        with self.device():
            number = self._number(learning_rate, batch.tokens)
            self.held, sums = self.program.update(self.held, number, self.place(seeds), words, ends, fed)
        self._sums.append(sums)
        self._tokens += batch.tokens

    def _number(self, rate: float, tokens: int) -> Update:
        training, updates = self._training, self._updates
        return Update(
            *(
                self.place(np.float32(one))
                for one in (
                    rate / (1 - training.beta1**updates),
                    (1 - training.beta2**updates) ** 0.5,
                    training.epsilon,
                    1 - training.beta1,
                    1 - training.beta2,
                    np.inf if training.clip_norm is None else training.clip_norm,
                    training.label_smoothing,
                    max(tokens, 1),
                )
            )
        )

    def take_totals(self) -> Totals:
        """Wait for the device, return what was summed since the last call, and reset the sums."""
        found = np.array([[ops.convert_to_numpy(one) for one in sums] for sums in self._sums], np.float64).reshape(-1, 3)
        totals = Totals(
            objective_nats=float(found[:, 0].sum()),
            nats=float(found[:, 1].sum()),
            tokens=self._tokens,
            updates=len(found),
            largest_gradient_norm=float(found[:, 2].max(initial=0.0)),
            finite=bool(np.isfinite(found).all()),
        )
        self._sums, self._tokens = [], 0
        return totals

    # Evaluation -------------------------------------------------------------------------------------------------------

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target word, [B,T]; 0 at padding."""
        words, ends, shape = self._placed(batch)
        with self.device():
            nats = ops.convert_to_numpy(self.program.nats(self.held.weights, words, ends))
        found = np.zeros(shape, np.float32)
        found.reshape(-1)[ops.convert_to_numpy(ends[0])] = nats
        found = found[: len(batch.target_out), : batch.target_out.shape[1]]
        return np.where(batch.target_out == PAD, np.float32(0), found)

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the unnormalised log-probabilities of the next word at each position, [B,T,V]."""
        with self.device():
            found = self.program.logits(self.held.weights, self._words(source, target_in))
        rows, columns = target_in.shape
        return np.array(ops.convert_to_numpy(found)[:rows, :columns])

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the weights of target positions on source positions, [B,layers,H,T,S]; each row sums to 1."""
        with self.device():
            found = self.program.attention(self.held.weights, self._words(source, target_in))
        rows, columns = target_in.shape
        return np.array(ops.convert_to_numpy(found)[:rows, :, :, :columns, : source.shape[1]])

    def begin_decoding(self, source: Ids) -> KerasDecoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first word."""
        rows, columns = self.rows(len(source)), self._columns(source.shape[1])
        with self.device():
            state = self.program.begin(self.held.weights, self.place(_widened(source, (rows, columns))))
        return KerasDecoding(self, state, len(source))

    # Arrays and the device --------------------------------------------------------------------------------------------

    def rows(self, sentences: int) -> int:
        """Return to how many rows so many sentences are padded."""
        return bucket(sentences, step=ROWS) if backend().buckets else sentences

    def _columns(self, positions: int) -> int:
        """Return to how many columns so many positions are padded. Raises: ValueError past max_length positions."""
        most = self.program.network.max_length
        if most is not None and positions > most:
            raise ValueError(f"{positions} positions: allowed is at most max_length={most}")
        padded = bucket(positions, step=COLUMNS) if backend().buckets else positions
        return padded if most is None else min(padded, most)

    def _words(self, source: Ids, target_in: Ids) -> tuple[Tensor, Tensor]:
        """Return source and target, padded to one shape where the backend likes that."""
        columns = [self._columns(one.shape[1]) for one in (source, target_in)]
        if backend().buckets:
            columns = [max(columns)] * 2
        rows = self.rows(len(source))
        source, target_in = (_widened(one, (rows, two)) for one, two in zip((source, target_in), columns, strict=True))
        return self.place(source), self.place(target_in)

    def _placed(self, batch: Batch) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[int, int]]:
        """Return the words of a batch, the places that logits are needed for with their words, and the shape [B,T].

        Those are the real places, or all where the backend compiles for each shape.
        """
        words = self._words(batch.source, batch.target_in)
        shape = tuple(words[1].shape)
        target = _widened(batch.target_out, shape).reshape(-1)
        places = np.arange(len(target)) if backend().buckets else np.flatnonzero(target != PAD)
        return words, (self.place(places.astype(np.int32)), self.place(target[places])), shape

    def place(self, array: Any) -> Tensor:
        """Copy an array to the device."""
        with self.device():
            return ops.convert_to_tensor(np.asarray(array) if not isinstance(array, list) else np.array(array, np.int32))

    def device(self) -> Any:
        """Return a scope in which tensors lie and functions run on the model's device."""
        return keras.device(self._device)

    def synchronize(self) -> None:
        """Return when the device has finished all work that was enqueued."""
        backend().synchronize(self.held.weights)

    def compilation(self) -> Compilation:
        """Return how often functions were compiled so far, and how long that took."""
        seconds = self.program.seconds
        return Compilation(keras_backends.CHOSEN, backend().jit_compile, len(seconds), sum(seconds))

    # Weights and state ------------------------------------------------------------------------------------------------

    def weights(self) -> Arrays:
        """Return copies of all weights under their canonical names and in their canonical layouts."""
        return self._read(self.held.weights)

    def set_weights(self, weights: Arrays) -> None:
        """Replace all weights. Raises: ValueError naming what is missing, unexpected or misshaped."""
        _check(weights, self.program.shapes)
        moments = (self.held.first_moment, self.held.second_moment) if hasattr(self, "held") else ([], [])
        self.held = Held(self._written(weights), *moments)

    def training_state(self) -> Arrays:
        """Return all that an exact resume needs: weights, moments, the count of updates and the seed of the noise."""
        state: Arrays = {}
        for kind, tensors in zip(("weights", "first_moment", "second_moment"), self.held, strict=True):
            state |= {f"{kind}/{name}": array for name, array in self._read(tensors).items()}
        return state | {"updates": np.array(self._updates), "random/seed": np.array(self._seed)}

    def set_training_state(self, state: Arrays) -> None:
        """Go on from `training_state()`. Raises: ValueError naming what is missing, unexpected or misshaped."""
        kinds = ("weights", "first_moment", "second_moment")
        expected = {f"{kind}/{name}": shape for kind in kinds for name, shape in self.program.shapes.items()}
        _check(state, {**expected, "updates": (), "random/seed": ()})
        self._updates, self._seed = int(state["updates"]), int(state["random/seed"])
        parts = ({name: state[f"{kind}/{name}"] for name in self.program.shapes} for kind in kinds)
        self.held = Held(*(self._written(part) for part in parts))

    def _read(self, tensors: Tensors) -> Arrays:
        arrays = [ops.convert_to_numpy(one) for one in tensors]
        expected = self.program.shapes
        return {name: self.program.slots[name].read(arrays[self.program.slots[name].variable], expected[name]) for name in expected}

    def _written(self, given: Arrays) -> Tensors:
        arrays = [np.zeros(tuple(one.shape), np.float32) for one in self.program.variables]
        for name, slot in self.program.slots.items():
            slot.write(arrays[slot.variable], given[name])
        return [self.place(one) for one in arrays]

    def _zeros(self) -> Tensors:
        return [self.place(np.zeros(tuple(one.shape), np.float32)) for one in self.program.variables]


def _widened(ids: Ids, shape: tuple[int, ...]) -> Ids:
    rows, columns = (wanted - there for wanted, there in zip(shape, ids.shape, strict=True))
    return np.pad(ids, ((0, rows), (0, columns)), constant_values=PAD)


def _filled(row: np.ndarray[Any, Any], length: int, filler: int = PAD) -> Ids:
    return np.pad(row, (0, length - len(row)), constant_values=filler).astype(np.int32)


def _check(given: Arrays, expected: dict[str, tuple[int, ...]]) -> None:
    faults = [f"missing {name}" for name in expected if name not in given]
    faults += [f"unexpected {name}" for name in given if name not in expected]
    faults += [
        f"{name} has shape {given[name].shape}, allowed is {shape}"
        for name, shape in expected.items()
        if name in given and given[name].shape != shape
    ]
    if faults:
        raise ValueError("; ".join(faults))


def device_of(name: str) -> str:
    """Return what Keras calls a device. Raises: ValueError where there is none."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return "cpu:0"
    if kind not in ("cuda", "gpu") or not backend().has_gpu():
        raise ValueError(f"device {name!r} cannot be had here: allowed is cpu, or cuda where {keras_backends.CHOSEN} sees one")
    return f"gpu:{number or 0}"


def build(recipe: Recipe, source_words: int, target_words: int, **settings: Any) -> KerasModel:
    """Build any `TransformerRecipe` or `GruRecipe`; the settings are those of `impls.build`."""
    return KerasModel(recipe, source_words, target_words, **settings)
