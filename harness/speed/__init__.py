"""How fast training, evaluation and translation are.

Input: a `plan.MeasurementPlan` (variants, baselines, sizes, rounds) and a prepared corpus.
Output: a `speed_document.SpeedDocument` with every sample, from which all medians, ratios and intervals follow.

`measurement.Measurement` carries out the plan: `scheduler.RoundRobin` times the models in turns, each in its own
`worker` process; `reporting.speed_report` renders the document.

Imported by `cli` and `reporting`.
"""
