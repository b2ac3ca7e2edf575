"""What a run is (`RunSpec`) and what came of it (`RunRecord`): frozen dataclasses, JSON, ids and the schema number."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Union

from harness.text import brief, did_you_mean
from impls.contract import (
    LARGEST_COUNT,
    Backend,
    GruRecipe,
    PlainRecipe,
    Recipe,
    TorchReferenceRecipe,
    Training,
    TransformerRecipe,
)

SCHEMA = 1
"""The version of manifests and exported documents."""
RECORD_SCHEMA = 2
"""The version of run records; records of version 1 are read and completed."""
RECORD_SCHEMAS = (1, 2)

CorpusName = Literal["multi30k", "captions", "files"]
Tokenizer = Literal["spacy", "moses", "moses-bpe", "sentencepiece-bpe", "sentencepiece-unigram", "whitespace"]
Case = Literal["lower", "kept"]
Vocabulary = Literal["separate", "joint"]
Budget = Literal["controlled", "source", "tuned", "pilot"]
Precision = Literal["float32", "bfloat16"]
CudaGraphs = Literal["off", "on"]
Unknown = Literal["never", "allowed"]
LengthFormula = Literal["wu", "power"]
Status = Literal["completed", "interrupted", "failed", "diverged"]
ADDED_FIELDS: dict[tuple[str, str], Any] = {
    ("training", "batching"): "length",
    ("training", "batch_tokens"): 4_096,
    ("decoding", "unknown"): "allowed",
    ("decoding", "length_formula"): "wu",
    ("data", "merges"): 10_000,
    ("recipe", "attention_dropout"): None,
    ("recipe", "activation_dropout"): None,
}
"""Fields that were added to `RunSpec` later, with the value that runs had before.

A record of version 1 is completed with them. A field with this value does not count for the id of a run, so that a new
field changes no id.
"""
RECIPE_TYPES: dict[str, type[Recipe]] = {
    kind.family: kind for kind in (TransformerRecipe, GruRecipe, TorchReferenceRecipe, PlainRecipe)
}


def _check(settings: Any, **least: int) -> None:
    """Raise ValueError for a Literal field with a foreign word, or a whole number below its least value."""
    for name, hint in typing.get_type_hints(type(settings)).items():
        value = getattr(settings, name, None)
        if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            words = typing.get_args(hint)
            raise ValueError(f"{name}={brief(value)}: allowed is {', '.join(words)}{did_you_mean(value, words)}")
    for name, bound in least.items():
        value = getattr(settings, name)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < bound):
            raise ValueError(f"{name}={brief(value)}: allowed is a whole number of at least {bound}")


@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """Where the corpus `files` lies: two files per split, one sentence a line, or one TSV per split.

    A TSV holds source, tab, target; name it as the source and leave the target empty.
    """

    train_source: str
    validation_source: str
    test_source: str
    train_target: str = ""
    validation_target: str = ""
    test_target: str = ""


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Everything that determines the ids a model sees.

    `training_pairs` keeps the first so many pairs of the training split (None: all). `max_length` counts `<sos>` and
    `<eos>`: longer training pairs are left out and counted, longer sentences elsewhere are cut and counted.
    `minimum_frequency` is for the word tokenizers, `vocabulary_size` for SentencePiece, and `merges`, the number of
    merge operations, for "moses-bpe". `seed` is the corpus generator's and SentencePiece's, not the training's.

    Raises: ValueError naming the field, its value and what is allowed.
    """

    corpus: CorpusName = "multi30k"
    direction: str = "de-en"
    test_split: str = "test_2016_flickr"
    tokenizer: Tokenizer = "spacy"
    case: Case = "lower"
    vocabulary: Vocabulary = "separate"
    minimum_frequency: int = 2
    vocabulary_size: int = 8_000
    merges: int = 10_000
    max_length: int = 100
    training_pairs: int | None = None
    seed: int = 0
    files: FileSpec | None = None

    def __post_init__(self) -> None:
        _check(self, minimum_frequency=1, vocabulary_size=8, merges=1, max_length=3, training_pairs=1, seed=0)
        source, _, target = self.direction.partition("-")
        if not (source.isalpha() and target.isalpha()) or source == target:
            raise ValueError(f"direction={brief(self.direction)}: allowed is two languages, such as 'de-en'")
        if (self.corpus == "files") != (self.files is not None):
            raise ValueError(
                f"corpus={self.corpus!r} with files={self.files!r}: allowed is corpus='files' with files, or neither"
            )

    @property
    def has_subwords(self) -> bool:
        """Whether tokens are parts of words, so that scores on words need tokens of their own."""
        return self.tokenizer == "moses-bpe" or self.tokenizer.startswith("sentencepiece")

    @property
    def source_language(self) -> str:
        return self.direction.split("-")[0]

    @property
    def target_language(self) -> str:
        return self.direction.split("-")[1]


@dataclass(frozen=True, kw_only=True)
class DecodingSpec:
    """How the test set is translated.

    `beam` 1 is greedy. Beam search ranks hypotheses by log-probability divided by a function of their length, `<eos>`
    included, with the exponent `length_penalty`: ((5 + length) / 6) ** length_penalty with the `length_formula` "wu"
    (Wu et al. 2016, equation 14), or length ** length_penalty with "power", as in fairseq, where an exponent of 1 gives
    the mean log-probability of a token. `unknown` says whether a translation may contain `<unk>`: "never", as most
    translation toolkits decide, or "allowed", as in the tutorials.
    """

    beam: int = 1
    length_penalty: float = 0.6
    max_tokens: int = 50
    batch_size: int = 128
    unknown: Unknown = "never"
    length_formula: LengthFormula = "wu"

    def __post_init__(self) -> None:
        _check(self, beam=1, max_tokens=1, batch_size=1)
        for name, most in (("beam", 1_000), ("max_tokens", LARGEST_COUNT), ("batch_size", LARGEST_COUNT)):
            if getattr(self, name) > most:
                raise ValueError(f"{name}={getattr(self, name)!r}: allowed is a whole number of at most {most:,}")
        if not self.length_penalty >= 0:
            raise ValueError(f"length_penalty={self.length_penalty!r}: allowed is a number of at least 0")


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: a variant, its recipe, how it is trained, on what, where, and from which seed.

    `budget` says which table the run belongs to: "controlled" (one training for all recipes), "source" (each as its
    source trains it), "tuned" (as controlled, but with the learning rate that a pilot chose for the recipe) or "pilot"
    (a short run that helps to choose this rate).
    `variant` is a registered name or "package.module:NAME". `recipe` is None where that names a builder, which knows
    its own. `updates` ends training early after so many updates (None: all epochs). `threads` is the number of CPU
    threads. `backend` is what Keras runs on, TensorFlow where nothing is said, and None in all other frameworks.
    `cuda_graphs` "on" has a Transformer's updates and decoding in torch captured as CUDA graphs and replayed, on a GPU.

    Raises: ValueError naming the field, its value and what is allowed.
    """

    variant: str
    recipe: Recipe | None
    training: Training = field(default_factory=Training)
    data: DataSpec = field(default_factory=DataSpec)
    decoding: DecodingSpec = field(default_factory=DecodingSpec)
    budget: Budget = "controlled"
    framework: str = "torch"
    backend: Backend | None = None
    device: str = "cpu"
    precision: Precision = "float32"
    cuda_graphs: CudaGraphs = "off"
    threads: int = 2
    seed: int = 0
    updates: int | None = None

    def __post_init__(self) -> None:
        _check(self, threads=1, seed=0, updates=1)
        if self.seed >= 2**63:
            raise ValueError(
                f"seed={brief(self.seed)}: allowed is a whole number below 2^63, which a checkpoint can hold"
            )
        if self.framework == "keras" and self.backend is None:
            object.__setattr__(self, "backend", typing.get_args(Backend)[0])
        if self.framework != "keras" and self.backend is not None:
            raise ValueError(
                f"backend={self.backend!r} with framework={self.framework!r}: allowed is framework 'keras'"
            )
        if self.backend is not None and self.backend not in typing.get_args(Backend):
            raise ValueError(f"backend={self.backend!r}: allowed is {', '.join(typing.get_args(Backend))}")
        if self.cuda_graphs == "on":
            self._check_cuda_graphs()
        positions = getattr(self.recipe, "max_length", None)
        if positions is not None and self.data.max_length > positions:
            raise ValueError(
                f"data.max_length={self.data.max_length}: allowed is at most recipe.max_length={positions}"
            )
        if positions is not None and self.decoding.max_tokens >= positions:
            raise ValueError(
                f"decoding.max_tokens={self.decoding.max_tokens}: allowed is less than recipe.max_length={positions}"
            )

    def _check_cuda_graphs(self) -> None:
        """Raise ValueError where updates cannot be captured: the others' programs differ from update to update."""
        wrong = {
            f"framework={self.framework!r}": self.framework != "torch",
            f"device={brief(self.device)}": not self.device.startswith("cuda"),
            f"variant={brief(self.variant)}": not isinstance(self.recipe, TransformerRecipe),
        }
        named = [name for name, is_wrong in wrong.items() if is_wrong]
        if named:
            raise ValueError(
                f"cuda_graphs='on' with {' and '.join(named)}: allowed is framework='torch', a device that begins with "
                f"'cuda' and a variant that is a {TransformerRecipe.__name__}"
            )

    @property
    def computes(self) -> str:
        """The framework that computes: Keras's backend, or the framework itself."""
        return self.backend or self.framework

    @property
    def id(self) -> str:
        """The variant, the seed and a digest of every setting: the same settings, the same id."""
        settings = to_json(self)
        if settings["recipe"]:
            settings["recipe"] = {k: v for k, v in settings["recipe"].items() if k not in ("name", "source")}
        for (part, name), earlier in ADDED_FIELDS.items():
            if settings[part] and settings[part].get(name, earlier) == earlier:
                settings[part].pop(name, None)
        if self.backend is None:
            del settings["backend"]
        if self.cuda_graphs == "off":
            del settings["cuda_graphs"]
        digest = hashlib.sha256(canonical_json(settings).encode()).hexdigest()
        name = "".join(letter if letter.isalnum() else "_" for letter in self.variant)
        return f"{name}-{self.data.corpus}-{self.data.direction}-{self.budget}-s{self.seed}-{digest[:10]}"


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """One line of the learning curve.

    Units: losses in nats per target word; `training_loss` is what was minimised (label smoothing included),
    `training_perplexity` and the validation figures are unsmoothed, and None where they are not finite.
    `learning_rate` is the last update's. `updates` counts from the start of training, `tokens` (target words to
    predict) from the start of the epoch.
    """

    epoch: int
    updates: int
    tokens: int
    learning_rate: float
    training_loss: float | None
    training_perplexity: float | None
    validation_loss: float | None
    validation_perplexity: float | None
    largest_gradient_norm: float | None
    training_seconds: float
    validation_seconds: float


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """What a run gave, and the evidence of what it was given.

    `fingerprints`: SHA-256 digests. `files` (name -> digest of the corpus text), `source_vocabulary`,
    `target_vocabulary`, `tokenised` (all ids of all splits), `batches` (number of updates -> chained digest of the
    batches passed to the model so far, see `harness.data.batch_digest`), `stream` (the last of these), `weights_after`
    (number of updates -> digest of the weights), `weights` (canonical name -> digest of the initial tensor),
    `hypotheses` (the stored translations),
    `trained_weights` (the stored checkpoint), `sentences` (what each test sentence adds to the scores) and `attention`
    (that of the first of them); older records are without the last two.
    `environment`: versions, commit, machine, threads, backend. `sizes`: parameters, vocabulary sizes, pairs, cut and
    left-out sentences, unknown-word rates. `chosen_epochs`: the epochs whose weights were kept (averaged if several).
    `scores`: figures of the test set by name; `signatures`: how each BLEU and chrF was computed, by the same name.
    `speed`: seconds and rates by name. `decode`: ties, unfinished hypotheses and unknown tokens.
    Losses and perplexities that are not finite are stored as None, with status "diverged".
    """

    schema: ClassVar[int] = RECORD_SCHEMA

    id: str
    spec: RunSpec
    status: Status
    reason: str = ""
    note: str = ""
    started: str = ""
    command: str = ""
    fingerprints: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, float] = field(default_factory=dict)
    curve: tuple[EpochRecord, ...] = ()
    chosen_epochs: tuple[int, ...] = ()
    scores: dict[str, float | None] = field(default_factory=dict)
    signatures: dict[str, str] = field(default_factory=dict)
    speed: dict[str, float] = field(default_factory=dict)
    decode: dict[str, int] = field(default_factory=dict)


# JSON -----------------------------------------------------------------------------------------------------------------


def canonical_json(value: Any) -> str:
    """Return JSON text with sorted keys and no spaces. Raises: ValueError for NaN and infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def to_json(value: Any) -> Any:
    """Return dataclasses, tuples and dicts as what `json` writes; recipes carry their family, records their schema."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {one.name: to_json(getattr(value, one.name)) for one in dataclasses.fields(value)}
        if isinstance(value, TransformerRecipe | GruRecipe | TorchReferenceRecipe):
            found = {"family": value.family, **found}
        if isinstance(value, RunRecord):
            found = {"schema": value.schema, **found}
        return found
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    if isinstance(value, dict):
        return {key: to_json(one) for key, one in value.items()}
    return value


def spec_from_json(value: Any) -> RunSpec:
    """Read a `RunSpec` back. Raises: ValueError naming the field that is unknown, missing or of the wrong type."""
    found: RunSpec = _read(RunSpec, value, "spec")
    return found


def record_from_json(value: Any) -> RunRecord:
    """Read a `RunRecord` back.

    Raises: ValueError where the schema is another, or naming the field that is unknown, missing or of the wrong type.
    """
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema not in RECORD_SCHEMAS:
        raise ValueError(f"schema={brief(schema)}: expected one of {', '.join(map(str, RECORD_SCHEMAS))}")
    value = {name: part for name, part in value.items() if name != "schema"}
    record: RunRecord = _read(RunRecord, completed(value) if schema == 1 else value, "record")
    return record


def completed(value: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of a record of version 1 with the fields that later versions added to its spec."""
    spec = value.get("spec")
    if not isinstance(spec, dict):
        return value
    spec = dict(spec)
    for (part, name), earlier in ADDED_FIELDS.items():
        settings = spec.get(part)
        if isinstance(settings, dict) and (part != "recipe" or settings.get("family") == TransformerRecipe.family):
            spec[part] = {name: earlier, **settings}
    return {**value, "spec": spec}


def epochs_from_json(value: Any) -> list[EpochRecord]:
    """Read a learning curve back. Raises: ValueError naming the field that is unknown, missing or of the wrong type."""
    return list(_read(tuple[EpochRecord, ...], value, "curve"))


def from_json(kind: Any, value: Any, where: str) -> Any:
    """Read JSON as an annotated type, such as a dataclass, back; `where` is what its fields are named after.

    Raises: ValueError naming the field that is unknown, missing or of the wrong type.
    """
    return _read(kind, value, where)


def _read(kind: Any, value: Any, where: str) -> Any:
    """Turn JSON into an instance of the annotated type `kind`, refusing what does not fit."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(typing.get_args(kind), value, where)
    if origin is Literal:
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(_read(typing.get_args(kind)[0], one, f"{where}[{index}]") for index, one in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: _read(typing.get_args(kind)[1], one, f"{where}.{key}") for key, one in value.items()}
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _read_dataclass(kind, value, where)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind is Any or (isinstance(kind, type) and type(value) is kind):
        return value
    raise ValueError(f"{where}={brief(value)}: allowed is {getattr(kind, '__name__', kind)}")


def _read_union(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if isinstance(value, dict) and "family" in value:
        family = value["family"]
        if family not in RECIPE_TYPES:
            raise ValueError(f"{where}.family={brief(family)}: allowed is {', '.join(RECIPE_TYPES)}")
        return _read(RECIPE_TYPES[family], {k: v for k, v in value.items() if k != "family"}, where)
    if len(kinds) != 1:
        raise ValueError(f"{where}={brief(value)}: allowed is a recipe with its family ({', '.join(RECIPE_TYPES)})")
    return _read(kinds[0], value, where)


def _read_dataclass(kind: Any, value: dict[str, Any], where: str) -> Any:
    hints = typing.get_type_hints(kind)
    known = {one.name: one for one in dataclasses.fields(kind)}
    for name in value:
        if name not in known:
            raise ValueError(f"{where}.{name[:80]}: there is no such field" + _suggestion(name[:80], known))
    for name, one in known.items():
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if required and name not in value:
            raise ValueError(f"{where}.{name}: missing")
    return kind(**{name: _read(hints[name], one, f"{where}.{name}") for name, one in value.items()})


# Overrides ------------------------------------------------------------------------------------------------------------


def override(spec: RunSpec, setting: str) -> RunSpec:
    """Return `spec` with one setting changed, written as on the command line: "recipe.dropout=0.3".

    The value is read as the field's own type; "none" empties an optional field.

    Raises: ValueError naming an unknown field and the nearest one, or a value that does not fit.
    """
    path, equals, text = setting.partition("=")
    if not equals:
        raise ValueError(f"--set {setting}: allowed is FIELD=VALUE, such as recipe.dropout=0.3")
    changed: RunSpec = _override(spec, path.strip().split("."), text.strip(), setting)
    return changed


def overridden(spec: RunSpec, settings: Iterable[str]) -> RunSpec:
    """Return `spec` with several settings changed, one after the other. Raises: as `override` does."""
    # CUDA graphs last: whether they are allowed depends on the others.
    for setting in sorted(settings, key=lambda one: one.partition("=")[0].strip() == "cuda_graphs"):
        spec = override(spec, setting)
    return spec


def _override(settings: Any, path: list[str], text: str, setting: str) -> Any:
    name, rest = path[0], path[1:]
    known = [one.name for one in dataclasses.fields(settings)]
    if name not in known:
        raise ValueError(f"--set {setting}: there is no field {name!r}" + _suggestion(name, known))
    inner = getattr(settings, name)
    if dataclasses.is_dataclass(inner) and not isinstance(inner, type):
        if not rest:
            example = f"{name}.{dataclasses.fields(inner)[0].name}"
            raise ValueError(f"--set {setting}: {name!r} has fields of its own: name one, such as {example}")
        return replace(settings, **{name: _override(inner, rest, text, setting)})
    if rest:
        raise ValueError(f"--set {setting}: {name!r} has no field {rest[0]!r}")
    return replace(settings, **{name: _parse(typing.get_type_hints(type(settings))[name], text, setting)})


def _parse(kind: Any, text: str, setting: str) -> Any:
    kinds = typing.get_args(kind) if typing.get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in kinds and text.lower() == "none":
        return None
    for one in kinds:
        if one in (int, float):
            try:
                return one(text)
            except ValueError:
                continue
        if one is str or typing.get_origin(one) is Literal:
            return text
    allowed = " or ".join(getattr(one, "__name__", str(one)) for one in kinds)
    raise ValueError(f"--set {setting}: {text!r} does not fit: allowed is {allowed}")


def _suggestion(name: str, known: Any) -> str:
    return did_you_mean(name, known) or f" (there are {', '.join(known)})"
