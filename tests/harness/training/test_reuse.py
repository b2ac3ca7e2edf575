"""Runs on the user's files are reused while the files are unchanged; foreign records read no other files."""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import Refused
from record_factory import record
from small_runs import spec

import harness
from harness.analysis.selection import Run, Side
from harness.audit.rules import check
from harness.cli import compare, report_writing, sweep
from harness.cli.main import main
from harness.data import tokenizer_process
from harness.experiments.specs import DataSpec, DecodingSpec, FileSpec, RunSpec
from harness.processes.progress import Event
from harness.processes.workers import ProcessSettings
from harness.storage import files, run_store
from harness.storage.records import RunRecord
from harness.training import reuse, train

pytestmark = pytest.mark.usefixtures("own_cache", "one_process")


@pytest.fixture
def completed(tmp_path: Path) -> tuple[Path, RunRecord]:
    """Return the results folder and the record of a completed run on six files."""
    names = {}
    for name in ("train", "validation", "test"):
        for side in ("source", "target"):
            path = tmp_path / f"{name}_{side}"
            path.write_text("".join(f"a sentence {number % 9}\n" for number in range(64)), encoding="utf-8")
            names[path.name] = str(path)
    data = DataSpec(corpus="files", files=FileSpec(**names), tokenizer="whitespace", minimum_frequency=1)
    return tmp_path / "results", train.run(spec(data=data, updates=2), tmp_path / "results")


TEXT = "from counting_model import build\n"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the file of the module `own_model`, which has a builder and can be imported."""
    path = tmp_path / "own_model.py"
    path.write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop("own_model", None)


def path_of(record: RunRecord, name: str) -> Path:
    assert record.spec.data.files is not None
    return Path(getattr(record.spec.data.files, name))


def test_reusable_records_with_unchanged_files_are_returned(completed: tuple[Path, RunRecord], tmp_path: Path) -> None:
    results, record = completed
    assert train.run(record.spec, results) == record
    unfinished = spec("counting_model:build_compiling", data=record.spec.data)
    assert reuse.reusable_records(results, [unfinished, record.spec]) == [record]


def test_record_of_another_version_is_refused_and_kept(tmp_path: Path) -> None:
    run = spec(updates=2)
    path = tmp_path / run.id / run_store.RECORD
    files.write_sealed(path, {"schema": 3})
    content = path.read_bytes()
    with pytest.raises(ValueError, match=r"record\.json: a record of another version of this software: use that"):
        train.run(run, tmp_path)
    assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == [run_store.RECORD]


def test_record_that_cannot_be_read_is_refused_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    run = spec(updates=2)
    path = run_store.save_record(tmp_path, replace(record(), id=run.id, spec=run))
    content = path.read_bytes()
    monkeypatch.setattr(files, "read_bytes", fail)
    with pytest.raises(ValueError, match=r"record\.json: cannot be read \(Input/output error\); a new run would"):
        train.run(run, tmp_path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["train_source", "validation_target", "test_target"])
def test_reusable_records_with_changed_files_are_refused(
    completed: tuple[Path, RunRecord], name: str, tmp_path: Path
) -> None:
    results, record = completed
    path = path_of(record, name)
    path.write_text(path.read_text().replace("sentence 3", "sentence 4"))
    words = (
        f"^run {record.id}: {name}={path} has changed .*: remove the folder {results / record.id} to run .*, or name"
    )
    with pytest.raises(ValueError, match=words):
        train.run(record.spec, results)
    with pytest.raises(ValueError, match=words):
        reuse.reusable_records(results, [record.spec])
    path.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match=f"^run {record.id} exists, but not the text .*: {path}: cannot be read"):
        reuse.reusable_records(results, [record.spec])
    (tmp_path / "moved").rename(path)
    shutil.rmtree(results / record.id)
    assert reuse.reusable_records(results, [record.spec]) == []
    assert train.run(record.spec, results).fingerprints["files"] != record.fingerprints["files"]


def test_run_of_a_builder_whose_module_has_changed_is_refused(module: Path, tmp_path: Path, capsys: Any) -> None:
    run = spec("own_model:build", updates=2)
    record, other = (train.run(replace(run, seed=seed), tmp_path / "results") for seed in (0, 1))
    assert train.run(run, tmp_path / "results") == record
    module.write_text(f"{TEXT}SCALE = 3\n")
    with pytest.raises(ValueError, match=f"^run {record.id}: the module of own_model:build has changed since"):
        train.run(run, tmp_path / "results")
    with pytest.raises(ValueError, match=f"remove [^ ]*{record.id}, [^ ]*{other.id} to run it again"):
        reuse.reusable_records(tmp_path / "results", [record.spec, other.spec])
    words = ["translate", "--run", record.id, "--results", str(tmp_path / "results"), "--import-builder", "a dog"]
    assert main(words) == 0
    warning = "the module of own_model:build has changed since it was trained"
    assert warning in capsys.readouterr().err
    with pytest.warns(UserWarning, match=warning):
        harness.translate(record.id, [" "], results=tmp_path / "results", import_builder=True)


def test_run_of_a_builder_whose_module_has_changed_since_another_test_is_trained(module: Path, tmp_path: Path) -> None:
    first, second = (
        spec("own_model:build", updates=2, decoding=DecodingSpec(max_tokens=5, beam=beam)) for beam in (1, 2)
    )
    trained = train.run(first, tmp_path / "results")
    assert reuse.same_training(tmp_path / "results", second) == trained
    module.write_text(f"{TEXT}SCALE = 3\n")
    assert reuse.same_training(tmp_path / "results", second) is None
    importlib.reload(sys.modules["own_model"])
    assert "trained_as" not in train.run(second, tmp_path / "results").environment


def test_training_with_a_module_that_has_changed_before_the_first_run_is_refused(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, run, text = tmp_path / "results", spec("own_model:build", updates=2), f"{TEXT}SCALE = 3\n"
    module.write_text(text)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    importlib.import_module("own_model")
    for edited in (text.replace("3", "4"), text + "("):
        module.write_text(edited)
        reuse._IMPORTED.clear()
        with pytest.raises(ValueError, match="^'own_model:build': the file of own_model has changed since Python"):
            train.run(run, results)
    module.write_text(text)  # as a cell that writes the file and is executed twice
    os.utime(module, (1e10, 1e10))
    reuse._IMPORTED.clear()
    assert train.run(run, results).status == "completed"


def test_training_with_a_module_that_has_changed_since_its_import_is_refused(module: Path, tmp_path: Path) -> None:
    results, run = tmp_path / "results", spec("own_model:build", updates=2)
    first = train.run(run, results)
    module.write_text(f"{TEXT}SCALE = 3\n")
    expected = "^'own_model:build': the file of own_model has changed since Python imported it.*: restart Python"
    with pytest.raises(ValueError, match=expected):
        train.run(replace(run, seed=1), results)
    with pytest.raises(ValueError, match=expected):
        harness.run("own_model:build", results=results)
    assert [path.name for path in results.iterdir()] == [first.id]
    importlib.reload(sys.modules["own_model"])
    assert train.run(replace(run, seed=1), results).fingerprints["builder"] != first.fingerprints["builder"]


def test_builder_that_a_package_imports_is_recognised_after_a_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "own_package" / "model.py"
    model.parent.mkdir()
    (model.parent / "__init__.py").write_text("from own_package.model import build\n")
    model.write_text("import counting_model\ndef build(*s, **k): return counting_model.build(*s, **k)\n")
    monkeypatch.syspath_prepend(tmp_path)
    trained = train.run(spec("own_package:build", updates=2), tmp_path / "results")
    assert not reuse.has_other_builder(trained)
    model.write_text(model.read_text() + "SCALE = 3\n")
    assert reuse.has_other_builder(trained)


def test_weights_that_do_not_fit_a_changed_module_name_the_module(module: Path, tmp_path: Path) -> None:
    trained = train.run(spec("own_model:build", updates=2), tmp_path / "results")
    module.write_text(
        "from counting_model import CountingModel, _builder\n"
        "class Reshaped(CountingModel):\n"
        "    def set_weights(self, weights):\n"
        "        raise ValueError('counts has shape (9,)')\n"
        "build = _builder(Reshaped)\n"
    )
    importlib.reload(sys.modules["own_model"])
    expected = f"^{trained.id}: the module of own_model:build has changed .*, and .* do not fit: counts has shape"
    with pytest.raises(ValueError, match=expected):
        harness.translate(trained.id, ["a dog"], results=tmp_path / "results", import_builder=True)


def test_record_with_a_recipe_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "foreign_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    sound = record("learned_positions")
    foreign = replace(
        sound, spec=replace(sound.spec, variant="foreign_module:build"), fingerprints={"builder": "0" * 64}
    )
    assert not reuse.has_other_builder(foreign)


@pytest.mark.parametrize("command", ["run", "bench", "ablate"])
def test_changed_files_are_refused_by_every_training_command(
    completed: tuple[Path, RunRecord], command: str, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    results, record = completed
    data = record.spec.data
    planned = spec("learned_positions", data=data)
    run_store.save_record(results, replace(record, id=planned.id, spec=planned))
    path_of(record, "test_source").write_text("ein Satz\n" * 64, encoding="utf-8")

    def plan(*_: object, **__: object) -> list[RunSpec]:
        return [planned]

    monkeypatch.setattr("harness.cli.options.available", plan)
    monkeypatch.setattr("harness.cli.run._set_environment", lambda spec, is_program: None)
    monkeypatch.setattr(sweep, "prepare", lambda *_: None)
    monkeypatch.setattr("harness.processes.machine.gpus", list)
    words = {"run": ["learned_positions"]}.get(command, [])
    message = f"test_source={path_of(record, 'test_source')} has changed since it was trained on"
    refused([command, *words, "--results", str(results)], message)


@pytest.mark.parametrize("text", ["another", "absent"])
def test_record_of_someone_else_reads_no_other_local_text(
    completed: tuple[Path, RunRecord], text: str, monkeypatch: pytest.MonkeyPatch, refused: Refused, capsys: Any
) -> None:
    results, record = completed
    path = path_of(record, "validation_source")
    path.unlink()
    if text == "another":
        path.write_text("private text\n", encoding="utf-8")
    monkeypatch.setattr(tokenizer_process, "tokenise", lambda jobs: pytest.fail("it is tokenised"))
    message = f"the text of the run is not available: {path}: "
    hint = "; copy the files that it was trained on to the same paths"
    for command in (["score"], ["translate", "--run", record.id, "a sentence"]):
        assert refused([*command, "--results", str(results)], message).rstrip().endswith(hint)
    outcomes = check(results).outcomes
    skipped = {outcome.rule.code for outcome in outcomes if any(message in reason for reason in outcome.skips)}
    assert len(skipped) >= 3
    assert report_writing.test_sets([record]) == {}
    assert message in capsys.readouterr().out
    assert compare._corpus([Side("A", "a", (Run(record, results / record.id),))]) is None


def test_text_of_a_run_is_read_if_unchanged(completed: tuple[Path, RunRecord], capsys: Any) -> None:
    results, record = completed
    assert main(["score", "--results", str(results)]) == 0
    assert list(report_writing.test_sets([record])) == [record.spec.data]
    assert not check(results).failed


def other_test_set(record: RunRecord, folder: Path) -> RunSpec:
    """Return the settings of the same run with other test sentences."""
    data = record.spec.data
    assert data.files is not None
    names = {}
    for side in ("source", "target"):
        path = folder / f"other_{side}"
        path.write_text("".join(f"another sentence {number % 5}\n" for number in range(40)), encoding="utf-8")
        names[f"test_{side}"] = str(path)
    return replace(record.spec, data=replace(data, files=replace(data.files, **names)))


@pytest.mark.parametrize("change", ["test set", "search"])
def test_run_that_differs_only_in_its_test_uses_the_training_of_another(
    change: str, completed: tuple[Path, RunRecord], tmp_path: Path
) -> None:
    results, first = completed
    searched = replace(first.spec, decoding=replace(first.spec.decoding, beam=3, length_penalty=1.0))
    spec = other_test_set(first, tmp_path) if change == "test set" else searched
    events: list[Event] = []
    record = train.run(spec, results, progress=events.append)
    whole = train.run(spec, tmp_path / "whole")
    assert not any(event.stage == "training" for event in events)
    assert any(f"its weights are those of {first.id}" in event.remark for event in events)
    assert events[-1].remark.startswith("completed: test perplexity")  # not the seconds of the other's training
    assert record.environment["trained_as"] == first.id
    assert record.environment["earlier_processes"] == []
    assert "trained_as" not in whole.environment
    assert (record.id, record.scores, record.decode) == (whole.id, whole.scores, whole.decode)
    assert record.fingerprints == whole.fingerprints
    assert record.sizes == whole.sizes
    assert [line.validation_loss for line in record.curve] == [line.validation_loss for line in whole.curve]
    assert check(results, [record.id]).failed == ()
    assert sweep.forecast_runs([spec], results, 1).progress == {spec.id: 1.0}
    shutil.rmtree(results / first.id)  # only the run without a training of its own is left
    third = train.run(replace(spec, decoding=replace(spec.decoding, beam=2)), results)
    assert third.environment["trained_as"] == first.id


def test_run_whose_epochs_are_too_few_to_be_scored_uses_the_training_of_another(
    completed: tuple[Path, RunRecord], tmp_path: Path
) -> None:
    results, first = completed
    settings = ProcessSettings(score_every=len(first.curve) + 1)
    assert train.run(other_test_set(first, tmp_path), results, settings).environment["trained_as"] == first.id


def test_test_loss_that_is_not_finite_is_a_diverged_run_without_results(
    completed: tuple[Path, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, first = completed
    monkeypatch.setattr(train, "has_perplexity", lambda loss: False)
    record = train.run(other_test_set(first, tmp_path), results)
    assert (record.status, record.scores, record.environment["trained_as"]) == ("diverged", {}, first.id)
    assert "the test loss is not finite" in record.reason
    assert not {"hypotheses", "trained_weights", "sentences", "attention"} & record.fingerprints.keys()
    assert record.fingerprints["weights_after"] == first.fingerprints["weights_after"]


def test_forecast_reads_each_finished_run_once(
    completed: tuple[Path, RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, first = completed
    reads: list[str] = []
    finished = run_store.finished
    monkeypatch.setattr(run_store, "finished", lambda folder, run: reads.append(run) or finished(folder, run))
    searched = [replace(first.spec, decoding=replace(first.spec.decoding, beam=beam)) for beam in (2, 3, 4)]
    assert set(sweep.forecast_runs(searched, results, 1).progress.values()) == {1.0}
    assert reads == [first.id]


@pytest.mark.parametrize(
    "change",
    [
        "train_source",
        "validation_source",
        "setting",
        "arithmetic",
        "weights gone",
        "weights damaged",
        "no BLEU per epoch",
    ],
)
def test_run_that_differs_in_its_training_is_trained(
    change: str, completed: tuple[Path, RunRecord], tmp_path: Path
) -> None:
    results, first = completed
    spec, settings = other_test_set(first, tmp_path), ProcessSettings()
    if change.endswith("_source"):
        path = path_of(first, change)
        path.write_text(path.read_text().replace("sentence 3", "sentence 4"))
    elif change == "setting":
        spec = replace(spec, training=replace(spec.training, peak_rate=1e-4))
    elif change == "arithmetic":
        versions = {**first.environment["versions"], "torch": "1.0"}
        run_store.save_record(results, replace(first, environment={**first.environment, "versions": versions}))
    elif change == "weights gone":
        (results / first.id / "weights.safetensors").unlink()
    elif change == "weights damaged":
        path = results / first.id / "weights.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    else:
        settings = ProcessSettings(score_every=1)
    record = train.run(spec, results, settings)
    assert "trained_as" not in record.environment
    assert record.status == "completed"
