"""The payload that the process of a run reads from its standard input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import spec

import harness
from harness.cli.main import parser
from harness.processes.workers import ProcessSettings


def test_payload_line_holds_its_settings() -> None:
    settings = {"checkpoint_seconds": 5.0, "resume_anyway": True, "score_every": 2, "report_loss": True}
    line = ProcessSettings(command="a command", note="a note", **settings).payload(spec())  # type: ignore[arg-type]
    value = json.loads(line)
    assert (line[-1], value.pop("spec")["variant"]) == ("\n", "counting_model:build")
    assert value == {"command": "a command", "note": "a note", **settings}


@pytest.mark.parametrize("note", ["caf\udce9", 5])
def test_note_that_no_record_can_hold_is_refused_before_the_training(note: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="^note=.*: expected text in UTF-8$"):
        harness.run("counting_model:build", epochs=1, note=note, results=tmp_path)


@pytest.mark.parametrize("words", ["run paper", "bench", "ablate --field norm"])
def test_resume_anyway_is_an_option_of_every_training_command(words: str) -> None:
    assert not parser().parse_args(words.split()).resume_anyway
    assert parser().parse_args([*words.split(), "--resume-anyway"]).resume_anyway
