"""What lies on disk: run folders, checkpoints, tensors, locks and logs.

Input: records, arrays and text.
Output: files that are written atomically and verified when they are read.

- `records.RunRecord` is a run's result: spec, curve, scores, speed, environment and fingerprints.
- `run_store` reads and writes the folder of a run.
- `files` writes atomically and reads with bounds.
- `checkpoint_files` keeps two generations of training state.

Called by training, evaluation, execution and analysis.
"""
