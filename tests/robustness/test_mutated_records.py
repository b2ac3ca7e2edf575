"""Records, speed documents and experiment files with random edits, sealed again, never give a traceback."""

from __future__ import annotations

import copy
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import speed_factory
from hostile_files import PAPER, RUN

from harness.cli.main import main
from harness.experiments.serialization import to_json
from harness.speed import speed_document
from harness.storage import files, run_store

pytestmark = pytest.mark.usefixtures("no_plot_files")

CASES = 120
MANY_CASES = 10_000
EXPORTED = "exported"
COMMANDS = {
    "list": ["list"],
    "check": ["check"],
    "report": ["report", "--reports", "reports"],
    "compare": ["compare", RUN, PAPER],
    "score": ["score", "--run", RUN],
    "export": ["export", "--run", RUN, "--to", "safetensors", "--output", EXPORTED],
}
SHARES = {"list": 5, "compare": 4, "score": 4, "export": 4, "check": 1, "report": 1}
"""How often each command reads a mutated record; the last two take seconds."""
RARELY = {"list": 30, "compare": 20, "score": 20, "export": 20, "check": 9, "report": 1}
"""The same for many cases."""

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1, 7, 2**31, 2**63, 10**15, 0.5, -0.0, 1e-300, 1e300, "", "x", "nan", "\u202e\x1b[2J\n",
    "a" * 5_000, [], [1], [None], ["a", {}], {}, {"a": 1}, {"": []}, {"1": "a" * 64},
)  # fmt: skip


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


def mutated(record: dict[str, Any], chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Return a record with one to three fields removed, replaced, renamed or scaled, and a description of the edits."""
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


Mutation = Callable[[dict[str, Any]], tuple[dict[str, Any], Any]]


@pytest.fixture
def check_command(
    valid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Mutation], None]:
    """Return a function that mutates the record of a run and lets a command read it: check(command, mutate)."""
    monkeypatch.chdir(tmp_path)

    def check(command: str, mutate: Mutation) -> None:
        shutil.copytree(valid / "results", tmp_path / "results", dirs_exist_ok=True)
        shutil.rmtree(tmp_path / EXPORTED, ignore_errors=True)
        path = tmp_path / "results" / RUN / run_store.RECORD
        record, edits = mutate(files.read_sealed(path))
        path.write_text(json.dumps({**record, files.SEAL: files.seal(record)}), encoding="utf-8")
        check_words([*COMMANDS[command], "--results", "results"], edits, capsys)

    return check


def check_words(words: list[str], edits: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Execute a command that reads something with `edits`: bad input is one line, with a remark at most."""
    capsys.readouterr()
    try:
        code = main(words)
    except Exception as error:
        raise AssertionError(f"{words[0]} after {edits}") from error
    output = capsys.readouterr()
    assert code in (0, 1, 2), (words, edits)
    assert "Traceback" not in output.out + output.err, (words, edits)
    assert code != 2 or output.err.count("\n") <= 2, (words, edits, output.err)


def check_seeds(check: Callable[[str, Mutation], None], seeds: range, shares: dict[str, int]) -> None:
    for seed in seeds:
        chance = random.Random(seed)
        (command,) = chance.choices(list(shares), list(shares.values()))
        check(command, lambda record, chance=chance: mutated(record, chance))


@pytest.mark.parametrize("part", range(8))
def test_commands_mutated_record_gives_no_traceback(check_command: Any, part: int) -> None:
    check_seeds(check_command, range(part, CASES, 8), SHARES)


@pytest.mark.faults
@pytest.mark.parametrize("part", range(20))
def test_commands_many_mutated_records_give_no_traceback(check_command: Any, part: int) -> None:
    check_seeds(check_command, range(CASES + part, MANY_CASES, 20), RARELY)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("sizes", "test_cut", None),
        ("environment", "machine", {"memory_bytes": [1]}),
        ("environment", "machine", {"cores": "two"}),
        ("environment", "commit", "abc"),
    ],
)
def test_commands_record_with_a_missing_or_wrong_field_gives_no_traceback(
    check_command: Any, part: str, name: str, value: Any, command: str
) -> None:
    def mutate(record: dict[str, Any]) -> tuple[dict[str, Any], str]:
        record[part].pop(name, None)
        return {**record, part: record[part] | ({name: value} if value else {})}, f"{part}.{name}={value}"

    check_command(command, mutate)


# Speed documents and experiment files ---------------------------------------------------------------------------------

EXPERIMENT: dict[str, Any] = {
    "suite": "quick",
    "seed": [0, 1],
    "updates": 20,
    "checkpoint-seconds": 5.5,
    "jobs": 1,
    "note": "a note",
    "set": {"training": {"epochs": 2, "peak_rate": 1e-3}, "data.training_pairs": 100},
    "variant": {"learned_positions": {}, "paper": {"recipe.layers": 1, "recipe": {"dropout": 0.25}}},
}
CORPUS = ["--corpus", "captions", "--tokenizer", "whitespace"]


def toml(value: Any) -> str:
    """Return a value as TOML; a dictionary as an inline table. None, which TOML lacks, is an empty text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps("" if value is None else value)


def check_speed_document(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Change a speed document, and let the commands that read it do so."""
    value = to_json(speed_factory.document())
    changed, edits = mutated(
        {"kind": speed_document.KIND, "schema": speed_document.SCHEMA, **value}, random.Random(seed)
    )
    path = Path("results", f"{speed_document.KIND}-2026.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**changed, files.SEAL: files.seal(changed)}), encoding="utf-8")
    check_words(["speed", "--from", str(path), "--reports", "reports"], edits, capsys)


def check_experiment_file(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Change an experiment file, in every second case letter by letter, and plan its runs."""
    chance = random.Random(seed)
    changed, edits = mutated(EXPERIMENT, chance)
    text = "\n".join(f"{json.dumps(name)} = {toml(value)}" for name, value in changed.items())
    for _ in range(chance.choice((0, chance.randint(1, 5)))):
        place = chance.randrange(len(text) + 1)
        text = text[:place] + chance.choice(("", *'=[]{}",.#\n\0\u202e9-e')) + text[place + chance.randint(0, 2) :]
    Path("experiment.toml").write_text(text, encoding="utf-8")
    words = ["bench", "--config", "experiment.toml", *CORPUS, "--dry-run", "--results", "results"]
    check_words(words, (edits, text), capsys)


@pytest.mark.usefixtures("valid")
@pytest.mark.parametrize("check", [check_speed_document, check_experiment_file])
@pytest.mark.parametrize(
    "seeds", [range(30), pytest.param(range(30, 1_000), marks=pytest.mark.faults)], ids=["few", "many"]
)
def test_commands_mutated_file_gives_no_traceback(
    check: Callable[..., None],
    seeds: range,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in seeds:
        check(seed, capsys)
