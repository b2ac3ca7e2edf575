"""Files of runs that are read once: what stays in memory, and what a damaged file raises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pages_factory
import pytest

from harness.cli import report_writing
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.storage.stored_files import StoredFiles


@pytest.fixture
def records(tmp_path: Path) -> list[RunRecord]:
    return pages_factory.folder(tmp_path, ("learned_positions", "paper"), seeds=1, count=20)


def count_reads(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Return the ids of the runs whose files a function of `run_store` will have read."""
    read, ids = getattr(run_store, name), []

    def counting(results: Path, run_id: str, *arguments: object, **options: object) -> object:
        ids.append(run_id)
        return read(results, run_id, *arguments, **options)

    monkeypatch.setattr(run_store, name, counting)
    return ids


def test_report_reads_translations_and_counts_of_each_run_once(
    records: list[RunRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {name: count_reads(monkeypatch, name) for name in ("load_hypotheses", "load_sentences")}
    report_writing.write(records, tmp_path, tmp_path / "page", failures=[], corpus_text=False)
    for ids in reads.values():
        assert sorted(ids) == sorted(record.id for record in records)


def test_another_digest_is_not_taken_for_the_file_that_was_read(records: list[RunRecord], tmp_path: Path) -> None:
    stored, record = StoredFiles(tmp_path), records[0]
    assert len(stored.hypotheses(record)) == 20
    other = replace(record, fingerprints={**record.fingerprints, "hypotheses": "0" * 64})
    with pytest.raises(ValueError, match="damaged"):
        stored.hypotheses(other)


def test_missing_files_are_empty_and_damaged_ones_are_named(records: list[RunRecord], tmp_path: Path) -> None:
    first, second = records
    (tmp_path / first.id / run_store.HYPOTHESES).unlink()
    (tmp_path / second.id / run_store.SENTENCES).write_bytes(b"damaged")
    stored = StoredFiles.of(tmp_path)
    assert StoredFiles.of(stored) is stored
    assert stored.hypotheses(first) == []
    with pytest.raises(ValueError, match=run_store.SENTENCES):
        stored.check(second)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"sentence":0,"text":"a","tokens":["a"],"tokens":["b"]}', "line 1 is not a translation"),
        ('{"sentence":-1,"text":"a","tokens":["a"]}', "sentence"),
        ('{"sentence":0,"text":"a","tokens":["a",1]}', "tokens"),
        ('{"sentence":0,"text":"\\ud800","tokens":["a"]}', "line 1 is not a translation"),
        ('{"sentence":0,"text":"a\x01","tokens":["a"]}', "line 1 is not a translation"),
        ('{"sentence":0,"text":"\\q","tokens":["a"]}', "not JSON"),
        ('{"sentence":0,"text":"","tokens":[]}\n{ "sentence":1,"text":"","tokens":[]}', "line 2 is not a translation"),
    ],
)
def test_translations_in_no_accepted_form_are_refused(
    lines: str, message: str, records: list[RunRecord], tmp_path: Path
) -> None:
    (tmp_path / records[0].id / run_store.HYPOTHESES).write_text(lines + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        run_store.load_hypotheses(tmp_path, records[0].id)
