"""Pictures of an ablation: the effects of each field's words with their intervals, as a forest plot."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.analysis.ablation import FieldEffects
from harness.analysis.ablation_study import Study
from harness.analysis.contrasts import AblationEffect
from harness.analysis.metric_registry import ABLATION
from harness.reporting.ablation_tables import signed, status
from harness.reporting.plot_style import FAINT, INK, STYLES, figure, styled

DRAWN = ("validation_loss", "bleu_sacre")
COLOUR = STYLES["learned_positions"].colour
FAR = 8.0
"""How many times the size of the median effect the axis reaches at most; what lies beyond is an arrow and a number."""


@styled
def forest(study: Study, fields: Sequence[FieldEffects]) -> Figure:
    """Draw each word's effect on loss and BLEU as a point with its interval, hollow where it is not significant.

    0 is the base. Words without a figure, because no run of theirs completed, say how they ended.
    """
    rows = sum(len(field.words) for field in fields)
    made, grid = figure(11, 1.7 + 0.3 * rows, columns=len(DRAWN), sharey=True)
    for axes, name in zip(grid[0], DRAWN, strict=True):
        axes.set_title(f"{ABLATION[name].title}, {'lower' if ABLATION[name].less_is_better else 'higher'} is better")
        unit = ABLATION[name].unit
        axes.set_xlabel(f"difference from the base{' in ' * bool(unit)}{unit}")
        axes.tick_params(axis="y", length=0)
        _panel(axes, study, fields, name)
    labels = _labels(fields)
    grid[0, 0].set_yticks(range(rows), [text for text, _ in labels])
    for tick, (_, weight) in zip(grid[0, 0].get_yticklabels(), labels, strict=True):
        tick.set_fontweight(weight)
    grid[0, 0].set_ylim(rows - 0.4, -0.7)
    what = "Lines are 95 % intervals; hollow points are inconclusive or not tested; arrows lead beyond the axis"
    made.suptitle(what, x=0.01, ha="left", fontsize=9, color=FAINT)
    return made


def _labels(fields: Sequence[FieldEffects]) -> list[tuple[str, str]]:
    """Return text and weight of each line's name: a field with its base's word in bold, then its words."""
    found = []
    for field in fields:
        found.append((f"{field.field} (base: {field.words[0]})", "bold"))
        found += [(f"{field.field} = {word}", "normal") for word in field.words[1:]]
    return found


def _panel(axes: Axes, study: Study, fields: Sequence[FieldEffects], name: str) -> None:
    everything = [effect for field in fields for effect in field.effects[name]]
    reach = _reach(everything)
    axes.set_xlim(-reach, reach)
    axes.axvline(0, color=INK, lw=1.0, zorder=1)
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_locator(MaxNLocator(7))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}".replace("-", "−") if value else "0"))
    place = 0
    for field in fields:
        axes.axhspan(place - 0.5, place + 0.5, color="#EEEEEE", lw=0, zorder=0)
        for effect in field.effects[name]:
            place += 1
            _point(axes, effect, place, reach, _endings(study, effect))
        place += 1


def _reach(effects: Sequence[AblationEffect]) -> float:
    """Return how far the axis goes on both sides of 0, so that one huge effect does not hide the others."""
    sizes = sorted(one.size for one in effects if one.mean is not None)
    ends = [abs(end) for one in effects for end in (one.mean, one.low, one.high) if end is not None]
    return 1.15 * min(max(ends, default=0.0), FAR * sizes[len(sizes) // 2] if sizes else 0.0) or 1.0


def _point(axes: Axes, effect: AblationEffect, place: int, reach: float, endings: str) -> None:
    if effect.mean is None:
        axes.text(0, place, f"  {endings or 'no figure'}", va="center", color=FAINT, size=8)
        return
    low, high = (effect.mean if end is None else end for end in (effect.low, effect.high))
    axes.plot([max(low, -reach), min(high, reach)], [place, place], color=COLOUR, lw=1.6, solid_capstyle="butt")
    for end, side in ((low, -1), (high, 1)):
        if abs(end) > reach and (end > 0) == (side > 0):
            axes.plot([side * reach * 0.985], [place], marker="<" if side < 0 else ">", ms=6, color=COLOUR, ls="none")
    if abs(effect.mean) > reach:
        side = 1 if effect.mean > 0 else -1
        text = f"{signed(effect.mean, effect.figure)} "
        axes.text(side * reach * 0.95, place, text, va="center", ha="right" if side > 0 else "left", size=8, color=INK)
        axes.plot([side * reach * 0.985], [place], marker="<" if side < 0 else ">", ms=6, color=COLOUR, ls="none")
        return
    face = COLOUR if effect.significant else "white"
    axes.plot([effect.mean], [place], marker="o", ms=6.5, mfc=face, mec=COLOUR, mew=1.3, ls="none", zorder=3)
    if endings:
        place_of_text = max(min(high, reach), effect.mean), place
        axes.annotate(endings, place_of_text, (8, 0), textcoords="offset points", va="center", size=7, color=FAINT)


def _endings(study: Study, effect: AblationEffect) -> str:
    """Return what did not complete of the recipe with the effect's word alone."""
    cell = study.cell(effect.contrast.changed)
    return "" if cell is None else status(cell)
