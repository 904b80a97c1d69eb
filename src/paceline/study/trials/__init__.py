"""Trials: the record of one, the table of all, how they are stored, which continues which."""
