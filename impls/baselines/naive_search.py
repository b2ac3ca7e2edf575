"""Greedy and beam search for one sentence without a cache: the decoder runs on the whole prefix each time.

The rules are those of `Decodes.translate`. Of several finished hypotheses, the one with the highest
log P(Y) / ((5 + |Y|) / 6) ** LENGTH_PENALTY wins; a finished hypothesis keeps one of the beam's slots.

Source: Wu et al. 2016, section 7, equation 14; Sutskever et al. 2014, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from impls.baselines.protocol import LENGTH_PENALTY
from impls.contract import EOS, SOS

NextLogits = Callable[[list[list[int]]], torch.Tensor]
"""Returns the logits of the tokens after prefixes of equal length. Shapes: N prefixes to [N,V]."""


def search(next_logits: NextLogits, *, beam: int, max_tokens: int, suppressed: Sequence[int]) -> list[int]:
    """Return the tokens of the translation, without `<sos>` and `<eos>`; `suppressed` ids are never chosen."""
    open_: list[tuple[float, list[int]]] = [(0.0, [SOS])]
    best, best_score, slots = open_[0][1], -math.inf, beam
    for length in range(max_tokens + 1):
        extensions = _extensions(next_logits, open_, slots, suppressed)
        ended = [extension for extension in extensions if extension[1][-1] == EOS]
        if ended and _score(ended[0][0], length + 1) > best_score:
            best, best_score = ended[0][1][:-1], _score(ended[0][0], length + 1)
        slots -= len(ended)
        live = [extension for extension in extensions if extension[1][-1] != EOS]
        if length == max_tokens or not live or _score(live[0][0], max_tokens + 1) <= best_score:
            break
        open_ = live
    return best[1:] if best_score > -math.inf else open_[0][1][1:]


def _extensions(
    next_logits: NextLogits, open_: list[tuple[float, list[int]]], slots: int, suppressed: Sequence[int]
) -> list[tuple[float, list[int]]]:
    """Return the `slots` most probable extensions of all open hypotheses by one token, best first."""
    chances = torch.log_softmax(next_logits([words for _, words in open_]), dim=-1).double()
    chances[:, list(suppressed)] = -torch.inf
    totals = chances + torch.tensor([total for total, _ in open_], dtype=chances.dtype, device=chances.device)[:, None]
    values, indices = totals.flatten().topk(min(slots, totals.numel()))
    ranked = zip(values.tolist(), indices.tolist(), strict=True)
    words = totals.shape[1]
    return [(value, [*open_[index // words][1], index % words]) for value, index in ranked if value > -math.inf]


def _score(log_probability: float, factors: int) -> float:
    return log_probability / ((5 + factors) / 6) ** LENGTH_PENALTY
