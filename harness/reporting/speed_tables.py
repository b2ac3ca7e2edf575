"""The tables of a speed document."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from harness.analysis.inference import student
from harness.experiments.specs import execution
from harness.reporting.document import Cell, Table
from harness.reporting.formatting import MISSING, mebibytes, significant_digits
from harness.speed.speed_document import Scaling, SpeedDocument, SpeedRatio
from harness.speed.timed_model import DecodingTimes, EvaluationTimes, TimedModel, TrainingTimes
from harness.speed.timing import Samples
from harness.text import count, short_line

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


def median(samples: Samples | None, scale: float = 1.0) -> str | Cell:
    """Return a median with its quartiles, "12.3 (11.9 to 12.8)"; one sample has no quartiles."""
    if samples is None:
        return MISSING
    ends = (significant_digits(scale * end) for end in (samples.lower, samples.upper))
    detail = " to ".join(ends) if len(samples) > 1 else ""
    return Cell(significant_digits(scale * samples.median), detail=detail, value=scale * samples.median)


def interval(ratio: Samples) -> tuple[float, float]:
    """Return Student's 95 % interval of the geometric mean of a ratio over rounds; with one round it is unbounded."""
    if len(ratio) < 2:
        return 0.0, math.inf
    logarithms = np.log(ratio.values)
    half = student(len(ratio) - 1, 0.95) * logarithms.std(ddof=1) / math.sqrt(len(ratio))
    return float(np.exp(logarithms.mean() - half)), float(np.exp(logarithms.mean() + half))


def exponent(scaling: Scaling) -> str:
    """Return a fitted exponent with its standard error, "0.93 ± 0.02"; two sizes have no error."""
    if scaling.exponent is None:
        return MISSING
    error = " (two sizes)" if scaling.standard_error is None else f" ± {scaling.standard_error:.2f}"
    return f"{scaling.exponent:.2f}{error}".replace("-", "−")


def decoding_name(decoding: DecodingTimes) -> str:
    """Return the beam width and the batching of a decoding in words."""
    return measure_name(decoding.name, decoding.beam)


def measure_name(measure: str, beam: int) -> str:
    """Return the name of a measure in words: training, or a way of decoding."""
    return short_line(DECODINGS.get(measure, measure).replace("{beam}", str(beam)))


def decoding_named(subject: TimedModel, name: str) -> DecodingTimes | None:
    """Return the decoding of that name, or None."""
    return next((decoding for decoding in subject.decoding if decoding.name == name), None)


def _number(value: float | None, scale: float = 1.0) -> str | Cell:
    return MISSING if value is None else Cell(significant_digits(scale * value), value=value)


def _long(text: str, longest: int) -> Cell:
    line = short_line(text, longest=longest)
    return Cell(line, value=line)


def _giga_operations(times: TrainingTimes | EvaluationTimes) -> str:
    return significant_digits(times.operations_per_second / 1e9) if times.operations else MISSING


def _table(title: str, rows: Sequence[Mapping[str, str | Cell]], *, text_columns: int = 1) -> list[Table]:
    """Return rows of cells by head as a table with `text_columns` columns of text; an empty list without rows."""
    if not rows:
        return []
    lines = (tuple(cell if isinstance(cell, Cell) else short_line(cell) for cell in row.values()) for row in rows)
    heads = tuple(map(short_line, rows[0]))
    return [Table("l" * text_columns + "r" * (len(heads) - text_columns), heads, tuple(lines), title)]


def at_a_glance(document: SpeedDocument) -> list[Table]:
    """Return training speed, seconds for 1,000 translations and memory of each subject."""
    beam = document.settings.beam
    decodings = {
        name: f"{measure_name(name, beam)}, s for 1,000"
        for name in DECODINGS
        if any(decoding_named(subject, name) for subject in document.subjects)
    }
    rows = []
    for subject in document.subjects:
        if not subject.training and not subject.decoding:
            continue
        times = subject.training
        share = document.mfu(subject)
        row = {
            "subject": subject.name,
            "training, target tokens/s": _number(times.target_per_second if times else None),
            "MFU, %": _number(share.median if share else None, 100),
        }
        for name, head in decodings.items():
            decoding = decoding_named(subject, name)
            row[head] = _number(decoding.thousand_seconds if decoding else None)
        rows.append({**row, "peak memory, MiB": memory(subject)})
    return _table("", rows)


def memory(subject: TimedModel) -> str:
    """Return the largest peak memory of a subject's parts."""
    parts = [part for part in (subject.training, subject.evaluation, *subject.decoding) if part is not None]
    return mebibytes(max((part.peak_memory_bytes or 0 for part in parts), default=0) or None)


def training(document: SpeedDocument) -> list[Table]:
    """Return how fast each subject trains; device memory has a column if it was measured."""
    data = document.data
    timed = [(subject, subject.training) for subject in document.subjects if subject.training is not None]
    on_device = any(times.device_memory_bytes is not None for _, times in timed)
    rows = [
        {
            "subject": subject.name,
            "update, ms": median(times.seconds, 1_000 / times.updates),
            "target tokens/s": significant_digits(times.target_per_second),
            "epoch, s": median(times.seconds, data.epoch_tokens / (data.source + data.target)),
            "GFLOP/s": _giga_operations(times),
            "MFU, %": median(document.mfu(subject), 100),
            "first update, s": significant_digits(times.first_update_seconds),
            "peak memory, MiB": mebibytes(times.peak_memory_bytes),
            **({"device memory, MiB": mebibytes(times.device_memory_bytes)} if on_device else {}),
        }
        for subject, times in timed
    ]
    return _table("Training", rows)


def evaluation(document: SpeedDocument) -> list[Table]:
    """Return how fast each subject evaluates."""
    timed = [(subject, subject.evaluation) for subject in document.subjects if subject.evaluation is not None]
    rows = [
        {
            "subject": subject.name,
            "seconds": median(times.seconds),
            "target tokens/s": significant_digits(times.target_per_second),
            "GFLOP/s": _giga_operations(times),
            "nats per token": f"{times.nats_per_token:.4f}",
            "peak memory, MiB": mebibytes(times.peak_memory_bytes),
        }
        for subject, times in timed
    ]
    tokens = count(timed[0][1].target, "target token") if timed else ""
    return _table(f"Evaluation: the validation loss of {tokens}, forward pass only", rows)


def decoding(document: SpeedDocument) -> list[Table]:
    """Return how fast each subject translates, a table for each way: greedy and beam, in batches and one by one."""
    timed = [(subject, times) for subject in document.subjects for times in subject.decoding]
    tables: list[Table] = []
    for name in dict.fromkeys([*DECODINGS, *(times.name for _, times in timed)]):
        same = [(subject, times) for subject, times in timed if times.name == name]
        if not same:
            continue
        rows = [
            {
                "subject": subject.name,
                "s for 1,000": median(times.seconds, 1_000 / times.sentences),
                "tokens": f"{times.words:,}",
                "unfinished": str(times.unfinished),
                "equal translations": MISSING
                if times.equal is None
                else f"{times.equal:,} of {times.sentences:,} ({short_line(times.compared_with or '')})",
                "peak memory, MiB": mebibytes(times.peak_memory_bytes),
            }
            for subject, times in same
        ]
        first = same[0][1]
        size = f" of {first.batch_size}" if first.batch_size > 1 else ""
        title = f"{decoding_name(first).capitalize()}{size}: {count(first.sentences, 'sentence')}"
        tables += _table(title, rows)
    return tables


def comparisons(document: SpeedDocument, ratios: Sequence[SpeedRatio]) -> list[Table]:
    """Return how many times as fast each variant is as each baseline of the same variant, with 95 % intervals."""

    def times(ratio: Samples) -> Cell:
        detail = " to ".join(map(significant_digits, interval(ratio))) if len(ratio) > 1 else ""
        return Cell(significant_digits(ratio.median), detail=detail, value=ratio.median)

    rows: list[dict[str, str | Cell]] = [
        {
            "subject": pair.subject,
            "work": measure_name(pair.work, document.settings.beam),
            "baseline": pair.baseline,
            "times as fast": times(pair.ratio),
        }
        for pair in ratios
    ]
    return _table("Times as fast as the baseline, with the 95 % interval", rows, text_columns=3)


def breakdown(document: SpeedDocument) -> list[Table]:
    """Return the share of each group of operators in an update, a column for each subject."""
    profiled = [(subject.name, subject.breakdown) for subject in document.subjects if subject.breakdown is not None]
    head, rows = "% of an update (calls)", []
    for group in dict.fromkeys(share.group for _, parts in profiled for share in parts.shares):
        row = {head: str(group)}
        for name, parts in profiled:
            shares = [share for share in parts.shares if share.group == group]
            calls = sum(share.calls for share in shares)
            percentage = 100 * math.fsum(share.share for share in shares)
            row[name] = f"{percentage:.1f}{f' ({calls:,})' if calls else ''}" if shares else MISSING
        rows.append(row)
    updates = {name: str(parts.profiled_updates) for name, parts in profiled}
    overheads = {name: str(_number(parts.overhead_ratio)) for name, parts in profiled}
    rows += [{head: "profiled updates", **updates}, {head: "profiled ÷ unprofiled time", **overheads}]
    return _table("Breakdown", rows) if profiled else []


def scaling(document: SpeedDocument) -> list[Table]:
    """Return how the cost grows along each axis: the fitted exponents, then every point."""
    remarks = any(line.reason for line in document.scaling)
    fits = [
        {
            "axis": AXES[line.axis],
            "fixed": ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in line.fixed.items()),
            **({"remark": short_line(line.reason) or MISSING} if remarks else {}),
            "exponent of time": exponent(line),
            "sizes": str(len(line.points)),
        }
        for line in document.scaling
    ]
    points = [
        {
            "axis": AXES[line.axis],
            "size": f"{point.size:g}",
            "ms": median(point.seconds, 1_000),
            "tokens/s": significant_digits(point.tokens_per_second),
        }
        for line in document.scaling
        for point in line.points
    ]
    title = f"Fitted exponents of {short_line(document.scaling[0].subject)}" if fits else ""
    return _table(title, fits, text_columns=3 if remarks else 2) + _table("Every size", points)


def matmul_peak(document: SpeedDocument) -> list[Table]:
    """Return the machine's measured rates at the models' own matrix products, and which products these are."""
    rates = [
        {
            "products of": _long(", ".join(rate.variants), 2_000),
            "library": rate.library,
            "GFLOP/s": significant_digits(rate.operations_per_second / 1e9),
            "quartiles": MISSING
            if len(rate.seconds) == 1
            else f"{significant_digits(rate.operations / rate.seconds.upper / 1e9)} to "
            f"{significant_digits(rate.operations / rate.seconds.lower / 1e9)}",
            "GFLOP in all": significant_digits(rate.operations / 1e9),
            "seconds": median(rate.seconds),
        }
        for rate in document.rates
    ]
    products = [
        {
            "of": rate.variants[0] if rate.variants else "",
            "first of its kind": product.name,
            "a row for each": product.rows,
            "inputs": f"{product.inputs:,}",
            "outputs": f"{product.outputs:,}",
            "number of its kind": str(product.count),
        }
        for rate in document.rates
        for product in rate.products
    ]
    title = "Measured matmul peak at the models' own products"
    return _table(title, rates, text_columns=2) + _table("These products", products, text_columns=3)


def subjects(document: SpeedDocument) -> list[Table]:
    """Return every subject: its recipe, how it ended, the origin of its weights, and the time of starting it."""
    rows: list[dict[str, str | Cell]] = [
        {
            "subject": subject.name,
            "kind": subject.kind,
            "variant": subject.variant,
            "framework": " on ".join(filter(None, (subject.framework, subject.backend))),
            "ended": _long(": ".join(filter(None, (subject.ending, subject.reason))), 1_000),
            "weights for decoding": short_line(subject.weights_from) or MISSING,
            "parameters": MISSING if subject.parameters is None else f"{subject.parameters:,}",
            "start, s": _number(subject.start_seconds),
            "compilation, s": _number(subject.compilation_seconds),
            "CPU time while idle, %": MISSING if subject.idle_share is None else f"{100 * subject.idle_share:.2g}",
        }
        for subject in document.subjects
    ]
    return _table("Every subject", rows, text_columns=6)


def machine(document: SpeedDocument) -> list[tuple[str, str]]:
    """Return the facts about the machine and the work that was timed, name by name."""
    machine, settings, data = document.machine, document.settings, document.data
    loads = ("unknown" if load is None else f"{load:.2f}" for load in (machine.load_before, machine.load_after))
    words = "without unknown words" if settings.unknown == "never" else "unknown words allowed"
    pairs = {
        "processor": machine.processor or "unknown",
        "cores": str(machine.cores),
        "threads per subject": str(settings.threads),
        "memory": "unknown" if machine.memory_bytes is None else f"{mebibytes(machine.memory_bytes)} MiB",
        "GPU": machine.gpu or "none used",
        "device, precision": execution(settings),
        "system": machine.system,
        "Python": machine.python,
        "versions": ", ".join(f"{name} {version}" for name, version in machine.versions.items()) or "unknown",
        "commit": f"{machine.commit or 'unknown'}{', with uncommitted changes' if machine.dirty else ''}",
        "load average before, after": " and ".join(loads),
        "measured": f"{document.started} to {document.ended}",
        "rounds": f"{settings.rounds}; of decoding {settings.decoding_rounds}",
        "training round": f"{count(settings.updates, 'update')} over the same batches: {data.sentences:,} sentences, "
        f"{data.source:,} source and {data.target:,} target tokens; {100 * data.padding_share:.1f} % of positions are "
        "padding",
        "epoch": f"{count(data.epoch_updates, 'update')}, {data.epoch_tokens:,} source and target tokens",
        "decoding round": f"{settings.sentences:,} test sentences in batches of {settings.decoding_batch_size}, "
        f"{settings.single_sentences:,} one by one; at most {settings.max_tokens} tokens, {words}; length penalty of "
        f"beam {settings.beam}: {settings.length_penalty:g}",
    }
    return [(name, short_line(value, longest=1_000)) for name, value in pairs.items()]


def environments(document: SpeedDocument) -> list[tuple[str, str]]:
    """Return the environment variables of the processes, with the subjects that had them."""
    names: dict[str, list[str]] = {}
    for subject in document.subjects:
        if subject.environment:
            variables = " ".join(f"{name}={value}" for name, value in sorted(subject.environment.items()))
            names.setdefault(short_line(variables, longest=1_000), []).append(short_line(subject.name))
    if len(names) == 1:
        return [("environment", variables) for variables in names]
    return [(f"environment of {', '.join(subjects)}", variables) for variables, subjects in names.items()]
