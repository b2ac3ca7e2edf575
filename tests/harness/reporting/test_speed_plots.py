"""What the speed command computes from samples: ratios, exponents, operations by formula, and its document."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from harness.data.vocabulary import Split
from harness.experiments.specs import DataSpec, DecodingSpec, RunSpec
from harness.speed import assemble, document_store, matmul_peak, plan, profile, scaling, speed_document, timing
from harness.speed.scheduler import RoundRobin, TaskSamples, TimedTask
from harness.speed.timing import Samples
from harness.speed.workload import evenly
from harness.storage import files
from impls import flops, registry, weights
from impls.contract import EOS, PAD, SOS, Batch, Ids, Training, TransformerRecipe

SAMPLES = (4.0, 1.0, 3.0, 2.0, 10.0)


# Samples --------------------------------------------------------------------------------------------------------------


def test_a_series_keeps_its_order_and_has_the_quartiles_of_its_values() -> None:
    found = Samples.of(SAMPLES)
    assert found.values == SAMPLES
    assert (found.lower, found.median, found.upper) == (2.0, 3.0, 4.0)
    assert Samples.of([7.0]) == Samples(values=(7.0,), lower=7.0, median=7.0, upper=7.0)


@pytest.mark.parametrize("field", ["lower", "median", "upper"])
def test_a_figure_that_is_not_that_of_its_values_is_refused(field: str) -> None:
    figures = {"lower": 2.0, "median": 3.0, "upper": 4.0}
    with pytest.raises(ValueError, match=f"{field}=.*allowed is that of the values"):
        Samples(values=SAMPLES, **{**figures, field: figures[field] + 1e-6})


@pytest.mark.parametrize(("values", "message"), [((), "at least one sample"), ((1.0, math.inf), "not finite")])
def test_a_series_has_finite_samples(values: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Samples.of(values)


def test_ratios_are_of_the_same_round_and_not_of_medians() -> None:
    """Round 2 was disturbed for both: the ratio of medians would be 4 / 3, that of rounds is 2 throughout."""
    first, second = Samples.of([2.0, 20.0, 4.0]), Samples.of([1.0, 10.0, 3.0])
    found = timing.ratio(first, second)
    assert found.values == (2.0, 2.0, 4.0 / 3.0)
    assert found.median == 2.0 != first.median / second.median


@pytest.mark.parametrize(
    ("second", "message"), [([1.0], "of the same rounds"), ([1.0, 0.0], "a number above 0 to divide by")]
)
def test_series_that_cannot_be_paired_are_refused(second: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        timing.ratio(Samples.of([1.0, 2.0]), Samples.of(second))


def test_turns_go_round_and_nobody_always_begins() -> None:
    found = list(timing.interleaved("abc", 4))
    assert ["".join(name for number, name in found if number == one) for one in range(4)] == [
        "abc",
        "bca",
        "cab",
        "abc",
    ]


def test_the_clock_runs_between_two_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    moments = iter([5.0, 7.5])

    def moment() -> float:
        happened.append("clock")
        return next(moments)

    monkeypatch.setattr(timing.time, "perf_counter", moment)
    took = timing.seconds(lambda: happened.append("work"), lambda: happened.append("wait"))
    assert took == 2.5
    assert happened == ["wait", "clock", "work", "wait", "clock"]


@pytest.mark.parametrize("exponent", [-1.0, 0.5, 1.0, 2.0])
def test_a_planted_exponent_is_found(exponent: float) -> None:
    sizes = [1.0, 2.0, 8.0, 64.0]
    found = timing.growth(sizes, [3.0 * size**exponent for size in sizes])
    assert found.exponent == pytest.approx(exponent, abs=1e-12)
    assert found.standard_error == pytest.approx(0, abs=1e-7)


def test_the_standard_error_is_that_of_a_least_squares_fit_to_logarithms() -> None:
    random = np.random.default_rng(3)
    sizes = 2.0 ** np.arange(6)
    costs = sizes**1.3 * np.exp(0.1 * random.standard_normal(6))
    oracle = stats.linregress(np.log(sizes), np.log(costs))
    found = timing.growth(sizes.tolist(), costs.tolist())
    assert (found.exponent, found.standard_error) == pytest.approx((oracle.slope, oracle.stderr), rel=1e-9)


def test_two_sizes_have_an_exponent_but_no_error() -> None:
    found = timing.growth([2, 8], [1, 16])
    assert (found.exponent, found.standard_error) == (pytest.approx(2.0), None)


@pytest.mark.parametrize(("sizes", "costs"), [([2.0], [1.0]), ([2.0, 2.0], [1.0, 3.0]), ([1.0, 2.0], [0.0, 1.0])])
def test_no_exponent_without_two_sizes_and_costs_above_0(sizes: list[float], costs: list[float]) -> None:
    with pytest.raises(ValueError, match="allowed are"):
        timing.growth(sizes, costs)


# Operations -----------------------------------------------------------------------------------------------------------


def batch(*lengths: tuple[int, int]) -> Batch:
    """Return sentences of so many source tokens and target words, padded."""
    source = np.full((len(lengths), max(one for one, _ in lengths) + 2), PAD, np.int32)
    target = np.full((len(lengths), max(one for _, one in lengths) + 1), PAD, np.int32)
    for row, (first, second) in enumerate(lengths):
        source[row, :first], target[row, :second] = 5, 5
    target_in = target.copy()
    target_in[:, 0] = SOS
    target[:, -1] = PAD
    return Batch(source, target_in, target)


def test_tokens_and_pairs_leave_padding_out() -> None:
    found = flops.count_tokens([batch((3, 2), (1, 4))])
    assert found == flops.Tokens(
        sentence=2, source=4, target=6, source_pairs=9 + 1, causal_pairs=3 + 10, cross_pairs=6 + 4
    )
    assert flops.count_tokens([batch((3, 2)), batch((1, 4))]) == found


def test_the_operations_of_a_small_recipe_are_those_counted_by_hand() -> None:
    recipe = TransformerRecipe(width=4, layers=1, heads=2, ffn_width=6)
    counted = flops.Tokens(sentence=1, source=3, target=2, source_pairs=9, causal_pairs=3, cross_pairs=6)
    encoder = 3 * (3 * 4 * 4 + 4 * 4 + 4 * 6 + 6 * 4)
    decoder = 2 * (3 * 4 * 4 + 4 * 4 + 4 * 4 + 4 * 4 + 4 * 6 + 6 * 4 + 4 * 11)
    memory = 3 * (2 * 4 * 4)
    assert flops.kernel_operations(recipe, (7, 11), counted) == 2 * (encoder + decoder + memory)
    assert flops.attention_operations(recipe, counted) == (9 + 3 + 6) * 2 * (4 + 4)
    forward = flops.forward_operations(recipe, (7, 11), counted)
    assert flops.training_operations(recipe, (7, 11), counted) == 3 * forward


def test_operations_count_every_kernel_once_a_token() -> None:
    recipe = registry.recipe("learned_positions")
    words = 7853, 5893
    attention, inner = 4 * 256 * 256, 2 * 256 * 512
    encoder, decoder = 3 * (attention + inner), 3 * (2 * attention + inner)
    of_source = encoder + 3 * attention // 2  # keys and values of the cross attention
    of_target = decoder - 3 * attention // 2 + 256 * 5893
    assert flops.forward_operations(recipe, words, flops.Tokens(source=1)) == 2 * of_source
    assert flops.forward_operations(recipe, words, flops.Tokens(target=1)) == 2 * of_target
    tied = flops.forward_operations(registry.recipe("paper"), words, flops.Tokens(target=1))
    assert tied == 2 * of_target


def test_one_product_is_counted_by_hand() -> None:
    (inner,) = [
        one
        for one in flops.products(TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12), (7, 11))
        if one.name == "encoder.0.feed_forward.inner.kernel"
    ]
    assert (inner.rows, inner.inputs, inner.outputs, inner.count) == ("source", 8, 12, 2)
    assert inner.operations(flops.Tokens(source=5, target=100)) == 2 * (2 * 5 * 8 * 12)


@pytest.mark.parametrize("name", registry.names())
def test_every_kernel_is_in_exactly_one_product(name: str) -> None:
    recipe = registry.recipe(name)
    words = (53, 53) if getattr(recipe, "tying", "none") == "all" else (53, 47)
    shapes = weights.shapes(recipe, *words)
    kernels = [math.prod(shape) for one, shape in shapes.items() if one.endswith(".kernel")]
    kernels += [math.prod(shapes["target.embedding"])] * ("output.kernel" not in shapes)
    score = math.prod(shapes.get("attention.score.kernel", (0,)))
    found = sum(one.inputs * one.outputs * one.count for one in flops.products(recipe, words))
    assert found == sum(kernels) - score


@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_the_products_that_are_timed_are_those_that_are_counted(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every multiplication is a real one of real rows: forward, and both gradients, written where it is told to."""
    import torch

    done = 0

    def counting(real: Any) -> Any:
        def multiply(first: Any, second: Any, *, out: Any) -> Any:
            nonlocal done
            done += 2 * first.shape[0] * first.shape[1] * second.shape[1]
            assert tuple(out.shape) == (first.shape[0], second.shape[1])
            return real(first, second, out=out)

        return multiply

    monkeypatch.setattr(torch, "mm", counting(torch.mm))
    monkeypatch.setattr(np, "matmul", counting(np.matmul))
    monkeypatch.setattr(matmul_peak, "library", lambda: library)
    recipe, batches = (
        TransformerRecipe(width=8, layers=2, heads=2, ffn_width=12),
        [batch((3, 2)), batch((1, 4), (2, 2))],
    )
    found = matmul_peak.Products(recipe, (7, 11), batches, "cpu", "float32")
    found.multiply()
    assert done == found.operations == 3 * flops.kernel_operations(recipe, (7, 11), flops.count_tokens(batches))


# Breakdown ------------------------------------------------------------------------------------------------------------


def event(name: str, microseconds: float, parent: Any = None, number: int = -1) -> SimpleNamespace:
    return SimpleNamespace(name=name, cpu_parent=parent, sequence_nr=number, self_cpu_time_total=microseconds)


def test_operators_belong_to_what_their_names_or_surroundings_tell() -> None:
    update = event("speed::update", 1000)
    attention = event("speed::SelfAttention", 500, update)
    dropout = event("speed::Dropout", 7, attention)
    backward = event(f"{profile.BACKWARD}MulBackward0", 0, update, number=12)
    step = event("Optimizer.step#Adam.step", 0, update)
    seconds, calls = profile.grouped(
        [
            update,
            attention,
            dropout,
            event("aten::addmm", 1, attention),
            event("aten::bmm", 2, attention),
            event("aten::copy_", 4, attention),
            event("aten::mul", 8, dropout, number=12),
            backward,
            event("aten::mul", 16, backward, number=12),
            event("aten::_log_softmax", 32, update),
            event("aten::native_layer_norm", 64, update),
            event("aten::_fused_adam_", 128, step),
            event("aten::copy_", 256, step),
            event("aten::_foreach_norm", 512, update),
            event("aten::add", 1024, update),
            event("aten::embedding_dense_backward", 2048, update),
        ]
    )
    assert {name: round(1e6 * one) for name, one in seconds.items() if one} == {
        "matrix products": 1,
        "attention": 2 + 4,
        "dropout": 7 + 8 + 16,
        "softmax and loss": 32,
        "norm and activation": 64,
        "optimiser": 128 + 256,
        "clipping": 512,
        "copies and other": 1024,
        "embedding": 2048,
    }
    assert calls["dropout"] == 2


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_shares_are_of_the_whole_and_add_up(framework: str) -> None:
    told = {"updates": 2, "bare_seconds": 0.6, "data_seconds": 0.3, "harness_seconds": 0.1}
    if framework == "torch":
        told |= {"profiled_seconds": 0.9, "groups": {"attention": [0.2, 5], "interpreter": [0.7, 0]}}
    found = assemble._breakdown(told)
    assert found is not None
    shares = {one.group: one.share for one in found.shares}
    inside = {"attention": 0.6 * 2 / 9, "interpreter": 0.6 * 7 / 9} if framework == "torch" else {"compute": 0.6}
    assert shares == pytest.approx({**inside, "data": 0.3, "harness": 0.1})
    assert found.overhead_ratio == (pytest.approx(1.5) if framework == "torch" else None)


# Turns ----------------------------------------------------------------------------------------------------------------


class Planted:
    """A companion that takes as long as it is told, and ends or refuses where it is told."""

    def __init__(self, seconds: dict[str, list[float]], *, refuses: str = "", dies_after: int = 10**9) -> None:
        self.seconds = {name: list(values) for name, values in seconds.items()}
        self.refuses, self.left, self.ended = refuses, dies_after, False
        self.idle_seconds, self.idle_cpu_seconds = 10.0, 0.5

    def ask(self, do: str, *, measure: str, of: int) -> dict[str, Any]:
        from harness.speed.companion import Lost, Refused

        if measure == self.refuses:
            raise Refused("it has no beam")
        if do == "warm":
            return {} if measure == "training" else {"words": 30}
        self.left -= 1
        if self.left < 0:
            raise Lost("its process ended with code -9: it wrote nothing")
        return {"seconds": self.seconds[measure].pop(0)}

    def end(self) -> None:
        self.ended = True


def crew(tmp_path: Path, **companions: Planted) -> tuple[RoundRobin, list[str]]:
    said: list[str] = []
    found = RoundRobin(tmp_path, say=said.append, check=lambda: None, timeout_seconds=None)
    found.companions.update(companions)  # type: ignore[arg-type]
    return found, said


def test_a_subject_that_dies_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    found, said = crew(
        tmp_path, first=Planted({"training": [1.0]}, dies_after=1), second=Planted({"training": [2.0, 3.0, 4.0]})
    )
    found.run("training", [TimedTask("first", "training"), TimedTask("second", "training")], 3)
    assert found.samples("first", "training") == [1.0]
    assert found.samples("second", "training") == [2.0, 3.0, 4.0]
    assert found.lost == {"first": "its process ended with code -9: it wrote nothing"}
    assert found.companions["first"].ended  # type: ignore[attr-defined]
    assert sum("code -9" in line for line in said) == 1
    assert [line.partition(" of 3")[0] for line in said if "round" in line] == [
        f"training: round {n}" for n in (1, 2, 3)
    ]


def test_what_a_subject_refuses_costs_it_nothing_else(tmp_path: Path) -> None:
    found, _ = crew(tmp_path, peer=Planted({"greedy": [1.0]}, refuses="beam"))
    for measure in ("beam", "greedy"):
        found.run("decoding", [TimedTask("peer", measure)], 1)  # type: ignore[arg-type]
    assert found.refused == {TimedTask("peer", "beam"): "it has no beam"}
    assert (found.samples("peer", "greedy"), found.lost) == ([1.0], {})


def test_idle_processes_are_watched(tmp_path: Path) -> None:
    found, _ = crew(tmp_path, one=Planted({}))
    assert found.idle_share("one") == 0.05
    assert found.idle_share("another") is None


def job(name: str, **changes: Any) -> plan.ModelJob:
    spec = RunSpec(
        variant="learned_positions",
        recipe=TransformerRecipe(width=8, layers=1, heads=2, ffn_width=8),
        training=Training(batch_size=2),
        data=DataSpec(corpus="captions"),
        decoding=DecodingSpec(max_tokens=5),
        threads=1,
    )
    amounts = {"updates": 2, "validation_batches": 1, "sentences": 3, "single_sentences": 1, "profiled_updates": 1}
    return plan.ModelJob(name=name, spec=spec, beam=5, **{**amounts, **changes})


def test_a_planted_cost_has_its_exponent_along_an_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = crew(tmp_path, **{f"n{size}": Planted({"training": [2.0 * size**2] * 3}) for size in (2, 4, 8)})
    monkeypatch.setattr(RoundRobin, "start", lambda self, one: True)
    synthetic = plan.Synthetic(length=7)
    jobs = tuple((size, job(f"n{size}", synthetic=synthetic)) for size in (2, 4, 8))
    line = scaling.ScalingAxis("length", "training", jobs, {"batch_size": 2.0}, "learned_positions/torch")
    grown = scaling.follow(line, found)
    assert grown.exponent == pytest.approx(2)
    assert [one.size for one in grown.points] == [2, 4, 8]
    assert grown.points[1].seconds.values == (16.0,) * 3, "seconds of one of the two updates of a round"
    assert grown.points[0].tokens == 2 * 7 * 2
    assert all(one.ended for one in found.companions.values())  # type: ignore[attr-defined]


def test_every_axis_is_followed_with_all_else_fixed() -> None:
    lines = {line.axis: line for line in scaling.axes(job("base"), "toy", "weights.safetensors")}
    assert set(lines) == set(typing.get_args(speed_document.Axis))
    for axis, line in lines.items():
        assert axis not in line.fixed
        assert len({one.name for _, one in line.jobs}) == len(line.jobs)
    assert [one.spec.training.batch_size for _, one in lines["batch_size"].jobs] == [4, 16]
    assert [one.synthetic.length for _, one in lines["length"].jobs if one.synthetic] == [4, 12]
    assert [one.spec.recipe.width for _, one in lines["width"].jobs] == [16, 64]  # type: ignore[union-attr]
    assert [one.spec.decoding.batch_size for _, one in lines["decoding_batch_size"].jobs] == [1, 4]
    assert scaling.axes(job("base"), "toy", "")[-1].reason


def test_sentences_are_taken_evenly_from_the_whole_set() -> None:
    ids: list[Ids] = [np.array([SOS, number, EOS], np.int32) for number in range(10, 20)]
    split = Split(ids, ids)
    assert [int(one[1]) for one in evenly(split, 3)] == [10, 13, 16]
    assert len(evenly(split, None)) == len(evenly(split, 99)) == 10


# The document ---------------------------------------------------------------------------------------------------------


def subject(name: str, seconds: tuple[float, ...], **changes: Any) -> speed_document.TimedModel:
    training = speed_document.TrainingTimes(
        updates=2,
        target=30,
        tokens=70,
        epoch_tokens=700,
        operations=1_000,
        first_update_seconds=1.0,
        warmup_seconds=3.0,
        seconds=Samples.of(seconds),
    )
    decodings = tuple(
        speed_document.DecodingTimes(
            name=one,
            beam=1,
            batch_size=8,
            sentences=count,
            words=50,
            unfinished=0,
            digest="ab",
            warmup_seconds=1.0,
            seconds=Samples.of(seconds),
        )
        for one, count in (("greedy", 10), ("single_greedy", 2))
    )
    settings: dict[str, Any] = {"kind": "variant", "variant": "learned_positions", "framework": "torch"}
    return speed_document.TimedModel(name=name, **{**settings, "training": training, "decoding": decodings, **changes})


def made() -> speed_document.SpeedDocument:
    """Return a small document."""
    subjects = (subject("ours", (1.0, 3.0, 2.0)), subject("plain", (4.0, 6.0, 4.0), kind="peer"))
    settings = speed_document.Settings(
        size="toy",
        parts=("training",),
        rounds=3,
        decoding_rounds=3,
        updates=2,
        threads=1,
        device="cpu",
        precision="float32",
        sentences=10,
        single_sentences=2,
        batch_size=8,
        decoding_batch_size=8,
        beam=5,
        length_penalty=0.6,
        max_tokens=5,
        learning_updates=1,
        scaling_variant="learned_positions",
    )
    machine = speed_document.Machine(
        processor="a processor",
        cores=2,
        memory_bytes=None,
        gpu=None,
        system="Linux",
        python="3.11",
        versions={"numpy": "2"},
        commit=None,
        dirty=None,
        load_before=0.5,
        load_after=None,
    )
    data = speed_document.Data(
        spec=DataSpec(corpus="captions"),
        tokenised="ab",
        stream="cd",
        source_words=7,
        target_words=11,
        epoch_updates=20,
        epoch_target=300,
        epoch_tokens=700,
        batches=2,
        sentences=16,
        source=40,
        target=30,
        positions=100,
    )
    shares = (
        speed_document.Share(group="attention", share=0.75, calls=3),
        speed_document.Share(group="data", share=0.25, calls=0),
    )
    return speed_document.SpeedDocument(
        started="2026-01-02T03:04:05+00:00",
        ended="2026-01-02T03:05:05+00:00",
        command="python -m harness speed",
        note="",
        status="complete",
        reason="",
        settings=settings,
        machine=machine,
        data=data,
        subjects=(
            dataclasses.replace(
                subjects[0], breakdown=speed_document.Breakdown(profiled_updates=2, overhead_ratio=1.2, shares=shares)
            ),
            subjects[1],
        ),
        comparisons=tuple(assemble.comparisons(subjects)),
    )


def test_figures_follow_from_the_samples() -> None:
    training = made().subject("ours").training
    assert training is not None
    assert training.update_seconds == 1.0
    assert (training.target_per_second, training.tokens_per_second) == (15.0, 35.0)
    assert (training.epoch_seconds, training.operations_per_second) == (20.0, 500.0)
    greedy = made().subject("ours").decoding[0]
    assert (greedy.sentences_per_second, greedy.thousand_seconds) == (5.0, 200.0)
    assert made().data.padding_share == pytest.approx(0.3)


def test_variants_are_compared_with_peers_round_by_round() -> None:
    found = {(one.subject, one.baseline, one.what): one for one in made().comparisons}
    assert found["ours", "plain", "training"].ratio.values == (4.0, 2.0, 2.0)
    assert found["ours", "plain", "greedy"].baseline_what == "greedy"
    assert not any(one.subject == "plain" for one in made().comparisons)


def test_what_a_peer_does_one_by_one_is_held_against_batches_sentence_by_sentence() -> None:
    ours, peer = made().subject("ours"), made().subject("plain")
    alone = dataclasses.replace(peer, training=None, decoding=peer.decoding[1:])
    found = {(one.what, one.baseline_what): one.ratio.values for one in assemble.comparisons([ours, alone])}
    assert found["greedy", "single_greedy"] == pytest.approx(
        ((4 / 2) / (1 / 10), (6 / 2) / (3 / 10), (4 / 2) / (2 / 10))
    )


def test_a_document_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = document_store.save(tmp_path, made())
    assert path.name == f"{made().id}.json"
    assert path.name.startswith("speed-2026-01-02-")
    assert document_store.load(path) == made()
    assert document_store.documents(tmp_path) == [(path, made())]


def _change(value: dict[str, Any], place: str, new: Any) -> dict[str, Any]:
    *outer, last = place.split(".")
    found = value
    for name in outer:
        found = found[int(name)] if isinstance(found, list) else found[name]  # type: ignore[call-overload]
    found[last] = new
    return value


HOSTILE = {
    "subjects.0.training.seconds.median": (2.5, "median=2.5"),
    "subjects.0.training.seconds.values": ([], "at least one sample"),
    "subjects.0.training.update_seconds": (0.9, "update_seconds=0.9"),
    "subjects.0.training.updates": (0, "division by zero"),
    "subjects.0.training.target": (-30, "target"),
    "subjects.0.training.tokens": (True, "document.subjects\\[0\\].training.tokens"),
    "subjects.0.decoding.0.sentences_per_second": (6.0, "sentences_per_second=6.0"),
    "subjects.0.breakdown.shares.0.share": (0.5, "adds up to 0.75"),
    "subjects.0.breakdown.shares.0.group": ("lunch", "group='lunch': expected 'matrix products'"),
    "subjects.1.name": ("ours", "'ours' is there twice"),
    "subjects.0.kind": ("friend", "kind='friend': expected 'variant' or 'peer'"),
    "comparisons.0.baseline": ("nobody", "'nobody'"),
    "machine.cores": ("many", "document.machine.cores='many'"),
    "machine.system": ("x" * 5_000, "at most 4,000 letters"),
    "data.spec.corpus": ("web", "corpus='web'"),
    "status": ("splendid", "status='splendid'"),
    "schema": (2, "schema=2: allowed is 'speed' and 1"),
    "kind": ("run", "kind='run'"),
    "extra": (1, "unknown field"),
}


@pytest.mark.parametrize("place", HOSTILE)
def test_a_strangers_document_is_refused_by_the_name_of_what_is_wrong(place: str, tmp_path: Path) -> None:
    new, message = HOSTILE[place]
    path = document_store.save(tmp_path, made())
    value = _change(json.loads(path.read_text(encoding="utf-8")), place, new)
    files.write_sealed(path, value)
    with pytest.raises(ValueError, match=message) as error:
        document_store.load(path)
    assert str(path) in str(error.value)
    told: list[str] = []
    assert document_store.documents(tmp_path, complain=told.append) == []
    assert told == [str(error.value)]


def test_an_edited_document_shows(tmp_path: Path) -> None:
    path = document_store.save(tmp_path, made())
    path.write_text(path.read_text(encoding="utf-8").replace('"a processor"', '"a faster one"'), encoding="utf-8")
    with pytest.raises(ValueError, match="seal"):
        document_store.load(path)


def test_series_are_empty_before_anything_was_timed(tmp_path: Path) -> None:
    found, _ = crew(tmp_path)
    assert found.samples("nobody", "training") == []
    found.series[TimedTask("somebody", "training")] = TaskSamples({})
    assert found.samples("somebody", "training") == []
