"""The parts of the HTML page that come from run folders: translations, attention and learned positions.

A damaged file raises a `ValueError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.analysis.grouping import BUDGETS, RunTable, distinct, group_by, key_of_test_set
from harness.evaluation import metrics
from harness.experiments.specs import DataSpec
from harness.reporting.translation_explorer import ROOM_BYTES, TranslationColumn, explorer, packed
from harness.reporting.word_alignment import align
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import SENTENCE_CHARACTERS, first_few, short_line
from impls.contract import EOS, SPECIAL_TOKENS, TransformerRecipe


@dataclass(frozen=True)
class CorpusText:
    """The sentences of a test set; `source_tokens` are those that the models see, with `<sos>` and `<eos>`."""

    source: Sequence[str]
    reference: Sequence[str]
    source_tokens: Sequence[Sequence[str]] = ()


CorpusTexts = Mapping[DataSpec, CorpusText]
MOST_ATTENDED, MOST_POSITION_TABLES = 12, 4
"""The rows with attention and with position tables in a page, at most."""
MOST_SEEDS_NAMED = 10
"""The left-out seeds that a page names, at most."""
MOST_WEIGHTS = 200_000
"""The attention weights of a sentence in a page, at most; six layers and 40 words have 10,000."""


# Translations ---------------------------------------------------------------------------------------------------------


def translations(tables: Sequence[RunTable], stored: StoredFiles, texts: CorpusTexts) -> list[dict[str, Any]]:
    """Return the explorer of each test set that two runs with the same seed have stored translations of."""
    test_sets = group_by(tables, lambda table: key_of_test_set(table.records[0].spec.data))
    room_bytes = ROOM_BYTES // max(len(test_sets), 1)
    return list(filter(None, (_explorer(same, stored, texts, room_bytes) for same in test_sets.values())))


def _explorer(
    tables: Sequence[RunTable], stored: StoredFiles, texts: CorpusTexts, room_bytes: int
) -> dict[str, Any] | None:
    runs = _labelled(tables)
    data = tables[0].records[0].spec.data
    text = next((texts[record.spec.data] for _, record in runs if record.spec.data in texts), CorpusText((), ()))
    source, reference = (
        [short_line(line, longest=SENTENCE_CHARACTERS) for line in lines] for lines in (text.source, text.reference)
    )
    by_seed = dict(sorted(group_by(runs, lambda run: run[1].spec.seed).items()))
    columns = (_columns(same, stored, texts) for same in by_seed.values())
    content = explorer(filter(None, columns), source=source, reference=reference, room_bytes=room_bytes)
    if content is None:
        return None
    notes = []
    if not source:
        notes.append(
            "Only translations and sentence numbers: this page holds no text of the corpus. To see sources and "
            "references, make the page where the corpus is, without --without-corpus-text."
        )
    if content.seeds_left_out:
        left_out = [seed for seed in by_seed if seed > content.data["seeds"][-1]]
        notes.append(f"Left out for the size of this page: seeds {first_few(left_out, MOST_SEEDS_NAMED)}.")
    if content.sentences_left_out:
        notes.append(f"Left out for the size of this page: the last {content.sentences_left_out:,} sentences.")
    notes.append(
        "Disagreement is the mean over pairs of variants of the share of words that two translations do not have in "
        "common. Underlined words are only in the translation, struck-out words only in the text compared with."
    )
    languages = [data.source_language, data.target_language]
    present = {side["label"] for side in content.data["sides"]}
    return {
        "heading": f"{data.corpus} {data.direction}, {short_line(data.test_set)}",
        "notes": notes,
        "labels": [label for label in dict.fromkeys(label for label, _ in runs) if label in present],
        "examples": content.examples,
        "seeds": content.data["seeds"],
        "languages": languages,
        "has_reference": bool(content.data["reference"]),
        "attended": content.data["attended"],
        "is_scored": any(side["chrf"] for side in content.data["sides"]),
        "packed": packed({**content.data, "languages": languages, "case": data.case}),
    }


def _columns(runs: Sequence[tuple[str, RunRecord]], stored: StoredFiles, texts: CorpusTexts) -> list[TranslationColumn]:
    columns = []
    for label, record in runs:
        if hypotheses := stored.hypotheses(record):
            lines = {item.sentence: short_line(item.text, longest=SENTENCE_CHARACTERS) for item in hypotheses}
            aligned = _aligned(stored, record, hypotheses, texts.get(record.spec.data))
            sums = (stored.sentences(record) or {}).get("chrf")
            chrf = [] if sums is None else [round(float(score), 1) for score in metrics.score_from_sums("chrf", sums)]
            columns.append(TranslationColumn(label, record.spec.seed, lines, chrf, aligned))
    return columns


def _labelled(tables: Sequence[RunTable]) -> list[tuple[str, RunRecord]]:
    """Return every run with the label of its row; with its budget and a number where tables share variants."""
    rows = [(table, row) for table in tables for row in table.rows]
    variants = [variant for table in tables for variant in {row.variant for row in table.rows}]
    shared = len(set(variants)) < len(variants)
    labels = distinct([f"{row.label}, {BUDGETS[table.budget].lower()}" if shared else row.label for table, row in rows])
    return [(label, record) for label, (_, row) in zip(labels, rows, strict=True) for record in row.records]


def _aligned(
    stored: StoredFiles, record: RunRecord, hypotheses: Sequence[run_store.Hypothesis], text: CorpusText | None
) -> dict[int, list[int]]:
    """Return the alignment of each sentence with stored attention; without the source it has no words."""
    maps = stored.attention(record)
    return {
        item.sentence: align(
            maps[item.sentence],
            text.source[item.sentence],
            text.source_tokens[item.sentence],
            item.text,
            item.tokens,
        )
        if text and item.sentence < min(len(text.source), len(text.source_tokens))
        else []
        for item in hypotheses
        if item.sentence in maps
    }


# Positions and attention ----------------------------------------------------------------------------------------------


def learned_positions(tables: Sequence[RunTable], stored: StoredFiles) -> list[tuple[str, Any]]:
    """Return the encoder's stored position tables [P,D] by label, for the first completed run of the first rows."""
    positions: list[tuple[str, Any]] = []
    for label, record in _first_completed(tables):
        if len(positions) == MOST_POSITION_TABLES:
            break
        recipe = record.spec.recipe
        is_learned = isinstance(recipe, TransformerRecipe) and recipe.positions == "learned"
        if is_learned and run_store.has(stored.results, record.id, run_store.WEIGHTS):
            weights = run_store.load_weights(stored.results, record.id, record.fingerprints.get("trained_weights"))
            table = weights.get("source.positions", np.empty(0))
            if table.ndim == 2 and max(table.shape) <= run_store.MAP_POSITIONS:
                positions.append((label, table))
    return positions


def _first_completed(tables: Sequence[RunTable]) -> list[tuple[str, RunRecord]]:
    first: dict[str, RunRecord] = {}
    for label, record in _labelled(tables):
        if record.status == "completed":
            first.setdefault(label, record)
    return [(f"{label}, seed {record.spec.seed}", record) for label, record in first.items()]


def attention(tables: Sequence[RunTable], stored: StoredFiles, texts: CorpusTexts) -> dict[str, Any] | None:
    """Return the stored attention of each row's first completed run; None if no run has any.

    Without the text of the corpus, source words are numbers from 1.
    """
    data: list[dict[str, Any]] = []
    numbered, runs = False, _first_completed(tables)
    for label, record in runs:
        if len(data) == MOST_ATTENDED:
            break
        maps = stored.attention(record)
        maps = {sentence: weights for sentence, weights in maps.items() if weights.size <= MOST_WEIGHTS}
        if maps:
            text = texts.get(record.spec.data)
            data.append({"label": label, "sentences": _attended(record, maps, stored, text)})
            numbered = numbered or text is None
    if not data:
        return None
    first = data[0]["sentences"][0]
    width, heads = len(first["source"]), first["layers"][0]
    digits = [[int(head[start : start + 2]) for start in range(0, len(head), 2)] for head in heads]
    shares = [round(sum(column) / len(heads)) for column in zip(*digits, strict=True)]
    caption = f"{data[0]['label']}, sentence {first['number']}, layer 1, mean of heads: weight in percent"
    lines = [(word, shares[row * width : (row + 1) * width]) for row, word in enumerate(first["target"])]
    table = {"caption": caption, "source": first["source"], "lines": lines}
    notes = ["Source words are shown by their place in the sentence: this page holds no text of the corpus."] * numbered
    if len(runs) > len(data) == MOST_ATTENDED:
        notes.append(f"The first {MOST_ATTENDED} rows only.")
    return {"notes": notes, "packed": packed(data), "first": table}


def _attended(
    record: RunRecord, maps: Mapping[int, Any], stored: StoredFiles, text: CorpusText | None
) -> list[dict[str, Any]]:
    """Return the sentences of a run with their weights: per layer and head two digits of percent per pair of words."""
    hypotheses = {item.sentence: item.tokens for item in stored.hypotheses(record)}
    sentences = []
    for number, weights in sorted(maps.items()):
        rows, columns = weights.shape[2:]
        source = text.source_tokens[number] if text and number < len(text.source_tokens) else ()
        percent = np.clip(np.rint(100 * np.asarray(weights, np.float64)), 0, 99).astype(int)
        sentences.append(
            {
                "number": number,
                "source": _words(source, columns),
                "target": _words([*hypotheses.get(number, ()), SPECIAL_TOKENS[EOS]], rows),
                "layers": [["".join(f"{share:02d}" for share in head.ravel()) for head in layer] for layer in percent],
            }
        )
    return sentences


def _words(words: Sequence[str], count: int) -> list[str]:
    if len(words) != count:
        return [str(number) for number in range(1, count + 1)]
    return [short_line(word, longest=24) for word in words]
