"""The report of a speed document: the main figures of each subject and ratios first; everything else is disclosed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure as Plot

from harness.experiments.specs import execution
from harness.reporting import pages, render_text, speed_findings, speed_plots, speed_tables
from harness.reporting.document import Block, Code, Disclosure, Document, Figure, Heading, Items, Links, facts
from harness.reporting.report_sections import corpora
from harness.speed.speed_document import SpeedDocument
from harness.text import count, short_line

FOLDER = "speed"
LINKS = (("Runs report", "../index.html"), ("Ablation", "../ablation/index.html"), ("Models", "../models.html"))
FIGURES: dict[str, tuple[Callable[..., Plot], str, str]] = {
    "ratios": (
        speed_plots.ratios,
        "Times as fast as baselines of the same variant, with 95 % intervals over rounds. Right of the line, the "
        "variant is faster.",
        "Points with lines for intervals, one per comparison: how many times as fast a variant is as a baseline",
    ),
    "training": (
        speed_plots.training,
        "Training speed and MFU: arithmetic per second over the measured matmul peak. Blue: variants; grey: baselines.",
        "Points with lines for quartiles, one per subject: target tokens per second and MFU",
    ),
    "decoding": (
        speed_plots.decoding,
        "Seconds for 1,000 translations, lower is better.",
        "Points, one per subject, in a panel for each way of decoding: seconds that 1,000 translations take",
    ),
    "breakdown": (
        speed_plots.breakdown,
        "An update's time by group of operators, in percent.",
        "Stacked bars, one per subject: the percentage of an update's time that each group of operators takes",
    ),
    "scaling": (
        speed_plots.scaling,
        "Milliseconds against size, both logarithmic; lines at the points are quartiles, dashed is the fitted power.",
        "Points on logarithmic axes with a fitted line, a panel for each size that grows: milliseconds against size",
    ),
}
"""The function that draws each figure, its caption and its description."""


def write(document: SpeedDocument, folder: Path) -> Path:
    """Write the pages of a speed document under `folder`, and return the path of the HTML page.

    Raises:
        ValueError: No round is complete.
    """
    measured = any(subject.measured or subject.breakdown for subject in document.subjects)
    if not measured and not any(line.points for line in document.scaling):
        raise ValueError(f"{document.id} has no complete round, so there is nothing to show")
    return pages.write(report(document), folder)


def report(document: SpeedDocument) -> Document:
    """Return the report of a speed document."""
    ratios = _disclosure("Every ratio", speed_tables.comparisons(document, document.comparisons))
    scaling: list[Block] = [*speed_tables.scaling(document)]
    if any(line.points for line in document.scaling):
        scaling = _drawn(document, "scaling", scaling)
    breakdown = _drawn(document, "breakdown", speed_tables.breakdown(document))
    details = [
        *_disclosure("Training", _drawn(document, "training", speed_tables.training(document)), "training"),
        *_disclosure("Decoding", _drawn(document, "decoding", speed_tables.decoding(document)), "decoding"),
        *_disclosure("What an update is spent on", breakdown, "breakdown"),
        *_disclosure("How the cost grows", scaling, "scaling"),
        *_disclosure(
            "Evaluation and matmul peak",
            [*speed_tables.evaluation(document), *speed_tables.matmul_peak(document)],
            "peak",
        ),
    ]
    return Document(
        title=f"Speed: {corpora([document.data.spec])}",
        headline=speed_findings.headline(document),
        warnings=tuple(speed_findings.warnings(document)),
        about=_about(document),
        origin="Made by Bakeoff from one stored document alone: the same document gives the same bytes.",
        blocks=(
            Links(LINKS),
            Heading("At a glance", slug="overview"),
            *speed_tables.at_a_glance(document),
            Heading("Compared with baselines", slug="comparisons"),
            *_drawn(document, "ratios", ratios),
            Heading("Details", slug="details"),
            *details,
            Heading("Limits", slug="limits"),
            Items(tuple(speed_findings.limits(document))),
            *_method(document),
        ),
    )


def terminal(document: SpeedDocument) -> str:
    """Return the most important tables, the headline and the limits as plain text."""
    lines = [speed_findings.headline(document).finding, *speed_findings.limits(document)]
    tables: list[Block] = [
        *speed_tables.at_a_glance(document),
        *speed_tables.training(document),
        *speed_tables.breakdown(document),
        *speed_tables.matmul_peak(document)[:1],
        *speed_tables.scaling(document)[:1],
        *speed_tables.comparisons(document, speed_findings.main_ratios(document)),
    ]
    return render_text.blocks([*tables, Items(tuple(lines))], width=render_text.LINE)


def _about(document: SpeedDocument) -> str:
    settings, machine, spec = document.settings, document.machine, document.data.spec
    measured = sum(subject.measured for subject in document.subjects)
    note = f" Note: {document.note}" if document.note else ""
    return short_line(
        f"{measured} of {count(len(document.subjects), 'subject')} measured on {document.started[:10]}, commit "
        f"{(machine.commit or 'unknown')[:10]}; size {settings.size}, {spec.corpus} {spec.direction}, batches of "
        f"{settings.batch_size}, {count(settings.threads, 'thread')}, {execution(settings)}.{note}",
        longest=1_000,
    )


def _drawn(document: SpeedDocument, name: str, content: Sequence[Block]) -> list[Block]:
    """Return content below its figure, or no blocks if there is no content."""
    draw, caption, alt = FIGURES[name]
    drawn, ratios = len(speed_findings.main_ratios(document)[: speed_plots.MOST]), len(document.comparisons)
    if name == "ratios" and drawn < ratios:
        caption += f" {drawn} of {ratios} ratios are drawn; “Every ratio” has all."
    return [Figure(name, caption, alt, partial(draw, document)), *content] if content else []


def _disclosure(summary: str, blocks: Sequence[Block], slug: str = "") -> list[Block]:
    return [Disclosure(summary, tuple(blocks), slug)] if blocks else []


def _method(document: SpeedDocument) -> list[Block]:
    command = short_line(document.command, longest=2_000) or "(the command is unknown)"
    return [
        Heading("Method and data", slug="method"),
        Disclosure("How it is counted", (Items(speed_findings.DEFINITIONS),), "counting"),
        Disclosure("Subjects", tuple(speed_tables.subjects(document)), "subjects"),
        Disclosure("Machine and workload", (facts(speed_tables.machine(document)),), "machine"),
        Disclosure("Reproducing this", (Code(command), facts(_provenance(document))), "reproducing"),
    ]


def _provenance(document: SpeedDocument) -> list[tuple[str, str]]:
    data = document.data
    return [
        ("document", f"{document.id}.json"),
        ("make the page again", f"python -m harness speed --from FOLDER/{document.id}.json"),
        ("tokenised text (SHA-256)", short_line(data.tokenised)),
        ("timed batches (SHA-256)", short_line(data.stream)),
        ("vocabularies", f"{data.source_words:,} source and {data.target_words:,} target tokens"),
        ("tokenizer", f"{data.spec.tokenizer}, {data.spec.case}"),
        *speed_tables.environments(document),
        *(
            (f"{short_line(subject.name)}, {speed_tables.decoding_name(times)} (SHA-256)", short_line(times.digest))
            for subject in document.subjects
            for times in subject.decoding
        ),
    ]
