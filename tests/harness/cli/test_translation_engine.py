"""`--engine ctranslate2` and `--compute-type` of `translate` and `score`."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import Refused, Trained
from stored_weights import LEARNED, stored

from harness.cli.main import main
from harness.storage import run_store

pytest.importorskip("ctranslate2")
pytestmark = pytest.mark.usefixtures("offline", "empty_folder")
LIBRARY = ["--engine", "ctranslate2"]


def test_translate_prints_the_native_translations(of_run: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("Ein Hund\n\nEin Hund läuft .\n", encoding="utf-8")
    line = ["translate", *of_run, "--file", "text"]
    assert main(line) == 0
    native = capsys.readouterr()
    assert main([*line, *LIBRARY]) == 0
    assert capsys.readouterr() == native
    assert main([*line, *LIBRARY, "--compute-type", "int8", "--beam", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_translate_test_set_counts_equal_translations_of_the_same_search(
    trained: Trained, of_run: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    record, line = trained[1], ["translate", *of_run, "--test", *LIBRARY]
    assert main(line) == 0
    printed = capsys.readouterr().out
    scores = {name: float(value) for name, value, *_ in map(str.split, printed.splitlines()[:-1])}
    assert scores["bleu_sacre"] == pytest.approx(record.scores["bleu_sacre"], abs=1e-4)
    assert "test_perplexity" not in scores
    assert printed.endswith("  equal                500 of 500 translations equal those that the run stored\n")
    assert main([*line, "--beam", "2"]) == 0
    assert "equal" not in capsys.readouterr().out, "the run has stored translations of another search"


def test_score_translates_again_and_differences_are_no_failure(
    trained: Trained, copied: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, record = trained
    assert main(["score", "--results", str(results), *LIBRARY]) == 0
    out = capsys.readouterr().out
    assert "500 of 500 translations equal those that the run stored" in out
    assert "every score agrees" in out
    first, *others = run_store.load_hypotheses(copied, record.id)
    digest = run_store.save_hypotheses(copied, record.id, [replace(first, tokens=("other",)), *others])
    fingerprints = {**record.fingerprints, "hypotheses": digest}
    run_store.save_record(copied, replace(record, fingerprints=fingerprints, scores={**record.scores, "chrf": 99.0}))
    assert main(["score", "--results", str(copied), "--json", *LIBRARY]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["agrees"], run["translated"], run["equal_translations"]) == (False, 500, 499)
    assert run["scores"]["chrf"]["recomputed"] == pytest.approx(record.scores["chrf"])
    assert main(["score", "--results", str(copied), "--json"]) == 1
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["translated"], run["equal_translations"]) == (None, None)


def test_score_names_the_runs_that_the_library_lacks_and_scores_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, lacked = stored(tmp_path), stored(tmp_path, replace(LEARNED, positions="alibi"))
    line = ["score", "--results", str(tmp_path), *LIBRARY]
    assert main([*line, "--json", "--run", lacked.id, "--run", good.id]) == 1
    out, err = capsys.readouterr()
    assert [run["run"] for run in json.loads(out)] == [good.id]
    assert f"{lacked.id}: not scored: " in err
    assert "positions='alibi'" in err
    assert main(line) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{good.id}:\n")
    assert lacked.id not in out
    assert err.count("not scored") == 1


def test_options_that_do_not_fit_are_refused(trained: Trained, of_run: list[str], refused: Refused) -> None:
    for words, message in (
        (["translate", "a", "--engine", "ctranslate"], "not one of native, ctranslate2; did you mean 'ctranslate2'?"),
        (["translate", "a", "--compute-type", "int8"], "--compute-type int8 requires --engine ctranslate2"),
        (["score", "--compute-type", "int8"], "--compute-type int8 requires --engine ctranslate2"),
        (["translate", "a", *LIBRARY, "--compute-type", "int4"], "'int4' is not one of float32, bfloat16, int8"),
        (["translate", "a", *LIBRARY, "--run", trained[1].id], "--engine ctranslate2 does not support several --run"),
        (["translate", "a", *LIBRARY, "--attention", "x.png"], "--engine ctranslate2 does not support --attention"),
        (["translate", *LIBRARY, "--every-hundredth"], "takes no sentence and no other option"),
        (["translate", "a", *LIBRARY, "--device", "nowhere"], "device 'nowhere' is not available"),
    ):
        refused([words[0], *of_run, *words[1:]], message)


@pytest.mark.parametrize("command", ["translate", "score"])
def test_builders_and_a_missing_library_are_refused(
    command: str, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    external = stored(tmp_path, None)
    line = [command, "--results", str(tmp_path), "--run", external.id, *LIBRARY, *["a"] * (command == "translate")]
    refused(line, "only recipes can be converted for ctranslate2; use --engine native")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(line, "'ctranslate2' is not installed: python -m pip install '.[baselines]'")
