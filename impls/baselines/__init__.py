"""Baselines of speed: tutorial code, `nn.Transformer`, Marian and CTranslate2.

They start from the same weights as the variants, and train, translate or both, but are not part of a benchmark table.
`protocol.Baseline` is their interface; `impls.registry.build_baseline` creates one by name.
"""
