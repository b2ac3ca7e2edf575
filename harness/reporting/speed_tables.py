"""The tables of a speed document, cell by cell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.experiments.specs import number_format
from harness.reporting.document import Cell, Table
from harness.reporting.formatting import MISSING, mebibytes, significant_digits
from harness.speed.speed_document import DecodingTimes, Scaling, SpeedDocument, SpeedRatio, TimedModel
from harness.speed.timing import Samples
from harness.text import short_line

DECODINGS = {
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


# Numbers and names ----------------------------------------------------------------------------------------------------


def median(samples: Samples | None, scale: float = 1.0) -> str | Cell:
    """Return a median with its quartiles, "12.3 (11.9 to 12.8)"; one sample has no quartiles."""
    if samples is None:
        return MISSING
    written = significant_digits(scale * samples.median)
    detail = quartiles(samples, scale) if len(samples) > 1 else ""
    return Cell(written, detail=detail, value=scale * samples.median)


def quartiles(samples: Samples, scale: float = 1.0) -> str:
    """Return the quartiles of a series, "11.9 to 12.8"."""
    return f"{significant_digits(scale * samples.lower)} to {significant_digits(scale * samples.upper)}"


def exponent(scaling: Scaling) -> str:
    """Return a fitted exponent with its standard error, "0.93 ± 0.02"; two sizes have no error."""
    if scaling.exponent is None:
        return MISSING
    error = " (two sizes)" if scaling.standard_error is None else f" ± {scaling.standard_error:.2f}"
    return f"{scaling.exponent:.2f}{error}".replace("-", "−")


def decoding_name(decoding: DecodingTimes) -> str:
    """Return in words how sentences were translated."""
    return short_line(DECODINGS.get(decoding.name, decoding.name).replace("{beam}", str(decoding.beam)))


def work_name(document: SpeedDocument, subject: str, work: str) -> str:
    """Return in words what was timed of a subject: training, evaluation, or a way of decoding."""
    same = [decoding for decoding in document.subject(subject).decoding if decoding.name == work]
    return decoding_name(same[0]) if same else short_line(work)


def ordered_ratios(document: SpeedDocument) -> list[SpeedRatio]:
    """Return all ratios, subject by subject and work by work."""
    names, works = [subject.name for subject in document.subjects], ["training", "evaluation", *DECODINGS]
    return sorted(
        document.comparisons,
        key=lambda ratio: (
            names.index(ratio.subject),
            [*works, ratio.what].index(ratio.what),
            names.index(ratio.baseline),
        ),
    )


def same_variant(document: SpeedDocument, ratio: SpeedRatio) -> bool:
    """Whether both have one variant's recipe; otherwise models are compared, not implementations."""
    return document.subject(ratio.subject).variant == document.subject(ratio.baseline).variant


# Tables ---------------------------------------------------------------------------------------------------------------


def at_a_glance(document: SpeedDocument) -> Table | None:
    """Return training speed, seconds for 1,000 translations and memory of each subject; None without any."""
    names = [name for name in DECODINGS if any(_decoding(subject, name) for subject in document.subjects)]
    shown = [subject for subject in document.subjects if subject.training or subject.decoding]
    if not shown:
        return None
    heads = ["subject", "training tokens/s", "MFU, %"]
    heads += [DECODINGS[name].replace("{beam}", str(document.settings.beam)) + ", s for 1,000" for name in names]
    rows = []
    for subject in shown:
        training = subject.training
        cells: list[str | Cell] = [short_line(subject.name), MISSING, MISSING]
        if training is not None:
            rate = training.target_per_second
            cells[1] = Cell(significant_digits(rate), value=rate)
            share = training.limit_share
            cells[2] = MISSING if share is None else Cell(significant_digits(100 * share.median), value=share.median)
        for name in names:
            decoding = _decoding(subject, name)
            seconds = decoding.thousand_seconds if decoding else None
            cells.append(MISSING if seconds is None else Cell(significant_digits(seconds), value=seconds))
        rows.append((*cells, memory(subject)))
    heads.append("peak memory, MiB")
    return Table("l" + "r" * (len(heads) - 1), tuple(heads), tuple(rows))


def memory(subject: TimedModel) -> str:
    """Return the largest peak memory of a subject's parts."""
    parts = [part for part in (subject.training, subject.evaluation, *subject.decoding) if part is not None]
    sizes = [part.peak_memory_bytes for part in parts if part.peak_memory_bytes is not None]
    return mebibytes(max(sizes, default=None))


def _decoding(subject: TimedModel, name: str) -> DecodingTimes | None:
    return next((decoding for decoding in subject.decoding if decoding.name == name), None)


def training(document: SpeedDocument) -> list[Table]:
    """Return how fast each subject trains; memory on a device has a column where there is any."""
    timed = [(subject, subject.training) for subject in document.subjects if subject.training is not None]
    if not timed:
        return []
    heads = ["subject", "update, ms", "target tokens/s", "epoch, s", "GFLOP/s", "MFU, %"]
    heads += ["training loop ÷ bare loop", "first update, s", "peak memory, MiB"]
    on_device = any(times.device_memory_bytes is not None for _, times in timed)
    rows = []
    for subject, times in timed:
        row = [
            short_line(subject.name),
            median(times.seconds, 1_000 / times.updates),
            significant_digits(times.target_per_second),
            median(times.seconds, times.epoch_tokens / times.tokens) if times.tokens else MISSING,
            significant_digits(times.operations_per_second / 1e9) if times.operations else MISSING,
            median(times.limit_share, 100),
            median(times.loop_ratio),
            significant_digits(times.first_update_seconds),
            mebibytes(times.peak_memory_bytes),
        ]
        rows.append((*row, *([mebibytes(times.device_memory_bytes)] if on_device else [])))
    heads += ["device memory, MiB"] if on_device else []
    return [Table("l" + "r" * (len(heads) - 1), tuple(heads), tuple(rows), "Training")]


def evaluation(document: SpeedDocument) -> list[Table]:
    """Return how fast each subject evaluates."""
    rows = tuple(
        (
            short_line(subject.name),
            str(times.batches),
            median(times.seconds),
            significant_digits(times.target_per_second),
            significant_digits(times.operations_per_second / 1e9) if times.operations else MISSING,
            f"{times.nats_per_token:.4f}",
            mebibytes(times.peak_memory_bytes),
        )
        for subject in document.subjects
        if (times := subject.evaluation) is not None
    )
    heads = ("subject", "batches", "seconds", "target tokens/s", "GFLOP/s", "nats per token", "peak memory, MiB")
    title = "Evaluation: the loss of the validation batches, forward only"
    return [Table("lrrrrrr", heads, rows, title)] if rows else []


def decoding(document: SpeedDocument) -> list[Table]:
    """Return how fast each subject translates, a table for each way: greedy and beam, in batches and one by one."""
    names = dict.fromkeys(times.name for subject in document.subjects for times in subject.decoding)
    heads = ("subject", "batch", "sentences", "seconds", "sentences/s", "seconds for 1,000", "tokens", "unfinished")
    tables = []
    for name in sorted(names, key=lambda name: [*DECODINGS, name].index(name)):
        timed = [(subject, times) for subject in document.subjects if (times := _decoding(subject, name))]
        rows = tuple(
            (
                short_line(subject.name),
                str(times.batch_size),
                f"{times.sentences:,}",
                median(times.seconds),
                significant_digits(times.sentences_per_second),
                significant_digits(times.thousand_seconds),
                f"{times.words:,}",
                str(times.unfinished),
                equal(times),
                mebibytes(times.peak_memory_bytes),
            )
            for subject, times in timed
        )
        tables.append(
            Table(
                "l" + "r" * 9,
                (*heads, "equal translations", "peak memory, MiB"),
                rows,
                decoding_name(timed[0][1]).capitalize(),
            )
        )
    return tables


def equal(times: DecodingTimes) -> str:
    """Return how many translations equal those of the subject with the same weights: "1,000 of 1,000 (paper/torch)"."""
    if times.equal is None:
        return MISSING
    return f"{times.equal:,} of {times.sentences:,} ({short_line(times.compared_with or '')})"


def comparisons(document: SpeedDocument) -> list[Table]:
    """Return how many times as fast each variant is as each baseline, paired by round."""
    rows = tuple(
        (
            short_line(ratio.subject),
            short_line(ratio.baseline),
            short_line(document.subject(ratio.baseline).variant),
            work_name(document, ratio.subject, ratio.what),
            work_name(document, ratio.baseline, ratio.baseline_what),
            Cell(significant_digits(ratio.ratio.median), value=ratio.ratio.median),
            quartiles(ratio.ratio) if len(ratio.ratio) > 1 else MISSING,
            str(len(ratio.ratio)),
        )
        for ratio in ordered_ratios(document)
    )
    heads = (
        "subject",
        "baseline",
        "baseline's variant",
        "subject's work",
        "baseline's work",
        "times as fast",
        "quartiles",
    )
    return [Table("lllllrrr", (*heads, "rounds"), rows, "Every ratio")] if rows else []


def breakdown(document: SpeedDocument) -> list[Table]:
    """Return the share of each group of operators in an update, a column a subject."""
    taken = [(subject, subject.breakdown) for subject in document.subjects if subject.breakdown is not None]
    if not taken:
        return []
    groups = dict.fromkeys(share.group for _, parts in taken for share in parts.shares)
    rows: list[tuple[str, ...]] = []
    for group in groups:
        cells = []
        for _, parts in taken:
            same = [share for share in parts.shares if share.group == group]
            total = math.fsum(share.share for share in same)
            calls = f" ({sum(share.calls for share in same):,})" if any(share.calls for share in same) else ""
            cells.append(f"{100 * total:.1f}{calls}" if same else MISSING)
        rows.append((group, *cells))
    rows.append(("profiled updates", *(str(parts.profiled_updates) for _, parts in taken)))
    ratios = [
        MISSING if parts.overhead_ratio is None else significant_digits(parts.overhead_ratio) for _, parts in taken
    ]
    rows.append(("profiled ÷ unprofiled time", *ratios))
    heads = ("% of an update (calls)", *(short_line(subject.name) for subject, _ in taken))
    return [Table("l" + "r" * len(taken), heads, tuple(rows), "Breakdown")]


def scaling(document: SpeedDocument) -> list[Table]:
    """Return how the cost grows along each axis: the fitted exponents, then every point."""
    if not document.scaling:
        return []
    fits = tuple(
        (
            AXES[line.axis],
            short_line(line.subject),
            ", ".join(f"{short_line(name).replace('_', ' ')} {value:g}" for name, value in line.fixed.items()),
            short_line(line.reason) or MISSING,
            exponent(line),
            str(len(line.points)),
        )
        for line in document.scaling
    )
    points = tuple(
        (
            AXES[line.axis],
            f"{point.size:g}",
            median(point.seconds, 1_000),
            significant_digits(point.tokens_per_second),
            f"{len(point.seconds)}",
        )
        for line in document.scaling
        for point in line.points
    )
    heads = ("axis", "subject", "fixed", "remark", "exponent of time", "sizes")
    tables = [Table("llllrr", heads, fits, "Fitted exponents")]
    if points:
        tables.append(Table("lrrrr", ("axis", "size", "ms", "tokens/s", "rounds"), points, "Every size"))
    return tables


def matmul_peak(document: SpeedDocument) -> list[Table]:
    """Return the machine's measured rates at the models' own matrix products, and which products these are."""
    rows = tuple(
        (
            short_line(", ".join(rate.variants), longest=2_000),
            short_line(rate.library),
            significant_digits(rate.operations_per_second / 1e9),
            f"{significant_digits(rate.operations / rate.seconds.upper / 1e9)} to "
            f"{significant_digits(rate.operations / rate.seconds.lower / 1e9)}"
            if len(rate.seconds) > 1
            else MISSING,
            significant_digits(rate.operations / 1e9),
            median(rate.seconds),
        )
        for rate in document.rates
    )
    if not rows:
        return []
    products = tuple(
        (
            short_line(rate.variants[0] if rate.variants else ""),
            short_line(product.name),
            short_line(product.rows),
            f"{product.inputs:,}",
            f"{product.outputs:,}",
            str(product.count),
        )
        for rate in document.rates
        for product in rate.products
    )
    heads = ("products of", "library", "GFLOP/s", "quartiles", "GFLOP in all", "seconds")
    parts = ("of", "first of its kind", "a row for each", "inputs", "outputs", "number of its kind")
    return [
        Table("llrrrr", heads, rows, "Measured matmul peak at the models' own products"),
        Table("lllrrr", parts, products, "These products"),
    ]


def subjects(document: SpeedDocument) -> Table:
    """Return every subject: what it is, how it ended, where its weights are from, and what starting it took."""
    rows = tuple(
        (
            short_line(subject.name),
            subject.kind,
            short_line(subject.variant),
            short_line(f"{subject.framework} on {subject.backend}" if subject.backend else subject.framework),
            short_line(f"{subject.ending}: {subject.reason}" if subject.reason else subject.ending, longest=1_000),
            short_line(subject.weights_from) or MISSING,
            MISSING if subject.parameters is None else f"{subject.parameters:,}",
            MISSING if subject.start_seconds is None else significant_digits(subject.start_seconds),
            MISSING if subject.compilation_seconds is None else significant_digits(subject.compilation_seconds),
            MISSING if subject.idle_share is None else f"{100 * subject.idle_share:.2g}",
        )
        for subject in document.subjects
    )
    heads = ("subject", "kind", "variant", "framework", "ended", "weights for decoding", "parameters", "start, s")
    return Table("llllllrrrr", (*heads, "compilation, s", "CPU time while idle, %"), rows, "Every subject")


def machine(document: SpeedDocument) -> list[tuple[str, str]]:
    """Return where it was measured, name by name."""
    machine, settings = document.machine, document.settings
    dirty = {True: ", with uncommitted changes", False: "", None: ""}[machine.dirty]
    graphs = ", CUDA graphs" if settings.cuda_graphs == "on" else ""
    loads = ("unknown" if load is None else f"{load:.2f}" for load in (machine.load_before, machine.load_after))
    pairs = {
        "processor": machine.processor or "unknown",
        "cores": str(machine.cores),
        "threads per subject": str(settings.threads),
        "memory": "unknown" if machine.memory_bytes is None else f"{mebibytes(machine.memory_bytes)} MiB",
        "GPU": machine.gpu or "none used",
        "device, precision": f"{settings.device}, {number_format(settings)}{graphs}",
        "system": machine.system,
        "Python": machine.python,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()) or "unknown",
        "commit": f"{machine.commit or 'unknown'}{dirty}",
        "load average before, after": " and ".join(loads),
        "measured": f"{document.started} to {document.ended}",
    }
    return [(name, short_line(value, longest=1_000)) for name, value in pairs.items()]


def environments(timed: Sequence[TimedModel]) -> list[tuple[str, str]]:
    """Return the variables that processes had set, with the subjects that had them."""
    holders: dict[str, list[str]] = {}
    for subject in timed:
        if subject.environment:
            variables = " ".join(f"{name}={value}" for name, value in sorted(subject.environment.items()))
            holders.setdefault(short_line(variables, longest=1_000), []).append(short_line(subject.name))
    shared = len(holders) == 1
    return [("environment" if shared else f"environment of {', '.join(who)}", what) for what, who in holders.items()]
