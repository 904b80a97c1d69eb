"""Calls one trial's callbacks between the epochs of a pack, as ``fit`` would call them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from paceline.pack.callbacks.packable import acts_by_batch
from paceline.pack.callbacks.per_trial import numbers
from paceline.pack.callbacks.random_states import OwnRandomStates, RandomStates
from paceline.pack.callbacks.remote_files import UserFolders
from paceline.pack.callbacks.slot_model import (
    Slot,
    SlotModel,
    check_attributes,
    plain_attributes,
)
from paceline.pack.callbacks.state import (
    CallbackState,
    attributes_of,
    callback_state,
    release,
    resumed,
)
from paceline.program import keras_private
from paceline.program.canonical import Unpackable

#: Callbacks of Keras' that draw no random numbers; a trial's own states take a moment to change to.
_DRAW_NOTHING = (
    keras.callbacks.CSVLogger,
    keras.callbacks.EarlyStopping,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
)


class CallbackDriver:
    """The callbacks of one trial (or of one fold or repetition of it), and the model they see.

    ``begin_epoch``, ``end_epoch`` and ``end`` raise whatever a callback raises; the first call of
    ``begin_epoch`` raises Unpackable where ``fit`` can do what no pack can.

    Args:
        callbacks: The trial's own copies.
        make: Builds the trial's model.
        batch: Shapes and dtypes of a batch, a nest of [B, ...], to create the variables from.
        params: What Keras tells callbacks: epochs, steps, and the trial.
        seed: The trial's seed. In ``fit`` trials train one after another, each from its seed; so
            here each has random states of its own.
        calls: A block in which callbacks are called, apart from those that the driver needs.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        make: Callable[[], Any],
        batch: Any,
        params: Mapping[str, Any],
        seed: int,
        calls: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._given, self._make, self._batch = list(callbacks), make, batch
        self._calls = calls
        self._params = {"verbose": 0, **params}
        self._draws = any(type(each) not in _DRAW_NOTHING for each in callbacks)
        self._by_batch = any(map(acts_by_batch, callbacks))
        self._error: Exception | None = None  # what a callback has raised between two batches
        self._random = OwnRandomStates(seed)
        self._random_before: RandomStates | None = None  # from the checkpoint
        self._logs_seen = _CaptureLogs()
        self._list: Any = None
        self._model: SlotModel | None = None
        self._slot: Slot | None = None
        self._stored: CallbackState | None = None
        # Each callback's attributes when training had begun.
        self._begun_with: list[dict[str, Any]] = []
        self._epoch = -1  # the epoch that has begun last
        self._logs: dict[str, float] = {}  # of the last epoch, without what callbacks added
        self._seconds = 0.0
        self.begun = self._ended = False  # ``begun``: whether ``on_train_begin`` was called
        # As the model was built; None once ``fit`` would have traced its step.
        self._built_with: dict[tuple[str, str], Any] | None = None

    @property
    def stopped(self) -> bool:
        """Whether a callback has asked for the end of training."""
        return self._model is not None and bool(self._model.model.stop_training)

    @property
    def froze(self) -> bool:
        """Whether a callback has changed ``layer.trainable`` while the model trains."""
        return self._model is not None and self._model.froze

    def seconds(self) -> float:
        """Seconds spent in callbacks since this was last asked."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def attach(self, slot: Slot | None) -> None:
        """Gives the callbacks' model the variables of a slot; None: the trial has left its slot."""
        self._slot = slot
        if self._model is not None:
            self._model.attach(slot)

    def begin_epoch(self, epoch: int) -> None:
        """Calls ``on_epoch_begin``, and before the first epoch ``on_train_begin``.

        ``epoch`` counts from 0.
        """
        began = time.perf_counter()
        if not self.begun:
            self._begin()
        assert self._model is not None
        if epoch != self._epoch:  # equal where memory ran out and the epoch is trained once more
            self._epoch = epoch
            with self._calling():
                self._list.on_epoch_begin(epoch)
                self._model.flush()
            if self.stopped and self._params["steps"] != 1:
                kind = RuntimeError if self._logs else Unpackable  # it may still go to fit at first
                raise kind(
                    "a callback set stop_training before an epoch began. fit would train one more "
                    "batch, but a pack can only train whole epochs. Set it in on_epoch_end, or "
                    "use executor='fit'"
                )
            self._check_built()
            if not self._by_batch:
                self._built_with = None
        self._model.trains = True
        self._model.forget()
        self._seconds += time.perf_counter() - began

    @property
    def in_batches(self) -> bool:
        """Whether callbacks are to be called around the next training batch."""
        return self._by_batch and not self.stopped and self._error is None

    def begin_batch(self, step: int) -> None:
        """Calls ``on_train_batch_begin``; ``step`` counts from 0.

        What a callback raises here or in ``end_batch`` is raised by ``end_epoch``: the other trials
        of the pack are in the middle of their epoch.
        """
        self._in_batch(lambda: self._list.on_train_batch_begin(step))

    def end_batch(self, step: int, logs: Mapping[str, float]) -> None:
        """Calls ``on_train_batch_end``; ``logs`` are those of the epoch so far."""
        self._in_batch(lambda: self._list.on_train_batch_end(step, dict(logs)))

    def _in_batch(self, call: Callable[[], None]) -> None:
        assert self._model is not None
        try:
            with self._calling():
                call()
                self._model.flush()
            self._check_built()
        except Exception as error:  # a callback is the user's code
            self._error = error
        self._built_with = None
        self._model.forget()

    def _check_built(self) -> None:
        """Raises Unpackable as ``check_attributes`` does; ``fit`` traces its step after this."""
        if self._built_with is not None and self._model is not None:
            check_attributes(self._built_with, self._model.model)

    def end_epoch(self, logs: Mapping[str, float]) -> dict[str, float]:
        """Calls the validation's hooks and ``on_epoch_end``; returns the logs that callbacks leave.

        ``logs``: the epoch's by name, those of validation with the prefix ``val_``. Of what the
        callbacks leave, numbers alone are returned.
        """
        began = time.perf_counter()
        assert self._model is not None
        if self._error is not None:
            raise self._error
        validated = {n.removeprefix("val_"): v for n, v in logs.items() if n.startswith("val_")}
        self._logs = dict(logs)
        with self._calling():
            if validated:
                self._list.on_test_begin()
                self._list.on_test_end(validated)
            self._list.on_epoch_end(self._epoch, self._logs)
            self._model.flush()
        self._seconds += time.perf_counter() - began
        return numbers(self._logs_seen.logs)

    def end(self) -> None:
        """Calls ``on_train_end``; changes of the model in it do not reach the slot."""
        if self._ended or self._model is None:
            return
        self._ended = True
        model = self._model.model
        with self._calling():
            # As fit does when it ends: the means of ``use_ema``, whose optimizer may be wrapped.
            model.optimizer.finalize_variable_values(model.trainable_weights)
            self._list.on_train_end(self._logs)

    def abandon(self) -> None:
        """Closes files, for a trial that leaves its pack before the end of its training."""
        release(self._given)
        self.attach(None)

    def saved(self, name: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """The state of all callbacks, for a checkpoint, as JSON values.

        Its arrays go into ``arrays``, under names that begin with ``name``.
        """
        if self._stored is not None:  # read from a checkpoint, and training has not begun since
            arrays.update(self._stored.arrays)
            return self._stored.facts
        facts = {"callbacks": callback_state(self._callbacks, name, arrays, self._begun_with)}
        if self._random.drawn is not None:
            facts["random"] = self._random.drawn.encoded(f"{name}.random", arrays)
        return facts

    def restore(self, name: str, facts: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Makes the callbacks begin with a state of ``saved``: what it returned, and the arrays."""
        own = {key: array for key, array in arrays.items() if key.startswith(f"{name}.")}
        self._stored = CallbackState(facts, own)
        if "random" in facts:
            self._random_before = RandomStates.decoded(facts["random"], f"{name}.random", own)

    @property
    def logs(self) -> dict[str, int]:
        """As ``UserFolders.kept``, of callbacks that have not begun."""
        return UserFolders(self._given).kept

    def take_back_logs(self, kept: Mapping[str, int]) -> None:
        """Takes back what callbacks appended to logs in another process, since they begin again.

        ``kept``: what ``logs`` was there.
        """
        places = UserFolders(self._given)
        places.begun_before(kept)
        places.begin()

    @property
    def _callbacks(self) -> list[Any]:
        return [each for each in self._list.callbacks if each is not self._logs_seen]

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """A block in which callbacks are called."""
        assert self._model is not None
        with ExitStack() as stack:
            if self._draws:
                stack.enter_context(self._random.present())
                stack.enter_context(self._calls())
            stack.enter_context(self._model.in_place())
            yield

    def _begin(self) -> None:
        model = self._make()
        keras_private.symbolic_build(model, self._batch)
        self._model = SlotModel(model)
        self._model.attach(self._slot)
        # A trial that continues has been looked at before.
        self._built_with = plain_attributes(model) if self._stored is None else None
        given = [*self._given, self._logs_seen]
        self._list = keras.callbacks.CallbackList(
            given, add_history=True, model=model, **self._params
        )
        model.stop_training = False
        self.begun = True
        if self._stored is None:
            UserFolders(self._given).begin()
            with self._calling():
                self._list.on_train_begin()
            self._begun_with = attributes_of(self._callbacks)
            return
        with self._calling(), resumed(self._callbacks, self._stored):
            self._list.on_train_begin()
        self._begun_with = attributes_of(self._callbacks)
        self._stored, self._random.drawn = None, self._random_before
        # What they wrote to the model when training began is part of the slot's variables already.
        self._model.forget()
        model.stop_training = False


class _CaptureLogs(keras.callbacks.Callback):
    """The last callback of a trial: keeps the logs as the user's callbacks leave them."""

    logs: Mapping[str, Any] = {}

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self.logs = logs or {}


def abandon(driver: CallbackDriver | None) -> None:
    """Releases the callbacks of a trial that trains no further; none of them is called again."""
    if driver is not None:
        driver.abandon()
