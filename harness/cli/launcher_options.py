"""`--launcher`: whether `bench` and `ablate` execute runs on this machine or on a cluster."""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Mapping
from pathlib import Path

from harness.cli import options
from harness.execution import launcher
from harness.execution.launcher import Outcome, RunSettings
from harness.experiments.specs import RunSpec


def add_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many machines")
    group.add_argument(
        "--launcher",
        choices=typing.get_args(launcher.LauncherName),
        default="local",
        help="where to execute the runs (default local)",
    )
    group.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="for --launcher ray: address of the cluster (default RAY_ADDRESS, otherwise the cluster of this machine)",
    )
    group.add_argument(
        "--checkpoint-folder",
        type=Path,
        metavar="PATH",
        help="for --launcher ray: folder that all nodes share, from which runs of a lost node resume (default: none, "
        "they start from the beginning)",
    )
    group.add_argument(
        "--slurm",
        action="append",
        metavar="KEY=VALUE",
        help="for --launcher slurm: partition, time, gres or another option of sbatch; repeatable (default: none)",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raise ValueError for options that do not fit the launcher, or if its library is missing."""
    chosen = arguments.launcher
    for name, its_launcher in {"address": "ray", "checkpoint_folder": "ray", "slurm": "slurm"}.items():
        if getattr(arguments, name) is not None and chosen != its_launcher:
            raise ValueError(f"{options.flag(name)} requires --launcher {its_launcher}")
    if chosen == "local":
        return
    if arguments.jobs is not None:
        raise ValueError(
            f"--jobs {arguments.jobs} does not apply to --launcher {chosen}: the cluster schedules the runs"
        )
    if (arguments.address or "").startswith("ray://"):
        raise ValueError(
            f"--address {arguments.address}: Ray client addresses do not work; give HOST:PORT on the cluster"
        )
    _parameters(arguments)
    launcher.library(chosen)


def execute(
    specs: list[RunSpec], arguments: argparse.Namespace, settings: RunSettings, *, names: Mapping[str, str]
) -> Outcome:
    results, stream = arguments.results, sys.stderr
    if arguments.launcher == "ray":
        from harness.execution import ray_launcher

        address, folder = arguments.address or "auto", arguments.checkpoint_folder
        return ray_launcher.execute(
            specs, results, address=address, stream=stream, settings=settings, checkpoint_folder=folder, names=names
        )
    from harness.execution import slurm_launcher

    parameters = _parameters(arguments)
    return slurm_launcher.execute(specs, results, parameters=parameters, stream=stream, settings=settings, names=names)


def _parameters(arguments: argparse.Namespace) -> dict[str, str]:
    parameters = {}
    for parameter in arguments.slurm or ():
        name, _, value = parameter.partition("=")
        name, value = name.strip().removeprefix("--").replace("-", "_"), value.strip()
        if not (name and value):
            raise ValueError(f"--slurm {parameter}: give KEY=VALUE, such as partition=long")
        parameters[name] = value
    return parameters
