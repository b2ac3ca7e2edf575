"""The recipes in Keras 3, for TensorFlow, JAX and torch: `keras_adapter` implements `Seq2SeqModel`."""
