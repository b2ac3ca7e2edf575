"""What an update spends its time on: a torch model's operators by group, and what the data and the harness take."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from statistics import median
from typing import Any

from harness.data.batches import training_batches, updates_per_epoch
from harness.data.dataset import Dataset
from harness.speed import timing
from harness.speed.models import OwnModel
from harness.speed.speed_document import Group
from impls.contract import Batch

RANGE = "speed::"
"""What begins the name of a range around a module's forward pass, its class's name after it."""

UPDATE = f"{RANGE}update"
TURNS = 3
"""How often the bare loop and the harness's take turns."""

BACKWARD = "autograd::engine::evaluate_function: "

EXACT: dict[str, Group] = {
    **dict.fromkeys(
        (
            "aten::mm",
            "aten::addmm",
            "aten::addmm_",
            "aten::_addmm_activation",
            "aten::matmul",
            "aten::linear",
            "aten::addmv",
            "aten::addbmm",
            "aten::mkldnn_convolution",
            "aten::convolution_backward",
            "aten::_slow_conv2d_forward",
            "aten::_slow_conv2d_backward",
            "aten::mkldnn_rnn_layer",
        ),
        "matrix products",
    ),
    **dict.fromkeys(("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::_softmax_backward_data"), "attention"),
}
"""Operators that are told by their own name alone."""

WORDS: tuple[tuple[str, Group], ...] = (
    ("dropout", "dropout"),
    ("bernoulli", "dropout"),
    ("log_softmax", "softmax and loss"),
    ("logsoftmax", "softmax and loss"),
    ("nll_loss", "softmax and loss"),
    ("nllloss", "softmax and loss"),
    ("cross_entropy", "softmax and loss"),
    ("crossentropy", "softmax and loss"),
    ("logsumexp", "softmax and loss"),
    ("outputloss", "softmax and loss"),
    ("adam", "optimiser"),
    ("optimizer", "optimiser"),
    ("_foreach_norm", "clipping"),
    ("_foreach_mul", "clipping"),
    ("linalg_vector_norm", "clipping"),
    ("attention", "attention"),
    ("scaled_dot_product", "attention"),
    ("norm", "norm and activation"),
    ("relu", "norm and activation"),
    ("gelu", "norm and activation"),
    ("silu", "norm and activation"),
    ("tanh", "norm and activation"),
    ("sigmoid", "norm and activation"),
    ("threshold", "norm and activation"),
    ("embed", "embedding"),
    ("position", "embedding"),
    ("sinusoid", "embedding"),
)
"""Parts of names, of an operator or of what it is within, and what they tell; the first that fits."""


def breakdown(model: OwnModel, batches: Sequence[Batch], prepared: Dataset) -> dict[str, Any]:
    """Return, in seconds of an update: what its operators take by group, where torch shows them, the data, the harness.

    An operator that its name does not tell, such as a sum, belongs to the nearest module or node around it that does;
    one of the pass backward to what its twin of the pass forward belongs to.
    """
    count = len(batches)
    synchronize = model.synchronize
    timing.seconds(model.bare_updates(batches), synchronize)
    turns = [
        (
            timing.seconds(model.bare_updates(batches), synchronize),
            timing.seconds(model.full_updates(count), synchronize),
        )
        for _ in range(TURNS)
    ]
    bare, more = median(one for one, _ in turns), median(other - one for one, other in turns)
    training, seed = model.job.spec.training, model.job.spec.seed

    def batches_of_an_epoch() -> Iterator[Batch]:
        return training_batches(prepared.train, training, seed=seed, epoch=0)

    made = timing.seconds(lambda: list(islice(batches_of_an_epoch(), count)), lambda: None)
    epoch = timing.seconds(lambda: list(batches_of_an_epoch()), lambda: None)
    found: dict[str, Any] = {
        "updates": count,
        "bare_seconds": bare / count,
        "data_seconds": epoch / updates_per_epoch(prepared.train, training),
        "harness_seconds": max(0.0, more - made) / count,
    }
    module = getattr(model.model, "module", None)
    captured = model.job.spec.cuda_graphs == "on"  # then there is one launch and no operator
    if model.job.spec.framework != "torch" or captured or not hasattr(module, "modules"):
        return found
    profiled, seconds, calls = _profiled(module, model.bare_updates(batches), synchronize)
    groups = {group: [one / count, calls[group]] for group, one in seconds.items()}
    return {**found, "profiled_seconds": profiled / count, "groups": groups}


def _profiled(
    module: Any, work: Callable[[], object], synchronize: Callable[[], object]
) -> tuple[float, dict[Group, float], dict[Group, int]]:
    """Return the wall seconds of profiled work, the operators' own seconds by group, and how many there were."""
    from torch.profiler import ProfilerActivity, profile, record_function

    on_gpu = any(one.is_cuda for one in module.parameters())
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with _ranges(module), profile(activities=activities) as profiler:
        synchronize()
        began = time.perf_counter()
        with record_function(UPDATE):
            work()
            synchronize()
        took = time.perf_counter() - began
    operators = [one for one in profiler.events() or () if one.device_type.name == "CPU"]
    seconds, calls = grouped(operators, "self_device_time_total" if on_gpu else "self_cpu_time_total")
    seconds["interpreter"] = max(0.0, took - sum(seconds.values()))
    return took, seconds, calls


@contextmanager
def _ranges(module: Any) -> Iterator[None]:
    """Let the profiler see every module's forward pass as a range named after its class."""
    from torch.autograd.profiler import record_function

    opened: list[Any] = []

    def enter(one: Any, inputs: Any) -> None:
        opened.append(record_function(f"{RANGE}{type(one).__name__}"))
        opened[-1].__enter__()

    def leave(one: Any, inputs: Any, output: Any) -> None:
        opened.pop().__exit__(None, None, None)

    handles = []
    for one in module.modules():
        handles += [one.register_forward_pre_hook(enter), one.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def grouped(
    events: Sequence[Any], time_field: str = "self_cpu_time_total"
) -> tuple[dict[Group, float], dict[Group, int]]:
    """Return the own seconds of profiled operators by group, and how many there were of each.

    `events` are torch's: `name`, `cpu_parent`, `sequence_nr`, and their own time in microseconds; on a GPU that is what
    they started there, and what is left of an update the GPU's waiting. A range's own time is the interpreter's, and so
    in none of the groups, unless it is a dropout's: drawing may be no operator of torch.
    """
    twins: dict[int, Group] = {}
    for one in events:
        group = _of_names(one)
        if group is not None and one.sequence_nr >= 0 and not _is_backward(one):
            twins.setdefault(one.sequence_nr, group)
    seconds: dict[Group, float] = defaultdict(float)
    calls: dict[Group, int] = defaultdict(int)
    for one in events:
        if one.name.startswith(RANGE) and _told(one.name) != "dropout":
            continue
        group = _of_names(one) or _of_twin(one, twins) or "copies and other"
        seconds[group] += getattr(one, time_field) / 1e6
        calls[group] += one.name.startswith("aten::")
    return seconds, calls


def _told(name: str) -> Group | None:
    """Return what a name tells."""
    if name in EXACT:
        return EXACT[name]
    small = name.lower()
    return next((group for word, group in WORDS if word in small), None)


def _around(event: Any) -> Iterator[Any]:
    while event is not None:
        yield event
        event = event.cpu_parent


def _of_names(event: Any) -> Group | None:
    """Return the group that the names of an operator and of what is around it tell, the nearest first."""
    return next((group for one in _around(event) if (group := _told(one.name)) is not None), None)


def _is_backward(event: Any) -> bool:
    return any(one.name.startswith(BACKWARD) for one in _around(event))


def _of_twin(event: Any, twins: dict[int, Group]) -> Group | None:
    """Return the group of the operator of the pass forward whose gradient this one computes."""
    return next((twins[one.sequence_nr] for one in _around(event) if one.sequence_nr in twins), None)
