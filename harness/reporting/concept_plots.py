"""Pictures that explain the models: sinusoids, schedules, masks, activations and attention heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from harness.reporting.formatting import quantity
from harness.reporting.plot_style import FAINT, INK, Style, figure, label_ends, style, styled, write
from harness.text import short_line
from harness.training import schedules
from impls import formulas
from impls.contract import Activation, Training

VISIBLE_COLOUR, HIDDEN_COLOUR = "#0072B2", "#E8E8E8"


@styled
def sinusoid_table(positions: int = 100, width: int = 256) -> Figure:
    """Draw the table of sinusoidal positions as a heat map, position downwards, column across."""
    made, grid = figure(9, 4.2)
    axes = grid[0, 0]
    image = axes.imshow(formulas.sinusoids(positions, width), aspect="auto", cmap="PuOr", vmin=-1, vmax=1)
    axes.grid(visible=False)
    axes.set_title("Sinusoidal positions: sine in even columns, cosine in odd ones")
    axes.set_xlabel(f"column of the embedding (0 to {width - 1}); waves grow longer to the right")
    axes.set_ylabel("position in the sentence")
    bar = made.colorbar(image, ax=axes, pad=0.02, ticks=[-1, 0, 1])
    bar.set_label("value added to the embedding")
    return made


@styled
def learned_positions(table: npt.NDArray[Any]) -> Figure:
    """Draw a table of learned positions as a heat map, position downwards, column across. Shapes: table [P,D]."""
    made, grid = figure(9, 4.2)
    axes = grid[0, 0]
    values = np.asarray(table, dtype=np.float64)
    most = float(np.abs(values).max()) or 1.0
    image = axes.imshow(values, aspect="auto", cmap="PuOr", vmin=-most, vmax=most)
    axes.grid(visible=False)
    axes.set_title("Learned positions of the encoder")
    axes.set_xlabel(f"column of the embedding (0 to {values.shape[1] - 1})")
    axes.set_ylabel("position in the sentence")
    bar = made.colorbar(image, ax=axes, pad=0.02)
    bar.set_label("value added to the embedding")
    return made


@styled
def learning_rates(trainings: Mapping[str, Training], training_pairs: int = 29_000) -> Figure:
    """Draw each variant's learning rate over the updates of its own training; equal ones share a line."""
    shared: dict[Training, list[str]] = {}
    for name, training in trainings.items():
        shared.setdefault(training, []).append(name)
    made, grid = figure(10, 4.2)
    axes = grid[0, 0]
    ends: list[tuple[float, float, str, Style]] = []
    for training, names in shared.items():
        updates = training.epochs * math.ceil(training_pairs / training.batch_size)
        points = np.unique(np.append(np.linspace(1, updates, 400).astype(int), [max(training.warmup_updates, 1)]))
        rates = [schedules.learning_rate(training, int(update)) for update in points]
        own = style(names[0])
        axes.plot(points, rates, color=own.colour, linestyle=own.dashes, lw=1.8)
        axes.plot(points[-1:], rates[-1:], ls="none", **{k: v for k, v in own.line.items() if k != "linestyle"})
        ends.append((float(points[-1]), rates[-1], ", ".join(names), own))
    axes.set_title("Learning rate, as each source trains its variant; the marker is the end of its training")
    axes.set_xlabel(f"update ({training_pairs:,} training pairs)")
    axes.set_ylabel("learning rate")
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_formatter(FuncFormatter(quantity))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    label_ends(axes, ends)
    return made


@styled
def padded_masks(source_lengths: Sequence[int] = (6, 4, 2), target_lengths: Sequence[int] = (5, 6, 3)) -> Figure:
    """Draw which words each word may look at in a padded batch, one row of panels a sentence."""
    found = formulas.masks(source_lengths, target_lengths)
    sentences, sources = found.encoder.shape
    encoder = np.broadcast_to(found.encoder[:, None, :], (sentences, sources, sources))
    panels = {
        "encoder self-attention": (encoder, source_lengths, source_lengths, "source", "source"),
        "decoder self-attention": (found.decoder, target_lengths, target_lengths, "target", "target"),
        "cross-attention": (found.cross, target_lengths, source_lengths, "target", "source"),
    }
    made, grid = figure(9, 2.3 * sentences + 1.2, rows=sentences, columns=len(panels))
    for column, (title, (visible, queries, keys, query, key)) in enumerate(panels.items()):
        grid[0, column].set_title(title)
        grid[-1, column].set_xlabel(f"{key} word looked at (key)")
        for sentence in range(sentences):
            axes = grid[sentence, column]
            _mask(axes, visible[sentence], queries[sentence], keys[sentence])
            number = f"sentence {sentence + 1}\n" if column == 0 else ""
            axes.set_ylabel(f"{number}{query} word (query)", fontsize=9)
    handles = [
        Patch(facecolor=VISIBLE_COLOUR, label="visible"),
        Patch(facecolor=HIDDEN_COLOUR, edgecolor=FAINT, label="hidden"),
    ]
    made.legend(handles=handles, loc="outside upper right", ncols=2, frameon=False)
    made.suptitle("What may be looked at in a padded batch", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return made


def _mask(axes: Axes, visible: npt.NDArray[np.bool_], queries: int, keys: int) -> None:
    axes.imshow(visible, cmap=ListedColormap([HIDDEN_COLOUR, VISIBLE_COLOUR]), vmin=0, vmax=1, aspect="auto")
    rows, columns = visible.shape
    axes.set_xticks(range(columns), [str(i + 1) if i < keys else "pad" for i in range(columns)], fontsize=9)
    axes.set_yticks(range(rows), [str(i + 1) if i < queries else "pad" for i in range(rows)], fontsize=9)
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(visible=False)
    axes.grid(which="minor", color="white", lw=1.5)
    axes.tick_params(which="both", length=0)
    axes.spines[:].set_visible(False)


@styled
def activations(names: Sequence[str] = get_args(Activation)) -> Figure:
    """Draw each activation and its derivative from -4 to 4."""
    x = np.linspace(-4, 4, 401)
    made, grid = figure(11, 3.3, columns=len(names), sharey=True)
    for axes, name in zip(grid[0], names, strict=True):
        axes.axhline(0, color=FAINT, lw=0.6)
        axes.axvline(0, color=FAINT, lw=0.6)
        axes.plot(x, formulas.activation(name, x), color=INK, lw=2, label="activation")
        slope = formulas.activation_derivative(name, x)
        if name == "relu":
            slope = np.where(np.abs(x) < 1e-9, np.nan, slope)
        axes.plot(x, slope, color="#D55E00", lw=1.8, ls=(0, (4, 2)), label="derivative")
        axes.set_title(short_line(name))
        axes.set_xlabel("input")
        axes.set_ylim(-1.2, 3)
        axes.set_xticks([-4, -2, 0, 2, 4])
    made.suptitle("Activations of the feed-forward and their derivatives", x=0.01, ha="left", fontsize=9, color=FAINT)
    grid[0, 0].set_ylabel("output")
    grid[0, 0].legend(loc="upper left", frameon=False)
    return made


# Attention ------------------------------------------------------------------------------------------------------------


@styled
def attention_heat_map(
    weights: npt.NDArray[Any], source_tokens: Sequence[str], target_tokens: Sequence[str], path: Path
) -> None:
    """Draw the cross attention of one sentence, a panel for each head of each layer, and write it to `path`.

    Shapes: weights [layers,H,T,S]; T target and S source tokens.

    Raises: ValueError where the shapes do not fit, or the path does not end in .png, .svg or .pdf.
    """
    found = np.asarray(weights, dtype=np.float64)
    if found.ndim != 4 or found.shape[2:] != (len(target_tokens), len(source_tokens)) or not found.size:
        raise ValueError(
            f"weights of shape {found.shape}: expected [layers, heads, {len(target_tokens)} target tokens, "
            f"{len(source_tokens)} source tokens], none of them 0"
        )
    write(_heat_maps(found, list(map(_word, source_tokens)), list(map(_word, target_tokens))), path)


def _word(token: str) -> str:
    return short_line(token, longest=16) or "␣"


def _heat_maps(weights: npt.NDArray[np.float64], source: list[str], target: list[str]) -> Figure:
    layers, heads, rows, columns = weights.shape
    alone = layers * heads == 1
    across = min(heads, 4)
    down = layers * math.ceil(heads / across)
    cell = 0.34 if alone else 0.18
    panel = max(columns * cell, 1.5) + 0.35, max(rows * cell, 1.2) + 0.45
    made, grid = figure(across * panel[0] + 2.2, down * panel[1] + 1.6, rows=down, columns=across)
    image, most = None, max(float(weights.max()), 0.1)
    for axes in grid.flat:
        axes.set_visible(False)
    for layer in range(layers):
        for head in range(heads):
            place = layer * math.ceil(heads / across) + head // across, head % across
            axes = grid[place]
            axes.set_visible(True)
            image = axes.imshow(weights[layer, head], cmap="Blues", vmin=0, vmax=most, aspect="auto")
            axes.set_title("" if alone else f"layer {layer + 1}, head {head + 1}", fontsize=9, fontweight="normal")
            size = 10 if alone else 8
            lowest = head + across >= heads
            axes.set_xticks(range(columns), source if lowest else [], rotation=90, fontsize=size, minor=False)
            axes.set_yticks(range(rows), target if place[1] == 0 else [], fontsize=size)
            axes.grid(visible=False)
            axes.tick_params(length=2)
    assert image is not None
    bar = made.colorbar(image, ax=grid, shrink=min(1.0, 3 / (down * panel[1])), pad=0.01, aspect=25)
    bar.set_label("attention weight (each row sums to 1)")
    made.suptitle("Which source words (across) each target word (down) looks at", fontsize=11, fontweight="bold")
    return made
