"""What ``search`` was called with, checked before anything is built, trained or written."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from paceline.callbacks.copies import Callbacks
from paceline.data import ArrayData, NotArrays, prepare, split
from paceline.errors import DataError, UsageError
from paceline.folds import Fold, make_folds
from paceline.search_space import HyperParameters

#: Arguments of ``model.fit`` that packs do not know, and what they are where they change nothing.
_ONLY_FIT: dict[str, Any] = {
    "callbacks": None,
    "initial_epoch": 0,
    "steps_per_epoch": None,
    "validation_steps": None,
    "validation_freq": 1,
}
#: Keras' batch size where none is given.
_BATCH_SIZE = 32


@dataclass
class Arguments:
    """A call of ``search``.

    Attributes:
        data, validation: Arrays; data is None when only ``fit`` can read it.
        sample: The first batch of data that is no arrays, where it could be read.
        validated: Whether there is any validation data.
        epochs, batch_size: A number, or a function of hp; batch_size None: Keras' default.
        validation_batch_size: None: the trial's batch size.
        shuffle: As ``fit`` takes it.
        wanted: Trials the study shall have, ``"+N"`` for N more, None when time bounds the search.
        n_trials: The study's total, once it is known; None when only a timeout bounds the search.
        timeout: Seconds, or None.
        trial_timeout: Seconds that one trial may take, or None.
        continue_best: How many of the best trials train longer; 0: none.
        repeats: Seeds that each trial's hparams are trained from.
        folds: Parts of the data that each trial trains and validates on; none without folds.
        folds_text: What to tell the user of them.
        fit: What ``model.fit`` gets, beside batch size, epochs and callbacks of ours.
        batched: Whether ``fit`` is told the batch size; a data set has its own.
        why_fit: Why no trial of this search can be packed; None when they can.
        callbacks: Makes each trial's callbacks; None without.
    """

    data: ArrayData | None
    validation: ArrayData | None
    sample: ArrayData | None
    validated: bool
    epochs: int | Callable[[Any], int]
    batch_size: int | Callable[[Any], int] | None
    validation_batch_size: int | None
    shuffle: Any
    wanted: int | str | None
    n_trials: int | None
    timeout: float | None
    fit: dict[str, Any]
    batched: bool
    why_fit: str | None
    repeats: int = 1
    folds: tuple[Fold, ...] = ()
    folds_text: str | None = None
    trial_timeout: float | None = None
    continue_best: int = 0
    callbacks: Callbacks | None = None

    @property
    def n_members(self) -> int:
        """How many times a trial's hparams are trained."""
        return self.repeats * max(1, len(self.folds))

    @property
    def fold(self) -> tuple[int, int] | None:
        """Examples that each fold trains and validates on; None without folds."""
        if not self.folds:
            return None
        return len(self.folds[0].train), len(self.folds[0].validation)

    def epochs_for(self, hp: HyperParameters) -> int:
        """Epochs of one trial."""
        return whole_number(self._value("epochs", hp), "epochs")

    def batch_size_for(self, hp: HyperParameters) -> int:
        """Examples per step of one trial.

        Raises:
            UsageError: No positive whole number, or more than there are examples.
        """
        n = None if self.data is None else self.fold[0] if self.fold else self.data.n
        if self.batch_size is None:
            return _BATCH_SIZE if n is None else min(_BATCH_SIZE, n)
        size = whole_number(self._value("batch_size", hp), "batch_size")
        if n is not None:
            _check_batch_size(size, n, bool(self.folds))
        return size

    def settle(self, n_done: int) -> int | None:
        """The study's total, from how many trials it has already; sets ``n_trials``."""
        wanted = self.wanted
        if wanted is None and self.continue_best:
            wanted = n_done  # those that go on, and no new ones
        self.n_trials = n_done + int(wanted) if isinstance(wanted, str) else wanted
        return self.n_trials

    def to_meta(self) -> dict[str, Any]:
        """What a study remembers of the call: JSON values."""
        return {
            "epochs": None if callable(self.epochs) else self.epochs,
            "batch_size": None if callable(self.batch_size) else self.batch_size,
            "n_trials": self.n_trials,
            "shuffle": self.shuffle,
            **({"repeats": self.repeats} if self.repeats > 1 else {}),
            **({"folds": len(self.folds)} if self.folds else {}),
            **({"trial_timeout": self.trial_timeout} if self.trial_timeout else {}),
            **({"callbacks": self.callbacks.names} if self.callbacks else {}),
        }

    def _value(self, name: str, hp: HyperParameters) -> Any:
        value = getattr(self, name)
        return value(hp) if callable(value) else value


def read_arguments(
    x: Any,
    y: Any,
    *,
    validation_data: Any,
    validation_split: float,
    epochs: Any,
    batch_size: Any,
    n_trials: Any,
    timeout: Any,
    shuffle: Any,
    class_weight: Mapping[int, float] | None,
    sample_weight: Any,
    validation_batch_size: Any,
    allow_nan: bool,
    others: Mapping[str, Any],
    executor: str,
    needs_end: bool,
    repeats: Any = 1,
    folds: Any = None,
    trial_timeout: Any = None,
    continue_best: Any = None,
    seed: int = 0,
) -> Arguments:
    """Checks a call of ``search``, whose parameters these are.

    Beside them, ``others`` are further arguments of ``model.fit``, ``executor`` and ``seed`` are
    the tuner's, and ``needs_end`` says that the sampler never ends by itself.

    Raises:
        UsageError: An argument that cannot work.
        DataError: Data that cannot be trained on.
    """
    if continue_best is not None:
        continue_best, needs_end = whole_number(continue_best, "continue_best"), False
    wanted = _check_numbers(n_trials, timeout, epochs, batch_size, validation_batch_size, needs_end)
    _check_seconds(trial_timeout, "trial_timeout")
    others = _check_others(others)
    callbacks = others.pop("callbacks", None)
    if callbacks is not None:
        callbacks = Callbacks(callbacks)
    why_fit = _why_fit(others, shuffle, executor, callbacks)
    if x is None:
        raise UsageError("search: there is no x; pass the training data as to model.fit.")
    repeats = whole_number(repeats, "repeats")
    if folds is not None:
        folds = _check_folds(folds, validation_data, validation_split)
    checked: dict[str, Any] = {"allow_nan": allow_nan}
    data = validation = sample = None
    parts: tuple[Fold, ...] = ()
    parts_text = None
    also = {"shuffle": shuffle, "validation_batch_size": validation_batch_size}
    try:
        data = prepare(x, y, sample_weight, **checked)
        if validation_data is not None:
            validation = prepare(*_unpack(validation_data), **checked, what="validation data")
        elif validation_split:
            data, validation = split(data, validation_split)
        elif folds is not None:
            y_all = data.inputs[1] if len(data.inputs) > 1 else None
            parts, parts_text = make_folds(y_all, data.n, folds, seed)
            validation = data
        if class_weight is not None:  # after the split: Keras does not weigh validation data
            data = prepare(*data.inputs, class_weight=class_weight, **checked)
        if isinstance(batch_size, int):
            _check_batch_size(batch_size, len(parts[0].train) if parts else data.n, bool(parts))
        fit = _as_fit_takes_it(data, validation)
    except NotArrays as reason:
        if folds is not None:
            raise UsageError(
                f"folds: {reason}, and folds are parts of arrays; pass arrays, or validation_data "
                "without folds."
            ) from None
        if executor == "local":
            raise UsageError(
                f"executor: 'local' cannot run this: {reason}, and packs need arrays; use 'auto'."
            ) from None
        why_fit = why_fit or f"{reason}, and packs need arrays"
        more = {"y": y, "sample_weight": sample_weight, "class_weight": class_weight}
        if _is_array_like(x):
            fit = {"x": x, **more, "validation_split": validation_split}
            sample, data = data, None
        else:
            more |= {"validation_split": validation_split or None, "batch_size": batch_size}
            _check_data_set(x, validation_data, others, more)
            sample, x = _first_batch(x)
            fit = {"x": x, "class_weight": class_weight}
            if not isinstance(x, keras.utils.PyDataset):
                also["shuffle"] = False  # it has an order of its own; Keras warns of True
        fit["validation_data"] = validation_data
    return Arguments(
        data=data,
        validation=validation,
        sample=sample,
        validated=validation_data is not None or bool(validation_split) or bool(parts),
        epochs=epochs,
        batch_size=batch_size,
        validation_batch_size=validation_batch_size,
        shuffle=shuffle,
        wanted=wanted,
        n_trials=None,
        timeout=timeout,
        fit={name: value for name, value in {**fit, **others, **also}.items() if value is not None},
        batched=_is_array_like(x),
        why_fit=why_fit,
        repeats=repeats,
        folds=parts,
        folds_text=parts_text,
        trial_timeout=None if trial_timeout is None else float(trial_timeout),
        continue_best=continue_best or 0,
        callbacks=callbacks,
    )


def whole_number(value: Any, name: str, least: int = 1) -> int:
    """A number that must be whole.

    Raises:
        UsageError: It is no whole number, or below ``least``.
    """
    try:
        number = -1 if isinstance(value, (bool, str)) else int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number != value or number < least:
        what = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        raise UsageError(f"{name}: {value!r} is not {what}.")
    return number


def _check_numbers(
    n_trials: Any,
    timeout: Any,
    epochs: Any,
    batch_size: Any,
    validation_batch_size: Any,
    needs_end: bool,
) -> int | str | None:
    """Checks the plain numbers; returns how many trials are wanted."""
    if not callable(epochs):
        whole_number(epochs, "epochs")
    if batch_size is not None and not callable(batch_size):
        whole_number(batch_size, "batch_size")
    if callable(validation_batch_size):
        raise UsageError("validation_batch_size: only epochs and batch_size may depend on hp.")
    if validation_batch_size is not None:
        whole_number(validation_batch_size, "validation_batch_size")
    _check_seconds(timeout, "timeout")
    if isinstance(n_trials, str):
        if not re.fullmatch(r"\+[1-9][0-9]*", n_trials):
            raise UsageError(f"n_trials: {n_trials!r} is neither a number nor '+N'.")
        return n_trials
    if n_trials is not None:
        return whole_number(n_trials, "n_trials")
    if timeout is None and needs_end:
        raise UsageError("n_trials: say how many trials the study shall have, or give a timeout.")
    return None


def _check_seconds(value: Any, name: str) -> None:
    if value is not None and (isinstance(value, (bool, str)) or not value > 0):
        raise UsageError(f"{name}: {value!r} is not a number of seconds above 0.")


def _check_others(others: Mapping[str, Any]) -> dict[str, Any]:
    """Those further arguments of ``fit`` that change something."""
    for name in others:
        if name not in _ONLY_FIT:
            raise UsageError(
                f"search: unknown argument {name!r}; it takes what model.fit takes, and n_trials "
                "(KerasTuner's max_trials), timeout, trial_timeout, allow_nan."
            )
    changed = {n: value for n, value in others.items() if value not in (None, _ONLY_FIT[n])}
    if changed.get("callbacks") in ([], ()):
        del changed["callbacks"]
    return changed


def _why_fit(
    others: Mapping[str, Any], shuffle: Any, executor: str, callbacks: Callbacks | None
) -> str | None:
    """Why trials must run in Keras' ``fit``, or None."""
    why = None
    if executor == "fit":
        return "executor='fit'"
    if keras.backend.backend() != "jax":
        why = f"Keras runs on {keras.backend.backend()}; packs need KERAS_BACKEND=jax"
    elif others:
        why = f"{', '.join(others)}: not supported in packs"
    elif not isinstance(shuffle, (bool, np.bool_)):
        why = f"shuffle={shuffle!r} is not supported in packs"
    elif callbacks is not None:
        why = callbacks.why_not_packed
    if why is not None and executor == "local":
        raise UsageError(f"executor: 'local' cannot run this: {why}; use 'auto'.")
    return why


def _check_batch_size(size: int, n: int, folded: bool = False) -> None:
    if size > n:
        of = " of a fold" if folded else ""
        raise UsageError(f"batch_size: {size} is above the {n} training examples{of}.")


def _check_folds(folds: Any, validation_data: Any, validation_split: Any) -> int:
    for name, given in (
        ("validation_data", validation_data is not None),
        ("validation_split", bool(validation_split)),
    ):
        if given:
            raise UsageError(
                f"folds: {name} was given too, and each fold is validated on its own part of x and "
                "y; give one of them."
            )
    return whole_number(folds, "folds", least=2)


def _unpack(validation: Any) -> tuple[Any, Any, Any]:
    if isinstance(validation, (tuple, list)):
        if len(validation) not in (1, 2, 3) or validation[0] is None:
            raise UsageError("validation_data: pass (x, y) or (x, y, sample_weight).")
        x, y, weight = (*validation, None, None, None)[:3]
        return x, y, weight
    raise NotArrays(f"validation_data is a {type(validation).__name__}")


def _as_fit_takes_it(data: ArrayData, validation: ArrayData | None) -> dict[str, Any]:
    """The same arrays that packs train on."""
    names: tuple[str, ...] = ("x", "y", "sample_weight")
    fit: dict[str, Any] = dict(zip(names, data.inputs, strict=False))
    if validation is not None:
        fit["validation_data"] = validation.inputs
    return fit


def _check_data_set(
    x: Any, validation: Any, others: Mapping[str, Any], more: Mapping[str, Any]
) -> None:
    """Checks a call with a data set (a PyDataset, a generator or the like) for x.

    ``more`` are arguments that a data set decides by itself, but for ``class_weight``.

    Raises:
        UsageError: ``fit`` could not go on with it.
    """
    for name, value in more.items():
        if value is not None and name != "class_weight":
            raise UsageError(f"{name}: x is a {type(x).__name__}, which holds this; leave it out.")
    if isinstance(x, Iterator) and "steps_per_epoch" not in others:
        raise UsageError(
            f"x: a {type(x).__name__} can be read once, and every trial needs the data; pass "
            "steps_per_epoch if it never ends, or a keras.utils.PyDataset."
        )
    if isinstance(validation, Iterator) and "validation_steps" not in others:
        raise UsageError(
            f"validation_data: a {type(validation).__name__} can be read once, and every epoch "
            "needs the data; pass validation_steps if it never ends, or a keras.utils.PyDataset."
        )


def _is_array_like(x: Any) -> bool:
    return isinstance(x, (list, tuple, Mapping)) or hasattr(x, "shape") or hasattr(x, "to_numpy")


def _first_batch(x: Any) -> tuple[ArrayData | None, Any]:
    """The first batch where it is a nest of arrays, and x with that batch still in it.

    Raises:
        DataError: There is no batch, or it cannot be read.
    """
    try:
        if isinstance(x, keras.utils.PyDataset):
            batch = x[0]
        elif isinstance(x, Iterator):
            batch = next(x)
            x = _chained(batch, x)
        else:
            batch = next(iter(x))
    except (StopIteration, IndexError):
        raise DataError(f"x: the {type(x).__name__} holds no batches.") from None
    except Exception as error:
        raise DataError(
            f"x: the first batch of the {type(x).__name__} cannot be read: "
            f"{type(error).__name__}: {error}"
        ) from error
    try:
        return prepare(*_unpack(batch), allow_nan=True, what="the first batch"), x
    except NotArrays:
        return None, x


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield from itertools.chain([first], rest)  # Keras knows generators, not any iterator
