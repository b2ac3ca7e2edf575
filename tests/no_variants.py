"""Objects that somebody may take for variants."""

from __future__ import annotations

from typing import Any

from torch import nn


class Network(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


NETWORK = Network()
NUMBER = 3


def failing_builder(source_words: int, target_words: int, **settings: Any) -> Any:
    raise RuntimeError("no such file\nand more")


def builder_of_nothing(source_words: int, target_words: int, **settings: Any) -> Any:
    return None
