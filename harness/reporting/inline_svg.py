"""A figure as inline SVG: colours follow the theme of the page, ids are unique, text has the font of the page."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as tree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from harness.reporting.plot_style import (
    EXTERNAL_COLOURS,
    FAINT,
    GRID,
    INK,
    SERIES,
    STYLES,
    TIP,
    lay_out,
    numbered_ids,
    styled,
)

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
COLOURS = {
    **{style.colour.lower(): f"var(--series-{number})" for number, style in enumerate(STYLES.values())},
    **{colour.lower(): f"var(--outsider-{number})" for number, colour in enumerate(EXTERNAL_COLOURS)},
    INK.lower(): "currentColor",
    FAINT.lower(): "var(--faint)",
    GRID.lower(): "var(--grid)",
    "#eeeeee": "var(--grid)",
    "#ffffff": "var(--paper)",
    "black": "currentColor",
    "white": "var(--paper)",
}
"""Colours of plots and the variables of the style sheet that replace them; other colours stay."""


@styled
def inline(plot: Figure, name: str, label: str) -> Markup:
    """Return a figure as an `<svg>` element with a label for readers who cannot see it; `name` begins all its ids."""
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        # With the resolution of SVG, as `savefig` would, but without the draft of everything that it draws for this.
        before, plot.dpi = plot.dpi, FigureCanvasSVG.fixed_dpi
        FigureCanvasSVG(plot)
        lay_out(plot)
        plot.dpi = before
        plot.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    svg = numbered_ids(buffer.getvalue())
    root = tree.fromstring(svg)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{SVG}style" or child.tag.endswith("metadata"):
                parent.remove(child)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    for element in root.iter():
        _adapt(element, name, used)
    _flatten(root)
    width, height = root.attrib.pop("width").removesuffix("pt"), root.attrib.pop("height").removesuffix("pt")
    root.attrib.update({"role": "img", "aria-label": label, "class": "drawn"})
    root.attrib["viewBox"] = f"0 0 {_rounded(width)} {_rounded(height)}"
    root.attrib.pop("version", None)
    return Markup(re.sub(r"\s*\n\s*", "\n", tree.tostring(root, encoding="unicode")).strip())


def _adapt(element: tree.Element, name: str, used: set[str]) -> None:
    """Replace colours and ids of an element, shorten its numbers, and name its series and tooltip."""
    element.tag = element.tag.removeprefix(SVG)
    for key in [key for key in element.attrib if key.startswith(XLINK)]:
        element.attrib[key.removeprefix(XLINK)] = element.attrib.pop(key)
    identifier = element.attrib.pop("id", "")
    if identifier.startswith(SERIES):
        label, _, tip = identifier.removeprefix(SERIES).partition(TIP)
        if label:
            element.attrib["data-series"] = label
        if tip:
            title = tree.Element("title")
            title.text = tip
            element.insert(0, title)
    if identifier in used:
        element.attrib["id"] = f"{name}-{identifier}"
    for key, value in element.attrib.items():
        if key == "href" and value.startswith("#"):
            element.attrib[key] = f"#{name}-{value[1:]}"
        elif key == "style":
            element.attrib[key] = _style(value, name)
        elif value.startswith("url(#"):
            element.attrib[key] = f"url(#{name}-{value[5:]}"
        elif key in ("d", "x", "y", "width", "height", "points"):
            element.attrib[key] = " ".join(_rounded(value).split())


def _style(value: str, name: str) -> str:
    def colour(match: re.Match[str]) -> str:
        return f"{match[1]}:{COLOURS.get(match[2].lower(), match[2])}"

    def font(match: re.Match[str]) -> str:
        return f"font-size:{match[2]}px" + (f";font-weight:{match[1]}" if match[1] else "")

    value = re.sub(r"(fill|stroke): ?(#\w+|black|white)", colour, value)
    value = re.sub(r"font: (?:italic )?(?:(\d+) )?([\d.]+)px [^;]*", font, value)
    return _rounded(value.replace("url(#", f"url(#{name}-"))


def _flatten(parent: tree.Element) -> None:
    """Replace groups without attributes by their children, and remove empty groups."""
    children: list[tree.Element] = []
    for child in parent:
        _flatten(child)
        if child.tag in ("g", "defs") and not len(child):
            continue
        children.extend(child if child.tag == "g" and not child.attrib and child[0].tag != "title" else [child])
    parent[:] = children


def _rounded(value: str) -> str:
    return re.sub(r"-?\d+\.\d+(?:e-?\d+)?", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
