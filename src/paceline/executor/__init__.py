"""Where trials run: packs in one compiled program, or Keras' own ``fit``."""
