"""What a session on another backend than JAX does for searches in its own process."""
