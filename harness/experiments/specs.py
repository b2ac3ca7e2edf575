"""Specifications of runs (`RunSpec`): frozen dataclasses that validate their values, and the ids of runs."""

from __future__ import annotations

import os
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import PurePath
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt

from harness.experiments.serialization import ByFamily, check_fields, from_json, json_digest, to_json
from harness.text import brief
from impls.contract import Backend, Recipe, Training, TransformerRecipe
from impls.field_checks import LARGEST_COUNT

CorpusName = Literal["multi30k", "captions", "files"]
Tokenizer = Literal["spacy", "moses", "moses-bpe", "sentencepiece-bpe", "sentencepiece-unigram", "whitespace"]
Case = Literal["lower", "kept"]
Vocabulary = Literal["separate", "joint"]
Budget = Literal["controlled", "source", "tuned", "pilot"]
Precision = Literal["float32", "bfloat16"]
MatmulPrecision = Literal["highest", "high", "medium"]
CudaGraphs = Literal["off", "on"]
Unknown = Literal["never", "allowed"]
LengthFormula = Literal["wu", "power"]
ADDED_FIELDS: dict[tuple[str, str], Any] = {
    ("", "backend"): None,
    ("", "matmul_precision"): "highest",
    ("", "cuda_graphs"): "off",
    ("training", "batching"): "length",
    ("training", "batch_tokens"): 4_096,
    ("training", "patience"): None,
    ("decoding", "unknown"): "allowed",
    ("decoding", "length_formula"): "wu",
    ("data", "merges"): 10_000,
    ("recipe", "attention_dropout"): None,
    ("recipe", "activation_dropout"): None,
}
"""Fields that were added later, by their part of `RunSpec` ("" for itself), with the value of earlier runs.

A field with this value is left out of the id of a run, so that a new field changes no existing id.
"""


@dataclass(frozen=True, kw_only=True)
class FileSpec:
    """The paths of the corpus `files`: two files per split with one sentence per line, or one TSV per split.

    A TSV file (source, tab, target) is given as the source, with an empty target.
    """

    train_source: str
    validation_source: str
    test_source: str
    train_target: str = ""
    validation_target: str = ""
    test_target: str = ""

    @classmethod
    def located(cls, paths: Mapping[str, str | PathLike[str]]) -> FileSpec:
        """Return the files at these paths, made absolute; a `~` at their beginning is the home folder."""
        return cls(**{name: os.path.abspath(os.path.expanduser(path)) for name, path in paths.items()})


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Everything that determines the ids a model sees. An invalid value raises a ValueError that names the field.

    Attributes:
        vocabulary: One vocabulary per language, or a joint one.
        minimum_frequency: Of words in the vocabularies of tokenizers without subwords.
        vocabulary_size: The number of SentencePiece's pieces.
        merges: The number of merges of "moses-bpe".
        max_length: The largest number of tokens, with `<sos>` and `<eos>`. Longer training pairs are left out, longer
            validation and test sentences are cut.
        training_pairs: Use only this number of training pairs, from the first; None for all.
        seed: The seed of the caption generator and of SentencePiece, not of training.
        files: The paths of the corpus "files".
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
        if not all(code.isalpha() and code.islower() for code in (source, target)) or source == target:
            raise ValueError(
                f"direction={brief(self.direction)}: expected two languages in lower case, such as 'de-en'"
            )
        if (self.corpus == "files") != (self.files is not None):
            raise ValueError(
                f"corpus={self.corpus!r} with files={brief(self.files)}: only the corpus 'files' has files, "
                "and it needs them"
            )

    @property
    def has_subwords(self) -> bool:
        """Whether tokens are parts of words, so that word-level scores need another tokenizer."""
        return self.tokenizer == "moses-bpe" or self.tokenizer.startswith("sentencepiece")

    @property
    def test_set(self) -> str:
        """The name of the test set for readers; only Multi30k has several."""
        if self.files is not None:
            return PurePath(self.files.test_source).name
        return self.test_split if self.corpus == "multi30k" else "its test split"

    @property
    def source_language(self) -> str:
        return self.direction.split("-")[0]

    @property
    def target_language(self) -> str:
        return self.direction.split("-")[1]


@dataclass(frozen=True, kw_only=True)
class DecodingSpec:
    """How the test set is translated.

    Attributes:
        beam: The beam size; 1 is greedy search.
        length_penalty: The exponent of the length by which beam search divides log-probabilities.
        length_formula: The function of the length, `<eos>` included: ((5 + length) / 6) ** length_penalty for "wu" (Wu
            et al. 2016, equation 14), length ** length_penalty for "power" (fairseq; with the exponent 1, hypotheses
            are ranked by their mean log-probability).
        max_tokens: The largest number of tokens of a translation.
        batch_size: The number of sentences that are translated at once.
        unknown: Whether a translation may contain `<unk>`: "never", as in most toolkits, or "allowed", as in the
            tutorials.
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
    """A run: a model, its training, data and decoding, and where it is run. An invalid value raises a ValueError.

    Attributes:
        variant: A registered name, or "package.module:NAME".
        recipe: The recipe; None if `variant` names an external builder.
        budget: The table that the run belongs to: "controlled" (the same training for all recipes), "source" (each as
            its source trains it), "tuned" (as controlled, with the learning rate that pilot runs chose for the recipe)
            or "pilot" (a short run for the choice of this rate).
        backend: The backend of Keras, by default TensorFlow; None for other frameworks.
        matmul_precision: How torch multiplies float32 matrices: "high" in TF32 on a GPU, "medium" also in bfloat16 on a
            CPU.
        cuda_graphs: "on" to capture the updates and decoding steps of a Transformer in torch as CUDA graphs.
        threads: The number of CPU threads, which a process that loads a stored model starts too.
        updates: Stop training after this number of updates; None for all epochs.
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
    matmul_precision: MatmulPrecision = "highest"
    cuda_graphs: CudaGraphs = "off"
    threads: Annotated[int, Ge(1), Le(1_024)] = 2
    seed: Annotated[int, Ge(0), Lt(2**63)] = 0
    updates: Annotated[int, Ge(1)] | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.framework == "keras" and self.backend is None:
            object.__setattr__(self, "backend", typing.get_args(Backend)[0])
        in_torch = self.framework == "torch"
        if self.backend is not None:
            self._check_fit("backend", "only 'keras' has backends", framework=self.framework == "keras")
        if self.matmul_precision != "highest":
            needs = "it needs framework='torch' and precision='float32'; use matmul_precision='highest', or "
            needs += "precision='bfloat16' in any framework"
            self._check_fit("matmul_precision", needs, framework=in_torch, precision=self.precision == "float32")
        if self.cuda_graphs == "on":  # only Transformers in torch repeat the same kernels
            is_transformer = isinstance(self.recipe, TransformerRecipe)
            needs = f"CUDA graphs need framework='torch', device='cuda' and a {TransformerRecipe.__name__}"
            on_gpu = self.device.startswith("cuda")
            self._check_fit("cuda_graphs", needs, framework=in_torch, device=on_gpu, variant=is_transformer)
        self.check_positions("recipe.max_length", getattr(self.recipe, "max_length", None))

    def check_positions(self, name: str, positions: int | None) -> None:
        """Raise ValueError if sentences may have more positions than the model, which has the limit under a name."""
        if positions is not None and self.data.max_length > positions:
            raise ValueError(f"data.max_length={self.data.max_length}: expected at most {name}={positions}")
        if positions is not None and self.decoding.max_tokens >= positions:
            raise ValueError(f"decoding.max_tokens={self.decoding.max_tokens}: expected less than {name}={positions}")

    def _check_fit(self, name: str, needs: str, **fits: bool) -> None:
        """Raise ValueError, which says what a setting needs, unless it fits each of these settings."""
        misfits = [f"{other}={brief(getattr(self, other))}" for other, fit in fits.items() if not fit]
        if misfits:
            raise ValueError(f"{name}={getattr(self, name)!r} with {' and '.join(misfits)}: {needs}")

    def check_tying(self) -> None:
        """Raise ValueError if languages share an embedding and no vocabulary; sizes may be equal by chance."""
        if getattr(self.recipe, "tying", "none") == "all" and self.data.vocabulary != "joint":
            raise ValueError(
                f"recipe.tying='all' with data.vocabulary={self.data.vocabulary!r}: one embedding for both languages "
                "needs one vocabulary: give --set data.vocabulary=joint"
            )

    @property
    def computes(self) -> str:
        """The framework that computes: the backend of Keras, else the framework."""
        return self.backend or self.framework

    @property
    def id(self) -> str:
        """The id of the run: the main settings and a digest of all settings. Equal settings have equal ids."""
        settings = to_json(self)
        if settings["recipe"]:
            settings["recipe"] = {k: v for k, v in settings["recipe"].items() if k not in ("name", "source")}
        for (part, name), earlier in ADDED_FIELDS.items():
            group = settings[part] if part else settings
            if group and group.get(name, earlier) == earlier:
                group.pop(name, None)
        digest = json_digest(settings)
        name = "".join(letter if letter.isalnum() else "_" for letter in self.variant)
        return f"{name}-{self.data.corpus}-{self.data.direction}-{self.budget}-s{self.seed}-{digest[:10]}"


def lengths_within(recipe: Recipe | None, data: DataSpec) -> dict[str, Any]:
    """Return `data` and the default decoding of a `RunSpec`, with no more tokens than a recipe has positions."""
    decoding = DecodingSpec()
    positions = getattr(recipe, "max_length", None)
    if positions is None:
        return {"data": data, "decoding": decoding}
    return {
        "data": replace(data, max_length=min(data.max_length, positions)),
        "decoding": replace(decoding, max_tokens=min(decoding.max_tokens, positions - 1)),
    }


def number_format(settings: Any) -> str:
    """Return the precision of a run or a speed measurement, such as "float32, matmul precision medium"."""
    precision, products = str(settings.precision), settings.matmul_precision
    return precision if products == "highest" else f"{precision}, matmul precision {products}"


def execution(settings: Any) -> str:
    """Return device, precision and CUDA graphs of a run or a speed measurement, as "cuda, float32, CUDA graphs"."""
    graphs = ", CUDA graphs" * (settings.cuda_graphs == "on")
    return f"{settings.device}, {number_format(settings)}{graphs}"


def spec_from_json(value: Any) -> RunSpec:
    """Return a `RunSpec` read from JSON. Raises: ValueError naming an unknown, missing or invalid field."""
    spec: RunSpec = from_json(RunSpec, value, "spec")
    return spec
