"""The command `speed` from end to end at toy size: its document, its interruption and its errors."""

from __future__ import annotations

import argparse
import errno
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import speed_factory
from command_line import Refused
from faulty_runs import read_until, started

from harness.cli import speed
from harness.cli.main import main, parser
from harness.data.dataset import Dataset
from harness.processes import machine
from harness.reporting import speed_report
from harness.reporting.formatting import significant_digits
from harness.speed import speed_document
from harness.speed.measurement import Measurement
from harness.speed.plan import MeasurementPlan
from harness.speed.speed_document import SpeedDocument
from harness.speed.worker import Bench
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.training import load
from impls import registry

pytestmark = pytest.mark.usefixtures("cache")
TINY = ["--corpus", "captions", "--tokenizer", "whitespace", "--set", "data.training_pairs=208", "--threads", "1"]
TOY = ["speed", "--size", "toy", *TINY]


def planned(*words: str) -> tuple[MeasurementPlan, Dataset]:
    """Return the plan of a toy measurement with these words, and its corpus."""
    return speed._plan(parser().parse_args([*TOY, *words], argparse.Namespace(typed="")))


def only(results: Path) -> SpeedDocument:
    """Return the only document in a folder."""
    (path,) = results.glob("speed-*.json")
    return speed_document.load(path)


def check(document: SpeedDocument, parts: set[str]) -> None:
    """Check a complete document for consistency; test_assemble.py has the figures of each model."""
    settings, data = document.settings, document.data
    assert (document.status, set(settings.parts)) == ("complete", parts)
    assert data.sentences == settings.updates * settings.batch_size
    for subject in document.subjects:
        assert subject.ending == "completed", f"{subject.name}: {subject.reason}"
        assert subject.parameters
        assert subject.idle_share is not None
        training, share = subject.training, document.mfu(subject)
        if training is not None:
            assert (len(training.seconds), training.updates) == (settings.rounds, settings.updates)
            assert training.first_update_seconds > 0
            assert 0 < share.median < 1
        for decoding in subject.decoding:
            assert len(decoding.seconds) == settings.decoding_rounds
            expected = settings.single_sentences if decoding.batch_size == 1 else settings.sentences
            assert decoding.sentences == expected
            assert decoding.peak_memory_bytes is None or decoding.peak_memory_bytes > 10e6


def test_speed_measures_a_variant_and_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = ["training", "evaluation", "decoding", "breakdown"]
    chosen = [word for part in parts for word in ("--part", part)]
    command = [*TOY, "--variant", "learned_positions", "--baseline", "plain", *chosen, "--results", str(tmp_path)]
    command += ["--set", "recipe.layers=1", "--set", "decoding.max_tokens=6", "--reports", str(tmp_path / "reports")]
    assert main([*command, "--note", "a note"]) == 0
    document = only(tmp_path)
    check(document, set(parts))
    assert (document.note, document.settings.unknown) == ("a note", "never")
    ours, plain = document.subject("learned_positions/torch"), document.subject("plain")
    kernels = {product.name: product for product in document.rates[0].products}
    inner = kernels["encoder.0.feed_forward.inner.kernel"]
    assert (inner.inputs, inner.outputs, inner.count) == (32, 64, 1 + 1), "the cross keys and values are as large"
    assert ours.training.operations == plain.training.operations > document.rates[0].operations
    assert plain.evaluation is None
    assert 0 < ours.evaluation.nats_per_token < 2 * math.log(document.data.target_words)
    groups = {part.group for part in ours.breakdown.shares if part.share > 0}
    assert {"matrix products", "attention", "softmax and loss", "dropout", "optimiser", "data"} <= groups
    decodings = {times.name: times for times in ours.decoding}
    assert list(decodings) == ["greedy", "beam", "single_greedy", "single_beam"]
    single = {times.name: times for times in plain.decoding}["single_greedy"]
    assert (single.compared_with, single.equal) == ("learned_positions/torch", single.sentences)
    assert single.digest == decodings["single_greedy"].digest
    assert ours.weights_from == plain.weights_from == "3 updates of learned_positions/torch"
    output = capsys.readouterr().out
    assert significant_digits(1_000 * ours.training.update_seconds) in output
    page = tmp_path / "reports" / "speed" / "index.html"
    assert f"The page: {page} (as Markdown: {page.with_name('index.md')})" in output
    assert f"{document.id}.json" in page.read_text(encoding="utf-8")


def test_speed_interrupted_keeps_complete_rounds(tmp_path: Path) -> None:
    command = [*TOY, "--variant", "learned_positions", "--baseline", "none", "--part", "evaluation", "--rounds", "1000"]
    folders = ["--results", str(tmp_path / "kept"), "--reports", str(tmp_path / "reports")]
    with started("-m", "harness", *command, *folders) as process:
        read_until(process, "round 1 of")
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
    assert process.returncode == 128 + signal.SIGINT
    assert "interrupted by SIGINT; its processes are ended; what was measured so far: " in output
    assert len(children) == 1
    assert psutil.wait_procs(children, timeout=10)[1] == []
    document = only(tmp_path / "kept")
    assert (document.status, document.reason) == ("incomplete", "interrupted by SIGINT")
    assert document.subjects[0].evaluation is not None
    page = (tmp_path / "reports" / "speed" / "index.md").read_text(encoding="utf-8")
    assert "Incomplete: interrupted by SIGINT" in page


def test_speed_measures_nothing_that_it_cannot_store(
    tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(speed, "Measurement", None)
    command = [*TOY, "--variant", "learned_positions", "--baseline", "none", "--results", str(tmp_path / "new")]
    refused(command, f"{tmp_path}: cannot be written to, and the document is stored there")
    assert not list(tmp_path.iterdir())


def test_speed_prints_what_it_has_measured_if_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document, full = speed_factory.document(), OSError(errno.ENOSPC, "No space left on device", "x.json")
    monkeypatch.setattr(speed, "Measurement", Mock())
    monkeypatch.setattr("harness.speed.assemble.assemble", lambda *_, **__: document)
    monkeypatch.setattr(speed_document, "save", Mock(side_effect=full))
    command = [*TOY, "--variant", "learned_positions", "--baseline", "none", "--results", str(tmp_path)]
    assert main(command) == 2
    printed = capsys.readouterr()
    assert printed.err.endswith("bakeoff: x.json: No space left on device\n")
    assert speed_report.terminal(document) in printed.out


@pytest.mark.parametrize(
    "option", [["--rounds", "3"], ["--size", "toy"], ["--variant", "paper"], ["--corpus", "captions"], ["--note", "x"],
               ["--set", "recipe.dropout=0"], ["--weights", "x"], ["--train-source", "x"], ["--results", "x"]]
)  # fmt: skip
def test_an_option_of_a_measurement_with_a_stored_document_is_rejected(
    option: list[str], refused: Refused, empty_folder: None
) -> None:
    message = f"{option[0]} with --from: --from measures nothing, so give one or the other"
    refused(["speed", "--from", "x.json", *option], message)


def test_a_document_that_is_not_there_or_edited_is_one_line(tmp_path: Path, refused: Refused) -> None:
    path = speed_document.save(tmp_path, speed_factory.document())
    path.write_text(path.read_text(encoding="utf-8").replace("Ditto(R)", "Faster(R)"), encoding="utf-8")
    for name, message in ((path, "seal"), (tmp_path / "nothing.json", "cannot be read")):
        assert str(name) in refused(["speed", "--from", str(name), "--reports", str(tmp_path / "reports")], message)
    assert not (tmp_path / "reports").exists()


# One process ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gigabytes", "part", "trains"), [(0.9, "decoding", True), (1.1, "scaling", False)])
def test_speed_announces_a_lack_of_memory_and_the_training_of_recipes(
    gigabytes: float, part: str, trains: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: int(gigabytes * 1e9))
    plan, _ = planned("--variant", "paper", "--baseline", "plain", "--part", part)
    speed._announce(plan)
    printed = capsys.readouterr()
    assert ("2 models in memory at once need about 1 GB of memory" in printed.err) == (gigabytes < 1)
    assert ("Each recipe without --weights is first trained" in printed.out) == trains


def test_plan_in_bfloat16_leaves_baselines_out(capsys: pytest.CaptureFixture[str]) -> None:
    plan, _ = planned("--variant", "learned_positions", "--baseline", "plain", "--precision", "bfloat16")
    assert [job.name for job in plan.jobs] == ["learned_positions/torch"]
    assert [(model.name, model.reason) for model in plan.absent] == [
        ("plain", "it computes in float32, and this is bfloat16")
    ]
    speed._announce(plan)
    assert "Left out: plain: it computes in float32, and this is bfloat16\n" in capsys.readouterr().out


def test_speed_setting_of_one_variant_changes_its_recipe_only() -> None:
    words = ["--variant", "paper", "--variant", "conv_ffn", "--baseline", "none", "--set", "paper:recipe.layers=1"]
    plan, _ = planned(*words)
    layers = {job.spec.variant: getattr(job.spec.recipe, "layers", None) for job in plan.jobs}
    assert layers == {"paper": 1, "conv_ffn": 3}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "decoding.beam=3"], "decoding.beam=3: give --beam instead"),
        (["--set", "framework=keras"], "framework=keras: give --framework instead"),
        (["--set", "paper:data.max_length=9"], "only recipes may differ; give data.max_length for all variants"),
        (["--set", "papr:recipe.layers=1"], "did you mean 'paper'?"),
        (["--note", "x" * 4_001], "--note has 4,001 characters; the document of a measurement holds 4,000"),
        (["--weights", "x", "--part", "training"], "--weights with --part training, which uses no weights"),
    ],
)
def test_speed_with_an_option_without_effect_is_refused(
    words: list[str], message: str, tmp_path: Path, refused: Refused
) -> None:
    refused([*TOY, "--variant", "paper", "--baseline", "none", *words, "--results", str(tmp_path)], message)
    assert not list(tmp_path.iterdir())


def test_speed_with_two_runs_of_one_recipe_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: Refused
) -> None:
    words = ["--variant", "paper", "--baseline", "none"]
    paper = planned(*words)[0].jobs[0].spec
    monkeypatch.setattr(run_store, "find", lambda _, name: RunRecord(id=name, spec=paper, status="completed"))
    monkeypatch.setattr(load, "stored_weights", lambda *_: {})
    message = "--weights second: run first has the same recipe; give one run per recipe"
    refused([*TOY, *words, "--weights", "first", "--weights", "second", "--results", str(tmp_path)], message)
    assert not list(tmp_path.iterdir())


def test_measurement_compared_decodings_share_their_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan, prepared = planned("--variant", "learned_positions", "--baseline", "plain")
    measurement = Measurement(plan, prepared, tmp_path, say=lambda line: None, check=lambda: None)
    monkeypatch.setattr(measurement, "_can", lambda job, ability: True)
    run = Mock()
    monkeypatch.setattr(measurement.scheduler, "run", run)
    measurement._measure_decoding()
    ours = "learned_positions/torch"
    assert [{(task.model, task.measure) for task in call.args[1]} for call in run.call_args_list] == [
        {(ours, "greedy")},
        {(ours, "beam")},
        {(ours, "single_greedy"), ("plain", "single_greedy")},
        {(ours, "single_beam"), ("plain", "single_beam")},
    ]


def test_measurement_of_one_breakdown_or_size_has_samples(tmp_path: Path) -> None:
    measurement = Measurement(*planned("--variant", "paper"), tmp_path, say=lambda line: None, check=lambda: None)
    assert not measurement.has_samples
    measurement.breakdowns["paper/torch"] = {}
    assert measurement.has_samples
    measurement.breakdowns.clear()
    measurement.scaling += speed_factory.scaling()
    assert measurement.has_samples


def test_bench_first_update_is_that_of_the_process(tmp_path: Path) -> None:
    plan, _ = planned("--variant", "learned_positions", "--baseline", "none")
    bench = Bench(plan.jobs[0])
    bench.train(2, str(tmp_path / "weights.safetensors"))
    first = bench._first_seconds
    assert first is not None
    assert bench.warm_up("training", 0)["first_update_seconds"] == first


# All of it ------------------------------------------------------------------------------------------------------------


@pytest.mark.faults
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_speed_measures_every_part(framework: str, tmp_path: Path) -> None:
    chosen = ["--variant", "learned_positions", "--variant", "bahdanau_gru", "--framework", framework]
    assert main([*TOY, *chosen, "--results", str(tmp_path), "--reports", str(tmp_path / "reports")]) == 0
    document = only(tmp_path)
    missing = {subject.name for subject in document.subjects if subject.ending == "missing"}
    assert missing == {name for name in registry.baseline_names() if registry.missing_baseline(name)}
    subjects = tuple(subject for subject in document.subjects if subject.ending != "missing")
    check(replace(document, subjects=subjects), {"training", "evaluation", "decoding", "breakdown", "scaling"})
    axes = {line.axis for line in document.scaling}
    assert axes == {"batch_size", "length", "threads", "width", "decoding_batch_size"}
    for line in document.scaling:
        assert all(len(point.seconds) == 3 for point in line.points)
        assert (line.exponent is None) == (len(line.points) < 2)
    greedy = {
        subject.name: times for subject in document.subjects for times in subject.decoding if times.name == "greedy"
    }
    for name in {"ctranslate2", "marian"} & greedy.keys():
        assert greedy[name].equal == greedy[name].sentences
    chosen_library = {subject.name: subject.environment.get("CT2_USE_MKL") for subject in subjects}
    expected = os.environ.get("CT2_USE_MKL", "0")
    assert chosen_library.get("ctranslate2", expected) == expected
