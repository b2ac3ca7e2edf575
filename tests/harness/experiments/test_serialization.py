"""JSON that does not fit a dataclass is rejected in one line: field, value, what is accepted, a suggestion."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Literal

import pytest
from places import ROOT
from small_runs import TINY, spec, through_json

from harness.experiments.serialization import canonical_json, from_json, json_schema
from harness.experiments.specs import RunSpec, spec_from_json
from harness.storage.records import record_schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
    word: Literal["one", "two"]
    rates: tuple[float, ...] = ()
    counts: dict[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    maybe: Inner | None = None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda value: value.update(sed=3), "spec.sed: unknown field; did you mean 'seed'?"),
        (lambda value: value["recipe"].update(family="rnn"), "spec.recipe.family='rnn'"),
        (lambda value: value["training"].update(epochs=0), "epochs=0"),
        (lambda value: value["data"].update(files={"train_source": "x"}), "validation_source: missing"),
    ],
)
def test_spec_from_json_misfit_is_refused(change: Any, words: str) -> None:
    value = through_json(spec("learned_positions", TINY))
    change(value)
    with pytest.raises(ValueError, match="spec|epochs") as caught:
        spec_from_json(value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"inner": {"word": "one"}, "x": 1}, "it.x: unknown field"),
        ({"inner": {"word": "tow"}}, "it.inner.word='tow': expected 'one' or 'two'; did you mean 'two'?"),
        ({"inner": {"word": "one", "wrod": 1}}, "it.inner.wrod: unknown field; did you mean 'word'?"),
        ({"inner": {"word": "one"}, "maybe": {"word": "one", "wrod": 1}}, "it.maybe.wrod: unknown field; did you mean"),
        ({"inner": {"word": "one", "rates": [1, "2"]}}, "it.inner.rates[1]='2': expected a number"),
        ({"inner": {"word": "one", "counts": {"a": 1.5}}}, "it.inner.counts.a=1.5: expected an integer"),
        ({"inner": {"word": "one", "counts": {"a": True}}}, "it.inner.counts.a=True: expected an integer"),
        ({"inner": None}, "it.inner=None: expected "),
        ({}, "it.inner: missing"),
        ([], "it=[]: expected "),
        ("x" * 10_000, "it='xxx"),
    ],
)
def test_from_json_misfit_is_named_by_field(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match="it") as caught:
        from_json(Outer, value, "it")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_from_json_fitting_value_is_returned() -> None:
    outer = Outer(inner=Inner(word="one", rates=(1.0, 2.5)), maybe=Inner(word="two", counts={"a": 3}))
    assert from_json(Outer, through_json(outer), "it") == outer
    assert from_json(Outer, {"inner": {"word": "one", "rates": [1]}}, "it").inner.rates == (1.0,)


@pytest.mark.parametrize(("name", "schema"), [("spec", json_schema(RunSpec)), ("record", record_schema())])
def test_schema_in_docs_is_current(name: str, schema: dict[str, Any]) -> None:
    """BAKEOFF_UPDATE_SCHEMAS=1 writes the file instead of comparing it."""
    path = ROOT / "docs" / f"{name}.schema.json"
    text = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("BAKEOFF_UPDATE_SCHEMAS"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, "run the tests with BAKEOFF_UPDATE_SCHEMAS=1"


def test_canonical_json_not_finite_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        canonical_json({"a": float("nan")})
