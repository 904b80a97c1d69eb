"""One search: its loop, the unfinished trials, what happens to them, and its checkpoints."""
