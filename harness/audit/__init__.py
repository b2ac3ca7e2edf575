"""Is this set of records a fair comparison? The rules behind `check`, `report` and `compare`.

Input: a results folder, and the corpus if it is available.
Output: for each rule ok, FAIL, warning or skipped, with the reasons.

- `rules.Rule` is one rule with a stable code such as C42.
- `run_folder.StoredRun` is a run folder, read as far as possible.
- `rules.RuleOutcome` is the result of a rule: its faults, or why it was skipped.

Imported by `cli`. Rules only read; `rerun_rules` trains in other processes.
"""
