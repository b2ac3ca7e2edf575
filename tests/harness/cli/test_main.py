"""The program: its imports, and standard streams that are closed, limited or not read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from record_factory import record

from harness.storage import run_store

MODULES = ("torch", "tensorflow", "keras", "jax", "matplotlib", "pandas")
PRINT_MODULES = f"""
import sys
from harness.cli.main import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
print(code, *(name for name in {MODULES!r} if name in sys.modules), file=sys.stderr)
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
@pytest.mark.usefixtures("offline", "empty_folder")
def test_only_training_imports_a_framework(line: list[str], allowed: tuple[str, ...]) -> None:
    run_store.save_record(Path("records"), record("learned_positions"))
    command = [sys.executable, "-c", PRINT_MODULES, *line]
    process = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    code, *imported = process.stderr.strip().split("\n")[-1].split()
    # The record has no translations, which `report` reports with exit code 1.
    assert code == str(int(line[0] == "report")), process.stderr
    assert set(imported) <= set(allowed)


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
    process = subprocess.run(
        [sys.executable, "-m", "harness", "ablate", "--help"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        cwd=ROOT,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, b"")
    assert rb"positions \xd7 norm" in b" ".join(process.stdout.split())


def test_main_with_an_unread_output_exits_like_sigpipe() -> None:
    command = [sys.executable, "-m", "harness", "list"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
    assert process.returncode == 141
