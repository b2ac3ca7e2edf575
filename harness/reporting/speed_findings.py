"""The text of a speed report: headline, warnings, limits, and the definitions of its quantities."""

from __future__ import annotations

from collections.abc import Sequence

from harness.reporting.document import Headline
from harness.reporting.formatting import listed, significant_digits
from harness.reporting.speed_tables import DECODINGS, decoding_name, interval, measure_name
from harness.speed.speed_document import SpeedDocument, SpeedRatio
from harness.speed.timed_model import TimedModel
from harness.text import count, short_line

FEW_ROUNDS = 5
BUSY_LOAD = 0.5
"""The load average from which on other programs are reported as running."""

IDLE_SHARE = 0.01
"""The share of CPU time, used while other models were timed, from which on it is reported."""

MOST_RATIOS = 24
"""The largest number of ratios of several subjects that a plot or a terminal shows."""

DEFINITIONS = (
    "Times are medians over rounds, with quartiles. Each subject has a process of its own; subjects take turns, each "
    "round starts with another one, and the device is synchronised before the clock is read.",
    "“Times as fast” is the baseline's seconds over the subject's in the same round, for the same work and recipe; the "
    "median over rounds is shown. The 95 % interval is Student's, of the geometric mean over rounds. If it contains 1, "
    "the two are not distinguishable.",
    "Seconds per epoch are those of its tokens at the median round's rate. The first update, which compiles and "
    "allocates, is in no median.",
    "GFLOP/s are multiplications and additions per second, counted by formula: two for each element of a kernel and "
    "each real token that it is applied to, and those of attention between real tokens. An update counts as three "
    "forward passes. Padding, look-ups, norms, softmax, dropout and the optimiser are not counted.",
    "MFU (model FLOPs utilisation) is that rate over the matmul peak: what this machine reaches at the same kernels' "
    "products, forward and both gradients, in the same rounds. Attention's products are not part of the peak.",
    "Equal translations have the same tokens as those of the subject in brackets, which has the same weights. "
    "Unfinished ones reached the largest number of tokens.",
    "Peak memory is that of the whole process, libraries included, while it warms up for a kind of work.",
    "The breakdown's shares of operators are of profiled time, which overstates operators that are called often. "
    "“data” is the time to make batches, “harness” what else the training loop takes beyond the bare updates; neither "
    "is profiled. “compute” is all of an update in a framework that shows no operators.",
    "The exponent is the slope of a log–log fit through the medians, ± its standard error: 1 means linear cost, 0 "
    "constant. Its updates are of random words without padding.",
)
"""How each quantity of the report is measured and counted."""


def headline(document: SpeedDocument) -> Headline:
    """Return how fast the main variant trains and decodes compared with its baselines, and the limits of this."""
    subject = main_subject(document)
    sentences = [sentence for work in ("training", *DECODINGS) if (sentence := _compared(document, subject, work))]
    finding = ". ".join(sentences[:2]) + "." if sentences else _absolute(subject)
    settings, machine = document.settings, document.machine
    caveat = (
        f"One measurement on {machine.gpu or machine.processor or 'an unknown processor'} with "
        f"{count(settings.threads, 'thread')} each, {count(settings.rounds, 'round')} in turns: quote ratios only; "
        "absolute numbers hold for that machine and day."
    )
    return Headline(finding, short_line(caveat, longest=1_000))


def main_subject(document: SpeedDocument) -> TimedModel:
    """Return the subject of the headline: a measured one of the variant used for scaling, else any measured one."""
    measured = [subject for subject in document.subjects if subject.measured] or list(document.subjects)
    variants = [subject for subject in measured if subject.kind == "variant"] or measured
    return next((subject for subject in variants if subject.variant == document.settings.scaling_variant), variants[0])


def main_ratios(document: SpeedDocument) -> tuple[SpeedRatio, ...]:
    """Return all ratios, or those of the headline's subject if there are many."""
    ratios = document.comparisons
    if len(ratios) <= MOST_RATIOS:
        return ratios
    name = main_subject(document).name
    return tuple(ratio for ratio in ratios if ratio.subject == name) or ratios


def _compared(document: SpeedDocument, subject: TimedModel, work: str) -> str:
    """Return a sentence on one kind of work; empty if no baseline of the same variant did the same work."""
    ratios = [pair for pair in document.comparisons if (pair.subject, pair.work) == (subject.name, work)]
    faster = [ratio for ratio in ratios if interval(ratio.ratio)[0] > 1]
    slower = [ratio for ratio in ratios if interval(ratio.ratio)[1] < 1]
    equal = [ratio for ratio in ratios if ratio not in (*faster, *slower)]
    parts = []
    if faster:
        parts.append(f"is {_range([ratio.ratio.median for ratio in faster])} times as fast as {_names(faster)}")
    if slower:
        parts.append(f"takes {_range([1 / ratio.ratio.median for ratio in slower])} times as long as {_names(slower)}")
    if equal:
        parts.append(f"is not distinguishable from {_names(equal)}")
    if not parts:
        return ""
    where = work if work == "training" else f"decoding ({measure_name(work, document.settings.beam)})"
    *before, last = parts
    comparison = ", ".join([*before, f"and {last}"]) if before else last
    return f"In {where}, {short_line(subject.name)} {comparison}"


def _range(ratios: Sequence[float]) -> str:
    low, high = significant_digits(min(ratios)), significant_digits(max(ratios))
    return low if low == high else f"{low} to {high}"


def _names(ratios: Sequence[SpeedRatio]) -> str:
    return listed([short_line(ratio.baseline) for ratio in ratios])


def _absolute(subject: TimedModel) -> str:
    name = short_line(subject.name)
    if subject.training is not None:
        rate = significant_digits(subject.training.target_per_second)
        return f"{name} trains on {rate} target tokens per second; no baseline of its variant was measured with it."
    if subject.decoding:
        seconds = significant_digits(subject.decoding[0].thousand_seconds)
        return f"{name} translates 1,000 sentences ({decoding_name(subject.decoding[0])}) in {seconds} s."
    return "No subject was trained or decoded; this report has only the measurements below."


def warnings(document: SpeedDocument) -> list[str]:
    """Return warnings: an incomplete measurement, the toy size, the captions corpus, or a busy machine."""
    lines = []
    if document.status == "incomplete":
        reason = short_line(document.reason) or "no reason is given"
        lines.append(f"Incomplete: {reason}. This page shows what was measured until then.")
    if document.settings.size == "toy":
        lines.append("Toy size: tiny models and a few batches, to see that everything works. Its numbers mean nothing.")
    if document.data.spec.corpus == "captions":
        lines.append("The corpus is captions, sentences generated by a grammar in this project, not Multi30k.")
    load = document.machine.load_before
    if load is not None and load >= BUSY_LOAD:
        lines.append(
            f"Other programs were running: the load average was {load:.2f} before it began, on "
            f"{document.machine.cores} cores. Such times are too long, and the ratios uncertain."
        )
    return lines


def limits(document: SpeedDocument) -> list[str]:
    """Return what this document does not show: what is missing, failed, left out, or has too few samples."""
    lines = [*_missing_parts(document), *_incomplete_subjects(document), *_left_out(document)]
    if not document.rates:
        reason = short_line(document.reason) if document.status == "complete" else ""
        lines.append(f"The matmul peak of the machine is unknown{f' ({reason})' if reason else ''}, and so is the MFU.")
    lines += _translations(document)
    times = [
        part for model in document.subjects for part in (model.training, model.evaluation, *model.decoding) if part
    ]
    rounds = sorted({len(part.seconds) for part in times})
    if rounds and rounds[0] < FEW_ROUNDS:
        some = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        lines.append(f"Samples are few ({some} each), so quartiles say little and intervals are wide.")
    busy = [
        f"{short_line(subject.name)} ({100 * subject.idle_share:.2g} %)"
        for subject in document.subjects
        if subject.idle_share is not None and subject.idle_share >= IDLE_SHARE
    ]
    if busy:
        lines.append(
            "These processes used the CPU while others were timed, so the others' times are too long: "
            f"{', '.join(busy)}."
        )
    lines.append("This is one run on one machine: how much days, machines and versions differ is unknown.")
    return lines


def _missing_parts(document: SpeedDocument) -> list[str]:
    requested = document.settings.parts
    present = {
        name: any(getattr(subject, name) for subject in document.subjects)
        for name in ("training", "evaluation", "decoding", "breakdown")
    }
    present["scaling"] = any(line.points for line in document.scaling)
    not_requested = ", ".join(name for name in present if name not in requested)
    lost = ", ".join(name for name, measured in present.items() if name in requested and not measured)
    lines = [f"Not requested, and so not measured: {not_requested}."] if not_requested else []
    return lines + ([f"Requested and missing: {lost}."] if lost else [])


def _incomplete_subjects(document: SpeedDocument) -> list[str]:
    lines = [
        f"{short_line(subject.name)}: {subject.ending}" + (f": {short_line(subject.reason)}" if subject.reason else "")
        for subject in document.subjects
        if subject.ending != "completed" or subject.reason
    ]
    return lines + [
        f"{short_line(subject.name)}: started, but nothing was measured."
        for subject in document.subjects
        if subject.ending == "completed" and not (subject.measured or subject.breakdown)
    ]


def _left_out(document: SpeedDocument) -> list[str]:
    parts: dict[tuple[str, str], list[str]] = {}
    for subject in document.subjects:
        for measure, reason in subject.left_out.items():
            name = measure_name(measure, document.settings.beam)
            parts.setdefault((short_line(subject.name), short_line(reason)), []).append(name)
    return [f"Not measured for {name}: {'; '.join(names)}. Reason: {reason}" for (name, reason), names in parts.items()]


def _translations(document: SpeedDocument) -> list[str]:
    pairs = [(subject, times) for subject in document.subjects for times in subject.decoding]
    compared = [(subject, times, times.equal) for subject, times in pairs if times.equal is not None]
    differing = [item for item in compared if item[2] < item[1].sentences]
    differing.sort(key=lambda item: -item[2] / item[1].sentences)
    lines = []
    if differing:
        ends = [
            f"{times.sentences - equal:,} of {times.sentences:,} ({short_line(subject.name)}, {decoding_name(times)})"
            for subject, times, equal in (differing[0], differing[-1])
        ]
        lines.append(
            f"Translations by the same weights are not always equal; some differ in {len(differing)} of "
            f"{len(compared)} series: {' to '.join(dict.fromkeys(ends))}. Where few differ, the work is nearly the "
            "same."
        )
    endless = sum(times.unfinished > times.sentences / 2 for _, times in pairs)
    if endless:
        lines.append(
            f"{endless} of {len(pairs)} series of translations mostly reach {document.settings.max_tokens} tokens "
            "without an end, as a barely trained model does: a trained one ends sooner and is faster."
        )
    return lines
