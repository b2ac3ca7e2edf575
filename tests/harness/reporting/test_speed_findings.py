"""The words of a speed report: headline, warnings and limits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import speed_factory
from speed_factory import OTHER, OURS, TIMES_AS_LONG, with_plain

from harness.reporting import speed_findings
from harness.reporting.formatting import significant_digits
from harness.speed.timing import Samples

DOCUMENT = speed_factory.document()


def test_headline_has_the_ratios_and_the_limits_what_is_missing() -> None:
    headline = speed_findings.headline(DOCUMENT)
    assert headline.finding == (
        f"In training, {OURS} is 4.00 times as fast as plain. "
        f"In decoding (greedy, one by one), {OURS} is 30.0 times as fast as plain."
    )
    assert "quote ratios only" in headline.caveat
    limits = speed_findings.limits(DOCUMENT)
    assert "marian: failed: its process ended with code -9" in limits
    assert "ctranslate2: missing: it is not installed" in limits
    assert "Not measured for paper/torch: beam 5, one by one. Reason: it would take too long" in limits
    assert any("some differ in 1 of 1 series: 1 of 40 (plain, greedy, one by one). Where" in line for line in limits)
    assert any("Samples are few (3 to 5 each)" in line for line in limits)
    assert speed_findings.warnings(DOCUMENT) == []


def test_headline_of_faster_slower_and_equal_baselines_names_each() -> None:
    ours, plain = with_plain(DOCUMENT, TIMES_AS_LONG).subjects
    times = plain.training
    others = []
    for name, ratio in (("slow", 40.0), ("slower", 50.0), ("fast", 5.0)):
        seconds = Samples.of([ratio * value for value in ours.costs["training"]])
        others.append(replace(plain, name=name, training=replace(times, seconds=seconds)))
    changed = replace(DOCUMENT, subjects=(plain, *others, DOCUMENT.subject(OTHER), ours))
    assert speed_findings.main_subject(changed) == ours, "that of the variant used for scaling, no baseline"
    assert speed_findings.headline(changed).finding == (
        f"In training, {OURS} is 4.00 to 5.00 times as fast as slow and slower, takes 2.00 times as long as fast, and "
        "is not distinguishable from plain."
    )


def test_headline_without_a_baseline_has_the_rate_of_training_or_the_time_of_decoding() -> None:
    ours = DOCUMENT.subjects[0]
    finding = speed_findings.headline(replace(DOCUMENT, subjects=(ours,))).finding
    assert finding.startswith(f"{OURS} trains on {significant_digits(2_000 / 1.09)} target tokens per second; no ")
    finding = speed_findings.headline(replace(DOCUMENT, subjects=(replace(ours, training=None),))).finding
    assert finding == f"{OURS} translates 1,000 sentences (greedy, in batches) in 4.00 s."


def test_differing_translations_are_one_line_with_the_fewest_and_the_most() -> None:
    ours, _, plain, *_ = DOCUMENT.subjects
    decodings = [
        speed_factory.decoding(name, 1.0, sentences, equal=equal)
        for name, sentences, equal in (("greedy", 200, 199), ("beam", 200, 200), ("single_greedy", 40, 30))
    ]
    changed = replace(DOCUMENT, subjects=(ours, replace(plain, decoding=tuple(decodings))))
    (line,) = (line for line in speed_findings.limits(changed) if "Translations" in line)
    assert "in 2 of 3 series: 1 of 200 (plain, greedy, in batches) to 10 of 40 (plain, greedy, one by one)." in line


@pytest.mark.parametrize(("unfinished", "rounds", "warned"), [(100, 5, False), (101, 4, True)])
def test_endless_translations_and_few_rounds_are_warned_of(unfinished: int, rounds: int, warned: bool) -> None:
    ours = DOCUMENT.subjects[0]
    training = replace(ours.training, seconds=Samples.of(ours.training.seconds.values[:rounds]))
    greedy = replace(ours.decoding[0], unfinished=unfinished, seconds=training.seconds)
    changed = replace(ours, evaluation=None, training=training, decoding=(greedy,))
    limits = speed_findings.limits(replace(DOCUMENT, subjects=(changed,)))
    for start in ("1 of 1 series of translations mostly reach 50 tokens", f"Samples are few ({rounds} each)"):
        assert any(line.startswith(start) for line in limits) == warned


def test_warnings_name_everything_that_is_wrong_with_a_measurement() -> None:
    small = replace(speed_factory.settings(), size="toy", parts=("training", "decoding"))
    ours, *rest = speed_factory.subjects()
    ours = replace(ours, evaluation=None, breakdown=None, idle_share=0.2)
    document = speed_factory.document(
        status="incomplete",
        reason="interrupted by SIGINT",
        settings=small,
        machine=speed_factory.machine(load_before=7.5),
        data=replace(speed_factory.data(), spec=replace(speed_factory.data().spec, corpus="captions")),
        subjects=(ours, *rest),
        scaling=(),
        rates=(),
    )
    incomplete, toy, captions, busy = speed_findings.warnings(document)
    assert incomplete.startswith("Incomplete: interrupted by SIGINT.")
    assert toy.startswith("Toy size")
    assert "not Multi30k" in captions
    assert "load average was 7.50 before it began" in busy
    limits = " ".join(speed_findings.limits(document))
    assert "Not requested, and so not measured: evaluation, breakdown, scaling." in limits
    assert "Requested and missing" not in limits
    assert f"while others were timed, so the others' times are too long: {OURS} (20 %)" in limits
    assert "The matmul peak of the machine is unknown, and so is the MFU." in limits
    empty = replace(document.subjects[2], training=None, decoding=())
    limits = " ".join(speed_findings.limits(replace(document, subjects=(document.subjects[0], empty))))
    assert "plain: started, but nothing was measured." in limits
