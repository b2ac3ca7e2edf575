"""The command line: bad input is one line and exit code 2 with nothing written; help needs no framework."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from places import FIXTURES, ROOT
from record_factory import record as made_up
from small_runs import TINY, spec

from harness.cli.main import main
from harness.data import text_files
from harness.evaluation import search
from harness.experiments.specs import DecodingSpec
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.training import train
from impls.contract import UNK

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax")
SMALL = ["--corpus", "captions", "--tokenizer", "whitespace", "--set", "data.training_pairs=200", "--threads", "1"]
SMALL += ["--set", "training.batch_size=32", "--set", "decoding.max_tokens=5", "--epochs", "1"]


@pytest.fixture(scope="module", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("MULTI30K_DIR", str(tmp_path_factory.mktemp("nothing") / "there"))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(FIXTURES), str(ROOT)]))
        yield


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every command write into an empty folder, and see which processors there are but no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.processes.machine.gpus", list)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord]:
    results = tmp_path_factory.mktemp("results")
    return results, train.run(spec("learned_positions", TINY, updates=2), results)


def written(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


BAD = {
    "": "COMMAND",
    "bnch": "did you mean 'bench'?",
    "bench --sed 3": "there is no argument '--sed'; did you mean '--seed'?",
    "bench --suite quik": "'quik' is not one of quick, standard, full; did you mean 'quick'?",
    "bench --corpus mulit30k": "did you mean 'multi30k'?",
    "bench --tokenizer spcay": "did you mean 'spacy'?",
    "bench --variant learned_position": "did you mean 'learned_positions'?",
    "bench --variant counting_model:biuld": "did you mean 'build'?",
    "bench --variant no_module:NAME": "there is no module 'no_module'",
    "bench --variant counting_model:NOTHING": "an external variant is a recipe",
    "bench --seed -1": "'-1' is not a seed",
    "bench --epochs 0": "'0' is not a whole number of at least 1",
    "bench --jobs two": "'two' is not a whole number",
    "bench --direction de": "direction='de'",
    "bench --corpus captions --direction fr-en": "direction='fr-en'",
    "bench --budget fair": "'fair' is not one of controlled, source, both",
    "bench --set recipe.dropot=0.3": "did you mean 'recipe.dropout'?",
    "bench --set recipe.dropout": "FIELD=VALUE",
    "bench --set dropout=0.2": "did you mean 'recipe.dropout'?",
    "bench --set training.dropout=0.2": "did you mean 'recipe.dropout'?",
    "bench paper": "did you mean '--variant paper'?",
    "bench quick": "did you mean '--suite quick'?",
    "ablate norm": "did you mean '--field norm'?",
    "check some-run": "did you mean '--run some-run'?",
    "bench --seed 4-0": "must ascend",
    "bench --seed 0-": "'0-' is not a seed",
    "check --explain X": "no rule has this code",
    "bench --set recipe.width=129": "heads=8: expected a divisor of width=129",
    "bench --set training.peak_rate=inf": "not JSON compliant",
    "bench --corpus multi30k": "MULTI30K_DIR",
    "bench --corpus captions --tokenizer whitespace --framework tensroflow": "'tensroflow' is not one of torch, keras",
    "bench --corpus captions --tokenizer whitespace --device tpu": "device 'tpu' is not available",
    "bench --corpus captions --tokenizer whitespace --variant paper --set recipe.tying=all": "tying='all'",
    "run": "the variant is missing",
    "run lerned_positions": "did you mean 'learned_positions'?",
    "run paper --corpus multi30k": "MULTI30K_DIR",
    "run paper --corpus files": "--train-source",
    "run paper --train-source x": "--validation-source, --test-source is missing",
    "run paper --corpus captions --train-source x --validation-source x --test-source x": "files",
    "run paper --corpus captions --tokenizer whitespace --framework tensroflow": "is not one of torch, keras",
    "run paper --corpus captions --tokenizer whitespace --device cudda": "device 'cudda' is not available",
    "run paper --corpus captions --set data.max_length=200": "data.max_length=200",
    "data --set recipe.width=3": "only settings of the corpus",
    "data --corpus multi30k": "MULTI30K_DIR",
    "translate": "--run",
    "laws --law 15": "15 is not one of 1, 2",
    "laws --backend jax": "--backend jax requires --framework keras",
    "laws --framework keras --variant torch_reference": "framework 'keras' has no 'torch_reference'",
    "run paper --corpus captions --framework keras --backend jacks": "'jacks' is not one of tensorflow, jax, torch",
    "run paper --corpus captions --backend torch": "--backend torch requires --framework keras",
    "bench --corpus captions --variant paper --backend jax": "--backend jax requires --framework keras",
    "bench --corpus captions --framework keras --variant torch_reference": "has no 'torch_reference'",
    "run paper --corpus captions --set backend=jax": "framework='torch'",
    "laws --framework tensroflow": "'tensroflow' is not one of torch, keras",
    "translate --run nothing Hallo": "run 'nothing': there is none",
    "laws --variant papre": "did you mean 'paper'?",
    "score": "there is no completed run",
    "score --run nothing": "run 'nothing': there is none",
    "report": "there is no record in it",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: line or "nothing")
def test_bad_input_is_one_line_and_nothing_is_written(line: str, tmp_path: Path, capsys: Any) -> None:
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert error.startswith("bakeoff: ")
    assert error.count("\n") == 1
    assert BAD[line] in error
    assert written(tmp_path) == []


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        ({"test.de": "ein Hund\n"}, "test.de has 1 lines and"),
        ({"train.en": "a dog\n\xff"}, "is not UTF-8"),
        ({"train.de": ""}, "empty"),
        ({"val.en": None}, "cannot be read"),
    ],
)
def test_bad_files_are_refused(contents: dict[str, str | None], words: str, tmp_path: Path, capsys: Any) -> None:
    text: dict[str, str | None] = {
        f"{split}.{language}": "ein Hund\n" * 9 for split in ("train", "val", "test") for language in ("de", "en")
    }
    for name, content in {**text, **contents}.items():
        if content is not None:
            Path(name).write_bytes(content.encode("latin-1"))
    before = written(tmp_path)
    pairs = {"train": "train", "validation": "val", "test": "test"}
    options = [f"--{long}-{side}={short}.{end}" for long, short in pairs.items() for side, end in SIDES]
    assert main(["run", "paper", *options, "--tokenizer", "whitespace"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
    assert written(tmp_path) == before


SIDES = (("source", "de"), ("target", "en"))


def test_a_file_of_multi30k_with_another_digest_is_refused(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            (folder / f"{name}.{language}").write_text("ein Hund\n")
    monkeypatch.setenv("MULTI30K_DIR", str(folder))
    before = written(tmp_path)
    for line in (["bench", "--corpus", "multi30k"], ["bench"]):
        assert main(line) == 2
        error = capsys.readouterr().err
        assert "SHA-256" in error
        assert error.count("\n") == 1
        assert written(tmp_path) == before


def test_without_multi30k_the_run_is_on_captions_and_says_so(tmp_path: Path, capsys: Any) -> None:
    line = ["run", "counting_model:build", *SMALL[2:]]
    assert main(line) == 0
    shown = capsys.readouterr().out
    assert "Multi30k is not available: MULTI30K_DIR" in shown
    assert "results are for captions" in shown
    record = run_store.records(tmp_path / "results" / "local")[0]
    assert record.spec.data.corpus == "captions"
    assert record.note.startswith("Multi30k was not available: MULTI30K_DIR")
    assert record.command == shlex.join(["python", "-m", "harness", *line])
    assert main(line) == 0
    assert "already completed" in capsys.readouterr().out


def test_bench_trains_measures_reports_and_goes_on(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    line = ["bench", *SMALL, "--variant", "counting_model:build", "--seed", "0", "--seed", "1", "--score-every", "1"]
    assert main([*line, "--results", "results/local", "--reports=reports/local"]) == 0
    records = run_store.records(Path("results/local"))
    # The folders of one machine tell a reader nothing.
    assert {record.command for record in records} == {shlex.join(["python", "-m", "harness", *line])}
    assert all(epoch.validation_bleu is not None for record in records for epoch in record.curve)
    shown = capsys.readouterr()
    assert "2 runs on captions de-en" in shown.out
    assert "not with published ones" in shown.out
    assert "2 to run" in shown.out
    assert "about" in shown.out
    assert (tmp_path / "reports/local/quick/index.md").is_file()
    assert str(Path("reports/local/quick/index.md")) in shown.out
    reported: list[tuple[int, Path]] = []
    monkeypatch.setattr(
        "harness.reporting.bench_report.write",
        lambda report, records, folder: reported.append((len(list(records)), folder)) or folder / "index.html",
    )
    assert main([*line, "--variant", "counting_model:build_breaking", "--seed", "0"]) == 1
    shown = capsys.readouterr()
    assert shown.out.count("already completed, not run again") == 2
    assert "failed: RuntimeError: the planted fault" in shown.err
    assert main(["list"]) == 0
    assert "failed (RuntimeError: the planted fault; its log ends: " in capsys.readouterr().out
    assert main(["score"]) == 0
    assert capsys.readouterr().out.count("every score agrees") == 2
    assert main(["report"]) == 1
    assert "check: C06 status: " in capsys.readouterr().err
    assert reported == [
        (4, Path("reports/local/quick")),
        (4, Path("reports/local")),
    ]


def test_score_finds_a_figure_that_was_changed(trained: tuple[Path, RunRecord], tmp_path: Path, capsys: Any) -> None:
    from dataclasses import replace

    results, record = trained
    assert main(["score", "--results", str(results)]) == 0
    path = results / record.id
    (tmp_path / record.id).mkdir()
    for name in ("hypotheses.jsonl", "weights.json", "weights.safetensors"):
        (tmp_path / record.id / name).write_bytes((path / name).read_bytes())
    run_store.save_record(tmp_path, replace(record, scores={**record.scores, "chrf": 99.0}))
    assert main(["score", "--results", str(tmp_path)]) == 1
    assert "the record says 99.0" in capsys.readouterr().out
    (tmp_path / record.id / "hypotheses.jsonl").write_bytes(b'{"sentence":0,"text":"","tokens":[]}\n')
    assert main(["score", "--results", str(tmp_path)]) == 2


def test_translate_takes_words_a_file_and_standard_input(
    trained: tuple[Path, RunRecord], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    results, record = trained
    command = ["translate", "--results", str(results), "--run", record.id[:20]]
    assert main([*command, "Ein Hund", "Ein Hund läuft ."]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert len(lines) == 3
    Path("text").write_text("Ein Hund\n\nEin Hund läuft .\n", encoding="utf-8")
    assert main([*command, "--file", "text"]) == 0
    assert capsys.readouterr().out.split("\n") == [lines[0], "", lines[1], ""]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Ein Hund läuft .".encode())))
    assert main(command) == 0
    assert capsys.readouterr().out == lines[1] + "\n"
    monkeypatch.setattr(text_files, "PIECE_LINES", 2)
    text = f"Ein Hund\n\n\n\n{'Ein ' * 120}\n".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out.split("\n")[:4] == [lines[0], "", "", ""]
    assert shown.out.count("\n") == 5
    assert "sentence 5 has 120 tokens" in shown.err
    assert main([*command, "Ein " * 120]) == 0
    assert "has 120 tokens: cut to its first 98" in capsys.readouterr().err
    assert main([*command, "--beam", "3", "Ein Hund", "--attention", "heads.png"]) == 0
    assert (tmp_path / "heads.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("unknown", [None, "never", "allowed"])
def test_translate_chooses_unknown_words_where_they_are_allowed(
    trained: tuple[Path, RunRecord], unknown: str | None, monkeypatch: Any, capsys: Any
) -> None:
    asked: list[DecodingSpec] = []

    def translate(model: Any, sources: Any, spec: DecodingSpec) -> search.Decoded:
        asked.append(spec)
        return search.Decoded((search.Translation((UNK, 4), 0.0, True),), 0, 0)

    monkeypatch.setattr(search, "translate", translate)
    results, record = trained
    chosen = [] if unknown is None else ["--unknown", unknown]
    assert main(["translate", "--results", str(results), "--run", record.id, "Ein Hund", *chosen]) == 0
    assert [one.unknown for one in asked] == [unknown or record.spec.decoding.unknown]
    assert capsys.readouterr().out.startswith("⁇ ")


def test_translate_lists_every_hundredth(trained: tuple[Path, RunRecord], capsys: Any) -> None:
    results, record = trained
    assert main(["translate", "--results", str(results), "--run", record.id, "--every-hundredth"]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert [line for line in lines if line.isdigit()] == ["0", "100", "200", "300", "400"]
    for word in ("source", "translation", "reference"):
        assert sum(line.startswith(f"  {word} ") for line in lines) == 5


@pytest.mark.parametrize(
    ("words", "expected"),
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
def test_translate_refuses(trained: tuple[Path, RunRecord], words: list[str], expected: str, capsys: Any) -> None:
    Path("latin").write_bytes(b"l\xe4uft")
    Path("empty").write_bytes(b"\n")
    results, record = trained
    assert main(["translate", "--results", str(results), "--run", record.id, *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert expected in error
    assert not Path("x.png").exists()


def test_weights_that_were_changed_are_not_used(trained: tuple[Path, RunRecord], tmp_path: Path, capsys: Any) -> None:
    results, record = trained
    run_store.save_record(tmp_path, record)
    for name in ("weights.json", "weights.safetensors"):
        content = bytearray((results / record.id / name).read_bytes())
        content[-1] ^= name.endswith("safetensors")
        (tmp_path / record.id / name).write_bytes(content)
    assert main(["translate", "--results", str(tmp_path), "--run", record.id, "Ein Hund"]) == 2
    assert "damaged" in capsys.readouterr().err


def test_a_foreign_record_is_named_and_passed_over(tmp_path: Path, capsys: Any) -> None:
    files.write_json(tmp_path / "results/local/foreign/record.json", {"schema": 99})
    assert main(["list"]) == 0
    shown = capsys.readouterr()
    assert "foreign" in shown.err
    assert "schema=99" in shown.err
    assert "Runs in results" in shown.out


PROGRAM = f"""
import sys
from harness.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
found = [name for name in {(*FRAMEWORKS, "matplotlib", "pandas")!r} if name in sys.modules]
print(code, *found, file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        (["--help"], ()),
        (["bench", "--help"], ()),
        (["list"], ()),
        (["report", "--results", "records"], ("matplotlib", "pandas")),
    ],
    ids=lambda line: " ".join(line),
)
def test_no_command_but_training_imports_a_framework(line: list[str], allowed: tuple[str, ...]) -> None:
    run_store.save_record(Path("records"), made_up("learned_positions"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *line], capture_output=True, text=True, timeout=120, check=True
    )
    code, *found = done.stderr.strip().split("\n")[-1].split()
    # The record has no translations beside it, which `report` says and ends with 1 for.
    assert code == str(int(line[0] == "report")), done.stderr
    assert set(found) <= set(allowed)


def test_laws_are_told_one_a_line_with_their_seconds(capsys: Any) -> None:
    assert main(["laws", "--variant", "learned_positions", "--law", "8", "--law", "9", "--fast"]) == 0
    lines = capsys.readouterr().out.strip().split("\n")
    assert lines[0] == "learned_positions:"
    assert re.fullmatch(r"  law 8 round trip, \d+\.\d\d s … ok", lines[1])
    assert re.fullmatch(r"  law 9 standstill, \d+\.\d\d s … ok", lines[2])
    assert lines[3] == "every law holds"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NETWORK", "is of type Network"),
        ("Network", "is the class Network"),
        ("NUMBER", "is of type int"),
        ("failing_builder", "fails with RuntimeError: no such file"),
        ("builder_of_nothing", "returned an object of type NoneType"),
    ],
)
def test_what_is_no_variant_is_refused_in_one_line(name: str, words: str, capsys: Any) -> None:
    assert main(["laws", "--variant", f"no_variants:{name}"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"'no_variants:{name}' {words}" in told
    assert "impls.wrap" in told


def test_data_describes_a_corpus(capsys: Any) -> None:
    assert main(["data", "--corpus", "captions", "--tokenizer", "whitespace", "--set", "data.training_pairs=200"]) == 0
    shown = capsys.readouterr().out
    assert "corpus captions, de-en, tokenizer whitespace" in shown
    assert "SHA-256" in shown


def test_a_terminal_that_is_not_utf_8_ends_no_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "harness", "ablate", "--help"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        cwd=ROOT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"positions \xd7 norm" in b" ".join(done.stdout.split())


def test_a_reader_that_is_gone_is_no_success() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "harness", "list"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141
