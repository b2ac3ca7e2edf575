"""An ablation in words: its headline, its warnings, and what the evidence does not cover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from harness.analysis.ablation import Analysis, StudyEffects, Tuned
from harness.analysis.ablation_study import Study
from harness.analysis.caveats import of_test_set
from harness.analysis.confounds import SIZES_OF_EMBEDDINGS, Confound
from harness.analysis.contrasts import AblationEffect
from harness.analysis.effects import CLAIM_SEEDS, Conclusion, assumption
from harness.analysis.evidence import number_or_nan
from harness.analysis.grouping import group_by, measure, stop_early
from harness.analysis.inference import LEAST_SEEDS
from harness.analysis.metric_registry import ABLATION
from harness.reporting import ablation_tables as tables
from harness.reporting.ablation_tables import MAIN, SECOND, status
from harness.reporting.document import Headline
from harness.reporting.formatting import MISSING, bounds, listed, signed
from harness.text import count, short_line
from impls.contract import TransformerRecipe

NOTHING = "No ablation: no two runs differ only in the levels of their recipes."
NO_EFFECT = "No level was changed alone, so this page has only the effects of combinations."
TITLE = ABLATION[MAIN].title


def headline(analysis: Analysis) -> Headline:
    """Return the largest effect on the validation loss, or that of the only field, and what limits it."""
    for variant, rankings in analysis.rankings.items():
        known = [(rank.field, rank.study, rank.effect) for rank in rankings[MAIN] if rank.effect is not None]
        if known:
            claimed = (item for item in known if _is_claimed(item[2]))
            field, study, effect = next(claimed, known[0])
            studies = [item for item in analysis.studies if item.study.variant == variant]
            if len(known) == 1:
                start = f"In {short_line(variant)}, the effect of {field} on the {TITLE} is"
                finding = f"{start} {_change(effect)}{_few(effect)}."
            else:
                finding = _largest(field, study, effect, is_largest=effect is known[0][2])
                finding += _rival(field, effect, known)
            return Headline(finding, _caveat(study, studies))
    return Headline((warnings(analysis) or [NO_EFFECT])[0])


def _largest(field: str, study: Study, effect: AblationEffect, *, is_largest: bool) -> str:
    variant = short_line(study.variant)
    if _is_claimed(effect):
        which = "" if is_largest else " that can be claimed"
        return f"In {variant}, {field} has the largest effect on the {TITLE}{which}: {_change(effect)}."
    return f"In {variant}, the largest effect on the {TITLE} is that of {field}: {_change(effect)}{_few(effect)}."


def _rival(field: str, effect: AblationEffect, known: Sequence[tuple[str, Study, AblationEffect]]) -> str:
    """Return the first other field whose interval reaches that of the effect, as sizes, as a sentence or nothing."""
    if not _is_claimed(effect):
        return ""
    least, _ = _sizes(effect)
    for other, _, rival in known:
        if other != field and _sizes(rival)[1] >= least:
            return f" That of {other} may be as large: {_change(rival)}."
    return ""


def _sizes(effect: AblationEffect) -> tuple[float, float]:
    """Return the least and the greatest size in the interval of an effect; nan if it has none."""
    if effect.low is None or effect.high is None:
        return math.nan, math.nan
    least, greatest = sorted((abs(effect.low), abs(effect.high)))
    return (0.0 if effect.low < 0 < effect.high else least), greatest


def _few(effect: AblationEffect) -> str:
    """Return that the seeds of an effect are too few for a claim, or nothing if they are enough."""
    number = len(effect.contrast.seeds)
    seeds = f"{count(number, 'seed')} {'is' if number == 1 else 'are'}"
    return f"; {seeds} too few for a claim, which needs {CLAIM_SEEDS}" if number < CLAIM_SEEDS else ""


def _caveat(study: Study, studies: Sequence[StudyEffects]) -> str:
    confounded = list(dict.fromkeys(confound.field for effects in studies for confound in effects.confounds))
    start = f"The effect of {listed(confounded)} is confounded with embedding scale. " if confounded else ""
    tuned = all(effects.study is not study for effects in studies)
    rate = ", a learning rate tuned for each recipe" if tuned else ", one learning rate for all recipes"
    return f"{start}Measured {_setting(study)}{rate}; effects may differ at other sizes and with longer training."


def warnings(analysis: Analysis) -> list[str]:
    """Return what limits how the effects may be read, or why there are no effects."""
    lines = []
    for effects in analysis.studies:
        study = effects.study
        lines += [_confound(confound) for confound in effects.confounds]
        if len(study.batchings) > 1:
            lines.append(_batching(study))
        if effects.tuned is not None:
            title = f"{study.title}: " if len(analysis.studies) > 1 else ""
            lines += [f"{title}{line}" for line in _pilots(study, effects.tuned)]
        incomplete = _incomplete(effects)
        if incomplete:
            lines.append(
                f"Runs that did not complete, {study.title}: {'; '.join(incomplete)}. If some seeds of a "
                "recipe completed, its effects are those of these seeds alone, which favours it."
            )
        if study.differences:
            lines.append(f"{study.title}: no effects, because its runs are not comparable.")
    return lines or ([] if analysis.studies else [NOTHING])


def _incomplete(effects: StudyEffects) -> list[str]:
    """Return the recipes with runs that did not complete, those at another learning rate included."""
    cells, after = effects.study.cells, effects.other_rates
    lines = [f"{cell.label} ({status(cell)})" for cell in cells if status(cell)]
    if after is not None:
        tuned = [cell for cell in after.study.cells if status(cell) and cell not in cells]
        lines += [f"{cell.label} at its chosen rate ({status(cell)})" for cell in tuned]
    return lines


def _is_claimed(effect: AblationEffect) -> bool:
    return effect.conclusion in (Conclusion.BETTER, Conclusion.WORSE) and len(effect.contrast.seeds) >= CLAIM_SEEDS


def _change(effect: AblationEffect) -> str:
    """Return an effect for a sentence: "+0.31 nats (95 % interval +0.25 to +0.37) with none instead of rms"."""
    contrast, metric = effect.contrast, ABLATION[effect.metric]
    value = f"{signed(effect.mean, metric.digits)} {metric.unit}".rstrip()
    ends = bounds(effect, metric.digits)
    interval = "no interval" if ends == MISSING else ends
    covered = "" if effect.low is None else "95 % interval "
    label = "" if effect.significant else f", {effect.conclusion.label}"
    return f"{value} ({covered}{interval}{label}) with {contrast.changed[0][1]} instead of {contrast.against[0][1]}"


def _setting(study: Study) -> str:
    spec = study.records[0].spec
    recipe = spec.recipe
    assert isinstance(recipe, TransformerRecipe)
    pairs = tables.first_known(study.records, "train_pairs")
    data = "" if pairs is None else f", {pairs:,.0f} training pairs"
    most = "at most " * stop_early(study.records)
    length = most + (count(spec.updates, "update") if spec.updates else count(spec.training.epochs, "epoch"))
    return (
        f"on {spec.data.corpus} {spec.data.direction}{data}, width {recipe.width}, {count(recipe.layers, 'layer')}, "
        f"{length}, {count(len(study.seeds), 'seed')}"
    )


def agreement(study: Study) -> str:
    """Return what all runs of a study have in common."""
    training = "training settings, updates, the stream of batches of each seed"
    if len(study.batchings) > 1:
        training = "training settings apart from batching, updates and the stream of batches of each batching and seed"
    if stop_early(study.records):
        training = "training settings apart from batching" if len(study.batchings) > 1 else "training settings"
        training += ", the batches of the first epoch of each batching and seed"
    return (
        "These agree in all runs: data settings and files, vocabularies, token ids, test set, decoding, signatures, "
        f"{training}, and every initial tensor that two recipes share by name and shape."
    )


def _confound(confound: Confound) -> str:
    field, (first, second) = confound.field, SIZES_OF_EMBEDDINGS
    ratios = ", ".join(f"{ratio:.2f} with {level}" for level, ratio in confound.ratios.items())
    return (
        f"{field} also changes the size of word embeddings relative to position vectors. At initialisation the ratio "
        f"of their RMS is {ratios}: it changes by a factor of {confound.change:.1f}. The effect of {field} may come "
        f"from this ratio. To separate the two, cross {field} with {first} or {second}: --factorial --field {field} "
        f"--field {first}."
    )


def _batching(study: Study) -> str:
    spec = study.records[0].spec
    updates = {name: " to ".join(f"{n:,}" for n in sorted(set(counts))) for name, counts in study.batchings.items()}
    if len(set(updates.values())) > 1:
        equal = f"at equal epochs ({spec.training.epochs}): every level sees each training pair once per epoch"
        if spec.updates is not None:
            equal = f"within a limit of {spec.updates:,} updates, which holds neither epochs nor updates equal"
        if stop_early(study.records):
            equal = "with early stopping, which holds neither epochs nor updates equal"
        different = ", ".join(f"{amount} with {name}" for name, amount in updates.items())
        return f"Batching is compared {equal}. The number of updates differs: {different}."
    (amount,) = set(updates.values())
    if spec.updates is None:
        return f"Batching is compared at equal epochs ({spec.training.epochs}) and updates ({amount})."
    return (
        f"Batching is compared at an equal number of updates ({amount}), not of epochs: with other batches the "
        "same updates cover another number of sentence pairs."
    )


def _pilots(study: Study, tuned: Tuned) -> list[str]:
    choices = {cell.label: tuned.choices[cell.changes] for cell in study.cells if cell.changes in tuned.choices}
    lines = []
    for edge, direction in (("lowest", "lower"), ("highest", "higher")):
        at_edge = [f"{label} ({choice.rate:g})" for label, choice in choices.items() if choice.edge == edge]
        if at_edge:
            recipes = "every recipe" if len(at_edge) == len(choices) > 1 else "; ".join(at_edge)
            lines.append(
                f"The best learning rate is the {edge} of the grid for {recipes}. A {direction} one may be better: "
                "extend --tune-rate."
            )
    diverged = [label for label, choice in choices.items() if choice.rate is None]
    if diverged:
        lines.append(f"Every pilot diverged for {'; '.join(diverged)}: the tuned table shows the untuned runs.")
    short = next((choice for choice in choices.values() if choice.updates < choice.warmup_updates), None)
    if short is not None:
        lines.append(
            f"The pilots end after {short.updates:,} updates, within the warm-up of {short.warmup_updates:,}, so no "
            "pilot reached its learning rate: give more --pilot-epochs."
        )
    lines += _worse_choices(study, tuned)
    if tuned.missing:
        lines.append(f"Not tuned, because pilots or runs at the chosen rate are missing: {'; '.join(tuned.missing)}.")
    return lines


def _worse_choices(study: Study, tuned: Tuned) -> list[str]:
    tuned_cells = () if tuned.effects is None else tuned.effects.study.cells
    after = {cell.changes: cell for cell in tuned_cells}
    worse, lengths = [], set()
    for before in study.cells:
        cells = before, after.get(before.changes, before)
        seeds = sorted(frozenset.intersection(*(cell.completed for cell in cells)))
        values = [[number_or_nan(measure(cell.records[seed], MAIN)) for seed in seeds] for cell in cells]
        losses = [fmean(same) if same else math.nan for same in values]
        if losses[1] > losses[0]:
            training = before.records[seeds[0]].spec.training
            rates = training.peak_rate, tuned.choices[before.changes].rate
            texts = [f"{loss:.3f} at {rate:g}" for loss, rate in zip(losses, rates, strict=True)]
            worse.append(f"{before.label} ({texts[1]}, {texts[0]})")
            lengths.add(training.epochs - tuned.choices[before.changes].epochs)
    if not worse:
        return []
    reason = "the one seed of a pilot can mislead" if lengths == {0} else "give more --pilot-epochs"
    return [f"The chosen rate gives the full runs a higher {TITLE} than the untuned one: {'; '.join(worse)}; {reason}."]


def limits(analysis: Analysis) -> list[str]:
    """Return what the evidence does not show, a sentence or two each."""
    studies = [effects for effects in analysis.studies if not effects.study.differences]
    if not studies:
        return []
    settings = "; ".join(dict.fromkeys(_setting(effects.study) for effects in studies))
    lines = [
        f"Measured {settings}. Larger models, other text or longer training may rank the levels differently.",
        _seed_limit(studies),
        *of_test_set([record for effects in studies for record in effects.study.records]),
        *_rate_limits(studies),
        _cost_limit(studies),
        "Runs may have shared their machine, so their speeds are not compared.",
        f"{Conclusion.INCONCLUSIVE.symbol} does not mean no effect: the interval says how large it may be.",
    ]
    if any(effects.factorial is None and effects.fields for effects in studies):
        lines.append(
            "Fields were changed one at a time: a level that is worse in this base may be better in combination with "
            "another."
        )
    if any(effects.factorial is not None and len(effects.factorial.fields) > 2 for effects in studies):
        lines.append(
            "Interactions are shown for pairs of fields, averaged over the others, not for three fields or more."
        )
    if len({effects.study.joint for effects in studies}) > 1:
        lines.append(
            "Tying and its base have one vocabulary for both languages: compare the differences, not the values, with "
            "those of other fields."
        )
    return lines


def _seed_limit(studies: Sequence[StudyEffects]) -> str:
    if {len(effects.study.seeds) for effects in studies} == {1}:
        return "Each recipe ran once, so seed noise is unknown and no effect is tested over seeds."
    tested = [effect for effects in studies for _, effect in effects.each() if effect.tested == "seeds"]
    if not tested:
        return f"There is no interval and no test: they need {LEAST_SEEDS} seeds of the base and a recipe."
    seeds = sorted({effect.n for effect in tested})
    amount = count(seeds[-1], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    covered = {effect.basis for effect in tested if effect.metric == SECOND}
    sentences = ", not other test sentences"
    if {"seeds", "seeds and sentences"} <= covered:
        sentences = " and, where all runs have stored sentence statistics, other test sentences"
    elif "seeds and sentences" in covered:
        sentences = " and other test sentences"
    return (
        f"Intervals and symbols rest on {amount}{assumption(seeds[0])}. Intervals of perplexity and BLEU cover other "
        f"seeds{sentences}; those of the validation loss cover seeds only, and the kept epoch is chosen on the same "
        "sentences."
    )


def _rate_limits(studies: Sequence[StudyEffects]) -> list[str]:
    """Return how learning rates were chosen; the titles of the studies come first if they differ in it."""
    by_text = group_by(studies, _rate_limit)
    if len(by_text) == 1:
        return list(by_text)
    return [f"{listed([effects.study.title for effects in same])}: {text}" for text, same in by_text.items()]


def _rate_limit(effects: StudyEffects) -> str:
    if effects.tuned is None:
        return (
            "All recipes have the training settings of the base, and none was tuned: a recipe that needs another "
            "learning rate, warm-up or initialisation looks worse than it is."
        )
    ranked = "without" if effects.ranked is effects else "with"
    return (
        f"Learning rates were chosen from a grid ({tables.pilots_text(effects.tuned)}): the best rate of one seed, or "
        "of a shorter run, may not be that of the others. Warm-up, dropout and all other settings were not tuned. The "
        f"headline and the ranking use the effects {ranked} tuning."
    )


def _cost_limit(studies: Sequence[StudyEffects]) -> str:
    cells = [cell for effects in studies for cell in effects.study.cells]
    sizes = {size for cell in cells if (size := tables.first_known(cell.records.values(), "parameters")) is not None}
    span = f" ({min(sizes):,.0f} to {max(sizes):,.0f} here)" if len(sizes) > 1 else ""
    if any(stop_early(effects.study.records) for effects in studies):
        return f"Runs stop early, so they differ in updates, time, arithmetic and number of parameters{span}."
    equal = "batches and updates"
    if batchings := [effects.study for effects in studies if len(effects.study.batchings) > 1]:
        is_limited = any(study.records[0].spec.updates is not None for study in batchings)
        equal = "training text" if is_limited else "epochs"
    return f"All runs have the same {equal}, but not the same time, arithmetic or number of parameters{span}."
