"""Baselines of speed and quality: tutorial code, `nn.Transformer`, Marian and CTranslate2.

They start from the same weights as the variants and are trained or decoded, but are not part of a benchmark table.
`protocol.Baseline` is their interface; `impls.registry.build_baseline` creates one by name.
"""
