"""Frozen dataclasses to JSON and back, validated by pydantic; an error is one line that names the field.

The dataclasses are plain, because recipes (`impls.contract`) need only NumPy. Pydantic is imported on first use, so
that the command line starts quickly.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.text import brief, did_you_mean
from impls.contract import GruRecipe, PlainRecipe, Recipe, TorchReferenceRecipe, TransformerRecipe

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails, SchemaValidator

RECIPE_TYPES: dict[str, type[Recipe]] = {
    kind.family: kind for kind in (TransformerRecipe, GruRecipe, TorchReferenceRecipe, PlainRecipe)
}
"""The class of a recipe by its `family`, the discriminator in JSON."""

HEAD_FIELDS = ("schema", "family")
"""Class variables that JSON objects carry in addition to the fields of a dataclass, before them."""

MOST_DIGITS = 40
"""The most digits of a whole number in a stored file."""


def canonical_json(value: Any) -> str:
    """Return JSON text with sorted keys and no spaces. Raises: ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a value as canonical JSON, in hexadecimal digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def to_json(value: Any) -> Any:
    """Return dataclasses, tuples and dicts as JSON values; recipes get their family and records their schema.

    A whole number in a field for floats becomes a float, as `from_json` reads it: equal settings have equal JSON.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        heads = {name: getattr(value, name) for name in HEAD_FIELDS if hasattr(type(value), name)}
        items = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
        return heads | {
            field.name: float(item) if type(item) is int and "float" in str(field.type) else to_json(item)
            for field, item in items
        }
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    return value


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested JSON objects by dotted name, such as "recipe.norm"."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def from_json(kind: Any, value: Any, where: str) -> Any:
    """Return JSON as an instance of the type `kind`, such as a dataclass. Values are not converted to other types.

    Raises: ValueError, naming the first field that is unknown, missing or invalid; `where` names the value itself.
    """
    from pydantic import ValidationError

    try:
        return _validator(kind).validate_json(canonical_json([value]).encode())[0]
    except ValidationError as error:
        raise ValueError(_message(_first(error), kind, where, inside=1)) from None


def check_fields(settings: Any) -> None:
    """Raise ValueError for the first field of a dataclass whose value does not fit its annotation."""
    from pydantic import ValidationError

    kind: Any = type(settings)
    try:
        _fields_adapter(kind).validate_python(
            {field.name: getattr(settings, field.name) for field in dataclasses.fields(kind)}
        )
    except ValidationError as error:
        raise ValueError(_message(_first(error), kind, "")) from None


def parse(kind: Any, text: str) -> Any:
    """Convert text from the command line to the annotated type `kind`; "none" is None in an optional type.

    Raises: ValueError, which says what is expected, if the text is not of this type.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    if text.lower() == "none" and type(None) in typing.get_args(kind):
        return None
    try:
        value = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False)).validate_strings(text)
    except ValidationError as error:
        raise ValueError(_expected(_first(error))) from None
    if isinstance(value, int) and len(str(value)) > MOST_DIGITS:
        raise ValueError(f"expected at most {MOST_DIGITS} digits")
    return value


def json_schema(kind: Any) -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of the values that `from_json` accepts for a dataclass."""
    schema = _adapter(kind).json_schema()
    definitions = schema["$defs"]
    for family, recipe in RECIPE_TYPES.items():
        if recipe.__name__ in definitions:
            definition = definitions[recipe.__name__]
            definition["properties"] = {"family": {"const": family}, **definition["properties"]}
            definition["required"] = ["family", *definition.get("required", ())]
    for definition in definitions.values():
        definition.pop("description", None)  # docstrings change more often than fields
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **definitions.pop(kind.__name__), "$defs": definitions}


class ByFamily:
    """Annotation of an optional union of recipes, whose JSON has the discriminator "family"."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        choices: dict[Any, Any] = {
            family: core_schema.no_info_before_validator_function(_without_family, handler.generate_schema(kind))
            for family, kind in RECIPE_TYPES.items()
        }
        return core_schema.nullable_schema(core_schema.tagged_union_schema(choices, discriminator=_family))


def _family(value: Any) -> Any:
    return value.get("family") if isinstance(value, Mapping) else getattr(value, "family", None)


def _without_family(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: item for name, item in value.items() if name != "family"}
    return value


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return an adapter of a list of `kind`: within a list, plain dataclasses use the configuration too."""
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(list[kind], config=ConfigDict(strict=True, extra="forbid"))


@functools.cache
def _validator(kind: Any) -> SchemaValidator:
    """Return a validator of a list of `kind` that stops at the first wrong item of a collection.

    Otherwise a file of a few megabytes could have so many errors that they take gigabytes.
    """
    from pydantic_core import CoreConfig, SchemaValidator

    schema: Any = _stopping_at_errors(_adapter(kind).core_schema)
    return SchemaValidator(schema, CoreConfig(strict=True, extra_fields_behavior="forbid"))


def _stopping_at_errors(schema: Any) -> Any:
    """Return a core schema with `fail_fast` for every collection."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_stopping_at_errors, schema))
    if not isinstance(schema, dict):
        return schema
    fail_fast = {"fail_fast": True} if schema.get("type") in ("list", "tuple", "dict") else {}
    return {
        name: part if name == "metadata" else _stopping_at_errors(part) for name, part in schema.items()
    } | fail_fast


@functools.cache
def _fields_adapter(kind: Any) -> TypeAdapter[Any]:
    """Return an adapter of the fields of a dataclass as a dictionary, which does not call the constructor again."""
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import TypedDict

    hints = typing.get_type_hints(kind, include_extras=True)
    fields = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    document = TypedDict(kind.__name__, fields)  # type: ignore[misc]
    document.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[attr-defined]
    return TypeAdapter(document)


def _first(error: ValidationError) -> ErrorDetails:
    """Return the most helpful error: a misspelled field explains a missing one."""
    return min(error.errors(include_url=False), key=lambda details: details["type"] != "unexpected_keyword_argument")


def _message(error: ErrorDetails, kind: Any, where: str, *, inside: int = 0) -> str:
    """Return an error as one line: the field, its value, what is accepted, and a suggestion for a misspelled word.

    `kind` is the type that was validated, `where` the name of the value or "", and `inside` the number of containers
    around the value.
    """
    location, value, reason = error["loc"][inside:], error["input"], error["type"]
    *parents, name = location or ("",)
    path, owner = _walk(kind, parents, where)
    if reason == "value_error":
        return str(error["ctx"]["error"])
    if reason == "unexpected_keyword_argument":
        return f"{path}{str(name)[:80]}: unknown field{did_you_mean(name, _names(owner))}"
    field = _walk(kind, location, where)[0].removesuffix(".")
    if reason == "missing":
        return f"{field}: missing"
    if reason.startswith("union_tag"):
        family = _family(value)
        hint = did_you_mean(family, RECIPE_TYPES)
        return f"{field}.family={brief(family)}: expected one of {', '.join(RECIPE_TYPES)}{hint}"
    words = str(error.get("ctx", {}).get("expected", "")).replace(" or ", ", ").split(", ")
    hint = did_you_mean(value, [word.strip("'") for word in words]) if reason == "literal_error" else ""
    return f"{field}={brief(value)}: {_expected(error)}{hint}"


def _expected(error: Any) -> str:
    """Return what pydantic expected, such as "expected an integer"."""
    limits = {
        "greater_than_equal": "at least {ge:,}",
        "greater_than": "more than {gt}",
        "less_than": "less than {lt}",
        "less_than_equal": "at most {le:,}",
        "string_too_long": "at most {max_length:,} characters",
    }
    if error["type"] in limits:
        return "expected " + limits[error["type"]].format(**error["ctx"])
    text: str = error["msg"].removeprefix("Input should be ").split(", unable")[0].split(", got")[0]
    return "expected " + text.replace("a valid integer", "an integer").replace("a valid ", "a ")


def _walk(kind: Any, location: Sequence[int | str], where: str) -> tuple[str, Any]:
    """Return the path to a location inside a type, ending with a dot, and the type there; families are left out."""
    path = f"{where}." if where else ""
    for part in location:
        kinds = [item for item in _members(kind) if item is not type(None)]
        if len(kinds) > 1:  # the part names the member of the union
            names = {item: getattr(typing.get_origin(item) or item, "__name__", "?") for item in kinds}
            members = [item for item, name in names.items() if str(part).startswith(name)]
            kind = RECIPE_TYPES.get(str(part)) or (members[0] if members else Any)
            continue
        kind = kinds[0] if kinds else Any
        if dataclasses.is_dataclass(kind):
            kind = typing.get_type_hints(kind).get(str(part), Any)
        else:
            inner = typing.get_args(kind) or (Any,)
            kind = inner[-1] if typing.get_origin(kind) is dict else inner[0]
        path = f"{path.removesuffix('.')}[{part}]." if isinstance(part, int) else f"{path}{part[:80]}."
    return path, kind


def _members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type alone."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return typing.get_args(kind)
    return (kind,)


def _names(kind: Any) -> list[str]:
    """Return the names of the fields of a dataclass, or of the one dataclass in a union."""
    owners = [item for item in _members(kind) if dataclasses.is_dataclass(item)]
    return [field.name for field in dataclasses.fields(owners[0])] if owners else []
