"""Renders a document as a self-contained HTML file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure as Plot

from harness.reporting.document import Block, Cell, Document, Heading
from harness.reporting.inline_svg import inline
from harness.reporting.plot_style import LAYOUTS, Layout
from harness.text import printable

PAGE, TEMPLATES = "index.html", Path(__file__).parent / "templates"
GLOSSARY = {
    "sacreBLEU": "BLEU from 0 to 100 on detokenised text, higher is better",
    "chrF": "F-score of character n-grams, 0 to 100, higher is better",
    "test perplexity": "Exponential of the mean loss per target token of the test set, lower is better",
    "validation perplexity": "Exponential of the mean loss per target token, dropout off, lower is better",
    "training perplexity": "Exponential of the mean loss per target token while training, dropout on",
    "validation loss": "Nats per target token, dropout off, lower is better",
    "tutorial BLEU": "BLEU as the tutorial computes it, on lowercased tokens",
    "tokenised BLEU": "BLEU on Moses tokens",
    "training tokens/s": "Target tokens per second while training",
    "sentences/s": "Translated test sentences per second",
    "MFU, %": "Model FLOPs utilisation: arithmetic per second over the measured matmul peak of this machine",
    "GFLOP/s": "Billions of multiplications and additions per second, counted by formula",
    "brevity penalty": "sacreBLEU's factor for translations shorter than the references, 0 to 1",
    "relu": "Rectified linear unit: x where it is positive, otherwise 0",
    "gelu": "Gaussian error linear unit: x times the share of a normal distribution below x",
    "silu": "Sigmoid linear unit, or swish: x / (1 + exp(-x))",
    "tanh": "Hyperbolic tangent",
}
"""Tooltips of column titles."""


Plots = Mapping[tuple[str, Layout], Plot]
"""The plots of the figures of a document, by the name of the figure and the layout."""


def document(report: Document, plots: Plots) -> str:
    """Return a page with the figures in all layouts, of which the style sheet shows the one that fits.

    All text is escaped, and the page's content security policy only allows its own script.
    """
    environment = _environment(plots)
    # The policy has the hash of the script, so empty lines must be removed before.
    style, script = (
        _without_empty_lines(environment.get_template(f"report.{kind}").render()) for kind in ("css", "js")
    )
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    first, sections = _sections(report.blocks)
    page = environment.get_template("page.html.j2").render(
        report=report,
        first=first,
        sections=sections,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'",
        style=Markup(style),
        script=Markup(script),
    )
    return _without_empty_lines(page)


def _environment(plots: Plots) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
        finalize=_printable,
    )
    numbers = itertools.count(1)
    environment.globals["number"] = lambda: next(numbers)
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["cell"] = lambda cell: cell if isinstance(cell, Cell) else Cell(cell)
    environment.globals["layouts"] = LAYOUTS
    environment.filters["svg"] = lambda figure, layout: inline(
        plots[figure.name, layout], f"{figure.name}-{layout}", figure.alt
    )
    environment.filters["reading"] = lambda figure, layout: figure.reading(plots[figure.name, layout])
    environment.filters["tip"] = lambda head: GLOSSARY.get(head) or GLOSSARY.get(head.partition(",")[0], "")
    environment.filters["breakable"] = lambda text: escape(printable(text)).replace("_", Markup("_<wbr>"))
    environment.filters["value"] = sort_value
    return environment


def _printable(value: Any) -> Any:
    """Return text without invisible characters and changes of writing direction; other values unchanged."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def sort_value(cell: str | Cell) -> str:
    """Return the sort key of a cell; empty for a missing value."""
    value = cell.value if isinstance(cell, Cell) else cell
    return "" if value is None else f"{value:.6g}" if isinstance(value, float | int) else value


def _sections(blocks: Sequence[Block]) -> tuple[list[Block], list[dict[str, Any]]]:
    """Return the blocks before the first section, and every section with its slug, title and blocks."""
    first: list[Block] = []
    sections: list[dict[str, Any]] = []
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            sections.append({"slug": block.slug, "title": block.text, "blocks": []})
        else:
            (sections[-1]["blocks"] if sections else first).append(block)
    return first, [section for section in sections if section["blocks"]]


def _without_empty_lines(text: str) -> str:
    return re.sub(r"\n\s*\n+", "\n", text).strip()
