"""The interface of every implementation: recipes, batches, and the `Seq2SeqModel` protocol.

Letters used throughout the repository: B sentences, S source positions, T target positions, V target vocabulary size,
D width, H heads, K head width, F feed-forward width. All arrays that cross this boundary are NumPy arrays: ids are
int32, numbers float32. Masks are boolean, true means visible; their variables are named `visible`.

Recipes and `Training` raise ValueError for a value that is not accepted; the message names the field.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from impls.field_checks import check_choices, check_counts, check_positive, check_rates, is_number, is_whole, reject

Ids = npt.NDArray[np.int32]
Numbers = npt.NDArray[np.float32]
Arrays = dict[str, npt.NDArray[Any]]

SPECIAL_TOKENS = ("<unk>", "<pad>", "<sos>", "<eos>")
UNK, PAD, SOS, EOS = range(4)
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
"""The Keras backends; the first is the default."""


@dataclass(frozen=True, kw_only=True)
class TransformerRecipe:
    """An encoder-decoder Transformer.

    These choices are the same for every recipe: sines and cosines interleaved; a bias on every projection; padding
    masked on the key side; scores divided by sqrt(K); gelu in its exact erf form.

    `dropout` applies after the embedding, to attention weights, inside the feed-forward and before each residual sum.
    `attention_dropout` and `activation_dropout` replace it for the attention weights and for the hidden units of the
    feed-forward; None means the same rate as `dropout`.
    `embedding_init` sets the initial values of word embeddings and learned positions: "xavier" (uniform, as in the
    Annotated Transformer), "normal" (standard deviation 1, as torch.nn.Embedding), or "width" (normal, standard
    deviation width ** -0.5, as in fairseq). With "width" and embedding_scale="sqrt_width" the scaled word embeddings
    have unit variance.
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
        check_choices(self)
        check_counts(self, "width", "layers", "heads", "ffn_width", "max_length")
        optional = ("attention_dropout", "activation_dropout")
        check_rates(self, "dropout", *(name for name in optional if getattr(self, name) is not None))
        if self.head_width is None:
            if self.width % self.heads:
                reject(self, "heads", f"a divisor of width={self.width}, unless head_width is given")
        else:
            check_counts(self, "head_width")
        if self.norm_epsilon is not None:
            check_positive(self, "norm_epsilon")
        if self.positions == "sinusoidal" and self.width % 2:
            reject(self, "width", "even with positions='sinusoidal'")
        if self.positions == "rotary" and self.key_width % 2:
            reject(self, "head_width", "even (or width / heads even) with positions='rotary'")

    @property
    def key_width(self) -> int:
        """K: `head_width`, by default width / heads."""
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
    def embedding_factor(self) -> float:
        """What word embeddings are multiplied by: sqrt(width) or 1."""
        return math.sqrt(self.width) if self.embedding_scale == "sqrt_width" else 1.0

    @property
    def epsilon(self) -> float:
        """The number that norms add to the variance: `norm_epsilon`, by default 1e-5 (handmade: 1e-9)."""
        if self.norm_epsilon is not None:
            return self.norm_epsilon
        return 1e-9 if self.norm == "handmade" else 1e-5

    def as_transformer(self) -> TransformerRecipe:
        """Return the recipe itself, as `TorchReferenceRecipe.as_transformer` returns an equivalent one."""
        return self


@dataclass(frozen=True, kw_only=True)
class GruRecipe:
    """An encoder-decoder GRU with additive attention (Bahdanau, Cho and Bengio 2015)."""

    family: ClassVar[str] = "gru"

    name: str = field(default="", compare=False)
    source: str = field(default="", compare=False)
    embedding_width: int = 256
    width: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        check_counts(self, "embedding_width", "width")
        check_rates(self, "dropout")


@dataclass(frozen=True, kw_only=True)
class TorchReferenceRecipe:
    """torch.nn's own Transformer layers.

    Learned positions, scaled embeddings, post-norm, ReLU and an untied output projection; only sizes are fields.
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
        check_counts(self, "width", "layers", "heads", "ffn_width", "max_length")
        check_rates(self, "dropout")
        if self.width % self.heads:
            reject(self, "heads", f"a divisor of width={self.width}")

    def as_transformer(self) -> TransformerRecipe:
        """Return the `TransformerRecipe` that computes the same function, tensor for tensor."""
        return TransformerRecipe(**{setting.name: getattr(self, setting.name) for setting in fields(self)})


@dataclass(frozen=True, kw_only=True)
class PlainRecipe(TorchReferenceRecipe):
    """The Transformer as tutorials write it: the choices of `TorchReferenceRecipe`, without any optimisation."""

    family: ClassVar[str] = "plain"


Recipe = TransformerRecipe | GruRecipe | TorchReferenceRecipe | PlainRecipe


@dataclass(frozen=True, kw_only=True)
class Training:
    """Training settings: Adam, a schedule, clipping, batching, and which weights are kept.

    `peak_rate` is the constant rate, or the highest of `inverse_sqrt`, reached after `warmup_updates`.
    `clip_norm` None switches clipping off. `label_smoothing` spreads that share of the probability evenly over the
    vocabulary. `teacher_forcing` is the probability that a recurrent decoder reads the reference token; Transformers
    always do. `averaged_epochs` 0 keeps the epoch with the lowest validation loss; n averages the weights of the last
    n epochs.

    `patience` is the number of epochs without a lower validation loss after which training stops; None trains all
    `epochs`. It cannot be combined with `averaged_epochs`: the last epochs before an early stop are never the best.

    `batching` is how sentence pairs are batched, anew in every epoch. "random" shuffles them into batches of
    `batch_size` pairs, "length" makes batches of `batch_size` pairs of similar length, and "tokens" makes batches of
    similar length with at most `batch_tokens`, which counts pairs times the longer side of the longest pair, as in
    fairseq.
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
    patience: int | None = None
    label_smoothing: float = 0.0
    teacher_forcing: float = 1.0
    averaged_epochs: int = 0

    def __post_init__(self) -> None:
        check_choices(self)
        check_counts(self, "batch_size", "batch_tokens", "epochs")
        check_rates(self, "beta1", "beta2", "label_smoothing")
        check_positive(self, "epsilon")
        if not is_number(self.peak_rate) or not self.peak_rate >= 0:
            reject(self, "peak_rate", "a number of at least 0")
        if self.clip_norm is not None:
            check_positive(self, "clip_norm", "a number above 0, or None for no clipping")
        if not is_number(self.teacher_forcing) or not 0 <= self.teacher_forcing <= 1:
            reject(self, "teacher_forcing", "a number from 0 to 1")
        least = 1 if self.schedule == "inverse_sqrt" else 0
        if not is_whole(self.warmup_updates) or self.warmup_updates < least:
            reject(self, "warmup_updates", "a whole number of at least 0 (of at least 1 with inverse_sqrt)")
        if not is_whole(self.averaged_epochs) or not 0 <= self.averaged_epochs <= self.epochs:
            reject(self, "averaged_epochs", f"a whole number from 0 to epochs={self.epochs}")
        if self.patience is not None:
            check_counts(self, "patience")
            if self.averaged_epochs:
                accepted = f"None with averaged_epochs={self.averaged_epochs}: early stopping keeps the best epoch"
                reject(self, "patience", accepted)

    def teacher_forcing_mask(self, seed: int, update: int, positions: int) -> npt.NDArray[np.bool_]:
        """Return at which target positions the decoder reads the reference token in an update, bool [T].

        Elsewhere it reads its own most probable token of the position before. Position 0 is always `<sos>`. NumPy
        draws the mask from (seed, update), counting updates from 1, so every framework has the same one.
        """
        return np.random.default_rng([seed, update]).random(positions) < self.teacher_forcing


@dataclass(frozen=True)
class Batch:
    """Sentences padded on the right with PAD.

    Shapes: source [B,S], `<sos>` tokens `<eos>`; target_in [B,T], from `<sos>` on; target_out [B,T], up to `<eos>`.
    """

    source: Ids
    target_in: Ids
    target_out: Ids

    @property
    def tokens(self) -> int:
        """The number of target tokens to predict, including `<eos>` and excluding padding."""
        return int((self.target_out != PAD).sum())


@dataclass(frozen=True)
class Totals:
    """Sums over the updates since the last call; never means.

    Units: nats (natural logarithms), summed over target tokens. `objective_nats` is the minimised loss, including label
    smoothing; `nats` is the unsmoothed negative log-likelihood. `largest_gradient_norm` is before clipping.
    """

    objective_nats: float
    nats: float
    tokens: int
    updates: int
    largest_gradient_norm: float
    finite: bool


NO_TOTALS = Totals(objective_nats=0.0, nats=0.0, tokens=0, updates=0, largest_gradient_norm=0.0, finite=True)


@dataclass(frozen=True)
class Candidates:
    """The N best next tokens of each row, best first: natural log-probabilities over the vocabulary, and ids."""

    log_probabilities: Numbers
    tokens: Ids


class Decoding(Protocol):
    """Incremental decoding of a batch, with its cached keys and values or recurrent states."""

    def step(self, last: Ids, best: int) -> Candidates:
        """Feed the newest token of each row, [B], and return the `best` most probable next tokens."""

    def reorder(self, rows: npt.NDArray[np.intp]) -> None:
        """Keep, drop, repeat or reorder rows: row r continues what was row rows[r]."""


@runtime_checkable
class Seq2SeqModel(Protocol):
    """A trainable sequence-to-sequence model with NumPy arrays as its interface.

    The loops that call it:

        for batch in batches:                                          # train
            model.train_step(batch, learning_rate)
        totals = model.take_totals()
        loss = totals.objective_nats / totals.tokens

        nats = sum(model.token_nats(batch).sum() for batch in batches)  # evaluate
        perplexity = exp(nats / sum(batch.tokens for batch in batches))

        decoding, last = model.begin_decoding(source), full(B, SOS)    # decode greedily
        while not finished:
            last = decoding.step(last, best=1).tokens[:, 0]

    Loss, perplexity and search are computed outside, once for every model. All methods but `train_step` work in
    evaluation mode (no dropout), and do not change the model's random state.

    Models of the same recipe, seed and data start from the same weights and see the same batches. Dropout masks differ
    between frameworks.
    """

    @property
    def recipe(self) -> Any:
        """The frozen dataclass from which the model was built; None for a module in `impls.wrap`."""

    def train_step(self, batch: Batch, learning_rate: float) -> None:
        """Enqueue one update at `learning_rate`; never waits for the device."""

    def take_totals(self) -> Totals:
        """Wait for the device, return the sums since the last call, and reset them."""

    def token_nats(self, batch: Batch) -> Numbers:
        """Return the unsmoothed negative log-likelihood of each target token, [B,T]; 0 at padding."""

    def logits(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the logits of the next token at each position, [B,T,V]."""

    def begin_decoding(self, source: Ids) -> Decoding:
        """Encode `source` [B,S] and return its `Decoding`, before the first token."""

    def cross_attention(self, source: Ids, target_in: Ids) -> Numbers:
        """Return the attention weights of target on source positions, [B,layers,H,T,S]; each row sums to 1.

        A model without attention returns an array without layers, [B,0,0,T,S].
        """

    def weights(self) -> Arrays:
        """Return copies of all weights under their canonical names and in their canonical layouts."""

    def set_weights(self, weights: Arrays) -> None:
        """Replace all weights. Raises: ValueError naming what is missing, unexpected or misshaped."""

    def training_state(self) -> Arrays:
        """Return everything that an exact resume needs.

        `weights/NAME`, `first_moment/NAME`, `second_moment/NAME` for each canonical name; `updates`; `random/...`;
        and `totals/FIELD` for each field of `Totals`: the sums since the last `take_totals`, in full precision.
        After one update from zero moments without clipping and dropout, the gradient is first_moment / (1 - beta1).
        """

    def set_training_state(self, state: Arrays) -> None:
        """Continue from `training_state()`. Raises: ValueError naming what is missing, unexpected or misshaped."""

    def synchronize(self) -> None:
        """Wait until the device has finished all enqueued work."""


@dataclass(frozen=True)
class Compilation:
    """The compilations so far: the framework, whether by XLA, their number, and the time of their first calls."""

    backend: str
    jit_compile: bool
    count: int
    seconds: float


@runtime_checkable
class Observable(Protocol):
    """The additional method of a model whose loss can be read between two updates."""

    def peek_totals(self) -> Totals:
        """Wait for the device and return the sums since the last `take_totals`, without resetting them."""


@runtime_checkable
class Compiling(Protocol):
    """The additional method of a model that compiles."""

    def compilation(self) -> Compilation:
        """Return the compilations so far."""
