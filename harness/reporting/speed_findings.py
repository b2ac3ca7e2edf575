"""What a speed document says in words: the headline, what is unknown, and how each figure is counted."""

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
    quartiles,
    same_variant,
    work_name,
)
from harness.speed.speed_document import SpeedDocument, SpeedRatio, TimedModel
from harness.speed.timing import Samples
from harness.text import count, short_line

FEW_ROUNDS = 5
BUSY_LOAD = 0.5
"""A load average from which on other programs are reported as running."""

IDLE_SHARE = 0.01
"""A share of CPU time, taken while others were timed, from which on it is reported."""


# The headline ---------------------------------------------------------------------------------------------------------


def headline(document: SpeedDocument) -> Headline:
    """Return how fast the followed variant trains and decodes beside its baselines, and what limits that."""
    subject = chosen(document)
    parts = [_compared(document, subject, work) for work in ("training", *DECODINGS)]
    sentences = [part for part in parts if part][:2]
    finding = ". ".join(sentences) + "." if sentences else _alone(document, subject)
    settings, machine = document.settings, document.machine
    caveat = (
        f"One measurement on {machine.gpu or machine.processor or 'an unknown processor'} with "
        f"{count(settings.threads, 'thread')} each, {count(settings.rounds, 'round')} in turns: report only ratios; "
        "absolute numbers hold for that machine and day."
    )
    return Headline(finding, short_line(caveat, longest=1_000))


def chosen(document: SpeedDocument) -> TimedModel:
    """Return the subject that the page begins with: a measured one of the followed variant, else any measured one."""
    measured = [subject for subject in document.subjects if subject.measured] or list(document.subjects)
    variants = [subject for subject in measured if subject.kind == "variant"] or measured
    return next((subject for subject in variants if subject.variant == document.settings.scaling_variant), variants[0])


def _compared(document: SpeedDocument, subject: TimedModel, work: str) -> str:
    """Return a sentence on one kind of work; empty where no baseline of the same variant did the same."""
    ratios = [
        ratio
        for ratio in document.comparisons
        if (ratio.subject, ratio.what, ratio.baseline_what) == (subject.name, work, work)
        and same_variant(document, ratio)
    ]
    faster = [ratio for ratio in ratios if not undecided(ratio.ratio) and ratio.ratio.median > 1]
    slower = [ratio for ratio in ratios if not undecided(ratio.ratio) and ratio.ratio.median < 1]
    equal = [ratio for ratio in ratios if undecided(ratio.ratio)]
    parts = []
    if faster:
        parts.append(f"{_range([ratio.ratio.median for ratio in faster])}× faster than {_names(faster)}")
    if slower:
        parts.append(f"{_range([1 / ratio.ratio.median for ratio in slower])}× slower than {_names(slower)}")
    if equal:
        parts.append(f"not distinguishable from {_names(equal)}")
    if not parts:
        return ""
    name = short_line(subject.name)
    what = f"Training {name}" if work == "training" else f"Its decoding ({work_name(document, subject.name, work)})"
    return f"{what} is {listed(parts)}"


def _range(ratios: Sequence[float]) -> str:
    low, high = significant_digits(min(ratios)), significant_digits(max(ratios))
    return low if low == high else f"{low}–{high}"


def _names(ratios: Sequence[SpeedRatio]) -> str:
    return listed([short_line(ratio.baseline) for ratio in ratios])


def _alone(document: SpeedDocument, subject: TimedModel) -> str:
    name = short_line(subject.name)
    if subject.training is not None:
        rate = significant_digits(subject.training.target_per_second)
        return f"{name} trains on {rate} target tokens per second; no baseline of its variant was measured with it."
    if subject.decoding:
        first = subject.decoding[0]
        seconds = significant_digits(first.thousand_seconds)
        return f"{name} translates 1,000 sentences ({decoding_name(first)}) in {seconds} s."
    return "No subject was timed as a whole: only what stands below is known."


def undecided(ratio: Samples) -> bool:
    """Whether Student's 95 % interval of the mean logarithm of a ratio holds 0; with one round it always does."""
    if len(ratio) < 2:
        return True
    logarithms = np.log(ratio.values)
    error = logarithms.std(ddof=1) / math.sqrt(len(ratio))
    return bool(abs(logarithms.mean()) <= student(len(ratio) - 1, 0.95) * error)


# Findings -------------------------------------------------------------------------------------------------------------


def findings(document: SpeedDocument) -> list[str]:
    """Return further findings: seconds with quartiles, ratios that do not differ from 1, MFU, loop overhead, growth."""
    subject = chosen(document)
    lines = [*_seconds(document, subject), _not_told_apart(document, subject), _utilisation(document)]
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


def _not_told_apart(document: SpeedDocument, subject: TimedModel) -> str:
    ratios = [ratio for ratio in document.comparisons if ratio.subject == subject.name and undecided(ratio.ratio)]
    if not ratios:
        return ""
    named = [
        f"{short_line(ratio.baseline)}, {work_name(document, ratio.baseline, ratio.baseline_what)} "
        f"({quartiles(ratio.ratio) if len(ratio.ratio) > 1 else 'one round'})"
        for ratio in ratios
    ]
    return f"Not distinguishable, because the 95 % interval of the ratio holds 1: {listed(named)}."


def _utilisation(document: SpeedDocument) -> str:
    known = [
        (subject.training.limit_share.median, short_line(subject.name))
        for subject in document.subjects
        if subject.kind == "variant" and subject.training is not None and subject.training.limit_share is not None
    ]
    if len(known) < 2:
        return ""
    (low, least), (high, most) = min(known), max(known)
    return (
        f"MFU of the {len(known)} variants ranges from {significant_digits(100 * low)} % ({least}) to "
        f"{significant_digits(100 * high)} % ({most})."
    )


def _loop(document: SpeedDocument) -> str:
    known = [
        (subject.training.loop_ratio, subject)
        for subject in document.subjects
        if subject.training is not None and subject.training.loop_ratio is not None
    ]
    if not known:
        return ""
    ratio, subject = max(known, key=lambda pair: pair[0].median)
    spread = "" if len(ratio) == 1 else f" (quartiles {quartiles(ratio)})"
    among = "" if len(known) == 1 else f", the most of {len(known)} subjects"
    return (
        f"The training loop with its data, checks and logging takes {significant_digits(ratio.median)} times as long "
        f"as the bare updates for {short_line(subject.name)}{spread}{among}."
    )


def _growth(document: SpeedDocument) -> str:
    fits = [f"{AXES[line.axis]} {exponent(line)}" for line in document.scaling if line.exponent is not None]
    return f"Time grows with a power of size; the fitted exponents: {', '.join(fits)}." if fits else ""


# What is unknown ------------------------------------------------------------------------------------------------------


def warnings(document: SpeedDocument) -> list[str]:
    """Return what must stand on top: that it is incomplete, of toy size, of captions, or of a busy machine."""
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


def unknown(document: SpeedDocument) -> list[str]:
    """Return what this document does not say: what is missing, failed, left out, or of too few samples."""
    lines = [*_parts(document), *_subjects(document), *_left_out(document)]
    if not document.rates:
        why = short_line(document.reason) if document.status == "complete" else ""
        lines.append(f"The matmul peak of the machine is unknown{f' ({why})' if why else ''}, and so is the MFU.")
    lines += _equal(document)
    rounds = _rounds(document)
    if rounds and min(rounds) < FEW_ROUNDS:
        some = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        lines.append(f"Samples are few ({some} each), so quartiles say little.")
    busy = [
        f"{short_line(subject.name)} ({100 * subject.idle_share:.2g} %)"
        for subject in document.subjects
        if subject.idle_share is not None and subject.idle_share >= IDLE_SHARE
    ]
    if busy:
        lines.append(
            f"These processes used the CPU while others were timed, whose times are too long: {', '.join(busy)}."
        )
    lines.append("This is one run on one machine: how another day, machine or version differs is unknown.")
    return lines


def _rounds(document: SpeedDocument) -> list[int]:
    counts = set()
    for subject in document.subjects:
        for part in (subject.training, subject.evaluation, *subject.decoding):
            counts |= {len(part.seconds)} if part else set()
    return sorted(counts)


def _parts(document: SpeedDocument) -> list[str]:
    """Return which parts were not requested, and which were requested and are missing."""
    requested = document.settings.parts
    present = {
        "training": any(subject.training for subject in document.subjects),
        "evaluation": any(subject.evaluation for subject in document.subjects),
        "decoding": any(subject.decoding for subject in document.subjects),
        "breakdown": any(subject.breakdown for subject in document.subjects),
        "scaling": any(line.points for line in document.scaling),
    }
    never = [name for name in present if name not in requested]
    lost = [name for name, known in present.items() if name in requested and not known]
    lines = [f"Not requested, and so not measured: {', '.join(never)}."] if never else []
    return lines + ([f"Requested and missing: {', '.join(lost)}."] if lost else [])


def _subjects(document: SpeedDocument) -> list[str]:
    """Return which subjects failed, are missing, or were started and have no figure."""
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
    """Return for each reason what is not measured of which subject."""
    parts: dict[str, list[str]] = {}
    for subject in document.subjects:
        for measure, reason in subject.left_out.items():
            name = DECODINGS.get(measure, measure).replace("{beam}", str(document.settings.beam))
            parts.setdefault(short_line(reason), []).append(f"{short_line(name)} of {short_line(subject.name)}")
    return [f"Left out: {', '.join(what)}: {reason}" for reason, what in parts.items()]


def _equal(document: SpeedDocument) -> list[str]:
    """Return where translations of equal weights differ, and where they mostly have no end of their own."""
    pairs = [(subject, times) for subject in document.subjects for times in subject.decoding]
    lines = [
        f"{short_line(subject.name)}, {decoding_name(times)}: {times.sentences - times.equal:,} of {times.sentences:,} "
        f"translations differ from those of {short_line(times.compared_with or '')}, so the work is not the same."
        for subject, times in pairs
        if times.equal is not None and times.equal < times.sentences
    ]
    endless = [times for _, times in pairs if times.unfinished > times.sentences / 2]
    if endless:
        lines.append(
            f"{len(endless)} of {len(pairs)} series of translations mostly reach {document.settings.max_tokens} tokens "
            "without an end, as a barely trained model does: a trained one ends sooner and is faster."
        )
    return lines


# How it is counted ----------------------------------------------------------------------------------------------------


def counting(document: SpeedDocument) -> list[str]:
    """Return how each figure that is present is counted, a note each."""
    lines = [
        "Figures are medians over rounds, with quartiles. Each subject has a process of its own; subjects take turns, "
        "round by round, each round begun by another, and the device is synchronised on both sides of the clock."
    ]
    trained = any(subject.training for subject in document.subjects)
    if trained or any(subject.evaluation for subject in document.subjects):
        lines += [*(_of_training(document) if trained else ()), *OPERATIONS]
    if any(subject.decoding for subject in document.subjects):
        lines.append(_of_decoding(document))
    lines += COMPARED if document.comparisons else ()
    lines.append("Peak memory is that of the whole process until the end of the warm-up, libraries included.")
    lines += BROKEN_DOWN if any(subject.breakdown for subject in document.subjects) else ()
    return [*lines, *(GROWN if document.scaling else ())]


OPERATIONS = (
    "GFLOP/s are multiplications and additions per second, counted by formula: a forward pass has two for each number "
    "of a kernel and each real token that it is applied to; an update is three such passes. Padding, embedding "
    "look-ups, norms, softmax, dropout and the optimiser count nothing; attention counts visible pairs of real tokens.",
    "MFU (model FLOPs utilisation) is that rate over the matmul peak: what this machine reaches at the same kernels' "
    "products, forward and both gradients, measured in the same rounds. Attention's own products are among the model's "
    "operations and not among the peak's.",
)
COMPARED = (
    "Times as fast is the baseline's seconds over the subject's, of the same round: of an update, or of a sentence "
    "where the two do not translate as many.",
)
BROKEN_DOWN = (
    "The breakdown's shares of operators are of profiled time, which overstates what is called often. Data is making "
    "the batches, harness what the training loop takes beyond data and bare updates; both are timed without the "
    "profiler. Where a framework shows no operators, all of the update is compute.",
)
GROWN = (
    "The exponent is the slope of a log–log fit through the medians, ± its standard error: 1 means linear cost, 0 "
    "constant. Updates are of random words without padding.",
)


def _of_training(document: SpeedDocument) -> list[str]:
    settings, data = document.settings, document.data
    padding = f"{100 * data.padding_share:.1f} %" if data.positions else "an unknown share"
    return [
        f"A round of training is {count(settings.updates, 'update')} over the same {data.batches} batches: "
        f"{data.sentences:,} sentences, {data.source:,} source and {data.target:,} target tokens. Padding is {padding} "
        "of their positions.",
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
