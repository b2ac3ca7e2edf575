"""The corpus `captions`: its vocabulary, grammar, translations and difficulty."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
import sacrebleu

from harness.data import captions
from harness.data import captions_lexicon as lexicon
from harness.data.captions import CaptionSubject, Clause, noun_phrase, pairs
from harness.data.captions_lexicon import Article, Case, Number, Phrase

Splits = dict[str, list[tuple[str, str]]]
NOUN = {noun.singular: noun for noun in lexicon.NOUNS}
SHA256 = "a4ce70828901f157a415bb5b49330a16bdda79ce53cf8d028671083b584d6422"


@pytest.fixture(scope="module")
def corpus() -> Splits:
    return pairs()


def words_of(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text.lower())


def bleu(hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    texts = [[" ".join(words) for words in side] for side in (hypotheses, references)]
    return sacrebleu.corpus_bleu(texts[0], [texts[1]], tokenize="none", force=True).score


# Splits


def test_pairs_have_the_default_sizes(corpus: Splits) -> None:
    assert {split: len(sentences) for split, sentences in corpus.items()} == {"train": 8000, "val": 500, "test": 500}


def test_pairs_have_the_given_sizes() -> None:
    small = pairs(3, training=300, validation=7, test=11)
    assert [len(small[split]) for split in ("train", "val", "test")] == [300, 7, 11]


def test_pairs_have_the_recorded_digest(corpus: Splits) -> None:
    lines = "".join(f"{split}\t{german}\t{english}\n" for split in corpus for german, english in corpus[split])
    assert hashlib.sha256(lines.encode()).hexdigest() == SHA256


def test_pairs_depend_on_the_seed() -> None:
    first, repeated, different = (pairs(seed, training=200, validation=5, test=5) for seed in (1, 1, 2))
    assert first == repeated
    assert len({german for german, _ in first["train"]} & {german for german, _ in different["train"]}) < 20


def test_training_split_is_independent_of_the_other_sizes(corpus: Splits) -> None:
    assert pairs(validation=3, test=4)["train"] == corpus["train"]


@pytest.mark.parametrize("side", [0, 1], ids=["german", "english"])
def test_no_sentence_occurs_twice(corpus: Splits, side: int) -> None:
    sentences = [pair[side].lower() for split in corpus.values() for pair in split]
    assert len(set(sentences)) == len(sentences) == 9000


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


# Grammar


@pytest.mark.parametrize(
    ("noun", "article", "case", "number", "adjective", "german", "english"),
    [
        ("Hund", "indefinite", "nominative", "singular", ("groß", "big"), "ein großer Hund", "a big dog"),
        ("Hund", "indefinite", "accusative", "singular", ("groß", "big"), "einen großen Hund", "a big dog"),
        ("Hund", "indefinite", "dative", "singular", ("groß", "big"), "einem großen Hund", "a big dog"),
        ("Katze", "indefinite", "nominative", "singular", ("alt", "old"), "eine alte Katze", "an old cat"),
        ("Katze", "indefinite", "accusative", "singular", ("alt", "old"), "eine alte Katze", "an old cat"),
        ("Katze", "indefinite", "dative", "singular", ("alt", "old"), "einer alten Katze", "an old cat"),
        ("Hemd", "indefinite", "nominative", "singular", ("rot", "red"), "ein rotes Hemd", "a red shirt"),
        ("Hemd", "indefinite", "accusative", "singular", ("rot", "red"), "ein rotes Hemd", "a red shirt"),
        ("Hemd", "indefinite", "dative", "singular", ("rot", "red"), "einem roten Hemd", "a red shirt"),
        ("Hund", "definite", "nominative", "singular", ("nass", "wet"), "der nasse Hund", "the wet dog"),
        ("Hund", "definite", "accusative", "singular", ("nass", "wet"), "den nassen Hund", "the wet dog"),
        ("Hund", "definite", "dative", "singular", ("nass", "wet"), "dem nassen Hund", "the wet dog"),
        ("Frau", "definite", "nominative", "singular", ("jung", "young"), "die junge Frau", "the young woman"),
        ("Frau", "definite", "dative", "singular", ("jung", "young"), "der jungen Frau", "the young woman"),
        ("Kind", "definite", "accusative", "singular", ("müd", "tired"), "das müde Kind", "the tired child"),
        ("Kind", "definite", "dative", "singular", ("müd", "tired"), "dem müden Kind", "the tired child"),
        ("Mann", "definite", "nominative", "plural", ("alt", "old"), "die alten Männer", "the old men"),
        ("Mann", "definite", "dative", "plural", ("alt", "old"), "den alten Männern", "the old men"),
        ("Auto", "two", "nominative", "plural", ("neu", "new"), "zwei neue Autos", "two new cars"),
        ("Auto", "two", "dative", "plural", ("neu", "new"), "zwei neuen Autos", "two new cars"),
        ("Frau", "several", "accusative", "plural", ("alt", "old"), "mehrere alte Frauen", "several old women"),
        ("Eimer", "many", "dative", "plural", ("blau", "blue"), "vielen blauen Eimern", "many blue buckets"),
        ("Brief", "his", "accusative", "singular", ("alt", "old"), "seinen alten Brief", "his old letter"),
        ("Buch", "her", "accusative", "singular", ("alt", "old"), "ihr altes Buch", "her old book"),
        ("Buch", "their", "accusative", "plural", ("alt", "old"), "ihre alten Bücher", "their old books"),
        ("Katze", "their", "dative", "singular", None, "ihrer Katze", "their cat"),
        ("Junge", "indefinite", "nominative", "singular", None, "ein Junge", "a boy"),
        ("Junge", "definite", "accusative", "singular", None, "den Jungen", "the boy"),
        ("Junge", "definite", "dative", "plural", None, "den Jungen", "the boys"),
        ("Kaffee", "none", "accusative", "singular", ("heiß", "hot"), "heißen Kaffee", "hot coffee"),
        ("Milch", "none", "accusative", "singular", ("kalt", "cold"), "kalte Milch", "cold milk"),
        ("Wasser", "none", "dative", "singular", ("kalt", "cold"), "kaltem Wasser", "cold water"),
        ("Haar", "none", "dative", "plural", ("lang", "long"), "langen Haaren", "long hair"),
        ("Apfel", "indefinite", "nominative", "singular", None, "ein Apfel", "an apple"),
        ("Apfel", "indefinite", "nominative", "singular", ("süß", "sweet"), "ein süßer Apfel", "a sweet apple"),
    ],
)
def test_noun_phrase_is_declined_and_translated(
    noun: str,
    article: Article,
    case: Case,
    number: Number,
    adjective: tuple[str, str] | None,
    german: str,
    english: str,
) -> None:
    phrase = noun_phrase(NOUN[noun], article=article, case=case, number=number, adjective=adjective)
    assert phrase == (german, english)


@pytest.mark.parametrize(
    ("preposition", "noun", "article", "case", "german"),
    [
        ("in", lexicon.PARK, "definite", "dative", "im Park"),
        ("in", lexicon.PARK, "definite", "accusative", "in den Park"),
        ("in", lexicon.HOUSE, "definite", "accusative", "ins Haus"),
        ("in", lexicon.PARK, "indefinite", "dative", "in einem Park"),
        ("an", lexicon.PARK, "definite", "dative", "am Park"),
        ("von", NOUN["Hund"], "definite", "dative", "vom Hund"),
        ("von", NOUN["Frau"], "definite", "dative", "von der Frau"),
        ("hinter", lexicon.HOUSE, "definite", "dative", "hinter dem Haus"),
    ],
)
def test_prepositional_contracts_preposition_and_article(
    preposition: str, noun: lexicon.Noun, article: Article, case: Case, german: str
) -> None:
    assert captions.prepositional(preposition, "at", noun_phrase(noun, article=article, case=case)).german == german


@pytest.mark.parametrize(
    ("verb", "infinitive", "english"),
    [
        ("zieht ziehen an", "anzuziehen", "put on"),
        ("zieht ziehen aus", "auszuziehen", "take off"),
        ("zieht ziehen -", "zu ziehen", "pull"),
        ("macht machen zu", "zuzumachen", "close"),
    ],
)
def test_verb_has_its_infinitive_with_zu(verb: str, infinitive: str, english: str) -> None:
    (entry,) = (row for row in lexicon.VERBS if row.german.startswith(verb + " "))
    assert (entry.to_infinitive, entry.in_english("base")) == (infinitive, english)


def test_clause_has_the_word_order_of_its_language() -> None:
    evening, garden = Phrase("am Abend", "in the evening"), Phrase("im Garten", "in the garden")
    clause = Clause(
        subject=CaptionSubject(Phrase("eine Frau", "a woman"), "singular", "her", (NOUN["Frau"],)),
        finite="zieht",
        end="an",
        final="anzieht",
        predicate="is putting on a coat",
        late="einen Mantel",
        adverbials=(evening, garden),
    )
    assert captions.verb_second(clause) == "eine Frau zieht am Abend im Garten einen Mantel an"
    assert captions.verb_second(clause, garden) == "im Garten zieht eine Frau am Abend einen Mantel an"
    assert captions.verb_final(clause) == "eine Frau am Abend im Garten einen Mantel anzieht"
    assert captions.english_order(clause) == "a woman is putting on a coat in the garden in the evening"
    definite = clause._replace(early="den Mantel", late="")
    assert captions.verb_second(definite) == "eine Frau zieht den Mantel am Abend im Garten an"
    trying = clause._replace(finite="versucht", end="", final="versucht", late="", tail=", den Mantel anzuziehen,")
    assert captions.verb_second(trying, evening) == "am Abend versucht eine Frau im Garten, den Mantel anzuziehen,"


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


def test_sentences_are_well_formed(corpus: Splits) -> None:
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


def test_corpus_uses_the_complete_lexicon(corpus: Splits) -> None:
    words = {word for german, _ in corpus["train"] for word in re.findall(r"\w+", german)}
    forms = {noun.singular for noun in lexicon.NOUNS if noun.kind != "hair"}
    forms |= {noun.plural for noun in lexicon.NOUNS if noun.plural and noun.kind != "hair"}
    for verb in lexicon.VERBS:
        forms |= {verb.prefix + verb.finite("singular"), verb.finite("plural")}
        forms |= {verb.german.split()[3]} if "passive" in verb.uses else set()
    assert forms - words == set()
    phrases = " ".join(english for _, english in corpus["train"])
    assert [verb.english for verb in lexicon.VERBS if f" {verb.in_english('ing')}" not in phrases] == []


def test_vocabulary_is_small(corpus: Splits) -> None:
    german, english = (len({word for pair in corpus["train"] for word in words_of(pair[side])}) for side in (0, 1))
    assert 200 <= english <= 300
    assert 250 <= german <= 330


# Difficulty


def dictionary(sentences: list[tuple[list[str], list[str]]]) -> dict[str, str]:
    """Return the most probable English word of each German word, after five iterations of IBM model 1."""
    table: dict[str, dict[str, float]] = {}
    for _ in range(5):
        counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for german, english in sentences:
            for target in english:
                shares = [table[source][target] if table else 1.0 for source in german]
                total = sum(shares)
                for source, share in zip(german, shares, strict=True):
                    counts[source][target] += share / total
        table = {
            source: {word: count / sum(row.values()) for word, count in row.items()} for source, row in counts.items()
        }
    return {source: max(row, key=lambda word: row[word]) for source, row in table.items()}


def edits(first: list[str], second: list[str]) -> int:
    row = list(range(len(second) + 1))
    for i, word in enumerate(first, 1):
        diagonal, row[0] = row[0], i
        for j, second_word in enumerate(second, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != second_word))
    return row[-1]


def test_bleu_of_a_dictionary_is_below_40(corpus: Splits) -> None:
    best = dictionary([(words_of(german), words_of(english)) for german, english in corpus["train"][:2000]])
    answers = [[best.get(word, word) for word in words_of(german)] for german, _ in corpus["test"]]
    assert 10 < bleu(answers, [words_of(english) for _, english in corpus["test"]]) < 40
    assert (best["hund"], best["frau"], best["am"]) == ("dog", "woman", "the")


def test_bleu_of_the_nearest_training_sentence_is_below_60(corpus: Splits) -> None:
    train = [words_of(german) for german, _ in corpus["train"]]
    column = {word: index for index, word in enumerate(sorted({word for words in train for word in words}))}
    counts = np.zeros((len(train), len(column)), np.int8)
    for index, words in enumerate(train):
        np.add.at(counts[index], [column[word] for word in words], 1)
    lengths = counts.sum(axis=1)
    by_overlap, by_edits = [], []
    sample = corpus["test"][:100]
    for german, _ in sample:
        words = words_of(german)
        word_counts = np.bincount([column[word] for word in words], minlength=len(column)).astype(np.int8)
        overlap = np.minimum(counts, word_counts).sum(axis=1) / (lengths + len(words))
        candidates = np.argsort(-overlap, kind="stable")[:100]
        by_overlap.append(words_of(corpus["train"][candidates[0]][1]))
        nearest = min(candidates, key=lambda index: edits(words, train[index]))
        by_edits.append(words_of(corpus["train"][nearest][1]))
    targets = [words_of(english) for _, english in sample]
    assert 20 < bleu(by_overlap, targets) < 60
    assert 20 < bleu(by_edits, targets) < 60
