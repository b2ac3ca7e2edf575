"""The shared PyTorch parts of the variants.

`torch_adapter` implements `Seq2SeqModel` for any network; `torch_transformer` is the Transformer of every recipe;
`cpu_kernels`, `torch_packing` and `dropout` are its fast paths; the `cuda_graph_*` files replay updates on a GPU.
"""
