"""The recipes in Keras 3, for the TensorFlow, JAX and torch backends.

`keras_adapter` implements `Seq2SeqModel`; `keras_transformer` and `gru` are the networks; `compiled` holds the compiled
training and decoding steps; `backends` is the only file that knows one backend from another.
"""
