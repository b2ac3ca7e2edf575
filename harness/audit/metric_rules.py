"""Rules about the metrics of a record: each is recomputed from others of the same record."""

from __future__ import annotations

import math
from collections.abc import Iterator

from harness.analysis.grouping import CURVE
from harness.audit.record_rules import updates_per_epoch
from harness.audit.run_folder import NO_EPOCH, ROUNDING, StoredRun, skip_unless, unequal
from harness.evaluation.metrics import ORDERS, perplexity, sacre_tokenizer
from harness.storage.records import RunRecord
from harness.text import count, first_few
from harness.training.schedules import learning_rate, stopping_epoch

BLEU_ORDERS = tuple(f"bleu_{order}_{kind}" for order in ORDERS for kind in ("cumulative", "individual"))
SCORES = ("bleu_tutorial", *BLEU_ORDERS, "bleu_sacre", "chrf")
PERPLEXITIES = ("test_loss", "test_perplexity", "tutorial_perplexity")
OPTIONAL = ("bleu_tokenised", "brevity_penalty")
COUNTED_IN = {
    "bleu_tutorial": ("case:lc", "tok:none", "smooth:none", "tokens:model"),
    "bleu_tokenised": ("case:lc", "tok:none", "smooth:exp", "tokens:moses"),
    "bleu_sacre": ("smooth:exp",),
    "brevity_penalty": ("smooth:exp",),
    "chrf": ("nc:6", "nw:0"),
}
"""Items of the signature of a score, besides the number of references, case, version and unknown tokens."""


def curve(stored: StoredRun) -> Iterator[str]:
    """Epochs count from 1, losses are finite, perplexities their exponentials, and BLEU is between 0 and 100."""
    record = stored.trained
    epochs = [line.epoch for line in record.curve]
    if epochs != list(range(1, len(epochs) + 1)):
        yield f"epochs {first_few(epochs, 9)}: expected 1 to {len(epochs)}"
    smoothed = record.spec.training.label_smoothing > 0
    for line in record.curve:
        if record.status != "diverged" or line is not record.curve[-1]:
            for name in (*CURVE, "largest_gradient_norm"):
                value = getattr(line, name)
                if value is None or value < 0:
                    yield f"epoch {line.epoch}: {name}={value}, expected a number of at least 0"
        if line.validation_bleu is not None and not 0 <= line.validation_bleu <= 100 + ROUNDING:
            yield f"epoch {line.epoch}: validation_bleu={line.validation_bleu}, expected a number from 0 to 100"
        for split in ("validation",) if smoothed else ("training", "validation"):
            loss, recorded = getattr(line, f"{split}_loss"), getattr(line, f"{split}_perplexity")
            yield from _unequal_perplexity(f"epoch {line.epoch}: {split}", loss, recorded)


def _unequal_perplexity(prefix: str, loss: float | None, recorded: float | None) -> Iterator[str]:
    if loss is not None and recorded is not None:
        yield from unequal(f"{prefix}_perplexity", recorded, perplexity(loss, 1), "exp of the loss")


def updates(stored: StoredRun) -> Iterator[str]:
    """The number of updates follows from training pairs, batch size, epochs, the limit and early stopping."""
    record, spec = stored.trained, stored.trained.spec
    skip_unless(record.sizes.get("train_pairs"), NO_EPOCH)
    per_epoch = updates_per_epoch(record)
    recorded = record.sizes.get("updates_per_epoch", per_epoch)
    yield from unequal("sizes.updates_per_epoch", recorded, per_epoch, "its settings")
    total = min(spec.training.epochs * per_epoch, spec.updates or math.inf)
    for number, line in enumerate(record.curve, start=1):
        yield from unequal(f"epoch {line.epoch}: updates", line.updates, min(number * per_epoch, total), "its settings")
    epochs, planned = len(record.curve), math.ceil(total / per_epoch)
    stop = stopping_epoch([line.validation_loss for line in record.curve], spec.training.patience)
    expected = planned if stop is None else min(stop, planned)
    if epochs > expected or (record.status == "completed" and epochs < expected):
        yield f"{count(epochs, 'epoch')}, expected {expected} (its settings)"
    stopped = expected if expected < planned and record.status == "completed" else None
    yield from unequal("stopped_epoch", record.stopped_epoch, stopped, "its curve and training.patience")


def tokens(stored: StoredRun) -> Iterator[str]:
    """Every complete epoch has the same number of target tokens, and an incomplete one fewer."""
    record = stored.trained
    skip_unless(record.sizes.get("train_pairs"), NO_EPOCH)
    per_epoch, first = updates_per_epoch(record), record.curve[0].tokens
    for number, line in enumerate(record.curve, start=1):
        complete = line.updates == number * per_epoch
        if line.tokens < 1 or (line.tokens != first if complete else line.tokens > first and number > 1):
            expected = f"{'' if complete else 'at most '}{first:,} (epoch 1)"
            yield f"epoch {line.epoch}: {line.tokens:,} target tokens, expected {expected}"


def rates(stored: StoredRun) -> Iterator[str]:
    """The learning rate of each epoch is that of the schedule at its last update."""
    record = stored.trained
    for line in record.curve:
        expected = learning_rate(record.spec.training, max(1, line.updates))
        yield from unequal(f"epoch {line.epoch}: learning_rate", line.learning_rate, expected, "its schedule")


def kept(stored: StoredRun) -> Iterator[str]:
    """The kept epoch has the lowest validation loss, or the last epochs are averaged."""
    record = stored.completed
    losses = [math.inf if line.validation_loss is None else line.validation_loss for line in stored.trained.curve]
    epochs, averaged = range(1, len(losses) + 1), record.spec.training.averaged_epochs
    expected = tuple(epochs[-averaged:]) if averaged else (1 + losses.index(min(losses)),)
    source = f"the last {averaged} epochs" if averaged else "the lowest validation loss"
    yield from unequal("chosen_epochs", list(record.chosen_epochs), list(expected), source)


def losses(stored: StoredRun) -> Iterator[str]:
    """Test loss and perplexity are present, and one is the exponential of the other."""
    scores = stored.completed.scores
    for name in PERPLEXITIES:
        value, least = scores.get(name), 0 if name == "test_loss" else 1
        if value is None or value < least:
            yield f"{name}={value}, expected a number of at least {least}"
    yield from _unequal_perplexity("test", scores.get("test_loss"), scores.get("test_perplexity"))


def bleu(stored: StoredRun) -> Iterator[str]:
    """Every score is present and between 0 and 100, and cumulative BLEU-1 to 4 follow from the individual ones.

    Cumulative BLEU-N is the geometric mean of the individual ones up to N, because the brevity penalty is a factor of
    each; cumulative BLEU-4 is `bleu_tutorial`.
    """
    scores = stored.completed.scores
    for name in (*SCORES, *(name for name in OPTIONAL if name in scores)):
        value, most = scores.get(name), 1 if name == "brevity_penalty" else 100
        if value is None or not 0 <= value <= most + ROUNDING:
            yield f"{name}={value}, expected a number from 0 to {most}"
    for name in sorted(scores.keys() - {*SCORES, *OPTIONAL, *PERPLEXITIES}):
        yield f"{name} is not a score of this version"
    if "brevity_penalty" not in scores:
        yield "brevity_penalty is missing"
    individual = [scores.get(f"bleu_{order}_individual") or 0.0 for order in ORDERS]
    for order in ORDERS:
        mean = math.prod(max(0.0, score) for score in individual[:order]) ** (1 / order)
        name = f"bleu_{order}_cumulative"
        yield from unequal(name, scores.get(name) or 0.0, mean, "the geometric mean of the individual scores")
    yield from unequal(
        "bleu_tutorial", scores.get("bleu_tutorial"), scores.get("bleu_4_cumulative"), "bleu_4_cumulative"
    )


def signatures(stored: StoredRun) -> Iterator[str]:
    """Every BLEU and chrF has the signature of its settings."""
    record = stored.completed
    scored = record.scores.keys() - set(PERPLEXITIES)
    yield from (f"{name} has no signature" for name in sorted(scored - record.signatures.keys()))
    yield from (f"signature of {name}, which is not a score" for name in sorted(record.signatures.keys() - scored))
    for name, signature in sorted(record.signatures.items()):
        items = signature.split("|")
        missing = [item for item in _signature_items(record, name) if item not in items]
        if missing:
            yield f"signature of {name}: {signature}, expected {', '.join(missing)} in it"


def _signature_items(record: RunRecord, name: str) -> list[str]:
    """Return the items that the signature of a score must have."""
    items = ["nrefs:1", f"unk:{record.spec.decoding.unknown}"]
    version = (record.environment.get("versions") or {}).get("sacrebleu")
    if version:
        items.append(f"version:{version}")
    if name in ("bleu_sacre", "brevity_penalty", "chrf"):
        items.append("case:lc" if record.spec.data.case == "lower" else "case:mixed")
    if name in ("bleu_sacre", "brevity_penalty"):
        items.append(f"tok:{sacre_tokenizer(record.spec.data.target_language)}")
    order, _, kind = name.removeprefix("bleu_").partition("_")
    if name in BLEU_ORDERS:
        return [*items, *COUNTED_IN["bleu_tutorial"], f"orders:{'1-' * (kind == 'cumulative')}{order}"]
    return items + list(COUNTED_IN.get(name, ()))


def decoding(stored: StoredRun) -> Iterator[str]:
    """Ties, unfinished translations and unknown tokens are counted."""
    record = stored.completed
    for name in ("ties", "unfinished", "unknown_tokens"):
        if record.decode.get(name, -1) < 0:
            yield f"{name}={record.decode.get(name)}, expected a number of at least 0"
