"""Documents as plain text: wide tables are printed in several parts."""

from __future__ import annotations

from harness.reporting import render_text
from harness.reporting.document import Table


def test_table_above_the_width_is_split_and_later_parts_have_no_empty_rows() -> None:
    rows = (("second", "10", "", ""), ("third", "20", "21", ""), ("fourth", "30", "31", "32"))
    triangle = Table("lrrr", ("row less column", "first", "second", "third"), rows, "Differences")
    assert "row less column  first  second  third\n" in render_text.blocks([triangle], width=60)
    assert render_text.blocks([triangle], width=30).rstrip().split("\n") == [
        "Differences:",
        "",
        "row less column  first",
        "───────────────  ─────",
        "second              10",
        "third               20",
        "fourth              30",
        "",
        "row less column  second",
        "───────────────  ──────",
        "third                21",
        "fourth               31",
        "",
        "row less column  third",
        "───────────────  ─────",
        "fourth              32",
    ]
