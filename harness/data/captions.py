"""The corpus `captions`: a seeded grammar that writes German image captions, each with its one right English translation.

It needs no download and has a known ceiling: the English is a function of the German (also of the lower-cased German), so a
perfect model reaches BLEU 100. What a model must learn, and a dictionary cannot give, is marked where the grammar makes it:
verb-second and verb-final order, separable prefixes, one finite verb for two English ones ("zieht", "is pulling"; "zieht ...
aus", "is taking off"), compounds, cases that decide a preposition ("im Park", "in the park"; "in den Park", "into the park")
and possessives that follow their subject ("ihr", her or their).

The text is the same on every platform and Python version: it relies on nothing but `random.Random(int).random()`, whose
sequence the standard library promises to keep, and on the order of tuples, lists and dicts.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, TypeVar

Case = Literal["nominative", "accusative", "dative"]
Number = Literal["singular", "plural"]
Article = Literal["definite", "indefinite", "none", "his", "her", "their", "two", "three", "several", "many"]
Style = Literal["rich", "plain"]
Item = TypeVar("Item")

MOST_SENTENCES = 100_000
SHORTEST, LONGEST = 5, 16


class Phrase(NamedTuple):
    """The same words in both languages."""

    german: str
    english: str


class Noun(NamedTuple):
    """A noun; `oblique` is the accusative and dative singular where it differs from the nominative."""

    gender: Literal["masculine", "feminine", "neuter"]
    singular: str
    plural: str
    english: str
    english_plural: str
    oblique: str = ""


class Verb(NamedTuple):
    """A verb by its principal parts ("-" for none) and the patterns it may stand in."""

    german: str  # third person, infinitive (also the plural), separable prefix, participle
    english: str  # base, -ing form, participle, particle
    objects: tuple[str, ...]
    uses: str

    def finite(self, number: Number) -> str:
        third, infinitive, _, _ = self.german.split()
        return infinitive if number == "plural" else third

    @property
    def prefix(self) -> str:
        return self.german.split()[2].strip("-")

    @property
    def to_infinitive(self) -> str:
        infinitive = self.german.split()[1]
        return f"{self.prefix}zu{infinitive}" if self.prefix else f"zu {infinitive}"

    def in_english(self, form: Literal["base", "ing", "participle"]) -> str:
        words = self.english.split()
        return join(words[("base", "ing", "participle").index(form)], words[3].strip("-"))


class Subject(NamedTuple):
    """A subject with what its clause must agree with; `owner` is its possessive, or "none"."""

    words: Phrase
    number: Number
    owner: Article
    kind: str
    nouns: tuple[Noun, ...]


class Clause(NamedTuple):
    """A clause before its words are put in order."""

    subject: Subject
    finite: str
    end: str  # what verb-second order leaves at the end: a prefix or a participle
    final: str  # the verb cluster that verb-final order puts there
    predicate: str  # in English, from the verb to the object
    early: str = ""  # what stands before the adverbials: a definite object
    late: str = ""  # what stands after them: an indefinite object, an agent, a direction
    tail: str = ""  # an infinitive clause
    adverbials: tuple[Phrase, ...] = ()  # in German order, time before place; English has them the other way round


NOUNS: dict[str, tuple[Noun, ...]] = {
    "adult": (
        Noun("masculine", "Mann", "Männer", "man", "men"),
        Noun("feminine", "Frau", "Frauen", "woman", "women"),
        Noun("feminine", "Tänzerin", "Tänzerinnen", "dancer", "dancers"),
        Noun("masculine", "Koch", "Köche", "chef", "chefs"),
        Noun("feminine", "Kellnerin", "Kellnerinnen", "waitress", "waitresses"),
        Noun("masculine", "Bauarbeiter", "Bauarbeiter", "construction worker", "construction workers"),
        Noun("masculine", "Straßenmusiker", "Straßenmusiker", "street musician", "street musicians"),
        Noun("feminine", "Fußballspielerin", "Fußballspielerinnen", "soccer player", "soccer players"),
    ),
    "child": (
        Noun("masculine", "Junge", "Jungen", "boy", "boys", "Jungen"),
        Noun("neuter", "Mädchen", "Mädchen", "girl", "girls"),
        Noun("neuter", "Kind", "Kinder", "child", "children"),
    ),
    "animal": (
        Noun("masculine", "Hund", "Hunde", "dog", "dogs"),
        Noun("feminine", "Katze", "Katzen", "cat", "cats"),
        Noun("neuter", "Pferd", "Pferde", "horse", "horses"),
    ),
    "headwear": (
        Noun("masculine", "Hut", "Hüte", "hat", "hats"),
        Noun("feminine", "Mütze", "Mützen", "cap", "caps"),
        Noun("masculine", "Strohhut", "Strohhüte", "straw hat", "straw hats"),
    ),
    "garment": (
        Noun("masculine", "Mantel", "Mäntel", "coat", "coats"),
        Noun("neuter", "Hemd", "Hemden", "shirt", "shirts"),
        Noun("feminine", "Lederjacke", "Lederjacken", "leather jacket", "leather jackets"),
    ),
    "load": (
        Noun("masculine", "Korb", "Körbe", "basket", "baskets"),
        Noun("masculine", "Eimer", "Eimer", "bucket", "buckets"),
        Noun("feminine", "Holzkiste", "Holzkisten", "wooden box", "wooden boxes"),
    ),
    "reading": (
        Noun("neuter", "Buch", "Bücher", "book", "books"),
        Noun("feminine", "Zeitung", "Zeitungen", "newspaper", "newspapers"),
        Noun("masculine", "Brief", "Briefe", "letter", "letters"),
    ),
    "ball": (
        Noun("masculine", "Ball", "Bälle", "ball", "balls"),
        Noun("masculine", "Schneeball", "Schneebälle", "snowball", "snowballs"),
    ),
    "cycle": (
        Noun("neuter", "Fahrrad", "Fahrräder", "bicycle", "bicycles"),
        Noun("neuter", "Motorrad", "Motorräder", "motorcycle", "motorcycles"),
    ),
    "car": (
        Noun("neuter", "Auto", "Autos", "car", "cars"),
        Noun("masculine", "Lastwagen", "Lastwagen", "truck", "trucks"),
    ),
    "cart": (
        Noun("masculine", "Kinderwagen", "Kinderwagen", "baby carriage", "baby carriages"),
        Noun("masculine", "Schlitten", "Schlitten", "sled", "sleds"),
    ),
    "food": (
        Noun("masculine", "Apfel", "Äpfel", "apple", "apples"),
        Noun("feminine", "Banane", "Bananen", "banana", "bananas"),
    ),
    "drink": (
        Noun("masculine", "Kaffee", "", "coffee", ""),
        Noun("feminine", "Milch", "", "milk", ""),
        Noun("neuter", "Wasser", "", "water", ""),
    ),
    "opening": (
        Noun("feminine", "Tür", "Türen", "door", "doors"),
        Noun("neuter", "Fenster", "Fenster", "window", "windows"),
    ),
    "hair": (Noun("neuter", "Haar", "Haare", "hair", "hair"),),
}
PARK, LAKE, FENCE, BENCH, HOUSE, STREET = (
    Noun("masculine", "Park", "Parks", "park", "parks"),
    Noun("masculine", "See", "Seen", "lake", "lakes"),
    Noun("masculine", "Zaun", "Zäune", "fence", "fences"),
    Noun("feminine", "Bank", "Bänke", "bench", "benches"),
    Noun("neuter", "Haus", "Häuser", "house", "houses"),
    Noun("feminine", "Straße", "Straßen", "street", "streets"),
)
GARDEN = Noun("masculine", "Garten", "Gärten", "garden", "gardens")
PLACES: tuple[tuple[str, str, Noun], ...] = (
    ("in", "in", PARK),
    ("in", "in", GARDEN),
    ("an", "on", Noun("masculine", "Strand", "Strände", "beach", "beaches")),
    ("an", "by", LAKE),
    ("auf", "on", STREET),
    ("auf", "on", BENCH),
    ("vor", "in front of", HOUSE),
    ("hinter", "behind", HOUSE),
    ("hinter", "behind", FENCE),
    ("neben", "next to", FENCE),
    ("in", "in", Noun("feminine", "Küche", "Küchen", "kitchen", "kitchens")),
    ("in", "in", Noun("neuter", "Wohnzimmer", "Wohnzimmer", "living room", "living rooms")),
    ("an", "at", Noun("feminine", "Bushaltestelle", "Bushaltestellen", "bus stop", "bus stops")),
)
DIRECTIONS: dict[str, tuple[tuple[str, str, Case, Noun], ...]] = {
    "path": (
        ("durch", "through", "accusative", PARK),
        ("in", "into", "accusative", PARK),
        ("durch", "through", "accusative", GARDEN),
        ("in", "into", "accusative", HOUSE),
        ("aus", "out of", "dative", HOUSE),
        ("über", "across", "accusative", STREET),
    ),
    "obstacle": (
        ("über", "over", "accusative", FENCE),
        ("über", "over", "accusative", BENCH),
        ("auf", "onto", "accusative", BENCH),
        ("auf", "onto", "accusative", FENCE),
    ),
}
TIMES = (
    Phrase("am Morgen", "in the morning"),
    Phrase("am Abend", "in the evening"),
    Phrase("im Winter", "in winter"),
    Phrase("bei schönem Wetter", "in good weather"),
    Phrase("nach einem langen Tag", "after a long day"),
)
COLOURS: tuple[tuple[str, str], ...] = (
    ("rot", "red"),
    ("blau", "blue"),
    ("schwarz", "black"),
    ("weiß", "white"),
    ("alt", "old"),
    ("neu", "new"),
)
MOODS = (("müd", "tired"), ("fröhlich", "cheerful"), ("lächelnd", "smiling"))  # stems: "müd" + "e"
ADJECTIVES: dict[str, tuple[tuple[str, str], ...]] = {
    "adult": (("jung", "young"), ("alt", "old"), ("groß", "tall"), *MOODS),
    "child": (("klein", "little"), *MOODS),
    "animal": (("klein", "small"), ("groß", "big"), ("schwarz", "black"), ("weiß", "white"), ("nass", "wet")),
    "food": (("groß", "big"), ("klein", "small"), ("süß", "sweet")),
    "drink": (("kalt", "cold"), ("heiß", "hot")),
    "place": (("groß", "big"), ("klein", "small"), ("alt", "old")),
    "hair": (("lang", "long"), ("schwarz", "black"), ("rot", "red")),
}
VERBS = (
    Verb("trägt tragen - getragen", "wear wearing worn -", ("headwear", "garment"), "plain relative"),
    Verb("trägt tragen - getragen", "carry carrying carried -", ("load",), "plain relative try passive"),
    Verb("hält halten - gehalten", "hold holding held -", ("load", "ball"), "plain relative passive"),
    Verb("liest lesen - gelesen", "read reading read -", ("reading",), "plain relative try passive"),
    Verb("zieht ziehen an angezogen", "put putting put on", ("garment",), "plain try"),
    Verb("zieht ziehen aus ausgezogen", "take taking taken off", ("garment",), "plain try"),
    Verb("zieht ziehen - gezogen", "pull pulling pulled -", ("cart",), "plain try passive"),
    Verb("setzt setzen auf aufgesetzt", "put putting put on", ("headwear",), "plain try"),
    Verb("hebt heben auf aufgehoben", "pick picking picked up", ("load", "ball"), "plain try passive"),
    Verb("wirft werfen weg weggeworfen", "throw throwing thrown away", ("reading", "food"), "plain try passive"),
    Verb("wirft werfen - geworfen", "throw throwing thrown -", ("ball",), "plain try passive"),
    Verb("fährt fahren - gefahren", "ride riding ridden -", ("cycle",), "plain try"),
    Verb("fährt fahren - gefahren", "drive driving driven -", ("car",), "plain try passive"),
    Verb("repariert reparieren - repariert", "repair repairing repaired -", ("cycle", "car"), "plain try passive"),
    Verb("wäscht waschen - gewaschen", "wash washing washed -", ("car", "cycle", "animal"), "plain try passive"),
    Verb("schiebt schieben - geschoben", "push pushing pushed -", ("cart", "cycle"), "plain relative try passive"),
    Verb("kauft kaufen - gekauft", "buy buying bought -", ("food", "headwear", "reading"), "plain try passive"),
    Verb("isst essen - gegessen", "eat eating eaten -", ("food",), "plain try passive"),
    Verb("trinkt trinken - getrunken", "drink drinking drunk -", ("drink",), "plain relative try"),
    Verb("streichelt streicheln - gestreichelt", "pet petting petted -", ("animal",), "plain try passive"),
    Verb("macht machen auf aufgemacht", "open opening opened -", ("opening",), "plain try passive"),
    Verb("macht machen zu zugemacht", "close closing closed -", ("opening",), "plain try passive"),
    Verb("hilft helfen - -", "help helping - -", ("adult", "child"), "plain try dative"),
    Verb("hört hören zu -", "listen listening - to", ("adult", "child"), "plain dative"),
    Verb("winkt winken zu -", "wave waving - to", ("adult", "child"), "plain dative"),
    Verb("wartet warten - -", "wait waiting - -", (), "place"),
    Verb("tanzt tanzen - -", "dance dancing - -", (), "place"),
    Verb("fällt fallen hin -", "fall falling - down", (), "place"),
    Verb("sitzt sitzen - -", "sit sitting - -", (), "place beast"),
    Verb("schläft schlafen - -", "sleep sleeping - -", (), "place beast"),
    Verb("schläft schlafen ein -", "fall falling - asleep", (), "place beast"),
    Verb("wacht wachen auf -", "wake waking - up", (), "place beast"),
    Verb("rennt rennen - -", "run running - -", ("path",), "direction"),
    Verb("geht gehen - -", "walk walking - -", ("path",), "direction"),
    Verb("springt springen - -", "jump jumping - -", ("obstacle",), "direction"),
    Verb("klettert klettern - -", "climb climbing - -", ("obstacle",), "direction"),
)

# (what, case) -> masculine, feminine, neuter, plural
INFLECTIONS: dict[tuple[str, Case], str] = {
    ("definite", "nominative"): "der die das die",
    ("definite", "accusative"): "den die das die",
    ("definite", "dative"): "dem der dem den",
    ("ein", "nominative"): "- e - e",  # also sein and ihr; ein itself has no plural
    ("ein", "accusative"): "en e - e",
    ("ein", "dative"): "em er em en",
    ("weak", "nominative"): "e e e en",
    ("weak", "accusative"): "en e e en",
    ("weak", "dative"): "en en en en",
    ("mixed", "nominative"): "er e es en",
    ("mixed", "accusative"): "en e es en",
    ("mixed", "dative"): "en en en en",
    ("strong", "nominative"): "er e es e",
    ("strong", "accusative"): "en e es e",
    ("strong", "dative"): "em er em en",
}
DETERMINERS: dict[Article, tuple[str, str, str, str]] = {  # German stem, its inflection, the adjective's, English
    "definite": ("", "definite", "weak", "the"),
    "indefinite": ("ein", "ein", "mixed", "a"),
    "his": ("sein", "ein", "mixed", "his"),
    "her": ("ihr", "ein", "mixed", "her"),
    "their": ("ihr", "ein", "mixed", "their"),
    "two": ("zwei", "", "strong", "two"),
    "several": ("mehrer", "strong", "strong", "several"),
    "many": ("viel", "strong", "strong", "many"),
    "none": ("", "", "strong", ""),
}
GENDERS = ("masculine", "feminine", "neuter")
DEFINITENESS: tuple[Article, ...] = ("definite", "indefinite")
COUNTED: tuple[Article, ...] = ("two", "several", "many")
CONTRACTIONS = (("in dem ", "im "), ("an dem ", "am "), ("von dem ", "vom "), ("in das ", "ins "))


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def inflection(what: str, case: Case, column: int) -> str:
    return INFLECTIONS[what, case].split()[column].strip("-") if what else ""


def noun_phrase(
    noun: Noun, *, article: Article, case: Case, number: Number = "singular", adjective: tuple[str, str] | None = None
) -> Phrase:
    """An article, an adjective (its German stem and its English) and a noun, inflected together."""
    plural = number == "plural"
    assert article != "indefinite" if plural else article not in COUNTED, (article, number)
    column = 3 if plural else GENDERS.index(noun.gender)
    german = noun.plural if plural else noun.singular if case == "nominative" else noun.oblique or noun.singular
    if plural and case == "dative" and german[-1] not in "ns":
        german += "n"
    english = noun.english_plural if plural else noun.english
    stem, own_inflection, adjective_inflection, word = DETERMINERS[article]
    if adjective:
        german = f"{adjective[0]}{inflection(adjective_inflection, case, column)} {german}"
        english = f"{adjective[1]} {english}"
    if word == "a" and english[0] in "aeiou":
        word = "an"
    return Phrase(join(stem + inflection(own_inflection, case, column), german), join(word, english))


def prepositional(german: str, english: str, phrase: Phrase) -> Phrase:
    """A preposition before a noun phrase, contracted with its article where German does so."""
    words = f"{german} {phrase.german}"
    for whole, short in CONTRACTIONS:
        if words.startswith(whole):
            words = short + words.removeprefix(whole)
    return Phrase(words, f"{english} {phrase.english}")


def be(number: Number) -> str:
    return "are" if number == "plural" else "is"


def verb_second(clause: Clause, front: Phrase | None = None) -> str:
    """German main-clause order: the subject first, or `front` first and the subject behind the verb."""
    adverbials = [phrase.german for phrase in clause.adverbials if phrase != front]
    subject = clause.subject.words.german
    opening = [front.german, clause.finite, subject] if front else [subject, clause.finite]
    return join(*opening, clause.early, *adverbials, clause.late, clause.end) + clause.tail


def verb_final(clause: Clause) -> str:
    """German subordinate order: the finite verb at the end, its separable prefix joined to it."""
    adverbials = [phrase.german for phrase in clause.adverbials]
    return join(clause.subject.words.german, clause.early, *adverbials, clause.late, clause.final) + clause.tail


def english_order(clause: Clause) -> str:
    """English order, the same for every clause: subject, verb, object, place, time."""
    adverbials = [phrase.english for phrase in reversed(clause.adverbials)]
    return join(clause.subject.words.english, clause.predicate, *adverbials)


def punctuate(text: str) -> str:
    """The words as a sentence: a capital, a full stop, no comma twice or before the full stop."""
    text = (text + ".").replace(",,", ",").replace(",.", ".")
    return text[0].upper() + text[1:]


class Writer:
    """Draws captions; every choice comes from one stream of `random.Random(seed).random()`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def one(self, items: Sequence[Item]) -> Item:
        return items[int(self._random.random() * len(items))]

    def sentence(self) -> Phrase:
        """One caption: a rich clause, or two plain ones joined by "während"."""
        if self.chance(0.65):
            clause = self.clause("rich")
            front = self.one(clause.adverbials) if clause.adverbials and self.chance(0.6) else None
            return Phrase(punctuate(verb_second(clause, front)), punctuate(english_order(clause)))
        main, side = self.clause("plain"), self.clause("plain")
        while any(noun in main.subject.nouns for noun in side.subject.nouns):
            side = self.clause("plain")
        german, english = f"während {verb_final(side)}", f"while {english_order(side)}"
        if self.chance(0.5):
            german, english = f"{verb_second(main)}, {german}", f"{english_order(main)} {english}"
        else:
            german, english = verb_second(main, Phrase(f"{german},", "")), f"{english}, {english_order(main)}"
        return Phrase(punctuate(german), punctuate(english))

    def article(self, owner: Article = "none") -> tuple[Article, Number]:
        """An article, possessive perhaps if there is an owner, and a number that goes with it."""
        owned: tuple[Article, ...] = () if owner == "none" else (owner, owner, owner)
        article = self.one((*("indefinite",) * 6, *("definite",) * 3, *COUNTED, *owned))
        plural = article in COUNTED or (article != "indefinite" and self.chance(0.25))
        return article, "plural" if plural else "singular"

    def inflect(self, noun: Noun, kind: str, article: Article, case: Case, number: Number, likely: float) -> Phrase:
        """A noun phrase, perhaps with an adjective that suits the kind of noun."""
        adjective = self.one(ADJECTIVES.get(kind, COLOURS)) if self.chance(likely) else None
        return noun_phrase(noun, article=article, case=case, number=number, adjective=adjective)

    def person(self, case: Case) -> Subject:
        """A man, woman or child, or several."""
        kind = self.one(("adult", "adult", "child"))
        noun = self.one(NOUNS[kind])
        article, number = self.article()
        singular: dict[str, Article] = {"masculine": "his", "feminine": "her", "neuter": "none"}
        owner = "their" if number == "plural" else singular[noun.gender]
        return Subject(self.inflect(noun, kind, article, case, number, 0.4), number, owner, kind, (noun,))

    def subject(self, style: Style) -> Subject:
        """Who acts: an animal, a person, two persons; in rich style perhaps with clothes or a relative clause."""
        if self.chance(0.15):
            noun = self.one(NOUNS["animal"])
            article, number = self.article()
            words = self.inflect(noun, "animal", article, "nominative", number, 0.5)
            return Subject(words, number, "none", "animal", (noun,))
        subject = self.person("nominative")
        if self.chance(0.12):
            other = self.person("nominative")
            while other.nouns == subject.nouns:
                other = self.person("nominative")
            both = zip(("und", "and"), subject.words, other.words, strict=True)
            words = Phrase(*(f"{first} {link} {second}" for link, first, second in both))
            return Subject(words, "plural", "their", subject.kind, subject.nouns + other.nouns)
        if style == "plain" or self.chance(0.5):
            return subject
        addition = self.relative(subject) if self.chance(0.5) else self.clothes(subject)
        words = Phrase(subject.words.german + addition.german, f"{subject.words.english} {addition.english}")
        return subject._replace(words=words)

    def clothes(self, subject: Subject) -> Phrase:
        """What a person has on: "in einem roten Hemd", "mit langen Haaren"."""
        kind = self.one(("headwear", "garment", "hair"))
        article: Article = "none" if kind == "hair" or subject.number == "plural" else "indefinite"
        number: Number = "plural" if article == "none" else "singular"
        words = self.inflect(self.one(NOUNS[kind]), kind, article, "dative", number, 1.0)
        phrase = prepositional(*(("in", "in") if kind == "garment" else ("mit", "with")), words)
        return Phrase(" " + phrase.german, phrase.english)

    def relative(self, subject: Subject) -> Phrase:
        """A relative clause, verb at the end: ", der einen Hut trägt,"."""
        verb = self.verb("relative")
        _, words = self.object(verb, subject)
        column = 3 if subject.number == "plural" else GENDERS.index(subject.nouns[0].gender)
        pronoun = inflection("definite", "nominative", column)
        german = f", {pronoun} {words.german} {verb.finite(subject.number)},"
        return Phrase(german, f"who {be(subject.number)} {verb.in_english('ing')} {words.english}")

    def verb(self, use: str) -> Verb:
        return self.one([verb for verb in VERBS if use in verb.uses.split()])

    def object(self, verb: Verb, subject: Subject) -> tuple[Article, Phrase]:
        """An object that suits the verb and is not the subject itself, and its article."""
        kind = self.one(verb.objects)
        noun = self.one([noun for noun in NOUNS[kind] if noun not in subject.nouns])
        article, number = self.article("none" if kind in ("adult", "child") else subject.owner)
        if kind == "drink":
            article, number = "none", "singular"
        case: Case = "dative" if "dative" in verb.uses else "accusative"
        return article, self.inflect(noun, kind, article, case, number, 0.5)

    def adverbials(self, style: Style, place: float) -> tuple[Phrase, ...]:
        """Perhaps a time (in rich style) and, with probability `place`, a place."""
        phrases = [self.one(TIMES)] if style == "rich" and self.chance(0.4) else []
        if self.chance(place):
            german, english, noun = self.one(PLACES)
            article = self.one(DEFINITENESS)
            phrases.append(
                prepositional(german, english, self.inflect(noun, "place", article, "dative", "singular", 0.3))
            )
        return tuple(phrases)

    def clause(self, style: Style) -> Clause:
        """A clause of one of five patterns."""
        pattern = self.one(("plain", "plain", "plain", "try", "passive", "passive", "place", "direction"))
        if pattern == "passive":
            return self.passive(style)
        subject = self.subject(style)
        if subject.kind == "animal":
            pattern = self.one(("beast", "direction"))
        if pattern in ("plain", "try"):
            return self.transitive(subject, style, pattern)
        verb = self.verb(pattern)
        verb_form = verb.finite(subject.number)
        clause = Clause(
            subject=subject,
            finite=verb_form,
            end=verb.prefix,
            final=verb.prefix + verb_form,
            predicate=f"{be(subject.number)} {verb.in_english('ing')}",
        )
        if pattern != "direction":
            return clause._replace(adverbials=self.adverbials(style, 0.8))
        german, english, case, noun = self.one(DIRECTIONS[verb.objects[0]])
        words = self.inflect(noun, "place", self.one(DEFINITENESS), case, "singular", 0.3)
        where = prepositional(german, english, words)
        adverbials = self.adverbials(style, 0.0)
        return clause._replace(
            late=where.german, predicate=f"{clause.predicate} {where.english}", adverbials=adverbials
        )

    def transitive(self, subject: Subject, style: Style, pattern: str) -> Clause:
        """A clause with an object: "zieht ... einen Mantel an", "versucht ..., einen Mantel anzuziehen"."""
        verb = self.verb(pattern)
        article, words = self.object(verb, subject)
        trying = pattern == "try"
        verb_form = verb.finite(subject.number)
        if trying:
            verb_form = "versuchen" if subject.number == "plural" else "versucht"
        known = article not in ("indefinite", "none", *COUNTED)
        doing = f"trying to {verb.in_english('base')}" if trying else verb.in_english("ing")
        return Clause(
            subject=subject,
            finite=verb_form,
            end="" if trying else verb.prefix,
            final=verb_form if trying else verb.prefix + verb_form,
            predicate=f"{be(subject.number)} {doing} {words.english}",
            early=words.german if known and not trying else "",
            late="" if known or trying else words.german,
            tail=f", {words.german} {verb.to_infinitive}," if trying else "",
            adverbials=self.adverbials(style, 0.5),
        )

    def passive(self, style: Style) -> Clause:
        """A passive: "wird ... von einer Frau gewaschen"."""
        verb = self.verb("passive")
        kind = self.one(verb.objects)
        noun = self.one(NOUNS[kind])
        article, number = self.article()
        agent = self.person("dative")
        subject = Subject(
            self.inflect(noun, kind, article, "nominative", number, 0.5), number, "none", kind, (noun, *agent.nouns)
        )
        participle = verb.german.split()[3]
        verb_form = "werden" if number == "plural" else "wird"
        by = prepositional("von", "by", agent.words)
        return Clause(
            subject=subject,
            finite=verb_form,
            end=participle,
            final=f"{participle} {verb_form}",
            predicate=f"{be(number)} being {verb.in_english('participle')} {by.english}",
            late=by.german,
            adverbials=self.adverbials(style, 0.4),
        )


def pairs(
    seed: int = 0, *, training: int = 8000, validation: int = 500, test: int = 500
) -> dict[str, list[tuple[str, str]]]:
    """The splits "train", "val" and "test", each a list of (German, English).

    No sentence of either language occurs twice, within a split or across. The training split depends on `seed` and `training`
    alone. Every word of the other two splits, as it stands between blanks, occurs at least twice in the training split on
    its side, so that no vocabulary of words seen twice gives them an unknown one, however it treats case and punctuation.

    Raises: ValueError if a size is not positive, if the sizes add up to more than `MOST_SENTENCES`, or if the training split
    is too small to hold the words of the others.
    """
    for field, value, least in (
        ("seed", seed, 0),
        ("training", training, 1),
        ("validation", validation, 1),
        ("test", test, 1),
    ):
        if value < least:
            raise ValueError(f"{field} is {value}: allowed are whole numbers from {least}")
    if training + validation + test > MOST_SENTENCES:
        total = training + validation + test
        raise ValueError(f"training + validation + test is {total}: allowed are at most {MOST_SENTENCES}")
    fresh = _distinct(Writer(seed))
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
        f"training is {training}: allowed are sizes that hold every word of validation and test twice, "
        f"and this one does so for {len(held_out)} of {validation + test} sentences"
    )


def _distinct(writer: Writer) -> Iterator[tuple[str, str]]:
    """Captions of the right length, none of them twice in either language."""
    seen: set[str] = set()
    while True:
        pair = writer.sentence()
        if all(SHORTEST <= len(text.split()) <= LONGEST and text not in seen for text in pair):
            seen.update(pair)
            yield pair.german, pair.english
