"""The table of planted faults in tests/README.md: what it names is there, as many times as it says."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

from places import ROOT

ROW = re.compile(r"^\|.*\| (?P<tests>\d+) \| `(?P<node>tests/[\w/]+\.py::test_\w+)` \|$", re.MULTILINE)


def test_fault_table_names_and_counts_are_current() -> None:
    table = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    stated = {row["node"]: int(row["tests"]) for row in ROW.finditer(table)}
    assert len(stated) == table.count("| `tests/") > 20
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "", "-p", "no:cacheprovider", *stated]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    found = Counter(re.findall(r"(tests/[\w/]+\.py::test_\w+)", told.stdout))
    assert found == stated
