"""Fixtures for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from command_line import Refused
from fault_server import Server
from places import PYTHON_PATH
from worker_tasks import Crew, Task

from harness.cli.main import main
from harness.data import tokenizer_process
from harness.execution.launcher import Outcome
from harness.experiments.specs import RunSpec
from harness.training import run_progress, train

os.environ.pop("TOX_ENV_NAME", None)
"""Without it, messages show `python -m harness COMMAND`, whether or not tox runs the tests."""


@pytest.fixture(autouse=True)
def _environment_of_the_next_test() -> Iterator[None]:
    """Restore the environment variables, which a command may set for the rest of its process."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder that a module's tests keep prepared corpora in; they compute with one thread."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(folder))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield folder


@pytest.fixture(scope="module")
def processes(cache: Path) -> Iterator[None]:
    """Let the processes of runs find the modules of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PYTHON_PATH)
        yield


@pytest.fixture(scope="module")
def offline(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use an empty cache, no Multi30k, and one thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MULTI30K_DIR", str(tmp_path_factory.mktemp("empty") / "missing"))
        yield


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands write into an empty folder, on a machine without GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.processes.machine.gpus", list)


@pytest.fixture
def has_models_page(tmp_path: Path) -> None:
    """Let reports in folders of `tmp_path` find the models page above them, so that they do not draw it again."""
    from harness.reporting.models_report import PAGE

    (tmp_path / PAGE).touch()


@pytest.fixture
def no_plot_files(has_models_page: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports write no files of plots, which are in their pages too."""
    monkeypatch.setattr("harness.reporting.plot_style.write", lambda figure, path: None)


@pytest.fixture
def clean_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let records name a commit without changes, whatever the state of this checkout."""
    monkeypatch.setattr("harness.processes.machine.commit", lambda: {"digest": "a" * 40, "dirty": False})


@pytest.fixture
def unchecked(offline: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `compare` use no corpus, and apply no rule of `check`, which synthetic records would not pass."""
    monkeypatch.setattr("harness.cli.compare._failures", lambda *_, **__: [])


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Execute the runs of commands in this process, and return a list to which the ids of executed runs are added."""
    ids: list[str] = []

    def execute(specs: Sequence[RunSpec], results: Path, **_: Any) -> Outcome:
        ids.extend(spec.id for spec in specs)
        return Outcome([train.run(spec, results) for spec in specs])

    monkeypatch.setattr("harness.execution.local.execute", execute)
    return ids


@pytest.fixture
def every_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs report their progress after every update."""
    monkeypatch.setattr(run_progress, "EVENT_SECONDS", 0.0)


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Return a function that checks that a command is refused in one line with exit code 2, and returns that line."""

    def check(words: Sequence[str], message: str) -> str:
        assert main(words) == 2
        error = capsys.readouterr().err
        assert error.startswith("bakeoff: ")
        assert error.count("\n") == 1
        assert message in error
        return error

    return check


@pytest.fixture(scope="module")
def single_thread() -> Iterator[None]:
    """Limit torch to one thread, which is faster for small tensors."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let a test begin with an empty cache, `tmp_path`/cache."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenise in this process: only for tokenizers that do not import spaCy."""

    def request(command: str, **arguments: Any) -> Any:
        return tokenizer_process.COMMANDS[command](**arguments)

    monkeypatch.setattr(tokenizer_process, "_request", request)


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a web server whose faults a test chooses."""
    started = Server()
    yield started
    started.end()


@pytest.fixture
def good_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a web server without faults, which Multi30k is downloaded from."""
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", server.serve("good"))
    return server


@pytest.fixture(scope="session")
def multi30k_folder() -> Path:
    """Return the folder of Multi30k's files that MULTI30K_DIR names; skip where there is none."""
    chosen = os.environ.get("MULTI30K_DIR")
    if not chosen:
        pytest.skip("needs Multi30k: MULTI30K_DIR is not set")
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        pytest.skip(f"needs Multi30k: MULTI30K_DIR={chosen} is not a folder")
    return folder


@pytest.fixture(scope="module")
def crew(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """Yield the processes that do the tasks of a file's selected tests: what a test's parameter `task` names."""
    tasks: list[Task] = []
    for item in request.session.items:
        if item.path != request.path:
            continue
        task = getattr(item, "callspec", None) and item.callspec.params.get("task")
        if isinstance(task, Task) and not (task.needs_multi30k and not os.environ.get("MULTI30K_DIR")):
            tasks += task.needs
    working = Crew(tmp_path_factory.mktemp("crew"), tasks)
    yield working
    working.end()


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports have empty drawings, which take most of the time of a page, and an empty models page."""
    # First: it imports `inline_svg`, which would keep the patched `plot_style.lay_out` for all later tests.
    monkeypatch.setattr("harness.reporting.models_report.write", lambda folder: (folder / "models.html").touch())
    monkeypatch.setattr("harness.reporting.plot_style.lay_out", lambda _: None)
    monkeypatch.setattr("harness.reporting.render_html.inline", lambda *_: "")
    monkeypatch.setattr("harness.reporting.plot_style.write", lambda *_: None)


@pytest.fixture
def variant_pair(tmp_path: Path) -> Path:
    """Return a folder with runs of two variants, without translations."""
    from compare_cases import BLEU, save_record

    for variant, scores in BLEU.items():
        for seed, score in enumerate(scores):
            save_record(tmp_path, variant, seed, scores={"bleu_sacre": score, "test_loss": 2.0 + 0.01 * seed})
    return tmp_path
