"""CI installs exactly what `constraints.txt` names, and every file of it has a digest."""

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from places import ROOT

ENTRY = re.compile(r"^([\w.-]+==[\w.+!]+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)


def entries(name: str) -> list[str]:
    """Return the locked versions of a file of `.ci`, all of whose lines must belong to an entry with digests."""
    text = (ROOT / ".ci" / name).read_text(encoding="utf-8")
    assert ENTRY.sub("", text).split("\n", 1)[1].strip() == ""
    return [pin for pin, _ in ENTRY.findall(text)]


def test_ci_constraints_are_the_versions_of_the_project() -> None:
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert entries("constraints.txt") == pins, "run python .ci/lock.py"


def requirements() -> list[Requirement]:
    """Return what `pyproject.toml` names, without its own extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = sum(project["optional-dependencies"].values(), project["dependencies"])
    return [requirement for requirement in map(Requirement, lines) if requirement.name != project["name"]]


def test_every_requirement_has_its_version_in_the_constraints() -> None:
    pinned = {pin.partition("==")[0].lower() for pin in entries("constraints.txt")}
    assert {requirement.name.lower() for requirement in requirements()} <= pinned


@pytest.mark.parametrize(
    ("system", "machine", "name"),
    [
        ("Linux", "x86_64", "tensorflow-cpu"),
        ("Linux", "aarch64", "tensorflow"),
        ("Darwin", "arm64", "tensorflow"),
        ("Windows", "AMD64", "tensorflow"),
    ],
)
def test_tensorflow_is_the_package_that_exists_for_a_system(system: str, machine: str, name: str) -> None:
    here = {"platform_system": system, "platform_machine": machine}
    packages = [requirement for requirement in requirements() if requirement.name.startswith("tensorflow")]
    chosen = [package.name for package in packages if package.marker is None or package.marker.evaluate(here)]
    assert chosen == [name]


def test_tox_and_its_plugin_are_locked() -> None:
    plugin = re.search(r"^requires = (.*)$", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)
    locked = entries("tox.txt")
    assert plugin[1] in locked
    assert any(pin.startswith("tox==") for pin in locked)


@pytest.mark.parametrize("path", [".ci/run", ".github/workflows/ci.yml", ".github/workflows/nightly.yml"])
def test_ci_installs_with_digests(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "--require-hashes --requirement .ci/tox.txt" in text
    assert "BAKEOFF_CONSTRAINTS" in text
