"""`new`: write a Python file with a small model, which you change into a variant of your own.

The file contains a Transformer made of torch.nn's layers, which passes every law, and the function that the benchmark
calls to build it.
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
from importlib.resources import files
from pathlib import Path

from harness.cli.console import say
from harness.storage.files import write_bytes
from harness.text import command_line

SUMMARY = "write a file with a small model, to change into your own"
EXAMPLES = (("write mine.py in this folder", "mine"),)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="the name of the module, such as mine for mine.py")


def command(arguments: argparse.Namespace) -> int:
    """Write the file and print what to do next. Returns 0."""
    name, path = arguments.name, Path(f"{arguments.name}.py")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not the name of a Python module: use letters, digits and underscores")
    if path.exists():
        raise ValueError(f"{path} exists: choose another name, or remove the file")
    if importlib.util.find_spec(name) is not None:
        raise ValueError(f"Python already imports another module as {name!r}: choose another name")
    template = files("harness.cli").joinpath("templates", "variant.py.txt").read_text(encoding="utf-8")
    write_bytes(path, template.replace("NAME", name).encode())
    variant = f"{name}:build"
    say(f"{path} is written. Change it, then test and train it:")
    say(f"  {command_line(f'laws --fast --variant {variant}')}")
    say(f"  {command_line(f'bench --variant {variant} --variant learned_positions')}")
    return 0
