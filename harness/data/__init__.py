"""From text to batches of token ids.

Input: a `DataSpec` (Multi30k, the embedded captions, or the user's own files).
Output: seeded, reproducible batches of padded id arrays.

- `corpora.Corpus` is parallel text with the digests of its files.
- `dataset.Dataset` is a tokenised corpus with vocabularies and splits, from the cache or newly preprocessed.
- `batches.training_batches` yields the `impls.contract.Batch`es that models consume.

Imported by `audit`, `cli`, `conformance`, `evaluation`, `execution`, `speed` and `training`. Tokenizers run in a
separate process (`tokenizer_process`).
"""
