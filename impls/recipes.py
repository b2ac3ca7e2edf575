"""The recipe of every built-in variant, and the training settings of its source, side by side.

One call per variant, so that two variants can be read against each other; each variant's own file says why.
"""

from __future__ import annotations

from dataclasses import replace

from impls.contract import GruRecipe, PlainRecipe, Recipe, TorchReferenceRecipe, Training, TransformerRecipe

TUTORIAL = Training(peak_rate=5e-4, clip_norm=1.0, batch_size=128, epochs=10)
"""What the tutorial series and most others use: Adam (0.9, 0.999, 1e-8) at a constant 5e-4, the best epoch kept."""

LEARNED_POSITIONS = TransformerRecipe(
    name="learned_positions",
    source="bentrevett, pytorch-seq2seq, part 6: Attention is All You Need",
)

SINUSOIDAL_HANDMADE = TransformerRecipe(
    name="sinusoidal_handmade",
    source="handmade_transformer; Vaswani et al. 2017, section 3.5; Ba, Kiros and Hinton 2016",
    positions="sinusoidal",
    norm="handmade",
    embedding_scale="none",
    embedding_init="normal",
)

CONV_FFN = TransformerRecipe(
    name="conv_ffn",
    source="paul-hyun, transformer-evolution: the Transformer notebook; Hendrycks and Gimpel 2016 (GELU)",
    positions="sinusoidal",
    embedding_scale="none",
    embedding_init="normal",
    ffn="conv1d",
    activation="gelu",
    ffn_width=1024,
)

PAPER = TransformerRecipe(
    name="paper",
    source="jadore801120, attention-is-all-you-need-pytorch; Vaswani et al. 2017, sections 3.4, 5.3 and 5.4",
    positions="sinusoidal",
    tying="output",
)

PAPER_BASE = replace(
    PAPER, name="paper_base", source=f"{PAPER.source}; table 3, base size", layers=6, width=512, ffn_width=2048
)

BAHDANAU_GRU = GruRecipe(
    name="bahdanau_gru",
    source="bentrevett, pytorch-seq2seq, part 3; Bahdanau, Cho and Bengio 2015",
)

TORCH_REFERENCE = TorchReferenceRecipe(
    name="torch_reference",
    source="torch.nn.Transformer, with the settings of learned_positions",
)

PLAIN = PlainRecipe(
    name="plain",
    source="bentrevett, pytorch-seq2seq, part 6, without any optimisation: the control of learned_positions",
)

TUNED = TransformerRecipe(
    name="tuned",
    source="Wu et al. 2021, Good for Misconceived Reasons, the text-only model; Su et al. 2021 (rotary positions)",
    heads=4,
    ffn_width=1024,
    dropout=0.2,
    attention_dropout=0.0,
    activation_dropout=0.0,
    positions="rotary",
    tying="all",
)

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        LEARNED_POSITIONS,
        SINUSOIDAL_HANDMADE,
        CONV_FFN,
        PAPER,
        PAPER_BASE,
        BAHDANAU_GRU,
        TORCH_REFERENCE,
        PLAIN,
        TUNED,
    )
}

_PAPER_TRAINING = Training(
    beta2=0.98,
    epsilon=1e-9,
    schedule="inverse_sqrt",
    peak_rate=1e-3,
    warmup_updates=1_000,
    clip_norm=None,
    batch_size=128,
    epochs=20,
    label_smoothing=0.1,
)

TRAININGS: dict[str, Training] = {
    "learned_positions": TUTORIAL,
    "sinusoidal_handmade": Training(
        beta2=0.98,
        epsilon=1e-9,
        schedule="inverse_sqrt",
        # The source's own peak: width ** -0.5 * warm-up ** -0.5 (Vaswani et al. 2017, equation 3) at 4,000 updates.
        peak_rate=256**-0.5 * 4_000**-0.5,
        warmup_updates=1_267,
        batch_size=256,
        epochs=20,
    ),
    "conv_ffn": TUTORIAL,
    "paper": _PAPER_TRAINING,
    "paper_base": _PAPER_TRAINING,
    "bahdanau_gru": replace(TUTORIAL, peak_rate=1e-3, teacher_forcing=0.5),
    "torch_reference": TUTORIAL,
    "plain": TUTORIAL,
    "tuned": Training(
        beta2=0.98,
        schedule="inverse_sqrt",
        peak_rate=1e-3,
        warmup_updates=500,
        clip_norm=1.0,
        batching="random",
        batch_size=64,
        epochs=16,
        label_smoothing=0.1,
        averaged_epochs=5,
    ),
}
