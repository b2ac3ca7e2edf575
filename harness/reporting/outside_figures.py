"""Scores that others have published for Multi30k, as context for a leaderboard; no test compares them with a run."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.leaderboard import TableAnalysis
from harness.reporting.document import Block, Disclosure, Table, Text

FLICKR_2016, FLICKR_2017, MSCOCO_2017 = "test_2016_flickr", "test_2017_flickr", "test_2017_mscoco"
TUTORIAL, LOWER_CASED = "words, lower-cased (tutorial BLEU)", "tokenised, lower-cased (tokenised BLEU)"
SACREBLEU = "sacreBLEU, cased; signature not stated"
OTHER_DATA = "trained on much more data than Multi30k"

FIGURES = {
    "de-en": (
        ("the tutorial's Transformer", {FLICKR_2016: "35.1 to 36.5"}, TUTORIAL, "bentrevett/pytorch-seq2seq"),
        (
            "Transformer, joint BPE, beam 4",
            {FLICKR_2016: "41.0"},
            "own BLEU, lower-cased, punctuation split",
            "ALZ-111/paper-to-pytorch",
        ),
        (
            f"best OPUS-MT model; {OTHER_DATA}",
            {FLICKR_2016: "40.5", FLICKR_2017: "41.5", MSCOCO_2017: "33.9"},
            SACREBLEU,
            "Helsinki-NLP/OPUS-MT-leaderboard",
        ),
        (
            f"best other model (NLLB, WMT19); {OTHER_DATA}",
            {FLICKR_2016: "43.9", FLICKR_2017: "45.4", MSCOCO_2017: "37.0"},
            SACREBLEU,
            "Helsinki-NLP/External-MT-leaderboard",
        ),
    ),
    "en-de": (
        ("Transformer, text only", {FLICKR_2016: "41.02"}, LOWER_CASED, "Wu et al. 2021, LividWo/Revisit-MMT"),
        (
            "trained with images, none at test",
            {FLICKR_2016: "42.50", FLICKR_2017: "36.04", MSCOCO_2017: "31.95"},
            LOWER_CASED,
            "Bridging the Gap, EMNLP 2023",
        ),
        (
            f"best OPUS-MT model; {OTHER_DATA}",
            {FLICKR_2016: "36.3", FLICKR_2017: "35.8", MSCOCO_2017: "30.6"},
            SACREBLEU,
            "Helsinki-NLP/OPUS-MT-leaderboard",
        ),
        (
            f"best other model; {OTHER_DATA}",
            {FLICKR_2016: "39.7", FLICKR_2017: "39.5", MSCOCO_2017: "34.2"},
            SACREBLEU,
            "Helsinki-NLP/External-MT-leaderboard",
        ),
    ),
}
"""By direction: a system, its BLEU from 0 to 100 on each test set, the kind of BLEU, and where it was published.

Scores of different kinds differ by several points.
"""


def blocks(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the published scores for the directions and test sets of these tables, if there are any."""
    specs = [judged.table.records[0].spec.data for judged in tables]
    shown = dict.fromkeys((data.direction, data.test_split) for data in specs if data.corpus == "multi30k")
    rows = [
        (system, scores[test_set], f"{direction}, {test_set}", kind, source)
        for direction, test_set in shown
        for system, scores, kind, source in FIGURES.get(direction, ())
        if test_set in scores
    ]
    if not rows:
        return []
    note = (
        "Scores as their sources give them. Compare each only with a column of the same kind of BLEU; none of them "
        "takes part in a test."
    )
    heads = ("system", "BLEU", "test set", "kind of BLEU", "source")
    return [Disclosure("Scores published elsewhere", (Text(note, "aside"), Table("prppp", heads, tuple(rows))))]
