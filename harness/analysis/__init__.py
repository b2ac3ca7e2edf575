"""Statistics over run records, without a machine-learning framework and without pictures.

Input: `RunRecord`s and the per-sentence files of their run folders.
Output: plain result objects that every report renders.

- `grouping.RunTable` is a table: runs that may be compared, one `TableRow` per variant with its seeds.
- `metric_registry.METRICS` defines every metric once: title, unit, digits, direction, natural scale.
- `effects.Difference` is a difference between two rows with its standard error, interval and p-value.
- `leaderboard.MetricLeaderboard` is a table on one metric: conclusions, rank intervals, detectable difference.
- `bench_analysis.BenchAnalysis` is everything about a set of runs, computed once.

Called by `harness.reporting`, `harness.audit` and the commands `compare`, `report` and `bench --plan`.
"""
