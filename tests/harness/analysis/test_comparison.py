"""Comparisons: differences with intervals, and results by sentence, length, word and n-gram, calculated by hand."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import scipy.stats
from compare_cases import FIRST, SECOND, compared, line_of, save_record, text
from pages_factory import save_run, translations
from record_factory import digest, record, with_digests

from harness.analysis import comparability, selection, sentence_comparison
from harness.analysis.comparison import ReferenceCorpus
from harness.analysis.effects import Conclusion
from harness.analysis.evidence import bleu_of_order
from harness.analysis.selection import Side
from harness.experiments.specs import Budget
from harness.storage import run_store
from harness.storage.run_store import Hypothesis


def test_difference_of_a_cost_is_that_of_the_means_however_much_it_varies(tmp_path: Path) -> None:
    seconds = {FIRST: (100.0, 900.0, 60.0), SECOND: (110.0, 200.0, 1_000.0)}
    for variant, values in seconds.items():
        for seed, value in enumerate(values):
            save_record(tmp_path, variant, seed, speed={"total_seconds": value})
    metric = compared(tmp_path).metric("total_seconds")
    expected = scipy.stats.ttest_rel(seconds[SECOND], seconds[FIRST])
    difference = metric.difference("B", "A")
    assert difference.mean == pytest.approx(metric.intervals[1].mean - metric.intervals[0].mean)
    assert (difference.low, difference.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_conclusion_follows_the_direction_of_the_metric(tmp_path: Path) -> None:
    for seed in range(3):
        save_record(tmp_path, FIRST, seed, scores=dict.fromkeys(("bleu_sacre", "test_loss"), 5.0))
        save_record(tmp_path, SECOND, seed, scores=dict.fromkeys(("bleu_sacre", "test_loss"), 6.0 + 0.1 * (seed - 1)))
    comparison, conclusions = compared(tmp_path), [Conclusion.BETTER, Conclusion.WORSE]
    for name, expected in (("bleu_sacre", conclusions), ("test_loss", conclusions[::-1])):
        metric = comparison.metric(name)
        assert [metric.conclusion(metric.difference(*pair)) for pair in (("B", "A"), ("A", "B"))] == expected


def test_bleu_of_each_order_comes_from_the_counts_of_sentences() -> None:
    from sacrebleu.metrics.bleu import BLEU as SacreBleu

    counts, totals = [40, 22, 9, 3], [50, 45, 40, 35]
    sums = np.array([[50, 55, *counts, *totals]], float)
    for order in range(1, 5):
        score = SacreBleu.compute_bleu(counts[:order], totals[:order], 50, 55, max_ngram_order=order)
        assert bleu_of_order(sums, order, individual=False)[0] == pytest.approx(score.score)
        individual = 100 * math.exp(1 - 55 / 50) * counts[order - 1] / totals[order - 1]
        assert bleu_of_order(sums, order, individual=True)[0] == pytest.approx(individual)
    assert bleu_of_order(np.array([[9.0, 9, 5, 2, 0, 0, 9, 8, 7, 6]]), 4, individual=False)[0] == 0


def test_speed_is_shown_but_never_tested(tmp_path: Path) -> None:
    for seed in range(3):
        for variant, rate, machine in ((FIRST, 1000.0, "one"), (SECOND, 2000.0 + seed, "another")):
            environment = {**record().environment, "machine": {"processor": machine}}
            speed = {**record().speed, "training_tokens_per_second": rate}
            save_record(tmp_path, variant, seed, speed=speed, environment=environment)
    metric = compared(tmp_path).metric("training_tokens_per_second")
    difference = metric.difference("B", "A")
    assert difference.low > 0, "otherwise this test would show nothing"
    assert (difference.p_holm, metric.conclusion(difference)) == (None, Conclusion.NOT_TESTED)
    assert metric.not_tested == "measured on different machines"
    assert "B was measured on: another; threads: 2." in text(tmp_path)


def test_metric_without_a_better_direction_has_no_p_and_no_better_seed(tmp_path: Path) -> None:
    for seed in range(3):
        for variant, unknown in ((FIRST, 0), (SECOND, 200 + seed)):
            save_record(tmp_path, variant, seed, decode={"unknown_tokens": unknown})
    line = line_of("unknown tokens", text(tmp_path))
    assert "+201" in line
    assert re.search(r"–\s+–\s+\? not tested\s+–", line)


def test_missing_statistics_of_sentences_are_reported(variant_pair: Path) -> None:
    comparison = compared(variant_pair)
    difference = comparison.metric("bleu_sacre").difference("B", "A")
    assert difference.basis == "seeds"
    assert not comparison.parts
    left_out = "\n".join(comparison.left_out)
    assert "not every run has the statistics of its sentences" in left_out
    assert "Sentences that differ most" in left_out
    assert "Intervals cover other seeds, not other test sentences." in comparison.remarks


def test_compare_diverged_run_is_reported_and_its_difference_unknown(variant_pair: Path) -> None:
    save_record(variant_pair, SECOND, 1, status="diverged", reason="loss is not finite", scores={"bleu_sacre": None})
    report = text(variant_pair)
    assert "Did not complete: B, seed 1: diverged after 10 epochs: loss is not finite." in report
    assert "2 completed, 1 diverged" in report
    assert "cannot be compared: B: no value for seed 1 (diverged or missing)." in report
    assert "32.00" in line_of("sacreBLEU ↑", report), "the mean of the completed runs"


def test_different_test_sets_are_not_paired(variant_pair: Path) -> None:
    for seed in range(3):
        run = record("paper", seed)
        run = with_digests(run, files={**run.fingerprints["files"], "test.en": digest("another test set")})
        save_run(variant_pair, run, translations("paper", seed, 30))
    comparison = compared(variant_pair, FIRST, "paper", allow=["file test.en"])
    left_out = "Sentences, lengths, words and n-grams: the sides were not measured on the same sentences."
    assert (comparison.left_out, comparison.parts, comparison.extremes) == ((left_out,), (), ())


def test_budgets_are_compared_only_if_allowed_and_losses_only_on_the_same_words(variant_pair: Path) -> None:
    for seed in range(3):
        run = with_digests(record(FIRST, seed, budget="source"), target_vocabulary=digest("other words"))
        run_store.save_record(variant_pair, run)
    sides = (f"{FIRST}@budget=controlled", f"{FIRST}@budget=source")
    with pytest.raises(ValueError, match=r"budget \(controlled in A; source in B\)"):
        compared(variant_pair, *sides)
    disagreements = comparability.disagreements(selection.find(sides, variant_pair, complain=pytest.fail))
    comparison = compared(variant_pair, *sides, allow=[disagreement.name for disagreement in disagreements])
    perplexity, bleu = (comparison.metric(name) for name in ("test_perplexity", "bleu_sacre"))
    assert perplexity.difference("B", "A") is None
    assert perplexity.not_compared == "the sides have different target words"
    assert bleu.difference("B", "A") is not None


@pytest.mark.parametrize(
    ("budgets", "names"),
    [(("controlled", "controlled"), ["seeds"]), (("source", "source"), []), (("controlled", "source"), ["budget"])],
)
def test_disagreements_in_seeds_and_training_are_those_of_controlled_sides_alone(
    budgets: tuple[Budget, Budget], names: list[str], tmp_path: Path
) -> None:
    for variant, budget, seeds in zip((FIRST, "paper"), budgets, (2, 1), strict=True):
        for seed in range(seeds):
            run_store.save_record(tmp_path, record(variant, seed, budget=budget))
    found = comparability.disagreements(selection.find([FIRST, "paper"], tmp_path, complain=pytest.fail))
    assert [disagreement.name for disagreement in found] == names


def test_seeds_that_differ_because_a_run_is_unfinished_are_refused_with_its_status(tmp_path: Path) -> None:
    for variant, seed in itertools.product((FIRST, SECOND), range(2)):
        run_store.save_record(tmp_path, record(variant, seed))
    interrupted = replace(record(SECOND, 1), status="interrupted", reason="interrupted by SIGINT", scores={})
    run_store.save_record(tmp_path, interrupted)
    with pytest.raises(ValueError, match=r"they differ in seeds \(0, 1 in A; 0 in B, seed 1 interrupted\)\. To "):
        compared(tmp_path)


def test_different_settings_and_versions_are_listed(variant_pair: Path) -> None:
    environment = {**record(SECOND, 0).environment, "versions": {"torch": "9.9"}, "python": "3.13.1", "commit": None}
    environment |= {"resumed_after_epochs": [2], "earlier_processes": [{"until_update": 9, "python": "3.12.1"}]}
    save_record(variant_pair, SECOND, 0, environment=environment)
    settings = compared(variant_pair).settings
    assert settings["variant"] == (FIRST, SECOND)
    assert settings["recipe.activation"] == ("relu", "gelu")
    assert settings["version of torch"] == ("2.13.0", "9.9 / 2.13.0")
    assert settings["commit"][1].startswith("none / ")
    assert settings["resumed in another environment"] == ("no", "yes / no")
    assert not {"resumed", "training.epochs", "seed"} & settings.keys()


# Sentences, lengths, words and n-grams --------------------------------------------------------------------------------

REFERENCES = (("a", "red", "dog"), ("a", "cat", "runs", "fast"), ("the", "dog"))
CORPUS = ReferenceCorpus(
    source=("ein roter Hund", "eine Katze rennt schnell", "der Hund"),
    reference=("a red dog", "a cat runs fast", "the dog"),
    words=REFERENCES,
    frequencies={"a": 5_000, "dog": 200, "red": 20, "cat": 20, "the": 2_000, "runs": 3},
)
TRANSLATIONS = {
    FIRST: (("a", "red", "dog"), ("a", "dog"), ("the", "dog")),
    SECOND: (("a", "red", "cat"), ("a", "cat", "runs"), ("<unk>", "dog")),
}


@pytest.fixture
def sides(tmp_path: Path) -> list[Side]:
    """Two sides with two seeds and the same three translations."""
    for variant, sentences in TRANSLATIONS.items():
        for seed in range(2):
            hypotheses = [Hypothesis(number, words, " ".join(words)) for number, words in enumerate(sentences)]
            save_run(tmp_path, record(variant, seed), hypotheses)
    return list(selection.find([FIRST, SECOND], tmp_path, complain=pytest.fail))


def test_words_are_scored_by_their_frequency_in_training(sides: list[Side]) -> None:
    subset_scores = sentence_comparison.words(sides, (0, 1), REFERENCES, CORPUS.frequencies)
    scores = {part.title: (part.size, *part.scores) for part in subset_scores.parts}
    # F1 is 200 * matches / (hypothesis words + reference words), here for "runs".
    assert scores["3–9"] == (1, 0.0, 100.0)
    # "red" and "cat": the first has red; the second has red and two cats, one of them wrong.
    assert scores["10–99"] == pytest.approx((2, 200 * 1 / (1 + 2), 200 * 2 / (3 + 2)))
    # "dog": the first has three, two of them right; the second has one, which is right.
    assert scores["100–999"] == pytest.approx((2, 200 * 2 / (3 + 2), 200 * 1 / (1 + 2)))
    # "a" and "the": the second lacks "the".
    assert scores["1,000 or more"] == pytest.approx((3, 100.0, 200 * 2 / (2 + 3)))
    note = "1 words of the references are not in the vocabulary, so that no run can produce them."
    assert subset_scores.notes == (note,)


def test_ngrams_count_correct_ones_of_each_side(sides: list[Side]) -> None:
    pair = sentence_comparison.ngrams((sides[0], sides[1]), (0, 1), REFERENCES, count=50)
    of_second, of_first = (
        {ngram.words: (ngram.first, ngram.second, ngram.share, ngram.seeds) for ngram in ngrams} for ngrams in pair
    )
    assert of_second == dict.fromkeys(("cat", "runs", "a cat", "cat runs", "a cat runs"), (0, 2, 0.75, 2))
    assert of_first["dog"] == (4, 2, 3 / 8, 2)
    assert of_first["a red dog"] == (2, 0, 0.25, 2)
    assert "a" not in {**of_second, **of_first}, "it is correct equally often"
    assert not any("<unk>" in words for words in (*of_second, *of_first))


def test_most_different_sentences_are_ranked_by_their_scores(sides: list[Side]) -> None:
    partial, perfect = [4, 4, 2, 1, 1, 1, 4, 3, 2, 1], [4, 4, 4, 3, 2, 1, 4, 3, 2, 1]
    counts = np.zeros((2, 2, 3, 10), int)
    counts[..., :] = partial
    counts[1, :, 1] = counts[1, 0, 2] = counts[0, :, 0] = perfect
    texts = (CORPUS.source, CORPUS.reference)
    pair = sentence_comparison.most_different(
        (sides[0], sides[1]), (0, 1), (counts[0], counts[1]), "bleu_sacre", count=5, texts=texts
    )
    better, worse = pair
    partial_bleu = 100 * (0.5 * (1 / 3) * 0.5 * 1) ** 0.25
    assert [sentence.number for sentence in better] == [1, 2]
    assert [sentence.number for sentence in worse] == [0]
    assert better[0].difference == pytest.approx(100 - partial_bleu)
    assert better[1].difference == pytest.approx((100 - partial_bleu) / 2)
    assert better[0].translations == ("a dog", "a cat runs")
    assert better[0].reference == "a cat runs fast"
    swapped = counts[0][::-1], counts[1][::-1]  # sentence 2 differs at the second seed only
    better, _ = sentence_comparison.most_different((sides[0], sides[1]), (0, 1), swapped, "bleu_sacre", count=5)
    assert all(sentence.scores[1] > sentence.scores[0] for sentence in better), "the examples are better, too"


def test_lengths_divide_sentences_into_scored_parts(sides: list[Side]) -> None:
    lengths = np.array([4, 4, 9, 9, 9, 20])
    matches = [lengths - order for order in range(4)]
    correct = np.stack([lengths, lengths, *matches, *matches], axis=-1)
    wrong = correct.copy()
    wrong[lengths == 9, 2:6] = 0
    sums = [np.stack([correct, correct]), np.stack([wrong, wrong])]
    parts = sentence_comparison.by_length(sides, (0, 1), sums).parts
    assert [(part.title, part.size) for part in parts] == [("4", 2), ("9", 3), ("20", 1)]
    assert [part.scores for part in parts] == [(100.0, 100.0), (100.0, 0.0), (100.0, 100.0)]
    assert [part.changes[0].mean for part in parts] == pytest.approx([0, -100, 0], abs=0.01)


def test_machine_with_an_unknown_number_of_cores_is_described_by_its_processor() -> None:
    run = replace(record(), environment={"machine": {"processor": "a processor"}})
    assert comparability.machine(run) == comparability.machine_kind(run) == "a processor"
