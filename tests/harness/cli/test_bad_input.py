"""Bad input is one line on standard error with exit code 2, and nothing is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import Refused

from harness.data import preprocess, tokenizer_process

pytestmark = pytest.mark.usefixtures("offline", "empty_folder")


BAD = {
    "": "the following arguments are required: COMMAND; see python -m harness --help",
    "compare": "are required: SIDE; see python -m harness compare --help",
    "bnch": "did you mean 'bench'?",
    "bench --sed 3": "there is no argument '--sed'; did you mean '--seed'?",
    "bench --patience 3": "there is no argument '--patience'; give --set training.patience=VALUE\n",
    "run --batch-size=8": "give --set training.batch_size=VALUE or --set decoding.batch_size=VALUE",
    "run --variant paper": "there is no argument '--variant'; give the variant without it",
    "run --config dropout.toml": "there is no argument '--config'\n",
    "check .": "there is no argument '.'; did you mean '--results .'?",
    "bench --suite quik": "'quik' is not one of quick, standard, full; did you mean 'quick'?",
    "bench --variant counting_model:biuld": "did you mean 'build'?",
    "bench --variant no_module:NAME": "there is no module 'no_module'",
    "bench --epochs 0": "'0' is not a whole number of at least 1",
    "bench --direction de": "direction='de'",
    "bench --corpus captions --direction fr-en": "direction='fr-en'",
    "bench --set dropout=0.2": "did you mean 'recipe.dropout'?",
    "bench --set recipe.positions=alibi": "bahdanau_gru has no setting 'recipe.positions'; change it in one variant",
    "settings counting_model:build --set recipe.width=3": "build is a builder and has no recipe; change its code",
    "bench --set paper:recipe.heads=3": "paper: TransformerRecipe.heads=3: expected a divisor",
    "bench --corpus captions --set data.test_split=test_2018": "it is test_2016_flickr, test_2017_flickr",
    "bench experiment.toml": "did you mean '--config experiment.toml'?",
    "bench --config missing.toml": "missing.toml: No such file or directory",
    "compare a b --fail-on bleu_sacer<1": "did you mean 'bleu_sacre'?",
    "compare a b --fail-on bleu_sacre=1": "give METRIC<NUMBER",
    "compare a b --fail-on bleu_sacre<x": "'x' is not a finite number",
    "compare a b": "side 'a': there is no such file, and no folder results/local of results\n",
    "compare a b --results .": "see the runs with: python -m harness list --results .\n",
    "bench paper": "did you mean '--variant paper'?",
    "bench quick": "did you mean '--suite quick'?",
    "ablate norm": "did you mean '--field norm'?",
    "check some-run": "did you mean '--run some-run'?",
    "check --explain X": "no rule has this code; --verbose lists all codes\n",
    "check --explain C-28": "no rule has this code; did you mean 'C28'?\n",
    "run PAPER": "there is no variant 'PAPER'; did you mean 'paper'? (known: ",
    "bench --set recipe.width=129": "heads=8: expected a divisor of width=129",
    "bench --corpus multi30k": "MULTI30K_DIR",
    "ablate --field norm --suite full": "; or train the suite full on the built-in sentences with --corpus captions",
    "bench --suite standard": "; or train the suite standard on the built-in sentences with --corpus captions",
    "bench --corpus captions --tokenizer whitespace --framework tensroflow": "'tensroflow' is not one of torch, keras",
    "bench --corpus captions --tokenizer whitespace --variant paper --set recipe.tying=all": "data.vocabulary=joint",
    "bench --corpus captions --tokenizer sentencepiece-bpe --set data.vocabulary_size=60 --set recipe.tying=all "
    "--variant paper": "one embedding for both languages needs one vocabulary: give --set data.vocabulary=joint",
    "run": "the variant is missing",
    "run paper --corpus files": "--corpus files needs --train-source, --validation-source, --test-source",
    "run paper --train-source x": "--corpus files needs --validation-source, --test-source",
    "run paper --corpus captions --train-source x": "--corpus captions: it is only for --corpus files",
    "run paper --set data.files=x": "'files' is none in this run and cannot be set",
    "run counting_model:build --set recipe=x": "'recipe' is none in this run and cannot be set",
    "run paper --set variant=plain": "the variant is no setting",
    "bench --set budget=source": "the budget is no setting",
    "run paper --corpus captions --set training.batch_tokens=9": "here: only training.batching=tokens uses it",
    "bench --corpus captions --set data.merges=9": "has no effect here: only the tokenizer moses-bpe uses it",
    "bench --corpus captions --set paper:training.teacher_forcing=0": "only a recurrent model uses it",
    "run paper --set plain:recipe.layers=1": "no run is of the variant 'plain'",
    "settings paper --set papr:recipe.layers=1": "did you mean 'paper'?",
    "run paper --corpus captions --tokenizer whitespace --device cudda": "device 'cudda' is not available",
    "run paper --corpus captions --set data.max_length=200": "data.max_length=200",
    "data --set recipe.width=3": "only settings of the corpus",
    "data --corpus multi30k": "MULTI30K_DIR",
    "new two-words": "'two-words' is not the name of a Python module",
    "new class": "'class' is not the name of a Python module",
    "new torch": "another module as 'torch'",
    "laws --law 15": "15 is not one of 1, 2",
    "laws --backend jax": "--backend jax requires --framework keras",
    "bench --corpus captions --variant paper --backend jax": "--backend jax requires --framework keras",
    "bench --corpus captions --framework keras --variant torch_reference": "has no 'torch_reference'",
    "run paper --corpus captions --set backend=jax": "framework='torch'",
    "translate --run nothing Hallo": "run 'nothing': there is none",
    "score": "there is no completed run",
    "score --run nothing": "run 'nothing': there is none",
    "report": "there is no record in it",
    "ablate --base bahdanau_gru": "base 'bahdanau_gru' is of the family 'gru', which has none of these fields",
    "ablate --base counting_model:build": "is a builder, which has none of these fields",
    "ablate --base papre": "did you mean 'paper'?",
    "ablate --field dropout": "; to compare values of another setting, train each with bench --set\n",
    "ablate --field norms": "'norms' is not one of positions, norm, ",
    "ablate --field norm=rmz": "norm: 'rmz' is not one of layernorm, handmade, rms, none; did you mean 'rms'?",
    "ablate --base paper --field norm=layernorm": "--field norm=layernorm: the base has this level; name others",
    "ablate --field norm=": "norm: '' is not one of layernorm",
    "ablate --field norm --factorial": "--factorial with --field norm alone: give --field twice or more",
    "ablate --budget source": "there is no argument '--budget'",
    "ablate --tune-rate 1e-3,0.001": "give two or more different learning rates",
    "ablate --tune-rate 1e-3,-1": "learning rates above 0",
    "ablate --tune-rate 1e-3,inf": "learning rates above 0",
    "ablate --pilot-epochs 2": "--pilot-epochs without --tune-rate: give the learning rates to try",
    "ablate --tune-rate 1e-3,2e-3 --pilot-epochs 4 --corpus captions": "--pilot-epochs 4: give at most 2",
    "bench --budget pilot": "--budget",
    "run paper --budget tuned": "--budget",
    "bench --seed 4-0": "'4-0': a range ascends, as in 0-4, and has at most",
    "speed --from .": "a folder, expected a file",
    "bench --plan 0.5": "give detect=NUMBER",
    "bench --plan detect=0": "the number is positive",
    "bench --plan detect=1,bleu_sacer": "did you mean 'bleu_sacre'?",
    "run paper --corpus captions --cuda-graphs on": "paper: cuda_graphs='on' with ",
    "ablate --cuda-graphs on --corpus captions --device cpu --field norm": "learned_positions: cuda_graphs='on' with ",
    "speed --variant torch_reference --corpus captions --device cuda --cuda-graphs on": "cuda_graphs='on' with ",
    "check --rerun-epoch": "--rerun N",
    "speed --baseline plane": "did you mean 'plain'?",
    "speed --baseline none --baseline plain": "give one or the other",
    "speed --beam 2000 --corpus captions --tokenizer whitespace --size toy": "beam=2000",
    "speed --silence soon": "'soon' is not a number of seconds",
    "speed --corpus captions --tokenizer whitespace --weights nothing": "run 'nothing': there is none in",
    "speed --corpus captions --tokenizer whitespace --device tpu": "device 'tpu' is not available",
}


@pytest.mark.parametrize("line", BAD, ids=lambda line: line or "nothing")
def test_bad_options_are_refused(line: str, tmp_path: Path, refused: Refused) -> None:
    refused(line.split(), BAD[line])
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("line", ["bench --results", "run paper --results", "report --reports", "check --results"])
def test_file_in_place_of_a_folder_is_refused(line: str, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    refused([*line.split(), str(path)], f"{str(path)!r} is a file, not a folder")


@pytest.mark.parametrize("line", ["bench --variant paper", "run paper"])
def test_missing_library_for_scores_is_refused_before_training(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setattr(preprocess, "_versions", lambda data: {"sacremoses": ""})
    refused([*line.split(), "--corpus", "captions", "--tokenizer", "whitespace"], "sacremoses is not installed: python")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_end_of_the_tokenizer_process_is_one_line(monkeypatch: pytest.MonkeyPatch, refused: Refused) -> None:
    monkeypatch.setattr(tokenizer_process, "MODULE", "a_module_that_ends")
    refused(["bench", "--corpus", "captions", "--set", "data.seed=1234567"], "the tokenizer process failed: ")


@pytest.mark.parametrize("name", ["./mine.py", "mine.py:build", "folder/mine.py:build"])
def test_file_as_a_variant_is_refused_with_the_name_of_its_module(name: str, refused: Refused) -> None:
    message = refused(["laws", "--variant", name], "is a file")
    assert re.search(r"such as mine:(NAME|build)$", message.strip())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NETWORK", "is of type Network"),
        ("Network", "is the class Network"),
        ("NUMBER", "is of type int"),
        ("failing_builder", "fails with RuntimeError: no such file (no_variants.py, line 24)"),
        ("builder_of_nothing", "returned an object of type NoneType"),
    ],
)
def test_other_objects_are_no_variants(name: str, message: str, refused: Refused) -> None:
    assert "impls.wrap" in refused(["laws", "--variant", f"no_variants:{name}"], f"'no_variants:{name}' {message}")
