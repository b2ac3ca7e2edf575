"""The environment variables that the process of a run is started with: threads, allocator, Keras backend, GPU."""

from __future__ import annotations

import os

from harness.experiments.specs import RunSpec


def worker_environment(spec: RunSpec) -> dict[str, str]:
    """Return the environment variables that the process of a run needs before it starts."""
    variables = {
        **thread_environment(spec.threads, spec.backend),
        # By default glibc maps every large tensor anew and unmaps it afterwards, which costs page faults.
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
        # Huge pages, where Linux offers them: the first update has 0.5 instead of 80 thousand page faults.
        "GLIBC_TUNABLES": _with_huge_pages(os.environ.get("GLIBC_TUNABLES", "")),
    }
    if "OMP_WAIT_POLICY" not in os.environ:
        # Waiting threads of GNU OpenMP, which torch uses, spin for milliseconds by default. On a busy machine they take
        # the CPU from the threads that work, and an update takes several times as long. With this number of iterations
        # an update on an idle machine is as fast as by default; with OMP_WAIT_POLICY=passive it takes a third longer.
        variables["GOMP_SPINCOUNT"] = os.environ.get("GOMP_SPINCOUNT", "10000")
    if spec.backend is not None:
        variables["KERAS_BACKEND"] = spec.backend
        # Otherwise Keras sets it on import, and only records of models that were imported before have it. It keeps the
        # first process from reserving most of a GPU's memory, so that others can share the GPU.
        variables["TF_FORCE_GPU_ALLOW_GROWTH"] = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    if spec.backend == "tensorflow":
        variables["TF_DETERMINISTIC_OPS"] = "1"
    if spec.device.startswith("cuda"):
        # cuBLAS is deterministic only with a fixed workspace.
        variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        if spec.backend == "jax":
            variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    return variables


def thread_environment(threads: int, backend: str | None) -> dict[str, str]:
    """Return the environment variables that limit the threads of a framework that is not imported yet.

    Every library uses the same number of threads: with 1 or 2 the last digits of a gradient differ.
    """
    number = str(threads)
    variables = {"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number, "OPENBLAS_NUM_THREADS": number}
    if backend == "tensorflow":
        variables |= {"TF_NUM_INTRAOP_THREADS": number, "TF_NUM_INTEROP_THREADS": "1"}
    if backend == "jax":
        variables["NPROC"] = number  # the size of XLA's thread pool
    return variables


def baseline_environment(name: str) -> dict[str, str]:
    """Return the environment variables that a baseline's library needs before it is imported.

    On Intel CPUs, CTranslate2 multiplies with MKL unless CT2_USE_MKL says otherwise. In float32 with two threads,
    oneDNN is faster: on two cores of a Xeon, greedy search takes 0.6 of the time in batches, and 0.1 of it one by one.
    In int8 it is not.
    """
    return {"CT2_USE_MKL": os.environ.get("CT2_USE_MKL", "0")} if name == "ctranslate2" else {}


def _with_huge_pages(tunables: str) -> str:
    """Return glibc's tunables with huge pages for malloc, unless they choose a page size."""
    name = "glibc.malloc.hugetlb"
    chosen = [tunable for tunable in tunables.split(":") if tunable]
    return ":".join(chosen if any(name in tunable for tunable in chosen) else [*chosen, f"{name}=1"])
