"""One child process: start it, talk to it, stop it, describe how it ended; and facts about this machine.

Input: a `RunSpec` or another command, and environment variables.
Output: progress events and an exit status.

- `json_process.JsonProcess` is a process that answers requests; `workers.Worker` is the process of one run.
- `signals.SignalGuard` delivers SIGINT, SIGTERM and SIGHUP at safe points.
- `machine` returns versions, commit, CPU, GPU and load.

Imported by `audit`, `cli`, `conformance`, `data`, `execution`, `reporting`, `speed` and `training`.
"""
