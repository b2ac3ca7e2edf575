"""`laws`: run the fourteen conformance checks ("laws") that every model must pass."""

from __future__ import annotations

import argparse
import os

from harness.cli import options
from harness.cli.console import say
from harness.experiments import suites
from harness.processes.environment_variables import thread_environment
from harness.text import count
from harness.training import load
from impls import registry

SUMMARY = "run the conformance checks (laws) on models"
EXAMPLES = (
    ("test all built-in variants", ""),
    ("test your own model quickly", "--fast --variant examples.lstm_attention:build"),
    ("test only causality and padding, in Keras on JAX", "--law 3 --law 4 --framework keras --backend jax"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variant",
        action="append",
        help="a variant, or package.module:NAME; repeatable (default: all built-in variants)",
    )
    parser.add_argument(
        "--law",
        type=int,
        choices=range(1, 15),
        action="append",
        metavar="N",
        help="number of a law, 1 to 14; repeatable (default: all)",
    )
    parser.add_argument(
        "--fast", action="store_true", help="smaller batches and fewer samples: seconds per model (default: full size)"
    )
    options.add_framework(parser)
    parser.add_argument("--device", default="cpu", help="device of the models, cpu or cuda (default cpu)")


def command(arguments: argparse.Namespace) -> int:
    """Print the result and the seconds of each law for each variant, and what to mend first.

    Returns 0, or 1 if a law is broken.
    """
    framework = arguments.framework or "torch"
    options.check_backend(framework, arguments.backend)
    names = arguments.variant or [name for name in registry.names() if suites.has(name, framework)]
    backend = (arguments.backend or registry.BACKENDS[0]) if framework == "keras" else None
    # The models are small: a second thread makes the laws no faster, and on a busy machine several times slower.
    if "OMP_NUM_THREADS" not in os.environ:
        os.environ.update(thread_environment(1, backend))
    if backend:
        os.environ["KERAS_BACKEND"] = backend  # before the import of an external variant, which may import Keras
    variants = [load.find_variant(name) for name in names]
    from harness.conformance.diagnosis import diagnosis
    from harness.conformance.law_runner import check
    from harness.conformance.models_under_test import named

    settings = {"framework": framework, "device": arguments.device, "fast": arguments.fast}
    subjects = {variant: named(variant, **settings) for variant in variants}
    for variant, subject in subjects.items():
        model = subject.model()  # fails here once instead of in each law
        if arguments.framework is not None:
            registry.check_computes(variant, model, framework, backend)

    broken, advice = 0, []
    for variant, subject in subjects.items():
        say(f"{variant}:")
        results = []
        for result in check(subject, arguments.law):
            say(f"  {result}")
            results.append(result)
        if first := diagnosis(results):
            advice.append(f"{variant}: {first}" if len(subjects) > 1 else first)
        broken += sum(not result.passed for result in results)
    holding = "every law holds" if arguments.law is None else "the chosen laws hold"
    if arguments.fast:
        holding += " in the fast checks; run without --fast for the full ones"
    say("\n".join([f"{count(broken, 'law')} broken", *advice]) if broken else holding)
    return int(broken > 0)
