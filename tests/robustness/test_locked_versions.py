"""CI installs exactly what `constraints.txt` names, and every file of it has a digest."""

import re

import pytest
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


def test_tox_and_its_plugin_are_locked() -> None:
    plugin = re.search(r"^requires = (.*)$", (ROOT / "tox.ini").read_text(encoding="utf-8"), re.MULTILINE)
    locked = entries("tox.txt")
    assert plugin is not None
    assert plugin[1] in locked
    assert any(pin.startswith("tox==") for pin in locked)


@pytest.mark.parametrize("path", [".ci/run", ".github/workflows/ci.yml", ".github/workflows/nightly.yml"])
def test_ci_installs_with_digests(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert "--require-hashes --requirement .ci/tox.txt" in text
    assert "BAKEOFF_CONSTRAINTS" in text
