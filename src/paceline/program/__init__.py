"""From a compiled Keras model to a compiled program that many trials share."""
