"""The payload that the process of a run reads from its standard input."""

from __future__ import annotations

import json

import pytest
from small_runs import spec

from harness.cli.main import parser
from harness.processes.workers import ProcessSettings


def test_payload_line_holds_its_settings() -> None:
    settings = {"checkpoint_seconds": 5.0, "resume_anyway": True, "score_every": 2, "report_loss": True}
    line = ProcessSettings(command="a command", note="a note", **settings).payload(spec())  # type: ignore[arg-type]
    value = json.loads(line)
    assert (line[-1], value.pop("spec")["variant"]) == ("\n", "counting_model:build")
    assert value == {"command": "a command", "note": "a note", **settings}


@pytest.mark.parametrize("words", ["run paper", "bench", "ablate --field norm"])
def test_resume_anyway_is_an_option_of_every_training_command(words: str) -> None:
    assert not parser().parse_args(words.split()).resume_anyway
    assert parser().parse_args([*words.split(), "--resume-anyway"]).resume_anyway
