"""Every metric of a run: its key in records, title, unit, digits, direction and natural scale."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from harness.analysis.scales import IDENTITY, LOG, LOGIT, Scale
from harness.evaluation.metrics import ORDERS

Kind = Literal["quality", "orders", "cost"]
"""The quality of translations, BLEU by n-gram order, or the cost of a run."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a run.

    Attributes:
        name: The key in records and CSV files.
        digits: The decimals of a mean or a difference in `unit`; see `decimals` for large values.
        direction: Which values are better.
        scale: The scale on which it is analysed: logit for BLEU and chrF, which lie between 0 and 100; logarithm for
            perplexities, throughputs, times and memory, which are positive; otherwise the identity.
        token_based: Whether it depends on the vocabulary, so that only runs with equal target vocabularies compare.
        unit: The unit in reports.
        divisor: The size of `unit` in the unit of records, such as 60 for minutes.
    """

    name: str
    title: str
    kind: Kind
    digits: int
    direction: Literal["higher", "lower", "neither"]
    scale: Scale = IDENTITY
    token_based: bool = False
    unit: str = ""
    divisor: float = 1.0

    @property
    def less_is_better(self) -> bool:
        return self.direction == "lower"

    @property
    def sign(self) -> int:
        """−1 if less is better, otherwise 1."""
        return -1 if self.less_is_better else 1

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
        """Return a value of a record as text in `unit`."""
        converted = value / self.divisor
        return f"{converted:,.{self.decimals(converted)}f}"


_score = partial(Metric, kind="quality", digits=2, direction="higher", scale=LOGIT)
_token_score = partial(_score, token_based=True)
_count = partial(Metric, kind="cost", digits=0, direction="neither")
_cost = partial(Metric, kind="cost", direction="lower", scale=LOG)
_seconds = partial(_cost, digits=2, unit="s")
_rate = partial(Metric, kind="cost", direction="higher", scale=LOG)
_per_token = partial(Metric, kind="quality", digits=3, direction="lower", token_based=True)
_loss = partial(_per_token, unit="nats")
_perplexity = partial(_per_token, scale=LOG)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _score(name="bleu_sacre", title="sacreBLEU"),
        _score(name="chrf", title="chrF"),
        Metric(name="brevity_penalty", title="brevity penalty", kind="quality", digits=3, direction="neither"),
        _count(name="unknown_tokens", title="unknown tokens", kind="quality", token_based=True),
        _score(name="bleu_tokenised", title="tokenised BLEU"),
        _token_score(name="bleu_tutorial", title="tutorial BLEU"),
        _loss(name="training_loss", title="training loss"),
        _loss(name="validation_loss", title="validation loss"),
        _loss(name="test_loss", title="test loss"),
        _perplexity(name="training_perplexity", title="training perplexity"),
        _perplexity(name="validation_perplexity", title="validation perplexity"),
        _perplexity(name="test_perplexity", title="test perplexity"),
        _perplexity(name="tutorial_perplexity", title="tutorial perplexity"),
        *(
            _token_score(name=f"bleu_{order}_{kind}", title=f"BLEU-{order} {kind}", kind="orders")
            for kind in ("cumulative", "individual")
            for order in ORDERS
        ),
        _count(name="parameters", title="parameters"),
        _count(name="epochs", title="epochs"),
        _count(name="updates", title="updates"),
        _rate(name="training_tokens_per_second", title="training throughput", digits=0, unit="tokens/s"),
        _seconds(name="epoch_seconds", title="one epoch"),
        _seconds(name="first_update_seconds", title="first update"),
        _seconds(name="validation_seconds", title="validation time"),
        _rate(name="decoding_sentences_per_second", title="decoding throughput", digits=1, unit="sentences/s"),
        _cost(name="peak_memory_bytes", title="peak memory", digits=0, unit="MiB", divisor=2.0**20),
        _seconds(name="total_seconds", title="whole run", digits=1, unit="minutes", divisor=60.0),
    )
}
"""Every metric by its name, in the order of tables."""

MAIN = "bleu_sacre"
"""The metric that ranks rows."""

SPEEDS = (
    "training_tokens_per_second",
    "epoch_seconds",
    "first_update_seconds",
    "validation_seconds",
    "decoding_sentences_per_second",
    "total_seconds",
)
"""The metrics that other work on the machine changes."""

DEFAULT_COLUMNS = (MAIN, "test_perplexity", "parameters", "training_tokens_per_second", "decoding_sentences_per_second")
"""The metrics that a leaderboard shows at first, if a run has them; other metrics are optional columns."""

LEADERBOARD = {name: METRICS[name] for name in ("bleu_sacre", "chrf", "bleu_tutorial", "test_perplexity")}
"""The metrics with intervals and tests in the tables of a report."""

ABLATION = {name: METRICS[name] for name in ("validation_loss", "test_perplexity", "bleu_sacre")}
"""The metrics on which an ablation estimates effects."""

COMPARISON = {name: metric for name, metric in METRICS.items() if name not in ("training_loss", "epochs", "updates")}
"""The metrics that `compare` shows."""
