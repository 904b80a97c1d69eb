"""One search: its loop, the trials under way, what happens to them, and its checkpoints."""
