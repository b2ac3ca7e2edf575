"""Tables, plots and pages from results; never imports a machine-learning framework.

Input: the result objects of `harness.analysis`, run records, speed documents.
Output: terminal text, Markdown, HTML, LaTeX, CSV and SVG.

- `bench_report`, `ablation_report`, `comparison_report` and `speed_report` each hold one report.
- `document` is a small document model of headings, text and tables, rendered to several formats.
- `render_html` builds the self-contained HTML page.

Called by the commands `report`, `bench`, `ablate`, `compare` and `speed`.
"""
