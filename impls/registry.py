"""Finds a variant's recipe and training by name, and the builder of a (family, framework) pair, imported lazily."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, get_args

from impls.contract import Backend, Recipe, Training
from impls.recipes import RECIPES, TRAININGS

BUILDERS: dict[tuple[str, str], str] = {
    ("transformer", "torch"): "impls.pytorch.torch_adapter:build_transformer",
    ("gru", "torch"): "impls.pytorch.torch_adapter:build_gru",
    ("torch_reference", "torch"): "impls.pytorch.torch_adapter:build_torch_reference",
    ("plain", "torch"): "impls.pytorch.plain_adapter:build",
    ("transformer", "keras"): "impls.keras3.keras_adapter:build",
    ("gru", "keras"): "impls.keras3.keras_adapter:build",
}
GRAPH_BUILDERS: dict[tuple[str, str], str] = {("transformer", "torch"): "impls.pytorch.cuda_graph_training:build"}
"""What builds models whose updates are captured as CUDA graphs."""

INSTALL = {
    "torch": "python -m pip install '.[torch]'",
    "keras": "python -m pip install '.[keras]'",
    "tensorflow": "python -m pip install '.[keras]'",
    "jax": "python -m pip install '.[keras,jax]'",
}
BACKENDS: tuple[str, ...] = get_args(Backend)


def names() -> tuple[str, ...]:
    """Return the names of the built-in variants."""
    return tuple(RECIPES)


def recipe(name: str) -> Recipe:
    """Return the recipe of a built-in variant. Raises: ValueError with the nearest name."""
    return RECIPES[_known(name)]


def training(name: str) -> Training:
    """Return how a built-in variant's source trains it. Raises: ValueError with the nearest name."""
    return TRAININGS[_known(name)]


def find_builder(family: str, framework: str, backend: str | None = None) -> str:
    """Return "module:name" of what builds `family` in `framework`, without importing it.

    Raises: ValueError where there is none, or where the framework or what Keras runs on is not installed, saying what
    to install.
    """
    if (family, framework) not in BUILDERS:
        there = sorted(one for kind, one in BUILDERS if kind == family)
        raise ValueError(f"framework {framework!r} has no {family!r}: allowed is {', '.join(there)}")
    if backend is not None and framework != "keras":
        raise ValueError(f"backend {backend!r} with framework {framework!r}: allowed is framework 'keras'")
    reason = missing(framework, backend)
    if reason:
        raise ValueError(reason)
    return BUILDERS[family, framework]


def missing(framework: str, backend: str | None = None) -> str:
    """Return which of a framework and what Keras runs on is not installed, and what installs it; or nothing."""
    needed = [framework]
    if framework == "keras":
        needed.append(backend or os.environ.get("KERAS_BACKEND") or BACKENDS[0])
    for name in needed:
        if name not in INSTALL:
            raise ValueError(f"backend {name!r}: allowed is {', '.join(BACKENDS)}")
        if importlib.util.find_spec(name) is None:
            return f"{name!r} is not installed: {INSTALL[name]}"
    return ""


def builder(family: str, framework: str, backend: str | None = None) -> Callable[..., Any]:
    """Import and return what builds `family` in `framework`.

    Raises: ValueError as `find_builder` does, and where this process runs Keras on another backend already: it is fixed
    at the first import.
    """
    path = find_builder(family, framework, backend)
    if framework == "keras" and backend is not None:
        keras = sys.modules.get("keras")
        if keras is not None and keras.config.backend() != backend:
            raise ValueError(f"backend {backend!r}: this process runs Keras on {keras.config.backend()!r}")
        os.environ["KERAS_BACKEND"] = backend
    found: Callable[..., Any] = load(path)
    return found


def graph_builder(family: str, framework: str) -> Callable[..., Any]:
    """Import and return what builds `family` in `framework` with updates captured as CUDA graphs.

    Raises: ValueError as `find_builder` does, and where there is none.
    """
    find_builder(family, framework)
    if (family, framework) not in GRAPH_BUILDERS:
        there = " or ".join(f"{one!r} in {kind!r}" for one, kind in GRAPH_BUILDERS)
        raise ValueError(f"cuda_graphs=True with {family!r} in {framework!r}: allowed is {there}")
    found: Callable[..., Any] = load(GRAPH_BUILDERS[family, framework])
    return found


def load(path: str) -> Any:
    """Return the object that "package.module:NAME" names. Raises: ValueError saying which part is missing."""
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"{path!r} does not name an object: allowed is package.module:NAME")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path!r}: there is no module {error.name!r}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{path!r}: {module_name} has no {attribute!r}{_hint(attribute, vars(module))}")
    return getattr(module, attribute)


def _known(name: str) -> str:
    if name in RECIPES:
        return name
    allowed = f"allowed is {', '.join(RECIPES)}, or package.module:NAME"
    raise ValueError(f"there is no variant {name!r}{_hint(name, RECIPES)} ({allowed})")


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
