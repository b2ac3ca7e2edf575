"""The program: its imports, and standard streams that are closed, limited or not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import HEAVY, Refused, commands, imported, imported_by
from places import ROOT
from record_factory import record

from harness.cli.main import main
from harness.storage import run_store

HARNESS = [sys.executable, "-m", "harness"]
HELP = """
from harness.cli.main import main
for command in sys.argv[1:]:
    try: main([*command.split(), "--help"])
    except SystemExit as end: assert end.code == 0, command
"""


def test_help_of_every_command_imports_no_framework_and_no_pydantic() -> None:
    assert not imported(f"import sys{HELP}", "", *commands()) & {*HEAVY, "pydantic"}


def test_help_of_the_program_shows_where_to_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOX_ENV_NAME", raising=False)
    with pytest.raises(SystemExit):
        main(["--help"])
    *_, examples = capsys.readouterr().out.partition("\nexamples:\n")
    lines = [line.strip() for line in examples.splitlines() if "-m harness" in line]
    assert lines == ["python -m harness bench --corpus captions", "python -m harness bench --help"]


def test_main_without_the_libraries_says_how_to_install_them() -> None:
    arguments = [sys.executable, "-S", "-m", "harness", "list"]  # -S: without the installed packages
    answer = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 2
    assert answer.stderr.count("\n") == 1
    assert "not installed" in answer.stderr
    assert "pip install '.[torch,data]'" in answer.stderr


def test_main_interrupted_while_it_imports_exits_with_130_and_no_traceback() -> None:
    interrupt = """
import runpy, sys
class Interrupting:
    def find_spec(name, path, target):
        if name == "harness.cli.main": raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting)
runpy.run_module("harness", run_name="__main__")
"""
    ended = subprocess.run([sys.executable, "-c", interrupt], cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (130, b"")


@pytest.mark.usefixtures("offline", "empty_folder")
@pytest.mark.parametrize("command", ["compare", "run", "report", "check"])
def test_messages_show_commands_that_work_in_tox(
    command: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOX_ENV_NAME", "bench")
    message = refused([command], "")
    assert "tox -e harness -- " in message
    assert "python -m" not in message


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("command", "code", "allowed"), [("list", 0, set()), ("report", 1, {"matplotlib", "pandas"})])
def test_only_training_imports_a_framework(command: str, code: int, allowed: set[str], tmp_path: Path) -> None:
    """The record has no translations, which `report` reports with exit code 1."""
    run_store.save_record(tmp_path, record("learned_positions"))
    assert imported_by(command, "--results", str(tmp_path), code=code, folder=tmp_path) & HEAVY <= allowed


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("settings", 0), ("list --no-such-option", 2)])
def test_main_with_closed_streams_ends_with_its_exit_code(
    arguments: str, code: int, closed: str, tmp_path: Path
) -> None:
    command = f'exec "{sys.executable}" -m harness {arguments} {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert process.returncode == code, process.stderr
    assert b"Traceback" not in process.stderr
    assert list(tmp_path.iterdir()) == []


def test_main_with_closed_streams_writes_no_message_into_a_file(tmp_path: Path) -> None:
    """Otherwise the first file that is opened would get the descriptor of standard error."""
    code = (
        "import sys; from harness.cli import main\n"
        "main._reopen_closed_streams()\n"
        "with open('file', 'w') as file: print('message', file=sys.stderr, flush=True); file.write('content')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CODE": code}
    command = f'exec "{sys.executable}" -c "$CODE" <&- >&- 2>&-'
    process = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=False)
    assert process.returncode == 0
    assert (tmp_path / "file").read_text() == "content"


def test_main_escapes_characters_that_the_terminal_lacks() -> None:
    command, environment = [*HARNESS, "ablate", "--help"], {**os.environ, "PYTHONIOENCODING": "ascii:strict"}
    process = subprocess.run(command, capture_output=True, env=environment, cwd=ROOT, check=False)
    assert (process.returncode, process.stderr) == (0, b"")
    assert rb"positions \xd7 norm" in b" ".join(process.stdout.split())


def test_main_with_an_unread_output_exits_like_sigpipe() -> None:
    with subprocess.Popen([*HARNESS, "list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
