"""Experiment files: what they may hold, what is refused, and that a saved one gives the same runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Refused

from harness.cli.main import main, parser
from harness.cli.options import settings_of

EXPERIMENT = """
suite = "standard"
budget = "controlled"
seed = [0, 3]
corpus = "captions"
tokenizer = "whitespace"
dry-run = true
checkpoint_seconds = 5.5

[set]
training.epochs = 2
"data.training_pairs" = 100

[variant.learned_positions]

[variant.paper]
recipe.layers = 1
recipe.dropout = 0.25
"""


@pytest.fixture(autouse=True)
def _folder(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(EXPERIMENT, encoding="utf-8")


def test_experiment_file_sets_the_options_of_its_keys_unless_they_follow_it() -> None:
    arguments = parser().parse_args(["bench", "--suite", "full", "--config", "experiment.toml", "--budget", "both"])
    assert (arguments.suite, arguments.budget, arguments.seed) == ("standard", "both", [0, 3])
    assert (arguments.dry_run, arguments.checkpoint_seconds) == (True, 5.5)
    assert arguments.variant == ["learned_positions", "paper"]
    of_all, of_paper = ["training.epochs=2", "data.training_pairs=100"], ["recipe.layers=1", "recipe.dropout=0.25"]
    assert arguments.set == [*of_all, *(f"paper:{setting}" for setting in of_paper)]


def test_experiment_file_with_a_byte_order_mark_is_read() -> None:
    Path("experiment.toml").write_text("epochs = 3", encoding="utf-8-sig")
    assert parser().parse_args(["bench", "--config", "experiment.toml"]).epochs == 3


def test_setting_of_one_variant_applies_to_its_runs_only(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["paper:recipe.layers=1", "mine:MODEL:recipe.layers=2", "training.epochs=2"]
    assert settings_of("paper", settings) == ["recipe.layers=1", "training.epochs=2"]
    assert settings_of("mine:MODEL", settings) == ["recipe.layers=2", "training.epochs=2"]
    assert main(["bench", "--config", "experiment.toml"]) == 0
    runs = re.findall(r"(learned_positions|paper) s([03])", capsys.readouterr().out)
    assert sorted(runs) == [(variant, seed) for variant in ("learned_positions", "paper") for seed in "03"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("seedz = 3", "experiment.toml: unknown key 'seedz'; did you mean 'seed'?"),
        ("seed = -1", "experiment.toml: seed: "),
        ("epochs = true", "experiment.toml: epochs: True: expected a text or a number"),
        ("dry-run = 1", "experiment.toml: dry-run: 1: expected true or false"),
        ("set = 3", "experiment.toml: set: 3: expected a table of settings"),
        ("[set]\nrecipe.layers = [1]", "experiment.toml: set: [1]: expected a text or a number"),
        ('suite = "quik"', "did you mean 'quick'?"),
        ("suite = quick", "; expected TOML, with text in quotes, such as suite = "),
        ("config = 'experiment.toml'", "experiment.toml: unknown key 'config'"),
        ("[variant.papr]", "did you mean 'paper'?"),
        ("[set]\nrecipe.layer = 1", "did you mean 'recipe.layers'?"),
        (f"seed = {'9' * 5_000}", "experiment.toml: Exceeds the limit"),
        (f"note = {'[' * 5_000}", "experiment.toml: maximum recursion depth exceeded"),
        (f"set{'.a' * 3_000} = 1", "experiment.toml: set: maximum recursion depth exceeded"),
    ],
    ids=lambda text: text[:40],
)
def test_bad_experiment_file_is_one_line_that_names_the_key(content: str, message: str, refused: Refused) -> None:
    Path("experiment.toml").write_text(content, encoding="utf-8")
    refused(["bench", "--corpus", "captions", "--config", "experiment.toml", "--dry-run"], message)


def test_refused_command_writes_no_experiment_file(refused: Refused) -> None:
    refused(["bench", "--save-config", "experiment.toml", "--dry-run"], "experiment.toml: the file exists and has ")
    assert Path("experiment.toml").read_text(encoding="utf-8") == EXPERIMENT
    Path("picture.toml").write_bytes(b"\xff")
    refused(["bench", "--save-config", "picture.toml", "--dry-run"], "picture.toml: the file exists and has other ")
    refused(["bench", "--variant", "papr", "--save-config", "saved.toml", "--dry-run"], "did you mean 'paper'?")
    assert not Path("saved.toml").exists()


def test_saved_experiment_file_keeps_which_of_two_settings_wins(capsys: pytest.CaptureFixture[str]) -> None:
    def planned(*words: str) -> set[str]:
        assert main(["bench", *words, "--dry-run"]) == 0
        return set(re.findall(r"\w+-captions-[\w-]+", capsys.readouterr().out))

    variants = ["--variant", "paper", "--variant", "conv_ffn", "--corpus", "captions", "--tokenizer", "whitespace"]
    settings = ["paper:recipe.dropout=0.3", "recipe.dropout=0.2", "conv_ffn:recipe.dropout=0.4"]
    sets = [word for setting in settings for word in ("--set", setting)]
    expected = planned(*variants, *sets, "--save-config", "saved.toml")
    assert len(expected) > 1
    assert planned("--config", "saved.toml") == expected


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "--config", "experiment.toml", "--jobs", "2", "--results", "a folder"],
        ["ablate", "--field", "norm", "--field", "positions", "--factorial", "--seed", "0-2", "--corpus", "captions"],
        ["ablate", "--field", "norm", "--tune-rate", "1e-3,2e-3", "--set", "learned_positions:recipe.layers=1"],
        ["bench", "--set", "paper:recipe.layers=1", "--corpus", "captions", "--experiment", "mine"],
    ],
)
def test_saved_experiment_file_gives_the_same_options(words: list[str]) -> None:
    def options(line: list[str]) -> dict[str, Any]:
        arguments = vars(parser().parse_args(line))
        return {name: value for name, value in arguments.items() if name not in ("config", "save_config", "dry_run")}

    words = [*words, "--set", "training.patience=4", "--set", "training.peak_rate=1e-3"]
    for _ in range(2):  # an interrupted command is repeated as it is
        assert main([*words, "--tokenizer", "whitespace", "--save-config", "saved.toml", "--dry-run"]) == 0
    expected = options([*words, "--tokenizer", "whitespace"])
    saved = options([words[0], "--config", "saved.toml"])
    for arguments in (expected, saved):
        arguments["set"] = sorted(arguments["set"])
        arguments.pop("config_parser")
        arguments["results"] = str(arguments["results"])
    assert saved == expected
