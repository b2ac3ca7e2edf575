"""What a trained model is worth: search, metrics, scores.

Input: a model behind `Seq2SeqModel` and a split of the data.
Output: translations, per-sentence losses and scores with their signatures.

- `search.Translation` is one translated sentence with its score; greedy and beam search work for every model.
- `metrics` computes perplexity, BLEU and chrF from token lists and detokenised text.
- `evaluate.Evaluation` is everything the test set says about a model.

Called by `harness.training` at the end of a run and by the commands `score` and `translate`.
"""
