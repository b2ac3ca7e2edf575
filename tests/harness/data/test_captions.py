"""The corpus `captions`: its words, grammar and translations."""

import hashlib
import re
from collections import Counter

import pytest

from harness.data import captions
from harness.data.captions import pairs

Splits = dict[str, list[tuple[str, str]]]
SHA256 = "a4ce70828901f157a415bb5b49330a16bdda79ce53cf8d028671083b584d6422"


@pytest.fixture(scope="module")
def corpus() -> Splits:
    return pairs()


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def test_pairs_have_the_recorded_digest(corpus: Splits) -> None:
    lines = "".join(f"{split}\t{german}\t{english}\n" for split in corpus for german, english in corpus[split])
    assert hashlib.sha256(lines.encode()).hexdigest() == SHA256


def test_pairs_depend_on_the_seed_and_have_the_given_sizes() -> None:
    first, repeated, different = (pairs(seed, training=200, validation=5, test=7) for seed in (1, 1, 2))
    assert first == repeated
    assert [len(first[split]) for split in ("train", "val", "test")] == [200, 5, 7]
    assert pairs(1, training=200, validation=3, test=4)["train"] == first["train"]
    assert len({german for german, _ in first["train"]} & {german for german, _ in different["train"]}) < 20


@pytest.mark.parametrize(("seed", "training"), [(0, 8000), (1, 8000), (2, 1000), (3, 150)])
def test_training_split_contains_every_other_word_twice(seed: int, training: int) -> None:
    splits = pairs(seed, training=training, validation=50, test=50)
    for side in (0, 1):
        for cut in (str.split, words_of):
            counts = Counter(word for pair in splits["train"] for word in cut(pair[side]))
            held_out = {word for split in ("val", "test") for pair in splits[split] for word in cut(pair[side])}
            assert min(counts[word] for word in held_out) >= 2


def test_german_sentences_have_one_translation_even_in_lower_case() -> None:
    writer = captions.Writer(7)
    translation: dict[str, str] = {}
    repeated = 0
    for _ in range(20_000):
        german, english = writer.sentence()
        repeated += german.lower() in translation
        assert translation.setdefault(german.lower(), english) == english
    assert repeated > 50


def test_pairs_with_too_small_a_training_split_are_refused() -> None:
    with pytest.raises(ValueError, match="training=4: too small to contain every word"):
        pairs(training=4, validation=1, test=1)


@pytest.mark.parametrize(
    ("german", "english"),
    [
        (r"Während .*, (hilft|macht|zieht) ", r"While .*, .* is "),
        (r"^[^,]*, während .* (anzieht|auszieht|aufsetzt|hinfällt)\.", r"^[^,]* while .* is (putting|taking|falling) "),
        (
            r"^(Am|Im|Auf|Bei|Nach|Hinter) [^,]* (wird|werden) [^,]* vo[nm] ",
            r"^(An?|The|Two|Several|Many) .* being .* by ",
        ),
        (r", (der|die|das) [^,]* trägt, [^,]* ein\.", r" who is (wearing|carrying) .* is falling asleep"),
        (r" in einen Park", r" into a park"),
        (r"^Im Park (schläft|schlafen) .*[^n]\.$", r" (is|are) sleeping in the park"),
        (r"^Eine (Frau|Tänzerin|Kellnerin) (?!.*\bund\b)[^,]* (sein|ihr)(en|e)? [^,]*\.$", r" her "),
        (r"^Zwei [^,]* (sein|ihr)(en|e)? [^,]*\.$", r" their "),
        (r"^(Der|Ein) [^,]* sein(en|e)? [^,]*\.$", r" his "),
        (r" versuch(t|en).*, .* aufzuheben\.$", r" (is|are) trying to pick up "),
    ],
)
def test_corpus_contains_the_pattern_and_its_translation(corpus: Splits, german: str, english: str) -> None:
    translations = [target for source, target in corpus["train"] if re.search(german, source)]
    assert len(translations) >= 2
    assert [target for target in translations if not re.search(english, target)] == []


def test_sentences_are_well_formed_and_none_occurs_twice(corpus: Splits) -> None:
    for side in (0, 1):
        assert len({pair[side].lower() for split in corpus.values() for pair in split}) == 9000
    sentence = re.compile(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)*\.")
    for german, english in (pair for split in corpus.values() for pair in split):
        assert sentence.fullmatch(german), german
        assert sentence.fullmatch(english), english
        assert 5 <= len(german.split()) <= 16, german
        assert 5 <= len(english.split()) <= 16, english
        assert not re.search(r"\ba [aeiou]|\ban [^aeiou]", english.lower()), english
        assert not re.search(r"\b(\w+) (is|are) (helping|waving to|listening to) (\w+ ){1,2}\1\b", english), english
        assert bool(re.search(r"\bsein", german)) == bool(re.search(r"\bhis\b", english)), german
        assert bool(re.search(r"\bihr", german)) == bool(re.search(r"\b(her|their)\b", english)), german
