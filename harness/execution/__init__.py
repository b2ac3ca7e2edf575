"""Many runs: on this machine, on Slurm or on Ray.

Input: a list of `RunSpec`s and a results folder.
Output: a finished record per run; failed, hung and interrupted runs are retried or recorded as such.

- `launcher.Outcome` holds the records, and the signal that stopped the set, if any.
- `local.LocalLauncher` turns the end of a worker process into a record, a retry or a failure.
- `eta` estimates the remaining time.

Imported by `analysis`, `cli` and `reporting`. Each run is a process of its own (`harness.processes.workers`).
"""
