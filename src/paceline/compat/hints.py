"""What to change in the user's code after an error that another Keras would not raise."""

from __future__ import annotations

import keras

from paceline.errors import keras_3_change


def hint_for(error: BaseException) -> str | None:
    """Returns what to write in place of code for TensorFlow or Keras 2; None if unknown."""
    if keras.backend.backend() == "jax":
        from paceline.tuner.search.session import foreign_calls  # seldom needed

        if (foreign := foreign_calls(error)) is not None:
            return foreign
    return keras_3_change(f"{type(error).__name__}: {error}")


def add_hint(error: BaseException) -> None:
    """Adds the hint to an error, as a note."""
    if (hint := hint_for(error)) is not None:
        error.add_note(hint)
