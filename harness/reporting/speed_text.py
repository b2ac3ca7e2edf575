"""What a speed document says in words: what was found, what is not known, and how each figure is counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.analysis.inference import student
from harness.reporting.speed_tables import AXES, WAYS, exponent, number, quartiles, told, way
from harness.speed.speed_document import SpeedDocument, SpeedRatio, TimedModel
from harness.speed.timing import Samples
from harness.text import short_line

FEW_ROUNDS = 5
BUSY_LOAD = 0.5
"""A load average from which on other programs are said to have been running."""

IDLE_SHARE = 0.01
"""A share of processor time, taken while others were timed, from which on it is told."""


# What was found -------------------------------------------------------------------------------------------------------


def finding(document: SpeedDocument) -> list[str]:
    """Return what was found: of the subject that all peers share the recipe of first, then of all variants."""
    first = chosen(document)
    said = [_training(document, first), *_translating(document, first)]
    return [one for one in (*said, _variants(document), _loop(document), _growth(document)) if one]


def chosen(document: SpeedDocument) -> TimedModel:
    """Return the subject that the page begins with: a measured one of the followed variant, else any measured one."""
    measured = [one for one in document.subjects if one.measured] or list(document.subjects)
    variants = [one for one in measured if one.kind == "variant"] or measured
    return next((one for one in variants if one.variant == document.settings.scaling_variant), variants[0])


def _training(document: SpeedDocument, subject: TimedModel) -> str:
    one = subject.training
    if one is None:
        return ""
    said = f"An update of {short_line(subject.name)}, {document.settings.batch_size} sentences, takes "
    said += f"{_spread(one.seconds, 1_000 / one.updates, 'ms')}"
    if one.tokens:
        said += f", so an epoch {number(one.epoch_seconds)} s"
    if one.limit_share is not None:
        said += f"; it reaches {_spread(one.limit_share, 100, '%')} of what this machine's matrix products allow"
    return f"{said}. {_ratios(document, subject, ('training',))}".strip()


def _translating(document: SpeedDocument, subject: TimedModel) -> list[str]:
    """Return a sentence on each way to translate, with its ratios to the peers."""
    made = []
    for one in subject.decoding:
        said = f"{short_line(subject.name)} translates {one.sentences:,} sentences ({way(one)}) in "
        said += _spread(one.seconds, 1.0, "s")
        if one.sentences != 1_000:
            said += f", so 1,000 in {number(one.thousand_seconds)} s"
        made.append(f"{said}. {_ratios(document, subject, (one.name,))}")
    return [one.strip() for one in made]


def _spread(samples: Samples, scale: float, unit: str) -> str:
    told = f"{number(scale * samples.median)} {unit}"
    return told if len(samples) == 1 else f"{told} (quartiles {quartiles(samples, scale)})"


def _ratios(document: SpeedDocument, subject: TimedModel, names: Sequence[str]) -> str:
    found = [one for one in document.comparisons if one.subject == subject.name and one.what in names]
    if not found:
        return ""
    decided = [one for one in found if not undecided(one.ratio)]
    open_ones = [one for one in found if undecided(one.ratio)]
    said = ""
    if decided:
        said = f"Round by round that is {_listed([_times(document, one) for one in decided])}. "
    if open_ones:
        named = _listed([f"{_peer(document, one)} ({_quartiles(one.ratio)})" for one in open_ones])
        said += f"Not told apart, for the 95 % interval of the ratio holds 1: {named}. "
    return said.strip()


def undecided(ratio: Samples) -> bool:
    """Return whether Student's 95 % interval of the mean logarithm of a ratio holds 0; of one round it always does."""
    if len(ratio) < 2:
        return True
    logarithms = np.log(ratio.values)
    error = logarithms.std(ddof=1) / math.sqrt(len(ratio))
    return bool(abs(logarithms.mean()) <= student(len(ratio) - 1, 0.95) * error)


def _times(document: SpeedDocument, one: SpeedRatio) -> str:
    return f"{number(one.ratio.median)} times as fast as {_peer(document, one)} ({_quartiles(one.ratio)})"


def _peer(document: SpeedDocument, one: SpeedRatio) -> str:
    how = "" if one.what == one.baseline_what else f", {told(document, one.baseline, one.baseline_what)}"
    return f"{short_line(one.baseline)}{how}"


def _quartiles(ratio: Samples) -> str:
    return quartiles(ratio) if len(ratio) > 1 else f"{number(ratio.median)}, one round"


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _variants(document: SpeedDocument) -> str:
    found = [
        (one.training.limit_share, one)
        for one in document.subjects
        if one.kind == "variant" and one.training is not None and one.training.limit_share is not None
    ]
    if len(found) < 2:
        return ""
    low, high = (choose(found, key=lambda pair: pair[0].median) for choose in (min, max))
    return (
        f"Of {len(found)} variants, the share of the limit goes from {number(100 * low[0].median)} % "
        f"({short_line(low[1].name)}) to {number(100 * high[0].median)} % ({short_line(high[1].name)})."
    )


def _loop(document: SpeedDocument) -> str:
    found = [
        (one.training.loop_ratio, one)
        for one in document.subjects
        if one.training is not None and one.training.loop_ratio is not None
    ]
    if not found:
        return ""
    ratio, subject = max(found, key=lambda pair: pair[0].median)
    most = "" if len(found) == 1 else f"; of {len(found)} subjects that is the most"
    return (
        f"Driven by the harness's training loop, {short_line(subject.name)} takes {number(ratio.median)} times as long "
        f"as in a bare one{'' if len(ratio) == 1 else f' (quartiles {quartiles(ratio)})'}{most}."
    )


def _growth(document: SpeedDocument) -> str:
    found = [f"{AXES[one.axis]} {exponent(one)}" for one in document.scaling if one.exponent is not None]
    return f"Time grows with a power of size; the fitted exponents: {', '.join(found)}." if found else ""


# What is not known ----------------------------------------------------------------------------------------------------


def warnings(document: SpeedDocument) -> list[str]:
    """Return what must stand on top: that it was broken off, is of toy size, of captions, or of a busy machine."""
    made = []
    if document.status == "incomplete":
        reason = short_line(document.reason) or "no reason is given"
        made.append(f"Incomplete: {reason}. What stands here is what was measured until then; the rest is not known.")
    if document.settings.size == "toy":
        made.append("Toy size: tiny models and a few batches, to see that everything works. Its figures say nothing.")
    if document.data.spec.corpus == "captions":
        made.append("The corpus is captions, sentences that a grammar embedded in this project generates, no Multi30k.")
    load = document.machine.load_before
    if load is not None and load >= BUSY_LOAD:
        made.append(
            f"Other programs were running: the load average was {load:.2f} before it began, on "
            f"{document.machine.cores} cores. Figures of such a run are too slow, and its ratios uncertain."
        )
    return made


def unknown(document: SpeedDocument) -> list[str]:
    """Return what this document does not say: what is missing, failed, left out, or of too few samples."""
    made = [*_parts(document), *_subjects(document), *_left_out(document)]
    if not document.rates:
        said = short_line(document.reason) if document.status == "complete" else ""
        made.append(f"The machine's matrix-product rate is not known{f' ({said})' if said else ''}, and so no limit.")
    made += _equal(document)
    rounds = _rounds(document)
    if rounds and min(rounds) < FEW_ROUNDS:
        some = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        made.append(f"Samples are few ({some} a figure): quartiles of so few say little.")
    busy = [one for one in document.subjects if one.idle_share is not None and one.idle_share >= IDLE_SHARE]
    if busy:
        names = ", ".join(f"{short_line(one.name)} ({100 * one.idle_share:.2g} %)" for one in busy if one.idle_share)
        made.append(
            f"Processes took processor time while others were timed, whose figures are too slow by it: {names}."
        )
    made.append("It is one run on one machine: how another day, machine or version differs is not known from it.")
    return made


def _rounds(document: SpeedDocument) -> list[int]:
    counts = set()
    for one in document.subjects:
        for part in (one.training, one.evaluation, *one.decoding):
            counts |= {len(part.seconds)} if part else set()
    return sorted(counts)


def _parts(document: SpeedDocument) -> list[str]:
    """Return which parts were not asked for, and which were and are not there."""
    asked = document.settings.parts
    there = {
        "training": any(one.training for one in document.subjects),
        "evaluation": any(one.evaluation for one in document.subjects),
        "decoding": any(one.decoding for one in document.subjects),
        "breakdown": any(one.breakdown for one in document.subjects),
        "scaling": any(one.points for one in document.scaling),
    }
    never = [name for name in there if name not in asked]
    lost = [name for name, found in there.items() if name in asked and not found]
    made = [f"Not asked for, and so not measured: {', '.join(never)}."] if never else []
    return made + ([f"Asked for and not there: {', '.join(lost)}."] if lost else [])


def _subjects(document: SpeedDocument) -> list[str]:
    """Return which subjects failed, are missing, or were started and have no figure."""
    made = [
        f"{short_line(one.name)}: {one.ending}" + (f": {short_line(one.reason)}" if one.reason else "")
        for one in document.subjects
        if one.ending != "completed" or one.reason
    ]
    empty = [one for one in document.subjects if one.ending == "completed" and not (one.measured or one.breakdown)]
    return made + [f"{short_line(one.name)}: there is no figure of it." for one in empty]


def _left_out(document: SpeedDocument) -> list[str]:
    """Return for each reason what is not measured of whom."""
    found: dict[str, list[str]] = {}
    for one in document.subjects:
        for measure, why in one.left_out.items():
            name = WAYS.get(measure, measure).format(beam=document.settings.beam) if measure in WAYS else measure
            found.setdefault(short_line(why), []).append(f"{short_line(name)} of {short_line(one.name)}")
    return [f"Left out: {', '.join(what)}: {why}" for why, what in found.items()]


def _equal(document: SpeedDocument) -> list[str]:
    """Return where translations of equal weights differ, and where they have no end of their own."""
    pairs = [(subject, one) for subject in document.subjects for one in subject.decoding]
    unequal = [
        f"{short_line(subject.name)}, {way(one)}: {one.sentences - one.equal:,} of {one.sentences:,} translations are "
        f"not those of {short_line(one.compared_with or '')}, so their times are not of the same work."
        for subject, one in pairs
        if one.equal is not None and one.equal < one.sentences
    ]
    endless = [one for _, one in pairs if one.unfinished > one.sentences / 2]
    if endless:
        unequal.append(
            f"{len(endless)} of {len(pairs)} series of translations mostly reach {document.settings.max_tokens} words "
            "without an end, as a model that is hardly trained does: a trained one ends sooner, and is faster."
        )
    return unequal


# How it is counted ----------------------------------------------------------------------------------------------------


def counting(document: SpeedDocument) -> list[str]:
    """Return how each figure that is there is counted, a note each."""
    made = [
        "Figures are medians over rounds, with quartiles in brackets, interpolated between samples. Each subject has a "
        "process of its own; subjects take turns, round by round, each round begun by another, and the device is "
        "waited for on both sides of the clock. Absolute figures are this machine's; claim ratios alone."
    ]
    trained = any(one.training for one in document.subjects)
    if trained or any(one.evaluation for one in document.subjects):
        made += [*(_of_training(document) if trained else ()), *OPERATIONS]
    if any(one.decoding for one in document.subjects):
        made.append(_of_decoding(document))
    made += COMPARED if document.comparisons else ()
    made.append("Peak memory is that of the whole process until the end of the warm-up, libraries included.")
    made += BROKEN_DOWN if any(one.breakdown for one in document.subjects) else ()
    return [*made, *(GROWN if document.scaling else ())]


OPERATIONS = (
    "GFLOP/s are multiplications and additions by formula, not by counter, a second: a pass forward has two for each "
    "number of a kernel and each real token that it is applied to, and an update is three such passes (forward, and "
    "the gradients of both factors). Padding counts nothing; embedding look-ups, norms, softmax, dropout and the "
    "optimiser count nothing either.",
    "Attention counts by visible pairs of real tokens: a query and a key that its mask hides count nothing, whether or "
    "not a model computes them. Each pair has two for each number of its score and two for each of its sum.",
    "The limit is the rate of this machine at the same kernels' products, forward and both gradients, with as many "
    "rows as the batches have real tokens, measured in the same rounds. A share of the limit is GFLOP/s over that "
    "rate, round by round. Attention's own products are among the model's operations and not among the limit's.",
)
COMPARED = (
    "Times as fast is the peer's seconds over the subject's, of the same round: an update, or a sentence where the two "
    "do not translate as many. What a peer does one by one alone is held against batches too.",
)
BROKEN_DOWN = (
    "The breakdown's shares of the operators are of profiled time: what is called often is shown somewhat too large. "
    "Data is making the batches, harness what the harness's loop takes beyond data and bare loop; both are timed "
    "without the profiler. Where a framework shows no operators, all of the update is compute.",
)
GROWN = (
    "An exponent is the slope of a straight line through the medians in logarithms, ± its standard error: 1 is "
    "proportional, 0 free. Two sizes have no error. Updates are of random words without padding.",
)


def _of_training(document: SpeedDocument) -> list[str]:
    settings, data = document.settings, document.data
    padding = f"{100 * data.padding_share:.1f} %" if data.positions else "an unknown share"
    return [
        f"A round of training is {settings.updates} updates over the same {data.batches} batches: {data.sentences:,} "
        f"sentences, {data.source:,} source and {data.target:,} target tokens. Padding is {padding} of their positions "
        "as they come, and counts nowhere.",
        f"Seconds per epoch are those of the epoch's {data.epoch_tokens:,} tokens ({data.epoch_target:,} of them "
        f"target words, {data.epoch_updates:,} updates) at the round's tokens per second. The first update, with what "
        "is compiled and allocated in it, stands apart and is in no median.",
        "The harness's loop is the same updates driven by the loop that trains every run, with its data, checks and "
        "books; ÷ bare loop is its time over that of the updates alone, round by round.",
    ]


def _of_decoding(document: SpeedDocument) -> str:
    settings = document.settings
    unknown = "no unknown words, and at" if settings.unknown == "never" else "at"
    return (
        f"Translations are of {settings.sentences:,} test sentences in batches of {settings.decoding_batch_size}, and "
        f"of {settings.single_sentences:,} of them one by one, both evenly from the set, with {unknown} most "
        f"{settings.max_tokens} words; beam {settings.beam} has length penalty {settings.length_penalty:g}. Equal "
        "translations have the same words as those of the subject in brackets, which has the same weights."
    )
