"""Small models whose work is captured as CUDA graphs, and what stands in for a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from small_models import SOURCE_WORDS, TARGET_WORDS
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from impls import registry
from impls.contract import Training, TransformerRecipe
from impls.pytorch import cuda_graph_training
from impls.pytorch.cuda_graph_decoding import Order
from impls.pytorch.cuda_graph_training import GraphModel
from impls.pytorch.torch_adapter import TorchModel, build_transformer

ROWS, LONGEST = 6, 14
VARIANTS = ("learned_positions", "sinusoidal_handmade", "conv_ffn", "paper")
SIZES: dict[str, Any] = {"width": 32, "layers": 2, "heads": 4, "ffn_width": 48, "max_length": LONGEST}

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that the installed torch can use")


def recipe(variant: str = "learned_positions", dropout: float = 0.0, **changes: Any) -> TransformerRecipe:
    found = registry.recipe(variant)
    assert isinstance(found, TransformerRecipe)
    head_width = None if found.head_width is None else 8
    return replace(found, **{**SIZES, "head_width": head_width, "dropout": dropout, **changes})


def training(variant: str = "learned_positions", **changes: Any) -> Training:
    return replace(registry.training(variant), batch_size=ROWS, **changes)


def model(
    kind: type[TorchModel],
    of: TransformerRecipe,
    trained: Training,
    *,
    device: str = "cpu",
    precision: str = "float32",
) -> TorchModel:
    settings = {"training": trained, "seed": 3, "precision": precision}
    return build_transformer(of, SOURCE_WORDS, TARGET_WORDS, device=device, kind=kind, **settings)


def called(name: Hashable, order: Order, state: Sequence[torch.Tensor]) -> Order:
    """Return `order`: nothing is captured."""
    return order


def meta(of: TransformerRecipe, trained: Training) -> GraphModel:
    """Return a model on a device without memory, torch's "meta"."""
    found = model(GraphModel, of, trained)
    assert isinstance(found, GraphModel)
    found.module.to("meta")
    found._parameters = list(found.module.parameters())
    found._device, found._mixed = torch.device("meta"), contextlib.nullcontext  # type: ignore[method-assign, assignment]
    return found


class Orders(TorchDispatchMode):
    """Notes every operation, and of which of them something lies in the processor's memory or is read back to it."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[str] = []
        self.on_host: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function)
        # There is no fused Adam on this device; its operands are looked at all the same.
        done = None if "_fused_adam_" in name else function(*args, **(kwargs or {}))
        self.given.append(name)
        tensors = [one for one in tree_leaves((args, kwargs, done)) if isinstance(one, torch.Tensor)]
        if "_local_scalar_dense" in name or any(one.device.type != "meta" for one in tensors):
            self.on_host.append(name)
        return done


@dataclass(eq=False)
class PlayedGraph:
    """Remembers what is done while it is captured, and does it at each replay."""

    gpu: PlayedGpu
    generators: list[torch.Generator] = field(default_factory=list)
    orders: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gpu.graphs.append(self)

    def register_generator_state(self, generator: torch.Generator) -> None:
        assert self.gpu.capturing is None
        self.generators.append(generator)

    def replay(self) -> None:
        self.gpu.log.append("replay")
        for order in self.orders:
            order()


class PlayedStream:
    def __init__(self, device: torch.device) -> None:
        self.waited = 0

    def wait_stream(self, other: PlayedStream) -> None:
        self.waited += 1


class PlayedGpu:
    """The part of `torch.cuda` that `Graphs` uses: while a graph is captured, orders are noted and not done.

    An order is a call of the method `name` of `owner`; the log calls it `word`.
    """

    CUDAGraph: Callable[[], PlayedGraph]
    Stream = PlayedStream

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type[Any], name: str, word: str) -> None:
        self.CUDAGraph = lambda: PlayedGraph(self)
        self.graphs: list[PlayedGraph] = []
        self.capturing: PlayedGraph | None = None
        self.captures: list[tuple[object, object]] = []
        self.log: list[str] = []
        self.default = PlayedStream(torch.device("cpu"))
        done = getattr(owner, name)

        def ordered(this: Any, *others: Any) -> None:
            if self.capturing is None:
                self.log.append(word)
                done(this, *others)
            else:
                # A graph that finds gradients adds to them, though they lie in nobody's memory at its next replay.
                assert not isinstance(this, TorchModel) or all(one.grad is None for one in this._parameters)
                self.capturing.orders.append(lambda: done(this, *others))

        monkeypatch.setattr(cuda_graph_training, "cuda", self)
        monkeypatch.setattr(owner, name, ordered)

    def graph_pool_handle(self) -> object:
        return object()

    def current_stream(self, device: torch.device) -> PlayedStream:
        return self.default

    def synchronize(self, device: torch.device) -> None:
        self.log.append("synchronize")

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        yield

    @contextlib.contextmanager
    def stream(self, stream: PlayedStream) -> Iterator[None]:
        assert stream.waited, "the warm-up reads what the default stream has not written yet"
        yield

    @contextlib.contextmanager
    def graph(self, graph: PlayedGraph, *, pool: object, stream: PlayedStream) -> Iterator[None]:
        assert self.default.waited, "the capture begins before the warm-up is undone"
        self.captures.append((pool, stream))
        self.capturing = graph
        yield
        self.capturing = None
