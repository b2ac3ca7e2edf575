"""Writes a report as one HTML file that needs nothing else and loads nothing, the same bytes for the same records."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from harness.analysis.ablation import analyse
from harness.analysis.fairness import differences
from harness.analysis.grouping import RunTable, groups, shown_budgets
from harness.analysis.leaderboard import SYMBOLS, MetricLeaderboard, Sentences, distinct, judge, stored_sentences
from harness.analysis.statistics import METHOD, Method
from harness.reporting import (
    ablation_text,
    bench_report,
    forest_plot,
    html_charts,
    leaderboard_cells,
    provenance,
    run_files,
)
from harness.reporting.run_files import CorpusTexts
from harness.reporting.translation_explorer import ALPHABET, LEADS, ROOM_BYTES
from harness.reporting.verdict import verdict
from harness.storage import files
from harness.storage.records import RunRecord
from harness.text import printable, short_line

PAGE = "index.html"
CITATIONS = (
    (
        "Multi30k",
        "@inproceedings{elliott-etal-2016-multi30k,\n"
        "  title     = {Multi30{K}: Multilingual {E}nglish-{G}erman Image Descriptions},\n"
        "  author    = {Elliott, Desmond and Frank, Stella and Sima'an, Khalil and Specia, Lucia},\n"
        "  booktitle = {Proceedings of the 5th Workshop on Vision and Language},\n"
        "  year      = {2016},\n"
        "  pages     = {70--74},\n"
        "  address   = {Berlin, Germany},\n"
        "  publisher = {Association for Computational Linguistics},\n"
        "  doi       = {10.18653/v1/W16-3210}\n"
        "}",
    ),
    (
        "This software",
        "@software{{bakeoff,\n"
        "  title   = {{Bakeoff: interchangeable small Transformers trained on identical Multi30k runs}},\n"
        "  note    = {{Commit {commit}}}\n"
        "}}",
    ),
)
SECTIONS = {
    "verdict": "Verdict",
    "leaderboard": "Leaderboard",
    "curves": "Curves",
    "speed": "Quality and speed",
    "ablation": "Ablation",
    "significance": "Significance",
    "translations": "Translations",
    "attention": "Attention",
    "model": "The models",
    "reproducing": "Reproducing",
    "citing": "Citing",
}


def write(
    records: Iterable[RunRecord],
    folder: Path,
    *,
    results: Path | None = None,
    texts: CorpusTexts | None = None,
    command: str = "",
    method: Method = METHOD,
    failures: Sequence[str] = (),
) -> Path:
    """Write `folder`/index.html and return its path.

    `results` is where the runs' folders lie: translations, sentence statistics, attention and weights are read there;
    without it the page shows the records alone. `texts` are the test sets whose source and reference the page may show:
    none for a page that is published, where the corpus' terms forbid it. `failures` are the rules of `check` that fail,
    a line each.

    Raises: ValueError where there are no records, or naming a damaged file.
    """
    records = list(records)
    found = groups(records)
    if not found:
        raise ValueError("there are no run records to report: train something first")
    pilots = [record for record in records if record.spec.budget == "pilot"]
    context = {**_context(found, pilots, results, texts or {}, command, method), "failures": failures}
    path = folder / PAGE
    files.write_bytes(path, render(context).encode("utf-8", "replace"))
    return path


def render(context: Mapping[str, Any], name: str = "report") -> str:
    """Fill the template `name`.html.j2, whose style is `name`.css and script `name`.js.

    All text is escaped, control and invisible characters included; the policy allows only this page's own style and
    script.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(bench_report.TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=True,
    )
    style, script = (_squeezed(environment.get_template(f"{name}.{kind}").render()) for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    page = environment.get_template(f"{name}.html.j2").render(
        context, policy=policy, style=Markup(style), script=Markup(script)
    )
    return printable(re.sub(r"\n\s*\n+", "\n", page))


def _squeezed(text: str) -> str:
    """Return text as it stands in the page: the policy's hash is of it to the letter, so no empty lines to lose."""
    return re.sub(r"\n\s*\n+", "\n", text).strip()


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _context(
    found: Sequence[RunTable],
    pilots: Sequence[RunRecord],
    results: Path | None,
    texts: CorpusTexts,
    command: str,
    method: Method,
) -> dict[str, Any]:
    everything = [record for group in found for record in group.records]
    labels = [distinct([row.label for row in group.rows]) for group in found]
    unlike = [differences(group) for group in found]
    sentences = stored_sentences(results)
    judged = [
        {} if different else judge(group, names, sentences, method=method)
        for group, names, different in zip(found, labels, unlike, strict=True)
    ]
    fair = [
        (group, names, one) for group, names, one, bad in zip(found, labels, judged, unlike, strict=True) if not bad
    ]
    context: dict[str, Any] = {
        "verdict": verdict(list(zip(found, judged, unlike, strict=True))),
        "summary": bench_report.summary(found),
        "warnings": bench_report.warnings(found),
        "symbols": SYMBOLS,
        "budgets": list(shown_budgets(found).items()),
        "frameworks": sorted({record.spec.framework for record in everything}),
        "boards": _boards(found, labels, judged, unlike),
        "curves": html_charts.curves(fair),
        "speeds": html_charts.speeds(fair),
        **_ablation([*everything, *pilots], sentences),
        "matrices": [one for group, _, judged in fair for one in leaderboard_cells.matrices(group, judged)],
        "explorers": [],
        "attentions": None,
        "pictures": html_charts.explanations(run_files.learnt_positions(found, results) if results else []),
        **_evidence(everything, command),
    }
    if results is not None:
        explorers = run_files.translations(found, results, texts, room_bytes=ROOM_BYTES)
        context["explorers"] = [_packed(one) for one in explorers]
        context["attentions"] = run_files.attention(found, results, texts)
    there = {"curves": "curves", "speed": "speeds", "ablation": "ablations", "significance": "matrices"}
    there |= {"translations": "explorers", "attention": "attentions"}
    context["contents"] = [
        (name, title) for name, title in SECTIONS.items() if name not in there or context[there[name]]
    ]
    return context


def _boards(
    found: Sequence[RunTable],
    labels: Sequence[Sequence[str]],
    judged: Sequence[Mapping[str, MetricLeaderboard]],
    unlike: Sequence[Sequence[str]],
) -> list[leaderboard_cells.Board]:
    """Return a leaderboard for each group, and an empty one for a budget without runs on some data."""
    made = []
    for title in dict.fromkeys(group.title for group in found):
        for budget, name in shown_budgets(found).items():
            explanation = bench_report.EXPLANATIONS[budget]
            places = [place for place, group in enumerate(found) if (group.budget, group.title) == (budget, title)]
            if not places:
                made.append(leaderboard_cells.Board(f"{name}: {title}", budget, explanation))
            for place in places:
                group = found[place]
                agreement = bench_report.agreement(group)
                if unlike[place]:
                    made.append(
                        leaderboard_cells.Board(
                            group.heading, budget, explanation, caveats=group.caveats, differences=unlike[place]
                        )
                    )
                else:
                    made.append(
                        leaderboard_cells.board(
                            group, labels[place], judged[place], explanation=explanation, agreement=agreement
                        )
                    )
    return made


def _ablation(records: Sequence[RunRecord], sentences: Sentences) -> dict[str, Any]:
    analysis = analyse(records, sentences)
    made = forest_plot.forests(analysis)
    return {
        "ablations": made,
        "findings": ablation_text.finding(analysis) if made else [],
        "limits": ablation_text.limits(analysis) if made else [],
    }


def _packed(one: run_files.Translations) -> dict[str, Any]:
    return {**asdict(one), "data": {**one.data, "alphabet": ALPHABET, "leads": [*LEADS, len(ALPHABET) - sum(LEADS)]}}


def _evidence(records: Sequence[RunRecord], command: str) -> dict[str, Any]:
    """Return the blocks on reproducing and citing."""
    runs = [[run["id"], run["status"], run["started"], run["hypotheses"]] for run in provenance.runs(records)]
    commits = dict.fromkeys(_commit(record) for record in records)
    (data, data_entry), (software, software_entry) = CITATIONS
    entry = software_entry.format(commit=", ".join(one for one in commits if one) or "unknown")
    return {
        "commands": provenance.commands(records, command),
        "measured": [*bench_report.DEFINITIONS, *provenance.measured(records)],
        "environment": provenance.environment(records),
        "evidence": [
            ("Signatures of the scores", ["score", "signature", "runs"], provenance.signatures(records)),
            ("What each variant follows", ["variant", "follows"], provenance.sources(records)),
            ("SHA-256 digests of data, vocabularies and batches", ["what", "digest"], provenance.digests(records)),
            ("Every run", ["run", "status", "started", "translations (SHA-256)"], runs),
        ],
        "citations": [(data, data_entry), (software, entry)],
    }


def _commit(record: RunRecord) -> str:
    found = record.environment.get("commit")
    digest = found.get("digest") if isinstance(found, dict) else found
    return short_line(str(digest or ""), longest=60)
