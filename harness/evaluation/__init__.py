"""Evaluation of a trained model: search, metrics and scores.

Input: a model behind `Seq2SeqModel` and a split of the data.
Output: translations, per-sentence losses and scores with their signatures.

- `search.Translation` is one translated sentence with its score; greedy and beam search work for every model.
- `ensemble.Ensemble` lets several models translate as one.
- `metrics` computes perplexity, BLEU and chrF from token lists and detokenised text.
- `evaluate.TestResults` are the results of a model on the test set.

Imported by `analysis`, `api`, `audit`, `cli`, `conformance`, `reporting`, `speed` and `training`.
"""
