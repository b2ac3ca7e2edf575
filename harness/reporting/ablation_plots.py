"""Forest plots of an ablation: the effect of each level with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from harness.analysis.ablation import FieldEffects
from harness.analysis.ablation_study import Study
from harness.analysis.contrasts import AblationEffect
from harness.analysis.metric_registry import ABLATION
from harness.reporting.ablation_tables import MAIN, SECOND, status
from harness.reporting.formatting import signed
from harness.reporting.plot_style import FAINT, INK, STYLES, Layout, name_rows, row_panels, styled, subtitle, titles

COLOUR = STYLES["learned_positions"].colour
LARGEST_REACH = 20.0
"""The end of an axis, at most, in units of the median effect. Larger effects become arrows with numbers."""


@styled
def forest(study: Study, fields: Sequence[FieldEffects], *, layout: Layout = "wide") -> Figure:
    """Draw each level's effect on loss and BLEU as a point with its interval; hollow points are not significant.

    0 is the base. Levels without a value show the status of their runs.
    """
    labels: list[str] = []
    bases: list[int] = []
    for field in fields:
        bases.append(len(labels))
        labels.append(f"{field.field} (base: {field.levels[0]})")
        labels += [f"{field.field} = {level}" for level in field.levels[1:]]
    picture, drawn = row_panels(layout, 11, 1.7 + 0.3 * len(labels), 2)
    for axes, name in zip(drawn, (MAIN, SECOND), strict=True):
        metric = ABLATION[name]
        unit = f" in {metric.unit}" if metric.unit else ""
        titles(axes, layout, f"{metric.title}, {metric.direction} is better", f"difference from the base{unit}")
        _panel(axes, study, fields, name)
        axes.xaxis.set_major_locator(MaxNLocator(7 if layout == "wide" else 4))
    name_rows(drawn, layout, labels, bold=bases)
    subtitle(
        picture, "Lines are 95 % intervals; hollow points are inconclusive or not tested; arrows lead beyond the axis"
    )
    return picture


def _panel(axes: Axes, study: Study, fields: Sequence[FieldEffects], name: str) -> None:
    effects = [effect for field in fields for effect in field.effects[name] if effect.mean is not None]
    ends = [abs(end) for effect in effects for end in (effect.mean, effect.low, effect.high) if end is not None]
    sizes = sorted(effect.size for effect in effects)  # one huge effect must not hide the others
    reach = (1.15 * min(max(ends), LARGEST_REACH * sizes[len(sizes) // 2]) if sizes else 0.0) or 1.0
    axes.set_xlim(-reach, reach)
    axes.axvline(0, color=INK, lw=1.0, zorder=1)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0")
    y = 0
    for field in fields:
        axes.axhspan(y - 0.5, y + 0.5, color="#EEEEEE", lw=0, zorder=0)
        for effect in field.effects[name]:
            y += 1
            cell = study.cell(effect.contrast.changed)
            _point(axes, effect, y, reach, "" if cell is None else status(cell))
        y += 1


def _point(axes: Axes, effect: AblationEffect, y: int, reach: float, incomplete: str) -> None:
    if effect.mean is None:
        axes.text(0, y, f"  {incomplete or 'no figure'}", va="center", color=FAINT, size=8)
        return
    low, high = (effect.mean if end is None else end for end in (effect.low, effect.high))
    axes.plot([max(low, -reach), min(high, reach)], [y, y], color=COLOUR, lw=1.6, solid_capstyle="butt")
    for end, side, marker in ((low, -1, "<"), (high, 1, ">")):
        if end * side > reach:
            axes.plot([side * reach * 0.985], [y], marker=marker, ms=6, color=COLOUR, ls="none")
    if abs(effect.mean) > reach:
        side, marker, align = (1, ">", "right") if effect.mean > 0 else (-1, "<", "left")
        text = f"{signed(effect.mean, ABLATION[effect.metric].digits)} "
        inner = max(low, 0.0) if side > 0 else min(high, 0.0)
        axes.text(side * min(reach * 0.95, abs(inner)), y, text, va="center", ha=align, size=8, color=INK)
        axes.plot([side * reach * 0.985], [y], marker=marker, ms=6, color=COLOUR, ls="none")
        return
    face = COLOUR if effect.significant else "white"
    axes.plot([effect.mean], [y], marker="o", ms=6.5, mfc=face, mec=COLOUR, mew=1.3, ls="none", zorder=3)
    if incomplete:
        right = max(min(high, reach), effect.mean)
        axes.annotate(incomplete, (right, y), (8, 0), textcoords="offset points", va="center", size=7, color=FAINT)
