"""Every `TransformerRecipe` in Keras 3: a second implementation that shares no layer with the one in torch.

Source: Vaswani et al. 2017, section 3, and the sources of the recipe's choices. It uses only `keras.layers` and
`keras.ops`, so that it runs on TensorFlow, JAX and torch. Layers have the canonical names of their weights, with "-"
instead of ".", which Keras on torch does not accept. Shapes use the repository's letters: B sentences, S source
positions, T target positions, V vocabulary size, D width, H heads, K head width.
"""

from __future__ import annotations

from typing import Any

from impls.contract import PAD, TransformerRecipe
from impls.keras3.backends import Tensor, layers, ops
from impls.keras3.keras_packing import Packing, pack, pack_positions, unpack
from impls.keras3.keras_positions import linear_biases, rotate, sinusoids

State = dict[str, Tensor]
"""The state of incremental decoding by name; the first dimension of each tensor is the row."""

MASKED_SCORE = -1e9
"""Added to the score of a masked key: its weight is exactly 0, and a row without a visible key stays finite."""

INITIAL_CAPACITY = 16
"""The initial number of target positions of the caches, which double when they are full."""

VARIABLES = {
    "embeddings": "",
    "kernel": ".kernel",
    "bias": ".bias",
    "gamma": ".scale",
    "scale": ".scale",
    "beta": ".shift",
}
"""Keras's names of layer variables, and the endings of their canonical names."""


def activation(word: str, x: Tensor) -> Tensor:
    """Return relu, silu, tanh, or gelu in its exact erf form, of x."""
    return ops.gelu(x, approximate=False) if word == "gelu" else getattr(ops, word)(x)


class HandmadeLayerNorm(layers.Layer):
    """Brings each position to mean 0 and variance 1 over the width, then scales and shifts. Shapes: [..., D].

    Source: Ba, Kiros and Hinton 2016, equation 3; the variance is the biased one and epsilon stands inside the root.
    """

    def __init__(self, width: int, epsilon: float, **settings: Any) -> None:
        super().__init__(**settings)
        self.epsilon = epsilon
        self.scale = self.add_weight(shape=(width,), name="scale", initializer="ones")
        self.shift = self.add_weight(shape=(width,), name="beta", initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        """Return the normalised x."""
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        return self.scale * centred / ops.sqrt(variance + self.epsilon) + self.shift


def norm(recipe: TransformerRecipe, name: str) -> Any:
    """Return the norm that the recipe names."""
    if recipe.norm == "layernorm":
        return layers.LayerNormalization(epsilon=recipe.epsilon, name=name)
    if recipe.norm == "handmade":
        return HandmadeLayerNorm(recipe.width, recipe.epsilon, name=name)
    if recipe.norm == "rms":
        return layers.RMSNormalization(epsilon=recipe.epsilon, name=name)
    return layers.Identity(name=name)


class Embedder(layers.Layer):
    """Token embedding, scaled if the recipe says so, plus positions, then dropout. Shapes: [B,T], [T] to [B,T,D]."""

    def __init__(self, recipe: TransformerRecipe, side: str, embedding: Any) -> None:
        super().__init__(name=f"{side}-embedder")
        self.embedding = embedding
        self.scale = recipe.embedding_factor
        self.learned = None
        if recipe.positions == "learned":
            self.learned = layers.Embedding(recipe.max_length, recipe.width, name=f"{side}-positions")
        self.fixed = recipe.positions == "sinusoidal"
        self.max_length = recipe.max_length
        self.dropout = layers.Dropout(recipe.dropout, seed=0)

    def call(self, words: Tensor, positions: Tensor, training: bool = False) -> Tensor:
        """Embed tokens at `positions`."""
        x = self.embedding(words) * self.scale
        if self.learned is not None:
            x = x + self.learned(positions)
        elif self.fixed:
            table = sinusoids(self.max_length, x.shape[-1])
            x = x + ops.cast(ops.take(table, positions, axis=0), x.dtype)
        return self.dropout(x, training=training)


class Attention(layers.Layer):
    """Multi-head scaled dot-product attention (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, recipe: TransformerRecipe, name: str, *, rotary: bool) -> None:
        super().__init__(name=name)
        self.heads, self.key_width, self.rotary = recipe.heads, recipe.key_width, rotary
        self.max_length = recipe.max_length
        inner = recipe.heads * recipe.key_width
        self.query, self.key, self.value = (
            layers.Dense(inner, name=f"{name}-{projection}") for projection in ("query", "key", "value")
        )
        self.output_projection = layers.Dense(recipe.width, name=f"{name}-output")
        self.dropout = layers.Dropout(recipe.attention_rate, seed=0)

    def split(self, x: Tensor, packing: Packing | None) -> Tensor:
        """Split the heads. Shapes: [B,T,HK], or packed [1,N,HK], to [B,H,T,K]."""
        x = unpack(x, packing)
        batch, length = ops.shape(x)[:2]
        return ops.transpose(ops.reshape(x, (batch, length, self.heads, self.key_width)), (0, 2, 1, 3))

    def queries(self, x: Tensor, positions: Tensor | None = None, packing: Packing | None = None) -> Tensor:
        """Return the queries of x [B,T,D] or [1,N,D], divided by sqrt(K). Shapes: [B,H,T,K]."""
        query = self.split(self.query(x), packing) * self.key_width**-0.5
        return rotate(query, positions, self.max_length) if self.rotary else query

    def keys_and_values(
        self, x: Tensor, positions: Tensor | None = None, packing: Packing | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of x [B,S,D] or [1,N,D], each [B,H,S,K]."""
        key, value = self.split(self.key(x), packing), self.split(self.value(x), packing)
        return (rotate(key, positions, self.max_length) if self.rotary else key), value

    def weights(self, query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
        """Return the attention weights of queries on keys. Shapes: [B,H,T,S]."""
        scores = ops.cast(ops.matmul(query, ops.transpose(key, (0, 1, 3, 2))), "float32")
        # In mixed precision, Keras casts all float arguments of a layer to bfloat16, including the bias.
        return ops.cast(ops.softmax(scores + ops.cast(bias, "float32"), axis=-1), query.dtype)

    def call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor,
        packing: Packing | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the projected weighted sum of the values. Shapes: [B,T,D], or [1,N,D] for packed queries."""
        shares = self.dropout(self.weights(query, key, bias), training=training)
        mixed = ops.transpose(ops.matmul(shares, value), (0, 2, 1, 3))
        batch, length = ops.shape(mixed)[:2]
        mixed = ops.reshape(mixed, (batch, length, self.heads * self.key_width))
        return self.output_projection(pack(mixed, packing))


class FeedForward(layers.Layer):
    """The same two linear maps at each position, or convolutions of width 1. Shapes: [B,T,D] to [B,T,D].

    Gated: outer(activation(gate x) * inner x), Shazeer 2020 (GLU Variants Improve Transformer).
    """

    def __init__(self, recipe: TransformerRecipe, name: str) -> None:
        super().__init__(name=name)
        self.activation_name = recipe.activation

        def linear(width: int, part: str) -> Any:
            if recipe.ffn == "conv1d":
                return layers.Conv1D(width, 1, data_format="channels_last", name=f"{name}-{part}")
            return layers.Dense(width, name=f"{name}-{part}")

        self.inner, self.outer = linear(recipe.ffn_width, "inner"), linear(recipe.width, "outer")
        self.gate = linear(recipe.ffn_width, "gate") if recipe.ffn == "gated" else None
        self.dropout = layers.Dropout(recipe.activation_rate, seed=0)

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        """Return the feed-forward of each position."""
        hidden = self.inner(x)
        if self.gate is None:
            hidden = activation(self.activation_name, hidden)
        else:
            hidden = activation(self.activation_name, self.gate(x)) * hidden
        return self.outer(self.dropout(hidden, training=training))


class Residual(layers.Layer):
    """The surroundings of a sublayer: dropout, and a norm before (Xiong et al. 2020) or after the residual sum."""

    def __init__(self, recipe: TransformerRecipe, name: str) -> None:
        super().__init__(name=f"{name}-residual")
        self.norm = norm(recipe, f"{name}-norm")
        self.pre = recipe.norm_order == "pre"
        self.dropout = layers.Dropout(recipe.dropout, seed=0)

    def before(self, x: Tensor) -> Tensor:
        """Return the sublayer's input."""
        return self.norm(x) if self.pre else x

    def call(self, x: Tensor, change: Tensor, training: bool = False) -> Tensor:
        """Return x after a sublayer with the output `change`. Shapes: [B,T,D]."""
        x = x + self.dropout(change, training=training)
        return x if self.pre else self.norm(x)


class EncoderLayer(layers.Layer):
    """Self-attention and feed-forward."""

    def __init__(self, recipe: TransformerRecipe, name: str, feed_forward: Any) -> None:
        super().__init__(name=name)
        self.self_attention = Attention(recipe, f"{name}-self", rotary=recipe.positions == "rotary")
        self.after_self_attention = Residual(recipe, f"{name}-self")
        self.feed_forward = feed_forward(recipe, f"{name}-feed_forward")
        self.after_feed_forward = Residual(recipe, f"{name}-feed_forward")

    def attend_to_self(
        self, x: Tensor, positions: Tensor, bias: Tensor, packing: Packing | None = None, training: bool = False
    ) -> Tensor:
        """Return x after self-attention. Shapes: [B,T,D] or [1,N,D]."""
        normed = self.after_self_attention.before(x)
        query, (key, value) = (
            find(normed, positions, packing)
            for find in (self.self_attention.queries, self.self_attention.keys_and_values)
        )
        return self.after_self_attention(
            x, self.self_attention(query, key, value, bias, packing, training=training), training=training
        )

    def apply_feed_forward(self, x: Tensor, training: bool = False) -> Tensor:
        """Return x after the feed-forward. Shapes: [B,T,D] or [1,N,D]."""
        change = self.feed_forward(self.after_feed_forward.before(x), training=training)
        return self.after_feed_forward(x, change, training=training)


class DecoderLayer(EncoderLayer):
    """Self-attention, attention on the source, and feed-forward."""

    def __init__(self, recipe: TransformerRecipe, name: str, feed_forward: Any) -> None:
        super().__init__(recipe, name, feed_forward)
        self.cross = Attention(recipe, f"{name}-cross", rotary=False)
        self.after_cross = Residual(recipe, f"{name}-cross")

    def attend_to_source(
        self,
        x: Tensor,
        memory: tuple[Tensor, Tensor],
        bias: Tensor,
        packing: Packing | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return x after attention on the source's keys and values. Shapes: [B,T,D] or [1,N,D]."""
        query = self.cross.queries(self.after_cross.before(x), packing=packing)
        return self.after_cross(x, self.cross(query, *memory, bias, packing, training=training), training=training)


class Output(layers.Layer):
    """Projects to the vocabulary with a separate kernel, or with the target embedding (Press and Wolf 2017)."""

    def __init__(self, recipe: TransformerRecipe, words: int, embedding: Any) -> None:
        super().__init__(name="output")
        self.embedding = None if recipe.tying == "none" else embedding
        if self.embedding is None:
            self.kernel = self.add_weight(shape=(recipe.width, words), name="kernel")
        self.bias = self.add_weight(shape=(words,), name="bias", initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        """Return logits. Shapes: [...,D] to [...,V]."""
        if self.embedding is None:
            return ops.matmul(x, self.kernel) + self.bias
        return ops.matmul(x, ops.transpose(ops.cast(self.embedding.embeddings, x.dtype))) + self.bias


class TransformerNetwork(layers.Layer):
    """The whole Transformer. A subclass may replace `feed_forward`, the class of these layers."""

    feed_forward = FeedForward

    def __init__(self, recipe: TransformerRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        super().__init__(name="network")
        self.max_length: int | None = recipe.max_length
        self.heads, self.key_width = recipe.heads, recipe.key_width
        self.alibi_heads = recipe.heads if recipe.positions == "alibi" else 0
        target = layers.Embedding(target_vocabulary_size, recipe.width, name="target-embedding")
        target.build()
        source = target
        if recipe.tying != "all":
            source = layers.Embedding(source_vocabulary_size, recipe.width, name="source-embedding")
        self.source, self.target = Embedder(recipe, "source", source), Embedder(recipe, "target", target)
        self.encoder = [EncoderLayer(recipe, f"encoder-{index}", self.feed_forward) for index in range(recipe.layers)]
        self.decoder = [DecoderLayer(recipe, f"decoder-{index}", self.feed_forward) for index in range(recipe.layers)]
        last = recipe.norm_order == "pre"
        self.encoder_norm, self.decoder_norm = (
            norm(recipe, f"{side}-norm") if last else layers.Identity() for side in ("encoder", "decoder")
        )
        self.project = Output(recipe, target_vocabulary_size, target)

    def build(self, source_shape: object, target_in_shape: object) -> None:
        """Do nothing: each inner layer is built when it is first called."""

    def _self_bias(self, queries: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """Return the bias of self-attention's scores at these positions. Shapes: [.,.,T,S]."""
        bias = ops.where(visible, 0.0, MASKED_SCORE)
        return bias + linear_biases(self.alibi_heads, queries, keys) if self.alibi_heads else bias

    def encode(self, source: Tensor, packing: Packing | None = None, training: bool = False) -> tuple[Tensor, Tensor]:
        """Return the encoded source [B,S,D] or [1,N,D], and the bias [B,1,1,S] that masks padding."""
        visible = ops.not_equal(source, PAD)[:, None, None, :]
        positions = ops.arange(ops.shape(source)[1])
        bias = self._self_bias(positions, positions, visible)
        x = self.source(pack(source, packing), pack_positions(packing, ops.shape(source)[1]), training=training)
        for layer in self.encoder:
            x = layer.apply_feed_forward(
                layer.attend_to_self(x, positions, bias, packing, training=training), training=training
            )
        return self.encoder_norm(x), ops.where(visible, 0.0, MASKED_SCORE)

    def call(
        self,
        source: Tensor,
        target_in: Tensor,
        packings: tuple[Packing, Packing] | None = None,
        training: bool = False,
        attention_maps: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the features that `project` turns into logits; append attention weights to `attention_maps`.

        Shapes: [B,T,D], or [1,N,D] with `packings` of source and target.
        """
        packed, packing = packings or (None, None)
        memory, memory_bias = self.encode(source, packed, training=training)
        positions = ops.arange(ops.shape(target_in)[1])
        # Padding is on the right, so the causal mask already hides it from all real positions.
        bias = self._self_bias(positions, positions, (positions[:, None] >= positions[None, :])[None, None])
        x = self.target(pack(target_in, packing), pack_positions(packing, ops.shape(target_in)[1]), training=training)
        for layer in self.decoder:
            x = layer.attend_to_self(x, positions, bias, packing, training=training)
            key, value = layer.cross.keys_and_values(memory, packing=packed)
            if attention_maps is not None:
                attention_maps.append(
                    layer.cross.weights(layer.cross.queries(layer.after_cross.before(x)), key, memory_bias)
                )
            x = layer.attend_to_source(x, (key, value), memory_bias, packing, training=training)
            x = layer.apply_feed_forward(x, training=training)
        return self.decoder_norm(x)

    def cross_attention(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return the attention weights of target on source positions. Shapes: [B,layers,H,T,S]."""
        attention_maps: list[Tensor] = []
        self.call(source, target_in, attention_maps=attention_maps)
        return ops.stack(attention_maps, axis=1)

    def prefill(self, source: Tensor) -> State:
        """Encode the source [B,S] and return the state before the first target token, with empty caches."""
        memory, bias = self.encode(source)
        empty = ops.zeros((ops.shape(source)[0], self.heads, INITIAL_CAPACITY, self.key_width), memory.dtype)
        state = {"bias": bias}
        for index, layer in enumerate(self.decoder):
            key, value = layer.cross.keys_and_values(memory)
            state |= {f"cross.{index}.key": key, f"cross.{index}.value": value}
            state |= {f"self.{index}.key": empty, f"self.{index}.value": empty}
        return state

    @staticmethod
    def with_capacity(state: State, position: int) -> State:
        """Return the state with caches that have capacity for `position`, doubled if necessary."""
        capacity = state["self.0.key"].shape[2]
        if position < capacity:
            return state
        more = [[0, 0], [0, 0], [0, capacity], [0, 0]]
        return {name: ops.pad(tensor, more) if name.startswith("self.") else tensor for name, tensor in state.items()}

    def step(self, state: State, last: Tensor, position: Tensor) -> tuple[Tensor, State]:
        """Feed the newest tokens [B] at `position` [1]; return the features of the logits, [B,D], and the state."""
        state = dict(state)
        x = self.target(last[:, None], position)
        keys = ops.arange(ops.shape(state["self.0.key"])[2])
        bias = self._self_bias(position, keys, (keys <= position)[None, None, None, :])
        for index, layer in enumerate(self.decoder):
            normed = layer.after_self_attention.before(x)
            for kind, new in zip(("key", "value"), layer.self_attention.keys_and_values(normed, position), strict=True):
                name = f"self.{index}.{kind}"
                state[name] = ops.slice_update(state[name], (0, 0, position[0], 0), new)
            key, value = state[f"self.{index}.key"], state[f"self.{index}.value"]
            x = layer.after_self_attention(
                x, layer.self_attention(layer.self_attention.queries(normed, position), key, value, bias)
            )
            memory = state[f"cross.{index}.key"], state[f"cross.{index}.value"]
            x = layer.apply_feed_forward(layer.attend_to_source(x, memory, state["bias"]))
        return self.decoder_norm(x)[:, 0], state


def canonical(variable: Any, *, layers: int = 1) -> str:
    """Return the canonical name of a variable: the last `layers` layers, and the variable's ending or else its name."""
    *path, name = variable.path.split("/")
    return ".".join(path[-layers:]).replace("-", ".") + VARIABLES.get(name, f".{name}")
