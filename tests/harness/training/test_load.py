"""New runs by name: what must be chosen before the module of a builder is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import harness
from harness.storage import locks


@pytest.mark.parametrize(("backend", "expected"), [({"backend": "jax"}, "jax"), ({}, "tensorflow")])
def test_backend_of_keras_is_chosen_before_the_import_of_a_builder(
    backend: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"keras_module_for_{expected}"
    (tmp_path / f"{name}.py").write_text(
        "import os\nBACKEND = os.environ['KERAS_BACKEND']\ndef build(*sizes, **settings): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "environ", {**os.environ, "KERAS_BACKEND": "torch"})

    def stop(results: Path, run_id: str) -> None:
        raise InterruptedError(run_id)

    monkeypatch.setattr(locks, "hold", stop)
    with pytest.raises(InterruptedError, match=name):
        harness.run(f"{name}:build", settings={"framework": "keras", **backend}, results=tmp_path)
    assert expected == sys.modules[name].BACKEND
