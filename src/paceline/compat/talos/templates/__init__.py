"""``talos.templates``: data, params, models and whole scans to try things with."""

from paceline.compat.talos.templates import datasets, models, params, pipelines

__all__ = ["datasets", "models", "params", "pipelines"]
