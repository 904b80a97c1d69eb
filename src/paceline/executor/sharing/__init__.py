"""Which trials share a program: by fingerprint, and over widths and choices where that pays."""
