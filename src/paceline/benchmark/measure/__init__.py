"""What measures, with JAX and Keras; a cell is a ``Config`` with its ``Measurement``."""
