"""Baseline `plain`: the Transformer as tutorials write it, to which all speed ratios refer.

The module is that of the variant `plain`, in the tutorials' training loop. It translates one sentence at a time and
runs the whole decoder again for each token. It is neither slowed on purpose nor optimised.

Source: Vaswani et al. 2017, section 3, with the choices that the tutorials share: post-norm, ReLU, an output
projection of its own.
What to expect: without dropout the losses of `impls.build` from the same weights, and the same translations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from impls.baselines.baseline_weights import TUTORIAL, Rules, admit, check_request, renamed
from impls.baselines.naive_search import search
from impls.baselines.training_loop import PlainLoop, put
from impls.contract import Arrays, Ids, Recipe, Training
from impls.plain import PlainTransformer

NAMES: Rules = (
    (r"^(source|target)\.embedding$", r"\1.embedding.weight"),
    (r"^(source|target)\.positions$", r"\1.positions.weight"),
    (r"\.(self|cross|feed_forward)\.norm\.", r".\1_norm."),
    (r"\.(self|cross)\.", r".\1_attention."),
    (r"\.(kernel|scale)$", ".weight"),
    (r"\.shift$", ".bias"),
)


class Plain(PlainLoop):
    """The plain Transformer in the plain training loop."""

    name = "plain"

    def logits(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions. Shapes: [B,S], [B,T] to [B,T,V]."""
        return self.module.output(self.module(source, target_in))

    def translate(
        self, sources: Sequence[Ids], *, beam: int, batch_size: int, max_tokens: int, suppressed: Sequence[int]
    ) -> list[list[int]]:
        """Return the translations, one sentence at a time whatever the `batch_size`.

        Raises: ValueError for more positions than the recipe has.
        """
        check_request(self.name, self.recipe, sources, max_tokens)
        self.module.eval()
        with torch.no_grad():
            return [self._translate(source, beam, max_tokens, suppressed) for source in sources]

    def _translate(self, source: Ids, beam: int, max_tokens: int, suppressed: Sequence[int]) -> list[int]:
        memory, visible = self.module.encode(self.to_device(source[None]))

        def next_logits(prefixes: list[list[int]]) -> torch.Tensor:
            rows = len(prefixes)
            target_in = torch.tensor(prefixes, device=self.device)
            sources = memory.expand(rows, -1, -1), visible.expand(rows, -1, -1, -1)
            features, _ = self.module.decode(target_in, *sources)
            return self.module.output(features)[:, -1]

        return search(next_logits, beam=beam, max_tokens=max_tokens, suppressed=suppressed)


def build(
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
) -> Plain:
    """Build the baseline with the settings of `impls.registry.build_baseline`."""
    recipe = admit("baseline 'plain'", recipe, (source_vocabulary_size, target_vocabulary_size), weights, TUTORIAL)
    with torch.random.fork_rng(devices=[]):
        module = PlainTransformer(recipe, source_vocabulary_size, target_vocabulary_size)
    put(module, renamed(recipe, weights, NAMES))
    return Plain(recipe, module, training, device)
