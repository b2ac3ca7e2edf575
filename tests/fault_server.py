"""A web server on this machine that answers as badly as it is told, and a Multi30k of two lines a file."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.data import multi30k

TEXTS = {
    name: f"{name}: erste Zeile\u2028 mit Trenner \n{name}: zweite\u00a0Zeile\n".encode() for name in multi30k.DIGESTS
}
WANTED = ("train.de", "train.en", "val.de", "val.en", "test_2016_flickr.de", "test_2016_flickr.en")
DIGESTS = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request with the next of its path's answers; the last one serves again and again."""

    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        answers = self.server.answers.get(self.path, [status(404)])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        with contextlib.suppress(OSError):
            answer(self)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


Answer = Callable[[Handler], None]


class Server(http.server.ThreadingHTTPServer):
    """Path -> answers; everything else is 404. It remembers what was asked for."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.ended = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def address(self, folder: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{folder}/"

    def serve(self, folder: str, *answers: Callable[[bytes], Answer]) -> str:
        """Answer for all files under `folder` what these make of the compressed file; return its address."""
        for name, text in TEXTS.items():
            packed = gzip.compress(text, mtime=0)
            self.answers[f"/{folder}/{name}.gz"] = [make(packed) for make in answers or (whole,)]
        return self.address(folder)

    def handle_error(self, *_: object) -> None:
        """Say nothing."""

    def end(self) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


@contextlib.contextmanager
def running() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.end()


def install(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Let Multi30k be `TEXTS`, with an empty cache, no folder, and no server."""
    monkeypatch.setattr(multi30k, "DIGESTS", DIGESTS)
    monkeypatch.setenv("BAKEOFF_CACHE", str(cache))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("BAKEOFF_MULTI30K_URLS", closed_port())
    monkeypatch.delenv("MULTI30K_DIR", raising=False)


def closed_port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{one.getsockname()[1]}/none/"


# Answers --------------------------------------------------------------------------------------------------------------


def send(
    handler: Handler, body: bytes, *, code: int = 200, length: int | None = -1, headers: tuple[str, str] = ("", "")
) -> None:
    """Send an answer; `length` is what it says of its own size: -1 the truth, None nothing."""
    handler.send_response(code)
    if length is not None:
        handler.send_header("Content-Length", str(len(body) if length < 0 else length))
    if headers[0]:
        handler.send_header(*headers)
    handler.end_headers()
    handler.wfile.write(body)
    handler.close_connection = True


def whole(packed: bytes) -> Answer:
    return lambda handler: send(handler, packed)


def changed(change: Callable[[bytes], bytes]) -> Callable[[bytes], Answer]:
    return lambda packed: whole(change(packed))


def status(code: int, name: str = "", value: str = "") -> Answer:
    return lambda handler: send(handler, b"<h1>no</h1>", code=code, headers=(name, value))


def always(answer: Answer) -> Callable[[bytes], Answer]:
    return lambda _: answer


def half(packed: bytes) -> Answer:
    """Promise all of it and close the connection after half."""
    return lambda handler: send(handler, packed[: len(packed) // 2], length=len(packed))


def promising_less(packed: bytes) -> Answer:
    return lambda handler: send(handler, packed, length=len(packed) // 2)


def half_without_a_length(packed: bytes) -> Answer:
    return lambda handler: send(handler, packed[: len(packed) // 2], length=None)


def reset(packed: bytes, after: int = 0) -> Answer:
    def answer(handler: Handler) -> None:
        if after:
            send(handler, packed[:after], length=len(packed))
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()

    return answer


def stall(_: bytes) -> Answer:
    return lambda handler: bool(handler.server.ended.wait(30)) and None


def drip(packed: bytes, seconds: float = 0.1) -> Answer:
    """Send a byte of the file at a time."""

    def answer(handler: Handler) -> None:
        send(handler, b"", length=len(packed))
        _drop(handler, packed, seconds)

    return answer


def drip_of_headers(_: bytes) -> Answer:
    return lambda handler: _drop(handler, b"HTTP/1.1 200 OK\r\nX-Slow: " + bytes(500).replace(b"\0", b"a"), 0.1)


def _drop(handler: Handler, content: bytes, seconds: float) -> None:
    for place in range(len(content)):
        handler.wfile.write(content[place : place + 1])
        if handler.server.ended.wait(seconds):
            return


def bare(text: bytes) -> Answer:
    """Send bytes that need not be HTTP."""

    def answer(handler: Handler) -> None:
        handler.wfile.write(text)
        handler.close_connection = True

    return answer


def endless(_: bytes) -> Answer:
    def answer(handler: Handler) -> None:
        send(handler, b"", length=None)
        while not handler.server.ended.is_set():
            handler.wfile.write(bytes(1 << 16))

    return answer


def chunked(packed: bytes) -> Answer:
    return bare(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(packed), packed))
