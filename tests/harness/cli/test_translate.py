"""`translate`: sentences, files, standard input, attention, and stored translations."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.data import text_files
from harness.evaluation import search
from harness.experiments.specs import DecodingSpec
from harness.storage import run_store
from harness.storage.records import RunRecord
from impls.contract import UNK

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")
Trained = tuple[Path, RunRecord]


def type_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_translate_accepts_sentences_a_file_and_standard_input(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    command = ["translate", "--results", str(results), "--run", record.id[:20]]
    assert main([*command, "Ein Hund", "Ein Hund läuft ."]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3
    Path("text").write_text("Ein Hund\n\nEin Hund läuft .\n", encoding="utf-8")
    assert main([*command, "--file", "text"]) == 0
    assert capsys.readouterr().out.split("\n") == [lines[0], "", lines[1], ""]
    type_in("Ein Hund läuft .", monkeypatch)
    assert main(command) == 0
    assert capsys.readouterr().out == lines[1] + "\n"
    monkeypatch.setattr(text_files, "PIECE_LINES", 2)
    type_in(f"Ein Hund\n\n\n\n{'Ein ' * 120}\n", monkeypatch)
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.out.split("\n")[:4] == [lines[0], "", "", ""]
    assert printed.out.count("\n") == 5
    assert "sentence 5 has 120 tokens" in printed.err


def test_translate_cuts_long_sentences(trained: Trained, capsys: pytest.CaptureFixture[str]) -> None:
    results, record = trained
    assert main(["translate", "--results", str(results), "--run", record.id, "Ein " * 120]) == 0
    assert "has 120 tokens: cut to its first 98" in capsys.readouterr().err


def test_translate_draws_attention(trained: Trained) -> None:
    results, record = trained
    options = ["--beam", "3", "--attention", "heads.png"]
    assert main(["translate", "--results", str(results), "--run", record.id, "Ein Hund", *options]) == 0
    assert Path("heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("unknown", [None, "never", "allowed"])
def test_translate_passes_on_whether_unknown_words_are_allowed(
    trained: Trained, unknown: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specs: list[DecodingSpec] = []

    def translate(model: Any, sources: Any, spec: DecodingSpec) -> search.Decoded:
        specs.append(spec)
        return search.Decoded((search.Translation((UNK, 4), 0.0, True),), 0, 0)

    monkeypatch.setattr(search, "translate", translate)
    results, record = trained
    options = [] if unknown is None else ["--unknown", unknown]
    assert main(["translate", "--results", str(results), "--run", record.id, "Ein Hund", *options]) == 0
    assert [spec.unknown for spec in specs] == [unknown or record.spec.decoding.unknown]
    assert capsys.readouterr().out.startswith("⁇ ")


def test_translate_prints_every_hundredth_stored_translation(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    assert main(["translate", "--results", str(results), "--run", record.id, "--every-hundredth"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line.isdigit()] == ["0", "100", "200", "300", "400"]
    for word in ("source", "translation", "reference"):
        assert sum(line.startswith(f"  {word} ") for line in lines) == 5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "--attention", "x.png"], "not 2"),
        (["a", "--attention", "x.bmp"], "must end in .png"),
        (["a", "--file", "x"], "either a file or sentences"),
        (["--file", "nowhere"], "nowhere"),
        (["--file", "latin"], "latin, line 1: byte 0xe4 (at offset 1 of the file) is not UTF-8"),
        (["--file", "empty"], "empty: empty"),
        (["a", "--every-hundredth"], "takes no sentence"),
        (["a", "--unknown", "sometimes"], "--unknown: 'sometimes' is not one of never, allowed"),
        (["--every-hundredth", "--unknown", "never"], "takes no sentence"),
        (["a", "--beam", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_translate_refuses_bad_input(
    trained: Trained, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("latin").write_bytes(b"l\xe4uft")
    Path("empty").write_bytes(b"\n")
    results, record = trained
    assert main(["translate", "--results", str(results), "--run", record.id, *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error
    assert not Path("x.png").exists()


def test_translate_refuses_changed_weights(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    run_store.save_record(tmp_path, record)
    for name in ("weights.json", "weights.safetensors"):
        content = bytearray((results / record.id / name).read_bytes())
        content[-1] ^= name.endswith("safetensors")
        (tmp_path / record.id / name).write_bytes(content)
    assert main(["translate", "--results", str(tmp_path), "--run", record.id, "Ein Hund"]) == 2
    assert "damaged" in capsys.readouterr().err
