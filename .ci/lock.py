"""Write the SHA-256 digests of every package that CI installs, on Linux x86-64 with Python 3.11 to 3.13.

    python .ci/lock.py

`constraints.txt` gives the versions; `.ci/constraints.txt` is the same list with digests from PyPI. `.ci/tox.txt` holds
tox and what it needs; change a version there and run this again.
"""

import json
import re
import urllib.request
from pathlib import Path

FOLDER = Path(__file__).parent
WHEEL = re.compile(r"-(?:py2\.py3|py3|cp3\d+|cp31[123])-(?:none|abi3|cp31[123])-(?:any|.*manylinux.*x86_64.*)\.whl$")
# The files of https://download.pytorch.org/whl/cpu/torch/ for Python 3.11, 3.12 and 3.13; those on PyPI need CUDA.
CPU_BUILDS = {
    "torch==2.13.0": [
        "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b",
        "4ca4a9394b0c771238a4f73590fdbbc4debad85ed0fa63d026ae1b085da7d6e2",
        "3fbf9c9d1f3c10c2d59d04aca426dee9ccc6ceb32d255c61e93acc3b4f75fae6",
    ]
}


def pins(path: Path) -> list[str]:
    """Return the lines `name==version` of a requirements file, without digests."""
    return re.findall(r"^[\w.-]+==[\w.+!]+", path.read_text(encoding="utf-8"), re.MULTILINE)


def digests(pin: str) -> list[str]:
    """Return the digests of a version's wheels; of its source archive too, where a Python may find no wheel."""
    if pin in CPU_BUILDS:
        return CPU_BUILDS[pin]
    name, version = pin.split("==")
    request = urllib.request.Request(
        f"https://pypi.org/simple/{re.sub('[-_.]+', '-', name).lower()}/",
        headers={"Accept": "application/vnd.pypi.simple.v1+json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = {file["filename"]: file["hashes"]["sha256"] for file in json.load(answer)["files"]}
    stem = re.compile(re.sub("[-_.]+", "[-_.]+", name) + "-" + re.escape(version) + r"(-|\.tar\.gz$)", re.IGNORECASE)
    files = {file: digest for file, digest in files.items() if stem.match(file)}
    wheels = [file for file in files if WHEEL.search(file)]
    sources = [file for file in files if file.endswith(".tar.gz") and not any("-none-any" in wheel for wheel in wheels)]
    found = [files[file] for file in wheels + sources]
    if not found:
        raise ValueError(f"{pin}: PyPI has neither a wheel for Linux nor a source archive")
    return sorted(found)


def lock(source: Path, target: Path) -> None:
    """Write `target`: the versions of `source`, each with its digests."""
    lines = [" \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in digests(pin))]) for pin in pins(source)]
    target.write_text("# Written by .ci/lock.py.\n" + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    lock(FOLDER.parent / "constraints.txt", FOLDER / "constraints.txt")
    lock(FOLDER / "tox.txt", FOLDER / "tox.txt")
