"""Whether the environment asks for parallel tuning over several machines, an error here."""

from __future__ import annotations

import os

from paceline.compat.keras_tuner.errors import FatalRuntimeError

__all__ = ["check_not_asked_for", "has_chief_oracle", "is_chief_oracle"]


def has_chief_oracle() -> bool:
    """Returns whether the environment names a chief of parallel tuning."""
    return bool(os.environ.get("KERASTUNER_ORACLE_IP"))


def is_chief_oracle() -> bool:
    """Returns whether the environment makes this process the chief of parallel tuning."""
    return has_chief_oracle() and "chief" in os.environ.get("KERASTUNER_TUNER_ID", "")


def check_not_asked_for() -> None:
    """Raises FatalRuntimeError if the environment asks for parallel tuning."""
    if has_chief_oracle():
        raise FatalRuntimeError(
            "KERASTUNER_ORACLE_IP is set, but Paceline has no parallel tuning over several "
            "machines. Unset it: the trials of one machine train side by side."
        )
