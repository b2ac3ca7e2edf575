"""Who may import whom; and what the command line must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from impls import registry

ROOT = Path(__file__).resolve().parents[1]
FRAMEWORKS = {"torch", "tensorflow", "jax", "keras"}
HEAVY = FRAMEWORKS | {"spacy", "matplotlib"}
FILES = sorted(path.relative_to(ROOT) for folder in ("impls", "harness") for path in (ROOT / folder).rglob("*.py"))

NOTHING_ELSE: set[str] = set()
KERAS_NETWORKS = {"impls.keras3.keras_transformer", "impls.keras3.gru"}
KERAS_PARTS = {"impls.keras3.keras_packing", "impls.keras3.keras_positions"}
KERAS = {*KERAS_NETWORKS, *KERAS_PARTS, "impls.keras3.backends", "impls.keras3.compiled", "impls.keras3.keras_adapter"}
PEER_MAY = {"impls.contract", "impls.baselines.protocol", "impls.baselines.baseline_weights"}
TORCH_PARTS = {"impls.pytorch.torch_packing", "impls.pytorch.cpu_kernels", "impls.pytorch.dropout"}
NUMPY_PEERS = [
    "impls.peers",
    "impls.baselines.protocol",
    "impls.baselines.baseline_registry",
    "impls.baselines.baseline_weights",
]
ALLOWED = {
    "impls": {"impls.contract", "impls.registry"},
    "impls.contract": NOTHING_ELSE,
    "impls.weights": {"impls.contract"},
    "impls.recipes": {"impls.contract"},
    "impls.registry": {"impls.contract", "impls.recipes"},
    "impls.pytorch.torch_packing": {"impls.contract"},
    "impls.pytorch.cpu_kernels": {"impls.pytorch.torch_packing"},
    "impls.pytorch.dropout": {"impls.pytorch.cpu_kernels"},
    "impls.pytorch.kv_cache": NOTHING_ELSE,
    "impls.pytorch.plain_adapter": {
        *("impls.contract", "impls.weights", "impls.plain", "impls.pytorch.torch_adapter", "impls.pytorch.dropout"),
    },
    "impls.pytorch.weight_names": {"impls.contract"},
    "impls.pytorch.attention": {"impls.contract", "impls.pytorch.kv_cache", *TORCH_PARTS},
    "impls.pytorch.torch_adapter": {"impls.contract", "impls.weights", "impls.pytorch.weight_names", *TORCH_PARTS},
    "impls.pytorch.cuda_graph_decoding": {
        "impls.contract",
        "impls.pytorch.torch_adapter",
        "impls.pytorch.kv_cache",
        "impls.pytorch.torch_transformer",
    },
    "impls.pytorch.cuda_graph_training": {
        "impls.contract",
        "impls.pytorch.torch_adapter",
        "impls.pytorch.cuda_graph_decoding",
    },
    "impls.keras3.compiled": {
        *("impls.contract", "impls.weights", "impls.keras3.backends", "impls.keras3.keras_packing"),
        *KERAS_NETWORKS,
    },
    "impls.keras3.keras_adapter": {
        *(
            "impls.contract",
            "impls.weights",
            "impls.keras3.backends",
            "impls.keras3.keras_packing",
            "impls.keras3.compiled",
        ),
    },
    "impls.keras3.keras_transformer": {"impls.contract", "impls.keras3.keras_packing", "impls.keras3.keras_positions"},
    "impls.keras3.gru": {"impls.contract", "impls.keras3.keras_packing"},
    "impls.keras3.backends": {"impls.contract"},
    **dict.fromkeys(KERAS_PARTS, NOTHING_ELSE),
    "impls.pytorch.torch_transformer": {
        "impls.contract",
        "impls.pytorch.attention",
        "impls.pytorch.kv_cache",
        *TORCH_PARTS,
    },
    "impls.peers": NOTHING_ELSE,
    "impls.baselines.protocol": {"impls.contract"},
    "impls.baselines.baseline_registry": {"impls.contract", "impls.baselines.protocol"},
    "impls.baselines.baseline_weights": {"impls.contract", "impls.weights"},
    "impls.baselines.training_loop": {"impls.contract", "impls.baselines.baseline_weights"},
    "impls.baselines.naive_search": {"impls.contract", "impls.baselines.protocol"},
    "impls.baselines.tutorial": {
        *PEER_MAY,
        "impls.plain",
        "impls.baselines.training_loop",
        "impls.baselines.naive_search",
    },
    "impls.baselines.torch_nn": {*PEER_MAY, "impls.baselines.training_loop"},
    "impls.baselines.marian": {*PEER_MAY, "impls.baselines.training_loop"},
    "impls.baselines.ctranslate2": PEER_MAY,
}
VARIANT_MAY = {"impls.contract", "impls.recipes", "impls.pytorch.kv_cache", "impls.pytorch.torch_packing"}
HARNESS_MAY = {"impls", "impls.contract", "impls.weights", "impls.recipes", "impls.registry"}
HARNESS_MAY |= {"impls.baselines.protocol", "impls.baselines.baseline_registry"}
REPORTING_MAY = {"impls.contract", "impls.recipes", "impls.weights"}
REPORTING_HARNESS = {
    "harness.experiments.specs",
    "harness.storage.files",
    "harness.storage.run_store",
    "harness.evaluation.metrics",
    "harness.training.schedules",
}
REPORTING_HARNESS |= {
    "harness.execution.rate_tuning",
    "harness.speed.timing",
    "harness.speed.speed_document",
    "harness.speed.document_store",
    "harness.speed.checked",
}
PARTS = {"impls.pytorch.torch_transformer", "impls.pytorch.torch_adapter"}
"""The files that put the variants' parts together, and so may import the variants."""


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}
VARIANTS = {f"impls.{name}" for name in registry.names() if f"impls.{name}" in MODULES}


def imports(path: Path, *, nested: bool) -> Iterator[str]:
    """Yield the modules that a file imports: all of them, or those imported when it is."""
    yield from imports_of(ast.parse((ROOT / path).read_text(encoding="utf-8")), nested=nested)


def imports_of(tree: ast.AST, *, nested: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            module = node.module or ""
            # `from impls import registry` imports impls.registry; `from impls.registry import load` does not.
            yield from (
                f"{module}.{alias.name}" if f"{module}.{alias.name}" in MODULES else module for alias in node.names
            )
        elif nested or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imports_of(node, nested=nested)


def tops(modules: Iterator[str]) -> set[str]:
    return {module.split(".")[0] for module in modules}


def ours(modules: Iterator[str], package: str) -> set[str]:
    return {module for module in modules if module.split(".")[0] == package}


def test_variants_are_there_to_be_checked() -> None:
    assert {"impls.learned_positions", "impls.bahdanau_gru", "impls.torch_reference"} <= VARIANTS
    assert {
        "harness.experiments.specs",
        "harness.conformance.law_runner",
        "impls.pytorch.torch_adapter",
    } <= MODULES.keys()


def test_nested_imports_are_told_from_those_at_import_time() -> None:
    tree = ast.parse("import a\nif x:\n    import b\nclass C:\n    import c\n    def f(self):\n        import d.e\n")
    assert list(imports_of(tree, nested=False)) == ["a", "b", "c"]
    assert list(imports_of(tree, nested=True)) == ["a", "b", "c", "d.e"]


@pytest.mark.parametrize("module", [module for module in MODULES if module.split(".")[0] == "impls"])
def test_models_import_what_the_design_allows(module: str) -> None:
    path = MODULES[module]
    found = ours(imports(path, nested=True), "impls")
    if module in VARIANTS:
        assert found <= VARIANT_MAY
    else:
        allowed = ALLOWED[module] | (VARIANTS | {"impls.pytorch.torch_transformer"} if module in PARTS else set())
        assert found <= allowed
    assert "harness" not in tops(imports(path, nested=True))


@pytest.mark.parametrize(
    "module", ["impls", "impls.contract", "impls.weights", "impls.recipes", "impls.registry", *NUMPY_PEERS]
)
def test_the_contract_needs_numpy_alone(module: str) -> None:
    found = tops(imports(MODULES[module], nested=True))
    assert found <= {"numpy", "impls"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", sorted(VARIANTS | PARTS))
def test_torch_models_import_no_other_framework_and_keras_not_torch(module: str) -> None:
    assert not tops(imports(MODULES[module], nested=True)) & (FRAMEWORKS - {"torch"})


@pytest.mark.parametrize("module", sorted(KERAS))
def test_keras_models_import_keras_alone(module: str) -> None:
    """The networks know Keras and NumPy only; what differs between backends is in one file, and loaded when needed."""
    at_import, later = (tops(imports(MODULES[module], nested=nested)) for nested in (False, True))
    assert not at_import & (FRAMEWORKS - {"keras"})
    if module in KERAS_NETWORKS | KERAS_PARTS:
        assert later <= {"keras", "numpy", "impls"} | set(sys.stdlib_module_names)
    elif module != "impls.keras3.backends":
        assert not later & (FRAMEWORKS - {"keras"})


def test_keras_and_torch_share_no_layer() -> None:
    torch_s = VARIANTS | PARTS
    for module in KERAS:
        assert not ours(imports(MODULES[module], nested=True), "impls") & torch_s
    for module in torch_s:
        assert not ours(imports(MODULES[module], nested=True), "impls") & KERAS


@pytest.mark.parametrize("module", [module for module in MODULES if module.split(".")[0] == "harness"])
def test_the_harness_loads_no_framework_and_no_model_at_import_time(module: str) -> None:
    path = MODULES[module]
    assert not tops(imports(path, nested=False)) & FRAMEWORKS
    assert ours(imports(path, nested=True), "impls") <= HARNESS_MAY
    if module.startswith("harness.reporting"):
        assert not tops(imports(path, nested=True)) & FRAMEWORKS
        assert ours(imports(path, nested=True), "impls") <= REPORTING_MAY
        own = {one for one in ours(imports(path, nested=True), "harness") if not one.startswith("harness.reporting")}
        assert own <= REPORTING_HARNESS


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_in_a_sentence_what_it_is_for(module: str) -> None:
    text = ast.get_docstring(ast.parse((ROOT / MODULES[module]).read_text(encoding="utf-8")))
    assert text, f"{module} has no docstring"
    assert text.split("\n\n")[0].strip().endswith((".", ":")), f"{module}: the first paragraph is not a sentence"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], *([name, "--help"] for name in ("laws", "check", "compare", "report", "speed"))],
)
def test_the_command_line_starts_without_frameworks(arguments: list[str]) -> None:
    code = (
        "import runpy, sys\n"
        f"sys.argv = ['harness', *{arguments!r}]\n"
        "try:\n    runpy.run_module('harness', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        f"print('LOADED', sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("LOADED []\n"), done.stdout[-200:]
