"""The models page: positions, masks, activations and learning rates of the built-in variants."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from harness.reporting import concept_plots, pages, render_html
from harness.reporting.document import Block, Document, Figure, Heading, Headline, Links, Table, Text
from harness.storage import files
from harness.training import schedules
from impls import formulas
from impls.contract import Activation
from impls.recipes import TRAININGS

PAGE = "models.html"
LINKS = ("Runs report", "index.html"), ("Ablation", "ablation/index.html"), ("Speed", "speed/index.html")
SAMPLED = 8
"""The rows and columns of a position table that are shown as numbers."""


def write(folder: Path) -> Path:
    """Write `folder`/models.html, with links to the pages that exist, and return its path."""
    links = tuple((title, address) for title, address in LINKS if (folder / address).is_file())
    files.write_bytes(folder / PAGE, _page(links))
    return folder / PAGE


@cache
def _page(links: tuple[tuple[str, str], ...]) -> bytes:
    """Return the page; a process that writes several reports draws it once."""
    report = Document(
        title="Models: what they are made of",
        headline=Headline("Details of the variants: positions, masks, activations and learning rates."),
        origin="Made by Bakeoff from the formulas that the models use.",
        blocks=(
            *([Links(links)] if links else []),
            *_positions(),
            *_masks(),
            *_activations(),
            *_learning_rates(),
        ),
    )
    return render_html.document(report, pages.drawn(report)).encode("utf-8")


def _positions() -> list[Block]:
    table = formulas.sinusoids(100, 256)
    alt = "Heat map of the sinusoidal positions: waves across positions that grow longer with the column"
    text = "Sinusoidal positions (Vaswani et al. 2017, section 3.5) are added to the embeddings; nothing is learned."
    draw = partial(concept_plots.positions, table, learned=False)
    return [Heading("Positions", slug="positions"), Figure("sinusoids", text, alt, draw, position_table(table))]


def position_table(values: Any) -> Table:
    """Return the first rows and some columns of a position table [P,D]."""
    columns = sorted({round(column) for column in np.linspace(0, values.shape[1] - 1, SAMPLED)})
    heads = ("position", *(f"column {column}" for column in columns))
    rows = tuple(
        (str(row), *(f"{float(values[row, column]):.3f}" for column in columns))
        for row in range(min(SAMPLED, len(values)))
    )
    return Table("r" * len(heads), heads, rows)


def _masks() -> list[Block]:
    sources, targets = (6, 4, 2), (5, 6, 3)
    masks = formulas.masks(sources, targets)
    rows: list[tuple[str, str, str, str]] = []
    for sentence in range(len(sources)):
        for title, visible in (("decoder self-attention", masks.decoder), ("cross-attention", masks.cross)):
            for query, row in enumerate(visible[sentence]):
                rows.append((str(sentence + 1), title, str(query + 1), _numbers(row)))
        rows.append((str(sentence + 1), "encoder self-attention", "every", _numbers(masks.encoder[sentence])))
    data = Table("lllp", ("sentence", "where", "token", "may attend to tokens"), tuple(rows))
    alt = "Grids of what each token may attend to in three padded sentences: padding and later target tokens are hidden"
    caption = "Three padded sentences of one batch: nothing attends to padding, and no target token to a later one."
    return [
        Heading("Masks", slug="masks"),
        Figure("masks", caption, alt, partial(concept_plots.padded_masks, sources, targets), data),
    ]


def _numbers(mask: Any) -> str:
    return ", ".join(str(index + 1) for index in np.flatnonzero(mask))


def _activations() -> list[Block]:
    names = get_args(Activation)
    x = np.linspace(-4, 4, 9)
    columns = [
        column for name in names for column in (formulas.activation(name, x), formulas.activation_derivative(name, x))
    ]
    heads = ("input", *(f"{name}{kind}" for name in names for kind in ("", ", derivative")))
    rows = tuple((f"{value:g}", *(f"{number:.3f}" for number in row)) for value, *row in zip(x, *columns, strict=True))
    return [
        Heading("Activations", slug="activations"),
        Figure(
            "activations",
            "The activation between the two layers of the feed-forward block, and its derivative.",
            "Curves of each activation and its derivative from -4 to 4",
            concept_plots.activations,
            Table("r" * len(heads), heads, rows),
        ),
    ]


def _learning_rates() -> list[Block]:
    updates = (1, 100, 500, 1_000, 2_000, 4_000, 8_000)
    rows = tuple(
        (name, *(f"{schedules.learning_rate(training, update):.3g}" for update in updates))
        for name, training in TRAININGS.items()
    )
    heads = ("variant", *(f"update {update:,}" for update in updates))
    return [
        Heading("Learning rates", slug="learning-rates"),
        Text("With the budget “source” each variant is trained as its source trains it."),
        Figure(
            "learning-rates",
            "Learning rate against updates, as each source trains its variant.",
            "Learning rate against updates, a line for each training",
            partial(concept_plots.learning_rates, TRAININGS),
            Table("l" + "r" * len(updates), heads, rows),
        ),
    ]
