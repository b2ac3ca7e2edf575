"""An ablation in words: its headline, its findings, and what the evidence does not cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.analysis.ablation import Analysis, Factorial, Rank, StudyEffects
from harness.analysis.ablation_study import Study
from harness.analysis.contrasts import AblationEffect
from harness.analysis.effects import CLAIM_SEEDS, Conclusion, assumption
from harness.analysis.metric_registry import ABLATION
from harness.reporting import ablation_tuning
from harness.reporting.ablation_tables import MAIN, SECOND, interval, parameters, signed, status, written
from harness.reporting.document import Headline
from harness.reporting.formatting import MISSING, listed
from harness.storage.records import RunRecord
from harness.text import count, short_line
from impls.contract import TransformerRecipe

NOTHING = "No ablation: no two runs differ only in the levels of their recipes."


# The finding ----------------------------------------------------------------------------------------------------------


def headline(analysis: Analysis) -> Headline:
    """Return the largest effect on the validation loss, and what limits it."""
    for variant, rankings in analysis.rankings.items():
        ranks = [rank for rank in rankings[MAIN] if rank.effect is not None]
        same = [effects for effects in analysis.studies if effects.study.variant == variant]
        if ranks and same:
            study = next(effects.study for effects in same if effects.fields)
            return Headline(_headline(study, ranks), _caveat(study, same))
    return Headline((findings(analysis) or warnings(analysis))[0])


def _headline(study: Study, ranks: Sequence[Rank]) -> str:
    claimed = [rank for rank in ranks if rank.effect is not None and _claimed(rank.effect)]
    first = (claimed or ranks)[0]
    assert first.effect is not None
    title = ABLATION[MAIN].title
    changed = f"{_exchange(first.effect)} changes it by {_said(first.effect)}"
    if claimed:
        return f"In {short_line(study.variant)}, {first.field} has the largest effect on the {title}: {changed}."
    seeds = count(len(study.seeds), "seed")
    few = f"; {seeds} are too few for a claim, which needs {CLAIM_SEEDS}" if len(study.seeds) < CLAIM_SEEDS else ""
    return (
        f"In {short_line(study.variant)}, the largest effect on the {title} is that of {first.field}: {changed}{few}."
    )


def _caveat(study: Study, same: Sequence[StudyEffects]) -> str:
    confounded = list(dict.fromkeys(confound.field for effects in same for confound in effects.confounds))
    start = f"The effect of {listed(confounded)} is confounded with embedding scale. " if confounded else ""
    tuned = any(effects.tuned is not None for effects in same)
    rate = "" if tuned else ", one learning rate for all recipes"
    return f"{start}{_setting(study)}{rate}; other sizes and longer training may rank the fields otherwise."


def findings(analysis: Analysis) -> list[str]:
    """Return in paragraphs what the evidence shows."""
    lines = []
    for variant, rankings in analysis.rankings.items():
        same = [effects for effects in analysis.studies if effects.study.variant == variant]
        if rankings[MAIN]:
            lines.append(_largest_effects(same, rankings[MAIN], rankings[SECOND]))
        lines += [_together(effects.factorial) for effects in same if effects.factorial is not None]
        lines += [line for effects in same for line in ablation_tuning.finding(effects)]
    return lines


def warnings(analysis: Analysis) -> list[str]:
    """Return what limits how the effects may be read, and why there are none where there are none."""
    lines = []
    for effects in analysis.studies:
        lines += [*ablation_tuning.warnings(effects), *_lost(effects)]
        if effects.study.differences:
            lines.append(f"{effects.study.title}: no effects, because its runs are not comparable.")
    return lines or ([] if analysis.studies else [NOTHING])


def _largest_effects(found: Sequence[StudyEffects], ranks: Sequence[Rank], seconds: Sequence[Rank]) -> str:
    study = next(one.study for one in found if one.fields)
    title = ABLATION[MAIN].title
    told = [rank for rank in ranks if rank.effect is not None]
    sure = [rank for rank in told if rank.effect is not None and _certain(rank.effect)]
    claimed = [rank for rank in sure if rank.effect is not None and _claimed(rank.effect)]
    parts = [f"{_setting(study)}, one field of {short_line(study.variant)} changed at a time."]
    lost = [rank for rank in ranks if rank.lost]
    if lost:
        who = "; ".join(f"{rank.field}={', '.join(rank.lost)}" for rank in lost)
        parts.append(f"Not trainable here, because every run diverged: {who}.")
    if told and len(study.seeds) < CLAIM_SEEDS:
        rest = "; ".join(f"{one.field} ({_brief(one, study)})" for one in told)
        parts.append(f"Fewer than {CLAIM_SEEDS} seeds are too few for a claim. Largest effects on the {title}: {rest}.")
        return " ".join(parts)
    if claimed:
        first, *others = claimed
        assert first.effect is not None
        changed = f"{_exchange(first.effect)} changes it by {_said(first.effect)}{_fewer(first.effect, study)}"
        under = assumption(len(first.effect.contrast.seeds))
        parts.append(f"{first.field} has the largest effect on the {title}{under}: {changed}{_beside(first, seconds)}.")
        if others:
            rest = "; ".join(f"{one.field} ({_brief(one, study)})" for one in others)
            parts.append(f"Then come, by their largest effect: {rest}.")
    unsure = [rank for rank in told if rank not in claimed]
    if unsure:
        rest = "; ".join(f"{one.field} ({_brief(one, study)})" for one in unsure)
        start = "The largest effects of the other fields are" if claimed else f"The largest effects on the {title} are"
        parts.append(f"{start} inconclusive with {count(len(study.seeds), 'seed')}: {rest}.")
    return " ".join(parts)


def _certain(effect: AblationEffect) -> bool:
    """Return whether a test over seeds found it."""
    return effect.conclusion in (Conclusion.BETTER, Conclusion.WORSE)


def _claimed(effect: AblationEffect) -> bool:
    """Return whether a sentence may claim it."""
    return _certain(effect) and len(effect.contrast.seeds) >= CLAIM_SEEDS


def _exchange(effect: AblationEffect) -> str:
    return f"{effect.contrast.changed[0][1]} instead of {effect.contrast.against[0][1]}"


def _brief(rank: Rank, study: Study) -> str:
    assert rank.effect is not None
    return f"{rank.effect.contrast.changed[0][1]}: {written(rank.effect)}{_fewer(rank.effect, study)}"


def _fewer(effect: AblationEffect, study: Study) -> str:
    """Return how many seeds an effect has, where the study has more."""
    seeds = len(effect.contrast.seeds)
    return f", of {count(seeds, 'seed')}" if seeds < len(study.seeds) else ""


def _beside(first: Rank, seconds: Sequence[Rank]) -> str:
    """Return what the same field does most to the second figure."""
    same = next((rank.effect for rank in seconds if rank.field == first.field), None)
    if same is None:
        return ""
    return f"; its largest effect on {ABLATION[SECOND].title} is {_said(same)}, with {same.contrast.changed[0][1]}"


def _together(found: Factorial) -> str:
    """Return what a factorial says: the main effects, and whether fields act independently."""
    crossed = " × ".join(found.fields)
    parts = [
        f"All combinations of {crossed} ({found.combinations:,}, {count(len(found.seeds), 'seed')}), each effect an "
        f"average over the other fields, largest effect on the {ABLATION[MAIN].title} first:"
    ]
    mains = [effect for field in found.main for effect in field.effects[MAIN] if effect.mean is not None]
    best = [max(same, key=lambda one: one.size) for same in _by_field(mains)]
    if best:
        order = sorted(best, key=lambda one: one.size, reverse=True)
        parts.append(
            "; ".join(f"{one.contrast.changed[0][0]} ({one.contrast.changed[0][1]}: {written(one)})" for one in order)
            + "."
        )
    pairs = [effect for effect in found.interactions[MAIN] if effect.mean is not None]
    if pairs:
        largest = max(pairs, key=lambda one: one.size)
        said = f"the largest is that of {largest.contrast.label}, {_said(largest)}."
        if len(found.seeds) >= CLAIM_SEEDS:
            sure = sum(map(_certain, pairs))
            verb = "is" if sure == 1 else "are"
            parts.append(
                f"Of {count(len(pairs), 'interaction')} {sure or 'none'} {verb} significant"
                f"{assumption(len(found.seeds))}; {said}"
            )
        else:
            parts.append(f"Of {count(len(pairs), 'interaction')}, {said}")
    if found.missing or found.left_out:
        parts.append(f"Not among them: {'; '.join([*found.missing, *found.left_out])}.")
    return " ".join(parts)


def _by_field(effects: Sequence[AblationEffect]) -> list[list[AblationEffect]]:
    found: dict[str, list[AblationEffect]] = {}
    for effect in effects:
        found.setdefault(effect.contrast.changed[0][0], []).append(effect)
    return list(found.values())


def _lost(found: StudyEffects) -> list[str]:
    """Name the recipes of which a run did not complete."""
    lost = [f"{cell.label} ({status(cell)})" for cell in found.study.cells if status(cell)]
    if not lost:
        return []
    return [
        f"Runs that did not complete, {found.study.title}: {'; '.join(lost)}. Where some seeds of a recipe did, its "
        "effects are of these alone, which flatters it."
    ]


def _setting(study: Study) -> str:
    spec = study.records[0].spec
    recipe = spec.recipe
    assert isinstance(recipe, TransformerRecipe)
    pairs = _first(study.records, "train_pairs")
    amount = "" if pairs is None else f", {pairs:,.0f} training pairs"
    trained = count(spec.updates, "update") if spec.updates else count(spec.training.epochs, "epoch")
    return (
        f"On {spec.data.corpus} {spec.data.direction}{amount}, width {recipe.width}, {count(recipe.layers, 'layer')}, "
        f"{trained}, {count(len(study.seeds), 'seed')}"
    )


def _first(records: Iterable[RunRecord], name: str) -> float | None:
    return next((one for record in records if (one := record.sizes.get(name)) is not None), None)


# What it does not cover -----------------------------------------------------------------------------------------------


def limits(analysis: Analysis) -> list[str]:
    """Return what the evidence does not show, a sentence or two each."""
    shown = [one for one in analysis.studies if not one.study.differences]
    if not shown:
        return []
    records = [record for one in shown for record in one.study.records]
    settings = "; ".join(dict.fromkeys(_setting(one.study) for one in shown))
    lines = [
        f"Other sizes, other text and longer training: these runs are {settings[0].lower()}{settings[1:]}. Details may "
        "rank otherwise where models are larger or see more.",
        _seed_limit(shown),
        _rate_limit(shown),
        _equal_limit(shown),
        "Speed: runs share their machine with others, so nothing here ranks recipes by it.",
        f"That there is no effect where {Conclusion.INCONCLUSIVE.symbol} stands: the interval says how large it may "
        "be.",
    ]
    if any(one.factorial is None and one.fields for one in shown):
        lines.append(
            "Fields changed together, where they were changed one at a time: an effect holds for the base named, and a "
            "word that is bad there may be good beside another."
        )
    if any(one.factorial is not None and len(one.factorial.fields) > 2 for one in shown):
        lines.append("Interactions of three fields or more: the tables show pairs, averaged over the others.")
    if any(one.study.joint for one in shown) and any(not one.study.joint for one in shown):
        lines.append(
            "Absolute figures of tying beside those of other fields: it is measured with one vocabulary for both "
            "languages, its base too, and only differences within that set compare."
        )
    if any(record.spec.data.corpus == "captions" for record in records):
        lines.append("Real text: captions is generated by a grammar embedded in this project. It is not Multi30k.")
    return lines


def _rate_limit(found: Sequence[StudyEffects]) -> str:
    tuned = [one.tuned for one in found if one.tuned is not None]
    if not tuned:
        return (
            "Other learning rates: every recipe has the one training of its base, and none was tuned. A recipe that "
            "wants another rate, warm-up or initialisation is shown worse than it can be."
        )
    return (
        f"Learning rates outside the grid ({ablation_tuning.how(tuned[0])}): one seed and a short run can choose a "
        "rate that is not the best of the full run. Warm-up, dropout and all other settings were not tuned."
    )


def agreement(study: Study) -> str:
    """Return what all runs of a study have in common."""
    training = "training settings, updates, the stream of batches of each seed"
    if len(study.batchings) > 1:
        training = "training settings apart from batching, updates and the stream of batches of each batching and seed"
    return (
        "These agree in all runs: data settings and files, vocabularies, token ids, test set, decoding, signatures, "
        f"{training}, and every initial tensor that two recipes share by name and shape."
    )


def _seed_limit(found: Sequence[StudyEffects]) -> str:
    seeds = sorted({len(one.study.seeds) for one in found})
    if seeds == [1]:
        return "Other seeds: each recipe ran once, so seed noise is unknown and no effect is marked as significant."
    amount = count(seeds[-1], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
    bases = {effect.basis for one in found for field in one.fields for effect in field.effects[SECOND]}
    basis = " and other test sentences" if "seeds and sentences" in bases else ", not other test sentences"
    if {"seeds", "seeds and sentences"} <= bases:
        basis = " and, where all runs have what it takes stored, other test sentences"
    return (
        f"Many seeds: intervals and symbols rest on {amount}{assumption(seeds[0])}. Intervals of perplexity and BLEU "
        f"cover other seeds{basis}; those of the validation loss cover seeds alone, and its epoch is chosen on the "
        "same sentences."
    )


def _equal_limit(found: Sequence[StudyEffects]) -> str:
    counts = [number for one in found for cell in one.study.cells if (number := parameters(cell)) is not None]
    sizes = f" ({min(counts):,.0f} to {max(counts):,.0f} here)" if counts and min(counts) < max(counts) else ""
    same = "epochs" if any(len(one.study.batchings) > 1 for one in found) else "batches and updates"
    return f"Equal cost: all runs get the same {same}, not the same time, arithmetic or number of parameters{sizes}."


# Numbers in sentences -------------------------------------------------------------------------------------------------


def _said(effect: AblationEffect) -> str:
    """Return an effect for a sentence: "+0.31 nats (95 % interval +0.25 to +0.37)"."""
    unit = ABLATION[effect.figure].unit
    bounds = "no interval" if interval(effect) == MISSING else interval(effect)
    bounds = f"95 % interval {bounds}" if effect.low is not None else bounds
    mark = "" if effect.significant else f", {effect.conclusion.label}"
    return f"{signed(effect.mean, effect.figure)}{' ' * bool(unit)}{unit} ({bounds}{mark})"
