"""Reports: one document model, its renderers, and the content of each kind of report; no machine-learning framework.

Input: the result objects of `harness.analysis`, run records, speed documents.
Output: terminal text, Markdown, HTML, LaTeX, CSV and SVG.

- `document.Document` is a report as data: a headline and blocks of text, tables, figures and interactive parts.
- `document.Table` and `document.Figure` are its most frequent blocks; `render_*` turn them into a format.
- A figure is drawn in two layouts of `plot_style`: "wide", which is also its SVG file, and "narrow" for small screens.
- `pages.write` writes a document as HTML, Markdown, headline.json and pictures.

`bench_report`, `ablation_report`, `comparison_report`, `speed_report` and `models_report` hold the content.

Imported by `api` and `cli`.
"""
