"""The conformance checks ("laws") that every implementation of `Seq2SeqModel` must pass.

Input: a built-in variant, or the builder of an external one.
Output: for each law passed or failed, with the first difference found and the time it took.

- `models_under_test.ModelUnderTest` builds a model at small and realistic sizes and draws batches for it.
- `law_runner.LAWS` lists the laws in order: evaluation (1-7), training (8-13), the update (14).
- `diagnosis` says which broken law to start with.
- `assertions` compares arrays and says where they differ.

Imported by `cli` and `training`. The command `laws` checks a model with them, and `training.self_check` with some of
them before every training.
"""
