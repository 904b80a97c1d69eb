"""Population based training: what may change in a copy, how copies are made, and replays."""
