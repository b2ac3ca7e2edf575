"""The shared PyTorch parts of the variants; `torch_adapter` implements `Seq2SeqModel`."""
