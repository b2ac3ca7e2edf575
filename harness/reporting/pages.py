"""Writes the files of a document: HTML, Markdown, headline and plots. The same document gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from harness.reporting import plot_style, render_html, render_markdown
from harness.reporting.document import Block, Document, Figure, Links, find
from harness.storage import files


def write(report: Document, folder: Path) -> Path:
    """Write `folder`/index.html, index.md and headline.json, and the plots under `folder`/figures.

    Links to files that do not exist are left out. The path of the HTML page is returned.
    """
    headline = {"title": report.title, **asdict(report.headline), "warnings": report.warnings}
    text = json.dumps(headline, indent=1, ensure_ascii=False) + "\n"
    files.write_bytes(folder / "headline.json", text.encode("utf-8", "replace"))
    linked, plots = _linked(report, folder), drawn(report)
    page = render_html.document(linked, plots)  # it also gives the panels of plots their places
    for (name, layout), plot in plots.items():
        if layout == "wide":
            plot_style.write(plot, folder / "figures" / f"{name}.svg")
    files.write_bytes(folder / render_html.PAGE, page.encode("utf-8", "replace"))
    files.write_bytes(folder / render_markdown.PAGE, render_markdown.document(linked).encode("utf-8", "replace"))
    return folder / render_html.PAGE


def drawn(report: Document) -> render_html.Plots:
    """Return the plots of a document, which `render_html.document` needs."""
    return {
        (figure.name, layout): figure.draw(layout=layout)
        for figure in find(report.blocks, Figure)
        for layout in plot_style.LAYOUTS
    }


def _linked(report: Document, folder: Path) -> Document:
    """Return the document without links to files that do not exist; of links with one title the first remains."""
    blocks: list[Block] = []
    for block in report.blocks:
        if isinstance(block, Links):
            targets: dict[str, str] = {}
            for title, address in block.targets:
                if (folder / address).is_file():
                    targets.setdefault(title, address)
            blocks += [Links(tuple(targets.items()))] if targets else []
        else:
            blocks.append(block)
    return replace(report, blocks=tuple(blocks))
