"""Suites of tests for what others may write: one for each interface, public."""
