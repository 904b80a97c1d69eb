"""``Tuner`` and one search: its loop, the trials that run, checkpoints."""
