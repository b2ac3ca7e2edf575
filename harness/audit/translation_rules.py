"""Rules about the text of translations, and the tutorials' perplexity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from harness.audit.metric_rules import PERPLEXITIES, is_current
from harness.audit.record_rules import ROUNDING, equal
from harness.audit.run_folder import Skipped, StoredRun
from harness.evaluation.metrics import perplexity_from_sums
from impls.contract import SPECIAL_TOKENS, UNK

BATCH = 128
"""The sentences of an evaluation batch, which the tutorials' perplexity is a mean over."""

OTHER_ORDER = 0.03
"""How far the tutorials' perplexity, as a share, may be from the one of batches sorted by target length alone.

The real order depends on the source too, and needs the corpus; on Multi30k the two differ by up to 0.008.
"""

OTHER_MACHINE = 1e-4
"""The same where the losses of the sentences were computed by a later evaluation, perhaps on another machine."""

LONGEST = 60


def text(stored: StoredRun) -> Iterator[str]:
    """The text of each translation is that of its detokenised tokens."""
    from harness.data import text_files
    from harness.data.tokenizers import UNKNOWN_TEXT, tokenizer

    data = stored.completed.spec.data
    try:
        hypotheses = stored.hypotheses
    except (ValueError, OSError) as error:
        raise Skipped("the translations cannot be read") from error
    for one in hypotheses:
        for words in (one.text, " ".join(one.tokens)):
            text_files.check_words(words, f"sentence {one.sentence}")
    tool = tokenizer(data.tokenizer, data.target_language, case=data.case)
    try:
        texts = [tool.detokenise(one.tokens) for one in hypotheses]
    except ValueError as error:
        raise Skipped(str(error)) from error
    # Before version 2 of records, `<unk>` stood in the text as it is.
    old = not is_current(stored)
    shown = [one.text.replace(SPECIAL_TOKENS[UNK], UNKNOWN_TEXT) if old else one.text for one in hypotheses]
    wrong = [(one, made) for one, made, own in zip(hypotheses, texts, shown, strict=True) if own != made]
    if wrong:
        one, made = wrong[0]
        yield (
            f"{len(wrong)} of {len(texts)} translations have a text that is not that of their tokens: sentence "
            f"{one.sentence} is {one.text[:LONGEST]!r}, its tokens make {made[:LONGEST]!r}"
        )


def tutorial_perplexity(stored: StoredRun) -> Iterator[str]:
    """The tutorials' perplexity fits the losses of the sentences: exactly with one batch, otherwise closely."""
    found = stored.whole.sentences
    order = np.argsort(found["tokens"], kind="stable")
    made = batch_mean_perplexity(found, [order[start : start + BATCH] for start in range(0, len(order), BATCH)])
    yield from _compared(stored, made, later(stored) if len(order) <= BATCH else OTHER_ORDER)


def exact_tutorial_perplexity(stored: StoredRun) -> Iterator[str]:
    """The tutorials' perplexity follows exactly from the losses of the sentences in the batches of the corpus."""
    from harness.audit.recompute_rules import prepared_of
    from harness.data.batches import evaluation_batches

    found, prepared = stored.whole.sentences, prepared_of(stored)
    if len(prepared.test) != len(found["nats"]):
        raise Skipped("the test set here is another")
    rows = [rows for _, rows in evaluation_batches(prepared.test, BATCH)]
    yield from _compared(stored, batch_mean_perplexity(found, rows), later(stored))


def later(stored: StoredRun) -> float:
    """Return the relative tolerance for perplexities: wider if the sentences were evaluated later."""
    found, recorded = stored.sentences, stored.completed.scores.get("test_perplexity")
    exact = equal(float(perplexity_from_sums(found["nats"].sum(), found["tokens"].sum())), recorded)
    return ROUNDING if exact else OTHER_MACHINE


def batch_mean_perplexity(found: dict[str, Any], batches: list[Any]) -> float:
    """Return exp of the mean over batches of each batch's nats per target word."""
    means = [float(found["nats"][rows].sum() / max(1, found["tokens"][rows].sum())) for rows in batches]
    return math.exp(math.fsum(means) / max(1, len(means)))


def _compared(stored: StoredRun, made: float, tolerance: float) -> Iterator[str]:
    name = PERPLEXITIES[-1]
    value = stored.completed.scores.get(name)
    if not math.isclose(value or 0.0, made, rel_tol=tolerance):
        about = "about " if tolerance == OTHER_ORDER else ""
        yield f"{name}={value}, its sentences make {about}{made}"
