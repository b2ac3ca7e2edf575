"""A figure as SVG that stands in a page: its colours follow the theme, its ids are its own, its text is the page's."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as tree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from harness.reporting.plot_style import EXTERNAL_COLOURS, FAINT, GRID, INK, STYLES, TIP, styled

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
"""A drawn colour and the style sheet's name for it, which each theme fills; other colours stay."""


@styled
def inline(drawn: Figure, name: str, label: str) -> Markup:
    """Return a figure as an `<svg>` element.

    Args:
        drawn: The figure.
        name: Begins every id in it, so that no two figures of a page share one.
        label: What can be seen, for readers who cannot see it.
    """
    buffer = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none"}):
        drawn.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    root = tree.fromstring(buffer.getvalue())
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == f"{SVG}style" or child.tag.endswith("metadata"):
                parent.remove(child)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', buffer.getvalue()))
    for element in root.iter():
        _adapt(element, name, used)
    _flatten(root)
    width, height = root.attrib.pop("width").removesuffix("pt"), root.attrib.pop("height").removesuffix("pt")
    root.attrib.update({"role": "img", "aria-label": label, "class": "drawn"})
    root.attrib["viewBox"] = f"0 0 {_rounded(width)} {_rounded(height)}"
    root.attrib.pop("version", None)
    return Markup(re.sub(r"\s*\n\s*", "\n", tree.tostring(root, encoding="unicode")).strip())


def _adapt(element: tree.Element, name: str, used: set[str]) -> None:
    """Give an element the page's colours, ids of its own and short numbers, and turn a tip into a `<title>`."""
    element.tag = element.tag.removeprefix(SVG)
    if element.tag == "svg":
        element.attrib.pop("xmlns", None)
    for key in [key for key in element.attrib if key.startswith(XLINK)]:
        element.attrib[key.removeprefix(XLINK)] = element.attrib.pop(key)
    identifier = element.attrib.pop("id", "")
    if identifier.startswith(TIP):
        title = tree.Element("title")
        title.text = identifier.removeprefix(TIP)
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
    value = re.sub(r"(fill|stroke): ?(#\w+|black|white)", lambda match: f"{match[1]}:{_colour(match[2])}", value)
    value = re.sub(r"font: (?:italic )?(?:(\d+) )?([\d.]+)px [^;]*", _font, value)
    return _rounded(value.replace("url(#", f"url(#{name}-"))


def _font(match: re.Match[str]) -> str:
    weight = f";font-weight:{match[1]}" if match[1] else ""
    return f"font-size:{match[2]}px{weight}"


def _colour(colour: str) -> str:
    return COLOURS.get(colour.lower(), colour)


def _flatten(parent: tree.Element) -> None:
    """Replace groups without attributes by what they hold, and leave out empty ones."""
    kept: list[tree.Element] = []
    for child in parent:
        _flatten(child)
        if child.tag in ("g", "defs") and not len(child):
            continue
        kept.extend(child if child.tag == "g" and not child.attrib and child[0].tag != "title" else [child])
    parent[:] = kept


def _rounded(value: str) -> str:
    """Return coordinates with at most two decimals."""
    return re.sub(r"-?\d+\.\d+(?:e-?\d+)?", lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."), value)
