"""Variant `bahdanau_gru`: a bidirectional GRU reads the source, and a GRU writes the target through additive attention.

    energy[t, s] = tanh(W [state[t-1], encoded[s]] + b)        weight[t, s] = softmax over s of (v . energy[t, s])
    context[t] = sum over s of weight[t, s] encoded[s]
    state[t] = GRU([embedding[t], context[t]], state[t-1])     logits[t] = W [state[t], context[t], embedding[t]] + b

Source: bentrevett's pytorch-seq2seq tutorial, part 3, after Bahdanau, Cho and Bengio 2015 (appendix A.1 to A.2).
Departures: hidden states and attention never see padding, in the backward direction either (the tutorial adds that in
its part 4); the teacher-forcing mask comes from (seed, update), so every framework has the same one.
What to expect on Multi30k, German to English: 20.5 million parameters, half of them in the output layer, and fewer BLEU
than the Transformers. The tutorial's perplexity, near 24, is measured without teacher forcing and does not compare.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from impls.contract import PAD, GruRecipe
from impls.pytorch.kv_cache import Rows, SourceMemory
from impls.pytorch.packed_linear import PackedLinear
from impls.pytorch.torch_packing import PackedByPosition
from impls.recipes import BAHDANAU_GRU, TRAININGS

RECIPE = BAHDANAU_GRU
TRAINING = TRAININGS["bahdanau_gru"]

MASKED_SCORE = -1e9


class GruState:
    """State of incremental decoding.

    Of each source, in this order: what of it is visible [A,S], it encoded [A,S,2H], its part of the energy [A,S,H].
    """

    def __init__(self, rows: torch.Tensor, *sources: torch.Tensor) -> None:
        self.rows = rows
        self.sources = SourceMemory(*sources)

    def reorder(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows."""
        self.sources.reorder(rows)
        self.rows = self.rows.index_select(0, torch.from_numpy(rows).to(self.rows.device))

    def keep_first(self, count: int) -> None:
        """Keep the first `count` rows, each of which has its own source."""
        if count < len(self.rows):
            self.rows = self.rows[:count]
            self.sources = SourceMemory(*(tensor[:count] for tensor in self.sources.tensors))


class Kernels(NamedTuple):
    """Parts of the decoder's kernels: the state's in the energy, the embedding's and the context's in the gates."""

    query: torch.Tensor
    embedded: torch.Tensor
    context: torch.Tensor


class Encoder(nn.Module):
    """A GRU in each direction. Shapes: embedded [B,S,E] to encoded [B,S,2H] and last states [B,2H]."""

    def __init__(self, embedding_width: int, width: int) -> None:
        super().__init__()
        self.ahead = nn.GRU(embedding_width, width, batch_first=True)
        self.back = nn.GRU(embedding_width, width, batch_first=True)

    def forward(
        self, embedded: torch.Tensor, visible: torch.Tensor, lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of both directions, forward first in the last dimension. `lengths` [B] are on the host."""
        position = torch.arange(visible.shape[1], device=visible.device)
        # Reverse the tokens but not the padding, so that the backward direction begins at the last token.
        reverse = torch.where(visible, visible.sum(dim=1, keepdim=True) - 1 - position, position)[..., None]
        ahead, last = self._read(self.ahead, embedded, lengths)
        back, first = self._read(self.back, embedded.gather(1, reverse.expand_as(embedded)), lengths)
        return torch.cat([ahead, back.gather(1, reverse.expand_as(back))], dim=-1), torch.cat([last, first], dim=-1)

    def _read(self, layer: nn.GRU, embedded: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states after each token and after the last one, skipping padding."""
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        states, last = layer(packed)
        return pad_packed_sequence(states, batch_first=True, total_length=embedded.shape[1])[0], last[0]


class AdditiveAttention(nn.Module):
    """Scores each source position by a small network of it and the decoder's previous state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.energy = nn.Linear(3 * width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.width = width

    def project_memory(self, encoded: torch.Tensor) -> torch.Tensor:
        """Return the part of the energy that does not depend on the decoder. Shapes: [B,S,2H] to [B,S,H]."""
        return linear(encoded, self.energy.weight[:, self.width :], self.energy.bias)

    def forward(self, query_part: torch.Tensor, projected_memory: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """Return the attention weights from the energy's two parts. Shapes: [B,T,H], [B,S,H], [B,S] to [B,T,S]."""
        scores = self.score(torch.tanh(projected_memory[:, None] + query_part[:, :, None])).squeeze(-1)
        return torch.softmax(scores.masked_fill(~visible[:, None], MASKED_SCORE), dim=-1)


class AttentionGru(nn.Module):
    """The whole model. `dropout` is used after both embeddings."""

    def __init__(
        self, recipe: GruRecipe, source_vocabulary_size: int, target_vocabulary_size: int, *, dropout: nn.Module
    ) -> None:
        super().__init__()
        width, embedded = recipe.width, recipe.embedding_width
        self.source_embedding = nn.Embedding(source_vocabulary_size, embedded)
        self.target_embedding = nn.Embedding(target_vocabulary_size, embedded)
        self.encoder = Encoder(embedded, width)
        self.bridge = PackedLinear(2 * width, width)
        self.attention = AdditiveAttention(width)
        self.decoder_input = nn.Linear(embedded + 2 * width, 3 * width)
        self.decoder_hidden = PackedLinear(width, 3 * width)
        self.output = PackedLinear(3 * width + embedded, target_vocabulary_size)
        self.embedding_width, self.width = embedded, width
        self.dropout = dropout

    def prefill(self, source: torch.Tensor, lengths: torch.Tensor | None = None) -> GruState:
        """Encode the source [B,S] and return the state before the first target token.

        `lengths`, [B] on the host, are the sources' lengths; without them this waits for the device.
        """
        visible = source != PAD
        if lengths is None:
            lengths = visible.sum(dim=1).clamp(min=1).cpu()
        encoded, ends = self.encoder(self.dropout(self.source_embedding(source)), visible, lengths)
        return GruState(torch.tanh(self.bridge(ends)), visible, encoded, self.attention.project_memory(encoded))

    def step(self, state: GruState, last: torch.Tensor) -> torch.Tensor:
        """Feed the newest tokens [B] and return the features of the next tokens' logits, [B,3H+E]."""
        embedded = self.dropout(self.target_embedding(last))
        kernels = self._kernels()
        return self._step(state, embedded, self._gates(embedded, kernels), kernels)[0]

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the features that `output` turns into logits. Shapes: [B,S], [B,T] to [B,T,3H+E]."""
        return torch.stack(self._decode(self.prefill(source), *_by_position(target_in))[0], dim=1)

    def packed(self, batch: PackedByPosition, teacher_forced: tuple[bool, ...] | None = None) -> torch.Tensor:
        """Return the features that `output` turns into logits, of packed target tokens. Shapes: to [N,3H+E].

        Where `teacher_forced` is False at a position after the first, the model reads its own most probable token.
        """
        return torch.cat(
            self._decode(self.prefill(batch.source, batch.lengths), batch.tokens, batch.sizes, teacher_forced)[0]
        )

    def cross_attention(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the attention weights of target on source positions. Shapes: [B,1,1,T,S]."""
        return torch.stack(self._decode(self.prefill(source), *_by_position(target_in))[1], dim=1)[:, None, None]

    def _decode(
        self, state: GruState, words: torch.Tensor, sizes: list[int], teacher_forced: tuple[bool, ...] | None = None
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Feed all tokens [N], position by position; `sizes` are the numbers of rows with a token at each position.

        A row without a token at a position has none later.
        """
        embedded = self.dropout(self.target_embedding(words))
        kernels = self._kernels()
        features: list[torch.Tensor] = []
        attention_maps: list[torch.Tensor] = []
        for word, gate in zip(embedded.split(sizes), self._gates(embedded, kernels).split(sizes), strict=True):
            state.keep_first(len(word))
            if teacher_forced is not None and features and not teacher_forced[len(features)]:
                with torch.no_grad():
                    predicted = self.output(features[-1][: len(word)]).argmax(dim=-1)
                word = self.dropout(self.target_embedding(predicted))
                gate = self._gates(word, kernels)
            feature, weights = self._step(state, word, gate, kernels)
            features.append(feature)
            attention_maps.append(weights)
        return features, attention_maps

    def _gates(self, embedded: torch.Tensor, kernels: Kernels) -> torch.Tensor:
        """Return the embedding's part of the gates, for all positions in one product. Shapes: [...,E] to [...,3H]."""
        return linear(embedded, kernels.embedded, self.decoder_input.bias)

    def _kernels(self) -> Kernels:
        """Return the parts of two kernels, sliced once for all steps."""
        energy, gates = self.attention.energy.weight, self.decoder_input.weight
        return Kernels(energy[:, : self.width], gates[:, : self.embedding_width], gates[:, self.embedding_width :])

    def _step(
        self, state: GruState, embedded: torch.Tensor, gates: torch.Tensor, kernels: Kernels
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One step of the decoder. Shapes: [B,E], [B,3H] to [B,3H+E] and the weights on the source [B,S]."""
        visible, encoded, projected_memory = state.sources.tensors
        # Rows of one source attend to it together.
        query_part = linear(state.rows, kernels.query).unflatten(0, (len(encoded), -1))
        weights = self.attention(query_part, projected_memory, visible)
        context = (weights @ encoded).flatten(0, 1)
        reset, update, candidate = (gates + linear(context, kernels.context)).chunk(3, dim=-1)
        hidden_reset, hidden_update, hidden_candidate = self.decoder_hidden(state.rows).chunk(3, dim=-1)
        update = torch.sigmoid(update + hidden_update)
        candidate = torch.tanh(candidate + torch.sigmoid(reset + hidden_reset) * hidden_candidate)
        state.rows = torch.lerp(candidate, state.rows, update)
        return torch.cat([state.rows, context, embedded], dim=-1), weights.flatten(0, 1)


def _by_position(target_in: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return all tokens [B*T], position by position, and the number of tokens at each position."""
    rows, length = target_in.shape
    return target_in.T.flatten(), [rows] * length
