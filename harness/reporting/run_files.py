"""What the HTML page shows of run folders beside their records: translations, attention, learned positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.analysis.grouping import BUDGETS, RunTable
from harness.analysis.leaderboard import distinct
from harness.evaluation import metrics
from harness.experiments.serialization import canonical_json, to_json
from harness.experiments.specs import DataSpec
from harness.reporting.translation_explorer import Example, TranslationColumn, explorer
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import SENTENCE_CHARACTERS, short_line
from impls.contract import EOS, SPECIAL_TOKENS, TransformerRecipe


@dataclass(frozen=True)
class CorpusText:
    """A test set as text, sentence by sentence: the source, the reference, and the source as the models' tokens.

    The tokens are those of the ids that the models see, `<sos>` and `<eos>` included.
    """

    source: Sequence[str]
    reference: Sequence[str]
    source_tokens: Sequence[Sequence[str]] = ()


CorpusTexts = Mapping[DataSpec, CorpusText]


@dataclass(frozen=True)
class Translations:
    """The explorer of one test set as the page shows it."""

    heading: str
    notes: list[str]
    labels: list[str]
    data: dict[str, Any]
    examples: list[Example] = field(default_factory=list)


def translations(
    found: Sequence[RunTable], results: Path, texts: CorpusTexts, *, room_bytes: int
) -> list[Translations]:
    """Return an explorer for each test set on which two runs or more with the same seed have stored translations.

    Raises: ValueError naming a damaged file.
    """
    sets: dict[str, list[RunTable]] = {}
    for group in found:
        sets.setdefault(_test_set(group.records[0].spec.data), []).append(group)
    made = []
    for groups in sets.values():
        one = _translations(groups, results, texts, room_bytes=room_bytes // len(sets))
        made += [one] if one else []
    return made


def _test_set(data: DataSpec) -> str:
    files = to_json(data.files) if data.files else None
    seed = data.seed if data.corpus == "captions" else None
    return canonical_json([data.corpus, data.direction, data.test_split, files, seed])


def _translations(
    groups: Sequence[RunTable], results: Path, texts: CorpusTexts, *, room_bytes: int
) -> Translations | None:
    named = _named(groups)
    sides = [
        TranslationColumn(
            label,
            record.spec.seed,
            {one.sentence: short_line(one.text, longest=SENTENCE_CHARACTERS) for one in loaded},
            _sentence_chrf(results, record),
        )
        for label, record in named
        if (loaded := _hypotheses(results, record))
    ]
    data = groups[0].records[0].spec.data
    text = next((texts[record.spec.data] for _, record in named if record.spec.data in texts), CorpusText((), ()))
    source, reference = (
        [short_line(line, longest=SENTENCE_CHARACTERS) for line in lines] for lines in (text.source, text.reference)
    )
    found = explorer(sides, source=source, reference=reference, case=data.case, room_bytes=room_bytes)
    if found is None:
        return None
    notes = []
    if not source:
        notes.append(
            "Translations and sentence numbers alone: this page holds no text of the corpus. Made where the corpus is, "
            "without --without-corpus-text, it shows source and reference too."
        )
    if found.seeds_left_out:
        notes.append(f"Left out for the size of this page: seeds {', '.join(map(str, found.seeds_left_out))}.")
    if found.sentences_left_out:
        notes.append(f"Left out for the size of this page: the last {found.sentences_left_out:,} sentences.")
    return Translations(
        heading=f"{data.corpus} {data.direction}, {data.test_split}",
        notes=notes,
        labels=list(dict.fromkeys(one.label for one in found.sides)),
        data={**found.data, "languages": [data.source_language, data.target_language], "case": data.case},
        examples=found.examples,
    )


def _named(groups: Sequence[RunTable]) -> list[tuple[str, RunRecord]]:
    """Return every run with a label that no other row has: where groups share one, with the budget and what differs."""
    several = len({row.label for group in groups for row in group.rows}) < sum(len(group.rows) for group in groups)
    pairs = [
        (f"{row.label}, {BUDGETS[group.budget].lower()}" if several else row.label, row)
        for group in groups
        for row in group.rows
    ]
    labels = distinct([label for label, _ in pairs])
    return [(label, record) for label, (_, row) in zip(labels, pairs, strict=True) for record in row.records]


def _hypotheses(results: Path, record: RunRecord) -> list[run_store.Hypothesis]:
    if not (run_store.run_folder(results, record.id) / run_store.HYPOTHESES).is_file():
        return []
    return run_store.load_hypotheses(results, record.id, record.fingerprints.get("hypotheses"))


def _sentence_chrf(results: Path, record: RunRecord) -> list[float]:
    """Return the chrF of each test sentence; empty where its statistics are not stored."""
    if not run_store.has_sentences(results, record.id):
        return []
    sums = run_store.load_sentences(results, record.id, record.fingerprints.get("sentences")).get("chrf")
    return [] if sums is None else [round(float(score), 1) for score in metrics.score_from_sums("chrf", sums)]


# Positions ------------------------------------------------------------------------------------------------------------


def learned_positions(found: Sequence[RunTable], results: Path) -> list[tuple[str, Any]]:
    """Return the position table [P,D] of the encoder of each row that learns one and whose weights are stored.

    Of several seeds the first that completed is taken. Raises: ValueError naming a damaged file.
    """
    made = []
    for label, record in _first_completed(found):
        recipe = record.spec.recipe
        learns = isinstance(recipe, TransformerRecipe) and recipe.positions == "learned"
        if learns and (run_store.run_folder(results, record.id) / f"{run_store.WEIGHTS}.json").is_file():
            digest = record.fingerprints.get("trained_weights")
            table = run_store.load_weights(results, record.id, digest).get("source.positions")
            made += [(label, table)] if table is not None else []
    return made


def _first_completed(found: Sequence[RunTable]) -> list[tuple[str, RunRecord]]:
    """Return the first run of each row that completed, with its seed in its label."""
    first: dict[str, RunRecord] = {}
    for label, record in _named(found):
        if record.status == "completed":
            first.setdefault(label, record)
    return [(f"{label}, seed {record.spec.seed}", record) for label, record in first.items()]


# Attention ------------------------------------------------------------------------------------------------------------


def attention(found: Sequence[RunTable], results: Path, texts: CorpusTexts) -> dict[str, Any] | None:
    """Return the stored attention of every row's first completed run, or None where no run has any.

    Where the text of the corpus may not be shown, source words are their places, from 1.

    Raises: ValueError naming a damaged file.
    """
    data: list[dict[str, Any]] = []
    hidden = False
    for label, record in _first_completed(found):
        maps = run_store.load_attention(results, record.id, record.fingerprints.get("attention"))
        if maps:
            text = texts.get(record.spec.data)
            data.append({"label": label, "sentences": _attended(record, maps, results, text)})
            hidden = hidden or text is None
    if not data:
        return None
    first = data[0]["sentences"][0]
    across, digits = len(first["source"]), first["layers"][0]
    shares = [int(digits[at : at + 2]) for at in range(0, len(digits), 2)]
    caption = f"{data[0]['label']}, sentence {first['number']}, layer 1: weight in percent"
    lines = [(word, shares[row * across : (row + 1) * across]) for row, word in enumerate(first["target"])]
    notes = ["Source words are shown by their place in the sentence: this page holds no text of the corpus."] * hidden
    return {"notes": notes, "data": data, "first": {"caption": caption, "source": first["source"], "lines": lines}}


def _attended(
    record: RunRecord, maps: Mapping[int, Any], results: Path, text: CorpusText | None
) -> list[dict[str, Any]]:
    spoken = {one.sentence: one.tokens for one in _hypotheses(results, record)}
    sentences = []
    for number, weights in sorted(maps.items()):
        _, rows_, across = weights.shape
        own = text.source_tokens[number] if text and number < len(text.source_tokens) else ()
        words = [*spoken.get(number, ()), SPECIAL_TOKENS[EOS]]
        sentences.append(
            {
                "number": number,
                "source": _fitted([short_line(word, longest=24) for word in own], across),
                "target": _fitted([short_line(word, longest=24) for word in words], rows_),
                "layers": ["".join(f"{share:02d}" for share in layer.ravel()) for layer in _percent(weights)],
            }
        )
    return sentences


def _fitted(words: Sequence[str], count: int) -> list[str]:
    """Return the words where there are as many as are wanted, else numbers from 1."""
    return list(words) if len(words) == count else [str(place) for place in range(1, count + 1)]


def _percent(weights: Any) -> Any:
    """Return weights as whole percents of two digits, so 99 at most."""
    return np.clip(np.rint(100 * np.asarray(weights, np.float64)), 0, 99).astype(int)
