"""The report of a speed document: ratios first, then training and decoding, everything else disclosed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure as Drawn

from harness.experiments.specs import number_format
from harness.reporting import pages, speed_checks, speed_findings, speed_plots, speed_tables
from harness.reporting.document import (
    Block,
    Code,
    Disclosure,
    Document,
    Figure,
    Heading,
    Items,
    Links,
    Table,
    facts,
)
from harness.speed.speed_document import SpeedDocument
from harness.text import count, short_line

FOLDER = "speed"
LINKS = (("Runs report", "../index.html"), ("Ablation", "../ablation/index.html"), ("Models", "../models.html"))


def write(document: SpeedDocument, folder: Path) -> Path:
    """Write the pages of a speed document under `folder`.

    Returns:
        The path of the HTML page.

    Raises:
        ValueError: No round is complete, or a ratio of the document is not that of its samples.
    """
    measured = any(subject.measured or subject.breakdown for subject in document.subjects)
    if not measured and not any(line.points for line in document.scaling):
        raise ValueError(f"{document.id} has no complete round, so there is nothing to show")
    speed_checks.check(document)
    return pages.write(report(document), folder)


def report(document: SpeedDocument) -> Document:
    """Return the report of a document whose ratios were checked."""
    table = speed_tables.at_a_glance(document)
    overview: list[Block] = [Heading("At a glance", slug="overview"), table] if table else []
    return Document(
        title="Bakeoff: training and decoding speed",
        headline=speed_findings.headline(document),
        warnings=tuple(speed_findings.warnings(document)),
        about=_about(document),
        made="Made by Bakeoff from one stored document alone: the same document gives the same bytes.",
        blocks=(
            Links(LINKS),
            *_ratios(document),
            *overview,
            *_training(document),
            *_decoding(document),
            *_cost(document),
            Heading("Limits", slug="limits"),
            Items(tuple(speed_findings.unknown(document))),
            *_method(document),
        ),
    )


def _about(document: SpeedDocument) -> str:
    settings, machine, spec = document.settings, document.machine, document.data.spec
    measured = sum(subject.measured for subject in document.subjects)
    note = f" Note: {document.note}" if document.note else ""
    device = f"{settings.device}, {number_format(settings)}"
    return short_line(
        f"{measured} of {count(len(document.subjects), 'subject')} measured on {document.started[:10]}, commit "
        f"{(machine.commit or 'unknown')[:10]}; size {settings.size}, {spec.corpus} {spec.direction}, batches of "
        f"{settings.batch_size}, {count(settings.threads, 'thread')}, {device}.{note}",
        longest=1_000,
    )


def _figure(
    document: SpeedDocument, name: str, draw: Callable[[SpeedDocument], Drawn | None], caption: str, alt: str
) -> list[Block]:
    """Return a figure, or nothing where the document has nothing to draw."""
    drawn = draw(document)
    return [] if drawn is None else [Figure(name, caption, alt, lambda: drawn)]


def _disclosed(summary: str, tables: list[Table]) -> list[Block]:
    return [Disclosure(summary, tuple(tables))] if tables else []


def _ratios(document: SpeedDocument) -> list[Block]:
    if not document.comparisons:
        return []
    return [
        Heading("Compared with baselines", slug="comparisons"),
        *_figure(
            document,
            "ratios",
            speed_plots.ratios,
            "Times as fast as baselines of the same variant, with quartiles over rounds. Right of the line the variant "
            "is faster.",
            "Points with lines for quartiles, one per comparison: how many times as fast a variant is as a baseline",
        ),
        *_disclosed("Every ratio", speed_tables.comparisons(document)),
    ]


def _training(document: SpeedDocument) -> list[Block]:
    tables = speed_tables.training(document)
    others = [*speed_tables.evaluation(document), *speed_tables.matmul_peak(document)]
    if not tables and not others:
        return []
    return [
        Heading("Training", slug="training"),
        *_figure(
            document,
            "training",
            speed_plots.training,
            "Training speed and MFU: arithmetic per second over the measured matmul peak. Blue: variants; grey: "
            "baselines.",
            "Points with lines for quartiles, one per subject: target tokens per second and MFU",
        ),
        *_disclosed("Training in numbers", tables),
        *_disclosed("Evaluation and matmul peak", others),
    ]


def _decoding(document: SpeedDocument) -> list[Block]:
    tables = speed_tables.decoding(document)
    if not tables:
        return []
    return [
        Heading("Decoding", slug="decoding"),
        *_figure(
            document,
            "decoding",
            speed_plots.decoding,
            "Seconds for 1,000 translations, lower is better.",
            "Points, one per subject, in a panel for each way of decoding: seconds that 1,000 translations take",
        ),
        *_disclosed("Decoding in numbers", tables),
    ]


def _cost(document: SpeedDocument) -> list[Block]:
    """Return what an update is spent on and how its cost grows, both disclosed."""
    breakdown = _figure(
        document,
        "breakdown",
        speed_plots.breakdown,
        "An update's time by group of operators, in percent.",
        "Stacked bars, one per subject: the percentage of an update's time that each group of operators takes",
    )
    scaling = _figure(
        document,
        "scaling",
        speed_plots.scaling,
        "Milliseconds against size, both logarithmic; lines at the points are quartiles, dashed is the fitted power.",
        "Points on logarithmic axes with a fitted line, a panel for each size that grows: milliseconds against size",
    )
    blocks: list[Block] = []
    if tables := speed_tables.breakdown(document):
        blocks.append(Disclosure("What an update is spent on", (*breakdown, *tables), "breakdown"))
    if tables := speed_tables.scaling(document):
        blocks.append(Disclosure("How the cost grows", (*scaling, *tables), "scaling"))
    return [Heading("Where the time goes", slug="cost"), *blocks] if blocks else []


def _method(document: SpeedDocument) -> list[Block]:
    lines = speed_findings.findings(document)
    command = short_line(document.command, longest=2_000) or "(the command is unknown)"
    return [
        Heading("Method and data", slug="method"),
        *([Disclosure("Seconds and exponents in words", (Items(tuple(lines)),))] if lines else []),
        Disclosure("How it is counted", (Items(tuple(speed_findings.counting(document))),), "counting"),
        Disclosure("Subjects", (speed_tables.subjects(document),), "subjects"),
        Disclosure("Machine", (facts(speed_tables.machine(document)),), "machine"),
        Disclosure("Reproducing this", (Code(command), facts(_provenance(document))), "reproducing"),
    ]


def _provenance(document: SpeedDocument) -> list[tuple[str, str]]:
    data = document.data
    pairs = [
        ("document", f"{document.id}.json"),
        ("make the page again", f"python -m harness speed --from FOLDER/{document.id}.json"),
        ("tokenised text (SHA-256)", short_line(data.tokenised)),
        ("timed batches (SHA-256)", short_line(data.stream)),
        ("vocabularies", f"{data.source_words:,} source and {data.target_words:,} target tokens"),
        ("tokenizer", f"{data.spec.tokenizer}, {data.spec.case}"),
        *speed_tables.environments(document.subjects),
    ]
    digests = [
        (f"{short_line(subject.name)}, {speed_tables.decoding_name(times)} (SHA-256)", short_line(times.digest))
        for subject in document.subjects
        for times in subject.decoding
    ]
    return pairs + digests
