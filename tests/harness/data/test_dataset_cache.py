"""The cache of datasets: verified when read, written atomically, and with a key of all that determines the ids."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpora import same, small
from small_runs import DATA

from harness.data import cache, corpora, preprocess, tokenizer_process
from harness.data.dataset import prepare, unavailable
from harness.data.multi30k import DataUnavailable
from harness.experiments.serialization import canonical_json, json_digest
from harness.experiments.specs import DataSpec

WORDS = DataSpec(corpus="captions", tokenizer="whitespace")


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.usefixtures("one_process")
def test_prepare_again_tokenises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small(tmp_path)
    once = prepare(data)
    monkeypatch.setattr(tokenizer_process, "_request", None)
    assert same(prepare(data), once)
    shutil.copytree(tmp_path / "cache", tmp_path / "carried")
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path / "carried"))
    assert same(prepare(data), once)


@pytest.mark.usefixtures("one_process")
def test_prepare_test_set_of_another_corpus_is_refused_with_and_without_a_cache() -> None:
    other = replace(DATA, test_split="test_2017_flickr")
    with pytest.raises(ValueError, match="test_split='test_2017_flickr': the corpus 'captions' has one test set"):
        prepare(other)
    prepare(DATA)
    with pytest.raises(ValueError, match="test_split='test_2017_flickr': the corpus 'captions' has one test set"):
        prepare(other)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flip,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "empty": lambda path: path.write_bytes(b""),
    "missing": lambda path: path.unlink(),
    "nested without end": lambda path: path.write_bytes(b"[" * 200_000),
    "not an object": lambda path: path.write_bytes(b"[1]"),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a link": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.skipif(os.name != "posix", reason="pipes as POSIX has them")
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("kind", DAMAGES)
def test_prepare_repairs_damaged_and_hostile_cache_entries(kind: str, tmp_path: Path) -> None:
    data = small(tmp_path)
    once = prepare(data)
    entry = tmp_path / "cache/prepared" / once.key
    intact = {path.name: path.read_bytes() for path in entry.iterdir()}
    assert intact.keys() == {"contents.json", "ids.npz", "texts.json"}
    for name in intact:
        DAMAGES[kind](entry / name)
        assert cache.read_entry(entry) is None
        assert same(prepare(data), once)
        assert {path.name: path.read_bytes() for path in entry.iterdir()} == intact
    assert [path.name for path in entry.parent.iterdir()] == [once.key]


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/b", ".."])
def test_cache_entry_reads_and_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(ValueError, match="expected the name of a file, without folders"):
        cache.write_entry(tmp_path / "entry", {}, {name: b"another"})
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    body = {"description": {}, "files": {name: cache.digest(b"secret")}}
    sealed = canonical_json({**body, "digest": json_digest(body)})
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry/contents.json").write_text(sealed)
    assert cache.read_description(tmp_path / "entry") == {}
    assert cache.read_entry(tmp_path / "entry") is None


def test_cache_entry_that_is_removed_while_it_is_replaced_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, entry = cache.read_entry, tmp_path / "entry"

    def read_and_remove(path: Path) -> object:
        found = read(path)
        if found is None:
            path.rmdir()
        return found

    entry.mkdir()
    monkeypatch.setattr(cache, "read_entry", read_and_remove)
    cache.write_entry(entry, {"a": 1}, {"name": b"content"})
    assert read(entry) == ({"a": 1}, {"name": b"content"})


@pytest.mark.skipif(os.name != "posix", reason="permissions as POSIX has them")
def test_cache_entry_has_the_permissions_of_other_new_folders(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    cache.write_entry(tmp_path / "entry", {}, {"name": b"content"})
    assert (tmp_path / "entry").stat().st_mode == (tmp_path / "folder").stat().st_mode


def test_splits_of_compressed_arrays_are_refused() -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, train_source_ids=np.zeros(1 << 20, np.int32))
    with pytest.raises(ValueError, match=r"ids\.npz: expected arrays that are not compressed"):
        preprocess.splits_of(packed.getvalue(), {})


def test_key_depends_on_everything_that_determines_the_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    multi30k = DataSpec()

    def key(data: DataSpec) -> str:
        return json_digest(preprocess.identity(data, corpora.signature(data) or corpora.load(data).digests))

    values: dict[str, Any] = {"corpus": "captions", "direction": "en-de", "test_split": "test_2017_flickr"}
    values |= {"tokenizer": "moses", "case": "kept", "vocabulary": "joint", "minimum_frequency": 3}
    values |= {"max_length": 50, "training_pairs": 5}
    changed = {name: replace(multi30k, **{name: value}) for name, value in values.items()}
    changed["files"] = small(tmp_path)
    pieces = replace(multi30k, tokenizer="sentencepiece-bpe")
    merged = replace(multi30k, tokenizer="moses-bpe")
    changed |= {
        "merges": replace(merged, merges=900),
        "merged": merged,
        "vocabulary_size": replace(pieces, vocabulary_size=900),
        "seed": replace(pieces, seed=1),
        "pieces": pieces,
    }
    assert {field.name for field in fields(DataSpec)} <= set(changed)
    keys = {name: key(data) for name, data in changed.items()} | {"none": key(multi30k)}
    assert len(set(keys.values())) == len(keys)
    assert key(replace(multi30k, vocabulary_size=900, merges=900, seed=1)) == key(multi30k)
    assert key(replace(pieces, minimum_frequency=9, merges=900)) == key(pieces)
    assert key(replace(merged, minimum_frequency=9, vocabulary_size=900, seed=1)) == key(merged)
    assert key(replace(WORDS, seed=1)) != key(WORDS)
    assert key(small(tmp_path, test="a\tb\n")) != keys["files"]
    monkeypatch.setattr(preprocess.machine, "versions", lambda libraries: dict.fromkeys(libraries, "0.0.1"))
    assert key(multi30k) != keys["none"]


@pytest.mark.usefixtures("one_process")
def test_key_does_not_depend_on_paths(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    assert prepare(small(tmp_path)).key == prepare(small(tmp_path / "elsewhere")).key


@pytest.mark.usefixtures("one_process")
def test_prepare_cached_corpus_needs_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small(tmp_path)
    installed = {"sacremoses": "0.1"}

    monkeypatch.setattr(
        preprocess.machine,
        "versions",
        lambda libraries: {name: installed[name] for name in libraries if name in installed},
    )
    once = prepare(data)
    prepare(replace(data, minimum_frequency=1))
    process, missing = tokenizer_process._request, ValueError("sacremoses is not installed")

    def refuse(*_: object, **__: object) -> None:
        raise missing

    monkeypatch.setattr(tokenizer_process, "_request", refuse)
    installed.clear()
    assert same(prepare(data), once)
    with pytest.raises(ValueError, match="is not installed"):
        prepare(replace(data, case="kept"))
    installed["sacremoses"] = "0.2"
    monkeypatch.setattr(tokenizer_process, "_request", process)
    assert prepare(data).key != once.key
    installed.clear()
    monkeypatch.setattr(tokenizer_process, "_request", refuse)
    with pytest.raises(ValueError, match="is not installed"):
        prepare(data)


def test_prepare_cached_multi30k_needs_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MULTI30K_DIR", raising=False)
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", "http://127.0.0.1:9/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    data = DataSpec(tokenizer="whitespace")
    assert "127.0.0.1:9" in str(unavailable(data))
    with pytest.raises(DataUnavailable, match="127.0.0.1:9"):
        prepare(data)
    identity = preprocess.identity(data, corpora.signature(data) or {})
    captions = corpora.load(WORDS)
    description, files = preprocess.preprocess(data, captions, identity)
    cache.write_entry(cache.folder() / "prepared" / json_digest(identity), description, files)
    assert unavailable(data) is None
    assert len(prepare(data).train) == len(captions.splits["train"][0])
    assert unavailable(WORDS) is None


def test_prepare_in_concurrent_processes_agrees(tmp_path: Path) -> None:
    small(tmp_path)
    code = (
        "import sys\nfrom harness.data.dataset import prepare\n"
        "from harness.experiments.specs import DataSpec, FileSpec\n"
        "names = FileSpec(**{f'{n}_source': f'{sys.argv[1]}/{n}.tsv' for n in ('train', 'validation', 'test')})\n"
        "print(prepare(DataSpec(corpus='files', files=names, tokenizer='whitespace')).digests['tokenised'])\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(set(answers)) == 1
    assert len(list((tmp_path / "cache/prepared").iterdir())) == 1
