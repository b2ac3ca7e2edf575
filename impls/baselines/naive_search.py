"""Greedy and beam search for one sentence without a cache: every prefix goes through the decoder again, whole.

The rules are those that `Decodes.translate` states and, where several hypotheses end, the one with the most
log P(Y) / ((5 + |Y|) / 6) ** LENGTH_PENALTY wins; a hypothesis that has ended keeps one of the beam's slots.

Source: Wu et al. 2016, section 7, equation 14; Sutskever et al. 2014, section 3.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from impls.baselines.protocol import LENGTH_PENALTY
from impls.contract import EOS, SOS

Following = Callable[[list[list[int]]], torch.Tensor]
"""Gives the logits of the words that follow prefixes of one length. Shapes: N prefixes to [N,V]."""


def search(following: Following, *, beam: int, max_tokens: int, suppressed: Sequence[int]) -> list[int]:
    """Return the words of the translation found, without `<sos>` and `<eos>`; those `suppressed` are never chosen."""
    open_: list[tuple[float, list[int]]] = [(0.0, [SOS])]
    best, best_worth, slots = open_[0][1], -math.inf, beam
    for length in range(max_tokens + 1):
        extensions = _extensions(following, open_, slots, suppressed)
        ended = [extension for extension in extensions if extension[1][-1] == EOS]
        if ended and _worth(ended[0][0], length + 1) > best_worth:
            best, best_worth = ended[0][1][:-1], _worth(ended[0][0], length + 1)
        slots -= len(ended)
        live = [extension for extension in extensions if extension[1][-1] != EOS]
        if length == max_tokens or not live or _worth(live[0][0], max_tokens + 1) <= best_worth:
            break
        open_ = live
    return best[1:] if best_worth > -math.inf else open_[0][1][1:]


def _extensions(
    following: Following, open_: list[tuple[float, list[int]]], slots: int, suppressed: Sequence[int]
) -> list[tuple[float, list[int]]]:
    """Return the `slots` most probable extensions of all open hypotheses by one word, best first."""
    chances = torch.log_softmax(following([words for _, words in open_]), dim=-1).double()
    chances[:, list(suppressed)] = -torch.inf
    totals = chances + torch.tensor([total for total, _ in open_], dtype=chances.dtype, device=chances.device)[:, None]
    values, indices = totals.flatten().topk(min(slots, totals.numel()))
    ranked = zip(values.tolist(), indices.tolist(), strict=True)
    words = totals.shape[1]
    return [(value, [*open_[index // words][1], index % words]) for value, index in ranked if value > -math.inf]


def _worth(log_probability: float, factors: int) -> float:
    return log_probability / ((5 + factors) / 6) ** LENGTH_PENALTY
