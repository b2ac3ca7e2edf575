"""Runs many specs, one process each, so many at once, and says honestly how long it takes."""

from __future__ import annotations

from harness.specs import RunSpec


def worker_environment(spec: RunSpec) -> dict[str, str]:
    """Return the environment variables that the process of a run is started with."""
    threads = str(spec.threads)
    found = {
        # One count of threads for every library: 1 or 2 changes the last digits of a gradient.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        # Every large tensor would be mapped and returned to the system at each update, page faults and all.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
    }
    if spec.device.startswith("cuda"):
        # cuBLAS gives the same bits twice only with a fixed workspace.
        found["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    return found
