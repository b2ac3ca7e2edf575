"""Records with random edits, sealed again as a stranger can, never end a command in a traceback."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_files import OTHER, RUN, write_valid

from harness.cli.main import main
from harness.storage import files, run_store

CASES = 120
SLOW_CASES = 10_000
COMMANDS = {
    "list": ["list"],
    "check": ["check"],
    "report": ["report", "--reports", "reports"],
    "compare": ["compare", RUN, OTHER],
    "score": ["score", "--run", RUN],
}
FREQUENT = ("list", "compare", "score")
"""The commands of most cases; the other two take seconds."""

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, 2**31, 2**63, 10**15, 0.5, -0.0, 1e-300, 1e300, "", "x", "nan", "\u202e\x1b[2J\n",
    "a" * 5_000, [], [1], [None], ["a", {}], {}, {"a": 1}, {"": []}, {"1": "a" * 64},
)  # fmt: skip


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("valid")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAKEOFF_CACHE", str(place / "cache"))
        patch.setattr("harness.reporting.plot_style.write", lambda drawn, path: None)  # other tests draw
        write_valid(place)
        yield place


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside JSON."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


def mutated(record: dict[str, Any], chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Return a record with one to three fields removed, replaced, renamed or exchanged, and what was done."""
    record, edits = copy.deepcopy(record), []
    for _ in range(chance.choice((1, 1, 2, 3))):
        by_depth: dict[int, list[tuple[Any, ...]]] = {}
        for path in paths(record):
            by_depth.setdefault(min(len(path), 3), []).append(path)
        if not by_depth:
            break
        *parents, last = chance.choice(by_depth[chance.choice(sorted(by_depth))])
        owner: Any = record
        for key in parents:
            owner = owner[key]
        action = chance.choice(("remove", "replace", "replace", "rename", "scale"))
        if action == "remove":
            del owner[last]
        elif action == "rename" and isinstance(owner, dict):
            owner[chance.choice(("x", f"{last}_", "", "\x1b"))] = owner.pop(last)
        elif action == "scale" and isinstance(owner[last], int | float):
            owner[last] = owner[last] * chance.choice((-1, 0, 2, 10**6))
        else:
            owner[last] = copy.deepcopy(chance.choice(VALUES))
        edits.append(f"{action} {'.'.join(map(str, [*parents, last]))}")
    return record, edits


def run_case(valid: Path, place: Path, seed: int, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutate the record of one run and let a command read it. Any exception that escapes `main` is a fault."""
    chance = random.Random(seed)
    shutil.copytree(valid / "results", place / "results", dirs_exist_ok=True)
    path = place / "results" / RUN / run_store.RECORD
    record, edits = mutated(files.read_sealed(path), chance)
    path.write_text(json.dumps({**record, files.SEAL: files.seal(record)}), encoding="utf-8")
    monkeypatch.chdir(place)
    command = chance.choice((*FREQUENT * 4, "check", "report"))
    capsys.readouterr()
    try:
        code = main([*COMMANDS[command], "--results", "results"])
    except Exception as error:
        raise AssertionError(f"case {seed}: {command} after {edits}") from error
    told = capsys.readouterr()
    assert code in (0, 1, 2), (seed, command, edits)
    assert "Traceback" not in told.out + told.err, (seed, command, edits)
    assert code != 2 or told.err.count("\n") <= 2, (seed, command, edits, told.err)


@pytest.mark.parametrize("part", range(8))
def test_commands_mutated_record_gives_no_traceback(
    valid: Path, tmp_path: Path, part: int, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(part, CASES, 8):
        run_case(valid, tmp_path, seed, capsys, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_commands_many_mutated_records_give_no_traceback(
    valid: Path, tmp_path: Path, part: int, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(CASES + part, SLOW_CASES, 20):
        run_case(valid, tmp_path, seed, capsys, monkeypatch)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "edit",
    [
        *(("sizes", name, "remove") for name in ("test_cut", "train_left_out", "train_duplicate_pairs")),
        ("environment", "machine", {"memory_bytes": [1]}),
        ("environment", "machine", {"cores": "two"}),
        ("environment", "commit", "abc"),
    ],
    ids=lambda edit: ".".join(map(str, edit[:2])),
)  # fmt: skip
def test_commands_record_without_a_field_gives_no_traceback(
    valid: Path, tmp_path: Path, edit: Any, command: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, name, value = edit
    shutil.copytree(valid / "results", tmp_path / "results")
    path = tmp_path / "results" / RUN / run_store.RECORD
    record = files.read_sealed(path)
    if value == "remove":
        del record[part][name]
    else:
        record[part][name] = value
    files.write_sealed(path, record)
    monkeypatch.chdir(tmp_path)
    code = main([*COMMANDS[command], "--results", "results"])
    assert code in (0, 1, 2)
    assert code != 2 or capsys.readouterr().err.count("\n") <= 2
