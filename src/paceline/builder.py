"""Building a trial's model: the user's ``build(hp)`` under the trial's seed, and what must be true of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from paceline.data import ArrayData
from paceline.errors import BuildError, DataError, UsageError
from paceline.program import keras_private
from paceline.search_space import HyperParameters


class Builder:
    """Calls the user's build function.

    Args:
        build: ``build(hp) -> compiled keras.Model``, or an object with such a method (``HyperModel``).

    Raises:
        UsageError: It is neither, or a ``HyperModel`` that also trains by itself.
    """

    def __init__(self, build: Any) -> None:
        method = getattr(build, "build", None)
        if isinstance(build, keras.Model):
            raise UsageError(
                "build: a keras.Model was given; pass a function build(hp) that makes and compiles one."
            )
        if callable(method):
            if _overrides_fit(build):
                raise UsageError(
                    f"build: {type(build).__name__} has its own fit(); only HyperModel.build is used here. "
                    "Move what fit() does into build(hp), or train with keras_tuner."
                )
            self._call: Callable[[Any], Any] = method
        elif callable(build):
            self._call = build
        else:
            raise UsageError(f"build: {build!r} is not a function build(hp) that returns a model.")

    def __call__(self, hp: HyperParameters, seed: int) -> Any:
        """The compiled model for ``hp``, its weights drawn from ``seed``.

        Raises:
            BuildError: The function returned something else than a compiled model.
        """
        keras.utils.set_random_seed(seed)
        with keras_private.fresh_names():
            model = self._call(hp)
        if not isinstance(model, keras.Model):
            raise BuildError(
                f"build(hp) returned {type(model).__name__}, not a keras.Model; end it with 'return model'."
            )
        if not model.compiled:
            raise BuildError(
                "build(hp) returned a model that is not compiled; call model.compile(optimizer=..., "
                "loss=..., metrics=[...]) before returning it."
            )
        return model


def metric_names(model: Any, data: ArrayData, batch_size: int) -> list[str]:
    """The names of the logs of an epoch of training, in the order the model was compiled with."""
    keras_private.symbolic_build(model, data.batch_shapes(min(batch_size, data.n)))
    return [str(name) for name in model.get_metrics_result()]


def check_labels(model: Any, data: ArrayData, what: str) -> None:
    """Checks integer labels against the number of classes: JAX would train on silently.

    Raises:
        DataError: A label is negative or not below the size of the model's last axis.
    """
    if (
        len(data.inputs) < 2
        or not isinstance(data.inputs[1], np.ndarray)
        or not _is_sparse(model.loss)
    ):
        return
    shape = getattr(model, "output_shape", None)
    y = data.inputs[1]
    if (
        not isinstance(shape, tuple)
        or not shape
        or not isinstance(shape[-1], int)
        or y.dtype.kind not in "iu"
    ):
        return
    low, high, classes = int(y.min()), int(y.max()), shape[-1]
    if low < 0 or high >= classes:
        raise DataError(
            f"{what}: labels go from {low} to {high}, but the model has {classes} outputs, for labels 0 to "
            f"{classes - 1}; give the last layer {max(high + 1, classes)} units or renumber the labels."
        )


@contextmanager
def random_state_kept() -> Iterator[None]:
    """The user's random state is after as it was before: Python's, NumPy's and Keras' own."""
    python, numpy_state = random.getstate(), np.random.get_state()
    with keras_private.seed_state_kept():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy_state)


def _is_sparse(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "name", getattr(loss, "__name__", ""))
    return str(name).lower().replace("_", "") == "sparsecategoricalcrossentropy"


def _overrides_fit(hypermodel: Any) -> bool:
    for cls in type(hypermodel).__mro__:
        if cls.__module__.split(".")[0] == "keras_tuner":
            return False
        if "fit" in vars(cls):
            return True
    return False
