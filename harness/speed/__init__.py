"""How fast training, evaluation and translation are.

Input: a plan (variants, baselines, sizes, rounds) and a prepared corpus.
Output: a document with every timed sample, from which all medians, ratios and intervals follow.

- `measurement.MeasurementPlan` says what is measured of which models; `Measurement` does it.
- `scheduler.RoundRobin` times the models in turns, each in a process of its own, so that drift affects all alike.
- `speed_document.SpeedDocument` is the result, validated when it is read.

Called by the command `speed`; rendered by `harness.reporting.speed_report`.
"""
