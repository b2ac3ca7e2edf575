"""One run: from a spec to trained weights and a record.

Input: a `RunSpec` and a results folder.
Output: a `RunRecord`, weights, translations and per-sentence scores.

- `train.run` executes a spec, resuming from a checkpoint if there is one; `loop.TrainingLoop` does the updates.
- `checkpoint.TrainingState` is everything needed to resume exactly.
- `weight_export.export` writes the weights of a finished run for other libraries, with a `model_card`.
- `self_check` tests a model on real batches before it is trained.

Imported by `api`, `audit`, `cli`, `reporting` and `speed`.
"""
