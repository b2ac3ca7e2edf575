"""Rules about a record as a document: complete, unedited, and consistent with its settings and environment."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping

from harness.analysis.fairness import DIGESTS
from harness.analysis.grouping import CURVE
from harness.audit.run_folder import NOT_COMPLETED, NOT_STARTED, UNREADABLE, StoredRun, skip_unless, unequal
from harness.data.batch_digest import MARKS, STATISTICS, WEIGHTS_MARK
from harness.storage import run_store
from harness.storage.records import RunRecord
from harness.text import brief, first_few
from impls.weights import count, shapes

SIZES = ("parameters", "source_words", "target_words", "train_pairs", "validation_pairs", "test_pairs")
RMS = ("source_embedding_rms", "target_embedding_rms", "position_rms")
SIZES_OF_RUNS = frozenset(("parameters", "updates_per_epoch", *RMS, *STATISTICS))
"""The sizes that depend on the recipe, the batches or the seed; the others are those of the corpus."""

SPEEDS = ("total_seconds", "first_update_seconds", "decoding_sentences_per_second")
RESULTS = ("curve", "chosen_epochs", "scores", "signatures", "decode")
SETTINGS = ("framework", "device", "precision", "threads")
"""Settings of a run that its environment records too."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
TENSORS_SHOWN = 4

_SHA_256 = re.compile(r"[0-9a-f]{64}")
_TENSOR = re.compile(r"(\d+(x\d+)*)?:[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")

Shapes = Mapping[str, tuple[int, ...]]


def readable(stored: StoredRun) -> Iterator[str]:
    """`record.json` is a record of the current schema."""
    if stored.unreadable:
        yield stored.unreadable


def fields(stored: StoredRun) -> Iterator[str]:
    """Every field of the record is known, present and of the right type."""
    skip_unless(not stored.unreadable, UNREADABLE)
    yield from stored.misfits


def own_id(stored: StoredRun) -> Iterator[str]:
    """The id is the digest of the settings."""
    yield from unequal("id", stored.record.id, stored.record.spec.id, "the digest of its settings")


def folder(stored: StoredRun) -> Iterator[str]:
    """The name of the folder is the id of its record."""
    yield from unequal("folder", stored.name, stored.record.id, "the id of its record")


def seal(stored: StoredRun) -> Iterator[str]:
    """The record is unchanged since it was written: its digest equals its seal."""
    skip_unless(not stored.unreadable, UNREADABLE)
    if stored.seal == "missing":
        yield "no seal: records are sealed when they are written"
    elif stored.seal == "wrong":
        yield "edited after it was written: its digest is not its seal"


def ended(stored: StoredRun) -> Iterator[str]:
    """Every run completed or diverged; none is missing, unfinished, interrupted or failed."""
    if stored.parsed is None:
        yield UNREADABLE
    elif stored.parsed.status not in run_store.FINISHED:
        reason = "" if stored.parsed.reason else ": no reason recorded"
        yield " ".join(f"{stored.parsed.ending}{reason}".split())


def contents(stored: StoredRun) -> Iterator[str]:
    """A completed run has all results; a diverged one ends with a loss that is not finite."""
    record = stored.record
    if record.status == "completed":
        missing = [name for name in RESULTS if not getattr(record, name)]
        missing += [f"sizes.{name}" for name in SIZES if name not in record.sizes]
        missing += [f"speed.{name}" for name in SPEEDS if name not in record.speed]
        yield from (f"completed without {name}" for name in missing)
        if record.reason:
            yield f"completed, but reason={brief(record.reason)}: expected none"
    elif record.scores:
        yield f"{record.status}, but it has scores"
    if record.status == "diverged" and not (
        record.curve and None in (getattr(record.curve[-1], name) for name in CURVE)
    ):
        yield "diverged, but the losses of its last epoch are finite"


def digests(stored: StoredRun) -> Iterator[str]:
    """Every fingerprint is present and a SHA-256 digest."""
    fingerprints, status = stored.record.fingerprints, stored.record.status
    expected = ["files", "weights", *DIGESTS, *["stream"] * (status in run_store.FINISHED)]
    expected += ["hypotheses", "trained_weights"] * (status == "completed")
    if fingerprints or status == "completed":
        yield from (f"no digest of {name}" for name in expected if not fingerprints.get(name))
    values = {name: value for name, value in fingerprints.items() if isinstance(value, str)}
    values |= {f"files.{name}": value for name, value in (fingerprints.get("files") or {}).items()}
    for name, value in values.items():
        if not _SHA_256.fullmatch(value):
            yield f"{name}={brief(value)}: expected a SHA-256"
    for name, value in (fingerprints.get("weights") or {}).items():
        if not _TENSOR.fullmatch(value):
            yield f"weights.{name}={brief(value)}: expected a shape, a colon and a SHA-256"


def environment(stored: StoredRun) -> Iterator[str]:
    """Versions and machine are recorded, and threads, device and framework match the settings."""
    record = stored.record
    recorded, spec = record.environment, record.spec
    skip_unless(recorded or record.status == "completed", NOT_STARTED)
    missing = [name for name in ("python", "versions", "machine") if not recorded.get(name)]
    libraries = ("numpy", "sacrebleu", *([spec.framework] if spec.recipe else []))
    missing += [f"versions.{name}" for name in libraries if not (recorded.get("versions") or {}).get(name)]
    yield from (f"environment.{name} is missing" for name in missing)
    for name in SETTINGS:
        yield from unequal(f"environment.{name}", recorded.get(name), getattr(spec, name), "its settings")
    yield from unequal("environment.backend", recorded.get("backend"), spec.computes, "its settings")
    arithmetic = recorded.get("torch")
    if spec.recipe and isinstance(arithmetic, dict) and "matmul_precision" in arithmetic:
        products = arithmetic["matmul_precision"]
        yield from unequal("environment.torch.matmul_precision", products, spec.matmul_precision, "its settings")
    variables, threads = recorded.get("variables") or {}, str(spec.threads)
    for name in THREADS:
        yield from unequal(name, variables.get(name, threads), threads, "threads in its settings")


def commit(stored: StoredRun) -> Iterator[str]:
    """The record names the commit, and says whether its files were changed."""
    record = stored.record
    skip_unless(record.environment or record.status == "completed", NOT_STARTED)
    recorded = record.environment.get("commit", {})
    skip_unless(recorded is not None, "made outside a checkout, such as with an installed package")
    if not recorded:
        yield "environment.commit is missing: the code that made the run is unknown"
    elif not _COMMIT.fullmatch(str(recorded.get("digest"))):
        yield f"commit.digest={brief(recorded.get('digest'))}: expected the digest of a commit"
    elif not isinstance(recorded.get("dirty"), bool):
        yield f"commit.dirty={brief(recorded.get('dirty'))}: expected true or false"


def updates_per_epoch(record: RunRecord) -> int:
    """Return the number of batches per epoch, from the batch size, or as recorded if batch sizes vary."""
    training, pairs = record.spec.training, record.sizes.get("train_pairs", 0)
    if training.batching == "tokens":
        return max(1, int(record.sizes.get("updates_per_epoch", 1)))
    return math.ceil(pairs / training.batch_size)


def sizes(stored: StoredRun) -> Iterator[str]:
    """Sizes are counts, shares or quantiles, and a joint vocabulary has one size."""
    recorded, data = skip_unless(stored.record.sizes, NOT_STARTED), stored.record.spec.data
    for name, value in recorded.items():
        share, fractional = name.endswith("_rate"), name.endswith(("_rate", "_rms"))
        if not 0 <= value <= (1 if share else math.inf) or (not fractional and value % 1):
            yield f"sizes.{name}={value!r}: expected {'a share from 0 to 1' if share else 'a whole number'}"
    if data.vocabulary == "joint":
        source, target = (recorded.get(f"{side}_words") for side in ("source", "target"))
        yield from unequal("sizes.target_words", target, source, "source_words of the joint vocabulary")
    pairs = recorded.get("train_pairs", 0) + recorded.get("train_left_out", 0)
    if data.training_pairs is not None and pairs > data.training_pairs:
        yield f"{pairs:,.0f} training pairs, expected at most {data.training_pairs:,} (data.training_pairs)"
    for split, side in itertools.product(("train", "validation", "test"), ("source", "target")):
        prefix = f"{split}_{side}_length_"
        names = [name for name in recorded if name.startswith(prefix)]
        quantiles = [recorded[name] for name in sorted(names, key=lambda name: int(name[len(prefix) :]))]
        if quantiles != sorted(quantiles):
            yield f"sizes.{prefix}…: {first_few(quantiles, 9)}: expected quantiles that do not decrease"


def parameters(stored: StoredRun) -> Iterator[str]:
    """The number of parameters and the initial tensors are those of the recipe."""
    record, recipe = stored.record, stored.record.spec.recipe
    skip_unless("parameters" in record.sizes, NOT_STARTED)
    recorded, tensors = record.sizes["parameters"], tensor_shapes(record)
    if tensors:
        yield from unequal("parameters", recorded, sum(map(math.prod, tensors.values())), "its tensors")
    if recipe is not None:
        words = vocabulary_sizes(record)
        yield from unequal("parameters", recorded, count(recipe, *words), "its recipe")
        yield from differing_tensors(tensors, dict(shapes(recipe, *words)), "its recipe")


def vocabulary_sizes(record: RunRecord) -> tuple[int, int]:
    """Return the recorded sizes of the source and the target vocabulary; 0 if they are missing."""
    return int(record.sizes.get("source_words", 0)), int(record.sizes.get("target_words", 0))


def tensor_shapes(record: RunRecord) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the initial tensors, from before the colon of their digests; () if one is not readable."""
    digests = record.fingerprints.get("weights") or {}
    sizes = {name: digest.rpartition(":")[0].split("x") for name, digest in digests.items()}
    return {name: tuple(map(int, part)) if all(map(str.isdecimal, part)) else () for name, part in sizes.items()}


def differing_tensors(recorded: Shapes, expected: Shapes, source: str) -> Iterator[str]:
    """Yield the tensors that are missing, unexpected, or of another shape than in `expected`, those of `source`."""
    faults = [f"{name} is missing" for name in sorted(expected.keys() - recorded.keys())]
    faults += [f"{name} is not a tensor of {source}" for name in sorted(recorded.keys() - expected.keys())]
    for name in sorted(recorded.keys() & expected.keys()):
        faults += unequal(f"shape of {name}", list(recorded[name]), list(expected[name]), source)
    yield from faults[:TENSORS_SHOWN]
    if len(faults) > TENSORS_SHOWN:
        yield f"and {len(faults) - TENSORS_SHOWN} more tensors"


def training_digests(stored: StoredRun) -> Iterator[str]:
    """Batches and weights have a digest at each expected update; none occurs twice, unless the learning rate is 0."""
    record = stored.record
    skip_unless(record.status in run_store.FINISHED and record.curve, NOT_COMPLETED)
    ends = {line.updates for line in record.curve}
    last = record.curve[-1].updates
    batches, weights = (record.fingerprints.get(name) or {} for name in ("batches", "weights_after"))
    yield from _wrong_updates("batches", batches, ends | {mark for mark in MARKS if mark <= last})
    yield from _wrong_updates("weights_after", weights, ends | {mark for mark in (WEIGHTS_MARK,) if mark <= last})
    if batches.get(str(last)) != record.fingerprints.get("stream"):
        yield f"stream is not the digest of the batches after update {last:,}"
    yield from _repeated("batches", batches)
    # The weights of a diverged run may be NaN from some update on, and at the rate 0 they never change.
    if record.status == "completed" and record.spec.training.peak_rate:
        yield from _repeated("weights_after", weights)


def _wrong_updates(name: str, digests: Mapping[str, str], expected: set[int]) -> Iterator[str]:
    recorded = {int(update) for update in digests}
    for fault, updates in (("no digest", expected - recorded), ("an unexpected digest", recorded - expected)):
        if updates:
            yield f"{name}: {fault} after update {first_few(sorted(updates))}"


def _repeated(name: str, digests: Mapping[str, str]) -> Iterator[str]:
    first_updates: dict[str, str] = {}
    for update in sorted(digests, key=int):
        first = first_updates.setdefault(digests[update], update)
        if first != update:
            yield f"{name}: the same digest after updates {first} and {update}"


def kept_digest(record: RunRecord) -> str | None:
    """Return the digest that the kept weights must have; None if epochs were averaged or it is unknown."""
    if record.spec.training.averaged_epochs or len(record.chosen_epochs) != 1:
        return None
    updates = next((line.updates for line in record.curve if line.epoch == record.chosen_epochs[0]), None)
    return (record.fingerprints.get("weights_after") or {}).get(str(updates))
