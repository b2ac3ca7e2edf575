"""Writes the page of a speed document, as Markdown with pictures and as one HTML file; same document, same bytes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from harness.reporting import bench_report, plot_style, render_html, speed_plots, speed_ratios, speed_tables, speed_text
from harness.reporting.inline_svg import inline
from harness.reporting.markdown import Markdown, text
from harness.reporting.speed_tables import SpeedTable
from harness.speed.speed_document import SpeedDocument
from harness.storage import files
from harness.text import count, short_line

FOLDER = "speed"


@dataclass(frozen=True)
class SectionContent:
    """What a section is made of: how its tables and its picture are made, and what is said above and seen in it."""

    title: str
    aside: str
    tables: Callable[[SpeedDocument], Sequence[SpeedTable]]
    draw: Callable[[SpeedDocument], Figure | None] | None = None
    caption: str = ""
    alt: str = ""


PARTS = {
    "training": SectionContent(
        "Training",
        "An update's time, medians with quartiles; the first update stands apart. The limit is the machine's rate at "
        "the model's own matrix products, measured in the same rounds.",
        speed_tables.training,
        speed_plots.training,
        "Training speed and share of the limit. Blue: variants; grey: peers.",
        "Points with lines for quartiles, one a subject: target tokens per second and the share of the limit",
    ),
    "evaluation": SectionContent(
        "Evaluation", "The loss of the validation batches, forward alone.", speed_tables.evaluation
    ),
    "decoding": SectionContent(
        "Decoding",
        "Translating test sentences: greedily and with a beam, in batches and one by one.",
        speed_tables.decoding,
        speed_plots.decoding,
        "Seconds for 1,000 translations, less is better.",
        "Points, one a subject, in a panel for each way to translate: seconds that 1,000 translations take",
    ),
    "comparisons": SectionContent(
        "Compared with peers",
        "How many times as fast a variant is as a peer: the peer's seconds over its own, paired by round, so that what "
        "the machine did in a round falls on both. Peers have the recipe, the batches and the weights of one variant; "
        "held against another, it is models that differ, too.",
        speed_tables.comparisons,
        speed_plots.ratios,
        "Times as fast as peers of the same variant, with quartiles. Right of the line the variant is faster.",
        "Points with lines for quartiles, one a comparison: how many times as fast a variant is as a peer",
    ),
    "breakdown": SectionContent(
        "What an update is spent on",
        "The share of each group of operators, in brackets how many ran in the profiled updates.",
        speed_tables.breakdown,
        speed_plots.breakdown,
        "An update's time by what it is spent on, in percent.",
        "Stacked bars, one a subject: the percentage of an update's time that each group of operators takes",
    ),
    "scaling": SectionContent(
        "How the cost grows",
        "One size grows, all else fixed, each size in a process of its own. Of more threads, an exponent of −1 is the "
        "best there can be.",
        speed_tables.scaling,
        speed_plots.scaling,
        "Milliseconds against size, both logarithmic; lines at the points are quartiles, dashed is the fitted power.",
        "Points on logarithmic axes with a fitted line, a panel for each size that grows: milliseconds against size",
    ),
    "limit": SectionContent(
        "The limit",
        "What this machine multiplies at the kernels' shapes, forward and both gradients, and nothing else.",
        speed_tables.limit,
    ),
    "subjects": SectionContent(
        "Subjects",
        "What was measured, what failed or was missing, and why.",
        lambda document: [speed_tables.subjects(document)],
    ),
}


@dataclass(frozen=True)
class SpeedSection:
    """A part of the page with what it has to show; `svg` is empty where it has no picture."""

    slug: str
    title: str
    aside: str
    tables: Sequence[SpeedTable] = field(default_factory=list)
    svg: Markup = Markup("")
    caption: str = ""
    alt: str = ""


def write(document: SpeedDocument, folder: Path) -> Path:
    """Write `folder`/index.html, index.md and its pictures under `folder`/figures; return the HTML page's path.

    Raises: ValueError where no round is whole, or a ratio of the document is not that of its samples.
    """
    if not any(one.measured or one.breakdown for one in document.subjects) and not any(
        one.points for one in document.scaling
    ):
        raise ValueError(f"{document.id}: there is no whole round in it, so there is nothing to show")
    speed_ratios.check(document)
    sections = list(_sections(document, folder / "figures"))
    context = _context(document, sections)
    block = Markdown(textwrap.indent(context["command"], "    "))
    page = bench_report.render("speed.md.j2", {**context, "markdown": _markdown, "command_block": block})
    files.write_bytes(folder / bench_report.PAGE, page.encode("utf-8", "replace"))
    path = folder / render_html.PAGE
    files.write_bytes(path, render_html.render(context, "speed").encode("utf-8", "replace"))
    return path


def _context(document: SpeedDocument, sections: Sequence[SpeedSection]) -> dict[str, Any]:
    titles = [("verdict", "What was found"), ("machine", "The machine")]
    titles += [(one.slug, one.title) for one in sections]
    return {
        "contents": [*titles, ("counting", "How it is counted"), ("reproducing", "Reproducing")],
        "warnings": speed_text.warnings(document),
        "finding": speed_text.finding(document)
        or ["No subject was timed as a whole: only what stands below is known."],
        "summary": _summary(document),
        "unknown": speed_text.unknown(document),
        "machine": speed_tables.machine(document),
        "sections": sections,
        "counting": speed_text.counting(document),
        "command": short_line(document.command, longest=2_000) or "(the command is not known)",
        "provenance": _provenance(document),
    }


def _sections(document: SpeedDocument, folder: Path) -> Iterator[SpeedSection]:
    """Yield the parts that the document has something for, and write their pictures."""
    for slug, part in PARTS.items():
        tables = part.tables(document)
        if not tables:
            continue
        drawn = part.draw(document) if part.draw is not None else None
        if drawn is None:
            yield SpeedSection(slug, part.title, part.aside, tables)
            continue
        plot_style.save(drawn, folder, slug)
        yield SpeedSection(
            slug, part.title, part.aside, tables, inline(drawn, f"picture-{slug}", part.alt), part.caption, part.alt
        )


def _summary(document: SpeedDocument) -> str:
    """Return in a sentence what was measured on what."""
    settings, machine, spec = document.settings, document.machine, document.data.spec
    measured = sum(one.measured for one in document.subjects)
    threads = count(settings.threads, "thread")
    return short_line(
        f"{measured} of {len(document.subjects)} subjects measured in turns, {settings.rounds} rounds asked for "
        f"({settings.decoding_rounds} of translations), size {settings.size}, {spec.corpus} {spec.direction}, batches "
        f"of {settings.batch_size}; {threads} each, {settings.device}, {settings.precision}, on "
        f"{machine.gpu or machine.processor or 'an unknown processor'}, {machine.cores} cores, "
        f"{document.started[:10]}.",
        longest=1_000,
    ) + (f" Note: {short_line(document.note)}" if document.note else "")


def _provenance(document: SpeedDocument) -> list[tuple[str, str]]:
    data = document.data
    found = [
        ("document", f"{document.id}.json"),
        ("page again", f"python -m harness speed --from FOLDER/{document.id}.json"),
        ("tokenised text (SHA-256)", short_line(data.tokenised)),
        ("timed batches (SHA-256)", short_line(data.stream)),
        ("vocabularies", f"{data.source_words:,} source and {data.target_words:,} target words"),
        ("tokenizer", f"{data.spec.tokenizer}, {data.spec.case}"),
        *speed_tables.environments(document.subjects),
    ]
    digests = [
        (f"{short_line(subject.name)}, {speed_tables.way(one)} (SHA-256)", short_line(one.digest))
        for subject in document.subjects
        for one in subject.decoding
    ]
    return found + digests


def _markdown(table: SpeedTable) -> Markdown:
    """Return a table in Markdown, its first columns aligned left."""
    rule = [*["---"] * table.left, *["---:"] * (len(table.heads) - table.left)]
    lines = [[str(text(cell)) for cell in row] for row in (table.heads, *table.rows)]
    return Markdown("\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:])))
