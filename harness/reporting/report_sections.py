"""Parts that the reports of runs and of ablations share: curves, translations, attention, and how to reproduce them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from harness.analysis.grouping import record_notes, statuses
from harness.analysis.leaderboard import TableAnalysis
from harness.experiments.specs import DataSpec
from harness.reporting import provenance, run_files, run_plots
from harness.reporting.document import (
    Block,
    Code,
    Disclosure,
    Figure,
    Heading,
    Items,
    Links,
    Table,
    Text,
    Widget,
    facts,
)
from harness.reporting.formatting import listed
from harness.reporting.run_files import CorpusTexts
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles
from harness.text import count, short_line

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
        "@software{bakeoff,\n"
        "  title   = {Bakeoff: interchangeable small Transformers trained on identical Multi30k runs},\n"
        "  note    = {Commit COMMIT}\n"
        "}",
    ),
)
AT_COMMIT = Text(
    "Run these commands with the code of the runs' commit, which “Environment” names: later versions may have other "
    "defaults.",
    "aside",
)
DEFINITIONS = (
    "Loss is in nats per target token, padding excluded: a sum divided by a count. Perplexity is its exponential, "
    "without label smoothing. Training loss and perplexity are taken while training, with dropout; the training loss "
    "is what was minimised.",
    "Tutorial perplexity is the exponential of the mean over batches of 128 of each batch's mean, as the tutorials "
    "average it; compare it with the tutorials' figures only.",
    "Training and validation figures are those of the kept epoch; where several epochs are averaged, of the last.",
    "BLEU is 0 to 100. Tutorial BLEU compares with the tutorials only; sacreBLEU and chrF are computed on detokenised "
    "text and compare across tokenizers.",
    "Unknown tokens are those of all test translations; in detokenised text one character, ⁇, stands for each. The "
    "signatures say whether the search may choose them: unk:never or unk:allowed.",
    "Training throughput counts target tokens; decoding throughput is that of the whole test set. Both hold for the "
    "machine named under environment.",
    "Differences are paired by seed and analysed on a natural scale: the logit of BLEU and chrF, the logarithm of "
    "perplexity. Interval and p-value come from one standard error and one number of degrees of freedom, over seeds "
    "and, where they are stored, test sentences; p-values of a table are corrected by Holm's method. Tables of 4 rows "
    "or more moderate the variances of their comparisons by empirical Bayes (Smyth 2004) where these are compatible. "
    "docs/statistics-simulation.md gives the simulated error rates.",
    "With one seed the test is paired approximate randomisation over the test sentences, as in sacreBLEU: it says "
    "nothing about other seeds. With two seeds both values are shown and nothing is tested. Below 6 seeds every test "
    "assumes normally distributed seed noise.",
    "Numbers are means over the seeds that completed, ranges 95 % intervals over seeds and, for scores whose sentence "
    "statistics are stored, test sentences; with one seed over test sentences alone. Two seeds have no interval.",
)


CORPUS_TITLES = {"multi30k": "Multi30k", "captions": "generated captions", "files": "own text"}
CAPTIONS = ("Translations with source, reference and attention, on the built-in captions", "captions/index.html")


def slugs(tables: Sequence[TableAnalysis]) -> list[str]:
    """Return a short name for each table: its budget, with a number from the second table of a budget on."""
    names: list[str] = []
    for judged in tables:
        budget = judged.table.budget
        earlier = sum(name.split("-")[0] == budget for name in names)
        names.append(f"{budget}-{earlier + 1}" if earlier else budget)
    return names


def curves(tables: Sequence[TableAnalysis]) -> list[Block]:
    """Return the losses and, where translations were scored, the BLEU per epoch of each comparable table.

    A table of other test sets, whose runs have the weights of runs of another table, has the same curves as that.
    """
    blocks: list[Block] = [Heading("Learning curves", slug="curves")]
    trained = {record.id for judged in tables for record in judged.table.records}
    for judged, slug in zip(tables, slugs(tables), strict=True):
        rows = judged.table.rows
        if all(record.environment.get("trained_as") in trained for record in judged.table.records):
            continue
        seeds = max(len(row.counted) for row in rows)
        bands = "Bands are 95 % intervals over seeds. " if seeds > 2 else "One seed: no bands. " if seeds == 1 else ""
        lost = any(row.completed < len(row.records) for row in rows)
        losses = f"{bands}{'× ends a run that did not complete. ' * lost}Lower is better."
        bleu = "Greedy translations of the validation set. Higher is better."
        for chart, text in ((run_plots.LOSSES, losses), (run_plots.BLEU, bleu)):
            panels = [] if judged.mismatches else run_plots.panels(rows, judged.labels, chart)
            if not panels:
                continue
            if len(rows) > run_plots.MOST_PANELS:
                text += f" Of {len(rows)} rows, the first and the best by test sacreBLEU."
            names = [panel.label for panel in panels]
            each = f", {names[0]}" if len(names) == 1 else f", a panel for each of {'; '.join(names)}"
            blocks.append(
                Figure(
                    f"{slug}-{chart.name}",
                    f"{judged.table.heading}. {text}",
                    short_line(f"{chart.title} against epochs{each}", longest=600),
                    partial(run_plots.learning_curves, panels, chart),
                    run_plots.curve_data(panels, chart),
                    partial(run_plots.curve_reading, panels, chart),
                )
            )
    return blocks


def translations(tables: Sequence[TableAnalysis], stored: StoredFiles | None, texts: CorpusTexts) -> list[Block]:
    """Return the explorer of every test set on which two runs with the same seed have stored translations."""
    parts = run_files.translations([judged.table for judged in tables], stored, texts) if stored is not None else []
    widgets = [Widget("explorer", part) for part in parts]
    return [Heading("Translations", slug="translations"), *widgets, Links((CAPTIONS,))] if widgets else []


def attention(tables: Sequence[TableAnalysis], stored: StoredFiles | None, texts: CorpusTexts) -> list[Block]:
    """Return the stored attention of each row's first completed run."""
    data = run_files.attention([judged.table for judged in tables], stored, texts) if stored is not None else None
    if data is None:
        return []
    note = (
        "How much each target token (row) attends to each source token (column), in percent. Early runs stored the "
        "mean over heads alone."
    )
    widget = Widget("attention", data)
    return [Heading("Attention", slug="attention"), Disclosure("Attention weights", (Text(note, "aside"), widget))]


def method(records: Sequence[RunRecord], agreements: Sequence[str]) -> list[Block]:
    """Return how the figures are defined and measured, and everything that is needed to reproduce them, disclosed."""
    commands = provenance.commands(records)
    measured = (*DEFINITIONS, *provenance.measured(records))
    digests = Table("lc", ("data", "SHA-256"), tuple(provenance.digests(records)), "Digests")
    signatures = Table("lcp", ("score", "signature", "runs"), tuple(provenance.signatures(records)), "Signatures")
    sources = Table("lp", ("variant", "follows"), tuple(provenance.sources(records)))
    runs = Table("clll", ("run", "status", "started", "translations (SHA-256)"), tuple(provenance.runs(records)))
    commit = ", ".join(dict.fromkeys(filter(None, map(provenance.commit, records)))) or "unknown"
    cited = CITATIONS if any(record.spec.data.corpus == "multi30k" for record in records) else CITATIONS[1:]
    entries = [(Heading(title, 3), Code(entry.replace("COMMIT", commit), f"BibTeX: {title}")) for title, entry in cited]
    return [
        Heading("Method and data", slug="method"),
        *([Disclosure("Commands", (AT_COMMIT, Code("\n".join(commands))), "commands")] if commands else []),
        Disclosure("How it was measured", (Items(measured),), "measured"),
        Disclosure("What agrees in all runs", (Items(tuple(agreements)),), "fairness"),
        Disclosure("What each variant follows", (sources,), "sources"),
        Disclosure("Environment", (facts(provenance.environment(records)),), "environment"),
        Disclosure("Digests and signatures", (digests, signatures), "digests"),
        Disclosure("Every run", (runs,), "runs"),
        Disclosure("Citing", tuple(block for entry in entries for block in entry), "citing"),
    ]


def about(records: Sequence[RunRecord]) -> str:
    """Return in a sentence how many runs there are, how they ended, when they began and at which commit."""
    days = sorted({record.started[:10] for record in records if record.started})
    when = "" if not days else f", {days[0]}" if len(days) == 1 else f", {days[0]} to {days[-1]}"
    commits = list(dict.fromkeys(provenance.commit(record)[:10] for record in records if provenance.commit(record)))
    at = f", commit {', '.join(commits[:2])}{' and others' if len(commits) > 2 else ''}" if commits else ""
    data = list(dict.fromkeys(f"{record.spec.data.corpus} {record.spec.data.direction}" for record in records))
    return short_line(
        f"{count(len(records), 'run')} ({statuses(records)}) on {'; '.join(data)}{when}{at}.", longest=600
    )


def corpora(data: Iterable[DataSpec]) -> str:
    """Return the corpora and directions of some runs for a title, such as "Multi30k de-en"."""
    return listed(list(dict.fromkeys(f"{CORPUS_TITLES[spec.corpus]} {spec.direction}" for spec in data)))


def warnings(records: Sequence[RunRecord], failures: Sequence[str]) -> list[str]:
    """Return a warning if figures are not Multi30k's, and one for each failed rule of `check`."""
    lines = [f"These records fail a rule of check: {line}" for line in failures]
    embedded = [record for record in records if record.spec.data.corpus == "captions"]
    if not embedded:
        return lines
    where = "The corpus is" if len(embedded) == len(records) else "Where it says so, the corpus is"
    own = "".join(f" {note.rstrip('.')}." for note in record_notes(embedded))
    text = f"{where} captions, sentences that a grammar in this project generates. It is not Multi30k.{own}"
    return [short_line(text, longest=2_000), *lines]
