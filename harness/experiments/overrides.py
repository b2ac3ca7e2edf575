"""Settings of runs by their dotted names, and their changes on the command line: `--set recipe.dropout=0.3`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from harness.experiments.serialization import parse
from harness.experiments.specs import RunSpec
from harness.text import did_you_mean
from impls.contract import GruRecipe


def setting_names(settings: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting of a run, such as "recipe.dropout"."""
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from setting_names(value, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def override(spec: RunSpec, settings: Iterable[str]) -> RunSpec:
    """Return `spec` with settings changed together, in the syntax of the command line: "recipe.dropout=0.3".

    Values are converted to the types of the settings; "none" is None in an optional one. The last value of a setting
    wins.

    Raises: ValueError for an unknown setting, with the closest name, or a value that is not accepted.
    """
    names = list(setting_names(spec))
    changes: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        path = path.strip()
        if not equals:
            raise ValueError(f"{setting}: expected FIELD=VALUE, such as recipe.dropout=0.3")
        if path.startswith("recipe.") and spec.recipe is None:
            raise ValueError(f"{setting}: {spec.variant} is a builder and has no recipe; change its code")
        if path not in names:
            raise ValueError(f"{setting}: {_unknown(path, names)}")
        *groups, name = path.split(".")
        owner, inner = spec, changes
        for group in groups:
            owner, inner = getattr(owner, group), inner.setdefault(group, {})
        inner[name] = _parsed(owner, name, text.strip(), setting)
    changed: RunSpec = _replaced(spec, changes)
    return changed


def check_used(specs: Iterable[RunSpec], name: str) -> None:
    """Raise ValueError if a setting, by its dotted name, changes none of the runs: their other settings rule it out."""
    needed = {_needs(spec, name) for spec in specs}
    if needed and "" not in needed:
        raise ValueError(f"{name} has no effect here: only {needed.pop()} uses it")


def _needs(spec: RunSpec, name: str) -> str:
    """Return what would use a setting that a run does not use; empty if the run uses it."""
    data, batching = spec.data, spec.training.batching
    pieces, beam = data.tokenizer.startswith("sentencepiece"), (spec.decoding.beam > 1, "decoding.beam above 1")
    used, user = {
        "data.seed": (pieces or data.corpus == "captions", "a SentencePiece tokenizer or the corpus captions"),
        "data.minimum_frequency": (not data.has_subwords, "a tokenizer of whole words"),
        "data.vocabulary_size": (pieces, "a SentencePiece tokenizer"),
        "data.merges": (data.tokenizer == "moses-bpe", "the tokenizer moses-bpe"),
        "decoding.length_penalty": beam,
        "decoding.length_formula": beam,
        "recipe.norm_epsilon": (getattr(spec.recipe, "norm", "") != "none", "a norm"),
        "training.batch_size": (batching != "tokens", "training.batching=random or length"),
        "training.batch_tokens": (batching == "tokens", "training.batching=tokens"),
        "training.teacher_forcing": (spec.recipe is None or isinstance(spec.recipe, GruRecipe), "a recurrent model"),
    }.get(name, (True, ""))
    return "" if used else user


def _replaced(settings: Any, changes: dict[str, Any]) -> Any:
    """Return a dataclass with changed fields; each dataclass checks its fields once, when all of them are changed."""
    values = {
        name: _replaced(getattr(settings, name), change) if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return replace(settings, **values)


def _parsed(owner: Any, name: str, text: str, setting: str) -> Any:
    """Return the value of a field of a dataclass, converted to its type. Raises: as `override` does."""
    # The type without its bounds, which the constructor checks with a better message.
    kind = typing.get_type_hints(type(owner))[name]
    if any(map(dataclasses.is_dataclass, typing.get_args(kind))):
        raise ValueError(f"{setting}: {name!r} is none in this run and cannot be set")
    try:
        return text if typing.get_origin(kind) is typing.Literal else parse(kind, text)
    except ValueError as error:
        raise ValueError(f"{setting}: {text!r} does not fit: {error}") from None


def _unknown(name: str, names: Sequence[str]) -> str:
    """Return a message that there is no such setting, with a suggestion: the field may be in another group."""
    inner = [path for path in names if path.startswith(f"{name}.")]
    if inner:
        return f"{name!r} has settings of its own; name one, such as {inner[0]}"
    group, _, leaf = name.rpartition(".")
    own = [path for path in names if path.startswith(f"{group}.")]
    leaves = {path.rpartition(".")[2]: path for path in [*names[::-1], *own]}
    hint = did_you_mean(leaf, leaves, shown=leaves) or ("" if own else did_you_mean(name, names))
    return f"there is no setting {name!r}{hint or '; `settings` lists all of them'}"
