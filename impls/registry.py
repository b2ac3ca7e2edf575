"""Looks up recipes, trainings, model builders and baselines by name. Builders are imported only when they are used."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from impls.contract import Arrays, Backend, Compiling, Recipe, Seq2SeqModel, Training
from impls.recipes import RECIPES, TRAININGS

BUILDERS: dict[tuple[str, str], str] = {
    ("transformer", "torch"): "impls.pytorch.torch_adapter:build",
    ("gru", "torch"): "impls.pytorch.torch_adapter:build",
    ("torch_reference", "torch"): "impls.pytorch.torch_adapter:build",
    ("plain", "torch"): "impls.pytorch.plain_adapter:build",
    ("transformer", "keras"): "impls.keras3.keras_adapter:build",
    ("gru", "keras"): "impls.keras3.keras_adapter:build",
}
"""The builder ("module:name") of each pair of family and framework."""

GRAPH_BUILDERS: dict[tuple[str, str], str] = {("transformer", "torch"): "impls.pytorch.cuda_graph_training:build"}
"""The builders of models that train and decode with CUDA graphs."""

INSTALL = {
    "torch": "python -m pip install '.[torch]'",
    "keras": "python -m pip install '.[keras]'",
    "tensorflow": "python -m pip install '.[keras]'",
    "jax": "python -m pip install '.[keras,jax]'",
}
"""How to install each framework and each backend."""

BACKENDS: tuple[str, ...] = get_args(Backend)

EXTERNAL_VARIANT = (
    "an external variant is a recipe, or a function build(source_vocabulary_size, target_vocabulary_size, *, training, "
    "seed, device, precision, dropout=None) that returns a Seq2SeqModel; impls.wrap makes one from a torch module"
)
"""What `--variant package.module:NAME` accepts. `dropout` is optional: the laws use it to switch dropout off."""


def names() -> tuple[str, ...]:
    """Return the names of the built-in variants."""
    return tuple(RECIPES)


def recipe(name: str) -> Recipe:
    """Return the recipe of a built-in variant. Raises: ValueError with the nearest name."""
    return RECIPES[_known(name)]


def training(name: str) -> Training:
    """Return the training settings that a built-in variant's source uses. Raises: ValueError with the nearest name."""
    return TRAININGS[_known(name)]


def find_builder(family: str, framework: str, backend: str | None = None) -> str:
    """Return the builder ("module:name") of `family` in `framework`, without importing it.

    Raises:
        ValueError: There is no such builder, or the framework or the Keras backend is not installed; the message says
            what to install.
    """
    if (family, framework) not in BUILDERS:
        frameworks = ", ".join(sorted(other for known, other in BUILDERS if known == family))
        raise ValueError(f"framework {framework!r} has no {family!r}: use {frameworks}")
    if backend is not None and framework != "keras":
        raise ValueError(f"backend {backend!r} needs framework 'keras', not {framework!r}")
    reason = missing(framework, backend)
    if reason:
        raise ValueError(reason)
    return BUILDERS[family, framework]


def missing(framework: str, backend: str | None = None) -> str:
    """Return which package of "torch" or "keras" is not installed and how to install it; empty if nothing is missing.

    Raises:
        ValueError: The Keras backend is unknown.
    """
    needed = [framework]
    if framework == "keras":
        needed.append(backend or os.environ.get("KERAS_BACKEND") or BACKENDS[0])
        if needed[1] not in BACKENDS:
            raise ValueError(f"unknown Keras backend {needed[1]!r}: use {', '.join(BACKENDS)}")
    for name in needed:
        if importlib.util.find_spec(name) is None:
            return f"{name!r} is not installed: {INSTALL[name]}"
    return ""


def builder(
    family: str, framework: str, backend: str | None = None, *, cuda_graphs: bool = False
) -> Callable[..., Any]:
    """Import and return the builder of `family` in `framework`.

    Raises:
        ValueError: As in `find_builder`; or `cuda_graphs` is not implemented for this pair; or this process already
            runs Keras on another backend, which is fixed at the first import of Keras.
    """
    path = find_builder(family, framework, backend)
    if cuda_graphs:
        if (family, framework) not in GRAPH_BUILDERS:
            pairs = " or ".join(f"{known!r} in {other!r}" for known, other in GRAPH_BUILDERS)
            raise ValueError(f"cuda_graphs=True is not implemented for {family!r} in {framework!r}, only for {pairs}")
        path = GRAPH_BUILDERS[family, framework]
    if framework == "keras" and backend is not None:
        keras = sys.modules.get("keras")
        if keras is not None and keras.config.backend() != backend:
            raise ValueError(
                f"backend {backend!r}: this process already runs Keras on {keras.config.backend()!r}, which cannot be "
                "changed: start another process (in a notebook, restart the kernel)"
            )
        os.environ["KERAS_BACKEND"] = backend
    return load(path)


def set_matmul_precision(model: Seq2SeqModel, name: str) -> None:
    """Let a model multiply float32 matrices in a lower precision; "highest" leaves it as it is.

    Raises:
        ValueError: The model does not support it, or the setting has no effect on its device.
    """
    if name == "highest":
        return
    setter = getattr(model, "set_matmul_precision", None)
    if setter is None:
        raise ValueError(
            f"matmul_precision={name!r} is not implemented for {type(model).__name__}, only for built-in models in "
            "torch and modules in impls.wrap: use 'highest', or precision='bfloat16'"
        )
    setter(name)


def training_products(name: str, device: str) -> AbstractContextManager[None]:
    """Return a context in which torch multiplies float32 matrices as packed models do in training."""
    return load("impls.pytorch.matmul_precision:training_products")(name, device)


def no_effect(name: str, device: str) -> str:
    """Return the message for a precision of matrix products that changes nothing on a device."""
    return (
        f"matmul_precision={name!r} has no effect on device={device!r} of this machine: 'high' needs a GPU with TF32, "
        "'medium' such a GPU or a CPU with bfloat16 products (AMX); use 'highest', or precision='bfloat16'"
    )


def load(path: str) -> Any:
    """Return the object that "package.module:NAME" names. Raises: ValueError saying which part is missing."""
    module_name, _, attribute = path.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        raise ValueError(_file_hint(module_name, attribute or "NAME"))
    if not module_name or not attribute:
        raise ValueError(f"{path!r} does not name an object: write package.module:NAME")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(f"{path!r}: there is no module {error.name!r}") from error
    except SyntaxError as error:
        raise ValueError(f"{path!r}: {error.filename}, line {error.lineno}: {error.msg}") from error
    if not hasattr(module, attribute):
        raise ValueError(f"{path!r}: {module_name} has no {attribute!r}{_hint(attribute, vars(module))}")
    return getattr(module, attribute)


def source_digest(path: str) -> str:
    """Return the SHA-256 of the file of "package.module:NAME"; empty if there is no such file.

    If NAME is a function that the module imports from another one, the digest is that of both files together.
    Raises: as `load`.
    """
    builder = load(path)
    names = [path.partition(":")[0], *([builder.__module__] if inspect.isfunction(builder) else [])]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in dict.fromkeys(names)]
    content = b"".join(Path(file).read_bytes() for file in files if file and Path(file).is_file())
    return hashlib.sha256(content).hexdigest() if content else ""


def framework_of(path: str) -> str:
    """Return "keras" if the module of an external builder uses names of `impls.keras3`, else "torch".

    The builder is not called. Raises: as `load`.
    """
    load(path)
    names = vars(sys.modules[path.partition(":")[0]]).values()
    origins = (getattr(value, "__name__" if isinstance(value, ModuleType) else "__module__", "") for value in names)
    return "keras" if any(str(origin).startswith("impls.keras3") for origin in origins) else "torch"


def build_external(
    path: str, *vocabulary_sizes: int, matmul_precision: str = "highest", **settings: Any
) -> Seq2SeqModel:
    """Build the model of an external variant "package.module:NAME".

    Raises:
        ValueError: The object is not a function that returns a `Seq2SeqModel`, or this model does not support the
            precision of matrix products.
    """
    builder = load(path)
    check_builder(path, builder)
    model = builder(*vocabulary_sizes, **settings)
    if not isinstance(model, Seq2SeqModel):
        raise ValueError(f"{path!r} returned an object of type {type(model).__name__}; {EXTERNAL_VARIANT}")
    set_matmul_precision(model, matmul_precision)
    return model


def check_computes(path: str, model: Seq2SeqModel, framework: str, backend: str | None) -> None:
    """Raise ValueError if the model of an external variant uses another framework or backend."""
    used = model.compilation().backend if isinstance(model, Compiling) else "torch"  # or no framework at all
    adapter = sys.modules.get("impls.keras3.keras_adapter")
    in_keras = used != "torch" or (adapter is not None and isinstance(model, adapter.KerasModel))
    frameworks = ["keras"] if in_keras else ["torch"]
    if isinstance(model, Compiling):  # on torch, maybe a Keras model that does not use the adapter
        frameworks.append("keras")
    if used not in BACKENDS or (framework in frameworks and used == (backend or framework)):
        return
    choice = {"framework": "keras", "backend": used} if in_keras else {"framework": "torch"}
    chosen = f"keras on {backend}" if backend else framework
    options = " ".join(f"--{name} {value}" for name, value in choice.items())
    raise ValueError(f"{path!r} does not compute with {chosen}: use {options} (in Python: settings={choice})")


def max_length(model: Seq2SeqModel) -> int | None:
    """Return the largest number of positions of a model, which it or its recipe has as `max_length`; None for none."""
    limit = getattr(model, "max_length", getattr(model.recipe, "max_length", None))
    return limit if isinstance(limit, int) else None


def check_builder(path: str, builder: object) -> None:
    """Raise ValueError if the object that `path` names is a class, a torch module or not callable."""
    torch = sys.modules.get("torch")  # where it is not loaded, nothing is one of its modules
    is_module = torch is not None and isinstance(builder, torch.nn.Module)
    if isinstance(builder, type) or not callable(builder) or is_module:
        kind = f"the class {builder.__name__}" if isinstance(builder, type) else f"of type {type(builder).__name__}"
        raise ValueError(f"{path!r} is {kind}; {EXTERNAL_VARIANT}")


def _file_hint(path: str, attribute: str) -> str:
    name = path.rpartition("/")[2].removesuffix(".py")
    return f"{path!r} is a file; a variant is an object in a module that Python can import, such as {name}:{attribute}"


def _known(name: str) -> str:
    if name in RECIPES:
        return name
    if name.endswith(".py"):
        raise ValueError(_file_hint(name, "NAME"))
    accepted = f"known: {', '.join(RECIPES)}, or package.module:NAME"
    raise ValueError(f"there is no variant {name!r}{_hint(name, RECIPES)} ({accepted})")


def _hint(name: str, known: Iterable[str]) -> str:
    by_lower = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name.lower(), list(by_lower), n=1)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


# Baselines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BaselineEntry:
    """The builder of a baseline ("module:name"), the packages it needs and the extras that install them.

    `compute_type` is a number format of CTranslate2 that some machines do not support.
    """

    builder: str
    packages: tuple[str, ...]
    extras: str
    compute_type: str = ""


BASELINES: dict[str, BaselineEntry] = {
    "plain": BaselineEntry("impls.baselines.tutorial:build", ("torch",), "torch"),
    "nn_transformer": BaselineEntry("impls.baselines.torch_nn:build", ("torch",), "torch"),
    "marian": BaselineEntry("impls.baselines.marian:build", ("torch", "transformers"), "torch,baselines"),
    "ctranslate2": BaselineEntry("impls.baselines.ctranslate2:build", ("ctranslate2",), "baselines"),
    "ctranslate2_bfloat16": BaselineEntry(
        "impls.baselines.ctranslate2:build_bfloat16", ("ctranslate2",), "baselines", "bfloat16"
    ),
    "ctranslate2_int8": BaselineEntry("impls.baselines.ctranslate2:build_int8", ("ctranslate2",), "baselines", "int8"),
}


def baseline_names() -> tuple[str, ...]:
    """Return the names of all baselines, installed or not."""
    return tuple(BASELINES)


def missing_baseline(name: str, device: str = "cpu") -> str:
    """Return what a baseline lacks on this machine and, for a package, how to install it; empty if nothing is missing.

    Raises:
        ValueError: There is no such baseline; the message has the nearest name.
    """
    if name not in BASELINES:
        known = ", ".join(BASELINES)
        raise ValueError(f"there is no baseline {name!r}{_hint(name, BASELINES)} (known: {known})")
    for package in BASELINES[name].packages:
        if importlib.util.find_spec(package) is None:
            return f"{package!r} is not installed: python -m pip install '.[{BASELINES[name].extras}]'"
    compute_type = BASELINES[name].compute_type
    if compute_type:
        try:
            supported = load("ctranslate2:get_supported_compute_types")(device)
        except (RuntimeError, ValueError) as error:
            return f"device {device!r} is not available: {str(error).splitlines()[0]}"
        if compute_type not in supported:
            return f"CTranslate2 has no {compute_type} on this {device} (it has {', '.join(sorted(supported))})"
    return ""


def build_baseline(
    name: str,
    recipe: Recipe,
    source_vocabulary_size: int,
    target_vocabulary_size: int,
    *,
    training: Training,
    weights: Arrays,
    device: str = "cpu",
) -> Any:
    """Build a baseline of a recipe's size that starts from the canonical `weights`.

    Returns:
        A `baselines.protocol.Baseline` that is `Trains`, `Decodes` or both.

    Raises:
        ValueError: There is no such baseline, its package is not installed, the weights do not fit, or the baseline
            does not implement a field of the recipe.
    """
    reason = missing_baseline(name, device)
    if reason:
        raise ValueError(reason)
    build = load(BASELINES[name].builder)
    return build(
        recipe, source_vocabulary_size, target_vocabulary_size, training=training, weights=weights, device=device
    )


EXPORTS = {"ctranslate2": "ctranslate2", "huggingface": "marian"}
"""The baseline whose library reads each kind of export."""


def exporter(kind: str) -> Callable[..., None]:
    """Return the function export(recipe, weights, vocabularies, folder, *, search) that writes files for a library.

    `vocabularies` are the source and the target words, and `search` is a `baselines.protocol.Search`.

    Raises:
        ValueError: The library is not installed. The function raises one for recipes that the library cannot express.
    """
    baseline = EXPORTS[kind]
    reason = missing_baseline(baseline)
    if reason:
        raise ValueError(reason)
    return load(f"{BASELINES[baseline].builder.partition(':')[0]}:export")


COMPUTE_TYPES = {entry.compute_type or "float32": name for name, entry in BASELINES.items() if "ctranslate2" in name}
"""The baseline of each number format in which exported weights can be loaded."""


def load_exported(
    compute_type: str,
    recipe: Recipe,
    vocabularies: tuple[Sequence[str], Sequence[str]],
    folder: str,
    *,
    device: str,
) -> Any:
    """Return the `impls.baselines.ctranslate2.CTranslate2` of a folder that the exporter "ctranslate2" wrote.

    Args:
        compute_type: The number format of the weights, one of `COMPUTE_TYPES`.
        recipe: The recipe of the weights.
        vocabularies: The source and the target words.
        folder: The folder. It is read now and not needed afterwards.
        device: The device of the model.

    Raises:
        ValueError: The library lacks the device or the number format here; `missing_baseline` tells before.
    """
    loader = load("impls.baselines.ctranslate2:load_exported")
    return loader(recipe, vocabularies, folder, device=device, compute_type=compute_type)
