"""How an update spends its time: the operators of a torch model by group, data loading, and the harness."""

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
"""The prefix of the profiler ranges around the forward passes of modules; the name of the class follows."""

UPDATE = f"{RANGE}update"
TURNS = 3
"""How often the bare updates and the harness's training loop take turns."""

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
"""The group of operators with these names."""

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
"""The group of operators whose name, or the name of an enclosing range, contains a word; the first match counts."""


def breakdown(model: OwnModel, batches: Sequence[Batch], prepared: Dataset) -> dict[str, Any]:
    """Return the seconds of an update: of its operators by group (torch only), of data loading, and of the harness.

    An operator whose name has no group, such as a sum, belongs to the nearest enclosing module or autograd node that
    has one. An operator of the backward pass belongs to the group of its forward twin.
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
    bare, overhead = median(bare for bare, _ in turns), median(full - bare for bare, full in turns)
    training, seed = model.job.spec.training, model.job.spec.seed

    def batches_of_an_epoch() -> Iterator[Batch]:
        return training_batches(prepared.train, training, seed=seed, epoch=0)

    loading = timing.seconds(lambda: list(islice(batches_of_an_epoch(), count)), lambda: None)
    epoch = timing.seconds(lambda: list(batches_of_an_epoch()), lambda: None)
    result: dict[str, Any] = {
        "updates": count,
        "bare_seconds": bare / count,
        "data_seconds": epoch / updates_per_epoch(prepared.train, training),
        "harness_seconds": max(0.0, overhead - loading) / count,
    }
    module = getattr(model.model, "module", None)
    captured = model.job.spec.cuda_graphs == "on"  # one graph launch, without operators
    if model.job.spec.framework != "torch" or captured or not hasattr(module, "modules"):
        return result
    profiled, seconds, calls = _profiled(module, model.bare_updates(batches), synchronize)
    groups = {group: [total / count, calls[group]] for group, total in seconds.items()}
    return {**result, "profiled_seconds": profiled / count, "groups": groups}


def _profiled(
    module: Any, work: Callable[[], object], synchronize: Callable[[], object]
) -> tuple[float, dict[Group, float], dict[Group, int]]:
    """Return the wall-clock seconds of profiled work, and the operators' own seconds and number by group."""
    from torch.profiler import ProfilerActivity, profile, record_function

    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with _ranges(module), profile(activities=activities) as profiler:
        synchronize()
        began = time.perf_counter()
        with record_function(UPDATE):
            work()
            synchronize()
        took = time.perf_counter() - began
    operators = [event for event in profiler.events() or () if event.device_type.name == "CPU"]
    seconds, calls = grouped(operators, "self_device_time_total" if on_gpu else "self_cpu_time_total")
    seconds["interpreter"] = max(0.0, took - sum(seconds.values()))
    return took, seconds, calls


@contextmanager
def _ranges(module: Any) -> Iterator[None]:
    """Mark the forward pass of every module as a profiler range that is named after its class."""
    from torch.autograd.profiler import record_function

    opened: list[Any] = []

    def enter(module: Any, inputs: Any) -> None:
        opened.append(record_function(f"{RANGE}{type(module).__name__}"))
        opened[-1].__enter__()

    def leave(module: Any, inputs: Any, output: Any) -> None:
        opened.pop().__exit__(None, None, None)

    handles = []
    for submodule in module.modules():
        handles += [submodule.register_forward_pre_hook(enter), submodule.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def grouped(
    events: Sequence[Any], time_field: str = "self_cpu_time_total"
) -> tuple[dict[Group, float], dict[Group, int]]:
    """Return the own seconds and the number of profiled operators by group.

    The own time of a range is that of the interpreter and in no group. Dropout is an exception, because random numbers
    may not be drawn by an operator of torch.

    Args:
        events: Those of torch's profiler: `name`, `cpu_parent`, `sequence_nr`, and the own time in microseconds.
        time_field: The attribute with the own time: that of the CPU, or of the kernels that were launched on a GPU.
    """
    twins: dict[int, Group] = {}
    for event in events:
        group = _group_by_name(event)
        if group is not None and event.sequence_nr >= 0 and not _is_backward(event):
            twins.setdefault(event.sequence_nr, group)
    seconds: dict[Group, float] = defaultdict(float)
    calls: dict[Group, int] = defaultdict(int)
    for event in events:
        if event.name.startswith(RANGE) and _group_of(event.name) != "dropout":
            continue
        group = _group_by_name(event) or _group_of_twin(event, twins) or "copies and other"
        seconds[group] += getattr(event, time_field) / 1e6
        calls[group] += event.name.startswith("aten::")
    return seconds, calls


def _group_of(name: str) -> Group | None:
    """Return the group of a name."""
    if name in EXACT:
        return EXACT[name]
    lowercase = name.lower()
    return next((group for word, group in WORDS if word in lowercase), None)


def _enclosing(event: Any) -> Iterator[Any]:
    """Yield an event and all that enclose it, the innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _group_by_name(event: Any) -> Group | None:
    """Return the group of the name of an event, or of the nearest enclosing event that has one."""
    return next((group for outer in _enclosing(event) if (group := _group_of(outer.name)) is not None), None)


def _is_backward(event: Any) -> bool:
    return any(outer.name.startswith(BACKWARD) for outer in _enclosing(event))


def _group_of_twin(event: Any, twins: dict[int, Group]) -> Group | None:
    """Return the group of the operator of the forward pass whose gradient an event computes."""
    return next((twins[outer.sequence_nr] for outer in _enclosing(event) if outer.sequence_nr in twins), None)
