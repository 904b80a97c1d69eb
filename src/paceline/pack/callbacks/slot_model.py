"""The model that a trial's callbacks see: its variables are those of the trial's slot.

Reading a variable fetches it from the slot, once between two epochs. A variable that was written
goes back to the slot before the next epoch, if its value has changed. A variable that no callback
touches is not fetched.

Variables of layers made outside of ``build`` are shared by models. They belong to the slot only
while callbacks run, and hold the user's values between two calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import keras_private
from paceline.program.canonical import Unpackable
from paceline.program.initial_weights import TrainableFlags, shared_variables
from paceline.program.trace import variables_of

#: What users are told of a model that ``froze``.
FROZE = (
    "a callback changes layer.trainable during training. As in TensorFlow, this has no effect "
    "until the model is compiled again"
)
#: Attributes that Keras itself sets while a model trains.
_OF_KERAS = frozenset({"built", "stop_training"})
_METRICS = 3  # the number of the metrics' list in ``State.lists``


class Slot(Protocol):
    """One slot of a pack, between two epochs."""

    def read(self, part: int, leaf: int) -> np.ndarray:
        """A copy of one variable, number ``leaf`` of the list ``part`` of ``State.lists``."""
        ...

    def write(self, part: int, leaf: int, value: np.ndarray) -> None:
        """Replaces one variable from the next epoch on by a value of the same shape."""
        ...


class SlotModel:
    """Binds a compiled model's variables, all of which it has, to a slot.

    The values of those that no other model has are dropped. ``borrowed``: the model is the user's,
    whose variables are those of the slot only ``in_place`` and keep their own values.
    """

    def __init__(self, model: Any, *, borrowed: bool = False) -> None:
        self.model, self._borrowed = model, borrowed
        self._optimizer = model.optimizer
        self._lists = variables_of(model)
        self._flags = self._trained()
        self._touched: set[_SlotArrayHolder] = set()
        self._slot: Slot | None = None
        self.trains = False  # whether the model has begun to train
        self.froze = False  # whether ``layer.trainable`` was changed since
        shared = {id(variable) for variable in shared_variables(model)}
        self._shared: list[tuple[Any, _SlotArrayHolder]] = []
        for part, variables in enumerate(self._lists):
            for leaf, variable in enumerate(variables):
                cell = _holder_of(variable, self, part, leaf)
                if borrowed or id(variable) in shared:
                    self._shared.append((variable, cell))
                else:
                    keras_private.bind(variable, cell)
        # Another build may set the flags of layers that it has in common with this model.
        self._own_flags = None
        if self._shared and not borrowed:
            self._own_flags = TrainableFlags(keras_private.all_layers(model), model.variables)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """A block in which all variables of the model are those of the slot."""
        outside = self._own_flags and self._own_flags.now()
        if self._own_flags is not None:
            self._own_flags.restore()
        try:
            with keras_private.bound(self._shared):
                yield
        finally:
            if outside is not None:
                outside.restore()

    def attach(self, slot: Slot | None) -> None:
        """Binds the variables to a slot from now on; None: to no slot."""
        self.forget()
        self._slot = slot

    def forget(self) -> None:
        """Drops values that were read or written: the slot trains on, or holds another trial."""
        for cell in self._touched:
            cell.clear()
        self._touched.clear()

    def flush(self) -> None:
        """Writes variables that have another value now to the slot; raises as ``check`` does."""
        self.check()
        for cell in self._touched:
            cell.flush()

    def check(self) -> None:
        """Checks that the model has the variables that the compiled program trains.

        Raises RuntimeError where the model or its optimizer has other variables than before. Keras'
        own ``fit`` on JAX fails there, too, so that no trial is sent to it. Once the model trains,
        ``layer.trainable`` has no effect, as in TensorFlow before the model is compiled again.
        """
        same = self.model.optimizer is self._optimizer
        same = same and len(self._optimizer.variables) == len(self._lists[2])
        flags = self._trained()
        if same and flags != self._flags and self.trains:
            self.froze, self._flags = True, flags
        if not same or flags != self._flags:
            raise RuntimeError(
                "a callback compiled the model or changed layer.trainable during training, which "
                "fails in Keras' own fit on JAX as well. Freeze layers in build(hp), and train "
                "the best model further after the search"
            )

    def fetch(self, cell: _SlotArrayHolder) -> np.ndarray:
        """A variable's value in the slot.

        Raises RuntimeError where the variable is a metric's, or the trial has left its slot.
        """
        if cell.part == _METRICS:
            other = "" if self._borrowed else ", or use executor='fit'"
            raise RuntimeError(
                "a pack does not keep the variables of metrics after an epoch. Read their results "
                f"from logs{other}"
            )
        if self._slot is None:
            raise RuntimeError(
                "the trial of this callback's model has left its slot. Copy the data that you "
                "need in on_epoch_end or on_train_end"
            )
        return self._slot.read(cell.part, cell.leaf)

    def put(self, cell: _SlotArrayHolder, value: np.ndarray) -> None:
        """Writes a variable's value to the slot."""
        if cell.part != _METRICS and self._slot is not None:
            self._slot.write(cell.part, cell.leaf, value)

    def touch(self, cell: _SlotArrayHolder) -> None:
        """Notes that a cell holds a value, which ``forget`` must drop."""
        self._touched.add(cell)

    def _trained(self) -> list[bool]:
        """Which variables are trained, by their flags: walking the layers takes longer."""
        return [variable.trainable for part in self._lists[:2] for variable in part]


def plain_attributes(model: Any) -> dict[tuple[str, str], Any]:
    """Public numbers and texts of a model and its parts: steps are traced with such values.

    Name of the part and of the attribute -> value.
    """
    return {
        (part, name): value
        for part, name, value in _attributes(model)
        if isinstance(value, (bool, int, float, str))
    }


def attribute_names(model: Any) -> frozenset[str]:
    """Names of the public attributes of a compiled model and its parts."""
    return frozenset(name for _, name, _ in _attributes(model))


def _attributes(model: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields name of the part, name and value of each public attribute of a compiled model."""
    parts = {
        type(layer).__name__ + f" {layer.name!r}": layer
        for layer in keras_private.all_layers(model)
    }
    optimizer = model.optimizer
    parts["the optimizer"] = getattr(optimizer, "inner_optimizer", optimizer)
    for part, owner in parts.items():
        for name, value in vars(owner).items():
            if name[0] != "_" and name not in _OF_KERAS:
                yield part, name, value


def check_attributes(before: dict[tuple[str, str], Any], model: Any) -> None:
    """Checks that the compiled program has the values that callbacks have left when training began.

    ``before`` is of ``plain_attributes``, as the model was built. Raises Unpackable where a
    callback has changed a value, which a step that is traced now would show, as that of ``fit``.
    """
    for (part, name), value in plain_attributes(model).items():
        if before.get((part, name), value) != value:
            raise Unpackable(
                f"a callback set {name} of {part} when training began, but the compiled program "
                "of a pack has the earlier value"
            )


class _SlotArrayHolder:
    """The place of a bound variable's array: the slot, and here a copy once it is touched."""

    __slots__ = ("_base", "_owner", "_value", "leaf", "part", "written")

    def __init__(self, owner: SlotModel, part: int, leaf: int) -> None:
        self._owner, self.part, self.leaf = owner, part, leaf
        self._value: Any = None
        self._base: np.ndarray | None = None  # the slot's value, if it was read
        self.written = False

    def get(self) -> Any:
        if self._value is None:
            self._base = self._owner.fetch(self)
            self._value = keras.ops.convert_to_tensor(self._base)
            self._owner.touch(self)
        return self._value

    def set(self, value: Any) -> None:
        # None is not a write: Keras takes arrays away while it evaluates, and puts them back.
        self._value, self.written = value, value is not None
        self._owner.touch(self)

    def flush(self) -> None:
        if not self.written:
            return
        value = np.asarray(self._value)
        if self._base is None or value.tobytes() != self._base.tobytes():
            self._owner.put(self, value)
            self._base = value
        self.written = False

    def clear(self) -> None:
        self._value = self._base = None
        self.written = False

    def __deepcopy__(self, memo: dict[int, Any]) -> _DetachedArrayHolder:
        """For a callback that copies the model: the copy keeps the present value."""
        of_metric = self.part == _METRICS and self._value is None
        return memo.setdefault(id(self), _DetachedArrayHolder(None if of_metric else self.get()))


class _AssignedArrayHolder(_SlotArrayHolder):
    """The place of an array of TensorFlow, which Keras assigns to and never replaces."""

    __slots__ = ("_assigned", "_dtype")

    def __init__(self, variable: Any, owner: SlotModel, part: int, leaf: int) -> None:
        super().__init__(owner, part, leaf)
        self._assigned, self._dtype = keras_private.value_of(variable), variable.dtype

    def get(self) -> Any:
        if self._base is None:
            # The pack's integers have 32 bits where TensorFlow's have 64.
            self._base = self._owner.fetch(self).astype(jnp.dtype(self._dtype))
            self._assigned.assign(self._base)
            self._value, self.written = self._assigned, True
            self._owner.touch(self)
        return self._value


def _holder_of(variable: Any, owner: SlotModel, part: int, leaf: int) -> _SlotArrayHolder:
    if keras.backend.backend() == "tensorflow":
        return _AssignedArrayHolder(variable, owner, part, leaf)
    return _SlotArrayHolder(owner, part, leaf)


class _DetachedArrayHolder:
    """The place of an array of a copied model, which has no slot."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self) -> Any:
        return self._value

    def set(self, value: Any) -> None:
        self._value = value
