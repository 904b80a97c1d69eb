"""The arguments of ``Tuner.search``, checked before anything is built, trained or written."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from paceline.data.arrays import ArrayData
from paceline.data.batched import BatchedDataset
from paceline.data.folds import check_alone
from paceline.data.inputs import (
    DataArguments,
    DataReader,
    LoadedData,
    TrialInputs,
    is_function,
)
from paceline.data.labels import weights_by_class
from paceline.errors import UsageError, with_keras_3
from paceline.executor.base import PACKS_ONLY, SearchData
from paceline.pack.callbacks.per_trial import CallbackFactory, StudyPaths
from paceline.program.trace import refusal
from paceline.report.summary import STOPPING_RULES
from paceline.search_space import HyperParameters
from paceline.tuner.search.stopping import StoppingRules, check_target
from paceline.tuner.search.timeouts import check_seconds

#: Keras' default batch size.
_BATCH_SIZE = 32


#: Checks the value of an argument: ``(value, name)`` -> the value as it is used, or UsageError.
Check = Callable[[Any, str], Any]


@dataclass(frozen=True)
class ArgumentSpec:
    """All that is to be known of an argument of ``search`` beside its name, type and default."""

    check: Check  # not called for None, if that is the default
    by_hp: bool = False  # may be a function of hp
    # Whether a study remembers it; "given": only where it is not the default.
    kept: Literal["always", "given", "never"] = "never"
    key: bool = False  # a search with another value does not continue with a checkpoint
    era: bool = False  # it decides how each trial trains: with another value begins an era


def _spec(check: Check, **declared: Any) -> dict[str, ArgumentSpec]:
    return {"spec": ArgumentSpec(check, **declared)}


def whole_number(value: Any, name: str, least: int = 1, most: int | None = None) -> int:
    """The value of argument ``name`` as an integer from ``least`` to ``most`` (None: any)."""
    try:
        number = -1 if isinstance(value, (bool, str)) or int(value) != value else int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if number < least:
        what = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise UsageError(f"{name} must be {what}, got {value!r}.")
    if most is not None and number > most:
        raise UsageError(f"{name} must be at most {most}, the limit of Keras, got {value!r}.")
    return number


def _as_given(value: Any, name: str) -> Any:
    """The value itself: what it is used for checks it."""
    return value


def _n_trials(value: Any, name: str) -> int | str:
    if not isinstance(value, str):
        return whole_number(value, name)
    if not re.fullmatch(r"\+[1-9][0-9]*", value):
        raise UsageError(f"n_trials must be a number or '+N', got {value!r}.")
    return value


def _shuffle(value: Any, name: str) -> bool | str:
    """Checks ``shuffle``: "batch" has examples change places within their batch, as in Keras."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if not isinstance(value, str) or value != "batch":
        raise UsageError(f"shuffle must be True, False or 'batch', got {value!r}.")
    return value


def _callbacks(value: Any, name: str) -> Any:
    return None if value in (None, [], ()) else value


def _first_epoch(value: Any, name: str) -> int:
    return 0 if value is None else whole_number(value, name, least=0)


def _validation_freq(value: Any, name: str) -> int | list[int]:
    """Checks ``validation_freq``: a number, or epochs counted from 1."""
    if value is None:
        return 1
    if isinstance(value, (list, tuple, set)):
        return sorted(whole_number(epoch, name) for epoch in value)
    return whole_number(value, name)


def _flag(value: Any, name: str) -> bool:
    return bool(value)


@dataclass(frozen=True, eq=False, kw_only=True)
class SearchArguments:
    """The arguments of one call of ``search``; those that can be called are functions of hp.

    Those that only the reader of the data needs are declared in ``DataArguments``.
    """

    epochs: int | Callable[[Any], int] = field(
        default=10, metadata=_spec(whole_number, by_hp=True, kept="always", key=True)
    )
    # None: Keras' default.
    batch_size: int | Callable[[Any], int] | None = field(
        default=None, metadata=_spec(whole_number, by_hp=True, kept="given", key=True, era=True)
    )
    # The study's total; None before ``settled``, and when only time bounds the search.
    n_trials: int | None = field(default=None, metadata=_spec(_n_trials, kept="always"))
    shuffle: bool | str = field(
        default=True, metadata=_spec(_shuffle, kept="always", key=True, era=True)
    )
    repeats: int = field(default=1, metadata=_spec(whole_number, kept="given", key=True, era=True))
    folds: int | None = field(
        default=None,
        metadata=_spec(partial(whole_number, least=2), kept="given", key=True, era=True),
    )
    trial_timeout: float | None = field(default=None, metadata=_spec(check_seconds, kept="given"))
    callbacks: CallbackFactory | None = field(
        default=None, metadata=_spec(_callbacks, kept="given", key=True)
    )
    # Of the default hyperparameters.
    steps_per_epoch: int | None = field(
        default=None, metadata=_spec(_as_given, kept="given", key=True, era=True)
    )
    initial_epoch: int | Callable[[Any], int] = field(
        default=0, metadata=_spec(_first_epoch, by_hp=True, kept="given", key=True, era=True)
    )
    validation_freq: int | list[int] = field(
        default=1, metadata=_spec(_validation_freq, kept="given", key=True, era=True)
    )
    target_value: float | None = field(default=None, metadata=_spec(check_target, kept="given"))
    patience_trials: int | None = field(default=None, metadata=_spec(whole_number, kept="given"))
    max_total_epochs: int | None = field(default=None, metadata=_spec(whole_number, kept="given"))
    validation_batch_size: int | Callable[[Any], int] | None = field(
        default=None, metadata=_spec(whole_number, by_hp=True, key=True)
    )
    timeout: float | None = field(default=None, metadata=_spec(check_seconds))
    continue_best: int | None = field(default=None, metadata=_spec(whole_number))
    enqueue_defaults: bool = field(default=False, metadata=_spec(_flag))

    reader: DataReader
    loaded: LoadedData  # the data of the default hyperparameters
    validated: bool  # whether there is any validation data
    class_weight: Callable[[Any], Any] | None  # weights that do not depend on hp are in the data
    wanted: int | str | None  # the argument ``n_trials``: the study's total, or "+N" for N more
    # Of ``model.fit`` in every trial, without batch size, epochs and Paceline's own callbacks;
    # ``TrialInputs.fit`` has those that differ between trials.
    fit: dict[str, Any]
    why_fit: str | None  # why no trial of this search can be packed; None when they can

    @property
    def stopping(self) -> StoppingRules | None:
        """When the search ends before its last trial; None without such rules."""
        rules = StoppingRules(self.target_value, self.patience_trials, self.max_total_epochs)
        return None if rules == StoppingRules() else rules

    @property
    def n_members(self) -> int:
        """Members of a trial: the number of times that its hparams are trained."""
        return self.repeats * (self.folds or 1)

    @property
    def fold(self) -> tuple[int, int] | None:
        """The number of examples that a fold trains and validates on; None without folds."""
        if not self.loaded.folds:
            return None
        fold = self.loaded.folds[0]
        return len(fold.train), len(fold.validation)

    def epochs_for(self, hp: HyperParameters) -> int:
        """Epochs to train in one trial: those before ``initial_epoch`` do not count."""
        epochs = whole_number(self._value("epochs", hp), "epochs")
        first = whole_number(self._value("initial_epoch", hp), "initial_epoch", least=0)
        if first >= epochs:
            raise UsageError(
                "initial_epoch must be below epochs, which includes the earlier epochs, got "
                f"{first} and {epochs}."
            )
        return epochs - first

    @property
    def pack_data(self) -> SearchData | None:
        """What packs train and validate on; None when no trial of the search can be packed."""
        if self.why_fit is not None or self.loaded.data is None:
            return None
        return SearchData(
            self.loaded.data,
            self.loaded.validation,
            validation_freq=self.validation_freq,
            shuffle=self.shuffle,
            fold=self.fold,
            by_batch=self.callbacks is not None and self.callbacks.may_act_by_batch,
        )

    def inputs_for(self, hp: HyperParameters, model: Any = None) -> TrialInputs:
        """The data, batch sizes and so on of one trial, whose model may preprocess the data."""
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

    def asked(self, hp: HyperParameters, model: Any) -> tuple[int, TrialInputs]:
        """Epochs and inputs of one trial; all functions of hp were asked, always in this order."""
        epochs, inputs = self.epochs_for(hp), self.inputs_for(hp, model)
        if self.callbacks is not None:
            self.callbacks.ask(hp)
        return epochs, inputs

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
        """The same arguments with ``n_trials``, for a study that already has as many trials."""
        wanted = self.wanted
        if wanted is None and self.continue_best:
            wanted = n_done  # trials that continue others, and no new ones
        return replace(self, n_trials=n_done + int(wanted) if isinstance(wanted, str) else wanted)

    def to_meta(self) -> dict[str, Any]:
        """What a study remembers of the call, as JSON values; None stands for a function of hp."""
        return {
            each.name: self._stored(each.name)
            for each in fields(self)
            if (declared := ARGUMENTS.get(each.name)) is not None
            and declared.kept != "never"
            and (declared.kept == "always" or getattr(self, each.name) != each.default)
        }

    @property
    def key(self) -> dict[str, Any]:
        """What two searches must share for one to continue with the other's checkpoint, as JSON."""
        # These two are in the key of every checkpoint, the others where they are not the default.
        always = {name: self._stored(name) for name in ("batch_size", "validation_batch_size")}
        given = {**self.to_meta(), **always}
        return {name: value for name, value in given.items() if ARGUMENTS[name].key}

    def _stored(self, name: str) -> Any:
        value = getattr(self, name)
        if isinstance(value, CallbackFactory):
            return value.names
        return None if callable(value) else value

    def _value(self, name: str, hp: HyperParameters) -> Any:
        value = getattr(self, name)
        return value(hp) if callable(value) else value


#: The arguments of ``search`` by name, without those that only the reader of the data needs.
ARGUMENTS: dict[str, ArgumentSpec] = {
    each.name: each.metadata["spec"] for each in fields(SearchArguments) if each.metadata
}
#: Fields of ``DataArguments`` that are not arguments of ``search``.
_OF_TUNER = {"seed", "packs", "preprocessing"}
#: Arguments of ``search`` that are handed to the reader of the data.
_OF_DATA = {each.name for each in fields(DataArguments)} - _OF_TUNER


def check_each(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of all ``ARGUMENTS``, each checked alone; those that are not given by default."""
    for name in given:
        if name not in ARGUMENTS and name not in _OF_DATA:
            raise UsageError(
                with_keras_3(
                    f"search: unknown argument {name!r}. Pass arguments of model.fit, n_trials "
                    "(KerasTuner's max_trials), or those that help(paceline.Tuner.search) lists."
                )
            )
    values = {}
    for each in fields(SearchArguments):
        if (declared := ARGUMENTS.get(each.name)) is None:
            continue
        value = given.get(each.name, each.default)
        as_it_is = each.default is None if value is None else declared.by_hp and callable(value)
        values[each.name] = value if as_it_is else declared.check(value, each.name)
    return values


def _check_together(values: Mapping[str, Any], given: Mapping[str, Any], needs_end: bool) -> None:
    """Checks what two or more arguments must keep to; ``given`` are those of ``search``."""
    ends = ("n_trials", "timeout", "patience_trials", "max_total_epochs", "continue_best")
    if needs_end and all(values[name] is None for name in ends):
        raise UsageError(
            "n_trials is missing. Pass n_trials, timeout, patience_trials or max_total_epochs, so "
            "that the search has an end."
        )
    epochs = values["epochs"]
    if values["max_total_epochs"] is not None:
        rules = StoppingRules(**{name: values[name] for name in STOPPING_RULES})
        rules.check(epochs, values["initial_epoch"], values["continue_best"])
    freq = values["validation_freq"]
    first = min(freq, default=None) if isinstance(freq, list) else freq
    if first is None or (not callable(epochs) and first > epochs):
        raise UsageError(
            f"validation_freq={given['validation_freq']!r} validates none of {epochs} epochs. "
            "Pass a smaller number."
        )
    if values["folds"] is not None:
        check_alone(given.get("validation_data"), given.get("validation_split"))


def read_arguments(
    given: Mapping[str, Any],
    *,
    executor: str,
    needs_end: bool,
    seed: int = 0,
    folder: Path,
    note: Callable[[str], None],
    preprocessing: Any = None,
) -> SearchArguments:
    """Checks the arguments of a call of ``Tuner.search``, which documents them.

    ``needs_end``: the sampler never ends by itself. ``folder`` is for files of callbacks. ``note``
    is called with texts about callbacks and data. ``preprocessing`` is what the first model does to
    samples, if it is a task of KerasHub. The callbacks may also be a ``CallbackFactory``, which
    knows by itself where their files go.
    """
    values = check_each(given)
    _check_together(values, given, needs_end)
    callbacks = values["callbacks"]
    if callbacks is not None and not isinstance(callbacks, CallbackFactory):
        data_held = tuple(given.get(name) for name in ("x", "y", "validation_data"))
        callbacks = CallbackFactory(callbacks, StudyPaths(folder), note, data=data_held)
    why_fit = _why_fit(executor, callbacks)
    if callbacks is not None and why_fit is None:
        callbacks.note_turns()
    of_data: dict[str, Any] = {name: values.get(name, given.get(name)) for name in _OF_DATA}
    packs = why_fit is None
    reader = DataReader(
        DataArguments(**of_data, seed=seed, packs=packs, preprocessing=preprocessing)
    )
    loaded = reader.read(HyperParameters())
    if loaded.why_fit is not None and executor in PACKS_ONLY:
        raise UsageError(
            f"executor: {executor!r} cannot train these trials: {loaded.why_fit}. Use 'auto'."
        )
    shuffle, freq = values["shuffle"], values["validation_freq"]
    if reader.in_order and shuffle:
        shuffle = False
        note(
            "shuffle has no effect: the fit of KerasHub's tasks never shuffles. Shuffle the data "
            "before the search"
        )
    # Data sets other than PyDataset have their own order, and Keras warns about True.
    ordered = not loaded.batched and not isinstance(loaded.fit["x"], keras.utils.PyDataset)
    fit = {"shuffle": False if ordered else shuffle}
    if freq != 1:
        fit["validation_freq"] = freq
    validation, part = given.get("validation_data"), given.get("validation_split")
    class_weight = given.get("class_weight")
    wanted = values.pop("n_trials")
    values |= {
        "callbacks": callbacks,
        "shuffle": shuffle,
        "steps_per_epoch": loaded.steps_per_epoch,
    }
    return SearchArguments(
        **values,
        reader=reader,
        loaded=loaded,
        validated=validation is not None or bool(part) or bool(loaded.folds),
        class_weight=class_weight if is_function(class_weight) else None,
        wanted=wanted,
        fit=fit,
        why_fit=why_fit or loaded.why_fit,
    )


def _why_fit(executor: str, callbacks: CallbackFactory | None) -> str | None:
    """Why all trials must run in Keras' ``fit``; None when they can be packed."""
    if executor == "fit":
        return "executor='fit'"
    why = refusal()
    if why is None and callbacks is not None:
        why = callbacks.why_not_packed(by_batch=executor != "ray")
    if why is not None and executor in PACKS_ONLY:
        raise UsageError(f"executor: {executor!r} cannot train these trials: {why}. Use 'auto'.")
    return why
