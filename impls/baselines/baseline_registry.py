"""Finds a peer's builder by name, imported lazily, and says what it needs that is not installed."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from dataclasses import dataclass

from impls.baselines.protocol import Decodes, Trains
from impls.contract import Arrays, Recipe, Training


@dataclass(frozen=True)
class Entry:
    """Where a peer is built ("module:name"), the packages it needs and what installs them."""

    builder: str
    packages: tuple[str, ...]
    extra: str


PEERS: dict[str, Entry] = {
    "plain": Entry("impls.baselines.tutorial:build", ("torch",), "torch"),
    "nn_transformer": Entry("impls.baselines.torch_nn:build", ("torch",), "torch"),
    "marian": Entry("impls.baselines.marian:build", ("torch", "transformers"), "torch,peers"),
    "ctranslate2": Entry("impls.baselines.ctranslate2:build", ("ctranslate2",), "peers"),
}


def names() -> tuple[str, ...]:
    """Return the names of all peers, whether installed or not."""
    return tuple(PEERS)


def missing(name: str) -> str:
    """Return which package a peer needs and has not, and what installs it, in one line; or nothing.

    Raises: ValueError with the nearest name.
    """
    entry = _entry(name)
    for package in entry.packages:
        if importlib.util.find_spec(package) is None:
            return f"{package!r} is not installed: python -m pip install 'bakeoff[{entry.extra}]'"
    return ""


def build(
    name: str,
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
) -> Trains | Decodes:
    """Build a peer of a recipe's size that starts from the canonical `weights`.

    Raises: ValueError where there is no such peer, its package is not installed, the weights do not fit, or the peer
    cannot be what the recipe says, naming the field.
    """
    reason = missing(name)
    if reason:
        raise ValueError(reason)
    module, _, builder = PEERS[name].builder.partition(":")
    built: Trains | Decodes = getattr(importlib.import_module(module), builder)(
        recipe, source_vocabulary_size, target_vocabulary_size, training=training, weights=weights, device=device
    )
    return built


def _entry(name: str) -> Entry:
    if name not in PEERS:
        near = difflib.get_close_matches(name, list(PEERS), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"there is no peer {name!r}{hint} (allowed is {', '.join(PEERS)})")
    return PEERS[name]
