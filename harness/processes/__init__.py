"""One child process: start it, talk to it, stop it, describe how it ended; and facts about this machine.

Input: a `RunSpec` or another command, and environment variables.
Output: progress events and an exit status.

- `workers.Worker` is the process of one run.
- `signals.SignalGuard` delivers SIGINT, SIGTERM and SIGHUP at safe points.
- `machine` records versions, commit, CPU, GPU and load.

Called by `harness.execution`, `harness.speed` and `harness.training`.
"""
