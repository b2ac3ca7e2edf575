"""Unusual text is tokenised, trained on and reported; damaged files of Multi30k are refused."""

from __future__ import annotations

import errno
import gzip
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from command_line import Refused
from fault_server import TEXTS, WANTED
from record_factory import record as made_up
from small_corpora import GOOD, corpus, file_options
from small_runs import spec

from harness.cli.main import main
from harness.data import corpora, tokenizer_process
from harness.data.dataset import describe, prepare, remark
from harness.data.tokenizer_process import TokenizerJob
from harness.data.tokenizers import tokenizer, train_sentencepiece
from harness.experiments.specs import DataSpec
from harness.reporting import provenance
from harness.storage import files
from harness.training import train as training
from impls.contract import SPECIAL_TOKENS

pytestmark = pytest.mark.usefixtures("own_cache")


ODD = [
    "a\u2028b \u2585 c\u0085d",
    "\ufeffx \u200b",
    "\ra\rb",
    "a\x0cb\x0bc\x1cd",
    "👩\u200d👩\u200d👧 \U0001f600",
    "שלום עולם مرحبا",
    "e\u0301 é A\u030a",
    "<eos> <pad> <unk> </s> <s> <sos>",
    "\ue000\uf8ff \ufffd \ufffe \uffff \U0010ffff",
    "\u202e rtl \u202c",
    "İ ǅ ß ŉ ﬁ",
    "&amp; &#39; &lt; &#x0;",
    "@-@ @,@ %% {} %s",
    "a\u3000b\u00a0c",
    "DOTDOTMULTI . .. ...... THISISPROTECTED000",
    "x" * 1000,
    "\x7f\u0080\u009f",
]
LONG = " ".join(f"wort{number}" for number in range(10_000))
CONTROL = "\x01\x02"


@pytest.fixture(scope="module")
def cut() -> dict[str, list[list[str]]]:
    """Return the tokens of all unusual texts by tokenizer, from one process."""
    names = ("spacy", "moses", "whitespace")
    jobs = [TokenizerJob(tokenizer=name, language="de", case="lower", texts=[*ODD, LONG, CONTROL]) for name in names]
    return dict(zip(names, tokenizer_process.tokenise(jobs), strict=True))


@pytest.mark.parametrize("name", ["spacy", "moses", "whitespace"])
def test_tokens_contain_every_letter(cut: dict[str, list[list[str]]], name: str) -> None:
    for text, tokens in zip(ODD, cut[name], strict=False):
        assert "".join("".join(tokens).split()) == "".join(text.lower().split()), text
        assert "" not in tokens
    assert len(cut[name][-2]) == 10_000
    assert cut[name][-1] == ([] if name == "moses" else [CONTROL]), "Moses drops control characters"


@pytest.mark.parametrize("name", ["sentencepiece-bpe", "sentencepiece-unigram"])
def test_sentencepiece_pieces_contain_every_letter(name: str) -> None:
    lines = [*ODD, LONG, CONTROL]
    size = {"sentencepiece-bpe": 220, "sentencepiece-unigram": 97}[name]
    model = train_sentencepiece(name, lines * 3, vocabulary_size=size, case="lower", seed=0)
    tool = tokenizer(name, "de", model=model)
    for text in lines:
        tokens = tool.tokenise(text)
        assert not set(tokens) & set(SPECIAL_TOKENS)
        assert "".join(tool.detokenise(tokens).split()) == "".join(text.lower().split()), ascii(text)


@pytest.mark.usefixtures("one_process")
def test_prepare_line_of_ten_thousand_words_is_left_out_or_cut(tmp_path: Path) -> None:
    long = f"{LONG}\t{LONG}\n".encode()
    data = corpus(tmp_path, GOOD + long, contents={"validation_source": GOOD + long, "test_source": GOOD + long})
    started = time.monotonic()
    prepared = prepare(data)
    assert time.monotonic() - started < 20
    assert (len(prepared.train), prepared.train.left_out) == (2, 1)
    assert (prepared.validation.cut, prepared.test.cut) == (2, 2)
    assert max(map(len, (*prepared.test.source, *prepared.test.target))) == data.max_length == 100
    assert prepared.figures["test_source_length_100"] == 10_002
    message = "longer than max_length=100: 1 training pair left out, 4 validation and test sentences cut"
    assert message in remark(data, prepared.figures)


@pytest.mark.parametrize("kind", ["only unknown words", pytest.param("odd", marks=pytest.mark.faults)])
def test_run_on_unusual_text_completes(kind: str, tmp_path: Path) -> None:
    """A run completes even with empty sentences and with a vocabulary of special words only."""
    rows = [f"{text}\t{text}" for text in [*(text for text in ODD if "\t" not in text), CONTROL]]
    rows += [f"{LONG}\tlang"]
    content = "".join(f"{row}\n" for row in rows).encode()
    settings: dict[str, Any] = {"minimum_frequency": 99} if kind == "only unknown words" else {"tokenizer": "moses"}
    contents = {"validation_source": content, "test_source": content}
    data = corpus(tmp_path, content, contents=contents, **settings)
    record = training.run(spec(data=data, updates=2), tmp_path / "results")
    assert (record.status, record.reason) == ("completed", "")
    assert record.sizes["train_left_out"] == 1
    assert record.sizes["test_pairs_in_train"] == len(rows)
    if kind == "only unknown words":
        assert record.sizes["source_words"] == len(SPECIAL_TOKENS)
        assert record.sizes["test_target_unknown_rate"] == 1


@pytest.mark.usefixtures("one_process")
def test_repetitions_are_reported(tmp_path: Path, capsys: Any) -> None:
    train = b"ein\ta\nein\ta\n ein \ta\r\nein\tb\nzwei\tb\ndrei\tc\n"
    test = b"ein\ta\nein\ta\nEin\ta\nzwei\tb \nvier\td\n"
    data = corpus(tmp_path, train, contents={"test_source": test})
    prepared = prepare(data)
    assert prepared.figures["train_duplicate_pairs"] == 2
    assert prepared.figures["test_pairs_in_train"] == 3
    line = "Data: files, de-en: 6 training pairs, 2 of them repeat another; 3 of 5 test pairs are in training too."
    assert remark(data, prepared.figures) == line
    page = describe(prepared)
    assert "test pairs               1 of them repeat another" in page, "Ein and vier have the ids of ein and zwei"
    assert re.search(r"^training pairs +2 of them repeat another$", page, re.MULTILINE)
    assert re.search(r"^test pairs in training +3$", page, re.MULTILINE)
    record = replace(made_up(), sizes=prepared.figures)
    provenance_text = " ".join(provenance.measured([record]))
    assert "2 training pairs that repeat another, 3 test pairs that are in training too" in provenance_text
    assert main(["data", *file_options(data)]) == 0
    assert "3" in capsys.readouterr().out.partition("test pairs in training")[2].split("\n")[0]


@pytest.mark.parametrize("command", ["run", "bench --seed=0 --variant"])
def test_commands_report_repetitions_in_a_line(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.execution.local.execute", Mock(side_effect=ValueError("stopped by the test")))
    data = corpus(tmp_path, b"ein satz\ta line\n" * 2 + GOOD * 4, contents={"test_source": GOOD})
    main([*command.split(), "counting_model:build", "--updates=1", "--threads=1", *file_options(data)])
    message = "10 training pairs, 7 of them repeat another; 2 of 2 test pairs are in training too."
    assert capsys.readouterr().out.count(message) == 1


SPOILT: dict[str, tuple[str, bytes, str]] = {
    "CR LF": ("val.de", TEXTS["val.de"].replace(b"\n", b"\r\n"), "not the text of val.de: its SHA-256 begins "),
    "pointer instead of the file": ("val.de.gz", b"version https://git-lfs.github.com/spec/v1\n", "not a gzip file"),
    "gzip cut": ("val.de.gz", gzip.compress(TEXTS["val.de"])[:-9], "a gzip file that is cut short"),
    "plain but huge": ("val.de", bytes((32 << 20) + 1), "33,554,433 bytes: expected at most 33,554,432"),
}


@pytest.mark.usefixtures("small_multi30k")
@pytest.mark.parametrize("kind", SPOILT)
def test_load_multi30k_damaged_file_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    folder = tmp_path / "multi30k"
    folder.mkdir()
    for name in WANTED:
        (folder / name).write_bytes(TEXTS[name])
    name, content, message = SPOILT[kind]
    (folder / "val.de").unlink()
    (folder / name).write_bytes(content)
    monkeypatch.setenv("MULTI30K_DIR", str(folder))
    error = refused(["data"], f"bakeoff: {folder / name}: ")
    assert message in error


@pytest.mark.usefixtures("small_multi30k")
def test_load_multi30k_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.de").write_bytes(TEXTS["train.de"])
    monkeypatch.setenv("MULTI30K_DIR", str(tmp_path))

    def refuse(*_: object, **__: object) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(files, "read_bytes", refuse)
    with pytest.raises(ValueError, match=rf"^{tmp_path}/train\.de: cannot be used \(Permission denied\); replace it"):
        corpora.load(DataSpec())
