"""Files from the network: from the first address that has the right one, in bounded time and memory."""

from __future__ import annotations

import contextlib
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

CONNECT_SECONDS = 3.0
SILENT_SECONDS = 9.0
"""An address that sends less than `PIECE_BYTES` in this time is given up."""
TOTAL_SECONDS = 180.0
"""All files together may take no longer."""
PIECE_BYTES = 8 << 10
LARGEST_DOWNLOAD_BYTES = 8 << 20
REDIRECTS = 5
RETRIED = (429, 500, 502, 503, 504)


def public_url(url: str) -> str:
    """Return a URL without user, password, query and fragment, which may be secrets."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


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
    """An address that need not be asked for another file."""


class CutShort(ValueError):
    """A file of which only the beginning came: asking again may help."""


class Download:
    """Files from several addresses, of which each is as good as another.

    `reasons`: public URL of an address -> why the last file that was requested from it did not arrive.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.reasons: dict[str, str] = {}
        self._addresses = list(addresses)
        self._deadline = time.monotonic() + TOTAL_SECONDS
        self._session = _session()

    @property
    def possible(self) -> bool:
        """Whether the library that downloads is installed."""
        return self._session is not None

    def file(self, name: str, check: Callable[[bytes], bytes]) -> bytes | None:
        """Return what `check` makes of a file from the first address that has it, or None.

        An address whose file is cut short is asked once more, after the others. `check` raises ValueError for what is
        not the file.
        """
        asked = list(self._addresses) if self.possible else []
        for _ in range(2):
            cut_short = []
            for address in asked:
                try:
                    return check(self._body(file_url(address, name)))
                except CutShort as error:
                    cut_short.append(address)
                    self.reasons[public_url(address)] = str(error)
                except NoAnswer as error:
                    self._addresses.remove(address)
                    self.reasons[public_url(address)] = str(error)
                except ValueError as error:
                    self.reasons[public_url(address)] = one_line(error)
            asked = cut_short
        return None

    def _body(self, url: str) -> bytes:
        """Return what a URL answers.

        The transfer is a thread of its own, because no time-out of a socket bounds the search for an address or an
        answer that comes in drops. One that is given up ends with its next piece, or with the process.
        """
        transfer = Transfer(self._session, url)
        started = time.monotonic()
        threading.Thread(target=transfer.run, daemon=True).start()
        while not transfer.done.wait(0.05):
            now = time.monotonic()
            if now > self._deadline:
                transfer.given_up = True
                raise NoAnswer(f"not all here after {TOTAL_SECONDS:g} seconds")
            if now - transfer.heard > SILENT_SECONDS:
                transfer.given_up = True
                seconds = f"{now - started:.0f} seconds"
                slow = f"too slow ({transfer.size} bytes in {seconds})"
                raise NoAnswer(slow if transfer.begun else f"no answer in {seconds}")
        if transfer.error is not None:
            raise transfer.error
        return b"".join(transfer.pieces)


@dataclass
class Transfer:
    """One request, and what has come of it so far."""

    session: Any
    url: str
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    begun: bool = False
    heard: float = field(default_factory=time.monotonic)
    given_up: bool = False
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Ask and listen, until the end or until nobody waits for it."""
        try:
            self._receive()
        except BaseException as error:
            self.error = _plain(error, self.url)
        self.done.set()

    def _receive(self) -> None:
        headers = {"Accept-Encoding": "identity", "User-Agent": "bakeoff"}
        timeout = CONNECT_SECONDS, SILENT_SECONDS + 1
        with self.session.get(self.url, stream=True, timeout=timeout, headers=headers) as answer:
            self.heard = time.monotonic()
            if answer.status_code != 200:
                kind = NoAnswer if answer.status_code in RETRIED else ValueError
                raise kind(f"HTTP status {answer.status_code}")
            self.begun = True
            # As sent: some servers name gzip as the encoding of a file that is meant to stay packed.
            for piece in answer.raw.stream(PIECE_BYTES, decode_content=False):
                self.heard = time.monotonic()
                self.size += len(piece)
                if self.size > LARGEST_DOWNLOAD_BYTES:
                    raise ValueError(f"more than {LARGEST_DOWNLOAD_BYTES} bytes")
                self.pieces.append(piece)
                if self.given_up:
                    return


def _plain(error: BaseException, url: str) -> BaseException:
    """Return the exception of this module for one of a library, without the secrets of the URL."""
    import requests
    import urllib3

    if isinstance(error, requests.ConnectionError):
        return NoAnswer(f"no connection ({without_secrets(one_line(error), url)})")
    if isinstance(error, urllib3.exceptions.HTTPError):
        return CutShort(f"broken off ({without_secrets(one_line(error), url)})")
    if isinstance(error, requests.RequestException | OSError):
        return ValueError(without_secrets(one_line(error), url))
    return error


def _session() -> Any:
    """Return what asks, and asks again where a server is busy; None where the library is missing."""
    try:
        import requests
        from urllib3.util import Retry
    except ImportError:
        return None
    again = Retry(
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
        session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=again))
    return session


def one_line(error: BaseException) -> str:
    """Return the innermost reason of an error, on one line of at most 100 letters that a terminal only shows."""
    with contextlib.suppress(AttributeError, IndexError):
        while isinstance(inner := getattr(error, "reason", None) or error.args[0], BaseException):
            error = inner
    text = " ".join(str(error).split()) or type(error).__name__
    last = "".join(letter if letter.isprintable() else "?" for letter in re.split(r"[>)]: ", text)[-1])
    return last if len(last) <= 100 else last[:97] + "..."
