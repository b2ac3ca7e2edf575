"""Corpora: the user's files, the captions, and Multi30k from a folder, the cache or a server."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
from fault_server import TEXTS, WANTED, Server
from small_corpora import corpus

from harness.data import cache, corpora, multi30k
from harness.data.dataset import unavailable
from harness.data.multi30k import DataUnavailable
from harness.experiments.specs import DataSpec

pytestmark = pytest.mark.usefixtures("small_multi30k")


def test_load_two_files_and_a_tsv_have_the_same_pairs(tmp_path: Path) -> None:
    data = corpus(tmp_path, b"ein\nzwei\n", b"eins\ntwo\n")
    loaded = corpora.load(data)
    assert loaded.splits["train"] == loaded.splits["val"] == loaded.splits["test"] == (("ein", "zwei"), ("eins", "two"))
    assert sorted(loaded.digests) == ["test_source", "train_source", "train_target", "validation_source"]
    assert loaded.digests["train_source"] == hashlib.sha256(b"ein\nzwei\n").hexdigest()


def test_load_missing_file_is_named(tmp_path: Path) -> None:
    data = corpus(tmp_path)
    (tmp_path / "test_source").unlink()
    with pytest.raises(ValueError, match=r"test_source: cannot be read \(No such file or directory\); expected"):
        corpora.load(data)


def test_load_captions_in_both_directions_are_the_same_pairs() -> None:
    german, english = (corpora.load(DataSpec(corpus="captions", direction=way)) for way in ("de-en", "en-de"))
    assert german.digests == english.digests
    for split in corpora.SPLITS:
        assert german.splits[split] == english.splits[split][::-1]
        assert len(german.splits[split][0]) == len(german.splits[split][1]) > 0
    assert corpora.load(DataSpec(corpus="captions", seed=1)).digests != german.digests


def test_load_captions_in_french_are_refused() -> None:
    with pytest.raises(ValueError, match="direction='en-fr': expected de-en, en-de with corpus='captions'"):
        corpora.load(DataSpec(corpus="captions", direction="en-fr"))


def check(loaded: corpora.Corpus) -> None:
    assert loaded.splits["val"][0] == ("val.de: erste Zeile\u2028 mit Trenner", "val.de: zweite\u00a0Zeile")
    assert loaded.splits["test"][1][1] == "test_2016_flickr.en: zweite\u00a0Zeile"
    assert loaded.digests == {name: hashlib.sha256(TEXTS[name]).hexdigest() for name in WANTED}


@pytest.mark.parametrize("packed", ["plain", "gzip"])
def test_load_multi30k_folder_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in WANTED:
        if packed == "plain":
            (folder / name).write_bytes(TEXTS[name])
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(TEXTS[name]))
    monkeypatch.setenv("MULTI30K_DIR", str(folder))
    check(corpora.load(DataSpec()))
    assert not (tmp_path / "cache").exists()


def test_load_multi30k_missing_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(DataUnavailable, match="nowhere: there is no such folder"):
        corpora.load(DataSpec())


def test_load_multi30k_files_missing_in_the_folder_are_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, good_server: Server
) -> None:
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    (tmp_path / "train.de").write_bytes(TEXTS["train.de"])
    check(corpora.load(DataSpec()))
    assert sorted(good_server.asked) == sorted(f"/good/{name}.gz" for name in WANTED if name != "train.de")
    check(corpora.load(DataSpec()))
    assert len(good_server.asked) == 5, "the second time, the cache serves"
    assert sorted(path.name for path in (tmp_path / "cache/multi30k").iterdir()) == sorted(set(WANTED) - {"train.de"})


def test_load_multi30k_damaged_file_in_the_cache_is_downloaded_again(tmp_path: Path, good_server: Server) -> None:
    corpora.load(DataSpec())
    damaged = tmp_path / "cache/multi30k/val.de"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    good_server.asked.clear()
    check(corpora.load(DataSpec()))
    assert good_server.asked == ["/good/val.de.gz"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"direction": "de-fr"}, "direction='de-fr': expected de-en, en-de, en-fr, fr-en with corpus='multi30k'"),
        ({"test_split": "test_2018"}, "test_split='test_2018': expected test_2016_flickr, test_2017_flickr"),
    ],
)
def test_load_unknown_direction_or_test_split_is_refused(settings: dict[str, str], message: str) -> None:
    for call in (corpora.load, unavailable):
        with pytest.raises(ValueError, match=message) as caught:
            call(DataSpec(**settings))
        assert not isinstance(caught.value, DataUnavailable)


def test_load_every_direction_and_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text)
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))
    for direction in multi30k.DIRECTIONS:
        for test_split in multi30k.TEST_SPLITS:
            corpus = corpora.load(DataSpec(direction=direction, test_split=test_split))
            source, target = direction.split("-")
            assert corpus.splits["test"][0][1] == f"{test_split}.{source}: zweite\u00a0Zeile"
            assert corpus.splits["train"][1][1] == f"train.{target}: zweite\u00a0Zeile"


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"BAKEOFF_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/bakeoff"),
        ({"XDG_CACHE_HOME": "relative"}, "/home/someone/.cache/bakeoff"),
        ({}, "/home/someone/.cache/bakeoff"),
    ],
)
def test_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    for name in ("BAKEOFF_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == Path(folder)


def test_cache_folder_of_an_unknown_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE", "~nobody-of-that-name/cache")
    with pytest.raises(ValueError, match="the cache folder ~nobody-of-that-name/cache: .*: name another one in BAKEOF"):
        cache.folder()
