"""Which broken law to start with, and what usually breaks it: one fault in a model often breaks many laws."""

from __future__ import annotations

from collections.abc import Iterable

from harness.conformance.law_runner import LawResult

CAUSES = {
    2: "Two evaluations of the same input differ. Is dropout active in evaluation (`functional.dropout` without "
    "`training=self.training`), or does the module keep state between calls?",
    3: "A prediction sees later target words, or misses source words or the target words before it. Has the decoder's "
    "self-attention a causal mask, is the softmax over the keys, does `decode` use the whole memory, or does it shift "
    "`target_in` again?",
    1: "A result has the wrong shape, type or sum. The message names it. If it is `totals.nats`: does the module "
    "compute something else in training than in evaluation, apart from dropout, or keep state between calls? If it is "
    "`totals.objective_nats`: is the label smoothing that of `training`?",
    4: "Padding changes a result. Is it masked in the encoder, in attention on the source and in means, or packed for "
    "an RNN? In Keras, where dropout has fixed seeds in evaluation: is it active there (`training=True`)?",
    5: "A sentence sees others of its batch, or an earlier batch. Are the batch and another dimension exchanged "
    "(`batch_first=True`), is something averaged over the batch, or does the module keep a mask or result of a batch?",
    6: "`step` and `decode` disagree. Does `step` use the right position, and return all of its state?",
    7: "The memory or the state of `step` does not have the sentence as the first dimension, or the module keeps some "
    "of it itself.",
    8: "The weights do not determine the results. Are layers in a Python list instead of `nn.ModuleList`, or tensors "
    "neither parameters nor buffers?",
    9: "An update at rate 0 changes weights. Does the module change them itself, or is there weight decay?",
    10: "The loss does not fall. Does `decode` return probabilities instead of logits, is a part cut off by `detach`, "
    "or are initial weights all 0 or too large?",
    11: "The seed does not determine the training, or not every weight. Are random numbers drawn outside of torch, has "
    "a Keras layer with dropout no `seed`, or are constants parameters instead of buffers?",
    12: "The search meets other probabilities than `decode` gives, mostly because of law 6 or 7.",
    13: "Training depends on something that is not stored: gradients that are not zeroed, an unregistered layer, or "
    "state between calls.",
    14: "An update differs from one Adam step along the gradient. Is a parameter, or a part of it, without gradient "
    "(detached, frozen, or the row of a `padding_idx` other than PAD), are gradients not zeroed, or is the loss "
    "averaged over padding?",
}
"""What usually breaks each law, in the order in which to mend laws: the first ones break the others too."""

NOT_FINITE = "Numbers are not finite. Is a whole row masked with minus infinity (use -1e9), or something divided by 0?"
"""What to mend before any law."""

RAISED = (
    "The model raises the error of that line. If it accepts only so many positions, set `max_length` on the module to "
    "their number."
)
"""What to do if the law to start with found an exception at a line of the model instead of a wrong result."""

SIGNS = ("not finite", "infinite", "off by nan", "off by inf")
"""What the details of broken laws contain then."""


def diagnosis(results: Iterable[LawResult]) -> str:
    """Return which of the broken laws of a model to start with and why, or "" if none is broken."""
    broken = {result.number: result for result in results if not result.passed}
    for number, result in broken.items():
        if any(sign in result.detail for sign in SIGNS):
            return f"Start with law {number}: {NOT_FINITE}"
    first = next((number for number in CAUSES if number in broken), None)
    if first is None:
        return ""
    shows_line = broken[first].raised and ", line " in broken[first].detail
    return f"Start with law {first}: {RAISED if shows_line else CAUSES[first]}"
