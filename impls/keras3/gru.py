"""The `GruRecipe` in Keras 3: a second implementation of `bahdanau_gru` with Keras's own GRU layers.

Source: Bahdanau, Cho and Bengio 2015, appendix A.1 to A.2. Runs on TensorFlow, JAX and torch. Shapes use the
repository's letters, with E for the embedding width and H for the width of the states.

The output layer computes on real target positions only; encoder and decoder also step through padding. Splitting a
batch into parts of similar length would leave less padding but need more steps, each of which adds to the gradient of
every matrix: on TensorFlow, two parts saved 8 % of an update and four cost 5 % more, so batches stay whole.
"""

from __future__ import annotations

from impls.contract import PAD, GruRecipe
from impls.keras3.backends import Tensor, layers, ops
from impls.keras3.keras_packing import Packing, pack

State = dict[str, Tensor]
"""The state of incremental decoding by name; the first dimension of each tensor is the row."""

MASKED_SCORE = -1e9


class Encoder(layers.Layer):
    """A GRU in each direction. Shapes: embedded [B,S,E] to encoded [B,S,2H] and last states [B,2H]."""

    def __init__(self, width: int) -> None:
        super().__init__(name="encoder")
        self.ahead = layers.GRU(width, return_sequences=True, name="encoder-forward")
        self.back = layers.GRU(width, return_sequences=True, name="encoder-backward")

    def call(self, embedded: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states of both directions, forward first in the last dimension, and the last states."""
        length = ops.sum(ops.cast(visible, "int32"), axis=1, keepdims=True)
        position = ops.arange(ops.shape(visible)[1])[None]
        # Reverse the tokens but not the padding, so that the backward direction begins at the last token.
        reverse = ops.where(visible, length - 1 - position, position)[..., None]
        ahead = self.ahead(embedded)
        back = self.back(ops.take_along_axis(embedded, reverse, axis=1))
        last = ops.maximum(length - 1, 0)[..., None]
        ends = [ops.take_along_axis(states, last, axis=1)[:, 0] for states in (ahead, back)]
        encoded = ops.concatenate([ahead, ops.take_along_axis(back, reverse, axis=1)], axis=-1)
        return encoded, ops.concatenate(ends, axis=-1)


class AdditiveAttention(layers.Layer):
    """Scores each source position by a small network of it and the decoder's previous state."""

    def __init__(self, width: int) -> None:
        super().__init__(name="attention")
        self.width = width
        self.energy = layers.Dense(width, name="attention-energy")
        self.energy.build((None, 3 * width))
        self.score = layers.Dense(1, use_bias=False, name="attention-score")

    def project_memory(self, encoded: Tensor) -> Tensor:
        """Return the part of the energy that does not depend on the decoder. Shapes: [B,S,2H] to [B,S,H]."""
        kernel = ops.cast(self.energy.kernel, encoded.dtype)[self.width :]
        return ops.matmul(encoded, kernel) + ops.cast(self.energy.bias, encoded.dtype)

    def call(self, state: Tensor, projected_memory: Tensor, visible: Tensor) -> Tensor:
        """Return the attention weights on the source. Shapes: [B,H], [B,S,H], [B,S] to [B,S]."""
        query_part = ops.matmul(state, ops.cast(self.energy.kernel, state.dtype)[: self.width])
        scores = self.score(ops.tanh(projected_memory + query_part[:, None]))[..., 0]
        return ops.softmax(ops.where(visible, scores, ops.cast(MASKED_SCORE, scores.dtype)), axis=-1)


class GruNetwork(layers.Layer):
    """The whole model. Its decoder runs in `ops.scan`; the output at each position is the state."""

    max_length: int | None = None

    def __init__(self, recipe: GruRecipe, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
        super().__init__(name="network")
        self.width = recipe.width
        self.source_embedding = layers.Embedding(
            source_vocabulary_size, recipe.embedding_width, name="source-embedding"
        )
        self.target_embedding = layers.Embedding(
            target_vocabulary_size, recipe.embedding_width, name="target-embedding"
        )
        self.source_dropout = layers.Dropout(recipe.dropout, seed=0)
        self.target_dropout = layers.Dropout(recipe.dropout, seed=0)
        self.encoder = Encoder(recipe.width)
        self.bridge = layers.Dense(recipe.width, activation="tanh", name="bridge")
        self.attention = AdditiveAttention(recipe.width)
        self.cell = layers.GRUCell(recipe.width, name="decoder")
        self.project = layers.Dense(target_vocabulary_size, name="output")

    def build(self, source_shape: object, target_in_shape: object) -> None:
        """Do nothing: each inner layer is built when it is first called."""

    def prefill(self, source: Tensor, training: bool = False) -> State:
        """Encode the source [B,S] and return the state before the first target token."""
        visible = ops.not_equal(source, PAD)
        encoded, ends = self.encoder(self.source_dropout(self.source_embedding(source), training=training), visible)
        projected_memory = self.attention.project_memory(encoded)
        return {
            "state": self.bridge(ends),
            "encoded": encoded,
            "visible": visible,
            "projected_memory": projected_memory,
        }

    @staticmethod
    def with_capacity(state: State, position: int) -> State:
        """Return the state itself, whose size is constant."""
        return state

    def step(self, state: State, last: Tensor, position: Tensor) -> tuple[Tensor, State]:
        """Feed the newest tokens [B]; return the features of the logits, [B,3H+E], and the state."""
        carried = self._step(state, self.target_embedding(last), state["state"])
        return features(carried), {**state, "state": carried["state"]}

    def call(
        self,
        source: Tensor,
        target_in: Tensor,
        packings: tuple[Packing, Packing] | None = None,
        teacher_forced: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Return the features that `project` turns into logits, [B,T,3H+E], or [1,N,3H+E] with `packings`.

        Where `teacher_forced` [T] is False at a position after the first, the model reads its own most probable token.
        """
        read = ops.transpose(features(self._decode(source, target_in, teacher_forced, training)), (1, 0, 2))
        return pack(read, packings[1] if packings else None)

    def cross_attention(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return the attention weights of target on source positions. Shapes: [B,1,1,T,S]."""
        return ops.transpose(self._decode(source, target_in, None, False)["weights"], (1, 0, 2))[:, None, None]

    def _decode(self, source: Tensor, target_in: Tensor, teacher_forced: Tensor | None, training: bool) -> State:
        """Return the decoder's state at each position, by name; the first dimension of each tensor is the position."""
        begun = self.prefill(source, training)
        words = self.target_embedding(target_in)
        # One mask for reference tokens and for the model's own, drawn before the loop.
        keep_mask = self.target_dropout(ops.ones_like(words), training=training)
        batch = ops.shape(source)[0]
        first = {
            "state": begun["state"],
            "context": ops.zeros((batch, 2 * self.width), words.dtype),
            "word": ops.zeros_like(words[:, 0]),
            "weights": ops.zeros_like(begun["encoded"][..., 0]),
        }
        # `ops.scan` takes a single array if the length is dynamic, so the inputs of a position are concatenated.
        inputs = [words * keep_mask]
        if teacher_forced is not None:
            reference = ops.logical_or(teacher_forced, ops.equal(ops.arange(ops.shape(teacher_forced)[0]), 0))
            inputs += [
                keep_mask,
                ops.broadcast_to(ops.cast(reference, words.dtype)[None, :, None], ops.shape(words[..., :1])),
            ]
        width = words.shape[-1]

        def predicted(carried: State, keep_here: Tensor) -> Tensor:
            return self.target_embedding(ops.argmax(self.project(features(carried)), axis=-1)) * keep_here

        def step(carried: State, here: Tensor) -> tuple[State, State]:
            word = here[:, :width]
            if teacher_forced is not None:
                right, keep_here = word, here[:, width : 2 * width]
                word = ops.cond(here[0, -1] > 0, lambda: right, lambda: predicted(carried, keep_here))
            output = self._step(begun, word, carried["state"])
            return output, output

        return ops.scan(step, first, ops.transpose(ops.concatenate(inputs, axis=-1), (1, 0, 2)))[1]

    def _step(self, begun: State, word: Tensor, state: Tensor) -> State:
        """One step of the decoder. Shapes: word [B,E], state [B,H]."""
        weights = self.attention(state, begun["projected_memory"], begun["visible"])
        context = ops.matmul(weights[:, None], begun["encoded"])[:, 0]
        after, _ = self.cell(ops.concatenate([word, context], axis=-1), state)
        return {"state": after, "context": context, "word": word, "weights": weights}


def features(carried: State) -> Tensor:
    """Return the output layer's input: state, context, word. Shapes: [...,H], [...,2H], [...,E] to [...,3H+E]."""
    return ops.concatenate([carried[name] for name in ("state", "context", "word")], axis=-1)
