"""A callback that replays a hyperparameter schedule found by population-based training."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import keras

from paceline.errors import UsageError
from paceline.search_space import HyperParameters


class ReplaySchedule(keras.callbacks.Callback):
    """Changes a model's hyperparameters before each epoch, as a schedule says.

    ``build`` is called with the values of the epoch. Attributes that differ in the new model are
    set in the model that trains: of layers (a dropout rate), regularizers, constraints and the
    optimizer (a learning rate). The weights, and the optimizer's state, stay.

        model = build(paceline.HyperParameters(values=schedule.loc[1]))
        model.fit(x, y, epochs=len(schedule), callbacks=[paceline.ReplaySchedule(build, schedule)])

    Args:
        build: The function that the search was given.
        schedule: From ``Tuner.schedule``: a column for each hyperparameter, a row for each epoch,
            the epochs from 1 in its index. Epochs beyond its last one keep the last values.

    Raises:
        UsageError: The schedule is empty or has no such form.
    """

    def __init__(self, build: Callable[[Any], Any], schedule: Any) -> None:
        super().__init__()
        if not hasattr(schedule, "to_dict") or not len(schedule):
            raise UsageError(
                "schedule must be a table of hyperparameters by epoch, as tuner.schedule() "
                f"returns it, got {type(schedule).__name__}."
            )
        self._build = getattr(build, "build", build)
        self._rows: dict[int, dict[str, Any]] = schedule.to_dict("index")
        self._now: dict[str, Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Sets what is other than in the epoch before.

        Raises:
            UsageError: A value changes what cannot change while a model trains.
        """
        row = self._rows.get(epoch + 1)
        if row is None or row == self._now:
            return
        model: Any = self.model
        given = _given(row)
        hp = HyperParameters(values=given)
        like = self._build(hp)
        if self._now is not None:
            before = _given(self._now)
            moved = {name for name, value in given.items() if value != before.get(name)}
            _check_asked([name for name in hp.unused if name in moved], epoch + 1)
        _check_loss(model, like, epoch + 1)
        changed = _set_layers(model, like, epoch + 1)
        changed |= _set_optimizer(model.optimizer, like.optimizer, epoch + 1)
        if changed:
            model.make_train_function(force=True)
            model.make_test_function(force=True)
        self._now = row


def _given(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a row that are there: a hyperparameter may be inactive in some epochs."""
    return {name: value for name, value in row.items() if value is not None and value == value}


def _check_asked(unasked: Sequence[str], epoch: int) -> None:
    """Refuse a schedule that changes what ``build`` does not ask for: ``fit`` would not follow."""
    if unasked:
        raise UsageError(
            f"schedule: epoch {epoch} changes {unasked[0]}, which build(hp) does not use; another "
            "function of hp did, such as class_weight=. Use tuner.reproduce instead, or drop it: "
            f"schedule.drop(columns={list(unasked)!r})."
        )


def _check_loss(model: Any, like: Any, epoch: int) -> None:
    """Refuse a schedule that changes the loss: only ``compile`` sets it."""
    ours, theirs = (each.get_compile_config() or {} for each in (model, like))
    for name in ("loss", "loss_weights"):
        if ours.get(name) != theirs.get(name):
            raise UsageError(
                f"schedule: epoch {epoch} changes {name}, which only `compile` sets. Drop that "
                "hyperparameter from the schedule, or use tuner.reproduce."
            )


def _set_layers(model: Any, like: Any, epoch: int) -> bool:
    """Set the attributes in which the layers of a model differ; return whether any did."""
    ours, theirs = _layers(model), _layers(like)
    if [type(layer) for layer in ours] != [type(layer) for layer in theirs]:
        raise UsageError(
            f"schedule: epoch {epoch} needs a model with other layers. A hyperparameter that "
            "changes layers cannot change during training."
        )
    changed = False
    for layer, other in zip(ours, theirs, strict=True):
        if layer.built and other.built and _shapes(layer) != _shapes(other):
            raise UsageError(
                f"schedule: epoch {epoch} gives the layer {layer.name} weights of other shapes, "
                f"{_shapes(other)} in place of {_shapes(layer)}, which cannot change during "
                "training."
            )
        parts, like_parts = _parts(layer), _parts(other)
        alike = [name for name, part in parts.items() if type(part) is type(like_parts.get(name))]
        for name in alike:
            where = f"{name} of the layer {layer.name}"
            changed |= _set_numbers(parts[name], like_parts[name], epoch, where)
        changed |= _set_numbers(layer, other, epoch, f"the layer {layer.name}", alike)
    return changed


def _parts(layer: Any) -> dict[str, Any]:
    """A layer's regularizers and constraints, which its variables hold: numbers in them are set."""
    kinds = (keras.regularizers.Regularizer, keras.constraints.Constraint)
    found = {name: getattr(layer, name, None) for name in layer.get_config()}
    return {name: part for name, part in found.items() if isinstance(part, kinds)}


def _set_numbers(
    thing: Any, like: Any, epoch: int, where: str, without: Collection[str] = ()
) -> bool:
    """Set the numbers in which two objects with a configuration differ; return whether any do."""
    ours, theirs = (
        {name: value for name, value in each.get_config().items() if name not in without}
        for each in (thing, like)
    )
    names = _differing(ours, theirs, epoch, where)
    for name in names:
        if not hasattr(thing, name):
            raise UsageError(
                f"schedule: epoch {epoch} changes {name} of {where}, which has no such attribute "
                "to set."
            )
        setattr(thing, name, getattr(like, name))
    return bool(names)


def _shapes(layer: Any) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in layer.weights]


def _differing(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], epoch: int, where: str
) -> list[str]:
    """The names of the numbers in which two configurations differ; refuses any other difference."""
    found = []
    for name, value in ours.items():
        other = theirs.get(name)
        if name in ("name", "layers") or value == other:  # of nested layers each has its turn
            continue
        for one in (value, other):
            if isinstance(one, bool) or not isinstance(one, int | float):
                raise UsageError(
                    f"schedule: epoch {epoch} changes {name} of {where}, which is not a number, "
                    "so it cannot change during training."
                )
        found.append(name)
    return found


def _layers(model: Any) -> list[Any]:
    """All layers of a model, within nested models too."""
    found = []
    for layer in model.layers:
        found.append(layer)
        if hasattr(layer, "layers"):
            found += _layers(layer)
    return found


def _set_optimizer(optimizer: Any, like: Any, epoch: int) -> bool:
    """Set the numbers in which optimizers differ; return whether steps must be traced again."""
    changed = False
    # float16 wraps optimizers, and the configuration of a wrapper holds another one.
    optimizer, like = (getattr(each, "inner_optimizer", each) for each in (optimizer, like))
    theirs = like.get_config()
    for name in _differing(optimizer.get_config(), theirs, epoch, "the optimizer"):
        setattr(optimizer, name, theirs[name])
        changed |= name != "learning_rate"  # which is a variable
    return changed
