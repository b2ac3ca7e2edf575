"""Specifications of runs, as data.

Input: names, options and JSON.
Output: validated, immutable specs with stable ids.

- `specs.RunSpec` describes one run completely; its id is a function of its content.
- `serialization` turns specs into JSON and back and validates them; `overrides` applies `--set field=value`.
- `suites` and `ablation_grids` turn a suite or an ablation into a list of `RunSpec`s.

Imported by `analysis`, `api`, `audit`, `cli`, `conformance`, `data`, `evaluation`, `execution`, `processes`,
`reporting`, `speed`, `storage` and `training`.
"""
