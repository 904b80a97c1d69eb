"""Which trials stop early, and which are paused and promoted."""
