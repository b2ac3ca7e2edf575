"""How fast training, evaluation and translation are.

Input: a plan (variants, baselines, sizes, rounds) and a prepared corpus.
Output: a document with every timed sample, from which all medians, ratios and intervals follow.

- `plan.MeasurementPlan` names the models and parts to measure; `measurement.Measurement` carries it out.
- `scheduler.RoundRobin` times the models in turns, each in its own `worker` process, so that drift affects all equally.
- `assemble.assemble` turns samples into a `speed_document.SpeedDocument`, which is validated when it is read.

Called by the command `speed`; rendered by `harness.reporting.speed_report`.
"""
