"""The files of Multi30k: read from a folder or the cache, or downloaded, and checked against their digests."""

from __future__ import annotations

import importlib.util
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from harness.data import cache
from harness.data import download as downloading
from harness.storage import files

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

LARGEST_TEXT_BYTES = 32 << 20
GZIP = b"\x1f\x8b"
OFFLINE = "set MULTI30K_DIR to a folder with the files of Multi30k"


class DataUnavailable(ValueError):
    """A corpus is not available. The message is one line with the reason and what to do offline."""


def names(direction: str, test_split: str) -> dict[str, tuple[str, str]]:
    """Return the names of the source and the target file of "train", "val" and "test".

    Raises: ValueError for an unknown direction or test split.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction={direction!r}: expected {', '.join(DIRECTIONS)} with corpus='multi30k'")
    if test_split not in TEST_SPLITS:
        raise ValueError(f"test_split={test_split!r}: expected {', '.join(TEST_SPLITS)}")
    source, target = direction.split("-")
    splits = {"train": "train", "val": "val", "test": test_split}
    return {split: (f"{stem}.{source}", f"{stem}.{target}") for split, stem in splits.items()}


def texts(names: Sequence[str]) -> dict[str, bytes]:
    """Return the uncompressed content of files, from the folder MULTI30K_DIR, else the cache, else by download.

    Raises: DataUnavailable; ValueError if a file in MULTI30K_DIR is damaged or another one.
    """
    contents = local_texts(names)
    if missing := [name for name in names if not contents[name]]:
        contents.update(_download(missing))
    return contents


def local_texts(names: Sequence[str]) -> dict[str, bytes]:
    """Return the content of files in MULTI30K_DIR or the cache; empty for those to download. Raises: as `texts`."""
    return {name: _from_folder(name) or _from_cache(name) for name in names}


def _from_folder(name: str) -> bytes:
    """Return the content of a file in MULTI30K_DIR; empty if it is missing. Raises: as `texts`."""
    setting = os.environ.get("MULTI30K_DIR")
    if not setting:
        return b""
    folder = Path(os.path.expanduser(setting))
    if not folder.is_dir():
        raise DataUnavailable(
            f"MULTI30K_DIR={setting}: there is no such folder; name one with the files of Multi30k, or unset it"
        )
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            try:
                content = files.read_bytes(path, LARGEST_TEXT_BYTES, links=True)
                return _verified(name, _unpacked(content) if path.suffix == ".gz" else content)
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise ValueError(f"{path}: cannot be used ({reason}); replace it or remove it") from error
    return b""


def _from_cache(name: str) -> bytes:
    """Return the content of a file in the cache; empty if it is missing or damaged."""
    try:
        return _verified(name, files.read_bytes(cache.folder() / "multi30k" / name, LARGEST_TEXT_BYTES, links=True))
    except (OSError, ValueError):
        return b""


def _verified(name: str, content: bytes) -> bytes:
    """Return the content of a file. Raises: ValueError if it does not have the file's digest."""
    digest = cache.digest(content)
    if digest != DIGESTS[name]:
        raise ValueError(f"not the text of {name}: its SHA-256 begins {digest[:12]}, expected {DIGESTS[name][:12]}")
    return content


def _download(names: Sequence[str]) -> dict[str, bytes]:
    """Download files into the cache and return them. Processes take turns, so that each file is downloaded once."""
    if importlib.util.find_spec("requests") is None:
        raise _unavailable(names[0], "needs requests to be downloaded: python -m pip install '.[data]'")
    urls = os.environ.get("BAKEOFF_MULTI30K_URLS", "").replace(",", " ").split()
    with cache.turn("multi30k"):
        contents = {name: _from_cache(name) for name in names}
        try:
            download = downloading.Download(urls or ADDRESSES)
        except ValueError:  # whose message may have a password
            raise DataUnavailable(
                "BAKEOFF_MULTI30K_URLS: an address is malformed; expected URLs of folders, separated by spaces"
            ) from None
        for name in names:
            if not contents[name]:
                contents[name] = _downloaded(name, download)
                cache.write_file(cache.folder() / "multi30k" / name, contents[name])
    return contents


def _downloaded(name: str, download: downloading.Download) -> bytes:
    text = download.file(f"{name}.gz", lambda packed: _verified(name, _unpacked(packed)))
    if text is None:
        reasons = "; ".join(f"{host}: {reason}" for host, reason in download.reasons.items())
        raise _unavailable(name, f"could not be downloaded from {reasons}")
    return text


def _unavailable(name: str, reason: str) -> DataUnavailable:
    where = "is not in MULTI30K_DIR and " if os.environ.get("MULTI30K_DIR") else ""
    return DataUnavailable(f"{name} {where}{reason}. Offline: {OFFLINE}")


def _unpacked(content: bytes) -> bytes:
    """Return the text of a gzip file, ignoring what follows the end of the compressed data.

    Raises: CutShort if it ends early; ValueError if it is not a gzip file, is damaged or too large.
    """
    if not content.startswith(GZIP[: len(content)]):
        raise ValueError("not a gzip file")
    unpacker = zlib.decompressobj(wbits=31)
    try:
        text = unpacker.decompress(content, LARGEST_TEXT_BYTES + 1)
    except zlib.error as error:
        raise ValueError("a gzip file that is damaged") from error
    if len(text) > LARGEST_TEXT_BYTES:
        raise ValueError(f"more than {LARGEST_TEXT_BYTES} bytes of text")
    if not unpacker.eof:
        raise downloading.CutShort("a gzip file that is cut short")
    return text
