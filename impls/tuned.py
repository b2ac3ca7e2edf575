"""Variant `tuned`: a small Transformer with the settings that suit Multi30k, to compare with published systems.

    x[t] = sqrt(D) * embedding[token[t]] + sinusoid[t],    embedding initially normal with variance 1/D
    logits = norm(decoder(x)) @ embedding.T + bias

It has no module of its own; data and regularisation differ: one vocabulary of byte-pair encodings for both languages,
all embeddings tied and of unit variance after scaling, pre-norm, dropout 0.3 on embeddings and residual sums only,
label smoothing, warm-up, the mean of the weights after each of the last 5 epochs, and beam search that divides scores
by the length of the translation.

Source: Wu et al. 2021 (Good for Misconceived Reasons), their text-only "Tiny" model, for vocabulary, tying, dropout and
smoothing; Xiong et al. 2020 for pre-norm; Vaswani et al. 2017, section 6.1, for averaged weights.
Departures from Wu et al.: 3 layers of width 256 in pre-norm instead of 4 of width 128 in post-norm, random batches of
128 pairs instead of 8,192 tokens, 30 epochs instead of 143.
What to expect on Multi30k, German to English: a validation perplexity of 5.0 after 16 epochs and 4.8 after 30, and 41.2
and 42.8 lower-cased sacreBLEU on the test set of 2016.
"""

from __future__ import annotations

from impls.recipes import TRAININGS, TUNED

RECIPE = TUNED
TRAINING = TRAININGS["tuned"]
