"""The live view, tables and summaries that people read. Needs no device and never loads JAX."""
