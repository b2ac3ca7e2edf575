"""Maps the parameters of torch modules to canonical weight names."""

from __future__ import annotations

import functools
import re
from types import EllipsisType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from impls.contract import Numbers

# Regular expressions that turn torch's names into canonical ones, applied in this order.
NAMES = (
    (r"\.(layers|sublayer)\.", "."),
    (r"^(source|target)_(embedding|positions)", r"\1.\2"),
    (r"\.(embedding|positions)\.weight$", r".\1"),
    (r"\.(self|cross)_attention\.", r".\1."),
    (r"\.self_attn\.", ".self."),
    (r"\.multihead_attn\.", ".cross."),
    (r"\.out_proj\.", ".output."),
    (r"\.linear1\.", ".feed_forward.inner."),
    (r"\.linear2\.", ".feed_forward.outer."),
    (r"\.norm1\.", ".self.norm."),
    (r"^(encoder\.\d+)\.norm2\.", r"\1.feed_forward.norm."),
    (r"^(decoder\.\d+)\.norm2\.", r"\1.cross.norm."),
    (r"\.norm3\.", ".feed_forward.norm."),
    (r"\.(self|cross|feed_forward)_norm\.", r".\1.norm."),
    (r"\.norm\.weight$", ".norm.scale"),
    (r"\.norm\.bias$", ".norm.shift"),
    (r"^encoder\.ahead\.", "encoder.forward."),
    (r"^encoder\.back\.", "encoder.backward."),
    (r"\.(weight|bias)_ih_l0$", r".input.\1"),
    (r"\.(weight|bias)_hh_l0$", r".hidden.\1"),
    (r"^decoder_(input|hidden)\.", r"decoder.\1."),
    (r"\.weight$", ".kernel"),
)


# Fused projections: a pattern in the parameter's name, and its replacement for each part.
PACKED = {
    r"in_proj_(?=weight$|bias$)": ("query.", "key.", "value."),
    r"query_key_value\.": ("query.", "key.", "value."),
    r"key_value\.": ("key.", "value."),
}


class WeightSlot(NamedTuple):
    """The location of a canonical tensor: rows of a parameter (... for all), transposed if it is a kernel."""

    parameter: nn.Parameter
    rows: slice | EllipsisType
    kernel: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the canonical array."""
        values = self.parameter.detach()[self.rows]
        return tuple((values.flatten(1).T if self.kernel else values).shape)

    def read(self, tensor: torch.Tensor) -> Numbers:
        """Return a copy of the canonical array in `tensor`, the parameter or one of its moments."""
        values = tensor.detach()[self.rows].float()
        if self.kernel:
            values = values.flatten(1).T
        return np.array(values.cpu().numpy(), dtype=np.float32, order="C")

    def write(self, tensor: torch.Tensor, array: Numbers) -> None:
        """Write a canonical array into `tensor`."""
        values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        target = tensor.detach()[self.rows]
        target.copy_((values.T if self.kernel else values).reshape(target.shape))


@functools.cache
def canonical_names(torch_name: str) -> tuple[str, ...]:
    """Return the canonical names of the parts of a parameter, in the order of its rows."""
    pattern = next((candidate for candidate in PACKED if re.search(candidate, torch_name)), "$")
    names = [re.sub(pattern, part, torch_name) for part in PACKED.get(pattern, ("",))]
    for old, new in NAMES:
        names = [re.sub(old, new, name) for name in names]
    return tuple(names)


def slots(module: nn.Module) -> dict[str, WeightSlot]:
    """Return the location of each canonical tensor of a torch module."""
    slots_by_name: dict[str, WeightSlot] = {}
    for torch_name, parameter in module.named_parameters():
        names = canonical_names(torch_name)
        size = len(parameter) // len(names)
        for index, name in enumerate(names):
            slots_by_name[name] = WeightSlot(
                parameter, slice(index * size, (index + 1) * size), name.endswith(".kernel")
            )
    return slots_by_name
