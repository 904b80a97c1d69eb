"""KerasTuner's parallel tuning over several machines is not offered; ``utils`` says so."""

from paceline.compat.keras_tuner.distribute import utils

__all__ = ["utils"]
