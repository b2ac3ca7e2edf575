"""Experiment files: the options of `bench` or `ablate` in TOML, so that an experiment is one file.

    suite = "standard"
    seed = [0, 1, 2]

    [set]
    training.peak_rate = 1e-3

    [variant.learned_positions]

    [variant.paper]
    recipe.layers = 2

Each key is a long option without its dashes. The table `set` holds settings of all runs, and a table `variant.NAME`
those of one variant.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.cli.options import parts_of
from harness.storage.files import write_bytes
from harness.text import brief, did_you_mean

NOT_READ = ("help", "config", "save_config")
NOT_SAVED = (*NOT_READ, "dry_run", "plan")
"""Options that say what a command does this time, not what the experiment is."""
LARGEST_BYTES = 2**20


class Config(argparse.Action):
    """Reads an experiment file as if its options stood in the place of this one."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.parse_args(arguments_of(values, parser), namespace)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        action=Config,
        metavar="FILE.toml",
        help="take options from an experiment file; later options replace its own or add to its lists (default none)",
    )
    parser.add_argument(
        "--save-config",
        type=Path,
        metavar="FILE.toml",
        help="write the options of this command line as an experiment file (default none)",
    )
    parser.set_defaults(config_parser=parser)


def arguments_of(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Return the contents of an experiment file as arguments of the command that `parser` parses.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not TOML, or a key or value is not accepted; the message names both.
    """
    if path.stat().st_size > LARGEST_BYTES:
        raise ValueError(f"{path}: larger than {LARGEST_BYTES:,} bytes; expected an experiment file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:  # of text, of TOML, of a long number; of deep nesting
        raise ValueError(f'{path}: {error}; expected TOML, with text in quotes, such as suite = "quick"') from error
    actions = {action.dest: action for action in parser._actions if action.dest not in NOT_READ}
    arguments: list[str] = []
    for key, value in content.items():
        action = actions.get(key.replace("-", "_"))
        if action is None:
            hint = did_you_mean(key, actions) or "; expected an option of the command without its dashes"
            raise ValueError(f"{path}: unknown key {brief(key)}{hint}")
        try:
            words = list(_words(action, value))
            parser.parse_known_args(words)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path}: {key}: {error}") from error
        arguments += words
    return arguments


def _words(action: argparse.Action, value: Any) -> Iterator[str]:
    option = action.option_strings[-1]
    if action.dest == "set":
        yield from _settings(value)
    elif action.dest == "variant" and isinstance(value, dict):
        for name, settings in value.items():
            yield from (option, name)
            yield from _settings(settings, f"{name}:")
    elif action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"{brief(value)}: expected true or false")
        yield from [option] * value
    else:
        texts = [_text(item) for item in (value if isinstance(value, list) else [value])]
        is_repeatable = isinstance(action, argparse._AppendAction)
        yield from (f"{option}={text}" for text in (texts if is_repeatable else [",".join(texts)]))


def _settings(table: Any, variant: str = "") -> Iterator[str]:
    """Yield `--set` and its value for every setting of a table, nested by the dots of its names."""
    if not isinstance(table, dict):
        raise ValueError(f"{brief(table)}: expected a table of settings")
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _settings({f"{name}.{inner}": item for inner, item in value.items()}, variant)
        else:
            yield from ("--set", f"{variant}{name}={_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{brief(value)}: expected a text or a number")
    return str(value)


def save(arguments: argparse.Namespace) -> None:
    """Write the options that differ from their defaults to the file that `--save-config` names, if it is given.

    Raises:
        OSError: The file cannot be written.
        ValueError: The file exists and has other options.
    """
    if arguments.save_config is None:
        return
    implied = ("results", "reports", "log_folder") if arguments.experiment else ()
    options = {
        action.dest: value
        for action in arguments.config_parser._actions
        if action.dest not in ("set", "variant", *implied, *NOT_SAVED)
        and (value := getattr(arguments, action.dest)) != action.default
    }
    path: Path = arguments.save_config
    text = "\n".join([*_lines(options), *_tables(getattr(arguments, "variant", None) or (), arguments.set)]) + "\n"
    if not path.exists():
        write_bytes(path, text.encode())
    elif path.read_bytes() != text.encode():
        raise ValueError(f"{path}: the file exists and has other options; give another name")


def _tables(variants: Sequence[str], settings: Sequence[str]) -> Iterator[str]:
    """Yield the tables of the settings of all runs and of each of the variants.

    A table `variant.NAME` also chooses a variant to run. So the settings of other variants are in the table `set`.
    """
    tables: dict[str, dict[str, str]] = {"set": {}}
    tables.update((f"variant.{json.dumps(name)}", {}) for name in variants)
    for setting in settings:
        variant, field, value = parts_of(setting)
        if variant in variants:
            tables[f"variant.{json.dumps(variant)}"][field] = value
            continue
        if not variant:  # the last of several wins; in the file, a table of a variant comes after this one
            for values in tables.values():
                values.pop(field, None)
        tables["set"][json.dumps(f"{variant}:{field}") if variant else field] = value
    for title, values in tables.items():
        if values or title != "set":
            yield from ("", f"[{title}]", *_lines(values))


def _lines(values: dict[str, Any]) -> Iterator[str]:
    """Yield assignments in TOML, whose strings, numbers, truth values and lists are those of JSON."""
    for name, value in values.items():
        yield f"{name} = {json.dumps(value, default=str, ensure_ascii=False)}"
