"""The text of a speed report: headline, findings, warnings, limits, and how each quantity is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.inference import student
from harness.reporting.document import Headline
from harness.reporting.formatting import listed, significant_digits
from harness.reporting.speed_tables import (
    AXES,
    DECODINGS,
    decoding_name,
    exponent,
    measure_name,
    quartiles,
    same_variant,
    work_name,
)
from harness.speed.speed_document import SpeedDocument, SpeedRatio
from harness.speed.timed_model import TimedModel
from harness.speed.timing import Samples
from harness.text import count, short_line

FEW_ROUNDS = 5
BUSY_LOAD = 0.5
"""The load average above which other programs are reported as running."""

IDLE_SHARE = 0.01
"""The share of CPU time, used while other models were timed, above which it is reported."""


# The headline ---------------------------------------------------------------------------------------------------------


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


def _compared(document: SpeedDocument, subject: TimedModel, work: str) -> str:
    """Return a sentence on one kind of work; empty if no baseline of the same variant did the same work."""
    ratios = [
        ratio
        for ratio in document.comparisons
        if (ratio.subject, ratio.what, ratio.baseline_what) == (subject.name, work, work)
        and same_variant(document, ratio)
    ]
    equal = [ratio for ratio in ratios if undecided(ratio.ratio)]
    faster = [ratio for ratio in ratios if interval(ratio.ratio)[0] > 1]
    slower = [ratio for ratio in ratios if interval(ratio.ratio)[1] < 1]
    parts = []
    if faster:
        parts.append(f"is {_range([ratio.ratio.median for ratio in faster])} times as fast as {_names(faster)}")
    if slower:
        parts.append(f"takes {_range([1 / ratio.ratio.median for ratio in slower])} times as long as {_names(slower)}")
    if equal:
        parts.append(f"is not distinguishable from {_names(equal)}")
    if not parts:
        return ""
    where = "training" if work == "training" else f"decoding ({work_name(document, subject.name, work)})"
    *before, last = parts
    comparison = ", ".join([*before, f"and {last}"]) if before else last
    return f"In {where}, {short_line(subject.name)} {comparison}"


def _range(ratios: Sequence[float]) -> str:
    low, high = significant_digits(min(ratios)), significant_digits(max(ratios))
    return low if low == high else f"{low} to {high}"


def _names(ratios: Sequence[SpeedRatio]) -> str:
    return listed([short_line(ratio.baseline) for ratio in ratios])


def _absolute(subject: TimedModel) -> str:
    """Return the finding without a baseline to compare with."""
    name = short_line(subject.name)
    if subject.training is not None:
        rate = significant_digits(subject.training.target_per_second)
        return f"{name} trains on {rate} target tokens per second; no baseline of its variant was measured with it."
    if subject.decoding:
        seconds = significant_digits(subject.decoding[0].thousand_seconds)
        return f"{name} translates 1,000 sentences ({decoding_name(subject.decoding[0])}) in {seconds} s."
    return "No subject was trained or decoded; this report has only the measurements below."


def interval(ratio: Samples) -> tuple[float, float]:
    """Return Student's 95 % interval of the geometric mean of a ratio over rounds; with one round it is unbounded."""
    if len(ratio) < 2:
        return 0.0, math.inf
    logarithms = np.log(ratio.values)
    half = student(len(ratio) - 1, 0.95) * logarithms.std(ddof=1) / math.sqrt(len(ratio))
    return float(np.exp(logarithms.mean() - half)), float(np.exp(logarithms.mean() + half))


def undecided(ratio: Samples) -> bool:
    """Return whether the 95 % interval contains 1."""
    lower, upper = interval(ratio)
    return lower <= 1 <= upper


# Findings -------------------------------------------------------------------------------------------------------------


def findings(document: SpeedDocument) -> list[str]:
    """Return further findings: seconds with quartiles, ratios that do not differ from 1, MFU, loop overhead, growth."""
    subject = main_subject(document)
    lines = [*_seconds(document, subject), _undistinguished(document, subject), _utilisation(document)]
    return [line for line in (*lines, _loop(document), _growth(document)) if line]


def _seconds(document: SpeedDocument, subject: TimedModel) -> list[str]:
    name, training = short_line(subject.name), subject.training
    lines = []
    if training is not None:
        line = f"An update of {name}, {count(document.settings.batch_size, 'sentence')}, takes "
        line += _spread(training.seconds, 1_000 / training.updates, "ms")
        if training.limit_share is not None:
            line += f"; its MFU is {_spread(training.limit_share, 100, '%')}"
        lines.append(f"{line}.")
    for decoding in subject.decoding:
        way, seconds = decoding_name(decoding), _spread(decoding.seconds, 1.0, "s")
        lines.append(f"{name} translates {decoding.sentences:,} sentences ({way}) in {seconds}.")
    return lines


def _spread(samples: Samples, scale: float, unit: str) -> str:
    middle = f"{significant_digits(scale * samples.median)} {unit}"
    return middle if len(samples) == 1 else f"{middle} (quartiles {quartiles(samples, scale)})"


def _undistinguished(document: SpeedDocument, subject: TimedModel) -> str:
    ratios = [ratio for ratio in document.comparisons if ratio.subject == subject.name and undecided(ratio.ratio)]
    parts = []
    for ratio in ratios:
        ours, theirs = ratio.what, ratio.baseline_what
        work = work_name(document, ratio.baseline, theirs)
        if ours != theirs:
            work += f" against {work_name(document, subject.name, ours)}"
        limits = " to ".join(map(significant_digits, interval(ratio.ratio))) if len(ratio.ratio) > 1 else "one round"
        parts.append(f"{short_line(ratio.baseline)}, {work} ({limits})")
    return f"Not distinguishable, because the 95 % interval of the ratio contains 1: {listed(parts)}." if parts else ""


def _utilisation(document: SpeedDocument) -> str:
    shares = [
        (subject.training.limit_share.median, short_line(subject.name))
        for subject in document.subjects
        if subject.kind == "variant" and subject.training is not None and subject.training.limit_share is not None
    ]
    if len(shares) < 2:
        return ""
    (low, least), (high, most) = min(shares), max(shares)
    return (
        f"MFU of the {len(shares)} variants ranges from {significant_digits(100 * low)} % ({least}) to "
        f"{significant_digits(100 * high)} % ({most})."
    )


def _loop(document: SpeedDocument) -> str:
    timed = [(subject.name, subject.training) for subject in document.subjects if subject.training is not None]
    ratios = [(times.loop_ratio, short_line(name)) for name, times in timed if times.loop_ratio is not None]
    if not ratios:
        return ""
    ratio, name = max(ratios, key=lambda pair: pair[0].median)
    among = "" if len(ratios) == 1 else f", the most of {len(ratios)} subjects"
    unit = f"times as long as the bare updates for {name}"
    return f"The training loop with its data, checks and logging takes {_spread(ratio, 1.0, unit)}{among}."


def _growth(document: SpeedDocument) -> str:
    fits = [f"{AXES[line.axis]} {exponent(line)}" for line in document.scaling if line.exponent is not None]
    return f"Time grows with a power of size; the fitted exponents: {', '.join(fits)}." if fits else ""


# Warnings and limits --------------------------------------------------------------------------------------------------


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
        lines.append(f"Samples are few ({some} each), so quartiles say little.")
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
    """Return which parts were not requested, and which were requested and are missing."""
    requested = document.settings.parts
    present = {
        name: any(getattr(subject, name) for subject in document.subjects)
        for name in ("training", "evaluation", "decoding", "breakdown")
    }
    present["scaling"] = any(line.points for line in document.scaling)
    not_requested = [name for name in present if name not in requested]
    lost = [name for name, measured in present.items() if name in requested and not measured]
    lines = [f"Not requested, and so not measured: {', '.join(not_requested)}."] if not_requested else []
    return lines + ([f"Requested and missing: {', '.join(lost)}."] if lost else [])


def _incomplete_subjects(document: SpeedDocument) -> list[str]:
    """Return which subjects failed, are missing, or were started without being measured."""
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
    """Return which measures of which subjects are missing, a line for each subject and reason."""
    parts: dict[tuple[str, str], list[str]] = {}
    for subject in document.subjects:
        for measure, reason in subject.left_out.items():
            name = measure_name(measure, document.settings.beam)
            parts.setdefault((short_line(subject.name), short_line(reason)), []).append(name)
    return [f"Not measured for {name}: {'; '.join(names)}. Reason: {reason}" for (name, reason), names in parts.items()]


def _translations(document: SpeedDocument) -> list[str]:
    """Return which translations of equal weights differ, and whether most translations reach the token limit."""
    pairs = [(subject, times) for subject in document.subjects for times in subject.decoding]
    lines = [
        f"{short_line(subject.name)}, {decoding_name(times)}: {times.sentences - times.equal:,} of {times.sentences:,} "
        f"translations differ from those of {short_line(times.compared_with or '')}, so the work is not the same."
        for subject, times in pairs
        if times.equal is not None and times.equal < times.sentences
    ]
    endless = sum(times.unfinished > times.sentences / 2 for _, times in pairs)
    if endless:
        lines.append(
            f"{endless} of {len(pairs)} series of translations mostly reach {document.settings.max_tokens} tokens "
            "without an end, as a barely trained model does: a trained one ends sooner and is faster."
        )
    return lines


# How quantities are measured ------------------------------------------------------------------------------------------


def counting(document: SpeedDocument) -> list[str]:
    """Return a note for each kind of quantity in the report: how it is measured and counted."""
    subjects = document.subjects
    trained = any(subject.training for subject in subjects)
    lines = [
        "Figures are medians over rounds, with quartiles. Each subject has a process of its own; subjects take turns, "
        "round by round, each round starting with another, and the device is synchronised on both sides of the clock."
    ]
    if trained:
        lines += _of_training(document)
    if trained or any(subject.evaluation for subject in subjects):
        lines += [
            "GFLOP/s are multiplications and additions per second, counted by formula: a forward pass has two for each "
            "element of a kernel and each real token that it is applied to; an update is three such passes. Padding, "
            "embedding look-ups, norms, softmax, dropout and the optimiser are not counted; of attention, visible "
            "pairs of real tokens are counted.",
            "MFU (model FLOPs utilisation) is that rate over the matmul peak: what this machine reaches at the same "
            "kernels' products, forward and both gradients, measured in the same rounds. Attention's own products are "
            "among the model's operations and not among the peak's.",
        ]
    if any(subject.decoding for subject in subjects):
        lines.append(_of_decoding(document))
    if document.comparisons:
        lines.append(
            "“Times as fast” is the baseline's seconds over the subject's in the same round: per update, or per "
            "sentence where the two translate different numbers of sentences."
        )
    lines.append("Peak memory is that of the whole process during the warm-up of a kind of work, libraries included.")
    if any(subject.breakdown for subject in subjects):
        lines.append(
            "The breakdown's shares of operators are of profiled time, which overstates operators that are called "
            "often. “data” is the time to make batches, “harness” what else the training loop takes beyond the bare "
            "updates; both are timed without the profiler. Where a framework shows no operators, all of the update is "
            "compute."
        )
    if document.scaling:
        lines.append(
            "The exponent is the slope of a log–log fit through the medians, ± its standard error: 1 means linear "
            "cost, 0 constant. Updates are of random words without padding."
        )
    return lines


def _of_training(document: SpeedDocument) -> list[str]:
    settings, data = document.settings, document.data
    return [
        f"A round of training is {count(settings.updates, 'update')} over the same {data.batches} batches: "
        f"{data.sentences:,} sentences, {data.source:,} source and {data.target:,} target tokens. Padding is "
        f"{100 * data.padding_share:.1f} % of their positions.",
        f"Seconds per epoch are those of the epoch's {data.epoch_tokens:,} tokens ({data.epoch_target:,} of them "
        f"target tokens, {data.epoch_updates:,} updates) at the round's tokens per second. The first update, which "
        "compiles and allocates, is in no median.",
        "The training loop includes data loading, checks and logging; ÷ bare loop is its time over that of the bare "
        "updates, round by round.",
    ]


def _of_decoding(document: SpeedDocument) -> str:
    settings = document.settings
    unknown_words = "no unknown words and " if settings.unknown == "never" else ""
    return (
        f"Translations are of {settings.sentences:,} test sentences in batches of {settings.decoding_batch_size}, and "
        f"of {settings.single_sentences:,} of them one by one, both evenly from the set, with {unknown_words}at most "
        f"{settings.max_tokens} tokens; beam {settings.beam} has length penalty {settings.length_penalty:g}. Equal "
        "translations have the same tokens as those of the subject in brackets, which has the same weights."
    )
