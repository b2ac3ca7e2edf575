"""The directions and the step lengths of law 14."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import subject

from harness.conformance import update_law
from impls import registry

pytestmark = pytest.mark.usefixtures("single_thread")


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_update_law_moves_tensors_of_one_number_along_their_gradient(sign: float) -> None:
    """A scale of a norm may be one number, whose random half is as long as its gradient."""
    gradient = {"norm.scale": np.array([sign]), "gain": np.array(-sign)}
    direction = update_law._direction(gradient, list(gradient))
    assert all(direction[name] == pytest.approx(gradient[name] / 2**0.5) for name in gradient)


def test_update_law_accepts_a_model_of_the_tutorials_size() -> None:
    """Its loss is so curved that the longer steps of finite differences disagree with the gradient."""
    wide = subject(registry.recipe("learned_positions"))
    assert not update_law._loss_gradient(wide, wide.probes()[0], update_law.SUBLAYER)
