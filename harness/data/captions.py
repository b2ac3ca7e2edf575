"""The corpus `captions`: a seeded grammar that generates German image captions, each with its only translation.

The corpus needs no download and has a known best score: the English is a function of the German, lower-cased or not, so
a perfect model reaches BLEU 100. A dictionary does not: verbs come second or last, prefixes separate ("zieht ... aus",
"is taking off"), compounds are two English words, the case decides the preposition ("im Park", in the park; "in den
Park", into the park), the object decides the verb ("trägt", wearing or carrying) and the subject the possessive ("ihr",
her or their).

The text is the same on every platform and Python version. It relies on the sequence of `random.Random(int).random()`,
which the standard library guarantees, and on the order of tuples and dicts; no set is iterated over.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

from harness.data.captions_lexicon import (
    ADJECTIVES,
    BE,
    CONTRACTIONS,
    COUNTED,
    DETERMINERS,
    DIRECTIONS,
    GENDERS,
    INDOORS,
    INFLECTIONS,
    NOUNS,
    OUTDOORS,
    PAINTS,
    PLACES,
    SEATS,
    TIMES,
    VERBS,
    WORN_OR_RIDDEN,
    Article,
    Case,
    Noun,
    Number,
    Phrase,
    Relation,
    Verb,
    join,
)

Style = Literal["rich", "brief"]
Pattern = Literal["plain", "try", "passive", "place", "direction", "relative", "animal"]
Item = TypeVar("Item")

SHORTEST, LONGEST = 5, 16  # words, the full stop not counted


class CaptionSubject(NamedTuple):
    """A subject and the features that its clause agrees with; `owner` is its possessive, or "none"."""

    words: Phrase
    number: Number
    owner: Article
    nouns: tuple[Noun, ...]
    dressed: bool = False  # whether the subject's clothes or load are already mentioned


class Clause(NamedTuple):
    """The parts of a clause, before its words are ordered."""

    subject: CaptionSubject
    finite: str
    end: str  # the end of verb-second order: a prefix or a participle
    final: str  # the end of verb-final order: all verbs
    predicate: str  # in English, from the verb to the object
    early: str = ""  # before the adverbials: a definite object
    late: str = ""  # after the adverbials: an indefinite object, an agent, a direction
    tail: str = ""  # an infinitive clause
    adverbials: tuple[Phrase, ...] = ()  # in German order, time before place; English reverses it


def inflection(paradigm: str, case: Case, column: int) -> str:
    return INFLECTIONS[paradigm, case].split()[column].strip("-") if paradigm else ""


def noun_phrase(
    noun: Noun, *, article: Article, case: Case, number: Number = "singular", adjective: tuple[str, str] | None = None
) -> Phrase:
    """Return an article, an adjective (its German stem and its English) and a noun, inflected together."""
    plural = number == "plural"
    assert article != "indefinite" if plural else article not in COUNTED, (article, number)
    column = 3 if plural else GENDERS.index(noun.gender)
    german = noun.plural if plural else noun.singular if case == "nominative" else noun.oblique or noun.singular
    if plural and case == "dative" and german[-1] not in "ns":
        german += "n"
    english = noun.english_plural if plural else noun.english
    stem, article_inflection, adjective_inflection, word = DETERMINERS[article]
    if adjective:
        german = f"{adjective[0]}{inflection(adjective_inflection, case, column)} {german}"
        english = f"{adjective[1]} {english}"
    if word == "a" and english[0] in "aeiou":
        word = "an"
    return Phrase(join(stem + inflection(article_inflection, case, column), german), join(word, english))


def prepositional(german: str, english: str, phrase: Phrase) -> Phrase:
    """Return a preposition and a noun phrase, with the contractions of German."""
    words = f"{german} {phrase.german}"
    for full, short in CONTRACTIONS:
        if words.startswith(full):
            words = short + words.removeprefix(full)
    return Phrase(words, f"{english} {phrase.english}")


def verb_second(clause: Clause, front: Phrase | None = None) -> str:
    """Return German main-clause order: the subject first, or `front` first and the subject after the verb."""
    adverbials = [phrase.german for phrase in clause.adverbials if phrase != front]
    subject = clause.subject.words.german
    opening = [front.german, clause.finite, subject] if front else [subject, clause.finite]
    return join(*opening, clause.early, *adverbials, clause.late, clause.end) + clause.tail


def verb_final(clause: Clause) -> str:
    """Return German subordinate order: the finite verb at the end, joined to its separable prefix."""
    adverbials = [phrase.german for phrase in clause.adverbials]
    return join(clause.subject.words.german, clause.early, *adverbials, clause.late, clause.final) + clause.tail


def english_order(clause: Clause) -> str:
    """Return English order, the same for every clause: subject, verb, object, place, time."""
    adverbials = [phrase.english for phrase in reversed(clause.adverbials)]
    return join(clause.subject.words.english, clause.predicate, *adverbials)


def punctuate(text: str) -> str:
    """Return words as a sentence: with a capital, a full stop, and no comma twice or before the full stop."""
    text = (text + ".").replace(",,", ",").replace(",.", ".")
    return text[0].upper() + text[1:]


class Writer:
    """Draws captions; every choice comes from one stream of `random.Random(seed).random()`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def choose(self, items: Sequence[Item]) -> Item:
        return items[int(self._random.random() * len(items))]

    def noun(self, *kinds: str, other_than: tuple[Noun, ...] = ()) -> Noun:
        kind = self.choose(kinds)
        return self.choose([noun for noun in NOUNS if noun.kind == kind and noun not in other_than])

    def verb(self, pattern: Pattern, *, dressed: bool = False) -> Verb:
        verbs = [verb for verb in VERBS if pattern in verb.uses.split()]
        return self.choose([verb for verb in verbs if not (dressed and "relative" in verb.uses)])

    def article(self, owner: Article = "none") -> tuple[Article, Number]:
        """Draw an article, which may be possessive if there is an owner, and a number that fits it."""
        owned: tuple[Article, ...] = () if owner == "none" else (owner, owner, owner)
        article = self.choose((*("indefinite",) * 6, *("definite",) * 3, *COUNTED, *owned))
        plural = article in COUNTED or (article != "indefinite" and self.chance(0.25))
        return article, "plural" if plural else "singular"

    def inflect(self, noun: Noun, article: Article, case: Case, number: Number, adjective: float = 0.5) -> Phrase:
        """Draw a noun phrase, which has an adjective with the probability `adjective`."""
        chosen = self.choose(ADJECTIVES.get(noun.kind, PAINTS)) if self.chance(adjective) else None
        return noun_phrase(noun, article=article, case=case, number=number, adjective=chosen)

    def related(self, relations: Sequence[Relation]) -> Phrase:
        """Draw a place or a direction."""
        relation = self.choose(relations)
        article: Article = "definite" if self.chance(0.5) else "indefinite"
        words = self.inflect(relation.noun, article, relation.case, "singular", 0.3)
        return prepositional(relation.german, relation.english, words)

    def person(self, case: Case) -> CaptionSubject:
        """Draw a person, or several."""
        noun = self.noun("adult", "adult", "child")
        article, number = self.article()
        singular: dict[str, Article] = {"masculine": "his", "feminine": "her", "neuter": "none"}
        owner = "their" if number == "plural" else singular[noun.gender]
        return CaptionSubject(self.inflect(noun, article, case, number, 0.4), number, owner, (noun,))

    def couple(self, first: CaptionSubject) -> CaptionSubject:
        """Draw a second person: "ein Mann und eine Frau"."""
        second = self.person("nominative")
        while second.nouns == first.nouns:
            second = self.person("nominative")
        german = f"{first.words.german} und {second.words.german}"
        words = Phrase(german, f"{first.words.english} and {second.words.english}")
        return CaptionSubject(words, "plural", "their", first.nouns + second.nouns)

    def subject(self, style: Style) -> CaptionSubject:
        """Draw a subject: an animal, a person or a couple; in rich style perhaps with clothes or a relative clause."""
        if self.chance(0.15):
            noun = self.noun("animal")
            article, number = self.article()
            return CaptionSubject(self.inflect(noun, article, "nominative", number), number, "none", (noun,))
        person = self.person("nominative")
        if self.chance(0.12):
            return self.couple(person)
        if style == "brief" or self.chance(0.5):
            return person
        addition = self.relative(person) if self.chance(0.5) else self.clothes(person)
        words = Phrase(person.words.german + addition.german, person.words.english + addition.english)
        return person._replace(words=words, dressed=True)

    def clothes(self, subject: CaptionSubject) -> Phrase:
        """Draw clothes or hair: " in einem roten Hemd", " mit langen Haaren"."""
        noun = self.noun("headwear", "garment", "hair")
        several = noun.kind == "hair" or subject.number == "plural"
        words = self.inflect(
            noun, "none" if several else "indefinite", "dative", "plural" if several else "singular", 1
        )
        german, english = ("in", "in") if noun.kind == "garment" else ("mit", "with")
        return Phrase(f" {german} {words.german}", f" {english} {words.english}")

    def relative(self, subject: CaptionSubject) -> Phrase:
        """Draw a relative clause, with the verb at the end: ", der einen Hut trägt,"."""
        verb = self.verb("relative")
        _, words = self.thing(self.noun(*verb.objects), subject, "accusative")
        column = 3 if subject.number == "plural" else GENDERS.index(subject.nouns[0].gender)
        german = join(inflection("definite", "nominative", column), words.german, verb.finite(subject.number))
        return Phrase(f", {german},", f" who {BE[subject.number]} {verb.in_english('ing')} {words.english}")

    def thing(self, noun: Noun, subject: CaptionSubject, case: Case) -> tuple[Article, Phrase]:
        """Draw the article and the words of an object; one person does not wear two hats."""
        owner = "none" if noun.kind in ("adult", "child") else subject.owner
        article, number = self.article(owner)
        while number == "plural" and subject.number == "singular" and noun.kind in WORN_OR_RIDDEN:
            article, number = self.article(owner)
        if noun.kind == "drink":
            article, number = "none", "singular"
        return article, self.inflect(noun, article, case, number)

    def adverbials(self, style: Style, place: float, places: Sequence[Relation]) -> tuple[Phrase, ...]:
        """Draw a time, in rich style only, and with the probability `place` (a third of it in brief style) a place."""
        rich = style == "rich"
        times = (self.choose(TIMES),) if rich and self.chance(0.4) else ()
        return (*times, self.related(places)) if self.chance(place if rich else place / 3) else times

    def clause(self, style: Style) -> Clause:
        """Draw a clause of one of the patterns; clauses in rich style are longer."""
        patterns: tuple[Pattern, ...] = ("plain", "plain", "plain", "place", "direction", "passive", "passive", "try")
        pattern = self.choose(patterns if style == "rich" else patterns[:5])
        if pattern == "passive":
            return self.passive(style)
        subject = self.subject(style)
        if subject.nouns[0].kind == "animal":
            pattern = "animal"
        verb = self.verb(pattern, dressed=subject.dressed)
        finite = verb.finite(subject.number)
        predicate = f"{BE[subject.number]} {verb.in_english('ing')}"
        clause = Clause(subject, finite, verb.prefix, verb.prefix + finite, predicate)
        if pattern in ("plain", "try"):
            return self.transitive(clause, verb, style, pattern)
        if not verb.objects:
            return clause._replace(adverbials=self.adverbials(style, 0.8, OUTDOORS + INDOORS + SEATS))
        where = self.related(DIRECTIONS[verb.objects[0]])
        adverbials = self.adverbials(style, 0, ())
        return clause._replace(late=where.german, predicate=f"{predicate} {where.english}", adverbials=adverbials)

    def transitive(self, clause: Clause, verb: Verb, style: Style, pattern: Pattern) -> Clause:
        """Add an object to a clause: "zieht einen Mantel an", "versucht, einen Mantel anzuziehen"."""
        noun = self.noun(*verb.objects, other_than=clause.subject.nouns)
        article, words = self.thing(noun, clause.subject, "dative" if "dative" in verb.uses else "accusative")
        adverbials = self.adverbials(style, 0.5, PLACES.get(noun.kind, OUTDOORS + INDOORS))
        clause = clause._replace(predicate=f"{clause.predicate} {words.english}", adverbials=adverbials)
        if pattern == "plain":
            late = article in ("indefinite", "none", *COUNTED)
            return clause._replace(late=words.german) if late else clause._replace(early=words.german)
        finite = "versuchen" if clause.subject.number == "plural" else "versucht"
        predicate = f"{BE[clause.subject.number]} trying to {verb.in_english('base')} {words.english}"
        tail = f", {words.german} {verb.to_infinitive},"
        return clause._replace(finite=finite, end="", final=finite, predicate=predicate, tail=tail)

    def passive(self, style: Style) -> Clause:
        """Draw a passive clause: "wird von einer Frau gewaschen"."""
        verb = self.verb("passive")
        noun = self.noun(*verb.objects)
        agent = self.person("dative")
        article, number = self.article()
        subject = CaptionSubject(
            self.inflect(noun, article, "nominative", number), number, "none", (noun, *agent.nouns)
        )
        finite, participle = "werden" if number == "plural" else "wird", verb.german.split()[3]
        by = prepositional("von", "by", agent.words)
        predicate = f"{BE[number]} being {verb.in_english('participle')} {by.english}"
        adverbials = self.adverbials(style, 0.4, PLACES.get(noun.kind, OUTDOORS + INDOORS))
        final = f"{participle} {finite}"
        return Clause(subject, finite, participle, final, predicate, late=by.german, adverbials=adverbials)

    def sentence(self) -> Phrase:
        """Draw a caption: a rich clause, or two brief ones joined by "während"."""
        if self.chance(0.6):
            clause = self.clause("rich")
            front = self.choose(clause.adverbials) if clause.adverbials and self.chance(0.6) else None
            return Phrase(punctuate(verb_second(clause, front)), punctuate(english_order(clause)))
        main, side = self.clause("brief"), self.clause("brief")
        while any(noun in main.subject.nouns for noun in side.subject.nouns):
            side = self.clause("brief")
        german, english = f"während {verb_final(side)}", f"while {english_order(side)}"
        if self.chance(0.5):
            german, english = f"{verb_second(main)}, {german}", f"{english_order(main)} {english}"
        else:
            german, english = verb_second(main, Phrase(f"{german},", "")), f"{english}, {english_order(main)}"
        return Phrase(punctuate(german), punctuate(english))


def distinct(writer: Writer) -> Iterator[tuple[str, str]]:
    """Yield captions of the right length, without repetition in either language, endlessly."""
    earlier: set[str] = set()
    while True:
        pair = writer.sentence()
        if all(SHORTEST <= len(text.split()) <= LONGEST and text not in earlier for text in pair):
            earlier.update(pair)
            yield pair.german, pair.english


def pairs(
    seed: int = 0, *, training: int = 8000, validation: int = 500, test: int = 500
) -> dict[str, list[tuple[str, str]]]:
    """Return the splits "train", "val" and "test", each a list of (German, English).

    No sentence of either language occurs twice, within a split or across splits. The training split depends on `seed`
    and `training` alone. Every word of the other splits (between spaces) occurs at least twice on its side of the
    training split, so it is in a vocabulary with a minimum frequency of 2, also if it is tokenised or lower-cased.

    Raises: ValueError if the training split is too small to contain the words of the others.
    """
    fresh = distinct(Writer(seed))
    train = [next(fresh) for _ in range(training)]
    counts = [Counter(word for pair in train for word in pair[side].split()) for side in (0, 1)]
    held_out: list[tuple[str, str]] = []
    for _ in range(10_000 + 100 * (validation + test)):
        pair = next(fresh)
        if all(counts[side][word] >= 2 for side in (0, 1) for word in pair[side].split()):
            held_out.append(pair)
        if len(held_out) == validation + test:
            return {"train": train, "val": held_out[:validation], "test": held_out[validation:]}
    raise ValueError(
        f"training={training}: too small to contain every word of validation and test twice; it does so for "
        f"{len(held_out)} of {validation + test} sentences; use a larger one"
    )
