"""Text in Markdown is escaped."""

from __future__ import annotations

import re
from typing import Any

import pytest

from harness.reporting.render_markdown import code, text

HOSTILE = "evil.mod:$\\frac{x}_y$_a_|<b>`t`|[l](http://x.y)"


def html(markdown: str) -> Any:
    markdown_it = pytest.importorskip("markdown_it")
    return markdown_it.MarkdownIt("commonmark", {"linkify": False}).enable("table").render(markdown)


@pytest.mark.parametrize(
    "hostile", [HOSTILE, "a*b*c", "__x__", "1. x", "- x", "# x", "<script>", "![i](u)", "\\*", "a\nb"]
)
def test_text_is_escaped(hostile: str) -> None:
    paragraph = html(text(hostile))
    assert not re.search(r"<(?!/?p>)", paragraph), "no tag other than the paragraph's"
    assert "$" not in text(hostile)
    cell = html(f"| a |\n| --- |\n| {code(hostile, in_table=True)} |\n")
    assert cell.count("<td>") == 1
    assert re.search(r"<td><code>.*</code></td>", cell)
