"""Steps of different extents as one program: batches of two sizes, trials of several widths."""
