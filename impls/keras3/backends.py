"""What Keras 3 leaves to its backends: gradients, compilation, and the shapes that compilation likes.

TensorFlow compiles a function once for all shapes (`tf.function`), JAX once for each shape (`jax.jit`), of which
padding to buckets leaves few; torch runs as it stands. The backend is that of KERAS_BACKEND, fixed at the first
import, TensorFlow where it says nothing. Import Keras from here: this loads it without the other frameworks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Any, get_args

from impls import contract

FRAMEWORKS = get_args(contract.Backend)
os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND") or FRAMEWORKS[0]

Tensor = Any
Tensors = list[Any]


@contextlib.contextmanager
def _alone(chosen: str) -> Iterator[None]:
    """Hide the other frameworks: TensorFlow and Keras import JAX wherever it is installed, and use none of it."""
    hidden = [name for name in FRAMEWORKS if name != chosen and name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with _alone(os.environ["KERAS_BACKEND"]):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    from keras import ops

CHOSEN = keras.config.backend()
keras.config.set_floatx("float32")  # which ~/.keras/keras.json may have set otherwise

__all__ = ["CHOSEN", "Backend", "Compiled", "backend", "bucket", "keras", "ops"]


def bucket(size: int, *, step: int) -> int:
    """Return the least multiple of `step` that holds `size`, or below `step` the least power of two from 8 on."""
    if size > step // 2:
        return -(-size // step) * step
    return max(8, 1 << max(0, size - 1).bit_length())


class Backend:
    """Runs functions as they stand, on torch. `buckets`: whether arrays are to be padded to few shapes."""

    jit_compile = False
    buckets = False

    def gradients(self, function: Callable[[Tensors], tuple[Tensor, Any]], weights: Tensors) -> tuple[Tensors, Any]:
        """Return the gradients of what `function` returns first, and what it returns second."""
        import torch

        leaves = [tensor.detach().requires_grad_() for tensor in weights]
        with torch.enable_grad():
            value, rest = function(leaves)
            gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        return list(gradients), rest

    def compile(self, function: Callable[..., Any], *, gives_back: bool) -> Callable[..., Any]:
        """Return `function` ready to be called with tensors; with `gives_back` its first argument's memory is free."""
        import torch

        def without_gradients(*arguments: Any) -> Any:
            with torch.no_grad():
                return function(*arguments)

        return without_gradients

    def kinds(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return what a compilation is bound to: calls that agree in it share one. None: nothing is compiled."""
        return None

    def has_gpu(self) -> bool:
        """Return whether there is a GPU that the backend can use."""
        import torch

        return torch.cuda.is_available()

    def synchronize(self, tensors: Any) -> None:
        """Return when `tensors`, in whatever structure, have been computed."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()


class TensorFlow(Backend):
    """Compiles to a graph, once for arrays of any length."""

    def gradients(self, function: Any, weights: Tensors) -> tuple[Tensors, Any]:
        """Return the gradients of what `function` returns first, and what it returns second."""
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            value, rest = function(weights)
        gradients = tape.gradient(value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(tensor) for tensor in gradients], rest

    def compile(self, function: Callable[..., Any], *, gives_back: bool) -> Callable[..., Any]:
        """Return the graph of `function`; the shapes of its first argument are fixed, all others free."""
        import tensorflow as tf

        # Else a GPU multiplies float32 numbers cut to 10 bits, as torch does not.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        graphs: dict[Hashable, Any] = {}

        def free(array: Any) -> Any:
            return tf.TensorSpec([None] * len(array.shape), array.dtype)

        def call(*arguments: Any) -> Any:
            kind = self.kinds(arguments)
            if kind not in graphs:
                first = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), arguments[0])
                signature = (first, *tf.nest.map_structure(free, arguments[1:]))
                graphs[kind] = tf.function(function, input_signature=signature, autograph=False)
            return graphs[kind](*arguments)

        return call

    def kinds(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return how many arrays each argument has: one graph serves all of as many."""
        import tensorflow as tf

        return tuple(len(tf.nest.flatten(argument)) for argument in arguments[1:])

    def has_gpu(self) -> bool:
        """Return whether there is a GPU that the backend can use."""
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))

    def synchronize(self, tensors: Any) -> None:
        """Return when `tensors`, in whatever structure, have been computed."""
        import tensorflow as tf

        tf.test.experimental.sync_devices()


class Jax(Backend):
    """Compiles by XLA, anew for each shape."""

    jit_compile = True
    buckets = True

    def gradients(self, function: Any, weights: Tensors) -> tuple[Tensors, Any]:
        """Return the gradients of what `function` returns first, and what it returns second."""
        import jax

        (_, rest), gradients = jax.value_and_grad(function, has_aux=True)(weights)
        return gradients, rest

    def compile(self, function: Callable[..., Any], *, gives_back: bool) -> Callable[..., Any]:
        """Return `function` compiled; with `gives_back` its first argument's memory is used for what it returns."""
        import jax

        # Else a GPU multiplies float32 numbers cut to 10 bits, as torch does not.
        jax.config.update("jax_default_matmul_precision", "highest")
        return jax.jit(function, donate_argnums=(0,) if gives_back else ())

    def kinds(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return the shapes of all but the first argument."""
        import jax

        return tuple(leaf.shape for leaf in jax.tree_util.tree_leaves(arguments[1:]))

    def has_gpu(self) -> bool:
        """Return whether there is a GPU that the backend can use."""
        import jax

        return any(device.platform == "gpu" for device in jax.devices())

    def synchronize(self, tensors: Any) -> None:
        """Return when `tensors`, in whatever structure, have been computed."""
        import jax

        jax.block_until_ready(tensors)


class Compiled:
    """A function that notes how long its compilations take: the first call of each kind, its run included.

    `seconds`: those first calls, in order. `gives_back`: the caller needs its first argument no more.
    """

    def __init__(self, function: Callable[..., Any], seconds: list[float], *, gives_back: bool = False) -> None:
        self._call = backend().compile(function, gives_back=gives_back)
        self._seconds = seconds
        self._known: set[Hashable] = {None}

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        kind = backend().kinds(arguments)
        if kind in self._known:
            return self._call(*arguments)
        # What was enqueued before would run meanwhile, and its time count as this compilation's.
        backend().synchronize(arguments)
        began = time.perf_counter()
        result = self._call(*arguments)
        backend().synchronize(result)
        self._seconds.append(time.perf_counter() - began)
        self._known.add(kind)
        return result


def backend() -> Backend:
    """Return this process's backend."""
    return BACKENDS[keras.backend.backend()]


BACKENDS = {"tensorflow": TensorFlow(), "jax": Jax(), "torch": Backend()}
