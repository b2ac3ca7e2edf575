"""What an ablation says of learning rates and confounds: warnings, the pilots, and effects before and after tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.analysis.ablation import FieldEffects, StudyEffects, Tuned
from harness.analysis.ablation_study import Departures, Study
from harness.analysis.confounds import SIZES_OF_EMBEDDINGS, Confound
from harness.analysis.contrasts import AblationEffect
from harness.analysis.metric_registry import ABLATION
from harness.execution.rate_tuning import PILOT_SEED, Choice
from harness.reporting.ablation_tables import base_row, cell, written
from harness.reporting.document import Cell, Table
from harness.reporting.formatting import MISSING

SHOWN = ("validation_loss", "bleu_sacre")
HEADS = (
    "field (base)",
    "level",
    "tuned rate",
    *(f"{ABLATION[name].title}, {side}" for name in SHOWN for side in ("untuned", "tuned")),
)
Row = tuple[str | Cell, ...]


# Warnings -------------------------------------------------------------------------------------------------------------


def warnings(found: StudyEffects) -> list[str]:
    """Return a paragraph for everything that limits how the effects of a study may be read."""
    lines = [_confounded(one) for one in found.confounds]
    if len(found.study.batchings) > 1:
        lines.append(held_equal(found.study))
    if found.tuned is not None:
        lines += _of_pilots(found.study, found.tuned)
    return lines


def _confounded(one: Confound) -> str:
    ratios = ", ".join(f"{ratio:.2f} with {level}" for level, ratio in one.ratios.items())
    fields = " or ".join(SIZES_OF_EMBEDDINGS)
    return (
        f"{one.field} also changes the size of word embeddings relative to position vectors. At "
        f"initialisation the ratio of their RMS is {ratios}: it changes by a factor of {one.change:.1f}. The effect of "
        f"{one.field} may come from this ratio. To separate the two, cross {one.field} with {fields}: --factorial "
        f"--field {one.field} --field {SIZES_OF_EMBEDDINGS[0]}."
    )


def held_equal(study: Study) -> str:
    """Return what the levels of batching have in common: epochs, or the number of updates."""
    spec = study.records[0].spec
    counts = {
        name: " to ".join(dict.fromkeys(f"{one:,}" for one in (min(found), max(found))))
        for name, found in study.batchings.items()
    }
    updates = ", ".join(f"{count} with {name}" for name, count in counts.items())
    if len(set(counts.values())) > 1:
        equal = f"at equal epochs ({spec.training.epochs}): every level sees each training pair once per epoch"
        if spec.updates is not None:
            equal = f"within a limit of {spec.updates:,} updates, which holds neither epochs nor updates equal"
        return f"Batching is compared {equal}. The number of updates differs: {updates}."
    (same,) = set(counts.values())
    if spec.updates is None:
        return f"Batching is compared at equal epochs ({spec.training.epochs}) and updates ({same})."
    return (
        f"Batching is compared at an equal number of updates ({same}), not of epochs: with other batches the "
        "same updates cover another number of sentence pairs."
    )


def _of_pilots(study: Study, tuned: Tuned) -> list[str]:
    names = {cell.departures: cell.label for cell in study.cells}
    lines = []
    for edge, wider in (("lowest", "lower"), ("highest", "higher")):
        at_edge = [f"{names[cell]} ({one.rate:g})" for cell, one in tuned.choices.items() if one.edge == edge]
        who = "every recipe" if len(at_edge) == len(tuned.choices) > 1 else "; ".join(at_edge)
        if at_edge:
            lines.append(
                f"The best learning rate is the {edge} of the grid for {who}. A {wider} one "
                "may be better: extend --tune-rate."
            )
    lost = [names[cell] for cell, one in tuned.choices.items() if one.rate is None]
    if lost:
        lines.append(f"Every pilot diverged for {'; '.join(lost)}: the tuned table shows the untuned runs.")
    short = [one for one in tuned.choices.values() if one.updates < one.warmup_updates]
    if short:
        lines.append(
            f"The pilots end after {short[0].updates:,} updates, within the warm-up of "
            f"{short[0].warmup_updates:,}, so no pilot reached its learning rate: give more --pilot-epochs."
        )
    if tuned.missing:
        lines.append(f"Not tuned, because pilots or runs at the chosen rate are missing: {'; '.join(tuned.missing)}.")
    return lines


# The finding ----------------------------------------------------------------------------------------------------------


def finding(found: StudyEffects) -> list[str]:
    """Return in a paragraph what tuning the learning rate changes; empty without pilots."""
    tuned = found.tuned
    if tuned is None or tuned.effects is None or tuned.effects.study.differences:
        return []
    later = {one.contrast.changed: one for field in tuned.effects.fields for one in field.effects[SHOWN[0]]}
    earlier = [one for field in found.fields for one in field.effects[SHOWN[0]]]
    pairs = [(one, later[one.contrast.changed]) for one in earlier if one.contrast.changed in later]
    pairs = [(before, after) for before, after in pairs if before.mean is not None and after.mean is not None]
    if not pairs:
        return []
    pairs.sort(key=lambda pair: -pair[1].size)
    effects = "; ".join(f"{one.contrast.label}: {written(one)}, untuned {written(before)}" for before, one in pairs)
    turned = [one.contrast.label for before, one in pairs if (before.mean or 0.0) * (one.mean or 0.0) < 0]
    signs = f" The estimate changes its sign for {', '.join(turned)}." if turned else ""
    return [
        f"With the learning rate chosen for each recipe ({how(tuned)}), the effects on the {ABLATION[SHOWN[0]].title} "
        f"are, largest first: {effects}.{signs}"
    ]


def how(tuned: Tuned) -> str:
    """Return how the learning rates were chosen."""
    choices = list(tuned.choices.values())
    rates = ", ".join(f"{rate:g}" for rate in sorted({rate for one in choices for rate in one.losses}))
    epochs = " to ".join(map(str, sorted({one.epochs for one in choices})))
    noun = "epoch" if epochs == "1" else "epochs"
    return f"{rates}; pilots of {epochs} {noun}, seed {PILOT_SEED}, by validation loss"


# Tables ---------------------------------------------------------------------------------------------------------------


def tables(effects: StudyEffects) -> list[Table]:
    """Return the pilots of each recipe, and the effects without and with tuning side by side; empty without pilots."""
    tuned = effects.tuned
    if tuned is None:
        return []
    pilots = [_pilots(effects.study, tuned)]
    after = tuned.effects
    if after is None or after.study.differences:
        return pilots
    blocks = list(pilots)
    if effects.fields:
        rows = [_base_row(effects.study, after.study, tuned), *_field_rows(effects.fields, after.fields, tuned)]
        blocks.append(_table("Each level against the base, untuned and tuned", rows))
    if effects.factorial is not None and after.factorial is not None:
        crossed = " × ".join(effects.factorial.fields)
        rows = _field_rows(effects.factorial.main, after.factorial.main, None)
        blocks.append(_table(f"Main effects in {crossed}, untuned and tuned", rows))
        pairs = _rows(effects.factorial.interactions, after.factorial.interactions, None)
        blocks.append(_table(f"Interactions in {crossed}, untuned and tuned", pairs))
    return blocks


def _table(title: str, rows: Sequence[Row]) -> Table:
    return Table("llrrrrr", HEADS, tuple(rows), title)


def _pilots(study: Study, tuned: Tuned) -> Table:
    rates = sorted({rate for choice in tuned.choices.values() for rate in choice.losses})
    heads = ("recipe", *(f"{rate:g}" for rate in rates), "chosen", "at the edge of the grid")
    rows = []
    for study_cell in study.cells:
        choice = tuned.choices.get(study_cell.departures)
        if choice is not None:
            losses = [_loss(choice, rate) for rate in rates]
            rows.append(
                (study_cell.label, *losses, MISSING if choice.rate is None else f"{choice.rate:g}", choice.edge)
            )
    title = f"Validation loss of the pilots by learning rate ({how(tuned)})"
    return Table("l" + "r" * (len(rates) + 1) + "l", heads, tuple(rows), title)


def _loss(choice: Choice, rate: float) -> str:
    if rate not in choice.losses:
        return MISSING
    loss = choice.losses[rate]
    return "diverged" if loss is None else f"{loss:.3f}"


def _base_row(before: Study, after: Study, tuned: Tuned) -> Row:
    rows = base_row(before), base_row(after)
    return ("base", rows[0].word, _rate(tuned, ()), *(row.cells[figure] for figure in SHOWN for row in rows))


def _field_rows(before: Iterable[FieldEffects], after: Iterable[FieldEffects], tuned: Tuned | None) -> list[Row]:
    known = {field.field: field.effects for field in after}
    lines: list[Row] = []
    for field in before:
        for index, row in enumerate(_rows(field.effects, known.get(field.field, {}), tuned)):
            lines.append((f"{field.field} ({field.words[0]})" if index == 0 else "", *row[1:]))
    return lines


def _rows(
    before: Mapping[str, Sequence[AblationEffect]], after: Mapping[str, Sequence[AblationEffect]], tuned: Tuned | None
) -> list[Row]:
    """Return a row for each contrast: fields, levels, learning rate, and each metric untuned and tuned."""
    lines: list[Row] = []
    for same in zip(*(before[figure] for figure in SHOWN), strict=True):
        changed = same[0].contrast.changed
        cells: list[str | Cell] = [" × ".join(field for field, _ in changed), ", ".join(level for _, level in changed)]
        cells.append(MISSING if tuned is None else _rate(tuned, changed))
        for effect in same:
            later = (other for other in after.get(effect.figure, ()) if other.contrast.changed == changed)
            cells += [cell(effect), next(map(cell, later), MISSING)]
        lines.append(tuple(cells))
    return lines


def _rate(tuned: Tuned, departures: Departures) -> str:
    choice = tuned.choices.get(departures)
    return MISSING if choice is None or choice.rate is None else f"{choice.rate:g}"
