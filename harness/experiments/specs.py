"""What a run is (`RunSpec`): frozen dataclasses that are validated when they are built, and the ids of runs."""

from __future__ import annotations

import hashlib
import typing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt

from harness.experiments.serialization import ByFamily, canonical_json, check_fields, from_json, to_json
from harness.text import brief
from impls.contract import LARGEST_COUNT, Backend, Recipe, Training, TransformerRecipe

SCHEMA = 1
"""The version of manifests and exported documents."""

CorpusName = Literal["multi30k", "captions", "files"]
Tokenizer = Literal["spacy", "moses", "moses-bpe", "sentencepiece-bpe", "sentencepiece-unigram", "whitespace"]
Case = Literal["lower", "kept"]
Vocabulary = Literal["separate", "joint"]
Budget = Literal["controlled", "source", "tuned", "pilot"]
Precision = Literal["float32", "bfloat16"]
CudaGraphs = Literal["off", "on"]
Unknown = Literal["never", "allowed"]
LengthFormula = Literal["wu", "power"]
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
    minimum_frequency: Annotated[int, Ge(1)] = 2
    vocabulary_size: Annotated[int, Ge(8)] = 8_000
    merges: Annotated[int, Ge(1)] = 10_000
    max_length: Annotated[int, Ge(3)] = 100
    training_pairs: Annotated[int, Ge(1)] | None = None
    seed: Annotated[int, Ge(0)] = 0
    files: FileSpec | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        source, _, target = self.direction.partition("-")
        if not (source.isalpha() and target.isalpha()) or source == target:
            raise ValueError(f"direction={brief(self.direction)}: expected two languages, such as 'de-en'")
        if (self.corpus == "files") != (self.files is not None):
            raise ValueError(
                f"corpus={self.corpus!r} with files={brief(self.files)}: only the corpus 'files' has files, "
                "and it needs them"
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

    beam: Annotated[int, Ge(1), Le(1_000)] = 1
    length_penalty: Annotated[float, Ge(0)] = 0.6
    max_tokens: Annotated[int, Ge(1), Le(LARGEST_COUNT)] = 50
    batch_size: Annotated[int, Ge(1), Le(LARGEST_COUNT)] = 128
    unknown: Unknown = "never"
    length_formula: LengthFormula = "wu"

    def __post_init__(self) -> None:
        check_fields(self)


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
    recipe: Annotated[Recipe | None, ByFamily()]
    training: Training = field(default_factory=Training)
    data: DataSpec = field(default_factory=DataSpec)
    decoding: DecodingSpec = field(default_factory=DecodingSpec)
    budget: Budget = "controlled"
    framework: str = "torch"
    backend: Backend | None = None
    device: str = "cpu"
    precision: Precision = "float32"
    cuda_graphs: CudaGraphs = "off"
    threads: Annotated[int, Ge(1)] = 2
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    updates: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.framework == "keras" and self.backend is None:
            object.__setattr__(self, "backend", typing.get_args(Backend)[0])
        if self.framework != "keras" and self.backend is not None:
            raise ValueError(f"backend={self.backend!r} with framework={self.framework!r}: only 'keras' has backends")
        if self.cuda_graphs == "on":
            self._check_cuda_graphs()
        positions = getattr(self.recipe, "max_length", None)
        if positions is not None and self.data.max_length > positions:
            raise ValueError(f"data.max_length={self.data.max_length}: expected at most recipe.max_length={positions}")
        if positions is not None and self.decoding.max_tokens >= positions:
            raise ValueError(
                f"decoding.max_tokens={self.decoding.max_tokens}: expected less than recipe.max_length={positions}"
            )

    def _check_cuda_graphs(self) -> None:
        """Raise ValueError if updates cannot be captured: only Transformers in torch repeat the same kernels."""
        wrong = {
            f"framework={self.framework!r}": self.framework != "torch",
            f"device={brief(self.device)}": not self.device.startswith("cuda"),
            f"variant={brief(self.variant)}": not isinstance(self.recipe, TransformerRecipe),
        }
        named = [name for name, is_wrong in wrong.items() if is_wrong]
        if named:
            raise ValueError(
                f"cuda_graphs='on' with {' and '.join(named)}: CUDA graphs need framework='torch', device='cuda' and "
                f"a {TransformerRecipe.__name__}"
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


def spec_from_json(value: Any) -> RunSpec:
    """Return a `RunSpec` read from JSON. Raises: ValueError naming a field that is unknown, missing or not accepted."""
    spec: RunSpec = from_json(RunSpec, value, "spec")
    return spec
