"""Plots that explain the models: positions, learning rates, masks, activations and attention."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from harness.analysis.grouping import group_by
from harness.reporting import plot_style
from harness.reporting.formatting import quantity
from harness.reporting.plot_style import FAINT, INK, NARROW, STYLES, Layout, Style, styled
from harness.text import first_few, short_line
from harness.training import schedules
from impls import formulas
from impls.contract import Activation, Training

VISIBLE_COLOUR, HIDDEN_COLOUR = STYLES["learned_positions"].colour, "#E8E8E8"
TRAINING_PAIRS = 29_000


@styled
def positions(table: npt.NDArray[Any], *, learned: bool, layout: Layout = "wide") -> Figure:
    """Draw a table of learned or sinusoidal positions [P,D] as a heat map, position downwards, column across."""
    values, largest = np.asarray(table, dtype=np.float64), 1.0
    title, note = "Sinusoidal positions: sine in even columns, cosine in odd ones", "; waves grow longer to the right"
    if learned:
        title, note, largest = "Learned positions of the encoder", "", float(np.abs(values).max()) or 1.0
    picture, (axes,) = plot_style.row_panels(layout, 9, 4.2, 1)
    image = axes.imshow(values, aspect="auto", cmap="PuOr", vmin=-largest, vmax=largest)
    axes.grid(visible=False)
    plot_style.titles(axes, layout, title, f"column of the embedding (0 to {values.shape[1] - 1}){note}")
    axes.set_ylabel("position in the sentence")
    bar = picture.colorbar(image, ax=axes, pad=0.02, ticks=[-1, 0, 1] if largest == 1 else None)
    bar.set_label("value added to the embedding")
    return picture


@styled
def learning_rates(trainings: Mapping[str, Training], *, layout: Layout = "wide") -> Figure:
    """Draw the learning rate of each variant over its updates; variants with the same training share a line."""
    picture, (axes,) = plot_style.row_panels(layout, 10, 4.2, 1)
    ends: list[tuple[float, float, str, Style]] = []
    for training, names in group_by(trainings, trainings.__getitem__).items():
        updates = training.epochs * math.ceil(TRAINING_PAIRS / training.batch_size)
        points = np.unique(np.append(np.linspace(1, updates, 400).astype(int), [max(training.warmup_updates, 1)]))
        rates = [schedules.learning_rate(training, int(update)) for update in points]
        line = plot_style.style(names[0])
        axes.plot(points, rates, color=line.colour, linestyle=line.dashes, lw=1.8)
        axes.plot(points[-1:], rates[-1:], **{**line.line, "linestyle": "none"})
        label = "\n".join(plot_style.short(name, width=15 if layout == "narrow" else 24) for name in names)
        ends.append((float(points[-1]), rates[-1], label, line))
    plot_style.subtitle(picture, "Markers are the ends of trainings")
    plot_style.titles(axes, layout, "", f"update ({TRAINING_PAIRS:,} training pairs)")
    axes.set_ylabel("learning rate")
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(8 if layout == "wide" else 2))
    axes.xaxis.set_major_formatter(quantity)
    axes.yaxis.set_major_formatter("{x:g}")
    plot_style.label_ends(axes, ends)
    return picture


@styled
def padded_masks(source_lengths: Sequence[int], target_lengths: Sequence[int], *, layout: Layout = "wide") -> Figure:
    """Draw the attention masks of a padded batch, one row of panels per sentence."""
    masks = formulas.masks(source_lengths, target_lengths)
    sentences, sources = masks.encoder.shape
    encoder = np.broadcast_to(masks.encoder[:, None, :], (sentences, sources, sources))
    kinds = {
        "encoder\nself-attention": (encoder, source_lengths, source_lengths, "source", "source"),
        "decoder\nself-attention": (masks.decoder, target_lengths, target_lengths, "target", "target"),
        "cross-\nattention": (masks.cross, target_lengths, source_lengths, "target", "source"),
    }
    width, height, size = (9, 2.3, 9.0) if layout == "wide" else (NARROW, 1.3, 6.5)
    picture, grid = plot_style.figure(width, height * sentences + 1.3, rows=sentences, columns=len(kinds))
    for column, (title, (visible, queries, keys, query, key)) in enumerate(kinds.items()):
        grid[0, column].set_title(title, fontsize=size)
        grid[-1, column].set_xlabel(f"{key} (key)", fontsize=size)
        for sentence in range(sentences):
            axes = grid[sentence, column]
            _mask(axes, visible[sentence], queries[sentence], keys[sentence], size)
            number = f"sentence {sentence + 1}\n" if column == 0 else ""
            axes.set_ylabel(f"{number}{query} (query)", fontsize=size)
    handles = [
        Patch(facecolor=VISIBLE_COLOUR, label="visible"),
        Patch(facecolor=HIDDEN_COLOUR, edgecolor=FAINT, label="hidden"),
    ]
    picture.legend(handles=handles, loc="outside lower right", ncols=2, frameon=False)
    plot_style.subtitle(picture, "Tokens (keys) that each token (query) of a padded batch may attend to")
    return picture


def _mask(axes: Axes, visible: npt.NDArray[np.bool_], queries: int, keys: int, size: float) -> None:
    axes.imshow(visible, cmap=ListedColormap([HIDDEN_COLOUR, VISIBLE_COLOUR]), vmin=0, vmax=1, aspect="auto")
    rows, columns = visible.shape
    axes.set_xticks(range(columns), [str(i + 1) if i < keys else "pad" for i in range(columns)], fontsize=size)
    axes.tick_params(axis="x", labelrotation=90 if size < 8 else 0)
    axes.set_yticks(range(rows), [str(i + 1) if i < queries else "pad" for i in range(rows)], fontsize=size)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


@styled
def activations(*, layout: Layout = "wide") -> Figure:
    """Draw each activation and its derivative from -4 to 4."""
    names, x = get_args(Activation), np.linspace(-4, 4, 401)
    width, height, columns = (11, 3.3, len(names)) if layout == "wide" else (NARROW, 2.2, 2)
    rows = math.ceil(len(names) / columns)
    picture, grid = plot_style.figure(width, height * rows, rows=rows, columns=columns, sharex=True, sharey=True)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, names, strict=False):
        axes.axhline(0, color=FAINT, lw=0.6)
        axes.axvline(0, color=FAINT, lw=0.6)
        axes.plot(x, formulas.activation(name, x), color=INK, lw=2)
        slope = formulas.activation_derivative(name, x)
        if name == "relu":
            slope = np.where(np.abs(x) < 1e-9, np.nan, slope)
        axes.plot(x, slope, color=STYLES["sinusoidal_handmade"].colour, lw=1.8, ls=(0, (4, 2)))
        axes.set_title(short_line(name))
        axes.set_ylim(-1.2, 3)
        axes.set_xticks([-4, -2, 0, 2, 4])
    for axes in grid[-1]:
        axes.set_xlabel("input")
    plot_style.subtitle(picture, "Activations (solid) of the feed-forward block and their derivatives (dashed)")
    grid[0, 0].set_ylabel("output")
    return picture


@styled
def attention_heat_map(
    weights: npt.NDArray[Any], source_tokens: Sequence[str], target_tokens: Sequence[str], path: Path
) -> None:
    """Draw the cross attention of a sentence, one panel per head of each layer, and write it to `path`.

    Shapes: weights [layers,H,T,S] for T target and S source tokens.

    Raises:
        ValueError: The shapes do not fit, or the path does not end in .png, .svg or .pdf.
    """
    values = np.asarray(weights, dtype=np.float64)
    if values.ndim != 4 or values.shape[2:] != (len(target_tokens), len(source_tokens)) or not values.size:
        raise ValueError(
            f"weights of shape {values.shape}: expected [layers, heads, {len(target_tokens)} target tokens, "
            f"{len(source_tokens)} source tokens], none of them 0"
        )
    source, target = (
        [short_line(token, longest=16) or "␣" for token in side] for side in (source_tokens, target_tokens)
    )
    layers, heads, rows, columns = values.shape
    single = layers * heads == 1
    size, text_size = (0.34, 10) if single else (0.18, 8)
    across = min(heads, 4)
    down = math.ceil(heads / across)
    width, height = max(columns * size, 1.5) + 0.35, max(rows * size, 1.2) + 0.45
    total = layers * down * height
    picture, grid = plot_style.figure(across * width + 2.2, total + 1.6, rows=layers * down, columns=across)
    largest = max(float(values.max()), 0.1)
    fonts = _fonts_for("".join(source + target))
    for index, axes in np.ndenumerate(grid):
        layer, head = index[0] // down, index[0] % down * across + index[1]
        if head >= heads:
            axes.set_visible(False)
            continue
        image = axes.imshow(values[layer, head], cmap="Blues", vmin=0, vmax=largest, aspect="auto")
        axes.set_title("" if single else f"layer {layer + 1}, head {head + 1}", fontsize=9, fontweight="normal")
        is_lowest = head + across >= heads
        axes.set_xticks(range(columns), source if is_lowest else [], rotation=90, fontsize=text_size, fontfamily=fonts)
        axes.set_yticks(range(rows), target if index[1] == 0 else [], fontsize=text_size, fontfamily=fonts)
        axes.grid(visible=False)
        axes.tick_params(length=2)
    bar = picture.colorbar(image, ax=grid, shrink=min(1.0, 3 / total), pad=0.01, aspect=25)
    bar.set_label("attention weight (each row sums to 1)")
    title = "Attention of each target token (down) to the source tokens (across)"
    picture.suptitle(textwrap.fill(title, int(10 * picture.get_figwidth())), fontsize=11, fontweight="bold")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ ")  # `_fonts_for` has named them
        plot_style.write(picture, path)


def _fonts_for(text: str) -> list[str]:
    """Return matplotlib's default font, and installed ones with the characters of a text that it lacks.

    Warns of characters that no font has.
    """
    default = font_manager.FontProperties()
    families = [font_manager.get_font(font_manager.findfont(default)).family_name]
    missing = set(text) - _characters(font_manager.findfont(default))
    for font in sorted(font_manager.fontManager.ttflist, key=lambda font: font.name) if missing else ():
        if found := missing & _characters(font.fname):
            families.append(font.name)
            missing -= found
    if missing:
        some = first_few(sorted(missing), 10)
        warnings.warn(f"no installed font has {some}: they are drawn as boxes; install such a font", stacklevel=3)
    return families


def _characters(font: str) -> set[str]:
    """Return the characters of a font file; none for the font that draws boxes, and for a file that is gone."""
    try:
        loaded = font_manager.get_font(font)
    except (OSError, RuntimeError):
        return set()
    return set() if loaded.family_name.startswith("Last Resort") else set(map(chr, loaded.get_charmap()))
