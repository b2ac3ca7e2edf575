"""The words of the corpus `captions` and their inflections, as tables."""

from typing import Literal, NamedTuple

Case = Literal["nominative", "accusative", "dative"]
Number = Literal["singular", "plural"]
Article = Literal["definite", "indefinite", "none", "his", "her", "their", "two", "several", "many"]


def join(*parts: str) -> str:
    return " ".join(part for part in parts if part)


class Phrase(NamedTuple):
    """A phrase in both languages."""

    german: str
    english: str


class Noun(NamedTuple):
    """A noun of a kind; `oblique` is its accusative and dative singular if they differ from the nominative."""

    kind: str
    gender: Literal["masculine", "feminine", "neuter"]
    singular: str
    plural: str
    english: str
    english_plural: str
    oblique: str = ""


class Verb(NamedTuple):
    """A verb: its principal parts ("-" for none), the kinds of its objects and the patterns that it is used in."""

    german: str  # third person, infinitive (also the plural), separable prefix, participle
    english: str  # base, -ing form, participle, particle
    objects: tuple[str, ...]
    uses: str

    def finite(self, number: Number) -> str:
        return self.german.split()[("singular", "plural").index(number)]

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


class Relation(NamedTuple):
    """A preposition in both languages, its case and its noun."""

    german: str
    english: str
    case: Case
    noun: Noun


NOUNS = (
    Noun("adult", "masculine", "Mann", "Männer", "man", "men"),
    Noun("adult", "feminine", "Frau", "Frauen", "woman", "women"),
    Noun("adult", "feminine", "Tänzerin", "Tänzerinnen", "dancer", "dancers"),
    Noun("adult", "masculine", "Koch", "Köche", "chef", "chefs"),
    Noun("adult", "feminine", "Kellnerin", "Kellnerinnen", "waitress", "waitresses"),
    Noun("adult", "masculine", "Bauarbeiter", "Bauarbeiter", "construction worker", "construction workers"),
    Noun("adult", "masculine", "Straßenmusiker", "Straßenmusiker", "street musician", "street musicians"),
    Noun("adult", "feminine", "Fußballspielerin", "Fußballspielerinnen", "soccer player", "soccer players"),
    Noun("child", "masculine", "Junge", "Jungen", "boy", "boys", "Jungen"),
    Noun("child", "neuter", "Mädchen", "Mädchen", "girl", "girls"),
    Noun("child", "neuter", "Kind", "Kinder", "child", "children"),
    Noun("animal", "masculine", "Hund", "Hunde", "dog", "dogs"),
    Noun("animal", "feminine", "Katze", "Katzen", "cat", "cats"),
    Noun("animal", "neuter", "Kaninchen", "Kaninchen", "rabbit", "rabbits"),
    Noun("headwear", "masculine", "Hut", "Hüte", "hat", "hats"),
    Noun("headwear", "feminine", "Mütze", "Mützen", "cap", "caps"),
    Noun("headwear", "masculine", "Strohhut", "Strohhüte", "straw hat", "straw hats"),
    Noun("garment", "masculine", "Mantel", "Mäntel", "coat", "coats"),
    Noun("garment", "neuter", "Hemd", "Hemden", "shirt", "shirts"),
    Noun("garment", "feminine", "Lederjacke", "Lederjacken", "leather jacket", "leather jackets"),
    Noun("load", "masculine", "Korb", "Körbe", "basket", "baskets"),
    Noun("load", "masculine", "Eimer", "Eimer", "bucket", "buckets"),
    Noun("load", "feminine", "Holzkiste", "Holzkisten", "wooden box", "wooden boxes"),
    Noun("reading", "neuter", "Buch", "Bücher", "book", "books"),
    Noun("reading", "feminine", "Zeitung", "Zeitungen", "newspaper", "newspapers"),
    Noun("reading", "masculine", "Brief", "Briefe", "letter", "letters"),
    Noun("ball", "masculine", "Ball", "Bälle", "ball", "balls"),
    Noun("ball", "masculine", "Schneeball", "Schneebälle", "snowball", "snowballs"),
    Noun("cycle", "neuter", "Fahrrad", "Fahrräder", "bicycle", "bicycles"),
    Noun("cycle", "neuter", "Motorrad", "Motorräder", "motorcycle", "motorcycles"),
    Noun("car", "neuter", "Auto", "Autos", "car", "cars"),
    Noun("car", "masculine", "Lastwagen", "Lastwagen", "truck", "trucks"),
    Noun("cart", "masculine", "Kinderwagen", "Kinderwagen", "baby carriage", "baby carriages"),
    Noun("cart", "masculine", "Schlitten", "Schlitten", "sled", "sleds"),
    Noun("food", "masculine", "Apfel", "Äpfel", "apple", "apples"),
    Noun("food", "feminine", "Banane", "Bananen", "banana", "bananas"),
    Noun("drink", "masculine", "Kaffee", "", "coffee", ""),
    Noun("drink", "feminine", "Milch", "", "milk", ""),
    Noun("drink", "neuter", "Wasser", "", "water", ""),
    Noun("opening", "feminine", "Tür", "Türen", "door", "doors"),
    Noun("opening", "neuter", "Fenster", "Fenster", "window", "windows"),
    Noun("hair", "neuter", "Haar", "Haare", "hair", "hair"),
)
PARK = Noun("place", "masculine", "Park", "Parks", "park", "parks")
GARDEN = Noun("place", "masculine", "Garten", "Gärten", "garden", "gardens")
HOUSE = Noun("place", "neuter", "Haus", "Häuser", "house", "houses")
STREET = Noun("place", "feminine", "Straße", "Straßen", "street", "streets")
FENCE = Noun("place", "masculine", "Zaun", "Zäune", "fence", "fences")
BENCH = Noun("place", "feminine", "Bank", "Bänke", "bench", "benches")
OUTDOORS = (
    Relation("in", "in", "dative", PARK),
    Relation("in", "in", "dative", GARDEN),
    Relation("an", "on", "dative", Noun("place", "masculine", "Strand", "Strände", "beach", "beaches")),
    Relation("an", "by", "dative", Noun("place", "masculine", "See", "Seen", "lake", "lakes")),
    Relation("auf", "on", "dative", STREET),
    Relation("vor", "in front of", "dative", HOUSE),
    Relation("hinter", "behind", "dative", HOUSE),
    Relation("neben", "next to", "dative", FENCE),
    Relation("an", "at", "dative", Noun("place", "feminine", "Bushaltestelle", "", "bus stop", "")),
)
INDOORS = (
    Relation("in", "in", "dative", Noun("place", "feminine", "Küche", "Küchen", "kitchen", "kitchens")),
    Relation("in", "in", "dative", Noun("place", "neuter", "Wohnzimmer", "", "living room", "")),
)
SEATS = (Relation("auf", "on", "dative", BENCH),)
PLACES = {"opening": INDOORS, "ball": OUTDOORS, "cycle": OUTDOORS, "car": OUTDOORS, "cart": OUTDOORS}  # else all
DIRECTIONS = {
    "path": (
        Relation("durch", "through", "accusative", PARK),
        Relation("in", "into", "accusative", PARK),
        Relation("durch", "through", "accusative", GARDEN),
        Relation("in", "into", "accusative", HOUSE),
        Relation("aus", "out of", "dative", HOUSE),
        Relation("über", "across", "accusative", STREET),
    ),
    "obstacle": (
        Relation("über", "over", "accusative", FENCE),
        Relation("über", "over", "accusative", BENCH),
        Relation("auf", "onto", "accusative", BENCH),
        Relation("auf", "onto", "accusative", FENCE),
    ),
}
TIMES = (
    Phrase("am Morgen", "in the morning"),
    Phrase("am Abend", "in the evening"),
    Phrase("im Winter", "in winter"),
    Phrase("bei schönem Wetter", "in good weather"),
    Phrase("nach einem langen Tag", "after a long day"),
)
MOODS = (("müd", "tired"), ("fröhlich", "cheerful"), ("lächelnd", "smiling"))  # stems: "müd" + "e"
PAINTS = (("rot", "red"), ("blau", "blue"), ("schwarz", "black"), ("weiß", "white"), ("alt", "old"), ("neu", "new"))
ADJECTIVES: dict[str, tuple[tuple[str, str], ...]] = {  # all other kinds: PAINTS
    "adult": (("jung", "young"), ("alt", "old"), ("groß", "tall"), *MOODS),
    "child": (("klein", "little"), *MOODS),
    "animal": (("klein", "small"), ("groß", "big"), ("schwarz", "black"), ("weiß", "white"), ("nass", "wet")),
    "food": (("groß", "big"), ("klein", "small"), ("süß", "sweet")),
    "drink": (("kalt", "cold"), ("heiß", "hot")),
    "place": (("groß", "big"), ("klein", "small"), ("schön", "beautiful")),
    "hair": (("lang", "long"), ("schwarz", "black"), ("rot", "red")),
}
VERBS = (
    Verb("trägt tragen - getragen", "wear wearing worn -", ("headwear", "garment"), "plain relative"),
    Verb("trägt tragen - getragen", "carry carrying carried -", ("load",), "plain relative try passive"),
    Verb("hält halten - gehalten", "hold holding held -", ("load", "ball"), "plain relative passive"),
    Verb("liest lesen - gelesen", "read reading read -", ("reading",), "plain try passive"),
    Verb("zieht ziehen an angezogen", "put putting put on", ("garment",), "plain try"),
    Verb("zieht ziehen aus ausgezogen", "take taking taken off", ("garment",), "plain try"),
    Verb("zieht ziehen - gezogen", "pull pulling pulled -", ("cart",), "plain try passive"),
    Verb("setzt setzen auf aufgesetzt", "put putting put on", ("headwear",), "plain try"),
    Verb("hebt heben auf aufgehoben", "pick picking picked up", ("load", "ball"), "plain try passive"),
    Verb("wirft werfen weg weggeworfen", "throw throwing thrown away", ("reading", "food"), "plain try passive"),
    Verb("wirft werfen - geworfen", "throw throwing thrown -", ("ball",), "plain try passive"),
    Verb("fährt fahren - gefahren", "ride riding ridden -", ("cycle",), "plain try"),
    Verb("repariert reparieren - repariert", "repair repairing repaired -", ("cycle", "car"), "plain try passive"),
    Verb("wäscht waschen - gewaschen", "wash washing washed -", ("car", "cycle", "animal"), "plain try passive"),
    Verb("schiebt schieben - geschoben", "push pushing pushed -", ("cart", "cycle"), "plain try passive"),
    Verb("kauft kaufen - gekauft", "buy buying bought -", ("food", "headwear", "reading"), "plain try passive"),
    Verb("isst essen - gegessen", "eat eating eaten -", ("food",), "plain try passive"),
    Verb("trinkt trinken - getrunken", "drink drinking drunk -", ("drink",), "plain try"),
    Verb("streichelt streicheln - gestreichelt", "pet petting petted -", ("animal",), "plain try passive"),
    Verb("macht machen auf aufgemacht", "open opening opened -", ("opening",), "plain try passive"),
    Verb("macht machen zu zugemacht", "close closing closed -", ("opening",), "plain try passive"),
    Verb("hilft helfen - -", "help helping - -", ("adult", "child"), "plain try dative"),
    Verb("hört hören zu -", "listen listening - to", ("adult", "child"), "plain dative"),
    Verb("winkt winken zu -", "wave waving - to", ("adult", "child"), "plain dative"),
    Verb("wartet warten - -", "wait waiting - -", (), "place"),
    Verb("tanzt tanzen - -", "dance dancing - -", (), "place"),
    Verb("fällt fallen hin -", "fall falling - down", (), "place"),
    Verb("sitzt sitzen - -", "sit sitting - -", (), "place animal"),
    Verb("schläft schlafen - -", "sleep sleeping - -", (), "place animal"),
    Verb("schläft schlafen ein -", "fall falling - asleep", (), "place animal"),
    Verb("wacht wachen auf -", "wake waking - up", (), "place animal"),
    Verb("rennt rennen - -", "run running - -", ("path",), "direction animal"),
    Verb("geht gehen - -", "walk walking - -", ("path",), "direction"),
    Verb("springt springen - -", "jump jumping - -", ("obstacle",), "direction animal"),
    Verb("klettert klettern - -", "climb climbing - -", ("obstacle",), "direction"),
)

# (inflection, case) -> masculine, feminine, neuter, plural
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
COUNTED: tuple[Article, ...] = ("two", "several", "many")
CONTRACTIONS = (("in dem ", "im "), ("an dem ", "am "), ("von dem ", "vom "), ("in das ", "ins "))
WORN_OR_RIDDEN = ("headwear", "garment", "cycle")
BE = {"singular": "is", "plural": "are"}
