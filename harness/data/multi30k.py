"""The files of Multi30k: found in a folder or the cache, or downloaded, and always checked against their digests."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.data import cache

COMMIT = "a3d2e0d26b56f3846f66a952536ffed4e401d05a"
ADDRESSES = (
    f"https://raw.githubusercontent.com/multi30k/dataset/{COMMIT}/data/task1/raw/",
    f"https://cdn.jsdelivr.net/gh/multi30k/dataset@{COMMIT}/data/task1/raw/",
)
DIRECTIONS = ("de-en", "en-de", "en-fr", "fr-en")
TEST_SPLITS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
DIGESTS = {
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "test_2017_flickr.de": "c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081",
    "test_2017_flickr.en": "ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98",
    "test_2017_flickr.fr": "6f3764e31dac41e9455e612958bcfd4e877c5e15cd66df2c2b2be6d9bd83e5b6",
    "test_2017_mscoco.de": "58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22",
    "test_2017_mscoco.en": "43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2",
    "test_2017_mscoco.fr": "39cde3f43f32b0a6bf29ce4917a46329ff32e53070c2fac87506695a740ae0a0",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
}

CONNECT_SECONDS = 3.0
READ_SECONDS = 8.0
SILENT_SECONDS = 18.0
TOTAL_SECONDS = 180.0
LARGEST_DOWNLOAD_BYTES = 8 << 20
LARGEST_TEXT_BYTES = 32 << 20
OFFLINE = "put the files (NAME or NAME.gz) into a folder and name that folder in MULTI30K_DIR"


class DataUnavailable(ValueError):
    """A corpus cannot be had; the message is one line that says what, where, why, and what to do offline."""


def names(direction: str, test_split: str) -> dict[str, tuple[str, str]]:
    """Return the names of the source and the target file of "train", "val" and "test".

    Raises: ValueError naming the directions or the test splits there are.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction={direction!r}: allowed with corpus='multi30k' is {', '.join(DIRECTIONS)}")
    if test_split not in TEST_SPLITS:
        raise ValueError(f"test_split={test_split!r}: allowed is {', '.join(TEST_SPLITS)}")
    source, target = direction.split("-")
    splits = {"train": "train", "val": "val", "test": test_split}
    return {split: (f"{stem}.{source}", f"{stem}.{target}") for split, stem in splits.items()}


def texts(wanted: Sequence[str]) -> dict[str, bytes]:
    """Return the uncompressed bytes of the files of these names, each with the digest in `DIGESTS`.

    Looked for in the folder that MULTI30K_DIR names, then in the cache, then downloaded into the cache.

    Raises: DataUnavailable; ValueError where a file in MULTI30K_DIR is not the right one.
    """
    found = _at_hand(wanted)
    missing = [name for name in wanted if not found[name]]
    if missing:
        found.update(_download(missing))
    return found


def absent(wanted: Sequence[str]) -> list[str]:
    """Return the names of the files that `texts` would download. Raises: as `texts`."""
    return [name for name, content in _at_hand(wanted).items() if not content]


def _at_hand(wanted: Sequence[str]) -> dict[str, bytes]:
    """Return the files from the folder that MULTI30K_DIR names, or from the cache; nothing for those in neither."""
    found: dict[str, bytes] = {}
    for name in wanted:
        content = _from_folder(name)
        found[name] = _from_cache(name) if content is None else content
    return found


def _from_folder(name: str) -> bytes | None:
    chosen = os.environ.get("MULTI30K_DIR")
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataUnavailable(f"MULTI30K_DIR={chosen}: there is no such folder; {OFFLINE}, or unset it")
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            try:
                content = path.read_bytes()
                content = _unpacked(content) if path.suffix == ".gz" else content
            except (OSError, ValueError) as error:
                raise ValueError(f"{path}: cannot be read ({_short(error)}); {OFFLINE}") from error
            found = cache.digest(content)
            if found != DIGESTS[name]:
                raise ValueError(
                    f"{path}: the SHA-256 of its text begins {found[:12]}, that of Multi30k's {name} "
                    f"{DIGESTS[name][:12]}: it is another file; replace it or remove it"
                )
            return content
    return None


def _from_cache(name: str) -> bytes:
    """Return the file's bytes, or nothing where it is missing or damaged."""
    try:
        content = (cache.folder() / "multi30k" / name).read_bytes()
    except OSError:
        return b""
    return content if cache.digest(content) == DIGESTS[name] else b""


# Downloading ----------------------------------------------------------------------------------------------------------


@dataclass
class _Download:
    """What the thread that downloads tells the one that waits for it."""

    found: dict[str, bytes] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    last_byte: float = field(default_factory=time.monotonic)
    error: BaseException | None = None


def _addresses() -> tuple[str, ...]:
    chosen = os.environ.get("BAKEOFF_MULTI30K_URLS", "").replace(",", " ").split()
    return tuple(one.rstrip("/") + "/" for one in chosen) or ADDRESSES


def _download(missing: Sequence[str]) -> dict[str, bytes]:
    """Return the missing files, which are in the cache then.

    The transfer is a thread of its own, because no time-out of a socket bounds the search for an address: it is given
    up after 18 seconds in which nothing has arrived, and after 180 seconds in any case.
    """
    addresses = _addresses()
    state = _Download()
    thread = threading.Thread(target=_transfer, args=(missing, addresses, state), daemon=True)
    started = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        now = time.monotonic()
        if now - state.last_byte > SILENT_SECONDS or now - started > TOTAL_SECONDS:
            break
    if state.error is not None:
        raise state.error
    lacking = [name for name in missing if name not in state.found]
    if lacking:
        waited = f"no answer in {time.monotonic() - started:.0f} seconds"
        reasons = "; ".join(f"{address}: {state.reasons.get(address, waited)}" for address in addresses)
        looked = "neither in MULTI30K_DIR nor" if os.environ.get("MULTI30K_DIR") else "not"
        raise DataUnavailable(
            f"Multi30k: {lacking[0]} is {looked} in the cache and cannot be had from {reasons}. Offline: {OFFLINE}"
        )
    return state.found


def _transfer(missing: Sequence[str], addresses: Sequence[str], state: _Download) -> None:
    try:
        session = _session()
        for name in missing:
            content = _first_good(session, name, addresses, state)
            if content is None:
                return
            cache.write_file(cache.folder() / "multi30k" / name, content)
            state.found[name] = content
    except BaseException as error:
        state.error = error


def _first_good(session: Any, name: str, addresses: Sequence[str], state: _Download) -> bytes | None:
    """Return the file from the first address that has it; remember why the others have not."""
    import requests

    for address in addresses:
        if state.reasons.get(address, "").startswith("no connection"):
            continue
        try:
            content = _unpacked(_fetch(session, f"{address}{name}.gz", state))
        except requests.ConnectionError as error:
            state.reasons[address] = f"no connection ({_short(error)})"
            continue
        except (requests.RequestException, OSError, ValueError) as error:
            state.reasons[address] = _short(error)
            continue
        found = cache.digest(content)
        if found == DIGESTS[name]:
            return content
        state.reasons[address] = f"{name} is another text (SHA-256 {found[:12]}, not {DIGESTS[name][:12]})"
    return None


def _session() -> Any:
    try:
        import requests
        from urllib3.util import Retry
    except ImportError as error:
        raise DataUnavailable(
            "Multi30k: downloading needs requests: python -m pip install 'bakeoff[data]'. Offline: " + OFFLINE
        ) from error
    again = Retry(
        total=2,
        connect=1,
        backoff_factor=0.3,
        status_forcelist=(429, 500, 502, 503, 504),
        respect_retry_after_header=False,
        raise_on_status=False,
    )
    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, requests.adapters.HTTPAdapter(max_retries=again))
    return session


def _fetch(session: Any, address: str, state: _Download) -> bytes:
    headers = {"Accept-Encoding": "identity", "User-Agent": "bakeoff"}
    pieces: list[bytes] = []
    with session.get(address, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS), headers=headers) as answer:
        state.last_byte = time.monotonic()
        if answer.status_code != 200:
            raise ValueError(f"HTTP status {answer.status_code}")
        size = 0
        for piece in answer.iter_content(1 << 16):
            state.last_byte = time.monotonic()
            size += len(piece)
            if size > LARGEST_DOWNLOAD_BYTES:
                raise ValueError(f"more than {LARGEST_DOWNLOAD_BYTES} bytes")
            pieces.append(piece)
    return b"".join(pieces)


def _unpacked(content: bytes) -> bytes:
    """Return the text inside a gzip file. Raises: ValueError where it is none, is cut short or is too large."""
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(content, LARGEST_TEXT_BYTES + 1)
    except zlib.error as error:
        raise ValueError("not a gzip file") from error
    if len(text) > LARGEST_TEXT_BYTES:
        raise ValueError(f"more than {LARGEST_TEXT_BYTES} bytes of text")
    if not unpacker.eof:
        raise ValueError("a gzip file that is cut short")
    return text


def _short(error: BaseException) -> str:
    """Return the innermost reason of an error, on one line of at most 100 characters."""
    with contextlib.suppress(AttributeError, IndexError):
        while isinstance(inner := getattr(error, "reason", None) or error.args[0], BaseException):
            error = inner
    text = " ".join(str(error).split()) or type(error).__name__
    last = re.split(r"[>)]: ", text)[-1]
    return last if len(last) <= 100 else last[:97] + "..."
