"""`data`: download, tokenise and cache a corpus, and describe it.

Multi30k is taken from the folder in MULTI30K_DIR, from the cache, or downloaded; a mirror that sends less than 8 KiB in
9 seconds is skipped, and the download ends after 180 seconds. Your own text must be UTF-8 with LF or CR LF line ends
and a sentence on both sides of every pair.
"""

from __future__ import annotations

import argparse

from harness.cli import options
from harness.cli.console import say
from harness.data.dataset import describe, prepare
from harness.experiments.overrides import override
from harness.experiments.specs import DataSpec, RunSpec
from impls.recipes import LEARNED_POSITIONS

SUMMARY = "download or read a corpus and describe it"
EXAMPLES = (
    ("download and describe Multi30k", ""),
    ("the built-in captions, with one vocabulary for both languages", "--corpus captions --set data.vocabulary=joint"),
    ("your own text", "--corpus files --train-source train.tsv --validation-source valid.tsv --test-source test.tsv"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    options.add_data(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a setting of the corpus, such as data.vocabulary=joint; repeatable (default: none)",
    )


def command(arguments: argparse.Namespace) -> int:
    """Print the sizes, vocabularies, rates of unknown words, lengths and digests of a corpus. Returns 0."""

    def build(data: DataSpec) -> list[RunSpec]:
        spec = RunSpec(variant="learned_positions", recipe=LEARNED_POSITIONS, data=data)
        for setting in arguments.set:
            if not setting.startswith("data."):
                raise ValueError(f"--set {setting}: only settings of the corpus, data.FIELD=VALUE, apply here")
        return [override(spec, arguments.set)]

    (spec,) = options.available(arguments, build)
    say(describe(prepare(spec.data)))
    return 0
