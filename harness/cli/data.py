"""`data`: what a corpus holds, once it is tokenised and cached; run before going offline, it downloads what is needed.

Multi30k is looked for in the folder that MULTI30K_DIR names, then in the cache, then downloaded: an address that sends
less than 8 KiB in 9 seconds is given up for the next one, and all of it after 180 seconds. Own text is UTF-8; a line
ends with LF or CR LF, and every pair has a sentence on both sides.
"""

from __future__ import annotations

import argparse
from typing import Any

from harness.cli import options
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec, RunSpec
from impls.recipes import LEARNED_POSITIONS


def add(commands: Any) -> None:
    """Describe the command."""
    parser = commands.add_parser("data", help="prepare a corpus and describe it", description=__doc__)
    options.add_data(parser)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="a setting, such as data.vocabulary=joint"
    )
    parser.set_defaults(command=command)


def command(arguments: argparse.Namespace) -> int:
    """Print sizes, vocabularies, unknown-word rates, lengths and digests. Returns 0."""
    from harness.data.dataset import describe, prepare

    def build(data: DataSpec) -> list[RunSpec]:
        spec = RunSpec(variant="learned_positions", recipe=LEARNED_POSITIONS, data=data)
        for setting in arguments.set:
            if not setting.startswith("data."):
                raise ValueError(f"--set {setting}: allowed here is data.FIELD=VALUE")
            spec = override(spec, setting)
        return [spec]

    (spec,) = options.available(arguments, build)
    options.say(describe(prepare(spec.data)))
    return 0
