"""Which variants `bench` runs in which frameworks, and what it says of those that cannot be had."""

from __future__ import annotations

import pytest

from harness.__main__ import parser
from harness.commands import bench
from harness.suites import SUITES, VARIANTS
from impls import registry


def planned(*words: str) -> list[tuple[str, str]]:
    given = parser().parse_args(["bench", *words])
    return bench._pairs(given.variant or [], SUITES[given.suite or "quick"], given)


def test_a_suite_runs_what_it_names_in_keras_too() -> None:
    torch = [(name, "torch") for name in VARIANTS]
    assert planned() == [*torch, ("learned_positions", "keras")]
    assert planned("--suite", "standard") == [
        *torch,
        *((name, "keras") for name in VARIANTS if name != "torch_reference"),
    ]


def test_options_choose_frameworks() -> None:
    assert planned("--variant", "paper") == [("paper", "torch")]
    both = ["--framework", "torch", "--framework", "keras"]
    assert planned("--variant", "paper", *both) == [("paper", "torch"), ("paper", "keras")]
    assert planned("--variant", "torch_reference", *both) == [("torch_reference", "torch")]
    assert {framework for _, framework in planned("--framework", "keras")} == {"keras"}


@pytest.mark.parametrize(("gone", "left"), [("keras", "torch"), ("torch", "keras")])
def test_a_framework_that_is_missing_is_left_out_and_said(
    gone: str, left: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "not here" if framework == gone else "")
    assert {framework for _, framework in planned()} == {left}
    assert f"in {gone}. not here" in capsys.readouterr().out
    monkeypatch.setattr(registry, "missing", lambda framework, backend=None: "not here")
    with pytest.raises(ValueError, match="no framework can be used here: not here"):
        planned()
