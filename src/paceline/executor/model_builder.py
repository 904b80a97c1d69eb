"""Builds a trial's model: calls the user's ``build(hp)`` under the trial's seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from paceline.errors import BuildError, UsageError
from paceline.program import keras_private
from paceline.program.initial_weights import noted_build, shared_variables
from paceline.search_space import HyperParameters


class ModelBuilder:
    """Calls the user's build function.

    Args:
        build: ``build(hp) -> compiled keras.Model``, or an object with such a method
            (``HyperModel``).

    Raises:
        UsageError: ``build`` is neither, or is a ``HyperModel`` with a ``fit`` of its own.
    """

    def __init__(self, build: Any) -> None:
        method = getattr(build, "build", None)
        if isinstance(build, keras.Model):
            raise UsageError(
                "build: a keras.Model was given; pass a function build(hp) that makes and compiles "
                "one."
            )
        if isinstance(build, type) and callable(method):
            raise UsageError(f"build: {build.__name__} is a class; pass an object of it.")
        if callable(method):
            if _overrides_fit(build):
                raise UsageError(
                    f"build: {type(build).__name__} has its own fit(); only its build(hp) is used "
                    "here. Move what fit() does into build(hp), or search with "
                    "paceline.compat.keras_tuner, which runs it."
                )
            self._call: Callable[[Any], Any] = method
        elif callable(build):
            self._call = build
        else:
            raise UsageError(
                f"build: {build!r} is not a function; pass build(hp) that returns a compiled model."
            )

    def __call__(self, hp: HyperParameters, seed: int) -> Any:
        """The compiled model for ``hp``, its weights drawn from ``seed``.

        Raises:
            BuildError: The function returned something other than a compiled model.
        """
        keras.utils.set_random_seed(seed)
        with keras_private.fresh_names():
            model = noted_build(lambda: self._call(hp))
        if not isinstance(model, keras.Model):
            raise BuildError(
                f"build(hp) returned {type(model).__name__}, not a keras.Model; end it with "
                "'return model'."
            )
        if not model.compiled:
            raise BuildError(
                "build(hp) returned a model that is not compiled; call model.compile(optimizer=, "
                "loss=, metrics=) before returning it."
            )
        if any(keras_private.is_bound(variable) for variable in shared_variables(model)):
            raise BuildError(
                "build(hp) returned a model with layers that it made for another trial, whose "
                "callbacks look at them; make layers that all trials share outside of build, or "
                "new ones in each build."
            )
        return model


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restores the user's random states afterwards: Python's, NumPy's and Keras' own."""
    python, numpy_state = random.getstate(), np.random.get_state()
    with keras_private.seed_state_kept():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)


def _overrides_fit(hypermodel: Any) -> bool:
    for cls in type(hypermodel).__mro__:
        if cls.__module__.split(".")[0] == "keras_tuner":
            return False
        if "fit" in vars(cls):
            return True
    return False
