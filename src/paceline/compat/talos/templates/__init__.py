"""``talos.templates``: data sets, params, models and whole scans as examples."""

from paceline.compat.talos.templates import datasets, models, params, pipelines

__all__ = ["datasets", "models", "params", "pipelines"]
