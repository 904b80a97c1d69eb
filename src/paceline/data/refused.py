"""Data that nothing can train on, each with what to do about it."""

from __future__ import annotations

from typing import Any, NoReturn

import keras

from paceline.errors import DataError


def refuse_text(where: str, dtype: Any, *, labels: bool = False) -> None:
    """Refuses text and objects where nothing can train on them: as labels, and under JAX.

    Under JAX, where ``fit`` would fail in every trial, it always raises DataError; elsewhere for
    labels, which must be numbers on every backend. ``where``: name of the data in the message.
    """
    if labels:
        raise DataError(
            f"{where} holds text or objects ({dtype}); number the classes from 0, for instance "
            "with np.unique(y, return_inverse=True)[1]."
        )
    if keras.backend.backend() == "jax":
        raise DataError(
            f"{where} holds text or objects ({dtype}), and JAX has numbers only; make numbers of "
            "them before the search, by scikit-learn's TfidfVectorizer (docs/guides/data.md) or, "
            "with TensorFlow, Keras' TextVectorization, or set KERAS_BACKEND=tensorflow."
        )


def refuse_masked(where: str) -> NoReturn:
    """Refuses an array of ``np.ma`` with places left out: what lies there would be trained on.

    ``where``: name of the data in the message.
    """
    raise DataError(
        f"{where} is a masked array, and Keras knows no masks of data; fill it (x.filled(0)), or "
        "drop those rows."
    )
