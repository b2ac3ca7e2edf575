"""Rules about the metrics of a record: each is recomputed from others of the same record."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.audit.record_rules import LOSSES, equal, updates_per_epoch
from harness.audit.run_folder import Skipped, StoredRun
from harness.evaluation.metrics import ORDERS, perplexity
from harness.storage.records import RECORD_SCHEMA, RunRecord
from harness.training.schedules import learning_rate, stopping_epoch

BLEU_ORDERS = tuple(f"bleu_{order}_{kind}" for order in ORDERS for kind in ("cumulative", "individual"))
SCORES = ("bleu_tutorial", *BLEU_ORDERS, "bleu_sacre", "chrf")
PERPLEXITIES = ("test_loss", "test_perplexity", "tutorial_perplexity")
OPTIONAL = ("bleu_tokenised", "brevity_penalty")
COUNTED_IN = {
    "bleu_tutorial": ("case:lc", "tok:none", "smooth:none", "tokens:model"),
    "bleu_tokenised": ("case:lc", "tok:none", "smooth:exp", "tokens:moses"),
    "bleu_sacre": ("tok:13a", "smooth:exp"),
    "brevity_penalty": ("tok:13a", "smooth:exp"),
    "chrf": ("nc:6", "nw:0"),
}
"""What stands in the signature of a score beside one reference, the case, sacreBLEU's version and unknown words."""
RESCORE = "write it with: python -m harness score --rescore"


def curve(stored: StoredRun) -> Iterator[str]:
    """Epochs count from 1, their losses are finite, and each perplexity is the exponential of its loss."""
    record = stored.known
    if not record.curve:
        raise Skipped("without an epoch")
    epochs = [line.epoch for line in record.curve]
    if epochs != list(range(1, len(epochs) + 1)):
        yield f"its epochs are {', '.join(map(str, epochs))}"
    for line in record.curve:
        finite = line is not record.curve[-1] or record.status != "diverged"
        for name in LOSSES:
            value = getattr(line, name)
            if finite and (value is None or value < 0):
                yield f"epoch {line.epoch}: {name}={value}"
        smoothed = record.spec.training.label_smoothing > 0
        for part in ("validation",) if smoothed else ("training", "validation"):
            loss, found = getattr(line, f"{part}_loss"), getattr(line, f"{part}_perplexity")
            if loss is not None and found is not None and not equal(found, perplexity(loss, 1)):
                yield f"epoch {line.epoch}: {part}_perplexity={found}, exp({part}_loss) is {perplexity(loss, 1)}"
        if finite and (line.largest_gradient_norm is None or line.largest_gradient_norm < 0):
            yield f"epoch {line.epoch}: largest_gradient_norm={line.largest_gradient_norm}"


def updates(stored: StoredRun) -> Iterator[str]:
    """The number of updates follows from training pairs, batch size, epochs, the limit and early stopping."""
    record = stored.known
    pairs = record.sizes.get("train_pairs")
    if not record.curve or not pairs:
        raise Skipped("without an epoch")
    spec = record.spec
    each = updates_per_epoch(record)
    if record.sizes.get("updates_per_epoch", each) != each:
        yield f"sizes.updates_per_epoch={record.sizes['updates_per_epoch']:,.0f}, its settings make {each:,}"
    most = min(spec.training.epochs * each, spec.updates or math.inf)
    for number, line in enumerate(record.curve, start=1):
        if line.updates != min(number * each, most):
            yield f"epoch {line.epoch}: {line.updates} updates, its settings make {min(number * each, most)}"
    planned = math.ceil(most / each)
    stop = stopping_epoch([line.validation_loss for line in record.curve], spec.training.patience)
    expected = planned if stop is None else min(stop, planned)
    if len(record.curve) > expected or (record.status == "completed" and len(record.curve) < expected):
        yield f"{len(record.curve)} epochs, its settings make {expected}"
    stopped = expected if expected < planned and record.status == "completed" else None
    if record.stopped_epoch != stopped:
        yield f"stopped_epoch={record.stopped_epoch}, its curve and training.patience make it {stopped}"


def tokens(stored: StoredRun) -> Iterator[str]:
    """Every complete epoch has the same number of target tokens, and an incomplete one fewer."""
    record = stored.known
    pairs = record.sizes.get("train_pairs")
    if not record.curve or not pairs:
        raise Skipped("without an epoch")
    each = updates_per_epoch(record)
    first = record.curve[0].tokens
    for number, line in enumerate(record.curve, start=1):
        whole = line.updates == number * each
        if line.tokens < 1 or (line.tokens != first if whole else line.tokens > first and number > 1):
            yield f"epoch {line.epoch}: {line.tokens:,} target words, epoch 1 has {first:,}"


def rates(stored: StoredRun) -> Iterator[str]:
    """The learning rate of each epoch is that of the schedule at its last update."""
    record = stored.known
    if not record.curve:
        raise Skipped("without an epoch")
    for line in record.curve:
        expected = learning_rate(record.spec.training, max(1, line.updates))
        if not equal(line.learning_rate, expected):
            yield f"epoch {line.epoch}: learning_rate={line.learning_rate}, the schedule's is {expected}"


def kept(stored: StoredRun) -> Iterator[str]:
    """The kept epoch has the lowest validation loss, or the last epochs are averaged."""
    record = stored.completed
    losses = [math.inf if line.validation_loss is None else line.validation_loss for line in record.curve]
    if not losses:
        raise Skipped("without an epoch")
    averaged = record.spec.training.averaged_epochs
    expected = tuple(range(max(0, len(losses) - averaged), len(losses))) if averaged else (losses.index(min(losses)),)
    if record.chosen_epochs != tuple(number + 1 for number in expected):
        told = ", ".join(map(str, record.chosen_epochs)) or "none"
        yield f"kept epoch {told}, its curve makes it {', '.join(str(number + 1) for number in expected)}"


def losses(stored: StoredRun) -> Iterator[str]:
    """Test loss and perplexity are present, and one is the exponential of the other."""
    scores = stored.completed.scores
    for name in PERPLEXITIES:
        value = scores.get(name)
        if value is None or value < (0 if name == "test_loss" else 1):
            yield f"{name}={value}"
    loss, found = scores.get("test_loss"), scores.get("test_perplexity")
    if loss is not None and found is not None and not equal(found, perplexity(loss, 1)):
        yield f"test_perplexity={found}, exp(test_loss) is {perplexity(loss, 1)}"


def bleu(stored: StoredRun) -> Iterator[str]:
    """Every score is present and between 0 and 100, and cumulative BLEU-1 to 4 follow from the individual ones.

    Cumulative BLEU-N is the geometric mean of the individual ones up to N, because the brevity penalty is a factor of
    each; cumulative BLEU-4 is `bleu_tutorial`.
    """
    scores = stored.completed.scores
    for name in SCORES:
        value = scores.get(name)
        if value is None or not 0 <= value <= 100 + 1e-9:
            yield f"{name}={value}"
    for name in sorted(scores.keys() - {*SCORES, *OPTIONAL, *PERPLEXITIES}):
        yield f"{name}: no score of this version"
    brevity = scores.get("brevity_penalty", 1.0)
    if brevity is None or not 0 <= brevity <= 1:
        yield f"brevity_penalty={brevity}: expected a number from 0 to 1"
    if "brevity_penalty" not in scores and is_current(stored):
        yield f"brevity_penalty is missing; {RESCORE}"
    tokenised = scores.get("bleu_tokenised", 0.0)
    if tokenised is None or not 0 <= tokenised <= 100 + 1e-9:
        yield f"bleu_tokenised={tokenised}"
    individual = [scores.get(f"bleu_{order}_individual") or 0.0 for order in ORDERS]
    for order in ORDERS:
        cumulative = scores.get(f"bleu_{order}_cumulative") or 0.0
        product = math.prod(max(0.0, one) for one in individual[:order])
        if not equal(cumulative, product ** (1 / order)):
            yield f"bleu_{order}_cumulative={cumulative}, the individual ones make {product ** (1 / order)}"
    if not equal(scores.get("bleu_tutorial"), scores.get("bleu_4_cumulative")):
        yield f"bleu_tutorial={scores.get('bleu_tutorial')}, bleu_4_cumulative={scores.get('bleu_4_cumulative')}"


def signatures(stored: StoredRun) -> Iterator[str]:
    """Every BLEU and chrF has the signature of its settings."""
    record = stored.completed
    scored = record.scores.keys() - set(PERPLEXITIES)
    yield from (f"{name} without a signature" for name in sorted(scored - record.signatures.keys()))
    yield from (f"a signature of {name}, which is no score" for name in sorted(record.signatures.keys() - scored))
    for name, signature in sorted(record.signatures.items()):
        parts = signature.split("|")
        lacking = [one for one in _parts(record, name) if one not in parts]
        if lacking and (is_current(stored) or lacking != ["unk:allowed"]):
            yield f"{name}: {signature}, without {', '.join(lacking)}"


def _parts(record: RunRecord, name: str) -> list[str]:
    """Return the parts that the signature of a score must have."""
    found = ["nrefs:1", f"unk:{record.spec.decoding.unknown}"]
    version = (record.environment.get("versions") or {}).get("sacrebleu")
    if version:
        found.append(f"version:{version}")
    if name in ("bleu_sacre", "brevity_penalty", "chrf"):
        found.append("case:lc" if record.spec.data.case == "lower" else "case:mixed")
    order, _, kind = name.removeprefix("bleu_").partition("_")
    if name in BLEU_ORDERS:
        return [*found, *COUNTED_IN["bleu_tutorial"], f"orders:{'1-' * (kind == 'cumulative')}{order}"]
    return found + list(COUNTED_IN.get(name, ()))


def decoding(stored: StoredRun) -> Iterator[str]:
    """Ties, unfinished translations and unknown tokens are counts within their limits."""
    record = stored.completed
    counted = ("ties", "unfinished", "unknown_tokens")
    for name in counted if is_current(stored) else counted[:2]:
        if record.decode.get(name, -1) < 0:
            yield f"{name}={record.decode.get(name)} is not a count"
    if record.decode.get("unfinished", 0) > record.sizes.get("test_pairs", math.inf):
        yield f"{record.decode['unfinished']} unfinished of {record.sizes['test_pairs']:,.0f} translations"


def is_current(stored: StoredRun) -> bool:
    """Return whether a record has the current schema; earlier ones have fewer metrics."""
    return bool(stored.raw.get("schema") == RECORD_SCHEMA)
