"""What functions that run side by side share: what they hold, read and change."""
