"""Which trials share a program: by fingerprint, and over widths and choices if that is faster."""
