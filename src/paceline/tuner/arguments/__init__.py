"""The arguments of a search: their checks, and what a study remembers of them."""
