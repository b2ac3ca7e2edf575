"""Backend-specific parts of Keras 3: gradients, compilation and padding to buckets.

TensorFlow compiles a function once for all shapes (`tf.function`), JAX once for each shape (`jax.jit`), so shapes are
padded to few buckets; torch is not compiled. KERAS_BACKEND chooses the backend, TensorFlow by default, and the first
import fixes it. Import Keras from here, because this module loads it without the other frameworks.
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
    """Hide the other frameworks: TensorFlow and Keras import JAX if it is installed, although they do not use it."""
    hidden = [name for name in FRAMEWORKS if name != chosen and name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


with contextlib.suppress(ImportError):
    import sklearn  # noqa: F401  # Keras imports it if it is installed, and SciPy 1.18 cannot while modules are hidden

with _alone(os.environ["KERAS_BACKEND"]):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    from keras import layers, ops

CHOSEN = keras.config.backend()
keras.config.set_floatx("float32")  # overrides ~/.keras/keras.json

__all__ = ["CHOSEN", "Backend", "Compiled", "Tensor", "Tensors", "backend", "bucket", "keras", "layers", "ops"]


def bucket(size: int, *, step: int) -> int:
    """Round `size` up to a multiple of `step`, or below `step` / 2 to a power of two of at least 8."""
    if size > step // 2:
        return -(-size // step) * step
    return max(8, 1 << max(0, size - 1).bit_length())


class Backend:
    """The torch backend, which does not compile. `buckets` is whether to pad arrays to few shapes."""

    jit_compile = False
    buckets = False

    def gradients(self, function: Callable[[Tensors], tuple[Tensor, Any]], weights: Tensors) -> tuple[Tensors, Any]:
        """Return the gradients of the function's first result, and its second result."""
        import torch

        leaves = [tensor.detach().requires_grad_() for tensor in weights]
        with torch.enable_grad():
            value, rest = function(leaves)
            gradients = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        # Attached to their graph, results that are kept would keep the weights of their update, too.
        return list(gradients), keras.tree.map_structure(lambda tensor: tensor.detach(), rest)

    def compile(self, function: Callable[..., Any], *, donate: bool) -> Callable[..., Any]:
        """Return `function` without gradients; with `donate` it may reuse the memory of its first argument."""
        import torch

        # Otherwise a GPU computes convolutions in TF32 with 10 bits of mantissa.
        torch.backends.cudnn.allow_tf32 = False

        def without_gradients(*arguments: Any) -> Any:
            with torch.no_grad():
                return function(*arguments)

        return without_gradients

    def kinds(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return a key of the compilation: calls with equal keys share one. None if nothing is compiled."""
        return None

    def has_gpu(self) -> bool:
        """Return whether the backend can use a GPU."""
        import torch

        return torch.cuda.is_available()

    def synchronize(self, tensors: Any) -> None:
        """Wait until `tensors`, in any structure, have been computed."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()


class TensorFlow(Backend):
    """Compiles to a graph once, for arrays of any length."""

    def gradients(self, function: Any, weights: Tensors) -> tuple[Tensors, Any]:
        """Return the gradients of the function's first result, and its second result."""
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            value, rest = function(weights)
        gradients = tape.gradient(value, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(tensor) for tensor in gradients], rest

    def compile(self, function: Callable[..., Any], *, donate: bool) -> Callable[..., Any]:
        """Return the graph of `function`; the shapes of its first argument are fixed, all others are dynamic."""
        import tensorflow as tf

        # Otherwise a GPU multiplies in TF32 with 10 bits of mantissa.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        graphs: dict[Hashable, Any] = {}

        def free(array: Any) -> Any:
            return tf.TensorSpec([None] * len(array.shape), array.dtype)

        def call(*arguments: Any) -> Any:
            kind = self.kinds(arguments)
            if kind not in graphs:
                first = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), arguments[0])
                signature = (first, *tf.nest.map_structure(free, arguments[1:]))
                # A call of the function itself would compare every argument with the signature three times.
                whole = tf.function(function, input_signature=signature, autograph=False)
                graphs[kind] = whole.get_concrete_function()
            return graphs[kind](*arguments)

        return call

    def kinds(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return the number of arrays of each argument: calls with equal numbers share a graph."""
        import tensorflow as tf

        return tuple(len(tf.nest.flatten(argument)) for argument in arguments[1:])

    def has_gpu(self) -> bool:
        """Return whether the backend can use a GPU."""
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU"))

    def synchronize(self, tensors: Any) -> None:
        """Wait until `tensors`, in any structure, have been computed."""
        import tensorflow as tf

        tf.test.experimental.sync_devices()


class Jax(Backend):
    """Compiles by XLA for each shape."""

    jit_compile = True
    buckets = True

    def gradients(self, function: Any, weights: Tensors) -> tuple[Tensors, Any]:
        """Return the gradients of the function's first result, and its second result."""
        import jax

        (_, rest), gradients = jax.value_and_grad(function, has_aux=True)(weights)
        return gradients, rest

    def compile(self, function: Callable[..., Any], *, donate: bool) -> Callable[..., Any]:
        """Return `function` compiled; with `donate` the result reuses the memory of its first argument."""
        import jax

        # Otherwise a GPU multiplies in TF32 with 10 bits of mantissa.
        jax.config.update("jax_default_matmul_precision", "highest")
        return jax.jit(function, donate_argnums=(0,) if donate else ())

    def kinds(self, arguments: tuple[Any, ...]) -> Hashable:
        """Return the shapes of all but the first argument."""
        import jax

        return tuple(leaf.shape for leaf in jax.tree_util.tree_leaves(arguments[1:]))

    def has_gpu(self) -> bool:
        """Return whether the backend can use a GPU."""
        import jax

        return any(device.platform == "gpu" for device in jax.devices())

    def synchronize(self, tensors: Any) -> None:
        """Wait until `tensors`, in any structure, have been computed."""
        import jax

        jax.block_until_ready(tensors)


class Compiled:
    """A compiled function that records how long its compilations take.

    `seconds` receives the time of the first call of each kind, including its run. With `donate`, the caller gives up
    the memory of the first argument.
    """

    def __init__(self, function: Callable[..., Any], seconds: list[float], *, donate: bool = False) -> None:
        self._call = backend().compile(function, donate=donate)
        self._seconds = seconds
        self._compiled: set[Hashable] = {None}

    def __call__(self, *arguments: Any) -> Any:
        """Call the function."""
        kind = backend().kinds(arguments)
        if kind in self._compiled:
            return self._call(*arguments)
        # Earlier work must not count as compilation time.
        backend().synchronize(arguments)
        began = time.perf_counter()
        result = self._call(*arguments)
        backend().synchronize(result)
        self._seconds.append(time.perf_counter() - began)
        self._compiled.add(kind)
        return result


def backend() -> Backend:
    """Return this process's backend."""
    return BACKENDS[keras.backend.backend()]


BACKENDS = {"tensorflow": TensorFlow(), "jax": Jax(), "torch": Backend()}
