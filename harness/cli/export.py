"""`export`: write a trained run for CTranslate2, Hugging Face transformers, as safetensors, or to MLflow.

The folder gets the weights, the vocabularies, the trained models of the tokenizers, and a model card with code that
loads and translates. A recipe that a library cannot express is an error that names the setting.

MLflow gets the settings, the learning curve, the scores and the record, beside other runs in the same folder.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from harness.cli import folder_options, log_options, translate
from harness.cli.console import say
from impls import registry

SUMMARY = "write a trained run for other libraries"
EXAMPLES = (
    ("for CTranslate2", "--run paper --to ctranslate2 --output exported/paper"),
    ("for Hugging Face transformers, as a Marian model", "--run paper --to huggingface --output exported/marian"),
    ("the learning curve and scores, to MLflow", "--run paper --to mlflow --output logs/local/mlflow"),
    ("as plain tensors with their recipe", "--run bahdanau_gru --to safetensors --output exported/gru"),
)
KINDS = (*registry.EXPORTS, "safetensors", "mlflow")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--run",
        required=True,
        metavar="RUN",
        help="the id of a run or its beginning, or a variant for its latest run",
    )
    parser.add_argument("--to", required=True, choices=KINDS, help="the library or format to export to")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="a folder that does not exist or is empty; for mlflow, also one with an mlflow.db",
    )
    folder_options.add_results(parser)


def command(arguments: argparse.Namespace) -> int:
    """Write the files. Returns 0."""
    from harness.reporting import trackers
    from harness.training import weight_export

    if arguments.to == "mlflow":
        log_options.check_library("--to mlflow", "mlflow")
    record = translate.completed_run(arguments.results, arguments.run)
    if arguments.to == "mlflow":
        trackers.export(record, arguments.results, arguments.output)
        say(f"{record.id}: exported; open it with: {log_options.opened_with('mlflow', arguments.output)}")
        return 0
    weight_export.export(record, arguments.results, arguments.to, arguments.output)
    say(f"{record.id}: exported to {arguments.output}; its README.md has code that loads it")
    return 0
