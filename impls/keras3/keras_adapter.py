"""Turns the Keras networks of this package into a `Seq2SeqModel`: batches, updates, decoding, weights in and out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from impls.contract import (
    NO_TOTALS,
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
from impls.field_checks import check_length
from impls.keras3 import backends
from impls.keras3.backends import Tensor, Tensors, backend, bucket, keras, ops
from impls.keras3.compiled import Given, Held, Sums, Update, program
from impls.keras3.keras_packing import Packing
from impls.weights import check, draw

PRECISIONS = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
COLUMNS, ROWS, PACKED = 8, 32, 256
"""Bucket sizes of positions, sentences and packed rows, for backends that compile each shape."""


class KerasDecoding:
    """Incremental decoding of a batch. The first `rows` rows of the state are used, the rest pads the bucket."""

    def __init__(self, model: KerasModel, state: dict[str, Tensor], rows: int) -> None:
        self._model, self._state, self._rows, self._position = model, state, rows, 0

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest token of each row, [B], and return the `best` most probable next tokens."""
        model, most = self._model, self._model.max_length
        if most is not None:
            check_length(self._position + 1, most)
        with model.device():
            self._state = model.program.network.with_capacity(self._state, self._position)
            newest = model.to_device(_filled(last, model.rows(self._rows)))
            position = model.to_device(np.array([self._position], np.int32))
            call = model.program.step(min(best, model.target_vocabulary_size))
            scores, tokens, self._state = call(model.held.weights, self._state, newest, position)
        self._position += 1
        scores, tokens = (ops.convert_to_numpy(array)[: self._rows] for array in (scores, tokens))
        return Candidates(scores, tokens.astype(np.int32))

    def reorder(self, rows: np.ndarray[Any, np.dtype[np.intp]]) -> None:
        """Keep, drop, repeat or reorder rows."""
        self._rows = len(rows)
        with self._model.device():
            chosen = self._model.to_device(_filled(rows, self._model.rows(self._rows), 0))
            self._state = {name: ops.take(tensor, chosen, axis=0) for name, tensor in self._state.items()}


class KerasModel:
    """A `Seq2SeqModel` around a compiled `Program`."""

    def __init__(
        self,
        recipe: Recipe,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        training: Training,
        seed: int,
        device: str,
        precision: str,
        network: Any = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"unknown precision {precision!r}: use {' or '.join(PRECISIONS)}")
        self.recipe = recipe if network is None else None  # which another network does not obey
        self.target_vocabulary_size, self._device = target_vocabulary_size, device_of(device)
        sizes, policy = (source_vocabulary_size, target_vocabulary_size), PRECISIONS[precision]
        self.program = program(recipe, *sizes, policy=policy, device=self._device, network=network)
        self.max_length = self.program.network.max_length
        self._compiled_earlier = len(self.program.seconds)
        self._training, self._seed, self._updates = training, seed, 0
        self._sums: list[tuple[Sums, int]] = []
        self._summed = NO_TOTALS
        start = self._written({name: draw(recipe, name, shape, seed) for name, shape in self.program.shapes.items()})
        self.held = Held(start, self._zeros(), self._zeros())

    # Training ---------------------------------------------------------------------------------------------------------

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Enqueue one update at `learning_rate`; never waits for the device."""
        self._updates += 1
        packed = self._given(batch)
        teacher_forced: tuple[Tensor, ...] = ()
        if isinstance(self.recipe, GruRecipe) and self._training.teacher_forcing < 1:
            teacher_forced = (
                self.to_device(self._training.teacher_forcing_mask(self._seed, self._updates, packed.ids[1].shape[1])),
            )
        drawn = np.random.SeedSequence([self._seed, self._updates]).generate_state(2 * len(self.program.seeds))
        seeds = (drawn >> 1).astype(self.program.seed_type).reshape(-1, 2)
        with self.device():
            number = self._scalars(learning_rate, batch.tokens)
            self.held, sums = self.program.update(self.held, number, self.to_device(seeds), packed, teacher_forced)
        self._sums.append((sums, batch.tokens))

    def _scalars(self, rate: float, tokens: int) -> Update:
        training, updates = self._training, self._updates
        numbers = (
            rate / (1 - training.beta1**updates),
            (1 - training.beta2**updates) ** 0.5,
            training.epsilon,
            1 - training.beta1,
            1 - training.beta2,
            np.inf if training.clip_norm is None else training.clip_norm,
            max(tokens, 1),
        )
        smoothing = (training.label_smoothing,) if training.label_smoothing else ()
        return Update(tuple(map(self._scalar, smoothing)), *map(self._scalar, numbers))

    def _scalar(self, number: float) -> Tensor:
        return self.to_device(np.float32(number))

    def take_totals(self) -> Totals:
        """Wait for the device, return the sums since the last call, and reset them."""
        totals = self.peek_totals()
        self._summed = NO_TOTALS
        return totals

    def peek_totals(self) -> Totals:
        """Wait for the device and return the sums since the last `take_totals`, without resetting them."""
        # The pending updates are added one by one, so that the time of the call does not change the rounding.
        totals = self._summed
        for update, tokens in self._sums:
            objective, nats, norm = (float(ops.convert_to_numpy(value)) for value in update)
            totals = Totals(
                objective_nats=totals.objective_nats + objective,
                nats=totals.nats + nats,
                tokens=totals.tokens + tokens,
                updates=totals.updates + 1,
                largest_gradient_norm=float(np.maximum(totals.largest_gradient_norm, norm)),
                finite=totals.finite and bool(np.isfinite([objective, nats, norm]).all()),
            )
        self._summed, self._sums = totals, []
        return totals

    # Evaluation -------------------------------------------------------------------------------------------------------

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target token, [B,T]; 0 at padding."""
        packed = self._given(batch)
        with self.device():
            nats = ops.convert_to_numpy(self.program.nats(self.held.weights, packed))
        rows = ops.convert_to_numpy(packed.packings[1].rows)[: len(batch.target_out), : batch.target_out.shape[1]]
        return np.where(batch.target_out == PAD, np.float32(0), nats[rows])

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the logits of the next token at each position, [B,T,V]."""
        with self.device():
            logits = self.program.logits(self.held.weights, self._words(source, target_in))
        rows, columns = target_in.shape
        return np.array(ops.convert_to_numpy(logits)[:rows, :columns])

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the attention weights of target on source positions, [B,layers,H,T,S]; each row sums to 1."""
        with self.device():
            attention = self.program.attention(self.held.weights, self._words(source, target_in))
        rows, columns = target_in.shape
        return np.array(ops.convert_to_numpy(attention)[:rows, :, :, :columns, : source.shape[1]])

    def begin_decoding(self, source: Ids) -> KerasDecoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first token."""
        rows, columns = self.rows(len(source)), self._columns(source.shape[1])
        with self.device():
            state = self.program.prefill(self.held.weights, self.to_device(_widened(source, (rows, columns))))
        return KerasDecoding(self, state, len(source))

    # Arrays and the device --------------------------------------------------------------------------------------------

    def rows(self, sentences: int) -> int:
        """Return the padded number of rows."""
        return bucket(sentences, step=ROWS) if backend().buckets else sentences

    def _columns(self, positions: int) -> int:
        """Return the padded number of positions. Raises: ValueError beyond max_length."""
        most = self.max_length
        # At least 2, because Keras warns of a softmax over 1 position.
        padded = bucket(positions, step=COLUMNS) if backend().buckets else max(2, positions)
        if most is None:
            return padded
        check_length(positions, most)
        return min(padded, most)

    def _padded(self, source: Ids, target_in: Ids) -> tuple[Ids, Ids]:
        """Return source and target, padded to one shape if the backend compiles for each shape."""
        columns = [self._columns(ids.shape[1]) for ids in (source, target_in)]
        if backend().buckets:
            columns = [max(columns)] * 2
        rows = self.rows(len(source))
        return _widened(source, (rows, columns[0])), _widened(target_in, (rows, columns[1]))

    def _words(self, source: Ids, target_in: Ids) -> tuple[Tensor, Tensor]:
        source, target_in = self._padded(source, target_in)
        return self.to_device(source), self.to_device(target_in)

    def _given(self, batch: Batch) -> Given:
        """Return a batch on the device, with packed rows padded too if the backend compiles for each shape."""
        source, target_in = self._padded(batch.source, batch.target_in)
        target_out = _widened(batch.target_out, target_in.shape)
        packings = [Packing.of(real) for real in (source != PAD, (target_in != PAD) | (target_out != PAD))]
        targets = target_out.reshape(-1)[packings[1].indices]
        if backend().buckets:
            size = bucket(max(len(packing.indices) for packing in packings), step=PACKED)
            packings = [packing._replace(indices=_filled(packing.indices, size, 0)) for packing in packings]
            targets = _filled(targets, size)
        first, second = (Packing(*map(self.to_device, packing)) for packing in packings)
        return Given((self.to_device(source), self.to_device(target_in)), (first, second), self.to_device(targets))

    def to_device(self, array: Any) -> Tensor:
        """Copy an array to the device."""
        with self.device():
            return ops.convert_to_tensor(array)

    def device(self) -> Any:
        """Return a context that runs on the model's device."""
        return keras.device(self._device)

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""
        backend().synchronize(self.held.weights)

    def compilation(self) -> Compilation:
        """Return the number of compilations so far and their time, without those of earlier models of the program."""
        seconds = self.program.seconds[self._compiled_earlier :]
        return Compilation(backends.CHOSEN, backend().jit_compile, len(seconds), sum(seconds))

    # Weights and state ------------------------------------------------------------------------------------------------

    def weights(self) -> Arrays:
        """Return copies of all weights under their canonical names and in their canonical layouts."""
        return self._read(self.held.weights)

    def set_weights(self, weights: Arrays) -> None:
        """Replace all weights. Raises: ValueError naming what is missing, unexpected or misshaped."""
        check(weights, self.program.shapes)
        self.held = self.held._replace(weights=self._written(weights))

    def training_state(self) -> Arrays:
        """Return what an exact resume needs: weights, moments, the number of updates and the seed."""
        state: Arrays = {}
        for kind, tensors in zip(("weights", "first_moment", "second_moment"), self.held, strict=True):
            state |= {f"{kind}/{name}": array for name, array in self._read(tensors).items()}
        state |= {f"totals/{name}": np.array(value) for name, value in vars(self.peek_totals()).items()}
        return state | {"updates": np.array(self._updates), "random/seed": np.array(self._seed)}

    def set_training_state(self, state: Arrays) -> None:
        """Continue from `training_state()`. Raises: ValueError naming what is missing, unexpected or misshaped."""
        kinds = ("weights", "first_moment", "second_moment")
        expected = {f"{kind}/{name}": shape for kind in kinds for name, shape in self.program.shapes.items()}
        sums = {f"totals/{total.name}": () for total in fields(Totals)}
        check(state, {**expected, **sums, "updates": (), "random/seed": ()})
        self._updates, self._seed = int(state["updates"]), int(state["random/seed"])
        self._summed, self._sums = Totals(**{name.removeprefix("totals/"): state[name].item() for name in sums}), []
        parts = ({name: state[f"{kind}/{name}"] for name in self.program.shapes} for kind in kinds)
        self.held = Held(*(self._written(part) for part in parts))

    def _read(self, tensors: Tensors) -> Arrays:
        arrays, slots = [ops.convert_to_numpy(tensor) for tensor in tensors], self.program.slots
        return {
            name: slots[name].read(arrays[slots[name].variable], shape) for name, shape in self.program.shapes.items()
        }

    def _written(self, weights: Arrays) -> Tensors:
        arrays = [np.zeros(tuple(array.shape), np.float32) for array in self.program.variables]
        for name, slot in self.program.slots.items():
            slot.write(arrays[slot.variable], weights[name])
        return [self.to_device(array) for array in arrays]

    def _zeros(self) -> Tensors:
        return [self.to_device(np.zeros(tuple(variable.shape), np.float32)) for variable in self.program.variables]


def _widened(ids: Ids, shape: tuple[int, ...]) -> Ids:
    rows, columns = (wanted - size for wanted, size in zip(shape, ids.shape, strict=True))
    return np.pad(ids, ((0, rows), (0, columns)), constant_values=PAD)


def _filled(row: np.ndarray[Any, Any], length: int, filler: int = PAD) -> Ids:
    return np.pad(row, (0, length - len(row)), constant_values=filler).astype(np.int32)


def device_of(name: str) -> str:
    """Return Keras's name of a device. Raises: ValueError if it is not available."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return "cpu"
    if kind not in ("cuda", "gpu") or not backend().has_gpu():
        raise ValueError(f"device {name!r} is not available: {backends.CHOSEN} sees no such device; use cpu")
    return f"gpu:{number or 0}"


def build(recipe: Recipe, source_vocabulary_size: int, target_vocabulary_size: int, **settings: Any) -> KerasModel:
    """Build any `TransformerRecipe` or `GruRecipe` with the settings of `impls.build`.

    `network`, a subclass of `TransformerNetwork`, replaces that of the recipe; see `examples/keras_squared_relu.py`.
    """
    return KerasModel(recipe, source_vocabulary_size, target_vocabulary_size, **settings)
