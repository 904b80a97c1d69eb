"""The arguments of ``Tuner.search``, checked before anything is built, trained or written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.folds import Fold, check_alone
from paceline.data.inputs import (
    DataArguments,
    DataReader,
    LoadedData,
    TrialInputs,
    is_function,
)
from paceline.data.labels import weights_by_class
from paceline.errors import UsageError
from paceline.executor.base import PACKS_ONLY, SearchData
from paceline.pack.callbacks.per_trial import CallbackFactory, StudyPaths
from paceline.program.trace import refusal
from paceline.search_space import HyperParameters
from paceline.tuner.stopping import StoppingRules, check_rules
from paceline.tuner.timeouts import check_seconds

#: Further arguments of ``model.fit`` that are taken, and the values with which they do nothing.
_ONLY_FIT: dict[str, Any] = {"callbacks": None}
#: Keras' default batch size.
_BATCH_SIZE = 32


@dataclass(frozen=True, eq=False)
class SearchArguments:
    """The arguments of one call of ``search``; those that can be called are functions of hp."""

    reader: DataReader
    loaded: LoadedData  # the data of the default hyperparameters
    validated: bool  # whether there is any validation data
    epochs: int | Callable[[Any], int]
    batch_size: int | Callable[[Any], int] | None  # examples per step; None: Keras' default
    initial_epoch: int | Callable[[Any], int]  # epochs that are not trained
    validation_batch_size: int | Callable[[Any], int] | None  # examples per validation step
    validation_freq: int | list[int]  # every so many epochs, or after these, from 1
    class_weight: Callable[[Any], Any] | None  # weights that do not depend on hp are in the data
    shuffle: bool | str  # as ``fit`` takes it
    wanted: int | str | None  # the study's total, or "+N" for N more
    # The study's total; None before ``settled``, and when only time bounds the search.
    n_trials: int | None
    timeout: float | None  # seconds
    # Of ``model.fit`` in every trial, without batch size, epochs and Paceline's own callbacks;
    # ``TrialInputs.fit`` has those that differ between trials.
    fit: dict[str, Any]
    why_fit: str | None  # why no trial of this search can be packed; None when they can
    repeats: int = 1  # seeds that each trial's hparams are trained from
    trial_timeout: float | None = None  # seconds
    continue_best: int = 0  # best trials that train longer
    callbacks: CallbackFactory | None = None
    start_with_default: bool = False  # whether a new study tries the defaults first
    stopping: StoppingRules | None = None  # when the search ends before its last trial

    @property
    def data(self) -> ArrayData | BatchedDataset | None:
        """Training data of the default hyperparameters; None when only ``fit`` can read it."""
        return self.loaded.data

    @property
    def validation(self) -> ArrayData | None:
        """Validation data of the default hyperparameters; None where packs have none."""
        return self.loaded.validation

    @property
    def sample(self) -> ArrayData | None:
        """Arrays like the training data: all of it, or its first batch."""
        data = self.loaded.data
        return data if isinstance(data, ArrayData) else self.loaded.sample

    @property
    def batched(self) -> bool:
        """Whether ``fit`` is told the batch size; a data set of batches has its own."""
        return self.loaded.batched

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The parts of the data that members train and validate on; empty without folds."""
        return self.loaded.folds

    @property
    def folds_text(self) -> str | None:
        """A sentence for the user about the folds; None when there is nothing to say."""
        return self.loaded.folds_text

    @property
    def n_members(self) -> int:
        """Members of a trial: the number of times that its hparams are trained."""
        return self.repeats * max(1, len(self.folds))

    @property
    def fold(self) -> tuple[int, int] | None:
        """The number of examples that a fold trains and validates on; None without folds."""
        if not self.folds:
            return None
        return len(self.folds[0].train), len(self.folds[0].validation)

    def epochs_for(self, hp: HyperParameters) -> int:
        """Epochs to train in one trial: those before ``initial_epoch`` do not count."""
        epochs = whole_number(self._value("epochs", hp), "epochs")
        first = whole_number(self._value("initial_epoch", hp), "initial_epoch", least=0)
        if first >= epochs:
            raise UsageError(
                f"initial_epoch: {first} leaves nothing of {epochs} epochs; epochs counts them all."
            )
        return epochs - first

    @property
    def pack_data(self) -> SearchData | None:
        """What packs train and validate on; None when no trial of the search can be packed."""
        if self.why_fit is not None or self.data is None:
            return None
        return SearchData(
            self.data,
            self.validation,
            validation_freq=self.validation_freq,
            shuffle=self.shuffle,
            fold=self.fold,
        )

    def inputs_for(self, hp: HyperParameters, model: Any = None) -> TrialInputs:
        """The data, batch sizes and so on of one trial.

        Without ``model``, the trial's, data are as the first model preprocesses them.
        """
        loaded = self.reader.read(hp, model)
        size = self._batch_size_of(loaded, hp)
        validation, validation_size = self._validation_of(loaded, size, hp)
        if isinstance(loaded.data, ArrayData):  # with fewer examples there is one smaller batch
            size = min(size, self.fold[0] if self.fold else loaded.data.n)
        first = whole_number(self._value("initial_epoch", hp), "initial_epoch", least=0)
        table, more = None, {}
        if self.class_weight is not None:
            class_weight = self.class_weight(hp)
            more = {"class_weight": class_weight}
            if loaded.data is not None:
                table = weights_by_class(class_weight, loaded.data)
        steps = loaded.steps_per_epoch
        return TrialInputs(
            data=loaded.data,
            validation=validation,
            batch_size=size,
            validation_batch_size=validation_size,
            steps_per_epoch=steps,
            first_epoch=first,
            class_weight=table,
            key=loaded.key,
            fit={
                name: value
                for name, value in {
                    **loaded.fit,
                    "steps_per_epoch": steps,
                    "validation_steps": loaded.validation_steps,
                    "validation_batch_size": None if validation is None else validation_size,
                    **more,
                }.items()
                if value is not None
            },
            why_fit=loaded.why_fit,
            preprocessed=loaded.preprocessed,
        )

    def _batch_size_of(self, loaded: LoadedData, hp: HyperParameters) -> int:
        """The batch size that ``fit`` would be given, which may be above the examples there are."""
        data = loaded.data
        if isinstance(data, BatchedDataset):
            return data.batch_size
        if self.batch_size is not None:
            return whole_number(self._value("batch_size", hp), "batch_size")
        steps = loaded.steps_per_epoch
        if data is None or steps is None:
            return _BATCH_SIZE
        return -(-(self.fold[0] if self.fold else data.n) // steps)

    def _validation_of(
        self, loaded: LoadedData, batch_size: int, hp: HyperParameters
    ) -> tuple[ArrayData | None, int]:
        """The validation data of a trial, and the examples per step, as ``fit`` would have them."""
        value = self._value("validation_batch_size", hp)
        if value is not None:
            value = whole_number(value, "validation_batch_size")
        size = value or loaded.validation_batch_size
        validation, steps = loaded.validation, loaded.validation_steps
        if validation is None:
            return None, size or batch_size
        n = validation.n if self.fold is None else self.fold[1]
        if size is None and steps and (self.batch_size is None or not loaded.batched):
            size = -(-n // steps)
        if size is None:
            size = batch_size if loaded.batched else _BATCH_SIZE
        size = min(size, n)
        return loaded.validation_part(size * steps) if steps else validation, size

    def settled(self, n_done: int) -> SearchArguments:
        """The same arguments with ``n_trials``, for a study that has so many trials already."""
        wanted = self.wanted
        if wanted is None and self.continue_best:
            wanted = n_done  # trials that continue others, and no new ones
        return replace(self, n_trials=n_done + int(wanted) if isinstance(wanted, str) else wanted)

    def to_meta(self) -> dict[str, Any]:
        """What a study remembers of the call, as JSON values; None stands for a function of hp."""

        def fixed(value: Any) -> Any:
            return None if callable(value) else value

        steps = self.loaded.steps_per_epoch
        return {
            "epochs": fixed(self.epochs),
            **({} if self.batch_size is None else {"batch_size": fixed(self.batch_size)}),
            "n_trials": self.n_trials,
            "shuffle": self.shuffle,
            **({"repeats": self.repeats} if self.repeats > 1 else {}),
            **({"folds": len(self.folds)} if self.folds else {}),
            **({"trial_timeout": self.trial_timeout} if self.trial_timeout else {}),
            **({"callbacks": self.callbacks.names} if self.callbacks else {}),
            **({"steps_per_epoch": steps} if steps is not None else {}),
            **({"initial_epoch": fixed(self.initial_epoch)} if self.initial_epoch else {}),
            **({"validation_freq": self.validation_freq} if self.validation_freq != 1 else {}),
            **({} if self.stopping is None else self.stopping.to_meta()),
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
    class_weight: Any,
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
    target: Any = None,
    stop_after: Any = None,
    max_epochs_total: Any = None,
    start_with_default: Any = False,
    seed: int = 0,
    folder: Path,
    note: Callable[[str], None],
    initial_epoch: Any = 0,
    steps_per_epoch: Any = None,
    validation_steps: Any = None,
    validation_freq: Any = 1,
    preprocessing: Any = None,
) -> SearchArguments:
    """Checks the arguments of a call of ``Tuner.search``, which documents them.

    Beyond those, ``others`` are further arguments of ``model.fit``, ``executor`` and ``seed`` are
    the tuner's, ``needs_end`` says that the sampler never ends by itself, ``folder`` is where files
    of callbacks go, and ``note`` is told what users should know of their callbacks and data.
    ``preprocessing`` is what the first model does to samples, if it is a task of KerasHub. The
    callbacks may also be a ``CallbackFactory``, which knows by itself where their files go. Raises
    DataError where the data cannot be trained on.
    """
    others = _check_others(others)
    if continue_best is not None:
        continue_best, needs_end = whole_number(continue_best, "continue_best"), False
    needs_end = needs_end and stop_after is None and max_epochs_total is None
    check_seconds(timeout, "timeout")
    wanted = _check_n_trials(n_trials, needs_end and timeout is None)
    epochs = epochs if callable(epochs) else whole_number(epochs, "epochs")
    batch_size = _number(batch_size, "batch_size")
    validation_batch_size = _number(validation_batch_size, "validation_batch_size")
    stop_after = _number(stop_after, "stop_after")
    max_epochs_total = _number(max_epochs_total, "max_epochs_total")
    initial_epoch = _number(initial_epoch, "initial_epoch", least=0) or 0
    shuffle = _check_shuffle(shuffle)
    rules, stopping = (target, stop_after, max_epochs_total), None
    if any(rule is not None for rule in rules):
        stopping = check_rules(*rules, epochs, initial_epoch, continue_best)
    check_seconds(trial_timeout, "trial_timeout")
    validation_freq = _check_freq(validation_freq, epochs)
    callbacks = others.pop("callbacks", None)
    if callbacks is not None and not isinstance(callbacks, CallbackFactory):
        data_held = (x, y, validation_data)
        callbacks = CallbackFactory(callbacks, StudyPaths(folder), note, data=data_held)
    why_fit = _why_fit(others, executor, callbacks)
    if callbacks is not None and why_fit is None:
        callbacks.note_turns()
    repeats = whole_number(repeats, "repeats")
    if folds is not None:
        folds = whole_number(folds, "folds", least=2)
        check_alone(validation_data, validation_split)
    reader = DataReader(
        DataArguments(
            x=x,
            y=y,
            sample_weight=sample_weight,
            class_weight=class_weight,
            validation_data=validation_data,
            validation_split=validation_split,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            batch_size=batch_size,
            folds=folds,
            allow_nan=allow_nan,
            seed=seed,
            packs=why_fit is None,
            preprocessing=preprocessing,
        )
    )
    loaded = reader.read(HyperParameters())
    if loaded.why_fit is not None and executor in PACKS_ONLY:
        raise UsageError(f"executor: {executor!r} cannot run this: {loaded.why_fit}; use 'auto'.")
    if reader.in_order and shuffle:
        shuffle = False
        note(
            "shuffle: the fit of KerasHub's tasks never shuffles, and packs follow it; shuffle the "
            "data before the search"
        )
    fit = {**others, "shuffle": shuffle, "validation_freq": validation_freq}
    if not loaded.batched and not isinstance(loaded.fit["x"], keras.utils.PyDataset):
        fit["shuffle"] = False  # the data set has an order of its own, and Keras warns of True
    if validation_freq == 1:
        del fit["validation_freq"]
    return SearchArguments(
        reader=reader,
        loaded=loaded,
        validated=validation_data is not None or bool(validation_split) or bool(loaded.folds),
        epochs=epochs,
        batch_size=batch_size,
        initial_epoch=initial_epoch,
        validation_batch_size=validation_batch_size,
        validation_freq=validation_freq,
        class_weight=class_weight if is_function(class_weight) else None,
        shuffle=shuffle,
        wanted=wanted,
        n_trials=None,
        timeout=timeout,
        fit=fit,
        why_fit=why_fit or loaded.why_fit,
        repeats=repeats,
        trial_timeout=None if trial_timeout is None else float(trial_timeout),
        continue_best=continue_best or 0,
        callbacks=callbacks,
        start_with_default=bool(start_with_default),
        stopping=stopping,
    )


def whole_number(value: Any, name: str, least: int = 1, most: int | None = None) -> int:
    """The value of argument ``name`` as a whole number from ``least`` to ``most`` (None: any)."""
    try:
        number = -1 if isinstance(value, (bool, str)) or int(value) != value else int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number < least:
        what = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        raise UsageError(f"{name}: {value!r} is not {what}.")
    if most is not None and number > most:
        raise UsageError(f"{name}: {value!r} is above {most}, the highest that Keras takes.")
    return number


def _number(value: Any, name: str, least: int = 1) -> Any:
    """A number that was given, checked; functions of hp and None as they are."""
    return value if value is None or callable(value) else whole_number(value, name, least)


def _check_shuffle(shuffle: Any) -> bool | str:
    """Checks ``shuffle``: "batch" has examples change places within their batch, as in Keras."""
    if isinstance(shuffle, (bool, np.bool_)):
        return bool(shuffle)
    if not isinstance(shuffle, str) or shuffle != "batch":
        raise UsageError(f"shuffle: {shuffle!r} is not one of True, False, 'batch'.")
    return shuffle


def _check_n_trials(n_trials: Any, needed: bool) -> int | str | None:
    """Returns ``n_trials`` as it was given."""
    if isinstance(n_trials, str):
        if not re.fullmatch(r"\+[1-9][0-9]*", n_trials):
            raise UsageError(f"n_trials: {n_trials!r} is neither a number nor '+N'.")
        return n_trials
    if n_trials is not None:
        return whole_number(n_trials, "n_trials")
    if needed:
        raise UsageError(
            "n_trials: say how many trials the study shall have, or give timeout, stop_after or "
            "max_epochs_total."
        )
    return None


def _check_freq(freq: Any, epochs: Any) -> int | list[int]:
    """Checks ``validation_freq``: a number, or epochs counted from 1."""
    if freq is None:
        return 1
    if isinstance(freq, (list, tuple, set)):
        found = sorted(whole_number(epoch, "validation_freq") for epoch in freq)
        least = min(found, default=None)
    else:
        found = least = whole_number(freq, "validation_freq")
    if least is None or (not callable(epochs) and least > epochs):
        raise UsageError(f"validation_freq: {freq!r} validates in none of {epochs} epochs.")
    return found


def _check_others(others: Mapping[str, Any]) -> dict[str, Any]:
    """Checks further arguments of ``fit``; returns those that change something."""
    for name in others:
        if name not in _ONLY_FIT:
            raise UsageError(
                f"search: unknown argument {name!r}; it takes what model.fit takes, n_trials "
                "(KerasTuner's max_trials), and what help(paceline.Tuner.search) lists."
            )
    nothing = (None, [], ())
    return {n: value for n, value in others.items() if value not in (*nothing, _ONLY_FIT[n])}


def _why_fit(
    others: Mapping[str, Any], executor: str, callbacks: CallbackFactory | None
) -> str | None:
    """Why all trials must run in Keras' ``fit``; None when they can be packed."""
    if executor == "fit":
        return "executor='fit'"
    why = refusal()
    if why is None and others:
        why = f"{', '.join(others)}: not supported in packs"
    elif why is None and callbacks is not None:
        why = callbacks.why_not_packed
    if why is not None and executor in PACKS_ONLY:
        raise UsageError(f"executor: {executor!r} cannot run this: {why}; use 'auto'.")
    return why
