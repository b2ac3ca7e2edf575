"""What every implementation promises: recipes, batches, and the `Seq2SeqModel` protocol.

Letters used throughout the repository: B sentences, S source positions, T target positions, V target words, D width,
H heads, K head width, F feed-forward width. Everything that crosses this boundary is NumPy: ids are int32, numbers are
float32. Masks are boolean, true = visible, and live in variables named `visible`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, NoReturn, Protocol, get_args, get_origin, get_type_hints, runtime_checkable

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]

SPECIAL_TOKENS = ("<unk>", "<pad>", "<sos>", "<eos>")
UNK, PAD, SOS, EOS = range(4)
LARGEST_COUNT = 65_536
"""The most that a size of a recipe may be: a foreign one shall not take all memory, or all time."""


# Recipes: what a model is ---------------------------------------------------------------------------------------------

Positions = Literal["learned", "sinusoidal", "rotary", "alibi", "none"]
EmbeddingScale = Literal["sqrt_width", "none"]
EmbeddingInit = Literal["xavier", "normal", "width"]
Norm = Literal["layernorm", "handmade", "rms", "none"]
NormOrder = Literal["post", "pre"]
FeedForward = Literal["linear", "conv1d", "gated"]
Activation = Literal["relu", "gelu", "silu", "tanh"]
Tying = Literal["none", "output", "all"]
Schedule = Literal["constant", "inverse_sqrt"]
Batching = Literal["random", "length", "tokens"]
Backend = Literal["tensorflow", "jax", "torch"]
"""What Keras runs on; the first word is the default."""


def _refuse(settings: object, name: str, allowed: str) -> NoReturn:
    raise ValueError(f"{type(settings).__name__}.{name}={getattr(settings, name)!r}: allowed is {allowed}")


def _check_words(settings: object) -> None:
    """Raise ValueError for the first Literal field whose value is not one of its words."""
    for name, hint in get_type_hints(type(settings)).items():
        if get_origin(hint) is Literal and getattr(settings, name) not in get_args(hint):
            _refuse(settings, name, ", ".join(map(repr, get_args(hint))))


def _check_counts(settings: object, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            _refuse(settings, name, "a whole number of at least 1")
        if value > LARGEST_COUNT:
            _refuse(settings, name, f"a whole number of at most {LARGEST_COUNT:,}")


def _check_rate(settings: object, name: str) -> None:
    """Raise ValueError unless the field is a probability below 1."""
    value = getattr(settings, name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        _refuse(settings, name, "a number from 0 up to but not including 1")


@dataclass(frozen=True, kw_only=True)
class TransformerRecipe:
    """One encoder-decoder Transformer, in closed words.

    The same for every recipe and therefore not fields: sine and cosine interleaved; a bias on every projection; padding
    hidden on the key side; scores divided by sqrt(K); gelu in its exact erf form.

    `dropout` applies after the embedding, to attention weights, inside the feed-forward and before each residual sum.
    `attention_dropout` and `activation_dropout` replace it for the attention weights and for the hidden units of the
    feed-forward; None means the same rate as `dropout`.
    `embedding_init` sets the initial values of word embeddings and learned positions: "xavier" (uniform, as in the
    Annotated Transformer), "normal" (standard deviation 1, as torch.nn.Embedding), or "width" (normal, standard
    deviation width ** -0.5, as in fairseq). With "width" and embedding_scale="sqrt_width" the scaled word embeddings
    have unit variance.

    Raises:
        ValueError: A field has a value that is not accepted; the message names the field.
    """

    family: ClassVar[str] = "transformer"

    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    width: int = 256
    layers: int = 3
    heads: int = 8
    head_width: int | None = None
    ffn_width: int = 512
    dropout: float = 0.1
    attention_dropout: float | None = None
    activation_dropout: float | None = None
    max_length: int = 100
    positions: Positions = "learned"
    embedding_scale: EmbeddingScale = "sqrt_width"
    embedding_init: EmbeddingInit = "xavier"
    norm: Norm = "layernorm"
    norm_order: NormOrder = "post"
    norm_epsilon: float | None = None
    ffn: FeedForward = "linear"
    activation: Activation = "relu"
    tying: Tying = "none"

    def __post_init__(self) -> None:
        _check_words(self)
        _check_counts(self, "width", "layers", "heads", "ffn_width", "max_length")
        _check_rate(self, "dropout")
        for name in ("attention_dropout", "activation_dropout"):
            if getattr(self, name) is not None:
                _check_rate(self, name)
        if self.head_width is None:
            if self.width % self.heads:
                _refuse(self, "heads", f"a divisor of width={self.width}, unless head_width is given")
        else:
            _check_counts(self, "head_width")
        if self.norm_epsilon is not None and not self.norm_epsilon > 0:
            _refuse(self, "norm_epsilon", "a number above 0")
        if self.positions == "sinusoidal" and self.width % 2:
            _refuse(self, "width", "an even number where positions='sinusoidal'")
        if self.positions == "rotary" and self.key_width % 2:
            _refuse(self, "head_width", "an even number (or an even width / heads) where positions='rotary'")

    @property
    def key_width(self) -> int:
        """K: `head_width`, or width / heads where it is not given."""
        return self.width // self.heads if self.head_width is None else self.head_width

    @property
    def attention_rate(self) -> float:
        """The dropout rate of attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout

    @property
    def activation_rate(self) -> float:
        """The dropout rate of the feed-forward's hidden units."""
        return self.dropout if self.activation_dropout is None else self.activation_dropout

    @property
    def epsilon(self) -> float:
        """What the norm adds to the variance: `norm_epsilon`, or 1e-5 (handmade: 1e-9) where it is not given."""
        if self.norm_epsilon is not None:
            return self.norm_epsilon
        return 1e-9 if self.norm == "handmade" else 1e-5


@dataclass(frozen=True, kw_only=True)
class GruRecipe:
    """One encoder-decoder GRU with additive attention (Bahdanau, Cho and Bengio 2015).

    Raises: ValueError naming the field, its value and what is allowed.
    """

    family: ClassVar[str] = "gru"

    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    embedding_width: int = 256
    width: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        _check_counts(self, "embedding_width", "width")
        _check_rate(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class TorchReferenceRecipe:
    """torch.nn's own Transformer layers: what a user would take instead of writing them.

    Learned positions, scaled embeddings, post-norm, ReLU and a free output projection, so only sizes are fields.

    Raises: ValueError naming the field, its value and what is allowed.
    """

    family: ClassVar[str] = "torch_reference"

    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    width: int = 256
    layers: int = 3
    heads: int = 8
    ffn_width: int = 512
    dropout: float = 0.1
    max_length: int = 100

    def __post_init__(self) -> None:
        _check_counts(self, "width", "layers", "heads", "ffn_width", "max_length")
        _check_rate(self, "dropout")
        if self.width % self.heads:
            _refuse(self, "heads", f"a divisor of width={self.width}")

    def as_transformer(self) -> TransformerRecipe:
        """Return the `TransformerRecipe` that computes the same function, tensor for tensor."""
        return TransformerRecipe(**{setting.name: getattr(self, setting.name) for setting in fields(self)})


@dataclass(frozen=True, kw_only=True)
class PlainRecipe(TorchReferenceRecipe):
    """The Transformer as tutorials write it: the choices of `TorchReferenceRecipe`, computed without any optimisation.

    Raises: ValueError naming the field, its value and what is accepted.
    """

    family: ClassVar[str] = "plain"


Recipe = TransformerRecipe | GruRecipe | TorchReferenceRecipe | PlainRecipe


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained: Adam, a schedule, clipping, batches, and which weights are kept.

    `peak_rate` is the constant rate, or the highest of `inverse_sqrt`, reached after `warmup_updates`.
    `clip_norm` None switches clipping off. `label_smoothing` spreads that share of the probability evenly over all
    words. `teacher_forcing` is the probability that a recurrent decoder is fed the right word; Transformers always are.
    `averaged_epochs` 0 keeps the epoch with the least validation loss; n averages the weights of the last n epochs.

    `batching` says how sentence pairs are put into batches, anew in every epoch:

    - "random": shuffled and cut into batches of `batch_size` pairs, as the tutorials' iterator does.
    - "length": batches of `batch_size` pairs of similar length.
    - "tokens": pairs of similar length, as many as fit into `batch_tokens`, which counts pairs times the longer side of
      the longest pair, as fairseq does. `batch_size` is not used.

    Raises:
        ValueError: A field has a value that is not accepted; the message names the field.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    schedule: Schedule = "constant"
    peak_rate: float = 5e-4
    warmup_updates: int = 0
    clip_norm: float | None = 1.0
    batching: Batching = "random"
    batch_size: int = 128
    batch_tokens: int = 4_096
    epochs: int = 10
    label_smoothing: float = 0.0
    teacher_forcing: float = 1.0
    averaged_epochs: int = 0

    def __post_init__(self) -> None:
        _check_words(self)
        _check_counts(self, "batch_size", "batch_tokens", "epochs")
        for name in ("beta1", "beta2", "label_smoothing"):
            _check_rate(self, name)
        if not self.epsilon > 0:
            _refuse(self, "epsilon", "a number above 0")
        if not self.peak_rate >= 0:
            _refuse(self, "peak_rate", "a number of at least 0")
        if self.clip_norm is not None and not self.clip_norm > 0:
            _refuse(self, "clip_norm", "a number above 0, or None for no clipping")
        if not 0 <= self.teacher_forcing <= 1:
            _refuse(self, "teacher_forcing", "a number from 0 to 1")
        if self.warmup_updates < 0 or (self.schedule == "inverse_sqrt" and self.warmup_updates < 1):
            _refuse(self, "warmup_updates", "a whole number of at least 0 (of at least 1 with inverse_sqrt)")
        if not 0 <= self.averaged_epochs <= self.epochs:
            _refuse(self, "averaged_epochs", f"a whole number from 0 to epochs={self.epochs}")

    def teacher_forcing_mask(self, seed: int, update: int, positions: int) -> npt.NDArray[np.bool_]:
        """Return for each target position whether update number `update`, from 1, feeds the right word: bool [T].

        Position 0 is `<sos>` in any case; a False at t feeds the word that the model itself found most probable at
        t - 1. Drawn by NumPy from (seed, update), so that every framework flips the same coins.
        """
        return np.random.default_rng([seed, update]).random(positions) < self.teacher_forcing


# What crosses the boundary --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """Sentences padded on the right with PAD.

    Shapes: source [B,S], `<sos>` words `<eos>`; target_in [B,T], from `<sos>` on; target_out [B,T], up to `<eos>`.
    """

    source: Ids
    target_in: Ids
    target_out: Ids

    @property
    def tokens(self) -> int:
        """The number of target words to predict, `<eos>` included and padding excluded."""
        return int((self.target_out != PAD).sum())


@dataclass(frozen=True)
class Totals:
    """Sums over the updates since the last call; never means.

    Units: nats, natural logarithms summed over target words. `objective_nats` is what was minimised, label smoothing
    included; `nats` is the unsmoothed negative log-likelihood of the same words.
    """

    objective_nats: float
    nats: float
    tokens: int
    updates: int
    largest_gradient_norm: float
    finite: bool


NO_TOTALS = Totals(objective_nats=0.0, nats=0.0, tokens=0, updates=0, largest_gradient_norm=0.0, finite=True)
"""The totals of no update."""


@dataclass(frozen=True)
class Candidates:
    """The N best next words of each row, best first.

    Shapes: log_probabilities [B,N] float32 (natural logarithms over the whole vocabulary), tokens [B,N] int32.
    """

    log_probabilities: Numbers
    tokens: Ids


class Decoding(Protocol):
    """Sentences half way through decoding, with their cached keys and values (or recurrent state)."""

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest word of each row, [B], and return the `best` most probable next words."""

    def reorder(self, rows: npt.NDArray[np.intp]) -> None:
        """Keep, drop, repeat or reorder rows: row r of what follows is row rows[r] of what was."""


@runtime_checkable
class Seq2SeqModel(Protocol):
    """A trainable sequence-to-sequence model on some device, behind NumPy arrays.

    The loops that call it, in full:

        for batch in batches:                                          # train
            model.train_step(batch, learning_rate)
        totals = model.take_totals()
        loss = totals.objective_nats / totals.tokens

        nats = sum(model.token_nats(batch).sum() for batch in batches)  # evaluate
        perplexity = exp(nats / sum(batch.tokens for batch in batches))

        decoding, last = model.begin_decoding(source), full(B, SOS)    # decode greedily
        while not finished:
            last = decoding.step(last, best=1).tokens[:, 0]

    Loss, perplexity and search are not members: they are computed once, outside, for every model. All methods but
    `train_step` work in evaluation mode (no dropout), and none leaves a trace in the model's random state.

    Two models of the same recipe, seed and data start from the same weights and see the same batches. Their dropout
    masks are the same only within one framework: PyTorch and each Keras backend draw their own, so a difference between
    frameworks includes the noise of dropout.
    """

    @property
    def recipe(self) -> Any:
        """The frozen dataclass the model was built from."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Enqueue one update at `learning_rate`; never waits for the device."""

    def take_totals(self) -> Totals:
        """Wait for the device, return what was summed since the last call, and reset the sums."""

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target word, [B,T]; 0 at padding."""

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the unnormalised log-probabilities of the next word at each position, [B,T,V]."""

    def begin_decoding(self, source: Ids) -> Decoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first word."""

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the weights of target positions on source positions, [B,layers,H,T,S]; each row sums to 1."""

    def weights(self) -> Arrays:
        """Return copies of all weights under their canonical names and in their canonical layouts."""

    def set_weights(self, weights: Arrays) -> None:
        """Replace all weights. Raises: ValueError naming what is missing, unexpected or misshaped."""

    def training_state(self) -> Arrays:
        """Return all that an exact resume needs.

        `weights/NAME`, `first_moment/NAME`, `second_moment/NAME` for each canonical name; `updates`; `random/...`;
        and `totals/FIELD` for each field of `Totals`: the sums since the last `take_totals`, in the precision in
        which they are summed, so that a resume in the middle of an epoch changes none of their bits.
        After one update from zero moments, clipping and dropout off, the gradient is first_moment / (1 - beta1).
        """

    def set_training_state(self, state: Arrays) -> None:
        """Go on from `training_state()`, the sums of `take_totals` included; one without them is refused.

        Raises: ValueError naming what is missing, unexpected or misshaped.
        """

    def synchronize(self) -> None:
        """Return when the device has finished all work that was enqueued."""


@dataclass(frozen=True)
class Compilation:
    """What a framework that compiles has compiled so far.

    `backend` is the framework that computes; `jit_compile` whether by XLA. Units: seconds, those of the first call of
    each compiled function, its run included.
    """

    backend: str
    jit_compile: bool
    count: int
    seconds: float


@runtime_checkable
class Compiling(Protocol):
    """What a model that compiles has besides the members of `Seq2SeqModel`."""

    def compilation(self) -> Compilation:
        """Return what was compiled so far."""


class Builder(Protocol):
    """A callable from outside that `--variant package.module:NAME` may name."""

    def __call__(
        self,
        source_vocabulary_size: int,
        target_vocabulary_size: int,
        *,
        training: Training,
        seed: int,
        device: str,
        precision: str,
    ) -> Seq2SeqModel:
        """Build a model for vocabularies of these sizes."""
