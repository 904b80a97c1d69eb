"""``HyperParameter``, at the import path of KerasTuner."""

from paceline.search_space import HyperParameter

__all__ = ["HyperParameter"]
