"""What people see: the live view, tables and summaries. Needs no device and never loads JAX."""
