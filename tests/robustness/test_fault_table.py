"""The table of planted faults in tests/README.md and the published fault page agree with the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

import faults_page
from places import ROOT

ROW = re.compile(r"^\|.*\| (?P<tests>\d+) \| `(?P<node>tests/[\w/]+\.py(::test_\w+)?)` \|$", re.MULTILINE)


def test_fault_table_names_and_counts_are_current() -> None:
    table = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    stated = {row["node"]: int(row["tests"]) for row in ROW.finditer(table)}
    assert len(stated) == table.count("| `tests/") > 20
    command = [sys.executable, "-m", "pytest", "--collect-only", "-m", "", "-p", "no:cacheprovider", *stated]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert process.returncode == 0, process.stdout + process.stderr
    tests = re.findall(r"^tests/[\w/]+\.py::test_\w+", process.stdout, re.MULTILINE)
    counts = Counter(node for test in tests for node in stated if test in (node, f"{node}::{test.partition('::')[2]}"))
    assert counts == stated


def test_published_fault_page_follows_from_the_tables() -> None:
    published = faults_page.PAGE.read_text(encoding="utf-8")
    without_times = re.sub(rf"\n{faults_page.TIME}.*\n", "", published)
    assert without_times == faults_page.page(faults_page.all_detected())
    assert published.count(faults_page.TIME) == len(faults_page.SECTIONS)
