"""Standard streams that are closed when the command line starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("settings", 0), ("list --no-such-option", 2)])
def test_main_with_closed_streams_ends_with_its_exit_code(
    arguments: str, code: int, closed: str, tmp_path: Path
) -> None:
    command = f'exec "{sys.executable}" -m harness {arguments} {closed}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_main_with_closed_streams_writes_no_message_into_a_file(tmp_path: Path) -> None:
    """Otherwise the first file that is opened would get the descriptor of standard error."""
    code = (
        "import sys; from harness.cli import main\n"
        "main._reopen_closed_streams()\n"
        "with open('file', 'w') as file: print('message', file=sys.stderr, flush=True); file.write('content')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f'exec "{sys.executable}" -c "$CODE" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env={**environment, "CODE": code}, check=False)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "content"
