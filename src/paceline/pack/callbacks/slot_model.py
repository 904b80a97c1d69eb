"""A trial's model whose variables are those of its slot.

Reading a variable fetches it from the slot, once between two epochs; writing one goes back to the
slot before the next epoch, if it is another value then. What is not touched is not fetched.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from paceline.program import keras_private

_METRICS = 3  # their place among the lists of a state


class Slot(Protocol):
    """A place in a pack, between two epochs."""

    def read(self, part: int, leaf: int) -> np.ndarray:
        """A copy of one variable: of its list (``State.lists``), the one of that number."""
        ...

    def write(self, part: int, leaf: int, value: np.ndarray) -> None:
        """Replaces it from the next epoch on."""
        ...


class SlotModel:
    """Binds a model's variables to a slot.

    Args:
        model: Compiled, all of its variables made. Their values are dropped.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self._optimizer = model.optimizer
        self._lists = self._variables()
        self._flags = self._trained()
        self._touched: set[_Cell] = set()
        self._slot: Slot | None = None
        for part, variables in enumerate(self._lists):
            for leaf, variable in enumerate(variables):
                keras_private.bind(variable, _Cell(self, part, leaf))

    def attach(self, slot: Slot | None) -> None:
        """Sits in that slot from now on; None: in none."""
        self.forget()
        self._slot = slot

    def forget(self) -> None:
        """What was read or written counts no more: the slot trains on, or another takes over."""
        for cell in self._touched:
            cell.clear()
        self._touched.clear()

    def flush(self) -> None:
        """Writes to the slot what is another value now.

        Raises:
            RuntimeError: The model does not have the variables it had.
        """
        self.check()
        for cell in self._touched:
            cell.flush()

    def check(self) -> None:
        """Checks that the variables are still those that train.

        Raises:
            RuntimeError: They are not.
        """
        same = self.model.optimizer is self._optimizer
        same = same and len(self._optimizer.variables) == len(self._lists[2])
        if not same or self._trained() != self._flags:
            raise RuntimeError(
                "a callback changed which variables the model or its optimizer has, and the "
                "compiled program of a pack has those of before; use executor='fit' for this"
            )

    def fetch(self, cell: _Cell) -> np.ndarray:
        """A variable's value in the slot."""
        if cell.part == _METRICS:
            raise RuntimeError(
                "in a pack the variables of metrics are not kept after an epoch: take their "
                "results from logs, or use executor='fit'"
            )
        if self._slot is None:
            raise RuntimeError(
                "this model was a callback's, and its trial has left its slot; copy what is needed "
                "in on_epoch_end or on_train_end"
            )
        return self._slot.read(cell.part, cell.leaf)

    def put(self, cell: _Cell, value: np.ndarray) -> None:
        """Writes a variable's value to the slot."""
        if cell.part != _METRICS and self._slot is not None:
            self._slot.write(cell.part, cell.leaf, value)

    def touch(self, cell: _Cell) -> None:
        """A cell holds something that must be cleared later."""
        self._touched.add(cell)

    def _trained(self) -> list[bool]:
        """Which variables are trained: a look at flags, since walking the layers takes longer."""
        return [variable.trainable for part in self._lists[:2] for variable in part]

    def _variables(self) -> tuple[list[Any], ...]:
        model = self.model
        return (
            list(model.trainable_variables),
            list(model.non_trainable_variables),
            list(model.optimizer.variables),
            list(model.metrics_variables),
        )


class _Cell:
    """Where a variable's array is: in the slot, and here what was read of it or written."""

    __slots__ = ("_base", "_home", "_value", "leaf", "part", "written")

    def __init__(self, home: SlotModel, part: int, leaf: int) -> None:
        self._home, self.part, self.leaf = home, part, leaf
        self._value: Any = None
        self._base: np.ndarray | None = None  # as it is in the slot, where it was read
        self.written = False

    def get(self) -> Any:
        if self._value is None:
            self._base = self._home.fetch(self)
            self._value = jnp.asarray(self._base)
            self._home.touch(self)
        return self._value

    def set(self, value: Any) -> None:
        # None: Keras takes arrays away while it evaluates, and puts them back.
        self._value, self.written = value, value is not None
        self._home.touch(self)

    def flush(self) -> None:
        if not self.written:
            return
        value = np.asarray(self._value)
        if self._base is None or value.tobytes() != self._base.tobytes():
            self._home.put(self, value)
            self._base = value
        self.written = False

    def clear(self) -> None:
        self._value = self._base = None
        self.written = False

    def __deepcopy__(self, memo: dict[int, Any]) -> _DetachedCell:
        """For a copy of the model that a callback makes: it keeps the present value."""
        of_metric = self.part == _METRICS and self._value is None
        return memo.setdefault(id(self), _DetachedCell(None if of_metric else self.get()))


class _DetachedCell:
    """Where a variable's array is, of a model that sits in no slot."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value

    def set(self, value: Any) -> None:
        self._value = value
