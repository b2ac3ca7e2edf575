"""The models that `bench` trains and `speed` measures: those of the options, or those of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.cli import options
from harness.experiments import suites
from harness.experiments.suites import Suite
from harness.processes import machine
from harness.training import load
from impls import registry


@dataclass(frozen=True)
class ChosenModel:
    """A variant in a framework, with the backend of Keras."""

    variant: str
    framework: str
    backend: str | None = None

    @property
    def name(self) -> str:
        """The name in speed documents."""
        return f"{self.variant}/{self.framework}" + f"-{self.backend}" * (self.backend is not None)


def choose(
    suite: Suite,
    variants: Sequence[str] | None,
    frameworks: Sequence[str] | None,
    backends: Sequence[str] | None,
    device: str | None,
) -> tuple[list[ChosenModel], dict[ChosenModel, str]]:
    """Return the models that the options name, by default those of a suite, and why others of the suite are left out.

    Models of the suite are left out if their framework is not installed or cannot use the device (None if that is
    unknown); those of the options are not, so that the command fails.

    Raises: ValueError if a variant is unknown, a backend is given without Keras, or no framework is available.
    """
    names = [load.find_variant(name) for name in dict.fromkeys(variants or ())]
    is_suite = not (names or frameworks)
    frameworks = list(dict.fromkeys(frameworks or (["torch", "keras"] if is_suite else ["torch"])))
    if backends and "keras" not in frameworks:
        options.check_backend(None, backends[0])
    models: list[ChosenModel] = []
    left_out: dict[ChosenModel, str] = {}
    for framework in frameworks:
        for name in names or (suite.in_keras if framework == "keras" and is_suite else suite.variants):
            # A variant without any of these frameworks is refused when its builder is looked up.
            is_in_none = framework == frameworks[0] and not any(suites.has(name, other) for other in frameworks)
            if not (is_in_none or suites.has(name, framework)):
                continue
            for backend in dict.fromkeys(backends or registry.BACKENDS[:1]) if framework == "keras" else (None,):
                model = ChosenModel(name, framework, backend)
                reason = _unusable(model, device) if is_suite else ""
                if reason:
                    left_out[model] = reason
                else:
                    models.append(model)
    if not models:
        raise ValueError(f"no framework is available: {next(iter(left_out.values()))}")
    return models, left_out


def _unusable(model: ChosenModel, device: str | None) -> str:
    """Return why the framework of a model is not installed or cannot use the GPU; empty if it is usable."""
    reason = registry.missing(model.framework, model.backend)
    computes = model.backend or model.framework
    if not reason and (device or "").startswith("cuda") and not machine.gpu_usable(computes):
        return f"{computes!r} cannot use the GPU here"
    return reason
