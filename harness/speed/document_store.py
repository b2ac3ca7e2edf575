"""Speed documents on disk: RESULTS/speed-DATE-DIGEST.json, written atomically, sealed, and checked when read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.experiments.serialization import from_json, to_json
from harness.speed.speed_document import KIND, SCHEMA, SpeedDocument
from harness.storage import files
from harness.text import brief


def save(results: Path, document: SpeedDocument) -> Path:
    """Write a document atomically under its own name, with its seal, and return its path."""
    path = results / f"{document.id}.json"
    files.write_sealed(path, {"kind": KIND, "schema": SCHEMA, **to_json(document)})
    return path


def load(path: Path) -> SpeedDocument:
    """Read a document, which may come from someone else.

    Raises:
        ValueError: The file is too large, not sealed as it was written, or of another kind or schema; or a field is
            unknown, missing, of the wrong type, or does not follow from the samples. The message names file and field.
    """
    value = files.read_sealed(path)
    kind, schema = value.pop("kind", None), value.pop("schema", None)
    if (kind, schema) != (KIND, SCHEMA):
        raise ValueError(f"{path}: kind={brief(kind)}, schema={brief(schema)}: expected {KIND!r} and {SCHEMA}")
    try:
        document: SpeedDocument = from_json(SpeedDocument, value, "document")
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    return document


def documents(results: Path, *, complain: Callable[[str], None] | None = None) -> list[tuple[Path, SpeedDocument]]:
    """Return all documents in `results`, oldest first. `complain` receives a line for each that cannot be read."""
    stored: list[tuple[Path, SpeedDocument]] = []
    for path in sorted(results.glob(f"{KIND}-*.json")):
        try:
            stored.append((path, load(path)))
        except ValueError as error:
            if complain is not None:
                complain(str(error))
    return sorted(stored, key=lambda pair: (pair[1].started, pair[0].name))
