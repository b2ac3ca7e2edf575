"""A figure as SVG that stands in a page: its colours follow the theme, its ids are its own, its text is the page's."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as tree

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from harness.reporting.plot_style import FAINT, GRID, INK, OUTSIDERS, STYLES, styled

SVG, XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
SERIES = {own.colour.lower(): f"var(--series-{number})" for number, own in enumerate(STYLES.values())}
COLOURS = {
    **SERIES,
    **{colour.lower(): f"var(--outsider-{number})" for number, colour in enumerate(OUTSIDERS)},
    INK.lower(): "currentColor",
    FAINT.lower(): "var(--faint)",
    GRID.lower(): "var(--grid)",
    "#eeeeee": "var(--grid)",
    "#ffffff": "var(--paper)",
    "black": "currentColor",
    "white": "var(--paper)",
}
"""A drawn colour -> the style sheet's name for it, which each theme fills; other colours stay."""


def theme_colour(colour: str) -> str:
    """Return what a page writes for a colour of the drawings."""
    return COLOURS.get(colour.lower(), colour)


@styled
def inline(drawn: Figure, name: str, label: str) -> Markup:
    """Return a figure as an `<svg>` element without style sheets or style attributes, which the page's policy forbids.

    `name` begins every id in it, so that no two figures of a page share one; `label` says what is seen.
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
        _plain(element, name, used)
    _flatten(root)
    width, height = root.attrib.pop("width").removesuffix("pt"), root.attrib.pop("height").removesuffix("pt")
    root.attrib.update({"role": "img", "aria-label": label, "stroke-linejoin": "round", "class": "drawn"})
    root.attrib["viewBox"] = f"0 0 {_short(width)} {_short(height)}"
    root.attrib.pop("version", None)
    return Markup(re.sub(r"\s*\n\s*", "\n", tree.tostring(root, encoding="unicode")).strip())


def _plain(element: tree.Element, name: str, used: set[str]) -> None:
    """Make an element the page's: no namespace prefixes, attributes instead of a style, few digits."""
    element.tag = element.tag.removeprefix(SVG)
    for key, value in re.findall(r"([\w-]+):\s*([^;]+)", element.attrib.pop("style", "")):
        element.attrib.update(_attributes(key, value.strip()))
    if element.tag == "svg":
        element.attrib.pop("xmlns", None)
    for key in [key for key in element.attrib if key.startswith(XLINK)]:
        element.attrib[key.removeprefix(XLINK)] = element.attrib.pop(key)
    own = element.attrib.pop("id", None)
    if own in used:
        element.attrib["id"] = f"{name}-{own}"
    for key, value in element.attrib.items():
        if key == "href" and value.startswith("#"):
            element.attrib[key] = f"#{name}-{value[1:]}"
        elif value.startswith("url(#"):
            element.attrib[key] = f"url(#{name}-{value[5:]}"
        elif key in ("d", "x", "y", "width", "height", "points", "stroke-width"):
            element.attrib[key] = _short(value)
    if "d" in element.attrib:
        element.attrib["d"] = " ".join(element.attrib["d"].split())


def _flatten(parent: tree.Element) -> None:
    """Put what groups without attributes hold in their place, and leave out what holds nothing."""
    kept: list[tree.Element] = []
    for child in parent:
        _flatten(child)
        if child.tag in ("g", "defs") and not len(child):
            continue
        kept.extend(child if child.tag == "g" and not child.attrib else [child])
    parent[:] = kept


def _attributes(key: str, value: str) -> dict[str, str]:
    if key == "font":
        found = re.match(r"(?:(?:italic|oblique) )?(?:(\w+) )?([\d.]+)px", value)
        assert found, value
        weight = {"font-weight": found[1]} if found[1] else {}
        return {"font-size": _short(found[2]), **weight}
    if key in ("fill", "stroke"):
        return {key: theme_colour(value)}
    return {key: value}


def _short(value: str) -> str:
    """Return coordinates with at most two decimals."""
    return re.sub(r"-?\d+\.\d+(?:e-?\d+)?", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
