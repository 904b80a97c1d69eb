"""Calls the hooks of a fit's callbacks between the training batches of its pack.

In a session that is not on JAX the pack trains in the session's process, and the hooks run in the
session. ``AskedHooks`` are there what the pack calls. Each call asks the session, with the small
variables that earlier calls have read, and waits for what the hooks have written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

from paceline.compat.interception.function_thread import FunctionThread
from paceline.pack.callbacks.slot_model import (
    Slot,
    SlotModel,
    check_attributes,
)


class BatchHooks:
    """The hooks around training batches of one fit's callbacks; as ``BatchCallbacks``.

    The pack asks for a call in the engine's thread. The function's thread makes it, with the random
    state of the function, while it waits for the end of the epoch.
    """

    def __init__(self, thread: FunctionThread) -> None:
        self._thread = thread
        self._slot: Slot | None = None
        self._model: SlotModel | None = None  # None before ``begin``
        self._callbacks: Any = None  # a CallbackList
        self._call: Callable[[], None] | None = None  # that the function's thread is to make
        self._error: BaseException | None = None  # what a callback has raised in this epoch
        # The model's attributes; None once ``fit`` would have traced its step.
        self._built_with: dict[tuple[str, str], Any] | None = None
        self.called = False  # whether hooks were called since ``check``

    # -- in the engine's thread --------------------------------------------------------------------

    @property
    def in_batches(self) -> bool:
        """Whether callbacks are to be called around the next training batch."""
        if self._model is None or self._error is not None:
            return False
        return not self._model.model.stop_training

    def attach(self, slot: Slot | None) -> None:
        """Gives the hooks the variables of a slot; None: the fit has left its slot."""
        self._slot = slot
        if self._model is not None:
            self._model.attach(slot)

    def begin_batch(self, step: int) -> None:
        """Calls ``on_train_batch_begin``; ``step`` counts from 0."""
        self._ask(lambda: self._callbacks.on_train_batch_begin(step))

    def end_batch(self, step: int, logs: Mapping[str, float]) -> None:
        """Calls ``on_train_batch_end``; ``logs`` are those of the epoch so far."""
        self._ask(lambda: self._callbacks.on_train_batch_end(step, dict(logs)))

    def _ask(self, call: Callable[[], None]) -> None:
        outcome = self._thread.outcome
        self._call, self.called, seconds = call, True, outcome.seconds
        self._thread.go()
        outcome.seconds = seconds  # those of the epoch hold these

    # -- in the function's thread ------------------------------------------------------------------

    def begin(
        self,
        model: Any,
        callbacks: keras.callbacks.CallbackList,
        built_with: dict[tuple[str, str], Any],
    ) -> None:
        """Notes the callbacks, and the built model whose variables they see.

        ``built_with`` are its ``plain_attributes`` as the pack was compiled with them.
        """
        self._callbacks, self._model = callbacks, SlotModel(model, borrowed=True)
        self._model.trains = True
        self._model.attach(self._slot)
        self._built_with = built_with

    @property
    def froze(self) -> bool:
        """Whether a callback has changed ``layer.trainable`` while the model trains."""
        return self._model is not None and self._model.froze

    def serve(self) -> bool:
        """Makes the call that the pack has asked for; False if it has asked for none."""
        call, self._call = self._call, None
        if call is None:
            return False
        assert self._model is not None
        try:
            with self._model.in_place():
                call()
                self._model.flush()
            if self._built_with is not None:
                check_attributes(self._built_with, self._model.model)
        except BaseException as error:  # the pack is in the middle of an epoch
            self._error = error
        self._built_with = None
        self._model.forget()
        return True

    def check(self) -> None:
        """Raises what a callback has raised in the epoch that has ended."""
        error, self._error, self.called = self._error, None, False
        if error is not None:
            raise error


#: Number of a variable: that of its list in ``State.lists``, and that in the list.
Leaf = tuple[int, int]
#: Elements of a variable that is sent before hooks read it, at most.
_SMALL = 64


@dataclass(eq=False)
class SentSlot:
    """The slot of a fit in the session's process, while it waits between two batches."""

    values: dict[Leaf, np.ndarray]  # that came along
    ask: Callable[[int, int], np.ndarray]  # for the others
    written: dict[Leaf, np.ndarray] = field(default_factory=dict)

    def read(self, part: int, leaf: int) -> np.ndarray:
        """As of ``Slot``."""
        if (part, leaf) not in self.values:
            self.values[part, leaf] = self.ask(part, leaf)
        return self.values[part, leaf]

    def write(self, part: int, leaf: int, value: np.ndarray) -> None:
        """As of ``Slot``."""
        self.written[part, leaf] = value


class AskedHooks:
    """The hooks of a fit that run in the session; as ``BatchCallbacks``.

    ``tell`` sends the session a message, and ``receive`` returns the next one that is about hooks.
    """

    def __init__(
        self, number: int, tell: Callable[..., None], receive: Callable[[], tuple[str, Any]]
    ) -> None:
        self._number, self._tell, self._receive = number, tell, receive
        self._slot: Slot | None = None
        self._read: set[Leaf] = set()  # small variables that hooks have read
        self.in_batches = True

    def attach(self, slot: Slot | None) -> None:
        """Gives the hooks the variables of a slot; None: the fit has left its slot."""
        self._slot = slot

    def begin_epoch(self) -> None:
        """Has hooks called again, as the fit continues after an epoch that they have ended."""
        self.in_batches = True

    def begin_batch(self, step: int) -> None:
        """Has the session call ``on_train_batch_begin``."""
        self._ask(step, None)

    def end_batch(self, step: int, logs: Mapping[str, float]) -> None:
        """Has the session call ``on_train_batch_end``."""
        self._ask(step, dict(logs))

    def _ask(self, step: int, logs: dict[str, float] | None) -> None:
        slot = self._slot
        assert slot is not None
        values = {leaf: slot.read(*leaf) for leaf in self._read}
        self._tell("between", self._number, step, logs, values)
        while (message := self._receive())[0] == "read":
            value = slot.read(*message[1])
            if value.size <= _SMALL:
                self._read.add(message[1])
            self._tell("value", value)
        written, self.in_batches = message[1]
        for (part, leaf), value in written.items():
            slot.write(part, leaf, value.astype(slot.read(part, leaf).dtype))
