"""The README's commands exist, its links lead somewhere, and its figures are the code's."""

from __future__ import annotations

import configparser
import re
import shlex

import pytest
from places import ROOT

from harness.cli.main import parser
from harness.experiments.suites import SUITES, VARIANTS
from impls import registry, weights

README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.split("\n")
]
COMMANDS += re.findall(r"`((?:python -m harness|tox) [^`]+)`", README)


@pytest.mark.parametrize("command", [one for one in COMMANDS if "python -m harness" in one])
def test_commands_of_the_harness_are_understood(command: str) -> None:
    parser().parse_args(shlex.split(command.split("python -m harness")[1]))


@pytest.mark.parametrize("command", [one for one in COMMANDS if "tox -e" in one])
def test_commands_of_tox_are_understood(command: str) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    environment, _, options = command.split("tox -e ")[1].partition(" -- ")
    section = f"testenv:{environment.strip()}"
    assert section in tox or environment == "py"
    if environment in ("bench", "compare", "ablate"):
        assert f"-m harness {environment} {{posargs}}" in tox[section]["commands"]
        parser().parse_args([environment, *shlex.split(options)])


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not link.startswith("http") and not (ROOT / link).exists()] == []


def test_the_table_of_variants_is_the_registry_s() -> None:
    told = dict(re.findall(r"^\| \[`(\w+)`\]\(impls/\1\.py\) \|.*\| ([\d,]+) \|$", README, re.MULTILINE))
    assert set(told) == set(VARIANTS)
    for name, parameters in told.items():
        assert int(parameters.replace(",", "")) == weights.count(registry.recipe(name), 7_853, 5_893)


def test_every_suite_is_told() -> None:
    assert all(f"| `{name}`" in README for name in SUITES)
