"""Makes sure that models cast integers beyond 32 bits to floats before they do anything with them.

``data/wide_integers.py`` says why. Packs are given such data as floats from the beginning; in
Keras' own methods each batch is looked at: ``batch_checks.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.wide_integers import as_floats, error_of
from paceline.program import keras_private, trace
from paceline.program.data_paths.integer_casts import casts_at_once
from paceline.program.trace import State, Step


def check_casts(
    model: Any,
    train: ArrayData | BatchedDataset | None,
    size: int,
    validation: ArrayData | None,
    validation_size: int,
    table: np.ndarray | None = None,
) -> None:
    """Checks that the steps of a model cast the wide arrays of their data at once.

    The model is compiled and has all its variables. ``size`` and ``validation_size`` are examples
    of a batch; ``table`` is as of ``trace.trace_train``. Raises DataError if the steps do not, or
    cannot be traced.
    """
    steps = partial(trace.trace_train, class_weight=table), trace.trace_test
    sizes, names = (size, validation_size), ("training data", "validation data")
    for step, data, n, what in zip(steps, (train, validation), sizes, names, strict=True):
        if data is None or not data.wide:
            continue
        sample = data.sample if isinstance(data, BatchedDataset) else data
        sample = replace(sample, wrapped=data.wrapped)
        shapes = [replace(sample, wide=cast).step_shapes(n) for cast in ({}, data.wide)]
        number = first_that_is_not_cast(model, [step], shapes, data.wide)
        if number is not None:
            raise error_of(data.wide[number], what)


def cast_for(models: Iterable[Any], data: ArrayData) -> ArrayData:
    """Validation data as ``evaluate`` and ``predict`` of models take them, without wide arrays.

    Raises DataError if a model does not cast the wide arrays at once.
    """
    if not data.wide:
        return data
    for model in models:
        keras_private.symbolic_build(model, data.batch_shapes(1))
        check_casts(model, None, 1, data, 1)
    return replace(data, inputs=as_floats(data.inputs, data.wide, "validation data"), wide={})


def first_that_is_not_cast(
    model: Any, steps: Iterable[Callable[..., Step]], shapes: Sequence[Any], wide: Iterable[int]
) -> int | None:
    """The number of the first of the ``wide`` arrays that steps do not cast at once; None: all are.

    ``shapes`` are those of a batch, with dtypes: with integers, and with floats.
    """
    state = None  # of a model that is not compiled, and only predicts
    if getattr(model, "optimizer", None) is not None:
        state = trace.shapes_only(State(*trace.variables_of(model)))
    for step in steps:
        try:
            whole, floats = (step(model, state, each) for each in shapes)
        except Exception:  # as a user's step may raise anything: it cannot be shown to cast
            return next(iter(wide))
        for number in wide:
            if not casts_at_once(whole, floats, number - len(jax.tree.leaves(shapes[0]))):
                return number
    return None
