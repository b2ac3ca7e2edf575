"""What a record says of the place a run was made in: versions, commit, machine, memory, and digests of tensors."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from harness.experiments.specs import RunSpec
from impls.contract import Arrays

PACKAGES = (
    "numpy",
    "torch",
    "keras",
    "tensorflow",
    "tensorflow-cpu",
    "jax",
    "jaxlib",
    "safetensors",
    "sacrebleu",
    "sacremoses",
    "sentencepiece",
    "spacy",
    "subword-nmt",
)
PINNED = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MALLOC_MMAP_MAX_",
    "MALLOC_TRIM_THRESHOLD_",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "TF_DETERMINISTIC_OPS",
    "NPROC",
    "XLA_FLAGS",
)
REPOSITORY = Path(__file__).resolve().parents[2]
COMMIT = "BAKEOFF_COMMIT"
"""The environment variable that tells code which was sent to another machine without its repository what it is."""


def environment(spec: RunSpec) -> dict[str, Any]:
    """Return where and with what `spec` is run; a figure that cannot be had is None."""
    return {
        "python": platform.python_version(),
        "versions": versions(),
        "commit": commit(),
        "machine": machine(spec.device),
        "framework": spec.framework,
        "backend": spec.computes,
        "device": spec.device,
        "precision": spec.precision,
        "threads": spec.threads,
        "variables": {name: os.environ[name] for name in PINNED if name in os.environ},
    }


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return what of an earlier environment is not as it is now: the old values, None for what it was without."""
    found: dict[str, Any] = {}
    for name in sorted({*earlier, *now}):
        old, new = earlier.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = differences(old, new)
            found |= {name: inner} if inner else {}
        elif old != new:
            found[name] = old
    return found


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that can change a figure."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> dict[str, Any] | None:
    """Return the commit of this checkout and whether tracked files differ from it; None outside a checkout.

    Outside one, BAKEOFF_COMMIT says it where this code was sent from a checkout.
    """
    if not (REPOSITORY / ".git").exists():
        return _sent_commit()
    digest = _output("git", "-C", str(REPOSITORY), "rev-parse", "HEAD")
    changes = _output("git", "-C", str(REPOSITORY), "status", "--porcelain", "--untracked-files=no")
    return None if not digest or changes is None else {"digest": digest, "dirty": bool(changes)}


def _sent_commit() -> dict[str, Any] | None:
    try:
        found = json.loads(os.environ.get(COMMIT, ""))
        return {"digest": str(found["digest"]), "dirty": bool(found["dirty"])}
    except (ValueError, TypeError, KeyError):
        return None


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return the processor, its cores, the memory, the system and, where it is used, the GPU."""
    found: dict[str, Any] = {
        "processor": _processor(),
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "system": platform.platform(),
    }
    if device.startswith("cuda"):
        number = device.partition(":")[2]
        first = int(number) if number.isdecimal() else 0
        chosen = [f"--id={one}" for one in gpus()[first : first + 1]]
        found["gpu"] = _output("nvidia-smi", *chosen, "--query-gpu=name", "--format=csv,noheader") if chosen else None
    return found


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> list[float]:
    """Return this machine's one-minute load average, or an empty list where the system does not provide it."""
    return [os.getloadavg()[0]] if hasattr(os, "getloadavg") else []


def gpus() -> list[str]:
    """Return the words that name the NVIDIA GPUs this process may use in CUDA_VISIBLE_DEVICES; asks no framework."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        # Of a list, CUDA sees what stands before the first word that names none; -1 is what people write for none.
        return list(itertools.takewhile(lambda one: one and one != "-1", map(str.strip, given.split(","))))
    return (_output("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader") or "").split()


def peak_memory_bytes() -> int | None:
    """Return the most resident memory that this process has had; None where the system does not say.

    Linux: VmHWM, because the maximum of `resource` is inherited from the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text(encoding="ascii", errors="replace").split("\n"):
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def array_digests(arrays: Arrays) -> dict[str, str]:
    """Return each tensor's shape and the SHA-256 of its float32 numbers, row by row: "256x512:ab12..."."""
    return {name: _array_digest(np.asarray(one)) for name, one in sorted(arrays.items())}


def _array_digest(array: Any) -> str:
    shape = "x".join(map(str, array.shape))
    return f"{shape}:{hashlib.sha256(array.astype('<f4').tobytes()).hexdigest()}"


def _output(*command: str) -> str | None:
    """Return what a command prints, or None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _processor() -> str | None:
    table = Path("/proc/cpuinfo")
    if table.is_file():
        for line in table.read_text(encoding="utf-8", errors="replace").split("\n"):
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or None


def memory_bytes() -> int | None:
    """Return this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
