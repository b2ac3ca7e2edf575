"""Turns a user's torch module into a `Seq2SeqModel`; `impls.wrap` describes the methods that the module needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from impls.contract import EOS, SOS, Arrays, Training
from impls.pytorch.dropout import DropoutSource
from impls.pytorch.kv_cache import Rows
from impls.pytorch.plain_adapter import PlainModel
from impls.pytorch.torch_adapter import device_of
from impls.pytorch.weight_names import WeightSlot

SENTENCES = np.array([[SOS, EOS, EOS], [SOS, SOS, EOS]], np.int32)
"""Sources to check a module with: the first one, and both. No other dimension of a tensor has both sizes."""


class WrappedModule(nn.Module):
    """Gives a user's module the methods that `TorchModel` calls. Ids reach the module as int64."""

    def __init__(self, user: Any) -> None:
        super().__init__()
        self.user = user
        self.output = nn.Identity()

    def forward(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the logits of all positions. Shapes: [B,S], [B,T] to [B,T,V]."""
        return self.decode(self.user.encode(source.long()), target_in)[0]

    def cross_attention(self, source: torch.Tensor, target_in: torch.Tensor) -> torch.Tensor:
        """Return the attention weights of target on source positions, [B,layers,H,T,S]; without attention no layers."""
        logits, attention = self.decode(self.user.encode(source.long()), target_in)
        if attention is None:
            return logits.new_zeros((len(source), 0, 0, target_in.shape[1], source.shape[1]))
        return attention[:, None, None] if attention.ndim == 3 else attention

    def prefill(self, source: torch.Tensor) -> WrappedState:
        """Encode the source [B,S] and return the state before the first target token."""
        return WrappedState(self.user.encode(source.long()), source.new_zeros((len(source), 0)))

    def step(self, state: WrappedState, last: torch.Tensor) -> torch.Tensor:
        """Feed the newest tokens [R] and return the logits of the next ones, [R,V]."""
        if getattr(self.user, "step", None) is not None:
            result = self.user.step(state.memory, state.decoder, last.long())
            logits, state.decoder = self._pair("step", result, "the logits and a new state")
            return logits
        state.tokens = torch.cat([state.tokens, last[:, None]], dim=1)
        return self.decode(state.memory, state.tokens)[0][:, -1]

    def decode(self, memory: Any, target_in: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return what the user's `decode` returns: logits, and attention weights or None."""
        result = self.user.decode(memory, target_in.long())
        if isinstance(result, torch.Tensor):
            return result, None
        return self._pair("decode", result, "the logits and the attention weights, or the logits alone")

    def _pair(self, method: str, result: Any, expected: str) -> tuple[Any, Any]:
        """Return the two values that a method of the user's module returned. Raises: ValueError for anything else."""
        if isinstance(result, tuple | list) and len(result) == 2:
            return result[0], result[1]
        kind = type(result).__name__
        raise ValueError(f"{type(self.user).__name__}.{method} returned a {kind}: return a pair, {expected}")


class WrappedState:
    """The state of incremental decoding.

    Attributes:
        memory: The result of the module's `encode`.
        decoder: The state that the module's `step` returned; None before the first token.
        tokens: The tokens so far, [R,t], for modules without `step`.
    """

    def __init__(self, memory: Any, tokens: torch.Tensor) -> None:
        self.memory, self.decoder, self.tokens = memory, None, tokens

    def reorder(self, rows: Rows) -> None:
        """Keep, drop, repeat or reorder rows."""
        index = torch.from_numpy(rows).to(self.tokens.device)
        state = self.memory, self.decoder, self.tokens
        self.memory, self.decoder, self.tokens = mapped(state, lambda tensor: tensor.index_select(0, index))


def mapped(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a value with the same change of every tensor in nested tuples, lists and dictionaries.

    Raises:
        ValueError: The value holds something else than tensors and None.
    """
    if value is None:
        return None
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = copy.copy(value)  # of the same type, such as an output of Hugging Face with attributes
        for key, item in value.items():
            changed[key] = mapped(item, change)
        return changed
    if isinstance(value, tuple | list):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    raise ValueError(f"encode or step returned a {type(value).__name__}: use tensors, tuples, lists, dicts or None")


class WrappedModel(PlainModel):
    """A user's module with its own parameter names as weight names. `max_length` is the module's, if it has one."""

    # A tensor that the module makes in evaluation and keeps, such as a table of positions, can be used in training.
    without_gradients = torch.no_grad

    def __init__(self, module: nn.Module, **settings: Any) -> None:
        self.max_length = getattr(module, "max_length", None)
        wrapped = WrappedModule(module)
        weights = {name: slot.read(slot.parameter) for name, slot in self.weight_slots(wrapped).items()}
        super().__init__(None, wrapped, weights, **settings)

    @staticmethod
    def weight_slots(module: nn.Module) -> dict[str, WeightSlot]:
        """Return where each weight lies: the parameters under the names that the user's module gives them."""
        parameters = module.get_submodule("user").named_parameters()
        return {name: WeightSlot(parameter, ..., kernel=False) for name, parameter in parameters}

    def training_state(self) -> Arrays:
        """Return what an exact resume needs; Adam counts no step for a parameter that an update does not use."""
        return super().training_state() | {
            f"step/{name}": steps.numpy().copy() for name, steps in self._steps().items()
        }

    def set_training_state(self, state: Arrays) -> None:
        """Continue from `training_state()`. Raises: ValueError naming what is missing, unexpected or misshaped."""
        super().set_training_state(state)
        for name, steps in self._steps().items():
            steps.fill_(state[f"step/{name}"].item())

    def changed_buffers(self) -> list[str]:
        """Return the buffers that a forward pass in training changes; one that it makes anew is not among them."""
        before = {name: buffer.clone() for name, buffer in self.module.user.named_buffers()}
        self.module.train()
        with torch.no_grad(), self._mixed(), self._seeded_dropout():
            self.module(self.to_device(SENTENCES), self.to_device(SENTENCES))
        now = self.module.user.named_buffers()
        pairs = [(name, before[name], buffer) for name, buffer in now if name in before]
        return [name for name, old, new in pairs if old.shape == new.shape and not torch.equal(old, new)]

    def _steps(self) -> dict[str, torch.Tensor]:
        return {name: self._optimiser.state[slot.parameter]["step"] for name, slot in self._slots.items()}


def build(
    module: nn.Module | Callable[[], nn.Module],
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    seed: int,
    device: str,
    precision: str,
) -> WrappedModel:
    """Build the model; see `impls.wrap`."""
    if not isinstance(module, nn.Module) and callable(module):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            module = module()
    if not isinstance(module, nn.Module):
        raise ValueError(f"impls.wrap needs a torch.nn.Module or a function that returns one, not {module!r}")
    missing = [name for name in ("encode", "decode") if not callable(getattr(module, name, None))]
    if missing:
        needed = "encode(source) and decode(memory, target_in)"
        raise ValueError(f"{type(module).__name__} has no method {missing[0]!r}: impls.wrap needs {needed}")
    _check_parameters(module)
    source = DropoutSource(device_of(device))
    model = WrappedModel(module, training=training, dropout_source=source, seed=seed, precision=precision)
    _check_memory(model)
    _check_shapes(model, source_vocabulary_size, target_vocabulary_size)
    _check_steps(model, target_vocabulary_size)
    for name in model.changed_buffers():
        raise ValueError(
            f"{type(module).__name__}.{name} is a buffer that changes in training, and only parameters are stored: use "
            "a layer that looks at one sentence only, such as LayerNorm"
        )
    return model


def _check_parameters(module: nn.Module) -> None:
    """Raise ValueError for parameters that cannot be trained or stored, and for layers that are not known as such."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(f"{type(module).__name__} has no parameter to train")
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.UninitializedParameter):
            raise ValueError(
                f"{type(module).__name__}.{name} has no shape yet: call the module once in the function that returns it"
            )
        if parameter.dtype != torch.float32:
            raise ValueError(f"{type(module).__name__}.{name} is {parameter.dtype}: parameters must be torch.float32")
    known = set(module.modules())
    for path, owner in module.named_modules():
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.sparse:
            name = f"{type(module).__name__}.{path}"
            raise ValueError(f"{name} has sparse=True: the optimiser takes no sparse gradients, use sparse=False")
        for attribute, value in vars(owner).items():
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            layers = [item for item in items if isinstance(item, nn.Module) and item not in known]
            if any(layer.state_dict() for layer in layers):
                name = ".".join(filter(None, [type(module).__name__, path, attribute]))
                raise ValueError(
                    f"{name} is a {type(value).__name__} of layers, which are not trained: use nn.ModuleList or "
                    "nn.ModuleDict"
                )


def _check_memory(model: WrappedModel) -> None:
    """Raise ValueError unless the first dimension of what the module's `encode` returns is the sentence."""
    for source in (SENTENCES[:1], SENTENCES):
        with model.evaluation():
            memory = model.module.prefill(model.to_device(source)).memory
        _check_rows(f"{type(model.module.user).__name__}.encode", memory, len(source))


def _check_steps(model: WrappedModel, target_vocabulary_size: int) -> None:
    """Raise ValueError unless the module's `step` can continue after the sentences have changed their places."""
    name = f"{type(model.module.user).__name__}.step"
    for source in (SENTENCES[:1], SENTENCES):
        expected = (len(source), target_vocabulary_size)
        with model.evaluation():
            state = model.module.prefill(model.to_device(source))
            for _ in range(2):
                logits = model.module.step(state, model.to_device(source[:, 0]))
                if tuple(logits.shape) != expected:
                    raise ValueError(f"{name} returned logits of shape {tuple(logits.shape)}: expected {expected}")
                _check_rows(name, state.decoder, len(source))
                state.reorder(np.arange(len(source))[::-1].copy())


def _check_rows(method: str, value: Any, sentences: int) -> None:
    """Raise ValueError unless the first dimension of each tensor that a method returned is the sentence."""

    def check(tensor: torch.Tensor) -> torch.Tensor:
        if tuple(tensor.shape[:1]) != (sentences,):
            raise ValueError(
                f"{method} returned a tensor of shape {tuple(tensor.shape)} for {sentences} sentence"
                f"{'s' * (sentences > 1)}: the first dimension of each tensor must be the sentence"
            )
        return tensor

    mapped(value, check)


def _check_shapes(model: WrappedModel, source_vocabulary_size: int, target_vocabulary_size: int) -> None:
    """Raise ValueError unless logits and attention of a tiny batch have the right shapes and precision."""
    source = np.array([[SOS, source_vocabulary_size - 1, EOS]], np.int32)
    target_in = np.array([[SOS, target_vocabulary_size - 1]], np.int32)
    name = type(model.module.user).__name__
    with model.evaluation():
        logits = model.module(model.to_device(source), model.to_device(target_in))
    shape, expected = tuple(logits.shape), (1, 2, target_vocabulary_size)
    if logits.dtype == torch.float16:
        raise ValueError(f"{name}.decode returned logits in {logits.dtype}, which is too inexact: return torch.float32")
    if shape != expected:
        raise ValueError(f"{name}.decode returned logits of shape {shape} for one sentence: expected {expected}")
    attention = model.cross_attention(source, target_in)
    if attention.ndim != 5 or attention.shape[0] != 1 or attention.shape[3:] != (2, 3):
        raise ValueError(
            f"{name}.decode returned attention weights of the wrong shape: return [B,T,S] or [B,layers,heads,T,S]"
        )
