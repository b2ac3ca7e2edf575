"""Files on disk: run folders, checkpoints, tensors, locks and logs.

Input: records, arrays and text.
Output: files that are written atomically and verified when they are read.

- `records.RunRecord` is the result of a run: spec, curve, scores, speed, environment and fingerprints.
- `run_store` reads and writes the folder of a run.
- `files` writes atomically and reads with size limits.
- `checkpoint_files` keeps two generations of training state.

Imported by `analysis`, `api`, `audit`, `cli`, `conformance`, `data`, `evaluation`, `execution`, `processes`,
`reporting`, `speed` and `training`.
"""
