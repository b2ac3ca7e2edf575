"""Every metric of a run, once: its key in records, title, unit, digits, direction, natural scale and averaging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.analysis.scales import IDENTITY, LOG, LOGIT, Scale
from harness.evaluation.metrics import ORDERS

Direction = Literal["higher", "lower", "neither"]
"""Which way is better."""

Kind = Literal["quality", "orders", "cost"]
"""The quality of translations, BLEU by n-gram order, or what a run costs."""

Averaging = Literal["per token", "per batch", "whole test set", "per run"]
"""What a metric is averaged over within one run; over seeds every metric is averaged by its arithmetic mean."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a run.

    name         its key in records and CSV files, where it has the unit `stored_unit`
    head         its short title, in the two lines of a column head
    digits       the decimals of a mean or a difference in `unit`; see `decimals` for large values
    scale        the scale on which it is analysed: logit for BLEU and chrF, which lie between 0 and 100; logarithm for
                 perplexities, throughputs, times and memory, which are positive; else its own
    token_based  whether it depends on the vocabulary, so that it compares only between equal target vocabularies
    divisor      the size of `unit` in `stored_unit`
    """

    name: str
    title: str
    head: tuple[str, str]
    kind: Kind
    digits: int
    direction: Direction
    scale: Scale = IDENTITY
    averaging: Averaging = "per run"
    token_based: bool = False
    unit: str = ""
    stored_unit: str = ""
    divisor: float = 1.0

    @property
    def less_is_better(self) -> bool:
        return self.direction == "lower"

    @property
    def heading(self) -> str:
        """The title with its unit, such as "validation loss, nats"."""
        return f"{self.title}, {self.unit}" if self.unit else self.title

    def decimals(self, value: float) -> int:
        """Return the decimals of a value in `unit`: `digits`, and fewer for large perplexities and long times."""
        if self.name.endswith("perplexity"):
            return self.digits if value < 100 else 1 if value < 10_000 else 0
        if self.unit == "s":
            return self.digits if value < 10 else 1 if value < 100 else 0
        return self.digits

    def format(self, value: float) -> str:
        """Return a value, given in `stored_unit`, as text in `unit`."""
        shown = value / self.divisor
        return f"{shown:,.{self.decimals(shown)}f}"


def _bleu(name: str, title: str, head: tuple[str, str], *, token_based: bool = False, kind: Kind = "quality") -> Metric:
    return Metric(
        name=name,
        title=title,
        head=head,
        kind=kind,
        digits=2,
        direction="higher",
        scale=LOGIT,
        averaging="whole test set",
        token_based=token_based,
    )


def _loss(name: str, title: str) -> Metric:
    return Metric(
        name=name,
        title=title,
        head=(title.split()[0], "loss"),
        kind="quality",
        digits=3,
        direction="lower",
        averaging="per token",
        token_based=True,
        unit="nats",
        stored_unit="nats",
    )


def _perplexity(name: str, title: str, averaging: Averaging = "per token") -> Metric:
    return Metric(
        name=name,
        title=title,
        head=(title.split()[0], "perplexity"),
        kind="quality",
        digits=3,
        direction="lower",
        scale=LOG,
        averaging=averaging,
        token_based=True,
    )


def _count(name: str, title: str) -> Metric:
    return Metric(name=name, title=title, head=("", title), kind="cost", digits=0, direction="neither")


def _throughput(name: str, title: str, unit: str, digits: int) -> Metric:
    return Metric(
        name=name,
        title=title,
        head=(title.split()[0], unit),
        kind="cost",
        digits=digits,
        direction="higher",
        scale=LOG,
        unit=unit,
        stored_unit=unit,
    )


def _time(name: str, title: str, *, unit: str = "s", digits: int = 2, divisor: float = 1.0) -> Metric:
    return Metric(
        name=name,
        title=title,
        head=(title.removesuffix(" time"), unit),
        kind="cost",
        digits=digits,
        direction="lower",
        scale=LOG,
        unit=unit,
        stored_unit="s",
        divisor=divisor,
    )


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _bleu("bleu_sacre", "sacreBLEU", ("", "sacreBLEU")),
        _bleu("chrf", "chrF", ("", "chrF")),
        Metric(
            name="brevity_penalty",
            title="brevity penalty",
            head=("brevity", "penalty"),
            kind="quality",
            digits=3,
            direction="neither",
            averaging="whole test set",
        ),
        Metric(
            name="unknown_tokens",
            title="unknown tokens",
            head=("unknown", "tokens"),
            kind="quality",
            digits=0,
            direction="neither",
            averaging="whole test set",
            token_based=True,
        ),
        _bleu("bleu_tokenised", "tokenised BLEU", ("tokenised", "BLEU"), token_based=True),
        _bleu("bleu_tutorial", "tutorial BLEU", ("tutorial", "BLEU"), token_based=True),
        _loss("training_loss", "training loss"),
        _loss("validation_loss", "validation loss"),
        _loss("test_loss", "test loss"),
        _perplexity("training_perplexity", "training perplexity"),
        _perplexity("validation_perplexity", "validation perplexity"),
        _perplexity("test_perplexity", "test perplexity"),
        _perplexity("tutorial_perplexity", "tutorial perplexity", "per batch"),
        *(
            _bleu(
                f"bleu_{order}_{kind}",
                f"BLEU-{order} {kind}",
                (kind, f"BLEU-{order}"),
                token_based=True,
                kind="orders",
            )
            for kind in ("cumulative", "individual")
            for order in ORDERS
        ),
        _count("parameters", "parameters"),
        _count("epochs", "epochs"),
        _count("updates", "updates"),
        _throughput("training_tokens_per_second", "training throughput", "tokens/s", 0),
        _time("epoch_seconds", "one epoch"),
        _time("first_update_seconds", "first update"),
        _time("validation_seconds", "validation time"),
        _throughput("decoding_sentences_per_second", "decoding throughput", "sentences/s", 1),
        Metric(
            name="peak_memory_bytes",
            title="peak memory",
            head=("peak memory", "MiB"),
            kind="cost",
            digits=0,
            direction="lower",
            scale=LOG,
            unit="MiB",
            stored_unit="bytes",
            divisor=2.0**20,
        ),
        _time("total_seconds", "whole run", unit="minutes", digits=1, divisor=60.0),
    )
}
"""Every metric by its name, in the order of tables."""

MAIN = "bleu_sacre"
"""The metric that ranks rows."""


def _select(*names: str) -> dict[str, Metric]:
    return {name: METRICS[name] for name in names}


LEADERBOARD = _select("bleu_sacre", "chrf", "bleu_tutorial", "test_perplexity")
"""The metrics with intervals and tests in the tables of a report."""

ABLATION = _select("validation_loss", "test_perplexity", "bleu_tutorial", "bleu_sacre")
"""The metrics on which an ablation estimates effects."""

COMPARISON = {name: metric for name, metric in METRICS.items() if name not in ("training_loss", "epochs", "updates")}
"""The metrics that `compare` shows."""


def scale_of(name: str) -> Scale:
    """Return the natural scale of a metric; a name that is not registered is analysed as it is."""
    return METRICS[name].scale if name in METRICS else IDENTITY
