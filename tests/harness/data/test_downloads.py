"""Downloads: for any fault of a server they end in bounded time, with the right file or a one-line error."""

from __future__ import annotations

import errno
import gzip
import importlib
import re
import socket
import sys
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import small_runs
from command_line import Refused
from fault_server import (
    MARGIN,
    WANTED,
    Answer,
    Server,
    always,
    assert_downloaded,
    bare,
    changed,
    chunked,
    closed_port,
    drip,
    drip_of_headers,
    endless,
    half,
    half_without_a_length,
    promising_less,
    reset,
    send,
    slow,
    stall,
    status,
    whole,
)
from places import ROOT

from harness.cli import data as data_command
from harness.cli.main import main
from harness.data import cache, corpora, download, multi30k
from harness.data.multi30k import DataUnavailable
from harness.experiments.specs import DataSpec
from harness.training import train
from impls.contract import Training

DATA_PAGE = ROOT / "docs" / "data.md"
SILENT = 1.0
TOTAL = 8.0
DATA = ["data", "--corpus", "multi30k"]


@pytest.fixture(autouse=True)
def _low_limits(small_multi30k: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "SILENT_SECONDS", SILENT)
    monkeypatch.setattr(download, "TOTAL_SECONDS", TOTAL)
    monkeypatch.setattr(download, "LARGEST_DOWNLOAD_BYTES", 50_000)
    monkeypatch.setattr(multi30k, "LARGEST_TEXT_BYTES", 100_000)


@dataclass(frozen=True)
class Fault:
    """The responses of a server, and the expected reason in the error, or "" if the right file is expected.

    `seconds` is how long an address with this fault may take to be given up.
    """

    answers: tuple[Callable[[bytes], Answer], ...]
    reason: str = ""
    seconds: float = 0.0


def html(_: bytes) -> bytes:
    return b"<!doctype html><title>Log in to this network</title>"


def flipped(packed: bytes) -> bytes:
    """Change a byte of the checksum at the end of the file."""
    return packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:]


def bomb(_: bytes) -> bytes:
    return gzip.compress(bytes(4 << 20))


def redirect(to: str) -> Callable[[bytes], Answer]:
    return always(status(302, "Location", to))


def redirect_to_itself(_: bytes) -> Answer:
    return lambda handler: send(handler, b"", code=302, headers=("Location", handler.path))


def later(code: int) -> Callable[[bytes], Answer]:
    return always(status(code, "Retry-After", "86400"))


BUSY = 1.5
"""Seconds of repeated requests to a busy server."""

FAULTS = {
    "wrong digest": Fault((changed(lambda _: gzip.compress(b"x\n")),), r"not the text of train\.de: .* begins 73cb385"),
    "body cut": Fault((half,), "broken off|cut short"),
    "body cut, no length": Fault((half_without_a_length,), "a gzip file that is cut short"),
    "length less than the body": Fault((promising_less,), "a gzip file that is cut short"),
    "empty body": Fault((changed(lambda _: b""),), "a gzip file that is cut short"),
    "HTML with status 200": Fault((changed(html),), "not a gzip file"),
    "a gzip file of HTML": Fault((changed(lambda _: gzip.compress(html(b""))),), "not the text of train"),
    "gzip with a wrong check sum": Fault((changed(flipped),), "a gzip file that is damaged"),
    "gzip with garbage in it": Fault((changed(lambda _: b"\x1f\x8b\x08\0" + bytes(40)),), "damaged|cut short"),
    "gzip bomb": Fault((changed(bomb),), "more than 100000 bytes of text"),
    "too large": Fault((changed(lambda _: bytes(60_000)),), "more than 50000 bytes"),
    "without end": Fault((endless,), "more than 50000 bytes"),
    "403": Fault((always(status(403)),), "HTTP status 403"),
    "404": Fault((always(status(404)),), "HTTP status 404"),
    "429, come back tomorrow": Fault((later(429),), "HTTP status 429", BUSY),
    "500": Fault((always(status(500)),), "HTTP status 500", BUSY),
    "503, come back tomorrow": Fault((later(503),), "HTTP status 503", BUSY),
    "204": Fault((always(status(204)),), "HTTP status 204"),
    "redirect loop": Fault((redirect_to_itself,), "Exceeded 5 redirects"),
    "redirect to a file": Fault((redirect("file:///etc/passwd"),), "No connection adapters .* 'file:///etc/passwd'"),
    "redirect to ftp": Fault((redirect("ftp://127.0.0.1/x"),), "No connection adapters"),
    "redirect to nowhere": Fault((redirect("http://[127"),), "."),
    "redirect to a closed port": Fault((redirect("http://127.0.0.1:9/"),), "no connection", BUSY),
    "stall": Fault((stall,), "no answer in 1 seconds", SILENT),
    "slow drip": Fault((drip,), r"too slow \(\d+ bytes in 1 seconds\)", SILENT),
    "slow drip of headers": Fault((drip_of_headers,), "no answer in 1 seconds", SILENT),
    "connection reset": Fault((reset,), "no connection", BUSY),
    "reset after 20 bytes": Fault((partial(reset, after=20),), "broken off"),
    "not HTTP": Fault((always(bare(b"SSH-2.0-OpenSSH_9.2\r\n")),), "no connection", BUSY),
    "a line of headers without end": Fault((always(bare(b"HTTP/1.1 200 OK\r\nX: " + b"a" * 99_999)),), ".", BUSY),
    "a chunk of no size": Fault(
        (always(bare(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")),), "broken"
    ),
    "escape sequences": Fault((redirect("file:///\x1b[31m\x07"),), r"'file:///[^\x1b\x07]*$"),
    "reset, then right": Fault((reset, whole)),
    "busy, then right": Fault((later(429), whole)),
    "cut, then right": Fault((half, whole)),
    "cut without a length, then right": Fault((half_without_a_length, whole)),
    "garbage after the end of gzip": Fault((changed(lambda packed: packed + b"garbage"),)),
    "in chunks": Fault((chunked,)),
    "gzip named as the encoding": Fault(
        (lambda packed: lambda handler: send(handler, packed, headers=("Content-Encoding", "gzip")),)
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_fetch_faulty_server_gives_the_file_or_a_reason_in_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server, capsys: Any
) -> None:
    fault = FAULTS[name]
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", server.serve("bad", *fault.answers))
    started = time.monotonic()
    if not fault.reason:
        assert_downloaded()
    else:
        assert main(DATA) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.count("\n") == 1
        host = urllib.parse.urlsplit(server.address("bad")).netloc
        match = re.search(
            rf"^bakeoff: train\.de could not be downloaded from {host}: "
            r"(?P<why>.*)\. Offline: set MULTI30K_DIR to a folder with the files of Multi30k$",
            output.err,
        )
        assert match
        assert re.search(fault.reason, match["why"])
        assert all(letter.isprintable() for letter in output.err.rstrip("\n"))
        file_names = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert file_names == [".multi30k.lock"], "nothing of it stays"
    assert time.monotonic() - started < fault.seconds + MARGIN


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if number % 4 == 0 else pytest.mark.faults)
        for number, name in enumerate(name for name in FAULTS if FAULTS[name].reason)
    ],
)
def test_fetch_second_address_replaces_a_failing_first(
    name: str, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    fault = FAULTS[name]
    bad = server.serve("bad", *fault.answers)
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", f"{bad}, {server.serve('good')}")
    started = time.monotonic()
    assert_downloaded()
    assert time.monotonic() - started < fault.seconds + MARGIN, "an address that takes its time is waited for once"


@pytest.mark.parametrize(
    ("fault", "reason", "seconds"),
    [
        (socket.gaierror(socket.EAI_NONAME, "No such name"), r"no connection \([^;]*No such name", BUSY),
        (lambda *_: time.sleep(30), "no answer in 1 seconds", SILENT),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable", BUSY),
        (None, r"no connection \([^;]*Connection refused", BUSY),
    ],
    ids=["no such name", "no resolver", "no route", "connection refused"],
)
def test_fetch_without_network_fails_soon(
    fault: Any, reason: str, seconds: float, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    address = closed_port()  # two calls may return one port, and a failing host is named once
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", f"{address} {address.replace('127.0.0.1', 'localhost')}")
    if fault is not None:
        monkeypatch.setattr(socket, "getaddrinfo", Mock(side_effect=fault))
    started = time.monotonic()
    error = refused(DATA, "Offline: set MULTI30K_DIR")
    assert time.monotonic() - started < 2 * seconds + MARGIN
    assert len(re.findall(reason, error)) == 2, error
    assert len(error) < 300, "short enough to be read"


def test_fetch_through_a_proxy_that_does_not_answer_names_the_proxy(
    monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv("https_proxy", closed_port())
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", "https://multi30k.example/")
    refused(DATA, "multi30k.example: no connection to the proxy (Connection refused). Offline")


def test_fetch_messages_contain_no_secrets(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    secret = closed_port().replace("http://", "http://somebody:s%20cret@").rstrip("/") + "/files?token=hidden"
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", secret)
    error = refused(DATA, urllib.parse.urlsplit(secret).netloc.rpartition("@")[2])
    assert [word for word in ("somebody", "cret", "token", "hidden") if word in error] == []


@pytest.mark.parametrize("address", ["http://[x", "http://somebody:secret@[x/files"])
def test_fetch_malformed_address_names_the_setting(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", address)
    with pytest.raises(DataUnavailable, match=r"^BAKEOFF_MULTI30K_URLS: .*; expected URLs of folders") as caught:
        corpora.load(DataSpec())
    assert "secret" not in str(caught.value)


def test_run_on_downloaded_text_stores_no_secrets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", server.serve("good").replace("//", "//somebody:pass8word@", 1))
    monkeypatch.setenv("SERVICE_TOKEN", "token8word")
    results, reports = tmp_path / "results", tmp_path / "reports"
    data, training = DataSpec(tokenizer="whitespace"), Training(batch_size=2, epochs=2)
    record = train.run(small_runs.spec(data=data, training=training), results)
    assert (record.status, len(server.asked)) == ("completed", len(WANTED))
    main(["report", "--results", str(results), "--reports", str(reports)])
    files = [path for folder in (results, reports) for path in folder.rglob("*") if path.is_file()]
    assert {"record.json", "index.html", "index.md"} <= {path.name for path in files}
    for secret in (b"somebody", b"pass8word", b"token8word"):
        assert [path for path in files if secret in path.read_bytes()] == []


def test_file_url_keeps_the_query_of_the_address() -> None:
    url = "https://user:pass@host:8443/a/b?token=x"
    assert download.file_url(url, "name.gz") == "https://user:pass@host:8443/a/b/name.gz?token=x"


def test_fetch_all_files_share_a_time_limit(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """A server that is fast enough for each file, but too slow for all, is abandoned too."""
    importlib.import_module("requests")  # or its first import counts
    monkeypatch.setattr(download, "TOTAL_SECONDS", 1.5)
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", f"{server.serve('slow', slow(0.6))} {server.serve('good', slow(0.6))}")
    started = time.monotonic()
    with pytest.raises(DataUnavailable, match=r"val\.de could not be .*: not all files downloaded after 1\.5 seconds"):
        corpora.load(DataSpec())
    assert time.monotonic() - started < 1.5 + MARGIN
    cached = sorted(path.name for path in (cache.folder() / "multi30k").iterdir())
    assert cached == ["train.de", "train.en"], "files that have arrived are kept for the next attempt"


def test_fetch_limits_are_as_documented(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.undo()
    assert (download.SILENT_SECONDS, download.TOTAL_SECONDS, download.PIECE_BYTES) == (9, 180, 8 * 1024)
    stated = "less than 8 KiB in 9 seconds", "180 seconds"
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    for text in (capsys.readouterr().out, str(data_command.__doc__), DATA_PAGE.read_text(encoding="utf-8")):
        assert all(words in " ".join(text.split()) for words in stated), text


def test_fetch_without_requests_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "requests", None)
    with pytest.raises(DataUnavailable, match=r"needs requests .*'\.\[data\].*Offline: set MULTI30K_DIR"):
        corpora.load(DataSpec())
