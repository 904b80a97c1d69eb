"""Trackers: MLflow, Weights & Biases and TensorBoard are told of trials, which stay in packs."""
