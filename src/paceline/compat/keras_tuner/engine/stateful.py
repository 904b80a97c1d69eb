"""The base of what is saved as JSON, under the name of ``keras_tuner.engine.stateful``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.utils import load_json, save_json


class Stateful:
    """Saves its state as JSON; a subclass defines ``get_state`` and ``set_state``."""

    def get_state(self) -> Any:
        """Returns the state as JSON values; a subclass must define it."""
        raise TypeError(f"{type(self).__name__} has no `get_state()`; override it.")

    def set_state(self, state: Any) -> None:
        """Restores what ``get_state`` returned; a subclass must define it."""
        raise TypeError(f"{type(self).__name__} has no `set_state(state)`; override it.")

    def save(self, fname: str | Path) -> None:
        """Writes the state to a file."""
        save_json(fname, self.get_state())

    def reload(self, fname: str | Path) -> None:
        """Restores the state from a file of ``save``."""
        self.set_state(load_json(fname))
