"""The compiled functions of a Keras network (update, evaluation, decoding) and the location of its canonical weights.

Weights and moments are arguments and results of functions, so that all models of a recipe share the compilations. The
code is independent of the torch implementation.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from impls import weights
from impls.contract import PAD, GruRecipe, Numbers, Recipe
from impls.keras3.backends import Compiled, Tensor, Tensors, backend, keras, ops
from impls.keras3.gru import GruNetwork
from impls.keras3.keras_packing import Packing
from impls.keras3.keras_transformer import TransformerNetwork, canonical

TINY = 1e-6
"""Added to the gradient norm before dividing by it, as in torch."""

GRU_VARIABLES = {
    "kernel": (("input.kernel", None),),
    "recurrent_kernel": (("hidden.kernel", None),),
    "bias": (("input.bias", 0), ("hidden.bias", 1)),
}
"""The canonical tensors in each variable of a Keras GRU: name and row, or None for the whole variable."""


class Slot(NamedTuple):
    """The location of a canonical tensor: index of the variable, row, and whether its gates must be reordered."""

    variable: int
    row: int | None = None
    gates: bool = False

    def read(self, array: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Numbers:
        """Return a copy of the canonical tensor in a variable's array."""
        values = array if self.row is None else array[self.row]
        return np.array(self._swapped(values).reshape(shape), np.float32)

    def write(self, array: np.ndarray[Any, Any], canonical_array: Numbers) -> None:
        """Write a canonical tensor into a variable's array."""
        target = array if self.row is None else array[self.row]
        target[...] = self._swapped(np.asarray(canonical_array, np.float32)).reshape(target.shape)

    def _swapped(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Convert between Keras's order of gates (update, reset, candidate) and ours (reset, update, candidate)."""
        if not self.gates:
            return array
        first, second, third = np.split(array, 3, axis=-1)
        return np.concatenate([second, first, third], axis=-1)


def slots(variables: list[Any], *, gru: bool) -> dict[str, Slot]:
    """Return the location of each canonical tensor in the variables of a network; `gru`: of a `GruNetwork`.

    Raises: ValueError for a variable whose path has no layer, as that of `keras.Variable`.
    """
    slots_by_name: dict[str, Slot] = {}
    for variable in variables:
        if "/" not in variable.path:
            raise ValueError(f"weight {variable.path!r} has no layer's name: layers create theirs with `add_weight`")
    names = [canonical(variable) for variable in variables]
    for number, (name, variable) in enumerate(zip(names, variables, strict=True)):
        parts = [part for part in variable.path.split("/") if part != "gru_cell"]
        if gru and parts[-2] in ("encoder-forward", "encoder-backward", "decoder"):
            layer = parts[-2].replace("-", ".")
            slots_by_name |= {
                f"{layer}.{part}": Slot(number, row, gates=True) for part, row in GRU_VARIABLES[parts[-1]]
            }
        else:
            # The layers inside of Keras's own, such as MultiHeadAttention, have the same names in each of them.
            slots_by_name[name if names.count(name) == 1 else canonical(variable, layers=2)] = Slot(number)
    return slots_by_name


class Held(NamedTuple):
    """The tensors that an update changes, one per variable each."""

    weights: Tensors
    first_moment: Tensors
    second_moment: Tensors


class Update(NamedTuple):
    """The scalars of one update.

    `step` is rate / (1 - beta1^n), `correction` sqrt(1 - beta2^n), after n updates; `left1` and `left2` are 1 - beta,
    computed in float64. `smoothing` is empty without label smoothing.
    """

    smoothing: tuple[Tensor, ...]
    step: Tensor
    correction: Tensor
    epsilon: Tensor
    left1: Tensor
    left2: Tensor
    clip_norm: Tensor
    tokens: Tensor


class Given(NamedTuple):
    """A batch on the device.

    Shapes: ids are source [B,S] and target_in [B,T]; packings those of both, with N rows on the target side; targets
    are the tokens to predict, [N].
    """

    ids: tuple[Tensor, Tensor]
    packings: tuple[Packing, Packing]
    targets: Tensor


class Sums(NamedTuple):
    """The sums of one update."""

    objective_nats: Tensor
    nats: Tensor
    gradient_norm: Tensor


class _Read(keras.StatelessScope):
    """Within this scope all variables are 0, and `variables` collects those that are read.

    Their own values may not exist: a layer first called in `ops.scan` on JAX gets those of a trace that has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.variables: list[Any] = []

    def get_current_value(self, variable: Any) -> Any:
        """Return 0 in the shape of the variable that Keras reads."""
        self.variables.append(variable)
        return ops.zeros(variable.shape, variable.dtype)


def _built(kind: Any, recipe: Recipe, *sizes: int) -> Any:
    """Return a new network with its variables."""
    network, words = kind(recipe, *sizes), ops.zeros((1, 2), "int32")
    network.project(network(words, words))  # the first call of a layer creates its variables
    return network


def _check_variables(network: Any) -> None:
    """Raise ValueError if the network of a user reads a variable that is not part of it."""
    words = ops.zeros((1, 2), "int32")
    with _Read() as read:
        network.project(network(words, words))
    own = {id(variable) for variable in network.variables}
    for variable in read.variables:
        if id(variable) not in own:
            raise ValueError(
                f"{type(network).__name__}: {variable.path!r} is not part of the network, so it is neither trained nor "
                "stored: create layers in `__init__`, and make each an attribute of the layer that uses it"
            )


class Program:
    """A network and its compiled functions, shared by all models of a recipe. Its variables' values are unused."""

    def __init__(self, recipe: Recipe, *sizes: int, policy: str, network: Any) -> None:
        if network is not None and not (isinstance(network, type) and issubclass(network, TransformerNetwork)):
            wanted = f"a subclass of {TransformerNetwork.__module__}.TransformerNetwork"
            raise ValueError(f"network={network!r}: use {wanted}, with layers of your own")
        with _policy(policy):
            kind: Any = network or (GruNetwork if isinstance(recipe, GruRecipe) else TransformerNetwork)
            self.network = _built(kind, recipe, *sizes)
            if network is not None:
                _check_variables(self.network)
                again = _built(kind, recipe, *sizes)
        self.variables = variables = self.network.trainable_variables
        self.slots = slots(variables, gru=kind is GruNetwork)
        if network is None:
            self.shapes = weights.shapes(recipe, *sizes)
            assert self.slots.keys() == self.shapes.keys(), self.slots.keys() ^ self.shapes.keys()
        else:
            self.shapes = {name: tuple(variables[slot.variable].shape) for name, slot in self.slots.items()}
            if len(self.slots) != len(variables):
                raise ValueError(f"{network.__name__}: layers with weights need different names")
            if unnamed := sorted(self.slots.keys() - slots(again.trainable_variables, gru=False).keys()):
                raise ValueError(
                    f"{network.__name__}: the name of weight {unnamed[0]!r} is automatic, and another one for the next "
                    "network: give all layers that have weights a name, and all weights of `add_weight`"
                )
        constant = self.network.non_trainable_variables
        self.seeds = [variable for variable in constant if variable.path.endswith("seed_generator_state")]
        if len(self.seeds) != len(constant):
            others = [variable.path for variable in constant if not variable.path.endswith("seed_generator_state")]
            raise ValueError(
                f"{kind.__name__}: {others[0]!r} is not trained, and only trained weights are stored: use trainable "
                "layers without running statistics, such as LayerNormalization, and compute constants in `call`"
            )
        self.seed_type = np.dtype(keras.backend.standardize_dtype(self.seeds[0].dtype)) if self.seeds else np.int64
        self.seconds: list[float] = []
        self.update = Compiled(self._update, self.seconds, donate=True)
        self.nats = Compiled(self._nats, self.seconds)
        self.logits = Compiled(self._logits, self.seconds)
        self.attention = Compiled(self._attention, self.seconds)
        self.prefill = Compiled(self._begin, self.seconds)
        self.steps: dict[int, Compiled] = {}

    def step(self, best: int) -> Compiled:
        """Return the function of a decoding step that returns the `best` next tokens."""
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

    def _packed_logits(self, batch: Given, *teacher_forced: Tensor, training: bool = False) -> Tensor:
        """Return the float32 logits at the packed target positions, [N,V]."""
        features = self.network(*batch.ids, batch.packings, *teacher_forced, training=training)
        return ops.cast(self.network.project(features[0]), "float32")

    def _update(
        self, held: Held, number: Update, seeds: Tensor, batch: Given, teacher_forced: tuple[Tensor, ...]
    ) -> tuple[Held, Sums]:
        """Return `held` after one update, and its sums; `teacher_forced` holds the mask [T] or is empty."""
        target = batch.targets
        real = ops.cast(ops.not_equal(target, PAD), "float32")

        def mean(values: Tensors) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            with self._with(values, seeds):
                logits = self._packed_logits(batch, *teacher_forced, training=True)
            nats = ops.sum(real * ops.sparse_categorical_crossentropy(target, logits, from_logits=True))
            objective = nats
            for share in number.smoothing:
                # Szegedy et al. 2016, section 7: the smoothed share is spread evenly over the vocabulary.
                even = ops.sum(real * (ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)))
                objective = (1 - share) * nats + share * even
            return objective / number.tokens, (objective, nats)

        slopes, (objective, nats) = backend().gradients(mean, held.weights)
        norm = ops.sqrt(sum(ops.sum(ops.square(slope)) for slope in slopes))
        scale = ops.minimum(number.clip_norm / (norm + TINY), 1.0)
        changed = [_adam(number, scale * slope, *tensors) for slope, *tensors in zip(slopes, *held, strict=True)]
        after = Held(*(list(tensors) for tensors in zip(*changed, strict=True)))
        return after, Sums(objective, nats, norm)

    def _nats(self, values: Tensors, batch: Given) -> Tensor:
        """Return the negative log-likelihood of the target tokens at the packed positions, [N]."""
        with self._with(values):
            logits = self._packed_logits(batch)
        chosen = ops.take_along_axis(logits, batch.targets[:, None], axis=1)[:, 0]
        return ops.logsumexp(logits, axis=-1) - chosen

    def _logits(self, values: Tensors, words: tuple[Tensor, Tensor]) -> Tensor:
        with self._with(values):
            return ops.cast(self.network.project(self.network(*words)), "float32")

    def _attention(self, values: Tensors, words: tuple[Tensor, Tensor]) -> Tensor:
        with self._with(values):
            return ops.cast(self.network.cross_attention(*words), "float32")

    def _begin(self, values: Tensors, source: Tensor) -> dict[str, Tensor]:
        with self._with(values):
            return self.network.prefill(source)

    def _step(
        self, best: int, values: Tensors, state: dict[str, Tensor], last: Tensor, position: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return log-probabilities and tokens, [B,N] each, and the next state."""
        with self._with(values):
            features, after = self.network.step(state, last, position)
            logits = ops.cast(self.network.project(features), "float32")
        scores, tokens = ops.top_k(logits, best)
        return scores - ops.logsumexp(logits, axis=-1, keepdims=True), tokens, after


def _adam(number: Update, slope: Tensor, weight: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Return the weight and its moments after one step of Adam (Kingma and Ba 2015, algorithm 1)."""
    first = first + number.left1 * (slope - first)
    second = second + number.left2 * (ops.square(slope) - second)
    # Epsilon is added after bias correction, as in the paper's algorithm 1 and unlike its section 2.
    weight = weight - number.step * first / (ops.sqrt(second) / number.correction + number.epsilon)
    return weight, first, second


@contextlib.contextmanager
def _policy(name: str) -> Iterator[None]:
    """Build layers with this precision policy within the context."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


@functools.lru_cache(maxsize=16)
def program(recipe: Recipe, *sizes: int, policy: str, device: str, network: Any) -> Program:
    """Return the cached program of a recipe, or of a network of the user with the sizes of a recipe."""
    with keras.device(device):
        return Program(recipe, *sizes, policy=policy, network=network)
