"""The state of a training in Keras' ``fit`` after an epoch, to continue the training from there.

The state holds the model's variables, the callbacks' state, the history, and the global random
states, from which ``fit`` draws the data order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from paceline.executor.state.facts import FitFacts
from paceline.pack.callbacks.random_states import RandomStates
from paceline.pack.callbacks.remote_files import UserFolders
from paceline.pack.callbacks.state import CallbackState, attributes_of, callback_state, resumed
from paceline.program.files import get_parts, put_parts
from paceline.program.trace import variables_of

Arrays = dict[str, np.ndarray]
_NAME = "fit"
_CHANGED = "its model has changed since the search stopped"


class FitState(keras.callbacks.Callback):
    """Follows one training: a callback whose turn comes right before the callback that reports.

    It continues from ``before``, which ``capture`` returned, and the ``arrays`` that ``capture``
    added; None: the training begins.
    """

    def __init__(
        self,
        number: int,
        before: FitFacts | None = None,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__()
        self.number, self._before, self._arrays = number, before, dict(arrays or {})
        # Epochs trained, including those before it was captured.
        self.epoch = 0 if before is None else before.epoch
        self._own: Sequence[Any] = ()
        self._begun_with: list[dict[str, Any]] = []
        self._beginning = contextlib.ExitStack()
        self._random = RandomStates.now()
        self._record = keras.callbacks.History()  # the turn of the model's own comes later
        self._record.on_train_begin()
        self._frozen: tuple[FitFacts, Arrays] | None = None

    def among(self, own: Sequence[Any]) -> list[Any]:
        """The user's callbacks, and this module's before and after them, in the order of calls."""
        self._own = own
        return [_FirstCallback(self), *own, self]

    def open(self) -> None:
        """Prepares the state of the user's callbacks, whose ``on_train_begin`` comes next."""
        if self._before is None:
            UserFolders(self._own).begin()
            return
        state = CallbackState({"callbacks": self._before.callbacks}, self._arrays)
        self._beginning.enter_context(resumed(self._own, state))

    def on_train_begin(self, logs: Any = None) -> None:
        """Puts back what callbacks held, and the variables, which exist from here on.

        Raises RuntimeError if the model has other variables than when the search stopped.
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

    def go_on(self) -> None:
        """Puts the history and the random states back, before the user's ``on_epoch_begin``."""
        if self._before is None:
            return
        state = CallbackState({"callbacks": self._before.history}, self._arrays)
        with resumed([self._record], state):
            pass
        assert self.model is not None
        history = self.model.history
        history.epoch = list(self._record.epoch)
        history.history = {name: list(values) for name, values in self._record.history.items()}
        RandomStates.decoded(self._before.random, _NAME, self._arrays).put_back()
        self._before = None
        self._arrays.clear()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Counts the epoch, and keeps the random states from which the next epoch would draw."""
        self.epoch += 1
        self._random = RandomStates.now()
        self._record.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self._record.history.setdefault(name, []).append(value)

    def freeze(self) -> None:
        """Keeps the state as it is now: what ``fit`` does at its end is not a part of it."""
        arrays: Arrays = {}
        self._frozen = self.capture(arrays), arrays

    def capture(self, arrays: Arrays) -> FitFacts:
        """The state after the last epoch; the variables are added to ``arrays``."""
        if self._before is not None:  # it has not trained since it was restored
            arrays.update(self._arrays)
            return self._before
        if self._frozen is not None:
            arrays.update(self._frozen[1])
            return self._frozen[0]
        # Copies: what Keras hands out may be a view of a variable that trains on.
        values = [[np.array(keras.ops.convert_to_numpy(v)) for v in p] for p in self._parts()]
        put_parts(_NAME, values, arrays)
        record = [self._record]
        history: Any = callback_state(record, f"{_NAME}.history", arrays, attributes_of(record))
        own: Any = callback_state(self._own, f"{_NAME}.callbacks", arrays, self._begun_with)
        random = self._random.encoded(_NAME, arrays)
        return FitFacts(self.number, self.epoch, random, history, own)

    def _parts(self) -> tuple[list[Any], ...]:
        return variables_of(self.model)[:3]


class _FirstCallback(keras.callbacks.Callback):
    """The callback before the user's callbacks."""

    def __init__(self, state: FitState) -> None:
        super().__init__()
        self._state = state

    def on_train_begin(self, logs: Any = None) -> None:
        self._state.open()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._state.go_on()
