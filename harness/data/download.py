"""Downloads with several addresses per file, in bounded time and memory."""

from __future__ import annotations

import contextlib
import queue
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from typing import Any

from harness.text import short_line

CONNECT_SECONDS = 3.0
SILENT_SECONDS = 9.0
"""An address that sends less than `PIECE_BYTES` in this time is abandoned."""
TOTAL_SECONDS = 180.0
"""The time limit of all files together."""
PIECE_BYTES = 8 << 10
LARGEST_DOWNLOAD_BYTES = 8 << 20
REDIRECTS = 5
RETRIED = (429, 500, 502, 503, 504)


def file_url(address: str, name: str) -> str:
    """Return the URL of a file below an address, with the query of the address."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{name}"))


def without_secrets(message: str, url: str) -> str:
    """Return an error message about a URL without the user, password and query of the URL."""
    parts = urllib.parse.urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    for secret in (user, parts.query, *user.split(":", 1)):
        for form in (secret, urllib.parse.unquote(secret)):
            message = message.replace(form, "...") if form else message
    return message


class NoAnswer(ValueError):
    """An address that is not worth another request."""


class CutShort(ValueError):
    """A file that ends early; another request may help."""


class Download:
    """Downloads files that several addresses offer.

    Args:
        addresses: URLs of folders with the same files, in the order in which they are tried.

    Attributes:
        reasons: By the host and port of an address, why its last file did not arrive.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.reasons: dict[str, str] = {}
        self._addresses = [file_url(address, "") for address in addresses]
        self._deadline = time.monotonic() + TOTAL_SECONDS
        self._session = _session()

    def file(self, name: str, check: Callable[[bytes], bytes]) -> bytes | None:
        """Return what `check` makes of the file from the first address that has it; None if there is none.

        `check` raises ValueError to reject a file. An address whose file ends early is tried again after the others.
        """
        addresses = list(self._addresses)
        for _ in range(2):
            cut_short = []
            for address in addresses:
                try:
                    return check(self._body(file_url(address, name)))
                except ValueError as error:
                    is_known = isinstance(error, CutShort | NoAnswer)
                    host = urllib.parse.urlsplit(address).netloc.rpartition("@")[2]
                    self.reasons[host] = str(error) if is_known else reason_of(error)
                    if isinstance(error, CutShort):
                        cut_short.append(address)
                    elif isinstance(error, NoAnswer):
                        self._addresses.remove(address)
            addresses = cut_short
        return None

    def _body(self, url: str) -> bytes:
        """Return the body of a response. Raises: NoAnswer if it takes too long.

        The transfer runs in a thread, because timeouts of sockets limit neither the DNS lookup nor a slow response.
        """
        pieces: queue.Queue[bytes | BaseException | None] = queue.Queue()
        abandoned, started, body, has_begun = threading.Event(), time.monotonic(), b"", False
        threading.Thread(target=_receive, args=(self._session, url, pieces, abandoned), daemon=True).start()
        try:
            while True:
                remaining = self._deadline - time.monotonic()
                piece = pieces.get(timeout=max(0.0, min(SILENT_SECONDS, remaining)))
                if piece is None:
                    return body
                if isinstance(piece, BaseException):
                    raise piece
                body, has_begun = body + piece, True
        except queue.Empty:
            abandoned.set()
            now = time.monotonic()
            if now >= self._deadline:
                raise NoAnswer(f"not all files downloaded after {TOTAL_SECONDS:g} seconds") from None
            seconds = f"{now - started:.0f} seconds"
            slow = f"too slow ({len(body)} bytes in {seconds})"
            raise NoAnswer(slow if has_begun else f"no answer in {seconds}") from None


def _receive(
    session: Any, url: str, pieces: queue.Queue[bytes | BaseException | None], abandoned: threading.Event
) -> None:
    """Put the pieces of a response into a queue: first b"" for its headers, at the end None or an exception."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "bakeoff"}
    timeout = CONNECT_SECONDS, SILENT_SECONDS + 1
    size = 0
    try:
        with session.get(url, stream=True, timeout=timeout, headers=headers) as response:
            if response.status_code != 200:
                kind = NoAnswer if response.status_code in RETRIED else ValueError
                raise kind(f"HTTP status {response.status_code}")
            pieces.put(b"")
            # Not decoded: some servers give gzip as the encoding of a file that is to stay compressed.
            for piece in response.raw.stream(PIECE_BYTES, decode_content=False):
                size += len(piece)
                if size > LARGEST_DOWNLOAD_BYTES:
                    raise ValueError(f"more than {LARGEST_DOWNLOAD_BYTES} bytes")
                pieces.put(piece)
                if abandoned.is_set():
                    return
        pieces.put(None)
    except BaseException as error:
        pieces.put(_plain(error, url))


def _plain(error: BaseException, url: str) -> BaseException:
    """Return an exception of a library as one of this module, without the secrets of the URL."""
    import requests
    import urllib3

    if isinstance(error, requests.ConnectionError):
        proxy = " to the proxy" if isinstance(error, requests.exceptions.ProxyError) else ""
        return NoAnswer(f"no connection{proxy} ({without_secrets(reason_of(error), url)})")
    if isinstance(error, urllib3.exceptions.HTTPError):
        return CutShort(f"broken off ({without_secrets(reason_of(error), url)})")
    if isinstance(error, requests.RequestException | OSError):
        return ValueError(without_secrets(reason_of(error), url))
    return error


def _session() -> Any:
    """Return a session that repeats requests to busy servers."""
    import requests
    from urllib3.util import Retry

    retry = Retry(
        total=2,
        connect=1,
        backoff_factor=0.3,
        status_forcelist=RETRIED,
        respect_retry_after_header=False,
        raise_on_status=False,
    )
    session = requests.Session()
    session.max_redirects = REDIRECTS
    for scheme in ("http://", "https://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=retry))
    return session


def reason_of(error: BaseException) -> str:
    """Return the innermost reason of an error as one line of at most 100 characters."""
    with contextlib.suppress(AttributeError, IndexError):
        while isinstance(inner := getattr(error, "reason", None) or error.args[-1], BaseException):
            error = inner
    text = " ".join(str(error).split()) or type(error).__name__
    system_error = re.search(r"\[Errno -?\d+\] ([^()\[\]]+)", text)
    return short_line(system_error[1] if system_error else re.split(r"[>)]: ", text)[-1], longest=100)
