"""Other implementations to compare speed with: tutorial code, `nn.Transformer`, Marian and CTranslate2.

They use the same weights as the variants and are trained or decoded, but are not part of a benchmark table.
`protocol.Baseline` is their interface, `baseline_registry.build` creates one by name.
"""
