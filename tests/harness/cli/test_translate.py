"""`translate`: sentences, files, standard input, attention, and stored translations."""

from __future__ import annotations

import io
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from command_line import Refused, Trained
from record_edits import flip
from record_factory import with_digests
from small_runs import TINY, spec

import harness
from harness import api
from harness.cli import translate
from harness.cli.main import main
from harness.data import dataset, text_files
from harness.evaluation import evaluate, search
from harness.evaluation.ensemble import Ensemble
from harness.experiments.specs import DecodingSpec
from harness.reporting import concept_plots
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import load, train
from impls.contract import UNK

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")


def type_in(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_translate_accepts_sentences_a_file_and_standard_input(
    of_run: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["translate", *of_run]
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
    assert "sentence 5 has 120 tokens: cut to its first 98" in printed.err


def test_translate_with_a_variant_uses_its_latest_run(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    line = ["translate", "--run", "learned_positions", "Ein Hund", "--results"]
    assert main([*line, str(results)]) == 0
    printed = capsys.readouterr()
    runs = tmp_path / "runs"
    shutil.copytree(results / record.id, runs / record.id)
    earlier = replace(record.spec, seed=1)
    ablated = replace(earlier, recipe=replace(TINY, norm="rms"))
    for other, started in ((earlier, "2000-01-01T00:00:00"), (ablated, "2100-01-01T00:00:00")):
        run_store.save_record(runs, replace(record, id=other.id, spec=other, started=started))
    assert main([*line, str(runs)]) == 0
    with_two = capsys.readouterr()
    assert with_two.out == printed.out
    assert not printed.err
    assert f"using {record.id}, the latest of 2 runs of learned_positions with its own recipe (3 in " in with_two.err


def test_translate_reads_an_argument_as_a_line_of_a_file(of_run: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Mock(side_effect=dataset.encode)
    monkeypatch.setattr(translate, "encode", encode)
    Path("text").write_text(" Ein  Hund \n", encoding="utf-8")
    for words in ([" Ein  Hund "], ["Ein \nHund"], ["--file", "text"]):
        assert main(["translate", *of_run, *words]) == 0
    assert [list(call.args[1]) for call in encode.call_args_list] == [["Ein  Hund"]] * 3


@pytest.mark.parametrize("finished", [True, False])
def test_translate_draws_a_row_for_the_end_only_if_the_translation_has_one(
    of_run: list[str], monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    decoded = search.Decoded((search.Translation((4, 5), 0.0, finished),), 0, 1 - finished)
    monkeypatch.setattr(search, "translate", lambda *_: decoded)
    draw = Mock(side_effect=concept_plots.attention_heat_map)
    monkeypatch.setattr(concept_plots, "attention_heat_map", draw)
    assert main(["translate", *of_run, "Ein Hund", "--beam", "3", "--attention", "a.png"]) == 0
    rows = draw.call_args.args[2]
    assert (len(rows), "<eos>" in rows) == (2 + finished, finished)
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")


def test_translate_names_the_characters_that_no_font_has(of_run: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["translate", *of_run, "Ein \U000f1234 Hund", "--attention", "a.png"]) == 0
    line = "bakeoff: no installed font has \U000f1234: they are drawn as boxes; install such a font\n"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize("unknown", [None, "never", "allowed"])
def test_translate_passes_on_whether_unknown_words_are_allowed(
    trained: Trained,
    of_run: list[str],
    unknown: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    translate = Mock(return_value=search.Decoded((search.Translation((UNK, 4), 0.0, True),), 0, 0))
    for module in (search, evaluate):
        monkeypatch.setattr(module, "translate", translate)
    options = [] if unknown is None else ["--unknown", unknown]
    assert main(["translate", *of_run, "Ein Hund", *options]) == 0
    results, record = trained
    assert harness.translate(api.TrainedRun(record, results), ["Ein Hund"], unknown=unknown)[0].startswith("⁇ ")
    passed_on = {call.args[2].unknown for call in translate.call_args_list}
    assert passed_on == {unknown or record.spec.decoding.unknown}
    assert capsys.readouterr().out.startswith("⁇ ")


def test_translate_prints_every_hundredth_stored_translation(
    of_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["translate", *of_run, "--every-hundredth"]) == 0
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
        (["--every-hundredth", "--test"], "takes no sentence"),
        (["a", " ", "b"], "sentence 2 of 3 is empty; give at least one word"),
        (["a", "l\udce4uft"], "sentence 2 of 2 is not UTF-8; expected UTF-8"),
        (["a", "--beam", "0"], "'0' is not a whole number of at least 1"),
    ],
)
def test_translate_refuses_bad_input(of_run: list[str], words: list[str], message: str, refused: Refused) -> None:
    Path("latin").write_bytes(b"l\xe4uft")
    Path("empty").write_bytes(b"\n")
    refused(["translate", *of_run, *words], message)
    assert not Path("x.png").exists()


def test_translate_refuses_changed_weights(trained: Trained, copied: Path, refused: Refused) -> None:
    record = trained[1]
    run_store.save_record(copied, record)
    path = copied / record.id / run_store.WEIGHTS
    path.write_bytes(flip(path.read_bytes()))
    refused(["translate", "--results", str(copied), "--run", record.id, "Ein Hund"], "damaged")


# Several runs, and the test set ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def second(trained: Trained) -> RunRecord:
    """Return a completed run in the same folder that differs in its seed and its search."""
    decoding = DecodingSpec(max_tokens=5, beam=2)
    return train.run(spec("learned_positions", TINY, updates=2, seed=1, decoding=decoding), trained[0])


def test_python_translate_warns_of_cut_sentences_and_knows_a_run_that_was_trained_again(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, record = trained
    monkeypatch.chdir(results.parent)
    run = harness.TrainedRun(record, Path(results.name))
    with pytest.warns(UserWarning, match=r"^1 sentence cut to data\.max_length=\d+ tokens$"):
        harness.translate(run, ["Ein Hund", "Hund " * 200])
    changed = with_digests(record, trained_weights="0" * 64)
    with pytest.raises(ValueError, match="it was trained again since its record was read"):
        harness.translate(harness.TrainedRun(changed, results), ["Hund"])


def test_translate_names_unknown_words_and_sentences_with_nan(
    trained: Trained, of_run: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    command = ["translate", *of_run]
    assert main([*command, "Ein Hund läuft", "Die Wiese läuft"]) == 0
    assert capsys.readouterr().err == "bakeoff: unknown source words: läuft, wiese\n"
    with pytest.warns(UserWarning, match="^unknown source words: läuft, wiese$"):
        harness.translate(harness.TrainedRun(record, results), ["Ein Hund läuft", "Die Wiese läuft"])
    for module in (search, evaluate):
        monkeypatch.setattr(module, "translate", Mock(side_effect=search.NotANumber(1)))
    with pytest.raises(ValueError, match="^sentence 'Eine Frau': the model gives NaN for it; translate the others"):
        harness.translate(harness.TrainedRun(record, results), ["Ein Hund", "", "Eine Frau"])
    Path("text").write_text("Ein Hund\n\nEine Frau\n", encoding="utf-8")
    assert main([*command, "--file", "text"]) == 2
    assert "sentence 'Eine Frau': the model gives NaN" in capsys.readouterr().err


def test_words_of_subwords_are_not_unknown(trained: Trained) -> None:
    prepared = dataset.of_run(trained[1])
    encoded = dataset.encode(prepared, ["Ein Hund läuft"])
    assert dataset.unknown_words(prepared, encoded) == "unknown source words: läuft"
    subwords = replace(prepared, data=replace(prepared.data, tokenizer="moses-bpe"))
    assert dataset.unknown_words(subwords, encoded) == ""


def test_translate_with_several_runs_is_an_ensemble(
    trained: Trained, second: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    results, first = trained
    models = [load.load_model(run, results, dataset.of_run(run), device="cpu") for run in (first, second)]
    prepared = dataset.of_run(first)
    decoding = DecodingSpec(max_tokens=5, beam=3)
    model = Ensemble(models, len(prepared.target_words))
    expected = evaluate.translated(model, prepared, ["Ein Mann"], decoding)
    for runs in ((first.id, second.id), (second.id, first.id)):
        options = [word for run in runs for word in ("--run", run)]
        assert main(["translate", "--results", str(results), *options, "--beam", "3", "Ein Mann"]) == 0
        assert capsys.readouterr().out == f"{expected[0]}\n"
    both = [api.TrainedRun(run, results) for run in (second, first)]
    assert harness.translate(both, ["Ein Mann", ""], beam=3) == [*expected, ""]


def test_translate_test_set_of_one_run_prints_the_scores_of_its_record(
    trained: Trained, of_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record = trained[1]
    assert main(["translate", *of_run, "--test"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert {name: float(value) for name, value, *_ in lines} == {
        name: pytest.approx(value, abs=1e-4) for name, value in record.scores.items()
    }
    signatures = {name: signature[0] for name, _, *signature in lines if signature}
    assert signatures["bleu_sacre"] == record.signatures["bleu_sacre"]


def test_translate_test_set_with_several_runs_has_scores_of_its_own(
    trained: Trained, second: RunRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    results, first = trained
    options = ["--results", str(results), "--run", first.id, "--run", second.id, "--test", "--beam", "2"]
    assert main(["translate", *options]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    perplexity = {name: float(value) for name, value, *_ in lines}["test_perplexity"]
    members = [run.scores["test_perplexity"] for run in (first, second)]
    assert all(member is not None for member in members)
    assert perplexity not in [pytest.approx(member) for member in members]
    assert perplexity < max(member for member in members if member is not None)


def test_translate_refuses_runs_and_options_that_do_not_fit(
    trained: Trained, second: RunRecord, refused: Refused
) -> None:
    results, first = trained
    both = ["translate", "--results", str(results), "--run", first.id, "--run", second.id]
    for words, message in (
        (["a"], "decoding.beam=1, 2: give --beam"),
        (["a", "--beam", "1", "--attention", "x.png"], "are about one run"),
        (["--every-hundredth"], "are about one run"),
        (["--beam", "1", "--test", "a"], "--test translates the test set; it takes no sentence"),
        (["--beam", "1", "--test", "--file", "x"], "--test translates the test set; it takes no sentence"),
    ):
        refused([*both, *words], message)
    with pytest.raises(ValueError, match=r"give --beam \(in Python: beam=\.\.\.\)"):
        harness.translate([api.TrainedRun(run, results) for run in (first, second)], ["a"])
