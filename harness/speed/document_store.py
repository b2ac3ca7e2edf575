"""Documents of speed on the disk: RESULTS/speed-DATE-DIGEST.json, written whole and sealed, read as a stranger's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.experiments.serialization import from_json, to_json
from harness.speed.speed_document import KIND, SCHEMA, SpeedDocument
from harness.storage import files
from harness.text import brief


def save(results: Path, document: SpeedDocument) -> Path:
    """Write a document under its own name, whole or not at all, with its seal. Returns its path."""
    path = results / f"{document.id}.json"
    files.write_sealed(path, {"kind": KIND, "schema": SCHEMA, **to_json(document)})
    return path


def load(path: Path) -> SpeedDocument:
    """Read a document, which may be a stranger's.

    Raises: ValueError naming the file and the field that is unknown, missing, of the wrong type, or not what the
    samples say; where it is too large, not sealed as written, or of another kind or schema.
    """
    value = files.read_sealed(path)
    kind, schema = value.pop("kind", None), value.pop("schema", None)
    if (kind, schema) != (KIND, SCHEMA):
        raise ValueError(f"{path}: kind={brief(kind)}, schema={brief(schema)}: allowed is {KIND!r} and {SCHEMA}")
    try:
        found: SpeedDocument = from_json(SpeedDocument, value, "document")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return found


def documents(results: Path, *, complain: Callable[[str], None] | None = None) -> list[tuple[Path, SpeedDocument]]:
    """Return every document under `results`, oldest first; tell `complain` in a line about each that cannot be read."""
    found: list[tuple[Path, SpeedDocument]] = []
    for path in sorted(results.glob(f"{KIND}-*.json")):
        try:
            found.append((path, load(path)))
        except ValueError as error:
            if complain is not None:
                complain(str(error))
    return sorted(found, key=lambda one: (one[1].started, one[0].name))
