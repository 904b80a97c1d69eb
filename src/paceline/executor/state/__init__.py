"""What is kept of jobs between two epochs: paused ones, snapshots, the facts of a checkpoint."""
