"""Linear layers that are faster without gradients on a CPU, because they keep a copy of their weight for oneDNN.

Multiplying a batch with a weight takes up to twice as long in the layout in which it is trained, [out,in], as in the
layout of oneDNN's own kernels (measured on an AMD EPYC). The copy is made at the first product and again whenever the
weight has changed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import linear

from impls.pytorch.cpu_kernels import is_exact_inference

AVAILABLE = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
"""Whether this build of torch has the kernels. They are not public; `torch.compile` uses them in the same way."""

LEAST_ROWS = 6
"""For fewer rows, oneDNN's kernels take longer than the ordinary product (for one, twice as long on a Xeon)."""


def is_packable(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether to multiply with a packed weight: `LEAST_ROWS` rows in float32 on a CPU, without gradients."""
    return (
        AVAILABLE
        and x.numel() >= LEAST_ROWS * weight.shape[1]
        and weight.dtype == torch.float32
        and is_exact_inference(x)
    )


class PackedWeight:
    """The packed copy of one weight.

    A change of the weight is noticed by its version, which operations of torch increment. Fused optimisers and changes
    through `weight.data` do not: call `torch.autograd.graph.increment_version` after them.
    """

    def __init__(self) -> None:
        self._packed: Any = None
        self._key: tuple[int, int] | None = None

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return `x @ weight.T + bias`. Shapes: x [...,I], weight [O,I], bias [O]; to [...,O]."""
        if not is_packable(x, weight):
            return linear(x, weight, bias)
        key = (weight._version, weight.data_ptr())
        if key != self._key:
            self._packed, self._key = torch.ops.mkldnn._reorder_linear_weight(weight.detach()), key
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, "none", [], "")

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[()]]:
        """Copy and pickle it without the packed weight, which torch cannot copy."""
        return PackedWeight, ()


class PackedLinear(nn.Linear):
    """`nn.Linear` with a `PackedWeight`."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self._packed_weight = PackedWeight()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the product. Shapes: [...,I] to [...,O]."""
        return self._packed_weight.linear(input, self.weight, self.bias)
