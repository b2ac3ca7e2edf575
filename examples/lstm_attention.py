"""An LSTM with scaled dot-product attention, after Luong et al. 2015: an example of a model of your own.

Check that it behaves as the benchmark expects, then train and compare it with a built-in variant:

    python -m harness laws --fast --variant examples.lstm_attention:build
    python -m harness bench --variant examples.lstm_attention:build --variant bahdanau_gru
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import impls
from impls.contract import PAD, Seq2SeqModel, Training

TRAINING = Training(peak_rate=1e-3, epochs=10)  # with --budget source, as `run` trains

Memory = tuple[Tensor, Tensor]  # the encoded source, [B,S,D], and where it is not padding, [B,S]
State = tuple[Tensor, Tensor]  # the decoder's hidden and cell state, [B,1,D] each


class LstmAttention(nn.Module):
    def __init__(self, source_vocabulary_size: int, target_vocabulary_size: int, width: int, dropout: float) -> None:
        super().__init__()
        self.source_embedding = nn.Embedding(source_vocabulary_size, width)
        self.target_embedding = nn.Embedding(target_vocabulary_size, width)
        self.encoder = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.output = nn.Linear(2 * width, target_vocabulary_size)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor) -> Memory:
        visible = source != PAD
        lengths = visible.sum(dim=1).clamp(min=1).cpu()
        embedded = self.dropout(self.source_embedding(source))
        packed = pack_padded_sequence(embedded, lengths, batch_first=True, enforce_sorted=False)
        encoded, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=source.shape[1])
        return encoded, visible

    def decode(self, memory: Memory, target_in: Tensor) -> tuple[Tensor, Tensor]:
        logits, attention, _ = self.read(memory, None, target_in)
        return logits, attention

    def step(self, memory: Memory, state: State | None, last: Tensor) -> tuple[Tensor, State]:
        logits, _, state = self.read(memory, state, last[:, None])
        return logits[:, 0], state

    def read(self, memory: Memory, state: State | None, tokens: Tensor) -> tuple[Tensor, Tensor, State]:
        """Return logits [B,T,V], attention weights [B,T,S] and the state after the last token."""
        encoded, visible = memory
        if state is not None:  # nn.LSTM expects [1,B,D]
            state = state[0].transpose(0, 1).contiguous(), state[1].transpose(0, 1).contiguous()
        hidden, (last_hidden, last_cell) = self.decoder(self.dropout(self.target_embedding(tokens)), state)
        scores = hidden @ encoded.transpose(1, 2) / hidden.shape[-1] ** 0.5
        attention = torch.softmax(scores.masked_fill(~visible[:, None], -1e9), dim=-1)
        features = self.dropout(torch.cat([hidden, attention @ encoded], dim=-1))
        return self.output(features), attention, (last_hidden.transpose(0, 1), last_cell.transpose(0, 1))


def build(
    source_vocabulary_size: int, target_vocabulary_size: int, *, dropout: float | None = None, **settings: Any
) -> Seq2SeqModel:
    """Build the model. `settings` are training, seed, device and precision; the laws also set `dropout`."""
    rate = 0.2 if dropout is None else dropout
    sizes = source_vocabulary_size, target_vocabulary_size
    return impls.wrap(lambda: LstmAttention(*sizes, width=128, dropout=rate), *sizes, **settings)
