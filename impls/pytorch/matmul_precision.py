"""The precision in which torch multiplies float32 matrices, set for the calls of one model and restored after each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch

from impls import registry

NAMES = ("highest", "high", "medium")
SIZE = 256
"""The size of the matrices that show whether a setting has an effect: torch multiplies small ones in float32."""

LEAST_ERROR = 1e-5
"""The least relative error of products in lower precision. That of float32 is about 1e-7, of bfloat16 2e-3."""


@contextlib.contextmanager
def matmul_precision(name: str) -> Iterator[None]:
    """Multiply float32 matrices in this precision; see `torch.set_float32_matmul_precision`.

    On a GPU this holds for convolutions and `nn.GRU` too, which by default are computed in TF32. The settings belong to
    the process: they hold for all threads, backward passes included.
    """
    before, tf32_before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    tf32 = name != "highest"
    if (before, tf32_before) == (name, tf32):
        yield
        return
    torch.set_float32_matmul_precision(name)
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = tf32_before


def training_products(name: str, device: str) -> AbstractContextManager[None]:
    """Return a context with the setting of `training_setting`."""
    return matmul_precision(training_setting(name, torch.device(device)))


def training_setting(name: str, device: torch.device) -> str:
    """Return the setting for products of few sizes in training: `name`, or a faster one of the same precision."""
    return _fastest_float32() if (name, device.type) == ("highest", "cpu") else name


@functools.cache
def _fastest_float32() -> str:
    """Return the setting with which this CPU multiplies large float32 matrices in float32 in the least time.

    With "medium", torch takes the kernels of oneDNN, otherwise those of MKL. An AMD processor with AVX-512 but without
    AMX multiplies in float32 with both, but MKL takes about twice as long there. With AVX2 alone, it takes no longer
    (both measured on an AMD EPYC). oneDNN keeps kernels for the sizes that it meets, so it suits products with few
    different sizes only: with attention's products and any number of packed rows, a training grew to 4 GB.
    """
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    is_slow = str(capabilities.get("cpu_name", "")).startswith("AMD") and capabilities.get("avx512_f", False)
    return "medium" if is_slow and not has_effect("medium", torch.device("cpu")) else "highest"


def check_matmul_precision(name: str, *, precision: str, device: torch.device) -> None:
    """Check that a precision of matrix products is known, fits the model and has an effect on the device.

    Raises:
        ValueError: The name is unknown, the model is in mixed precision, or the device multiplies in float32 anyway.
    """
    if name not in NAMES:
        raise ValueError(f"unknown matmul_precision {name!r}: use {', '.join(NAMES)}")
    if name == "highest":
        return
    if precision != "float32":
        raise ValueError(f"matmul_precision={name!r} with precision={precision!r}: it needs precision='float32'")
    if not has_effect(name, device):
        raise ValueError(registry.no_effect(name, str(device)))


def has_effect(name: str, device: torch.device) -> bool:
    """Return whether products of float32 matrices on the device lose precision with this setting."""
    with torch.inference_mode():
        x = torch.linspace(1, 2, SIZE * SIZE, device=device).view(SIZE, SIZE)
        with matmul_precision(name):
            product = (x @ x).cpu().double()
        expected = x.cpu().double() @ x.cpu().double()
    return float((product - expected).norm() / expected.norm()) >= LEAST_ERROR
