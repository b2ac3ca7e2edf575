"""Writes the files of a document: HTML, Markdown, headline and plots. The same document gives the same bytes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from harness.reporting import plot_style, render_html, render_markdown
from harness.reporting.document import Block, Document, Figure, Links, find
from harness.storage import files

HEADLINE = "headline.json"


def write(report: Document, folder: Path) -> Path:
    """Write `folder`/index.html, index.md and headline.json, and the plots under `folder`/figures.

    Links to files that do not exist are left out.

    Returns:
        The path of the HTML page.
    """
    headline = {"title": report.title, **asdict(report.headline), "warnings": report.warnings}
    text = json.dumps(headline, indent=1, ensure_ascii=False) + "\n"
    files.write_bytes(folder / HEADLINE, text.encode("utf-8", "replace"))
    path = write_html(report, folder / render_html.PAGE, plot_folder=folder / "figures")
    page = render_markdown.document(_linked(report, folder))
    files.write_bytes(folder / render_markdown.PAGE, page.encode("utf-8", "replace"))
    return path


def write_html(report: Document, path: Path, *, plot_folder: Path | None = None) -> Path:
    """Write a document as one HTML file, and its figures as SVG under `plot_folder`; return `path`."""
    plots = {
        (figure.name, layout): figure.draw(layout=layout)
        for figure in find(report.blocks, Figure)
        for layout in plot_style.LAYOUTS
    }
    page = render_html.document(_linked(report, path.parent), plots)
    for (name, layout), plot in plots.items():
        if plot_folder is not None and layout == "wide":
            plot_style.write(plot, plot_folder / f"{name}.svg")
    files.write_bytes(path, page.encode("utf-8", "replace"))
    return path


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
