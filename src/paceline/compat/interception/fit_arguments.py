"""Reads the arguments of ``model.fit`` for a pack."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import keras
import numpy as np

from paceline.compat.interception.data_sets import (
    DataSetPasses,
    UnpackableSet,
    equal,
    read_validation,
)
from paceline.data.adapters import family, is_data_set, is_read_once
from paceline.data.arrays import ArrayData, NotArrays, prepare, split
from paceline.errors import DataError
from paceline.executor.base import SearchData
from paceline.pack.callbacks.packable import acts_by_batch, why_not_packed, why_not_traced
from paceline.program import keras_private
from paceline.program.canonical import Unpackable

_BATCH_SIZE = 32


@dataclass
class ReadFold:
    """All training examples, and validation data in the order of the next epoch; as ``Fold``."""

    train: np.ndarray  # i32[N]
    validation: np.ndarray  # i32[V]


@dataclass(frozen=True)
class FitArguments:
    """The arguments of a ``fit`` that can train in a pack."""

    data: ArrayData  # without the part that ``validation_split`` takes away
    validation: ArrayData | None
    batch_size: int  # at most the number of training examples
    validation_batch_size: int | None  # None: as ``batch_size``
    epochs: int  # the number of the last epoch, as ``fit`` counts
    initial_epoch: int  # epochs that count as trained already
    shuffle: bool
    callbacks: list[Any]
    verbose: Any
    passes: DataSetPasses | None = None  # of x, which yields the data; None: x is arrays
    # Of validation data whose order may differ from epoch to epoch; None: they have one order.
    validation_passes: DataSetPasses | None = None

    @property
    def steps(self) -> int | None:
        """Number of steps of an epoch; None if ``fit`` does not know it at the beginning."""
        if self.passes is not None:
            return self.passes.steps
        return -(-self.data.n // self.batch_size)

    @property
    def watched(self) -> bool:
        """Whether the function does something after each epoch."""
        return bool(self.callbacks) or self.reads

    @property
    def reads(self) -> bool:
        """Whether a data set is read in each epoch."""
        return self.passes is not None or self.validation_passes is not None

    @property
    def by_batch(self) -> bool:
        """Whether callbacks act between training batches."""
        return any(map(acts_by_batch, self.callbacks))

    def key(self) -> tuple[Any, ...]:
        """Returns a key that is equal for fits that may train on one executor.

        Their data are equal, byte by byte.
        """
        validation = None if self.validation is None else _digest(self.validation)
        return _digest(self.data), validation, *self._how

    def trains_on(self, data: SearchData) -> bool:
        """Whether an executor's data make the same ``key``; much faster than to make it."""
        how = data.validation_batch_size, data.shuffle, data.by_batch, data.fold
        pairs = (self.data, data.train), (self.validation, data.validation)
        return how == self._how and all(_is_equal(one, other) for one, other in pairs)

    @property
    def _how(self) -> tuple[Any, ...]:
        return self.validation_batch_size, self.shuffle, self.by_batch, self._fold()

    def next_order(self, random: Any) -> np.ndarray | None:
        """Draws the order of the examples in the next epoch, i32[N]; None: that of the data.

        ``random`` is ``np.random``, or a generator of that kind.
        """
        if self.passes is not None:
            return self.passes.next_order()
        return random.permutation(self.data.n).astype(np.int32) if self.shuffle else None

    def read_fold(self) -> ReadFold | None:
        """A fold of all examples, whose validation data have a new order in each epoch."""
        sizes = self._fold()
        return sizes and ReadFold(*(np.arange(n, dtype=np.int32) for n in sizes))

    def _fold(self) -> tuple[int, int] | None:
        if self.validation_passes is None or self.validation is None:
            return None
        return self.data.n, self.validation.n

    def search_data(self) -> SearchData:
        """The data as an executor takes them."""
        return SearchData(
            self.data,
            self.validation,
            fold=self._fold(),
            validation_batch_size=self.validation_batch_size,
            shuffle=self.shuffle,
            by_batch=self.by_batch,
        )


def read(
    model: Any, original: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> FitArguments:
    """Reads the arguments of ``model.fit(*args, **kwargs)``; ``original`` is Keras' own ``fit``.

    Raises Unpackable if a pack cannot do this fit; the message says why. Keras' own ``fit`` then
    does it, or raises an error of its own.
    """
    try:
        bound = inspect.signature(original).bind(model, *args, **kwargs)
    except TypeError as error:
        raise Unpackable(str(error)) from error
    bound.apply_defaults()
    given = bound.arguments
    if not getattr(model, "compiled", False):
        raise Unpackable("its model is not compiled")
    if getattr(model, "steps_per_execution", 1) != 1:
        raise Unpackable("steps_per_execution is above 1")
    _check_plain(given)
    callbacks = _callbacks(given["callbacks"], model)
    passes = _passes(given, looks=looks_first(model))
    size = int(given["batch_size"] or _BATCH_SIZE)
    try:
        if passes is not None:
            passes.read()
        data, validation, validation_passes = _data(given, passes)
    except (NotArrays, DataError, TypeError, ValueError) as error:
        failed = UnpackableSet(str(error))
        failed.unread = passes and passes.unread()
        raise failed from error
    validation_size = given["validation_batch_size"]
    if validation_passes is not None:
        validation_size = validation_passes.batch_size
        if validation_passes.constant is not None:
            validation_passes = None
        elif any(map(acts_by_batch, callbacks)):  # they may draw before validation data do
            raise Unpackable("callbacks act between batches, and validation_data may shuffle")
    elif passes is not None or size > data.n:
        validation_size = validation_size or size
    if given["validation_steps"] is not None and validation is not None:
        n = int(given["validation_steps"]) * int(validation_size or size)
        if n < validation.n:
            validation = validation.slice(0, n)
    return FitArguments(
        data=data,
        validation=validation,
        batch_size=min(size, data.n) if passes is None else passes.batch_size,
        validation_batch_size=validation_size,
        epochs=int(given["epochs"]),
        initial_epoch=int(given["initial_epoch"]),
        shuffle=bool(given["shuffle"]) and passes is None,
        callbacks=callbacks,
        verbose=given["verbose"],
        passes=passes,
        validation_passes=validation_passes,
    )


def looks_first(model: Any) -> bool:
    """Whether ``fit`` on JAX would look at a batch first, because something is not built."""
    if keras.backend.backend() == "jax":
        return not keras_private.is_built(model)
    return not model.optimizer.built  # the process builds loss and metrics


def _passes(given: Mapping[str, Any], *, looks: bool) -> DataSetPasses | None:
    """The passes over x; None: x isn't a data set."""
    if not is_data_set(x := given["x"]):
        if given["steps_per_epoch"] is not None:
            raise Unpackable("steps_per_epoch is given")
        return None
    for name in ("y", "sample_weight", "batch_size", "validation_split"):
        if given[name] is not None and given[name] != 0.0:
            raise Unpackable(f"{name} is given")
    if given["class_weight"] is not None and (is_read_once(x) or family(x) in ("torch", "grain")):
        raise Unpackable("class_weight is given")
    epochs, steps = given["epochs"] - given["initial_epoch"], given["steps_per_epoch"]
    return DataSetPasses(x, epochs, steps, shuffle=bool(given["shuffle"]), looks=looks)


def _check_plain(given: Mapping[str, Any]) -> None:
    if given["validation_freq"] != 1:
        raise Unpackable("validation_freq is given")
    if not isinstance(given["shuffle"], (bool, np.bool_)):
        raise Unpackable(f"shuffle is {given['shuffle']!r}")
    whole = "batch_size validation_batch_size validation_steps epochs initial_epoch".split()
    for name in whole:
        value = given[name]
        if value is not None and not isinstance(value, (int, np.integer)):
            raise Unpackable(f"{name} is {value!r}")
    if (given["batch_size"] or 1) < 1 or (given["validation_batch_size"] or 1) < 1:
        raise Unpackable("a batch size is below 1")
    if given["validation_steps"] is not None and given["validation_steps"] < 1:
        raise Unpackable("validation_steps is below 1")
    if given["epochs"] <= given["initial_epoch"]:
        raise Unpackable("there is no epoch to train")
    for name in ("max_epochs", "max_steps_per_epoch"):
        limit = getattr(keras.config, name, None)  # since Keras 3.11
        if limit is not None and limit():
            raise Unpackable(f"keras.config.set_{name} limits it")


def _callbacks(given: Any, model: Any) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, keras.callbacks.CallbackList):
        raise Unpackable("its callbacks are a CallbackList")
    callbacks = list(given) if isinstance(given, (list, tuple)) else [given]
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.Callback):
            raise Unpackable(f"a callback is a {type(callback).__name__}")
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise Unpackable("its callback BackupAndRestore decides where training begins")
    # PyTorch's parameters can be written without their variables.
    why = why_not_packed(callbacks, by_batch=keras.backend.backend() != "torch")
    if why := why or why_not_traced(callbacks, model, before=True):
        raise Unpackable(why)
    return callbacks


def _data(
    given: Mapping[str, Any], passes: DataSetPasses | None
) -> tuple[ArrayData, ArrayData | None, DataSetPasses | None]:
    """Data, validation data, and the passes over them if they are a data set."""
    if given["x"] is None:
        raise NotArrays("there is no x")
    weights, class_weight = given["sample_weight"], given["class_weight"]
    if passes is None:
        data = prepare(given["x"], given["y"], weights, allow_nan=True)
    else:
        data = passes.data
    validation = validation_passes = None
    if is_data_set(parts := given["validation_data"]) and not is_read_once(parts):
        epochs, steps = given["epochs"] - given["initial_epoch"], given["validation_steps"]
        validation, validation_passes = read_validation(parts, epochs, steps)
    elif parts is not None:
        if not isinstance(parts, (tuple, list)) or not 1 <= len(parts) <= 3:
            raise NotArrays(f"validation_data is a {type(parts).__name__}")
        validation = prepare(*parts, allow_nan=True, what="validation data")
    elif given["validation_split"]:
        data, validation = split(data, given["validation_split"])
    if class_weight is not None:  # after the split, because Keras does not weigh validation data
        weighed = prepare(*data.inputs, class_weight=class_weight, allow_nan=True)
        data = replace(weighed, wide=data.wide)
    return data, validation, validation_passes


def _digest(data: ArrayData) -> bytes:
    found = hashlib.blake2b(str(jax.tree.structure(data.inputs)).encode(), digest_size=16)
    for array in jax.tree.leaves(data.inputs):
        found.update(f"{array.shape}{array.dtype}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.digest()


def _is_equal(one: ArrayData | None, other: Any) -> bool:
    """Whether two sets of arrays are equal, byte by byte."""
    if one is None or other is None:
        return one is other
    return equal(one.inputs, other.inputs)


def copied(data: ArrayData) -> ArrayData:
    """Returns a copy of the data: users may write into their arrays while packs train."""
    return replace(data, inputs=jax.tree.map(np.array, data.inputs))
