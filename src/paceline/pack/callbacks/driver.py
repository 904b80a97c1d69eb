"""One trial's callbacks on their way through packs: called as ``fit`` would call them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.pack.callbacks.per_trial import numbers
from paceline.pack.callbacks.slot_model import Slot, SlotModel
from paceline.pack.callbacks.state import (
    CallbackState,
    attributes_of,
    callback_state,
    release,
    resumed,
)
from paceline.program import keras_private


class CallbackDriver:
    """The callbacks of one trial, or of a member of one, and the model they see.

    Args:
        callbacks: Its own copies.
        make: Builds its model.
        batch: Shapes of a batch, to make the variables from.
        params: What Keras tells callbacks: epochs, steps, and the trial.

    Attributes:
        seconds: Spent in callbacks since it was last asked for.
        begun: Whether ``on_train_begin`` was called.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        make: Callable[[], Any],
        batch: Any,
        params: Mapping[str, Any],
    ) -> None:
        self._given, self._make, self._batch = list(callbacks), make, batch
        self._params = {"verbose": 0, **params}
        self._last = _CaptureLogs()
        self._list: Any = None
        self._model: SlotModel | None = None
        self._slot: Slot | None = None
        self._kept: CallbackState | None = None
        self._begun_with: list[frozenset[str]] = []
        self._epoch = -1  # the one that has begun last
        self._logs: dict[str, float] = {}  # of the last epoch, without what callbacks added
        self._seconds = 0.0
        self.begun = self._ended = False

    @property
    def stopped(self) -> bool:
        """Whether a callback has asked for the end of training."""
        return self._model is not None and bool(self._model.model.stop_training)

    def seconds(self) -> float:
        """Seconds spent in callbacks since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def attach(self, slot: Slot | None) -> None:
        """Sits in that slot from now on."""
        self._slot = slot
        if self._model is not None:
            self._model.attach(slot)

    def begin_epoch(self, epoch: int) -> None:
        """Before an epoch, from 0; before the first one of all, training begins.

        Raises:
            Exception: Whatever a callback raises.
        """
        began = time.perf_counter()
        if not self.begun:
            self._begin()
        assert self._model is not None
        if epoch != self._epoch:  # not again where memory ran out and the epoch comes once more
            self._epoch = epoch
            self._list.on_epoch_begin(epoch)
            self._model.flush()
        self._model.forget()
        self._seconds += time.perf_counter() - began

    def end_epoch(self, logs: Mapping[str, float]) -> dict[str, float]:
        """After an epoch; returns the logs with what callbacks made of them.

        Raises:
            Exception: Whatever a callback raises.
        """
        began = time.perf_counter()
        assert self._model is not None
        validated = {n.removeprefix("val_"): v for n, v in logs.items() if n.startswith("val_")}
        if validated:
            self._list.on_test_begin()
            self._list.on_test_end(validated)
        self._logs = dict(logs)
        self._list.on_epoch_end(self._epoch, self._logs)
        self._model.flush()
        self._seconds += time.perf_counter() - began
        return numbers(self._last.logs)

    def end(self) -> None:
        """Training is over; what callbacks now make of the model stays with them.

        Raises:
            Exception: Whatever a callback raises.
        """
        if self._ended or self._model is None:
            return
        self._ended = True
        model = self._model.model
        if model.optimizer.use_ema:  # as fit does when it ends
            model.optimizer.finalize_variable_values(model.trainable_weights)
        self._list.on_train_end(self._logs)

    def abandon(self) -> None:
        """The trial is out without an end of training; files are closed."""
        release(self._given)
        self.attach(None)

    def saved(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """The state of all callbacks, as JSON values and, in ``arrays`` under ``name``, arrays."""
        if self._kept is not None:  # they have not begun since it was read
            arrays.update(self._kept.arrays)
            return self._kept.facts
        return {"callbacks": callback_state(self._callbacks, name, arrays, self._begun_with)}

    def restore(self, name: str, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Has the callbacks begin with a state that was saved under ``name``."""
        own = {key: array for key, array in arrays.items() if key.startswith(f"{name}.")}
        self._kept = CallbackState(facts, own)

    @property
    def _callbacks(self) -> list[Any]:
        return [each for each in self._list.callbacks if each is not self._last]

    def _begin(self) -> None:
        model = self._make()
        keras_private.symbolic_build(model, self._batch)
        self._model = SlotModel(model)
        self._model.attach(self._slot)
        given = [*self._given, self._last]
        self._list = keras.callbacks.CallbackList(
            given, add_history=True, model=model, **self._params
        )
        model.stop_training = False
        self.begun = True
        if self._kept is None:
            self._list.on_train_begin()
            self._begun_with = attributes_of(self._callbacks)
            return
        with resumed(self._callbacks, self._kept):
            self._list.on_train_begin()
        self._begun_with = attributes_of(self._callbacks)
        self._kept = None
        # What they wrote to the model at the beginning is long part of its slot.
        self._model.forget()
        model.stop_training = False


class _CaptureLogs(keras.callbacks.Callback):
    """Stands behind the user's, and keeps the logs as they leave them."""

    logs: Mapping[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.logs = logs or {}
