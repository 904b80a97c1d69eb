"""The state of a training in Keras' ``fit`` after an epoch, to continue the training from there.

The state holds the model's variables, what callbacks hold, and the global random states: ``fit``
draws the order of examples from them at the beginning of each epoch.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import keras
import numpy as np

from paceline.pack.callbacks.state import CallbackState, attributes_of, callback_state, resumed
from paceline.program.files import get_parts, put_parts

Arrays = dict[str, np.ndarray]
_NAME = "fit"
_CHANGED = "its model is not what it was when the search stopped"


class FitState(keras.callbacks.Callback):
    """Follows one training: a callback whose turn comes right before the callback that reports.

    Args:
        number: Number of the job that trains.
        before: What ``capture`` returned, to continue from there; None: the training begins.
        arrays: The arrays that ``capture`` added.

    Attributes:
        number: Number of the job.
        epoch: Epochs trained, including those before it was captured.
    """

    def __init__(
        self,
        number: int,
        before: Mapping[str, Any] | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.number, self._before, self._arrays = number, before, dict(arrays or {})
        self.epoch = 0 if before is None else int(before["epoch"])
        self._own: Sequence[Any] = ()
        self._begun_with: list[dict[str, Any]] = []
        self._beginning = contextlib.ExitStack()
        self._random = _random_states()
        self._frozen: tuple[dict[str, Any], Arrays] | None = None

    def among(self, own: Sequence[Any]) -> list[Any]:
        """The user's callbacks, and this module's before and after them, in the order of calls."""
        self._own = own
        return [_Before(self), *own, self]

    def open(self) -> None:
        """Prepares the state of the user's callbacks, whose ``on_train_begin`` comes next."""
        if self._before is not None:
            facts = {"callbacks": self._before.get("callbacks", [])}
            self._beginning.enter_context(resumed(self._own, CallbackState(facts, self._arrays)))

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts back what callbacks held, and the variables, which exist from here on.

        Raises:
            RuntimeError: The model has other variables than when the search stopped.
        """
        self._begun_with = attributes_of(self._own)
        if self._before is None:
            return
        self._beginning.close()
        assert self.model is not None
        optimizer = self.model.optimizer
        if not optimizer.built:  # on TensorFlow its first step would do it
            optimizer.build(self.model.trainable_variables)
        parts = self._parts()
        try:
            found = get_parts(_NAME, [len(variables) for variables in parts], self._arrays)
        except KeyError:
            raise RuntimeError(_CHANGED) from None
        for variables, values in zip(parts, found, strict=True):
            for variable, value in zip(variables, values, strict=True):
                if value.shape != tuple(variable.shape):
                    raise RuntimeError(_CHANGED)
                variable.assign(value)
        self.model.stop_training = False  # a callback's on_train_begin may have set it

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Puts the random states back: ``fit`` draws the epoch's order after this."""
        if self._before is None:
            return
        _set_random_states(self._before["random"], self._arrays)
        self._before = None
        self._arrays.clear()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch, and keeps the random states from which the next epoch would draw."""
        self.epoch += 1
        self._random = _random_states()

    def freeze(self) -> None:
        """Keeps the state as it is now: what ``fit`` does at its end is no part of it."""
        arrays: Arrays = {}
        self._frozen = self.capture(arrays), arrays

    def capture(self, arrays: Arrays) -> dict[str, Any]:
        """The state after the last epoch, as JSON values; the variables are added to ``arrays``."""
        if self._before is not None:  # it has not trained since it was restored
            arrays.update(self._arrays)
            return dict(self._before)
        if self._frozen is not None:
            arrays.update(self._frozen[1])
            return self._frozen[0]
        # Copies: what Keras hands out may be a view of a variable that trains on.
        values = [[np.array(keras.ops.convert_to_numpy(v)) for v in p] for p in self._parts()]
        put_parts(_NAME, values, arrays)
        return {
            "job": self.number,
            "epoch": self.epoch,
            "random": _encoded(self._random, arrays),
            "callbacks": callback_state(self._own, f"{_NAME}.callbacks", arrays, self._begun_with),
        }

    def _parts(self) -> list[list[Any]]:
        model = self.model
        assert model is not None
        optimizer = model.optimizer.variables
        return [model.trainable_variables, model.non_trainable_variables, list(optimizer)]


class _Before(keras.callbacks.Callback):
    """The callback before the user's callbacks."""

    def __init__(self, state: FitState) -> None:
        super().__init__()
        self._state = state

    def on_train_begin(self, logs: Any = None) -> None:
        self._state.open()


def _random_states() -> tuple[Any, Any, Any]:
    """States that ``fit`` draws from: Python's, NumPy's and, where Keras runs on it, PyTorch's."""
    torch = None
    if keras.backend.backend() == "torch":
        torch = import_module("torch").get_rng_state().numpy().copy()
    return random.getstate(), np.random.get_state(), torch


def _encoded(states: tuple[Any, Any, Any], arrays: Arrays) -> list[Any]:
    python, (kind, keys, position, gauss, cached), torch = states
    arrays[f"{_NAME}.keys"] = np.array(keys)
    if torch is not None:
        arrays[f"{_NAME}.torch"] = torch
    own = [python[0], list(python[1]), python[2]]
    return [own, kind, int(position), int(gauss), float(cached)]


def _set_random_states(facts: Sequence[Any], arrays: Mapping[str, np.ndarray]) -> None:
    python, kind, position, gauss, cached = facts
    random.setstate((python[0], tuple(python[1]), python[2]))
    np.random.set_state((kind, arrays[f"{_NAME}.keys"], position, gauss, cached))
    if f"{_NAME}.torch" in arrays:
        torch = import_module("torch")
        torch.set_rng_state(torch.from_numpy(arrays[f"{_NAME}.torch"].copy()))
