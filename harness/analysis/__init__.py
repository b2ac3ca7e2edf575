"""Statistics over run records, without a machine-learning framework and without pictures.

Input: `RunRecord`s and the per-sentence files of their run folders.
Output: plain result objects that every report renders.

- `grouping.RunTable` is a table: runs that may be compared, one `Row` per variant with its seeds.
- `inference.Contrast` is a difference between two rows with its standard error, interval and p-value.
- `leaderboard.Leaderboard` is a table judged on one metric: conclusions, rank intervals, detectable difference.

Called by `harness.reporting`, `harness.audit` and the commands `compare`, `report` and `bench --plan`.
"""
