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
from harness.speed.models import VariantModel
from harness.speed.timed_model import Group
from impls.contract import Batch

RANGE = "speed::"
"""The prefix of the profiler ranges around the forward passes of modules; the name of the class follows."""

UPDATE = f"{RANGE}update"
TURNS = 3
"""The number of times that the bare updates and the harness's training loop are timed in turns."""

BACKWARD = "autograd::engine::evaluate_function: "

MATRIX_PRODUCTS = """
    mm addmm addmm_ _addmm_activation matmul linear addmv addbmm mkldnn_convolution convolution_backward
    _slow_conv2d_forward _slow_conv2d_backward mkldnn_rnn_layer
"""
ATTENTION = "bmm baddbmm _softmax _softmax_backward_data"
EXACT: dict[str, Group] = {
    **{f"aten::{name}": "matrix products" for name in MATRIX_PRODUCTS.split()},
    **{f"aten::{name}": "attention" for name in ATTENTION.split()},
}
"""The group of operators with these names."""

WORDS: dict[Group, str] = {
    "dropout": "dropout bernoulli",
    "softmax and loss": "log_softmax logsoftmax nll_loss nllloss cross_entropy crossentropy logsumexp outputloss",
    "optimiser": "adam optimizer",
    "clipping": "_foreach_norm _foreach_mul linalg_vector_norm",
    "attention": "attention scaled_dot_product",
    "norm and activation": "norm relu gelu silu tanh sigmoid threshold",
    "embedding": "embed position sinusoid",
}
"""The group of operators if their name, or the name of an enclosing range, contains a word; the first match counts."""


def breakdown(model: VariantModel, batches: Sequence[Batch], dataset: Dataset) -> dict[str, Any]:
    """Return the seconds of an update: of its operators by group (torch only), of data loading, and of the harness.

    An operator without a group of its own, such as a sum, belongs to the nearest enclosing module or autograd node that
    has one. An operator of the backward pass belongs to the group of the operator whose gradient it computes.
    """
    count = len(batches)
    synchronize = model.synchronize
    timing.seconds(model.bare_updates(batches), synchronize)
    turns = []
    for _ in range(TURNS):
        seconds = timing.seconds(model.bare_updates(batches), synchronize)
        turns.append((seconds, timing.seconds(model.full_updates(count), synchronize) - seconds))
    bare, overhead = map(median, zip(*turns, strict=True))
    training, seed = model.job.spec.training, model.job.spec.seed

    def load(updates: int | None) -> None:
        list(islice(training_batches(dataset.train, training, seed=seed, epoch=0), updates))

    loading = timing.seconds(lambda: load(count), lambda: None)
    epoch = timing.seconds(lambda: load(None), lambda: None)
    result: dict[str, Any] = {
        "updates": count,
        "bare_seconds": bare / count,
        "data_seconds": epoch / updates_per_epoch(dataset.train, training),
        "harness_seconds": max(0.0, overhead - loading) / count,
    }
    module = getattr(model.model, "module", None)
    captured = model.job.spec.cuda_graphs == "on"  # one graph launch, without operators
    if model.job.spec.framework != "torch" or captured or not hasattr(module, "modules"):
        return result
    profiled, totals, calls = _profiled(module, model.bare_updates(batches), synchronize)
    groups = {group: [total / count, calls[group]] for group, total in totals.items()}
    return {**result, "profiled_seconds": profiled / count, "groups": groups}


def _profiled(
    module: Any, work: Callable[[], object], synchronize: Callable[[], object]
) -> tuple[float, dict[Group, float], dict[Group, int]]:
    """Return the wall-clock seconds of profiled work, and the operators' self time in seconds and number by group."""
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
    """Return the self time in seconds and the number of profiled operators by group.

    The self time of a range is spent in the interpreter and belongs to no group. Dropout is an exception, because its
    random numbers may come from outside torch.

    Args:
        events: The events of torch's profiler: `name`, `cpu_parent`, `sequence_nr`, and the self time in microseconds.
        time_field: The attribute with the self time of the CPU, or of the kernels launched on a GPU.
    """
    forward: dict[int, Group] = {}
    for event in events:
        group = _group_by_name(event)
        if group is not None and event.sequence_nr >= 0 and not _is_backward(event):
            forward.setdefault(event.sequence_nr, group)
    seconds: dict[Group, float] = defaultdict(float)
    calls: dict[Group, int] = defaultdict(int)
    for event in events:
        if event.name.startswith(RANGE) and _group_of(event.name) != "dropout":
            continue
        group = _group_by_name(event) or _group_of_forward(event, forward) or "copies and other"
        seconds[group] += getattr(event, time_field) / 1e6
        calls[group] += event.name.startswith("aten::")
    return seconds, calls


def _group_of(name: str) -> Group | None:
    lowercase = name.lower()
    by_word = (group for group, words in WORDS.items() if any(word in lowercase for word in words.split()))
    return EXACT[name] if name in EXACT else next(by_word, None)


def _enclosing(event: Any) -> Iterator[Any]:
    """Yield an event and all enclosing events, the innermost first."""
    while event is not None:
        yield event
        event = event.cpu_parent


def _group_by_name(event: Any) -> Group | None:
    """Return the group of the name of an event, or of the nearest enclosing event that has one."""
    return next((group for outer in _enclosing(event) if (group := _group_of(outer.name)) is not None), None)


def _is_backward(event: Any) -> bool:
    return any(outer.name.startswith(BACKWARD) for outer in _enclosing(event))


def _group_of_forward(event: Any, forward: dict[int, Group]) -> Group | None:
    """Return the group of the operator of the forward pass whose gradient an event computes."""
    return next((forward[outer.sequence_nr] for outer in _enclosing(event) if outer.sequence_nr in forward), None)
