"""Who may import whom, and what the command line must not load."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
from command_line import FRAMEWORKS
from places import ROOT

from impls import registry

LAYERS = """
    api
    cli
    reporting
    audit
    analysis
    execution
    conformance
    speed
    training
    evaluation
    data
    processes
    storage
    experiments
    text impls
"""
"""A folder of `harness` may import the lines below its own. `training.self_check` alone uses `conformance`."""

IMPLS_LAYERS = """
    baselines
    learned_positions sinusoidal_handmade conv_ffn paper plain tuned torch_reference bahdanau_gru pytorch keras3
    formulas flops weights
    registry recipes
    contract
    field_checks
"""
"""Likewise for `impls`: variants and frameworks know one another only through the rules below."""

HARNESS_MAY_USE = {"contract", "field_checks", "weights", "recipes", "registry", "formulas", "flops", "__init__"}
HARNESS_MAY_USE |= {"baselines.protocol"}
EXCEPTIONS = {("harness.training.self_check", "harness.conformance")}


@functools.cache
def modules() -> dict[str, ast.Module]:
    """Return the syntax tree of every module by its dotted name; packages end in `.__init__`."""
    paths = [path for folder in ("impls", "harness") for path in sorted((ROOT / folder).rglob("*.py"))]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in zip(names, paths, strict=True)}


def imports(tree: ast.AST, *, nested: bool) -> Iterator[str]:
    """Yield what a tree imports: everything, or only what is imported when the module is."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            for alias in node.names:
                full = f"{module}.{alias.name}"
                yield full if full in modules() or f"{full}.__init__" in modules() else module
        elif nested or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports(node, nested=nested)


def top(names: Iterator[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def ranks(layers: str) -> dict[str, int]:
    return {name: rank for rank, line in enumerate(layers.strip().split("\n")) for name in line.split()}


def test_imports_nested_ones_are_told_apart() -> None:
    tree = ast.parse("import a\nif x:\n    import b\nclass C:\n    import c\n    def f(self):\n        import d.e\n")
    assert list(imports(tree, nested=False)) == ["a", "b", "c"]
    assert list(imports(tree, nested=True)) == ["a", "b", "c", "d.e"]


def test_harness_folders_import_downwards_only() -> None:
    rank, wrong = ranks(LAYERS), []
    for name, tree in modules().items():
        folder = name.split(".")[1]
        if not name.startswith("harness.") or folder in ("__init__", "__main__"):
            continue
        for imported in imports(tree, nested=True):
            parts = imported.split(".")
            if parts[0] not in ("harness", "impls") or imported == "harness":
                continue
            other = "impls" if parts[0] == "impls" else parts[1]
            if other != folder and rank[other] <= rank[folder] and (name, f"harness.{other}") not in EXCEPTIONS:
                wrong.append(f"{name} imports {imported}")
    assert not wrong
    assert {name.split(".")[1] for name in modules() if name.startswith("harness.")} - {"__init__", "__main__"} == (
        rank.keys() - {"impls"}
    )


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in (ROOT / "harness").glob("*/__init__.py")))
def test_harness_folder_names_those_that_import_it(folder: str) -> None:
    importing = {
        name.split(".")[1]
        for name, tree in modules().items()
        if any(imported.startswith(f"harness.{folder}.") for imported in imports(tree, nested=True))
    }
    sentence = re.search(r"Imported by ([^.]*)\.", ast.get_docstring(modules()[f"harness.{folder}.__init__"]) or "")
    assert sentence is not None
    assert set(re.findall(r"`(\w+)`", sentence[1])) == importing - {folder, "__main__"}


def test_impls_import_downwards_only_and_never_the_harness() -> None:
    rank, wrong = ranks(IMPLS_LAYERS), []
    for name, tree in modules().items():
        if not name.startswith("impls.") or name == "impls.__init__":
            continue
        part = name.split(".")[1]
        for imported in imports(tree, nested=True):
            parts = imported.split(".")
            if parts[0] == "harness" or (parts[0] == "impls" and len(parts) > 1 and rank[parts[1]] < rank[part]):
                wrong.append(f"{name} imports {imported}")
    assert not wrong


def test_harness_uses_models_through_the_registry() -> None:
    for name, tree in modules().items():
        if name.startswith("harness."):
            used = {one.removeprefix("impls.") for one in imports(tree, nested=True) if one.startswith("impls.")}
            assert used <= HARNESS_MAY_USE, name


@pytest.mark.parametrize("module", sorted(HARNESS_MAY_USE - {"baselines.protocol"}))
def test_contract_and_registry_need_numpy_alone(module: str) -> None:
    found = top(imports(modules()[f"impls.{module}"], nested=True))
    assert found <= {"numpy", "impls"} | set(sys.stdlib_module_names)


def test_torch_and_keras_share_no_layer() -> None:
    variants = {name for name in registry.names() if f"impls.{name}" in modules()}
    assert {"learned_positions", "bahdanau_gru", "torch_reference"} <= variants
    for name, tree in modules().items():
        part, at_import = name.split(".")[1], top(imports(tree, nested=False))
        everything = list(imports(tree, nested=True))
        if part == "pytorch" or part in variants:
            assert not top(iter(everything)) & (FRAMEWORKS - {"torch"}), name
            assert not [one for one in everything if one.startswith("impls.keras3")], name
        if part == "keras3":
            assert not at_import & (FRAMEWORKS - {"keras"}), name
            # What differs between backends is in one file, and loaded when it is needed.
            assert name == "impls.keras3.backends" or not top(iter(everything)) & (FRAMEWORKS - {"keras"}), name
            assert not [one for one in everything if one.startswith("impls.pytorch")], name


def test_harness_loads_no_framework_at_import_time() -> None:
    for name, tree in modules().items():
        if name.startswith("harness."):
            assert not top(imports(tree, nested=False)) & FRAMEWORKS, name
            if name.split(".")[1] in ("reporting", "analysis"):
                assert not top(imports(tree, nested=True)) & FRAMEWORKS, name


def test_every_module_starts_with_a_sentence() -> None:
    for name, tree in modules().items():
        text = ast.get_docstring(tree)
        assert text, f"{name} has no docstring"
        assert text.split("\n\n")[0].strip().endswith((".", ":")), f"{name}: the first paragraph is not a sentence"


def test_no_file_name_is_used_twice() -> None:
    leaves = Counter(name.rpartition(".")[2] for name in modules())
    assert [leaf for leaf, times in leaves.items() if times > 1] == ["__init__"]


def test_no_public_class_name_is_used_twice() -> None:
    """A layer may have the same name in torch, in Keras and in the tutorials' code; nothing else may."""
    classes: dict[str, list[str]] = {"torch": [], "keras": [], "plain": []}
    for name, tree in modules().items():
        kind = "keras" if name.startswith("impls.keras3") else "plain" if name == "impls.plain" else "torch"
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[kind].append(node.name)
    for names in classes.values():
        assert not [name for name, times in Counter(names).items() if times > 1]


def test_harness_top_level_stays_small() -> None:
    assert len([name for name in modules() if name.startswith("harness.") and name.count(".") == 1]) <= 4


def test_files_have_at_most_400_lines_and_functions_50() -> None:
    for path in (
        path for folder in ("impls", "harness", "tests", "examples") for path in (ROOT / folder).rglob("*.py")
    ):
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 50, f"{path}: {node.name}"
