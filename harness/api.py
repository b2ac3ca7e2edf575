"""The Python interface: load runs into pandas, compare and report them, train a run, translate with it.

For example:

    import harness

    runs = harness.load("results/local")
    runs.to_pandas()                              # one row per run
    runs.filter(variant="paper").curves()         # one row per epoch
    runs.compare("learned_positions", "paper")    # metrics with intervals and tests
    run = harness.run("paper", corpus="captions", suite="quick")
    harness.translate(run, ["Ein Hund springt über einen Zaun."])  # a list of runs translates as an ensemble
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from harness.analysis import run_filter
from harness.experiments.run_names import flat_settings, run_names
from harness.reporting.formatting import p_value
from harness.storage import locks, results_folders, run_store
from harness.storage.records import EpochRecord, RunRecord
from harness.storage.run_store import RunFailed as RunFailed  # part of the interface
from harness.text import brief, command_line, count, first_few

if TYPE_CHECKING:
    import pandas as pd

    from harness.analysis.comparison import Comparison
    from harness.analysis.leaderboard import BenchAnalysis
    from impls.contract import Recipe, Seq2SeqModel

P_VALUES = ("p", "p_holm")
PRINTED: Any = {"index": False, "float_format": "{:.3f}".format, "na_rep": "–"}
PRINTED["formatters"] = dict.fromkeys(P_VALUES, p_value)
COLUMNS = {
    "run": "the run's id",
    "name": "a short name: what differs from most runs, and the seed",
    "variant": "the name of the variant",
    "budget": "controlled, source, tuned or pilot",
    "seed": "the seed",
    "status": "completed, interrupted, failed or diverged",
    "started": "when training started, UTC",
    "epochs": "finished epochs",
    "updates": "finished updates",
}
"""The first columns of `Runs.to_pandas`. The settings by their dotted names follow, then every metric of
`harness.analysis.metric_registry` as in the records: losses in nats per token, BLEU and chrF from 0 to 100, times in
seconds, memory in bytes."""

_EPOCH = {field.name: float if "float" in str(field.type) else int for field in dataclasses.fields(EpochRecord)}
_LEADERBOARD = ["table", "variant", "metric", "mean", "low", "high", "seeds", "best rank", "worst rank"]


@dataclass(frozen=True)
class TrainedRun:
    """A stored run: its record and the folder of results."""

    record: RunRecord
    results: Path

    @property
    def id(self) -> str:
        return self.record.id

    def curve(self) -> pd.DataFrame:
        """Return the learning curve, one row per epoch; see `EpochRecord` for the columns."""
        return Runs((self.record,), self.results).curves()[[*_EPOCH]]

    def __repr__(self) -> str:
        return f"<TrainedRun {self.id}: {self.record.status}>"

    def _repr_html_(self) -> str:
        scores = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{'–' if value is None else f'{value:.4f}'}</td></tr>"
            for name, value in self.record.scores.items()
        )
        return f"<p>{html.escape(self.id)}: {html.escape(self.record.status)}</p><table>{scores}</table>"


@dataclass(frozen=True)
class Runs:
    """Stored runs, in the order of their ids."""

    records: tuple[RunRecord, ...]
    results: Path

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[TrainedRun]:
        return (TrainedRun(record, self.results) for record in self.records)

    @overload
    def __getitem__(self, index: int) -> TrainedRun: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> TrainedRun | Runs:
        if isinstance(index, slice):
            return Runs(self.records[index], self.results)
        return TrainedRun(self.records[index], self.results)

    def to_pandas(self) -> pd.DataFrame:
        """Return a tidy table, one row per run; `COLUMNS` documents its columns. Missing metrics are NaN."""
        import pandas as pd

        from harness.analysis.grouping import measure
        from harness.analysis.metric_registry import METRICS

        metrics = [name for name in METRICS if name not in COLUMNS]
        rows = []
        for record, name in zip(self.records, run_names([record.spec for record in self.records]), strict=True):
            spec, updates = record.spec, record.curve[-1].updates if record.curve else 0
            facts = (spec.variant, spec.budget, spec.seed, record.status, record.started, len(record.curve), updates)
            row: dict[str, Any] = dict(zip(COLUMNS, (record.id, name, *facts), strict=True))
            rows.append(row | flat_settings(spec) | row | {name: measure(record, name) for name in metrics})
        settings = dict.fromkeys(name for row in rows for name in row if name not in metrics)
        table = pd.DataFrame(rows, columns=[*(settings or COLUMNS), *metrics])
        return table.astype(dict.fromkeys(metrics, float))

    def curves(self) -> pd.DataFrame:
        """Return the learning curves, one row per run and epoch: run, variant, seed and the fields of `EpochRecord`."""
        import pandas as pd

        rows = []
        for record in self.records:
            run = {"run": record.id, "variant": record.spec.variant, "seed": record.spec.seed}
            rows += [run | dataclasses.asdict(epoch) for epoch in record.curve]
        return pd.DataFrame(rows, columns=["run", "variant", "seed", *_EPOCH]).astype(_EPOCH)

    def filter(self, condition: Callable[[RunRecord], bool] | None = None, **values: Any) -> Runs:
        """Return the runs that fulfil every condition.

        Args:
            condition: A function of a record.
            **values: A value, or several accepted values, of "run", "status", "seed" or a setting. Write recipe.norm
                as norm or recipe__norm.

        Raises:
            ValueError: No run has a setting of this name, the name is ambiguous, or the setting has no such value.
        """
        return Runs(run_filter.select(self.records, condition, values), self.results)

    @functools.cached_property
    def analysis(self) -> BenchAnalysis:
        """The statistics of these runs: tables, intervals, differences and ranks."""
        from harness.analysis.leaderboard import analyse_bench

        return analyse_bench(self.records, self.results)

    def leaderboard(self) -> pd.DataFrame:
        """Return one row per variant and table: mean, interval and ranks of the main metric, best first in each table.

        Tables whose runs are not comparable have no rows; `analysis` says why.
        """
        import pandas as pd

        rows = []
        for heading, board in ((table.table.heading, table.main) for table in self.analysis.tables if table.main):
            for label in board.ranking:
                interval, ranks = board.intervals[label], board.rank_interval(label)
                numbers = (interval.mean, interval.low, interval.high, interval.n, *(ranks or (None, None)))
                rows.append((heading, label, board.metric.title, *numbers))
        frame = pd.DataFrame(rows, columns=_LEADERBOARD)
        return frame.astype({"mean": float, "low": float, "high": float, "best rank": "Int64", "worst rank": "Int64"})

    def compare(
        self, first: str | TrainedRun, second: str | TrainedRun, *, allow: str | Sequence[str] = ()
    ) -> RunComparison:
        """Compare two variants or runs, among these runs.

        A warning names the row that is used if a name matches several.
        Intervals and p-values are those of a report of these runs, which compares all rows of the table.

        Args:
            first: A run, or a variant, the id of a run or the beginning of ids; see `compare --help`.
            second: What to compare with it.
            allow: The name of a difference in settings to accept, or several names.

        Raises:
            ValueError: A side is no run or name, a name is unknown or ambiguous, or the runs are not comparable.
        """
        for side in (first, second):
            if not isinstance(side, str | Path | TrainedRun):
                raise ValueError(f"compare: expected a run, or the name of a variant or run, not {brief(side)}")
        differences = [allow] if isinstance(allow, str) else list(allow) if isinstance(allow, Iterable) else [allow]
        if not all(isinstance(name, str) for name in differences):
            raise ValueError(f"allow: expected the names of differences, not {brief(allow)}")
        from harness.analysis import comparability, comparison, selection

        names = [str(side.results / side.id if isinstance(side, TrainedRun) else side) for side in (first, second)]
        complaints: list[str] = []
        sides = selection.find(names, self.results, complain=complaints.append, records=self.records)
        allowed = comparability.check(sides, differences, complain=complaints.append, in_python=True)
        for line in complaints:
            warnings.warn(line, stacklevel=2)
        others = comparison.other_rows(sides, self.results, self.records)
        compared = comparison.compare(sides, allowed, None, examples=0, with_text=False, table_rows=others)
        return RunComparison(compared)

    def report(self, folder: str | Path) -> Path:
        """Write the report of these runs, with pages, plots and CSV files, and return the path of index.html.

        Raises:
            ValueError: There are no runs, or `folder` is a file.
        """
        from harness.cli import report_writing

        pages = results_folders.checked(folder, name="report", kind="a folder, such as 'reports/local'")
        with contextlib.redirect_stdout(io.StringIO()):
            failures = report_writing.check_records(self.results, self.records)
            report_writing.write(self.records, self.results, pages, failures=failures)
        return pages / "index.html"

    def _heading(self) -> list[str]:
        mismatches = [table.mismatches for table in self.analysis.tables if table.mismatches]
        lines = [f"Not comparable: {'; '.join(reasons)}" for reasons in mismatches]
        return [f"{count(len(self), 'run')} in {self.results}", *lines]

    def __repr__(self) -> str:
        board = self.leaderboard()
        return "\n".join(self._heading() + ([] if board.empty else [board.to_string(index=False)]))

    def _repr_html_(self) -> str:
        board = self.leaderboard()
        heading = "".join(f"<p>{html.escape(line)}</p>" for line in self._heading())
        return heading + ("" if board.empty else board.to_html(index=False, float_format="{:.2f}".format))


@dataclass(frozen=True)
class RunComparison:
    """The metrics of two variants or runs, with their differences."""

    comparison: Comparison

    def to_pandas(self) -> pd.DataFrame:
        """Return one row per metric: both means, the difference with its 95 % interval, p-values and conclusion.

        `p` is that of the comparison on its own; `p_holm` is corrected for all of the table and decides the conclusion.
        """
        import pandas as pd

        base, compared = self.comparison.sides
        rows = []
        for metric in self.comparison.metrics:
            difference = metric.difference(compared.letter, base.letter)
            values: list[float | None] = [interval.mean for interval in metric.intervals]
            values += (difference.mean, difference.low, difference.high) if difference else (None, None, None)
            scaled = [None if value is None else value / metric.definition.divisor for value in values]
            scaled += (difference.p, difference.p_holm) if difference else (None, None)
            columns = (base.label, compared.label, "difference", "low", "high", *P_VALUES)
            ending = {"conclusion": metric.conclusion(difference).label}
            rows.append({"metric": metric.definition.heading, **dict(zip(columns, scaled, strict=True)), **ending})
        return pd.DataFrame(rows).astype(dict.fromkeys([*rows[0]][1:-1], float))

    def __repr__(self) -> str:
        return "\n".join([self.to_pandas().to_string(**PRINTED), *self.comparison.remarks])

    def _repr_html_(self) -> str:
        remarks = "".join(f"<p>{html.escape(remark)}</p>" for remark in self.comparison.remarks)
        return str(self.to_pandas().to_html(**PRINTED)) + remarks


def load(folder: str | Path = run_store.RESULTS) -> Runs:
    """Return the runs in a folder. Warnings name damaged records, left out, and inner folders if only they have runs.

    Raises:
        ValueError: The folder does not exist, is a file, or is that of one run.
    """
    results = results_folders.checked(folder, name="load")
    if not results.is_dir():
        raise ValueError(f"{results}: no such folder; train runs with: {command_line('bench')}")
    if (results / run_store.RECORD).is_file():
        raise ValueError(f"{results}: the folder of one run; load the folder around it, {results.parent}")
    complaints: list[str] = []
    records = tuple(run_store.records(results, complain=complaints.append))
    for line in complaints:
        warnings.warn(line, stacklevel=2)
    runs = Runs(records, results.absolute())  # os.chdir must not hide the other files of the runs
    if not runs and (inner := run_store.nested_results(results)):
        warnings.warn(f"{results} has no runs, but folders in it have: load {first_few(inner)}", stacklevel=2)
    return runs


def run(
    recipe_or_builder: str | Recipe | Callable[..., Seq2SeqModel],
    *,
    corpus: str | None = None,
    files: Mapping[str, str | Path] | None = None,
    epochs: int = 3,
    seed: int = 0,
    suite: str | None = None,
    results: str | Path = run_store.RESULTS,
    note: str = "",
    settings: Mapping[str, Any] | None = None,
) -> TrainedRun:
    """Train and measure one run in this process and show the progress, or load it if it is finished already.

    The process keeps the run's threads and environment variables, such as OMP_NUM_THREADS. Threads take turns.

    Args:
        recipe_or_builder: The name of a variant or package.module:NAME, a recipe, or a function that builds a model,
            from a module with a file. In a notebook, write it with %%writefile mine.py, and import mine.
        corpus: "captions" (the default; embedded, split at spaces), "multi30k", or "files" (the default with `files`).
        files: The paths of your own text by the names of `bench --corpus files`: {"train_source": "train.tsv", ...}.
        epochs: Passes over the training data. Unlike with --epochs, the warm-up of a source changes in proportion.
        seed: Seed of weights, dropout and batches.
        suite: The suite, such as "quick", whose training is used and whose size a variant gets; a recipe keeps its own.
            None: as in the source (of a recipe: that of the variant of its name, or the tutorials).
        results, note: The folder in which the run is stored, and free text for its record.
        settings: Further settings by their dotted names, such as {"recipe.dropout": 0.3, "threads": 1}.

    Raises:
        ValueError: A setting is not accepted, or the corpus is not available.
        RunFailed, KeyboardInterrupt: Training failed, or Ctrl-C ended it. The stored record has the reason.
    """
    from harness.training import load

    with locks.alone():
        load.choose_backend(settings)
        base = load.base_spec(recipe_or_builder, suite, load.data_spec(corpus, files), epochs)
        spec, folder = load.with_settings(base, seed, settings), results_folders.checked(results)
        record = load.finished_or_trained(spec, folder, note)
    if record.status == "interrupted":
        raise KeyboardInterrupt(f"{record.id}: {record.ending}")
    if record.status != "completed":
        warnings.warn(f"{record.id}: {record.ending}", stacklevel=2)
    return TrainedRun(record, folder.absolute())


def translate(
    run: TrainedRun | str | Iterable[TrainedRun | str],
    sentences: Sequence[str],
    *,
    beam: int | None = None,
    unknown: Literal["never", "allowed"] | None = None,
    device: str = "cpu",
    import_builder: bool = False,
    results: str | Path = run_store.RESULTS,
) -> list[str]:
    """Translate sentences with the stored weights of a run, or of several runs together.

    Several runs translate as an ensemble: each next token is chosen by the mean of their probabilities. They must have
    the same corpus, vocabularies and framework. The first call for a run waits while another thread trains.

    Args:
        run: A run, or the id of one in `results`, or the beginning of its id; or several of them, such as `Runs`.
        sentences: One string per sentence.
        beam, unknown: The beam width, and whether translations may contain `<unk>`; None for those of the run.
        device: Where the model computes.
        import_builder: Whether to import and execute the external builder that a record names.
        results: The folder of the runs that are given by their ids.

    Raises:
        ValueError: `sentences` is no list of strings, or the runs are not completed, not stored or do not fit together.
    """
    lines = list(sentences) if isinstance(sentences, Iterable) else [sentences]
    if isinstance(sentences, str) or not all(isinstance(line, str) for line in lines):
        raise ValueError(f"translate: expected a list of sentences, not {brief(sentences)}")
    from harness.evaluation import ensemble, evaluate
    from harness.training import load

    members = [run] if isinstance(run, TrainedRun | str) else list(run) if isinstance(run, Iterable) else []
    if not members or not all(isinstance(member, TrainedRun | str) for member in members):
        raise ValueError(f"translate: there is no run; give a run, its id or a list of them, not {brief(run)}")
    folder = results_folders.checked(results)
    runs = sorted((_stored(member, folder) for member in members), key=lambda run: run.id)
    records = [run.record for run in runs]
    ensemble.check_members(records)
    decoding = ensemble.shared_decoding(records, beam=beam, unknown=unknown)
    loaded = [load.stored_model(run.record, run.results, device, import_builder=import_builder) for run in runs]
    dataset = loaded[0][0]
    model = ensemble.joint([model for _, model in loaded], len(dataset.target_words))
    return evaluate.translated(model, dataset, lines, decoding)


def _stored(run: TrainedRun | str, results: Path) -> TrainedRun:
    """Return a run, by its id if that is given. Raises: ValueError if it is not completed."""
    if isinstance(run, str):
        run = TrainedRun(run_store.find(results, run), results)
    run_store.check_completed(run.record)
    return run
