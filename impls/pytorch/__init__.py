"""The shared PyTorch parts of the variants.

`torch_adapter` implements `Seq2SeqModel` for any network; `torch_transformer` is the Transformer of every recipe, with
`attention`, `dropout` and `kv_cache`. `torch_packing` and `cpu_kernels` make training on a CPU faster; the
`cuda_graph_*` files replay updates and decoding steps on a GPU. `plain_adapter` and `wrapped_module` hold the variant
`plain` and modules in `impls.wrap`.
"""
