"""Speed documents made up in Python: figures that are easy to follow, every part there, nothing timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.experiments.specs import DataSpec
from harness.speed import timing
from harness.speed.speed_document import (
    Breakdown,
    Data,
    DecodingTimes,
    EvaluationTimes,
    KernelProduct,
    Machine,
    MatrixRate,
    Point,
    Scaling,
    Settings,
    Share,
    SpeedDocument,
    SpeedRatio,
    TimedModel,
    TrainingTimes,
)
from harness.speed.timing import Samples

ROUNDS = 5
OURS, OTHER, PLAIN, FAILED, MISSING = "learned_positions/torch", "paper/torch", "plain", "marian", "ctranslate2"
NOISE = (1.0, 1.1, 0.9, 1.3, 1.05)
"""What each round's seconds are multiplied with."""

RATE_SECONDS = Samples.of([0.5 * one for one in NOISE])
OPERATIONS, KERNELS = 60_000_000_000, 50_000_000_000


def training(seconds: float, *, loop: float | None = 1.02, limit: bool = True) -> TrainingTimes:
    """Return the training of a subject whose rounds take about so many seconds."""
    samples = Samples.of([seconds * (one + 0.01 * place) for place, one in enumerate(NOISE)])
    harness = None if loop is None else Samples.of([one * loop for one in samples.values])
    share = timing.ratio(Samples.of([one * OPERATIONS / KERNELS for one in RATE_SECONDS.values]), samples)
    return TrainingTimes(
        updates=10,
        target=2_000,
        tokens=4_100,
        operations=OPERATIONS,
        epoch_tokens=41_000,
        first_update_seconds=3.456,
        warmup_seconds=5.0,
        seconds=samples,
        limit_share=share if limit else None,
        harness_seconds=harness,
        loop_ratio=None if harness is None else timing.ratio(harness, samples),
        peak_memory_bytes=987_000_000,
    )


def decoding(name: str, seconds: float, sentences: int = 200, *, equal: int | None = None) -> DecodingTimes:
    """Return translations that take about so many seconds; `equal` of them are those of `OURS`."""
    return DecodingTimes(
        name=name,
        beam=5 if name.endswith("beam") else 1,
        batch_size=1 if name.startswith("single") else 64,
        sentences=sentences,
        words=11 * sentences,
        unfinished=3,
        digest="d1" * 32,
        warmup_seconds=1.0,
        seconds=Samples.of([seconds * one for one in NOISE[:3]]),
        compared_with=None if equal is None else OURS,
        equal=equal,
        peak_memory_bytes=None,
    )


def breakdown() -> Breakdown:
    """Return an update that is mostly matrix products."""
    shares = {"matrix products": 0.625, "attention": 0.125, "dropout": 0.19, "data": 0.04, "harness": 0.02}
    return Breakdown(
        profiled_updates=5,
        overhead_ratio=1.21,
        shares=tuple(Share(group=group, share=one, calls=321) for group, one in shares.items()),  # type: ignore[arg-type]
    )


def subjects() -> tuple[TimedModel, ...]:
    """Return two variants and three peers: one measured, one that failed, one that is missing."""
    named: dict[str, Any] = {"variant": "learned_positions", "framework": "torch"}
    measured: dict[str, Any] = {"parameters": 9_038_341, "weights_from": "200 updates", "idle_share": 1e-6}
    ways = (decoding("greedy", 0.8), decoding("beam", 4.0), decoding("single_greedy", 2.0, 40))
    return (
        TimedModel(
            name=OURS,
            kind="variant",
            **named,
            **measured,
            training=training(1.0),
            evaluation=EvaluationTimes(
                batches=8,
                target=12_000,
                operations=10**10,
                nats_per_token=4.5678,
                seconds=Samples.of([2.0 * one for one in NOISE]),
            ),
            decoding=ways,
            breakdown=breakdown(),
            environment={"OMP_NUM_THREADS": "2"},
        ),  # fmt: skip
        TimedModel(
            name=OTHER,
            kind="variant",
            variant="paper",
            framework="torch",
            **measured,
            training=training(2.5, loop=1.12, limit=False),
            left_out={"single_beam": "it would take too long"},
        ),
        TimedModel(
            name=PLAIN,
            kind="peer",
            **named,
            **measured,
            training=training(4.0, loop=None),
            decoding=(decoding("single_greedy", 60.0, 40, equal=39),),
        ),
        TimedModel(name=FAILED, kind="peer", **named, ending="failed", reason="its process ended with code -9"),
        TimedModel(name=MISSING, kind="peer", **named, ending="missing", reason="it is not installed"),
    )


def compared(subject: TimedModel, peer: TimedModel, what: str, other: str, ratios: Sequence[float]) -> SpeedRatio:
    """Return how many times as fast one is as the other."""
    return SpeedRatio(
        subject=subject.name, baseline=peer.name, what=what, baseline_what=other, ratio=Samples.of(ratios)
    )


def comparisons() -> tuple[SpeedRatio, ...]:
    """Return the ratios of the first subject to the plain peer: training, and translating one by one and in batches."""
    ours, _, plain, *_ = subjects()
    assert ours.training is not None
    assert plain.training is not None
    trained = timing.ratio(plain.training.seconds, ours.training.seconds).values
    each = {one.name: [value / one.sentences for value in one.seconds.values] for one in ours.decoding}
    theirs = [value / 40 for value in plain.decoding[0].seconds.values]
    pairs = [("single_greedy", "single_greedy"), ("greedy", "single_greedy")]
    return (
        compared(ours, plain, "training", "training", trained),
        *(
            compared(ours, plain, own, other, [one / two for one, two in zip(theirs, each[own], strict=True)])
            for own, other in pairs
        ),
    )


def scaling() -> tuple[Scaling, ...]:
    """Return one axis that grows as size ** 0.9, and one that could not be followed."""
    sizes = (16.0, 64.0, 256.0)
    points = tuple(
        Point(size=one, seconds=Samples.of([one**0.9 * noise for noise in (0.98, 1.0, 1.01)]), tokens=int(32 * one))
        for one in sizes
    )  # fmt: skip
    fit = timing.growth(sizes, [one.seconds.median for one in points])
    return (
        Scaling(axis="batch_size", subject=OURS, fixed={"length": 16.0}, points=points, exponent=fit.exponent,
                standard_error=fit.standard_error),
        Scaling(axis="threads", subject=OURS, fixed={"length": 16.0}, points=points[:1],
                reason="1 sizes can be had here: two are needed for a fit"),
    )  # fmt: skip


def document(**changes: Any) -> SpeedDocument:
    """Return a complete document with every part; `changes` are fields of it."""
    rate = MatrixRate(
        variants=("learned_positions",),
        library="torch 2.13.0, float32, cpu",
        products=(KernelProduct(name="output.kernel", rows="target", inputs=256, outputs=5_893, count=1),),
        operations=KERNELS,
        seconds=RATE_SECONDS,
    )
    fields: dict[str, Any] = {
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "2026-01-02T03:14:05+00:00",
        "command": "python -m harness speed --rounds 5",
        "note": "a quiet machine",
        "status": "complete",
        "reason": "",
        "settings": settings(),
        "machine": machine(),
        "data": data(),
        "subjects": subjects(),
        "rates": (rate,),
        "comparisons": comparisons(),
        "scaling": scaling(),
    }
    return SpeedDocument(**{**fields, **changes})


def settings() -> Settings:
    """Return what was asked for: everything."""
    return Settings(
        size="tutorial",
        parts=("training", "evaluation", "decoding", "breakdown", "scaling"),
        rounds=ROUNDS,
        decoding_rounds=3,
        updates=10,
        threads=2,
        device="cpu",
        precision="float32",
        sentences=200,
        single_sentences=40,
        batch_size=128,
        decoding_batch_size=64,
        beam=5,
        length_penalty=0.6,
        max_tokens=50,
        learning_updates=200,
        scaling_variant="learned_positions",
    )


def machine(**changes: Any) -> Machine:
    """Return a machine that nothing else ran on."""
    fields: dict[str, Any] = {
        "processor": "Ditto(R) 9000 CPU",
        "cores": 2,
        "memory_bytes": 16 * 10**9,
        "gpu": None,
        "system": "Linux-6",
        "python": "3.11.9",
        "versions": {"numpy": "2.1.0", "torch": "2.13.0"},
        "commit": "c0ffee" * 6 + "abcd",
        "dirty": False,
        "load_before": 0.04,
        "load_after": 1.9,
    }
    return Machine(**{**fields, **changes})


def data() -> Data:
    """Return what the text and the timed batches hold."""
    return Data(
        spec=DataSpec(corpus="multi30k"),
        tokenised="ab" * 32,
        stream="cd" * 32,
        source_words=7_853,
        target_words=5_893,
        epoch_updates=227,
        epoch_target=20_000,
        epoch_tokens=41_000,
        batches=10,
        sentences=1_280,
        source=2_100,
        target=2_000,
        positions=5_000,
    )
