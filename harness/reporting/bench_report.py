"""Writes a report: one Markdown page with its tables and pictures, the same bytes for the same records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2

from harness.analysis.fairness import differences
from harness.analysis.grouping import RunTable, TableRow, groups, notes, shown_budgets
from harness.analysis.leaderboard import SYMBOLS, distinct, judge, stored_sentences
from harness.analysis.statistics import METHOD
from harness.reporting import csv_export, leaderboard_cells, provenance, run_plots
from harness.reporting.bench_tables import markdown_group
from harness.reporting.markdown import Markdown, code, text
from harness.reporting.verdict import verdict
from harness.storage import files
from harness.storage.records import RunRecord
from impls.recipes import TRAININGS

PAGE, TEMPLATES = "index.md", Path(__file__).parent / "templates"
EXPLANATIONS = {
    "controlled": "One training recipe for all: only the architecture differs.",
    "source": "Each variant with the training its source uses: compare sacreBLEU and chrF; perplexity and BLEU on "
    "tokens only between equal vocabularies.",
    "tuned": "Each recipe with the learning rate that a pilot chose for it. A recipe whose best rate is that of the "
    "controlled table stands there only; the ablation shows both together.",
}
AGREEMENTS = {
    "controlled": "These agree in all runs: data settings and files, vocabularies, token ids, test set, decoding, "
    "signatures, training settings, updates, seeds, the stream of batches, and every initial tensor that two recipes "
    "share by name and shape.",
    "source": "These agree in all runs: data files, test set and signatures. Whether translations may contain unknown "
    "words is part of each source's search.",
    "tuned": "These agree in all runs: everything that agrees in a controlled table, except the learning rate.",
}

DEFINITIONS = (
    "Loss is in nats per target word, padding excluded: a sum divided by a count. Perplexity is its exponential, "
    "without label smoothing. The training figures are taken while training, with dropout; the training loss is "
    "what was minimised.",
    "Tutorial perplexity is the exponential of the mean over batches of 128 of each batch's mean, as the "
    "tutorials average it; compare it with the tutorials' figures only.",
    "Training and validation perplexity are those of the kept epoch; where several epochs are averaged, of the "
    "last of them.",
    "BLEU is 0 to 100. Tutorial BLEU compares with the tutorials only; sacreBLEU and chrF are computed on "
    "detokenised text and compare across tokenizers. The brevity penalty, from 0 to 1, is sacreBLEU's.",
    "Unknown tokens are those of all test translations; in detokenised text one character, ⁇, stands for each. The "
    "signatures say whether the search may choose them: unk:never or unk:allowed.",
    "Speeds and times are this machine's. Training speed counts target words; decoding is of the whole test set.",
    "Differences are paired by seed and analysed on a natural scale: the logit of BLEU and chrF, the logarithm of "
    "perplexity. Interval and p-value come from one standard error and one number of degrees of freedom, over seeds "
    "and, where they are stored, test sentences; p-values of a table are corrected by Holm's method. Tables of 4 rows "
    "or more moderate the variances of their comparisons by empirical Bayes (Smyth 2004) where these are compatible. "
    "How often this errs is simulated in docs/statistics-simulation.md.",
    "With one seed the test is paired approximate randomisation over the test sentences, as in sacreBLEU: it says "
    "nothing of other seeds. With two seeds both values are shown and nothing is tested. Below 6 seeds every test "
    "assumes normally distributed seed noise.",
    "A table's figures are means over the seeds that completed; ± is the standard deviation over them (n − 1). "
    "Runs that did not complete are listed.",
)


@dataclass(frozen=True)
class PlotFile:
    """A file name without its ending, and what is seen."""

    name: str
    caption: str


@dataclass(frozen=True)
class BenchSection:
    """One table of the page, with its pictures; `tables` is empty where there are no runs of this budget."""

    heading: str
    explanation: str
    agreement: str = ""
    tables: Markdown = Markdown("")
    differences: list[str] = field(default_factory=list)
    pictures: list[PlotFile] = field(default_factory=list)

    @property
    def fair(self) -> bool:
        return not self.differences


def write(
    records: Iterable[RunRecord],
    folder: Path,
    *,
    results: Path | None = None,
    command: str = "",
    failures: Sequence[str] = (),
) -> Path:
    """Write `folder`/index.md, its pictures under `folder`/figures and the CSV files; return the page's path.

    `results` is where the runs' folders lie: the counts of each sentence, for intervals, are read there. `failures` are
    the rules of `check` that fail, a line each.

    Raises: ValueError where there are no records, or naming a damaged file.
    """
    found = groups(records)
    if not found:
        raise ValueError("there are no run records to report: train something first")
    everything = [record for group in found for record in group.records]
    pictures = folder / "figures"
    said, matrices = _judgements(found, results)
    context = {
        "verdict": said,
        "matrices": matrices,
        "symbols": SYMBOLS,
        "summary": summary(found),
        "warnings": warnings(found),
        "failures": failures,
        "sections": _sections(found, pictures),
        "explanations": _explanations(pictures),
        "measured": [*DEFINITIONS, *provenance.measured(everything)],
        "signatures": [(name, _code(how), who) for name, how, who in provenance.signatures(everything)],
        "sources": [(_code(variant), source) for variant, source in provenance.sources(everything)],
        "command": Markdown("\n".join(f"    {line}" for line in provenance.commands(everything, command))),
        "environment": provenance.environment(everything),
        "digests": [(name, _code(digest)) for name, digest in provenance.digests(everything)],
        "runs": [
            {**run, "id": _code(run["id"]), "hypotheses": _code(run["hypotheses"])}
            for run in provenance.runs(everything)
        ],
    }
    csv_export.save(everything, folder)
    page = folder / PAGE
    files.write_bytes(page, render("index.md.j2", context).encode())
    return page


def _judgements(
    found: Sequence[RunTable], results: Path | None
) -> tuple[str, list[leaderboard_cells.DifferenceMatrix]]:
    """Return the verdict, and all differences of each figure that is judged, table by table."""
    sentences, judged, matrices = stored_sentences(results), [], []
    for group in found:
        unlike = differences(group)
        labels = distinct([row.label for row in group.rows])
        judged.append((group, {} if unlike else judge(group, labels, sentences, method=METHOD), unlike))
        matrices += leaderboard_cells.matrices(group, judged[-1][1])
    return verdict(judged), matrices


def _code(value: str) -> Markdown:
    return code(value, in_table=True)


def render(template: str, context: dict[str, Any]) -> str:
    """Fill a template of a Markdown page; whatever is not Markdown already is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        finalize=text,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
    )
    page = environment.get_template(template).render(context)
    return re.sub(r"\n{3,}", "\n\n", page).strip() + "\n"


# What is said first ---------------------------------------------------------------------------------------------------


def summary(found: Sequence[RunTable]) -> str:
    """Return in a sentence how many runs there are, of what, and whether they compare with published figures."""
    records = [record for group in found for record in group.records]
    variants = list(dict.fromkeys(row.variant for group in found for row in group.rows))
    seeds = sorted({len(row.records) for group in found for row in group.rows})
    data = list(dict.fromkeys(group.title for group in found))
    fit = [group for group in found if group.published_size]
    verdict = "are" if len(fit) == len(found) else "are in part" if fit else "are not"
    amount = _count(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    statuses = [record.status for record in records]
    ends = ", ".join(f"{statuses.count(end)} {end}" for end in dict.fromkeys(sorted(statuses)))
    return (
        f"{_count(len(records), 'run')} ({ends}) of {_count(len(variants), 'variant')} on {'; on '.join(data)}; "
        f"{amount} a variant; these figures {verdict} comparable with published ones."
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def warnings(found: Sequence[RunTable]) -> list[str]:
    """Return what must stand in bold: that figures are not Multi30k's."""
    embedded = [record for group in found for record in group.records if record.spec.data.corpus == "captions"]
    if not embedded:
        return []
    alone = len(embedded) == sum(len(group.records) for group in found)
    where = "The corpus is" if alone else "Where it says so, the corpus is"
    reason = "".join(f" {note.rstrip('.')}." for note in notes(embedded))
    return [
        f"{where} captions, sentences that a grammar embedded in this project generates. It is not Multi30k.{reason}"
    ]


# Sections and pictures ------------------------------------------------------------------------------------------------


def _sections(found: Sequence[RunTable], folder: Path) -> list[BenchSection]:
    """Return every budget of every kind of data, whether it has runs or not."""
    made = []
    for title in dict.fromkeys(group.title for group in found):
        for budget, name in shown_budgets(found).items():
            same = [group for group in found if (group.budget, group.title) == (budget, title)]
            if not same:
                made.append(BenchSection(f"{name}: {title}", EXPLANATIONS[budget]))
            for number, group in enumerate(same, start=1):
                slug = _slug(group, number)
                made.append(_section(group, slug, folder))
    return made


def _section(group: RunTable, slug: str, folder: Path) -> BenchSection:
    different = differences(group)
    pictures = [] if different else _pictures(group.rows, slug, folder)
    explanation = EXPLANATIONS[group.budget]
    return BenchSection(group.heading, explanation, agreement(group), markdown_group(group), different, pictures)


def agreement(group: RunTable) -> str:
    """Return what all runs of a group whose runs are comparable have alike."""
    outside = [row.label for row in group.rows if any(record.spec.recipe is None for record in row.records)]
    if not outside or group.budget != "controlled":
        return AGREEMENTS[group.budget]
    who = ", ".join(outside)
    return f"{AGREEMENTS[group.budget]} Without a recipe, and so not compared in their initial weights: {who}."


def _slug(group: RunTable, number: int) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", f"{group.budget} {group.title}".lower()).strip("-")[:90].strip("-")
    return words if number == 1 else f"{words}-{number}"


def _pictures(found: Sequence[TableRow], slug: str, folder: Path) -> list[PlotFile]:
    made = []
    for name, (caption, draw, needed) in run_plots.RECORD_FIGURES.items():
        if any(row.summary(one).values for row in found for one in needed):
            run_plots.save(draw(found), folder, f"{slug}-{name}")
            made.append(PlotFile(f"{slug}-{name}", caption))
    return made


def _explanations(folder: Path) -> list[PlotFile]:
    drawn = {
        "learning-rates": ("Learning rates, as each source trains its variant", run_plots.learning_rates(TRAININGS)),
        "sinusoids": ("The table of sinusoidal positions", run_plots.sinusoid_table()),
        "masks": ("The masks of a padded batch of three sentences", run_plots.padded_masks()),
        "activations": ("Activations and their derivatives", run_plots.activations()),
    }
    for name, (_, made) in drawn.items():
        run_plots.save(made, folder, name)
    return [PlotFile(name, caption) for name, (caption, _) in drawn.items()]
