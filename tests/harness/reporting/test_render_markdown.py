"""Text in Markdown is escaped."""

from __future__ import annotations

import re

import pytest
from hostile_text import HOSTILE_NAME, rendered

from harness.reporting.render_markdown import code, text


@pytest.mark.parametrize(
    "hostile", [HOSTILE_NAME, "a*b*c", "__x__", "1. x", "- x", "# x", "<script>", "![i](u)", "\\*", "a\nb"]
)
def test_text_is_escaped(hostile: str) -> None:
    paragraph = rendered(text(hostile))
    assert not re.search(r"<(?!/?p>)", paragraph), "no tag other than the paragraph's"
    assert "$" not in text(hostile)
    cell = rendered(f"| a |\n| --- |\n| {code(hostile)} |\n")
    assert cell.count("<td>") == 1
    assert re.search(r"<td><code>.*</code></td>", cell)
