"""A speed document as tables, cell by cell: the same for the Markdown page and the HTML one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.speed.speed_document import DecodingTimes, MatrixRate, Scaling, SpeedDocument, SpeedRatio, TimedModel
from harness.speed.timing import Samples
from harness.text import short_line

MISSING = "–"
WAYS = {
    "greedy": "greedy, in batches",
    "beam": "beam {beam}, in batches",
    "single_greedy": "greedy, one by one",
    "single_beam": "beam {beam}, one by one",
}
AXES = {
    "batch_size": "sentences in a batch",
    "length": "tokens on each side",
    "width": "width of the model",
    "threads": "threads",
    "decoding_batch_size": "sentences decoded at once",
}


@dataclass(frozen=True)
class SpeedTable:
    """Cells as plain text; the first `left` columns are aligned left."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


# Numbers --------------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """Return a figure with three or four digits that count: 12,345, 678, 12.3, 1.23, 0.123, 0.0012."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 0.1 or value == 0:
        return f"{value:.{1 if size >= 10 else 2 if size >= 1 else 3}f}"
    return f"{value:#.2g}"


def median(samples: Samples | None, scale: float = 1.0) -> str:
    """Return a series: "12.3 (11.9 to 12.8)", median and quartiles; one sample has no quartiles."""
    if samples is None:
        return MISSING
    if len(samples) == 1:
        return number(scale * samples.median)
    return f"{number(scale * samples.median)} ({quartiles(samples, scale)})"


def quartiles(samples: Samples, scale: float = 1.0) -> str:
    """Return the quartiles of a series, "11.9 to 12.8"."""
    return f"{number(scale * samples.lower)} to {number(scale * samples.upper)}"


def megabytes(size: int | None) -> str:
    """Return bytes as MB; "unknown" where the system does not say."""
    return "unknown" if size is None else f"{size / 1e6:,.0f}"


def exponent(one: Scaling) -> str:
    """Return a fitted exponent with its standard error, "0.93 ± 0.02"; of two sizes there is none."""
    if one.exponent is None:
        return MISSING
    error = " (two sizes)" if one.standard_error is None else f" ± {one.standard_error:.2f}"
    return f"{one.exponent:.2f}{error}".replace("-", "−")


# Tables ---------------------------------------------------------------------------------------------------------------


def training(document: SpeedDocument) -> list[SpeedTable]:
    """Return how fast each subject trains; memory on a device has a column where there is any."""
    there = [(one, one.training) for one in document.subjects if one.training is not None]
    if not there:
        return []
    heads = ["subject", "update, ms", "target tokens/s", "epoch, s", "GFLOP/s", "of the limit, %"]
    heads += ["harness's loop ÷ bare loop", "first update, s", "peak memory, MB"]
    on_device = any(one.device_memory_bytes is not None for _, one in there)
    rows = []
    for subject, one in there:
        row = [
            short_line(subject.name),
            median(one.seconds, 1_000 / one.updates),
            number(one.target_per_second),
            median(one.seconds, one.epoch_tokens / one.tokens) if one.tokens else MISSING,
            number(one.operations_per_second / 1e9) if one.operations else MISSING,
            median(one.limit_share, 100),
            median(one.loop_ratio),
            number(one.first_update_seconds),
            megabytes(one.peak_memory_bytes),
        ]
        rows.append([*row, *([megabytes(one.device_memory_bytes)] if on_device else [])])
    return [SpeedTable("Training", [*heads, *(["device memory, MB"] if on_device else [])], rows)]


def evaluation(document: SpeedDocument) -> list[SpeedTable]:
    """Return how fast each subject evaluates."""
    rows = [
        [
            short_line(subject.name),
            str(one.batches),
            median(one.seconds),
            number(one.target_per_second),
            number(one.operations_per_second / 1e9) if one.operations else MISSING,
            f"{one.nats_per_token:.4f}",
            megabytes(one.peak_memory_bytes),
        ]
        for subject in document.subjects
        if (one := subject.evaluation) is not None
    ]
    heads = ["subject", "batches", "seconds", "target tokens/s", "GFLOP/s", "nats per token", "peak memory, MB"]
    return [SpeedTable("Evaluation", heads, rows)] if rows else []


def way(one: DecodingTimes) -> str:
    """Return in words how something was translated."""
    return short_line(WAYS.get(one.name, one.name).format(beam=one.beam) if one.name in WAYS else one.name)


def decoding(document: SpeedDocument) -> list[SpeedTable]:
    """Return how fast each subject translates, a table a way: greedy and beam, in batches and one by one."""
    names = dict.fromkeys(one.name for subject in document.subjects for one in subject.decoding)
    heads = ["subject", "batch", "sentences", "seconds for these", "sentences/s", "seconds for 1,000", "words"]
    heads += ["without end", "equal translations", "peak memory, MB"]
    made = []
    for name in sorted(names, key=lambda one: [*WAYS, one].index(one)):
        found = [(subject, one) for subject in document.subjects for one in subject.decoding if one.name == name]
        rows = [
            [
                short_line(subject.name),
                str(one.batch_size),
                f"{one.sentences:,}",
                median(one.seconds),
                number(one.sentences_per_second),
                number(one.thousand_seconds),
                f"{one.words:,}",
                str(one.unfinished),
                equal(one),
                megabytes(one.peak_memory_bytes),
            ]
            for subject, one in found
        ]
        made.append(SpeedTable(way(found[0][1]).capitalize(), heads, rows))
    return made


def equal(one: DecodingTimes) -> str:
    """Return how many translations are those of the subject with the same weights: "1,000 of 1,000, paper/torch"."""
    if one.equal is None:
        return MISSING
    return f"{one.equal:,} of {one.sentences:,} ({short_line(one.compared_with or '')})"


def comparisons(document: SpeedDocument) -> list[SpeedTable]:
    """Return how many times as fast each variant is as each peer, paired by round."""
    rows = [
        [
            short_line(one.subject),
            short_line(one.baseline),
            short_line(document.subject(one.baseline).variant),
            told(document, one.subject, one.what),
            told(document, one.baseline, one.baseline_what),
            number(one.ratio.median),
            quartiles(one.ratio) if len(one.ratio) > 1 else MISSING,
            str(len(one.ratio)),
        ]
        for one in ordered(document)
    ]
    heads = ["subject", "peer", "peer's variant", "subject's work", "peer's work", "times as fast", "quartiles"]
    return [SpeedTable("Compared with peers", [*heads, "rounds"], rows, left=5)] if rows else []


def ordered(document: SpeedDocument) -> list[SpeedRatio]:
    """Return all comparisons, subject by subject and work by work."""
    names, works = [one.name for one in document.subjects], ["training", "evaluation", *WAYS]
    return sorted(
        document.comparisons,
        key=lambda one: (names.index(one.subject), [*works, one.what].index(one.what), names.index(one.baseline)),
    )


def of_one_variant(document: SpeedDocument, one: SpeedRatio) -> bool:
    """Return whether the two have one variant's recipe; else it is models that are compared, not how they are made."""
    return document.subject(one.subject).variant == document.subject(one.baseline).variant


def told(document: SpeedDocument, name: str, what: str) -> str:
    """Return in words what was timed of a subject."""
    found = [one for one in document.subject(name).decoding if one.name == what]
    return way(found[0]) if found else short_line(what)


def breakdown(document: SpeedDocument) -> list[SpeedTable]:
    """Return the share of each group in an update, a column a subject."""
    there = [(one, one.breakdown) for one in document.subjects if one.breakdown is not None]
    if not there:
        return []
    groups = dict.fromkeys(share.group for _, one in there for share in one.shares)
    rows = []
    for group in groups:
        cells = []
        for _, one in there:
            found = [share for share in one.shares if share.group == group]
            share = math.fsum(each.share for each in found)
            calls = f" ({sum(each.calls for each in found):,})" if any(each.calls for each in found) else ""
            cells.append(f"{100 * share:.1f}{calls}" if found else MISSING)
        rows.append([group, *cells])
    rows.append(["profiled updates", *(str(one.profiled_updates) for _, one in there)])
    overhead = [MISSING if one.overhead_ratio is None else number(one.overhead_ratio) for _, one in there]
    rows.append(["profiled ÷ unprofiled time", *overhead])
    heads = ["% of an update (calls)", *(short_line(one.name) for one, _ in there)]
    return [SpeedTable("Breakdown", heads, rows)]


def scaling(document: SpeedDocument) -> list[SpeedTable]:
    """Return how the cost grows along each axis: the fitted exponents, then every point."""
    if not document.scaling:
        return []
    remarks = any(one.reason for one in document.scaling)
    fits = [
        [
            AXES[one.axis],
            short_line(one.subject),
            ", ".join(f"{short_line(name).replace('_', ' ')} {value:g}" for name, value in one.fixed.items()),
            *([short_line(one.reason) or MISSING] if remarks else []),
            exponent(one),
            str(len(one.points)),
        ]
        for one in document.scaling
    ]
    heads = ["what grows", "subject", "what is fixed", *(["remark"] if remarks else []), "exponent of time", "sizes"]
    points = [
        [
            AXES[one.axis],
            f"{point.size:g}",
            median(point.seconds, 1_000),
            number(point.tokens_per_second),
            f"{len(point.seconds)}",
        ]
        for one in document.scaling
        for point in one.points
    ]
    made = [SpeedTable("Fitted exponents", heads, fits, left=len(heads) - 2)]
    if points:
        made.append(SpeedTable("Every size", ["what grows", "size", "ms", "tokens/s", "rounds"], points))
    return made


def limit(document: SpeedDocument) -> list[SpeedTable]:
    """Return the machine's rates at the models' own products, and which products these are."""
    rows = [
        [
            short_line(", ".join(one.variants), longest=2_000),
            short_line(one.library),
            number(one.operations_per_second / 1e9),
            _rates(one),
            number(one.operations / 1e9),
            median(one.seconds),
        ]
        for one in document.rates
    ]
    if not rows:
        return []
    heads = ["products of", "multiplied by", "GFLOP/s", "quartiles", "GFLOP in all", "seconds"]
    products = [
        [*map(short_line, (rate.variants[0] if rate.variants else "", one.name, one.rows)), f"{one.inputs:,}",
         f"{one.outputs:,}", str(one.count)]
        for rate in document.rates
        for one in rate.products
    ]  # fmt: skip
    parts = ["of", "first of the alike", "a row for each", "inputs", "outputs", "alike"]
    return [
        SpeedTable("The machine's rate at the models' own products", heads, rows, left=2),
        SpeedTable("These products", parts, products, left=3),
    ]


def _rates(one: MatrixRate) -> str:
    if len(one.seconds) == 1:
        return MISSING
    slow, fast = one.operations / one.seconds.upper, one.operations / one.seconds.lower
    return f"{number(slow / 1e9)} to {number(fast / 1e9)}"


def subjects(document: SpeedDocument) -> SpeedTable:
    """Return every subject: what it is, how it ended, where its weights are from, and what starting it took."""
    rows = [
        [
            short_line(one.name),
            one.kind,
            short_line(one.variant),
            short_line(f"{one.framework} on {one.backend}" if one.backend else one.framework),
            short_line(f"{one.ending}: {one.reason}" if one.reason else one.ending, longest=1_000),
            short_line(one.weights_from) or MISSING,
            MISSING if one.parameters is None else f"{one.parameters:,}",
            MISSING if one.start_seconds is None else number(one.start_seconds),
            MISSING if one.compilation_seconds is None else number(one.compilation_seconds),
            MISSING if one.idle_share is None else f"{100 * one.idle_share:.2g}",
        ]
        for one in document.subjects
    ]
    heads = ["subject", "kind", "variant", "made of", "ended", "weights to translate with", "parameters", "start, s"]
    heads += ["compilation, s", "processor time while others run, %"]
    return SpeedTable("Every subject", heads, rows, left=6)


def machine(document: SpeedDocument) -> list[tuple[str, str]]:
    """Return where it was measured, name by name."""
    one, settings = document.machine, document.settings
    dirty = {True: ", with changes that are in no commit", False: "", None: ""}[one.dirty]
    found = {
        "processor": one.processor or "unknown",
        "cores": str(one.cores),
        "threads of a subject": str(settings.threads),
        "memory": "unknown" if one.memory_bytes is None else f"{one.memory_bytes / 1e9:.1f} GB",
        "GPU": one.gpu or "none used",
        "device, precision": f"{settings.device}, {settings.precision}"
        + ", CUDA graphs" * (settings.cuda_graphs == "on"),
        "system": one.system,
        "Python": one.python,
        "versions": ", ".join(f"{name} {version}" for name, version in one.versions.items()) or "unknown",
        "commit": f"{one.commit or 'unknown'}{dirty}",
        "load average before, after": " and ".join(
            "unknown" if load is None else f"{load:.2f}" for load in (one.load_before, one.load_after)
        ),
        "measured": f"{document.started} to {document.ended}",
    }
    return [(name, short_line(value, longest=1_000)) for name, value in found.items()]


def environments(subjects_of: Sequence[TimedModel]) -> list[tuple[str, str]]:
    """Return the variables that processes had set, with the subjects that had them so."""
    found: dict[str, list[str]] = {}
    for one in subjects_of:
        if one.environment:
            variables = " ".join(f"{name}={value}" for name, value in sorted(one.environment.items()))
            found.setdefault(short_line(variables, longest=1_000), []).append(short_line(one.name))
    everyone = len(found) == 1
    return [("environment" if everyone else f"environment of {', '.join(who)}", what) for what, who in found.items()]
