"""What a trial trains on: arrays, data sets in batches, chunks, folds, labels."""
