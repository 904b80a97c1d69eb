"""Paths of the data through a traced step: what happens to the numbers of a batch on the way."""
