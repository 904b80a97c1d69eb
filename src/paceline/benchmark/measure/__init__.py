"""What measures, with JAX and Keras; a cell is a ``CellConfig`` with its ``Measurement``."""
