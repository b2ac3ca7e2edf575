"""Commands in the README and the docs parse, links lead somewhere, and numbers are the code's."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from small_runs import OPTIONS

from harness.cli.main import main, parser
from harness.data import captions
from harness.execution import launcher
from harness.experiments.suites import SUITES, VARIANTS
from harness.training import model_card
from impls import registry, weights

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path: path.read_text(encoding="utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]}


def commands(text: str) -> list[str]:
    """Return the shell commands of a page, with continued lines joined."""
    blocks = (block.replace("\\\n", " ") for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.split("\n")]
    return lines + re.findall(r"`((?:python -m harness|tox) [^`]+)`", text)


FILES = [file for text in PAGES.values() for file in re.findall(r"```toml\n(# (\S+\.toml)\n.*?)```", text, re.DOTALL)]
"""The experiment files that the commands read: text and name."""

TOX = configparser.ConfigParser(interpolation=None)
TOX.read(ROOT / "tox.ini")

COMMANDS = sorted({command for text in PAGES.values() for command in commands(text)})


@pytest.mark.parametrize(
    "command", [c for c in COMMANDS if "python -m harness" in c and "COMMAND" not in c and "--help" not in c]
)
def test_harness_command_in_the_docs_parses(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in FILES:
        (tmp_path / file[1]).write_text(file[0], encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    parser().parse_args(shlex.split(command.split("python -m harness")[1]))


@pytest.mark.parametrize("command", [c for c in COMMANDS if "tox -e" in c and "..." not in c])
def test_tox_command_in_the_docs_parses(command: str) -> None:
    environment, _, options = command.split("tox -e ")[1].partition(" -- ")
    section = f"testenv:{environment.strip()}"
    assert section in TOX or environment == "py"
    if environment in ("bench", "compare", "ablate"):
        assert f"-m harness {environment} {{posargs}}" in TOX[section]["commands"]
        parser().parse_args([environment, *shlex.split(options)])


@pytest.mark.parametrize("setting", ["suicide_timeout", "interrupt_timeout"])
def test_tox_after_ctrl_c_leaves_runs_their_time_for_checkpoints(setting: str) -> None:
    assert TOX.getfloat("testenv", setting) > launcher.GRACE_SECONDS + launcher.NETWORK_SECONDS


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_of_the_docs_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", PAGES[page])
    broken = [link for link in links if not link.startswith(("http", "mailto")) and not (page.parent / link).exists()]
    assert not broken


def test_sentences_of_examples_have_only_words_of_the_captions() -> None:
    paths = [*PAGES, *(ROOT / "examples").glob("*.ipynb"), ROOT / "harness/api.py", ROOT / "harness/cli/translate.py"]
    texts = (path.read_text(encoding="utf-8") for path in paths)
    found = {sentence for text in texts for sentence in re.findall(r"""["'](Eine? [^"'\\]+)""", text, re.IGNORECASE)}
    assert len(found) >= 2
    for side, sentences in enumerate(({*found, model_card.SENTENCES["de"]}, {model_card.SENTENCES["en"]})):
        known = {word for pair in captions.pairs()["train"] for word in pair[side].lower().split()}
        unknown = {word for sentence in sentences for word in sentence.lower().split()} - known
        assert not unknown


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    prose = re.sub(r"```.*?```|<!--.*?-->|^[|#!][^\n]*$", "", README, flags=re.DOTALL | re.MULTILINE)
    sentences = re.split(r"[.:?!](?=\s)|\n\n+|\n- ", prose)
    words = [len(sentence.split()) for sentence in sentences if len(sentence.split()) > 1]
    assert sum(words) / len(words) <= 20


SMALL = ["--suite", "quick", "--epochs", "1", *OPTIONS, "--set=recipe.width=16", "--set=recipe.ffn_width=16"]


@pytest.mark.usefixtures("processes", "one_process", "undrawn")
def test_commands_of_the_readme_work_in_their_order_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (
        "run paper",
        "bench --variant learned_positions --variant paper",
        "ablate --field norm_order --seed 0",
    ):
        assert main([*line.split(), *SMALL]) == 0, capsys.readouterr().err
    assert main(["check"]) == 0, capsys.readouterr().err
    output = capsys.readouterr().out
    assert "1 of them finished earlier" in output
    assert "Passed: a fair comparison of 4 runs" in output
    assert main(["compare", "learned_positions", "paper"]) == 0
    printed = capsys.readouterr()
    assert "comparing 'learned_positions@norm_order=post'" in printed.err
    assert "comparing 'paper@budget=controlled'" in printed.err
    assert "B: paper; captions de-en" in printed.out
    assert main(["list"]) == 0
    assert "learned_positions norm_order=pre s0" in capsys.readouterr().out
    assert main(["report"]) == 0
    assert (tmp_path / "reports/local/index.html").is_file()
    assert main(["translate", "--run", "paper", "ein hund läuft ."]) == 0


def test_readme_variants_are_those_of_the_registry() -> None:
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\(impls/\1\.py\) \|.*\| ([\d,]+) \|$", README, re.MULTILINE))
    assert set(rows) == set(VARIANTS)
    for name, parameters in rows.items():
        assert int(parameters.replace(",", "")) == weights.count(registry.recipe(name), 7_853, 5_893)


def test_readme_names_every_suite() -> None:
    assert all(f"| `{name}`" in README for name in SUITES)


def test_readme_python_without_training_runs() -> None:
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "import harness" in block]
    lines = [line for line in code.split("\n") if "harness.run" not in line and "harness.translate" not in line]
    assert len(lines) > 4
    command = [sys.executable, "-c", "\n".join(lines) + "\nprint(len(runs))"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) > 0
