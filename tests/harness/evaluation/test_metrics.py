"""Scores against cases computed by hand, and against the BLEU of torchtext 0.6.0."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from command_line import FRAMEWORKS, imported
from sacrebleu.metrics.bleu import BLEU

from harness.data.tokenizers import UNKNOWN_TEXT
from harness.evaluation.metrics import (
    Scored,
    Scores,
    brevity_from_sums,
    evaluate,
    perplexity,
    score,
    text_bleu,
    unknown_tokens,
    without_unknown,
)
from impls.contract import EOS, PAD, SOS, Batch, Numbers

NAMES = {"bleu_tutorial", "bleu_tokenised", "bleu_sacre", "brevity_penalty", "chrf"} | {
    f"bleu_{order}_{kind}" for order in (1, 2, 3, 4) for kind in ("cumulative", "individual")
}


def scores(
    hypotheses: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    case: Any = "lower",
    unknown: Any = "never",
) -> Scores:
    return score(
        hypotheses,
        references,
        texts=[" ".join(tokens) for tokens in hypotheses],
        reference_texts=[" ".join(tokens) for tokens in references],
        moses=hypotheses,
        reference_moses=references,
        case=case,
        unknown=unknown,
    )


class Fixed:
    """A model whose nats are a tenth of each target id, at padding too."""

    def token_nats(self, batch: Batch) -> Numbers:
        return batch.target_out.astype(np.float32) / 10


def batch(*sentences: Sequence[int]) -> Batch:
    width = max(map(len, sentences), default=0)
    target = np.full((len(sentences), width), PAD, dtype=np.int32)
    for row, sentence in zip(target, sentences, strict=True):
        row[: len(sentence)] = sentence
    return Batch(np.full((len(sentences), 2), EOS, np.int32), np.full(target.shape, SOS, np.int32), target)


def test_score_same_translations_against_other_references_gives_their_scores() -> None:
    hypotheses = [["a", "b", "c", "d", "e"]] * 2
    close, far = [["a", "b", "c", "d", "f"]] * 2, [["x", "y", "z", "v", "e"]] * 2
    for references in (close, far, close):
        texts = [" ".join(tokens) for tokens in references]
        expected = BLEU(lowercase=True).corpus_score([" ".join(tokens) for tokens in hypotheses], [texts])
        assert scores(hypotheses, references).values["bleu_sacre"] == expected.score
    upper = [[token.upper() for token in tokens] for tokens in close]
    assert scores(hypotheses, upper, "mixed").values["bleu_sacre"] == 0
    assert scores(hypotheses, upper, "mixed").values["bleu_tokenised"] > 0
    assert scores(hypotheses, upper, "lower").values["bleu_sacre"] > 0


# Nats and perplexity --------------------------------------------------------------------------------------------------


def test_perplexity_is_exp_of_sum_over_count() -> None:
    assert perplexity(math.log(8) * 5, 5) == pytest.approx(8)
    assert perplexity(1e6, 1) == math.inf
    assert math.isnan(perplexity(math.nan, 1))


def test_tutorial_perplexity_is_exp_of_the_mean_of_means() -> None:
    # The tokens have 2, 2, 2 and 0.3 nats in the first batch, 0.3 in the second.
    scored = evaluate(Fixed(), [batch([20, 20, EOS], [20]), batch([EOS])])
    assert scored.nats == pytest.approx(6.6)
    assert scored.tokens == 5
    assert scored.loss == pytest.approx(1.32)
    assert scored.perplexity == pytest.approx(math.exp(1.32))
    assert scored.batch_means == pytest.approx((6.3 / 4, 0.3))
    assert scored.tutorial_perplexity == pytest.approx(math.exp((6.3 / 4 + 0.3) / 2))


def test_evaluate_sums_in_float64() -> None:
    many = batch([10_000] * 100_000 + [EOS])
    assert evaluate(Fixed(), [many, *[batch([EOS])] * 10]).nats == pytest.approx(100_000_003.3, abs=1e-3)


def test_evaluate_ignores_batches_of_padding() -> None:
    class NanAtPadding(Fixed):
        def token_nats(self, batch: Batch) -> Numbers:
            return np.where(batch.target_out == PAD, np.float32(np.nan), super().token_nats(batch))

    nats = pytest.approx(0.3)
    scored = evaluate(NanAtPadding(), [batch([PAD, PAD]), batch([EOS, PAD])])
    assert scored == Scored(nats, 1, (nats,), sentence_nats=(0.0, nats), sentence_tokens=(0, 1))


def test_evaluate_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no target tokens to evaluate"):
        evaluate(Fixed(), [batch([PAD])])
    with pytest.raises(ValueError, match="tokens=0: expected a whole number of at least 1"):
        perplexity(0.0, 0)


# BLEU -----------------------------------------------------------------------------------------------------------------


def test_bleu_equals_a_computation_by_hand() -> None:
    # a b c d a a against x b c d a y a: 5 of 6 unigrams match (a occurs twice, not three times), of 5 bigrams b c, c d
    # and d a, of 4 trigrams b c d and c d a, of 3 four-grams b c d a; 6 tokens are fewer than 7.
    values = scores([[*"abcdaa"]], [[*"xbcdaya"]]).values
    matches = (5 / 6, 3 / 5, 2 / 4, 1 / 3)
    brevity = math.exp(1 - 7 / 6)
    for order, share in enumerate(matches, start=1):
        assert values[f"bleu_{order}_individual"] == pytest.approx(100 * brevity * share)
        mean = math.prod(matches[:order]) ** (1 / order)
        assert values[f"bleu_{order}_cumulative"] == pytest.approx(100 * brevity * mean)
    assert values["bleu_tutorial"] == pytest.approx(values["bleu_4_cumulative"])
    values = scores([["a", "b", "x", "c", "d"]], [["a", "b", "y", "c", "d"]]).values
    assert values["bleu_3_individual"] == values["bleu_3_cumulative"] == values["bleu_tutorial"] == 0, "no smoothing"
    assert values["bleu_2_cumulative"] == pytest.approx(100 * math.sqrt(4 / 5 * 2 / 4))


def corpora(count: int) -> Iterator[tuple[list[list[str]], list[list[str]]]]:
    """Random corpora: short and empty hypotheses, repeated n-grams, near copies, and nothing that matches."""
    for seed in range(count):
        generator = random.Random(seed)
        words = [f"w{number}" for number in range(generator.choice((1, 2, 5, 30)))]
        longest = generator.choice((3, 6, 20))
        references = [
            [generator.choice(words) for _ in range(generator.randint(1, longest))]
            for _ in range(generator.randint(1, 8))
        ]
        hypotheses = []
        for reference in references:
            kind = generator.choice(("empty", "other", "copy", "near", "near", "near", "short", "foreign"))
            if kind == "empty" or (kind == "near" and seed % 50 == 0):
                hypotheses.append([])
            elif kind == "other":
                hypotheses.append([generator.choice(words) for _ in range(generator.randint(0, longest))])
            elif kind == "short":
                hypotheses.append(reference[:3])
            elif kind == "foreign":
                hypotheses.append(["<unk>"] * len(reference))
            else:
                keep = 1.0 if kind == "copy" else 0.8
                near = [word if generator.random() < keep else generator.choice(words) for word in reference]
                hypotheses.append(near + (near[-2:] * generator.randint(0, 2) if kind == "near" else []))
        yield hypotheses, references


def test_bleu_tutorial_equals_torchtext() -> None:
    torch = pytest.importorskip("torch")
    metrics = pytest.importorskip("torchtext.data.metrics")
    dtype, between = torch.get_default_dtype(), 0
    torch.set_default_dtype(torch.float64)  # torchtext computes in the default type; float32 would agree to 1e-6 only
    try:
        for hypotheses, references in corpora(1_000):
            expected = 100 * metrics.bleu_score(hypotheses, [[reference] for reference in references])
            values = scores(hypotheses, references).values
            assert values["bleu_tutorial"] == pytest.approx(expected, rel=1e-9, abs=0)
            between += 0 < expected < 100
    finally:
        torch.set_default_dtype(dtype)
    assert 300 < between < 900


def test_bleu_any_token_counts_as_one() -> None:
    tokens = [" ", "  ", "\n", "\xa0", "", "\u2028", "new york", "\ue000", "\ue00020"]
    assert scores([tokens], [tokens]).values["bleu_tutorial"] == pytest.approx(100)
    five = [["a", *tokens[:5]]]
    assert scores(five, five).values["bleu_4_cumulative"] == pytest.approx(100)
    for first, second in itertools.combinations(tokens, 2):
        assert scores([[first]], [[second]]).values["bleu_1_individual"] == 0


def test_bleu_unknown_token_matches_nothing() -> None:
    for reference in (["<unk>", "a"], ["b", "a"]):
        assert scores([["<unk>", "a"]], [reference]).values["bleu_1_individual"] == pytest.approx(50)
    assert scores([["<unk>"] * 5], [["<unk>"] * 5]).values["bleu_tokenised"] == 0


def test_bleu_sacre_unknown_character_is_one_token() -> None:
    unknown, foreign, as_tokens = (
        scores(
            [f"a man in a red {word} walks past two dogs .".split()],
            [["a", "man", "in", "a", "red", "hat", "walks", "past", "two", "dogs", "."]],
        )
        for word in (UNKNOWN_TEXT, "ꙮ", "<unk>")
    )
    assert unknown.values == foreign.values
    assert unknown.statistics["bleu_sacre"][0, :2].tolist() == [11, 11]
    assert as_tokens.statistics["bleu_sacre"][0, 0] == 13


@pytest.mark.parametrize("unknown", ["never", "allowed"])
def test_signatures_state_whether_unk_was_allowed(unknown: str) -> None:
    result = scores([["a", "b"]], [["a", "b"]], unknown=unknown)
    assert all(signature.endswith(f"|unk:{unknown}") for signature in result.signatures.values())
    sacrebleu = BLEU(lowercase=True)
    sacrebleu.corpus_score(["a b"], [["a b"]])
    assert result.signatures["bleu_sacre"] == f"{sacrebleu.get_signature()}|unk:{unknown}"
    assert without_unknown(result.signatures["bleu_sacre"]) == str(sacrebleu.get_signature())


@pytest.mark.parametrize(("words", "penalty"), [(8, 1.0), (4, 1.0), (2, math.exp(-1)), (1, math.exp(-3))])
def test_brevity_penalty_equals_sacrebleu(words: int, penalty: float) -> None:
    result = scores([["a"] * words], [["a"] * 4])
    assert result.values["brevity_penalty"] == pytest.approx(penalty)
    assert brevity_from_sums(result.statistics["bleu_sacre"][0]) == pytest.approx(penalty)
    assert scores([[]], [["a"]]).values["brevity_penalty"] == brevity_from_sums(np.zeros(10)) == 0


def test_unknown_tokens_returns_their_number() -> None:
    assert unknown_tokens([("<unk>", "a", "<unk>"), (), ["unk", "<UNK>", "<unk>"]]) == 3


def test_score_case_matters_unless_lower() -> None:
    hypotheses, references = [["ein", "Hund", "rennt", "nach", "Haus"]], [["Ein", "Hund", "rennt", "nach", "Haus"]]
    mixed, lower = scores(hypotheses, references, "kept"), scores(hypotheses, references, "lower")
    for name in ("bleu_sacre", "chrf"):
        assert mixed.values[name] < lower.values[name] == pytest.approx(100)
        assert "case:mixed" in mixed.signatures[name]
        assert "case:lc" in lower.signatures[name]
    for name in ("bleu_tutorial", "bleu_tokenised"):
        assert mixed.values[name] == pytest.approx(100)


def test_score_returns_a_signature_for_each_value() -> None:
    result = scores([["a", "b", "c", "d", "e"]], [["a", "b", "c", "d", "f"]])
    signatures = result.signatures
    assert set(result.values) == set(signatures) == NAMES
    assert len(set(signatures.values())) == len(NAMES) - 1
    assert signatures["brevity_penalty"] == signatures["bleu_sacre"]
    assert signatures["bleu_tutorial"].startswith("nrefs:1|case:lc|eff:no|tok:none|smooth:none|version:")
    assert signatures["bleu_tutorial"].endswith("|tokens:model|unk:never")
    assert signatures["bleu_2_cumulative"].endswith("|tokens:model|orders:1-2|unk:never")
    assert signatures["bleu_2_individual"].endswith("|tokens:model|orders:2|unk:never")
    assert "tok:none|smooth:exp" in signatures["bleu_tokenised"]
    assert "tok:13a|smooth:exp" in signatures["bleu_sacre"]
    assert "nc:6|nw:0" in signatures["chrf"]


@pytest.mark.parametrize(("language", "tokenizer"), [("zh", "zh"), ("ja", "char"), ("th", "char"), ("de", "13a")])
def test_bleu_sacre_has_the_tokenizer_of_the_language(language: str, tokenizer: str) -> None:
    texts = {"zh": "两只小猫在树上。", "ja": "猫が木の上にいる。", "th": "แมวอยู่บนต้นไม้"}
    line = texts.get(language, "eine Katze auf einem Baum .")
    sides: Any = {"texts": [line], "reference_texts": [line], "moses": [[line]], "reference_moses": [[line]]}
    scored = score([[line]], [[line]], **sides, case="lower", unknown="never", language=language)
    assert scored.values["bleu_sacre"] == pytest.approx(100)
    assert f"tok:{tokenizer}|" in scored.signatures["bleu_sacre"]
    assert text_bleu([line], [line], "lower", language) == scored.values["bleu_sacre"]


def test_score_of_unequal_or_empty_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="no translations to score"):
        scores([], [])
    with pytest.raises(ValueError, match="1 hypotheses, but 2 references"):
        scores([["a"]], [["a"], ["b"]])
    sides: Any = {"texts": ["a"], "reference_texts": ["a", "b"], "moses": [["a"]], "reference_moses": [["a"]]}
    with pytest.raises(ValueError, match="1 hypotheses, but 2 reference_texts"):
        score([["a"]], [["a"]], **sides, case="lower", unknown="never")


def test_import_of_search_and_metrics_loads_no_framework() -> None:
    modules = imported("import harness.evaluation.search, harness.evaluation.metrics")
    assert not modules & {*FRAMEWORKS, "sacrebleu"}
