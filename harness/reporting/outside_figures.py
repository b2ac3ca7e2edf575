"""Scores that others have published for Multi30k, as context for a leaderboard; no test compares them with a run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.leaderboard import TableAnalysis
from harness.reporting.document import Block, Disclosure, Table, Text

TEST_SETS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
TUTORIAL, LOWER_CASED = "words, lower-cased (tutorial BLEU)", "tokenised, lower-cased (tokenised BLEU)"
OWN, SACREBLEU = "own BLEU, lower-cased, punctuation split", "sacreBLEU, cased; signature not stated"
OTHER_DATA = "trained on much more data than Multi30k"
OPUS, EXTERNAL = "Helsinki-NLP/OPUS-MT-leaderboard", "Helsinki-NLP/External-MT-leaderboard"

FIGURES = {
    "de-en": (
        ("the tutorial's Transformer", ("35.1 to 36.5",), TUTORIAL, "bentrevett/pytorch-seq2seq"),
        ("Transformer, joint BPE, beam 4", ("41.0",), OWN, "ALZ-111/paper-to-pytorch"),
        (f"best OPUS-MT model; {OTHER_DATA}", ("40.5", "41.5", "33.9"), SACREBLEU, OPUS),
        (f"best other model (NLLB, WMT19); {OTHER_DATA}", ("43.9", "45.4", "37.0"), SACREBLEU, EXTERNAL),
    ),
    "en-de": (
        ("Transformer, text only", ("41.02",), LOWER_CASED, "Wu et al. 2021, LividWo/Revisit-MMT"),
        ("trained with images, none at test", ("42.50", "36.04", "31.95"), LOWER_CASED, "Bridging the Gap, EMNLP 2023"),
        (f"best OPUS-MT model; {OTHER_DATA}", ("36.3", "35.8", "30.6"), SACREBLEU, OPUS),
        (f"best other model; {OTHER_DATA}", ("39.7", "39.5", "34.2"), SACREBLEU, EXTERNAL),
    ),
}
"""By direction: a system, its BLEU from 0 to 100 on the first of `TEST_SETS`, the kind of BLEU, and its publication.

Scores of different kinds differ by several points.
"""


def blocks(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the published scores for the directions and test sets of these tables, if there are any."""
    specs = [judged.table.records[0].spec.data for judged in tables]
    shown = dict.fromkeys((data.direction, data.test_split) for data in specs if data.corpus == "multi30k")
    rows = [
        (system, score, f"{direction}, {test_set}", kind, source)
        for direction, test_set in shown
        for system, scores, kind, source in FIGURES.get(direction, ())
        for name, score in zip(TEST_SETS, scores, strict=False)
        if name == test_set
    ]
    if not rows:
        return []
    note = (
        "Scores as their sources give them. Compare each only with a column of the same kind of BLEU; none of them "
        "takes part in a test."
    )
    heads = ("system", "BLEU", "test set", "kind of BLEU", "source")
    return [Disclosure("Scores published elsewhere", (Text(note, "aside"), Table("prppp", heads, tuple(rows))))]
