"""Documents as plain text: wide tables are printed in several parts."""

from __future__ import annotations

from harness.reporting import render_text
from harness.reporting.document import Table

NAMES = ("first", "second", "third", "fourth")


def triangle() -> Table:
    rows = [
        (name, *(f"{index}{column}" if column < index else "" for column in range(3)))
        for index, name in enumerate(NAMES)
    ]
    return Table("lrrr", ("row less column", *NAMES[:3]), tuple(rows[1:]), "Differences")


def test_table_within_the_width_has_one_part_with_all_rows() -> None:
    assert render_text.blocks([triangle()], width=60).rstrip().split("\n") == [
        "Differences:",
        "",
        "row less column  first  second  third",
        "───────────────  ─────  ──────  ─────",
        "second              10",
        "third               20      21",
        "fourth              30      31     32",
    ]


def test_table_above_the_width_is_split_and_later_parts_have_no_empty_rows() -> None:
    assert render_text.blocks([triangle()], width=30).rstrip().split("\n") == [
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
