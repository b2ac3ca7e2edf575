"""The model card of exported weights: what they are, how they were trained, and code that translates with them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from harness.data.dataset import Dataset
from harness.evaluation.search import suppressed
from harness.experiments.serialization import to_json
from harness.storage.records import RunRecord
from harness.text import count, printable, short_line
from impls.contract import SPECIAL_TOKENS

LIBRARIES = {"ctranslate2": "ctranslate2", "huggingface": "transformers", "safetensors": "bakeoff"}
"""The library that loads each kind of export."""

TOKENIZERS = {
    "spacy": "the tokens of spaCy's blank pipeline of each language",
    "moses": "Moses tokens (sacremoses) without XML escapes",
    "moses-bpe": "Moses tokens with normalised punctuation, split by the merges in *_tokenizer.model (subword-nmt)",
    "sentencepiece-bpe": "the pieces of *_tokenizer.model (SentencePiece)",
    "sentencepiece-unigram": "the pieces of *_tokenizer.model (SentencePiece)",
    "whitespace": "the words between white space",
}
MULTI30K = "Multi30k is for non-commercial research and education; cite Elliott, Frank, Sima'an and Specia (2016)."

SENTENCES = {
    "de": "Ein Hund springt über einen Zaun.",
    "en": "A dog is jumping over a fence.",
    "fr": "Un chien saute par-dessus une clôture.",
}
"""An example in each source language; for other languages there is only a place for one."""
_CTRANSLATE2 = """\
import ctranslate2

{sentences}
translator = ctranslate2.Translator(".", compute_type="float32")
results = translator.translate_batch(
    [["<sos>", *tokens, "<eos>"] for tokens in sentences],
    beam_size={beam},
    length_penalty={length_penalty},
    min_decoding_length=0,
    max_decoding_length={max_tokens},
    suppress_sequences={never},
)
translations = [result.hypotheses[0] for result in results]
print(translations)
"""
_HUGGINGFACE = """\
import json
from pathlib import Path

import torch
from transformers import MarianMTModel

{sentences}
source, target = (json.loads(Path(f"{{side}}_vocabulary.json").read_text("utf-8")) for side in ("source", "target"))
ids = {{word: number for number, word in enumerate(source)}}
model = MarianMTModel.from_pretrained(".")
translations = []
for tokens in sentences:
    row = [ids.get(word, 0) for word in ("<sos>", *tokens, "<eos>")]
    output = model.generate(torch.tensor([row]))[0].tolist()
    translations.append([target[number] for number in output if number not in (1, 2, 3)])
print(translations)
"""
_SAFETENSORS = """\
import json
from pathlib import Path

from safetensors.numpy import load_file

import impls
from harness.data.vocabulary import encode
from harness.evaluation.search import translate
from harness.experiments.specs import DecodingSpec
from impls.contract import {recipe}

{sentences}
source, target = (json.loads(Path(f"{{side}}_vocabulary.json").read_text("utf-8")) for side in ("source", "target"))
config = json.loads(Path("config.json").read_text("utf-8"))
model = impls.build({recipe}(**config["recipe"]), len(source), len(target))
model.set_weights(load_file("model.safetensors"))
decoded = translate(model, encode(sentences, source), DecodingSpec(**config["decoding"]))
translations = [[target[number] for number in translation.tokens] for translation in decoded.translations]
print(translations)
"""
_WEIGHTS_ALONE = """\
from safetensors.numpy import load_file

weights = load_file("model.safetensors")
"""


def text(record: RunRecord, dataset: Dataset, kind: str) -> str:
    """Return the card as Markdown. It has no scores: those are in the record of the run."""
    spec = record.spec
    omitted = ("files",) if spec.data.corpus == "multi30k" else ("files", "test_split")
    data = {name: value for name, value in to_json(spec.data).items() if name not in omitted}
    sections = [
        # Quoted: in YAML 1.1 the code of Norwegian, no, is a boolean.
        f'---\nlanguage: ["{spec.data.source_language}", "{spec.data.target_language}"]\npipeline_tag: translation\n'
        f"library_name: {LIBRARIES[kind]}\n---",
        f"# {short_line(spec.variant)}, {spec.data.direction}",
        f"Run `{short_line(record.id)}`, exported for {LIBRARIES[kind]}.",
        f"## Recipe\n\n{_recipe(record)}",
        f"## Corpus\n\n{_corpus(record, dataset)}\n\n{_block(data)}",
        f"## Training\n\n{_training(record)}\n\n{_block(to_json(spec.training))}",
        f"## Commit\n\n{_commit(record)}",
        f"## Use\n\n{_tokens(dataset)} {_model(record, kind)}",
        f"Run this in the folder of this card:\n\n```python\n{_code(record, kind)}```",
    ]
    return printable("\n\n".join(sections) + "\n")


def _recipe(record: RunRecord) -> str:
    recipe, digest = record.spec.recipe, record.fingerprints.get("builder")
    if recipe is None:
        version = f" It is in a file with the SHA-256 `{short_line(str(digest))}`." if digest else ""
        return f"The model has no recipe: `{short_line(record.spec.variant)}` builds it.{version}"
    return _block(dataclasses.asdict(recipe))


def _block(settings: Any) -> str:
    """Return settings as JSON in a block of code, which no text in them can end."""
    return f"```json\n{json.dumps(settings, indent=1, ensure_ascii=False)}\n```"


def _corpus(record: RunRecord, dataset: Dataset) -> str:
    data, figures = record.spec.data, dataset.figures
    sentence = (
        f"{data.corpus}, {data.direction}: {figures['train_pairs']:,.0f} training pairs, {len(dataset.source_words):,} "
        f"source and {len(dataset.target_words):,} target words, special ones included."
    )
    return f"{sentence} {MULTI30K}" if data.corpus == "multi30k" else sentence


def _training(record: RunRecord) -> str:
    spec, epochs = record.spec, record.curve
    chosen = " and ".join(map(str, record.chosen_epochs)) or "unknown"
    averaged = len(record.chosen_epochs) > 1
    kept = f"mean of the weights of epochs {chosen}" if averaged else f"weights of epoch {chosen}"
    return (
        f"{spec.framework}{f' on {spec.backend}' if spec.backend else ''}, {spec.precision}, seed {spec.seed}, budget "
        f"{spec.budget}: {count(len(epochs), 'epoch')}, {epochs[-1].updates if epochs else 0:,} updates; {kept}."
    )


def _commit(record: RunRecord) -> str:
    commit = record.environment.get("commit") or {}
    changes = " with uncommitted changes" if commit.get("dirty") else ""
    return f"`{short_line(str(commit['digest']), longest=60)}`{changes}" if commit.get("digest") else "unknown"


def _tokens(dataset: Dataset) -> str:
    data = dataset.data
    lower = "tokens are lower-cased" if data.tokenizer in ("spacy", "whitespace") else "text is lower-cased first"
    case = lower if data.case == "lower" else "text keeps its case"
    return (
        f"The model reads {TOKENIZERS[data.tokenizer]}; {case}. A source is `<sos>`, at most "
        f"{data.max_length - 2} tokens, and `<eos>`; tokens outside the vocabulary are `<unk>`. The vocabularies list "
        "the tokens in the order of their ids."
    )


def _model(record: RunRecord, kind: str) -> str:
    if record.spec.recipe is None:
        variant = short_line(record.spec.variant)
        return f"These are weights alone: build the model with `{variant}`, and give them to its `set_weights`."
    if kind == "safetensors":
        return "The code needs Bakeoff, and searches as the run did."
    formula = ", which divides by another function of the length," * (record.spec.decoding.length_formula == "wu")
    return (
        "Greedy search in float32 gives the translations of Bakeoff itself; the beam search of another library"
        f"{formula} gives some others."
    )


def _code(record: RunRecord, kind: str) -> str:
    decoding, recipe = record.spec.decoding, record.spec.recipe
    if recipe is None:
        return _WEIGHTS_ALONE
    template = {"ctranslate2": _CTRANSLATE2, "huggingface": _HUGGINGFACE, "safetensors": _SAFETENSORS}[kind]
    sentence = SENTENCES.get(record.spec.data.source_language, "…")
    example = json.dumps(sentence.lower().replace(".", " .").split(), ensure_ascii=False)
    never = json.dumps([[SPECIAL_TOKENS[index]] for index in suppressed(decoding)])
    return template.format(
        sentences=f"sentences = [{example}]  # tokens, as described above",
        beam=decoding.beam,
        length_penalty=decoding.length_penalty,
        max_tokens=decoding.max_tokens,
        never=never,
        recipe=type(recipe).__name__,
    )
