"""Statistics over run records: tables of comparable runs, intervals, tests, comparisons and ablations.

Input: `RunRecord`s and the sentence statistics and translations in their run folders.
Output: result objects that all reports render.

- `grouping.RunTable`: runs that may be compared, one `TableRow` per variant with its seeds; checked by `fairness`.
- `metric_registry.METRICS`: every metric with its title, unit, digits, direction and natural scale.
- `inference.infer`: the statistical method. `statistics.compare_rows` applies it to rows of runs (`evidence.Evidence`).
- `leaderboard.BenchAnalysis`: the leaderboards of all tables, and the ablations (`ablation.Analysis`).
- `comparison.Comparison`: sides in detail: settings, metrics, subsets of the test set, sentences and n-grams.

Imported by `api`, `audit`, `cli` and `reporting`.
"""
