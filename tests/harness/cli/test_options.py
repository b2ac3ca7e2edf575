"""Values of options, and help."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
from command_line import commands

import harness
from harness.cli import options
from harness.cli.main import main, parser
from harness.experiments.specs import FileSpec
from harness.training.load import data_spec


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("3", (3,)), ("0,2", (0, 2)), ("0-4", (0, 1, 2, 3, 4)), ("0-2,7", (0, 1, 2, 7)), ("1,1-2", (1, 2))],
)
def test_seeds_of_numbers_lists_and_ranges(text: str, seeds: tuple[int, ...]) -> None:
    assert options.seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "-1", "1-", "a", "4-0", "0-1000", "1..3", "\u0663"])
def test_seeds_of_another_form_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        options.seeds(text)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"bakeoff {harness.__version__}\n"


@pytest.mark.parametrize("command", commands().values(), ids=list(commands()))
def test_every_option_has_help_with_its_default(command: argparse.ArgumentParser) -> None:
    formatter = command.formatter_class(command.prog)
    for action in command._actions:
        text = formatter._get_help_string(action)
        assert text, action
        assert not text.startswith("("), f"{action}: only a default"
        if action.option_strings and not action.required and action.dest != "help" and text != argparse.SUPPRESS:
            assert "default" in text, f"{action.option_strings}: {text}"


@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize("name", commands())
def test_help_of_every_command_with_options_has_three_examples_that_parse(name: str) -> None:
    Path("dropout.toml").write_text("epochs = 1", encoding="utf-8")
    command = commands()[name]
    examples = re.findall(r"^  python -m harness (.*)$", command.format_help(), re.MULTILINE)
    has_options = any(action.option_strings and action.dest != "help" for action in command._actions)
    assert len(set(examples)) >= (3 if has_options else 1)
    for example in examples:
        assert shlex.split(example)[0] == name
        parser().parse_args(shlex.split(example))


def test_tilde_in_the_path_of_a_text_is_the_home_folder_as_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.chdir("/tmp")
    paths = {"train_source": "~/train.tsv", "validation_source": "valid.tsv", "test_source": "/a/test.tsv"}
    words = [f"{options.flag(name)}={path}" for name, path in paths.items()]
    files = options.data_spec(parser().parse_args(["data", *words])).files
    expected = {**paths, "train_source": "/home/someone/train.tsv", "validation_source": "/tmp/valid.tsv"}
    assert files == FileSpec(**expected)
    assert data_spec(None, paths).files == files
