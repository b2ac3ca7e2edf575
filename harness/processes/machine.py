"""Facts about the environment of a run: versions, commit, machine and memory."""

from __future__ import annotations

import functools
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from harness.experiments.specs import RunSpec

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
VARIABLES = (
    *("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_", "NPROC"),
    *("NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES"),
)
VARIABLE_PREFIXES = (
    *("MKL_", "OMP_", "GOMP_", "KMP_", "ATEN_", "ONEDNN_", "DNNL_", "OPENBLAS_", "XLA_", "CUBLAS_", "TORCH_", "KERAS_"),
    *("TF_CPU_", "TF_CUBLAS_", "TF_CUDNN_", "TF_DETERMINISTIC_", "TF_DISABLE_", "TF_ENABLE_", "TF_FORCE_"),
    *("TF_GPU_", "TF_MKL_", "TF_NUM_", "TF_ONEDNN_", "TF_OVERRIDE_", "TF_USE_", "TF_XLA_", "CT2_"),
)
"""Environment variables that can change a result or its speed: these names, and all that start with a prefix.

Other programs keep secrets under similar names, such as Terraform's TF_VAR_ and TF_TOKEN_ and NVIDIA_API_KEY.
"""
_SECRET = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|_KEY", re.IGNORECASE)
"""A name that matches is never recorded."""

ARITHMETIC_VARIABLES = (
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "GLIBC_TUNABLES",
    "NVIDIA_TF32_OVERRIDE",
    "TF_ENABLE_ONEDNN_OPTS",
    "XLA_FLAGS",
)
"""Environment variables that select instructions or algorithms, and so change the last digits of results.

Of GLIBC_TUNABLES, those of the allocator do not: they change only where memory is.
"""

LIBRARIES = {
    "torch": ("numpy", "torch"),
    "tensorflow": ("numpy", "keras", "tensorflow", "tensorflow-cpu"),
    "jax": ("numpy", "keras", "jax", "jaxlib"),
}
"""The packages whose versions can change the bits of trained weights, by the framework that computes."""

REPOSITORY = Path(__file__).resolve().parents[2]
GPU_QUESTIONS = {
    "torch": "import torch, sys; sys.exit(not torch.cuda.is_available())",
    "tensorflow": "import tensorflow, sys; sys.exit(not tensorflow.config.list_physical_devices('GPU'))",
    "jax": "import jax, sys; sys.exit(all(device.platform != 'gpu' for device in jax.devices()))",
}
COMMIT = "BAKEOFF_COMMIT"
"""The environment variable with the commit of code that was sent to another machine without its repository."""


def environment(spec: RunSpec) -> dict[str, Any]:
    """Return the environment that a run is executed in. A fact that is not available is None."""
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
        "variables": variables(),
    }


def variables() -> dict[str, str]:
    """Return the environment variables that are set and can change a result or its speed."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name in VARIABLES or name.startswith(VARIABLE_PREFIXES)) and not _SECRET.search(name)
    }


def torch_arithmetic() -> dict[str, str | None]:
    """Return how torch computes on this CPU, or nothing if this process has not imported torch.

    These are `cpu_capability` (the vector instructions of its own kernels), `matmul_precision`, and the versions of
    `onednn` and `mkl` that it was built with; None for one that it was built without.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    build = torch.__config__.show()
    patterns = {"onednn": r"MKL-DNN v([\w.]+)", "mkl": r"Math Kernel Library Version ([\w.]+)"}
    libraries = {name: re.search(pattern, build) for name, pattern in patterns.items()}
    return {
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        **{name: match and match[1] for name, match in libraries.items()},
    }


def arithmetic_differences(earlier: dict[str, Any], now: dict[str, Any], computes: str) -> list[str]:
    """Return what can change the bits of trained weights between two environments, as "torch 2.9.0 (now 2.10.0)".

    Facts that one of the environments does not have, because an older version wrote it, are not compared. `computes` is
    the framework that computes.
    """
    parts = {
        "machine": ("processor", "gpu"),
        "versions": LIBRARIES.get(computes, PACKAGES),
        "variables": ARITHMETIC_VARIABLES,
        "torch": ("cpu_capability", "matmul_precision", "onednn", "mkl"),
    }
    lines = []
    for part, names in parts.items():
        old, new = earlier.get(part), now.get(part)
        if isinstance(old, dict) and isinstance(new, dict):
            pairs = ((name, _arithmetic(name, old.get(name)), _arithmetic(name, new.get(name))) for name in names)
            lines += [f"{name} {was} (now {is_now})" for name, was, is_now in pairs if was != is_now]
    return lines


def _arithmetic(name: str, value: Any) -> Any:
    """Return the part of a fact that can change results: glibc's tunables without those of the allocator."""
    if name != "GLIBC_TUNABLES":
        return value
    tunables = str(value or "").split(":")
    return ":".join(tunable for tunable in tunables if not tunable.startswith("glibc.malloc.")) or None


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an earlier environment that have changed since; None for those that it did not have."""
    changed: dict[str, Any] = {}
    for name in sorted({*earlier, *now}):
        old, new = earlier.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = differences(old, new)
            changed |= {name: inner} if inner else {}
        elif old != new:
            changed[name] = old
    return changed


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of those packages that are installed, by default of all that can change a result."""
    return {name: version for name in packages if (version := _version(name)) is not None}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> dict[str, Any] | None:
    """Return the commit of this checkout and whether tracked files differ from it.

    Outside a checkout this is the value of BAKEOFF_COMMIT, which code that was sent from one has; otherwise None.
    """
    digest, changes = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    if digest and changes is not None:
        return {"digest": digest, "dirty": bool(changes)}
    try:
        sent = json.loads(os.environ.get(COMMIT, ""))
        return {"digest": str(sent["digest"]), "dirty": bool(sent["dirty"])}
    except (ValueError, TypeError, KeyError):
        return None


def git(*arguments: str) -> str | None:
    """Return the output of git in the repository of this code; None outside a checkout or if git fails."""
    return _output("git", "-C", str(REPOSITORY), *arguments) if (REPOSITORY / ".git").exists() else None


def machine(device: str = "cpu") -> dict[str, Any]:
    """Return the processor, the cores, the memory, the operating system and, for a CUDA device, the GPU."""
    if sys.platform == "darwin":  # where Python's own answer is the same for all processors of one architecture
        processor = _output("sysctl", "-n", "machdep.cpu.brand_string")
    else:
        processor = _table_value(Path("/proc/cpuinfo"), "model name")
    processor = processor or platform.processor() or platform.machine()
    facts: dict[str, Any] = {
        "processor": processor or None,
        "cores": cores(),
        "memory_bytes": memory_bytes(),
        "system": platform.platform(),
    }
    if device.startswith("cuda"):
        number = device.partition(":")[2]
        first = int(number) if number.isdecimal() else 0
        chosen = [f"--id={gpu}" for gpu in gpus()[first : first + 1]]
        facts["gpu"] = _output("nvidia-smi", *chosen, "--query-gpu=name", "--format=csv,noheader") if chosen else None
    return facts


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float:
    """Return the load average of the last minute."""
    return psutil.getloadavg()[0]


@functools.cache
def gpu_usable(computes: str) -> bool:
    """Return whether a framework can use a GPU on this machine. It is imported in another process, once."""
    return computes in GPU_QUESTIONS and _succeeds(GPU_QUESTIONS[computes])


def device_usable(device: str, computes: str) -> bool:
    """Return whether a framework can use a device here. Devices other than the CPU and GPUs of NVIDIA are for torch."""
    if device == "cpu":
        return True
    if device.startswith("cuda"):
        return gpu_usable(computes)
    return computes == "torch" and _succeeds(f"import torch; torch.empty(1, device={device!r})")


def matmul_precision_usable(name: str, device: str) -> bool:
    """Return whether a precision of matrix products has an effect in torch. It is imported in another process."""
    answer = f"has_effect({name!r}, torch.device({device!r}))"
    return _succeeds(
        f"import sys, torch; sys.path.insert(0, {str(REPOSITORY)!r}); "
        f"from impls.pytorch.matmul_precision import has_effect; sys.exit(not {answer})"
    )


def _succeeds(code: str) -> bool:
    """Return whether Python code ends with exit status 0 in a process of its own."""
    try:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def gpus() -> list[str]:
    """Return the NVIDIA GPUs that this process may use, as in CUDA_VISIBLE_DEVICES. No framework is imported."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # CUDA ignores everything after the first invalid entry, which is usually -1.
        return list(itertools.takewhile(lambda gpu: gpu and gpu != "-1", map(str.strip, visible.split(","))))
    return (_output("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader") or "").split()


def peak_memory_bytes() -> int | None:
    """Return the peak resident memory of this process; None if the system does not report it.

    On Linux this is VmHWM, because `resource` reports a maximum that is inherited from the parent process.
    """
    peak_kibibytes = _table_value(Path("/proc/self/status"), "VmHWM")
    if peak_kibibytes is not None:
        return int(peak_kibibytes.split()[0]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _output(*command: str) -> str | None:
    """Return the output of a command, or None if it is missing, fails or does not end within 20 seconds."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _table_value(path: Path, name: str) -> str | None:
    """Return the first value of a name in a table with lines such as "name: value"."""
    if path.is_file():
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            key, _, value = line.partition(":")
            if key.strip().lower() == name.lower():
                return value.strip()
    return None


def memory_bytes() -> int:
    """Return the size of this machine's memory."""
    return int(psutil.virtual_memory().total)
