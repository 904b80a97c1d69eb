"""A search over a plain ``build``: an oracle suggests trials, ``paceline.Tuner`` trains them.

Each trial of the oracle is also a trial of a Paceline study, which is kept in memory. The results
are stored in the folder of the project, in the files of KerasTuner. Many trials are under way at
once, so ``on_trial_begin`` of one trial may come before ``on_trial_end`` of another one.
"""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import keras
from optuna.storages import InMemoryStorage

import paceline.tuner.tuner
from paceline.compat.interception.hazards import why_one_at_a_time
from paceline.compat.keras_tuner.engine.base_tuner import BaseTuner
from paceline.compat.keras_tuner.engine.callback_files import ExecutionPaths
from paceline.compat.keras_tuner.engine.model_tuner import ModelTuner
from paceline.compat.keras_tuner.engine.oracle import Oracle
from paceline.compat.keras_tuner.engine.trial import (
    BEGIN,
    BRACKET,
    EPOCHS,
    PARENT,
    ROUND,
    Trial,
    TrialStatus,
)
from paceline.compat.keras_tuner.engine.tuner_utils import average_metrics_dicts, best_epoch
from paceline.compat.keras_tuner.errors import FatalError, is_a
from paceline.errors import BuildError, DataError
from paceline.executor.leading_layers import BuildBehindLayers, LayersAhead
from paceline.executor.process import random_state_kept
from paceline.pack.callbacks.per_trial import CallbackFactory
from paceline.pack.callbacks.reachable import reached
from paceline.program import keras_private
from paceline.program.initial_weights import (
    changes_kept,
    noted_build,
    shared_variables,
    values_kept,
)
from paceline.search_space import HyperParameters, Space
from paceline.study.samplers.samplers import Searcher, TrialWeights
from paceline.study.trials.trial import Trial as Record
from paceline.tuner.checkpoint.trial_variables import apply_weights
from paceline.tuner.search.progress import to_stderr

#: Number of models that are kept in order to save the weights of other trials with them.
_KEPT_MODELS = 4


class CannotStartError(Exception):
    """Raised if no model could be built, or none takes the data: no trial has begun."""


#: Values that do not change the model.
_TOLD = {EPOCHS, BEGIN, PARENT, BRACKET, ROUND}
#: Hooks around trials.
_HOOKS = ("pre_create_trial", "on_trial_begin", "on_trial_end")
#: Seconds that an oracle may be idle while no trial is under way.
_PATIENCE = 60.0


def search(tuner: ModelTuner, *args: Any, **kwargs: Any) -> None:
    """Runs all trials of a tuner's oracle; the other arguments are those of ``model.fit``.

    Raises:
        FatalError: The ``build`` of a trial raised it.
        RuntimeError: Too many trials failed in a row.
        CannotStartError: No model could be built, or none takes the data.
        PacelineError: The arguments cannot work.
    """
    train(tuner, as_fit_reads(args, kwargs))


def train(tuner: ModelTuner, fit: dict[str, Any], ahead: LayersAhead | None = None) -> None:
    """As ``search``; ``fit`` are the arguments by name, ``ahead`` layers that models go without."""
    epochs = fit.pop("epochs", 1)
    notes: Callable[[str], None] = to_stderr if tuner.oracle.verbose else lambda text: None
    why = _why_alone(tuner)
    if why is not None:
        notes(f"trials run one at a time: {why}")
    searcher = OracleSearcher(tuner, epochs, alone=why is not None)
    if fit.get("callbacks"):
        data = [fit.get(name) for name in ("x", "y", "validation_data")]
        paths = ExecutionPaths(tuner._callback_files, searcher.execution_of)
        fit["callbacks"] = CallbackFactory(fit["callbacks"], paths, notes, data)
    packs = paceline.tuner.tuner.Tuner(
        searcher.build if ahead is None else BuildBehindLayers(searcher.build, ahead),
        objective=tuner.oracle.objective,
        study="paceline",
        storage=InMemoryStorage(),
        sampler=searcher,
        seed=tuner.oracle.seed + len(tuner.oracle.trials),
        directory=tuner.project_dir,
        on_note=notes,
    )
    try:
        packs.search(
            **fit,
            epochs=lambda hp: tuner._epochs(hp, epochs),
            repeats=tuner.executions_per_trial,
        )
    except (BuildError, DataError) as error:
        if error.__cause__ is not None and is_a(error.__cause__, FatalError):
            raise error.__cause__ from None
        if searcher.began:
            raise
        raise CannotStartError(str(error)) from error
    finally:
        tuner.oracle.take_back()
        tuner.save()


def _why_alone(tuner: ModelTuner) -> str | None:
    """Why the user's hooks must see one trial at a time; None if nothing shows that they must."""
    hooks = [name for name in _HOOKS if tuner._has_own(name)]
    return why_one_at_a_time(reached({"tuner": tuner}, hooks)) if hooks else None


def as_fit_reads(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``model.fit`` by their names.

    Raises:
        TypeError: ``fit`` has no such argument.
    """
    bound = inspect.signature(keras.Model.fit).bind(None, *args, **kwargs)
    found = dict(bound.arguments)
    del found[next(iter(found))]  # self
    return found


class OracleSearcher(Searcher):
    """Suggests the trials of a tuner's oracle, and tells the oracle their results.

    If ``alone`` is True, one trial ends before the next begins.
    """

    def __init__(self, tuner: ModelTuner, epochs: int, *, alone: bool) -> None:
        self._tuner, self._oracle, self._epochs = tuner, tuner.oracle, epochs
        self._alone = alone
        self.began = False  # whether a trial has begun
        self._open: dict[int, Trial] = {}
        self._ending = EndingError()
        self._built: Trial | None = None  # the last trial that the oracle gave
        self._logs: dict[int, list[Sequence[Mapping[str, float]]]] = {}
        self._errors: dict[int, BaseException] = {}
        self._held = _BestWeights(tuner.oracle.objective, tuner.executions_per_trial)
        self._models: OrderedDict[Any, Any] = OrderedDict()  # by structure, the latest used last
        self._batch: Any = None
        self._stopped = False

    def build(self, hp: HyperParameters) -> Any:
        """Builds the model for ``hp``."""
        return self._tuner._try_build(hp)

    # -- what the search asks ----------------------------------------------------------------------

    def on_search_begin(self, space: Space, hp: HyperParameters, batch: Any) -> None:
        """Notes the shapes of a batch; the space is the oracle's."""
        self._batch = batch

    def first_look(self) -> HyperParameters:
        """The oracle's space so far."""
        return self._oracle.get_space()

    def suggest(self, number: int) -> HyperParameters | None:
        """The oracle's next trial."""
        self._learn()
        if self._ending.known or (self._stopped and not self._oracle._retry_queue):
            return None
        try:
            trial = begin_trial(self._tuner, number, alone=not self._open)
        except Exception as error:
            self._ending.note(number, error)
            self._ending.raise_if_due(self._open)
            return None
        if trial.status != TrialStatus.RUNNING:
            self._stopped = trial.status == TrialStatus.STOPPED
            return None
        self.began = True
        self._open[number] = self._built = trial
        return trial.hyperparameters

    def execution_of(self, name: str) -> tuple[str, int]:
        """The oracle's id of a trial under way, and its execution, by Paceline's name for both."""
        number, _, execution = name.partition("-")
        return self._open[int(number)].trial_id, int(execution or 0)

    def _learn(self) -> None:
        """Tells the oracle what the last build has declared."""
        trial, self._built = self._built, None
        if trial is not None and trial.status == TrialStatus.RUNNING:
            self._oracle.built(trial)

    def hp_again(self, number: int, hparams: Mapping[str, Any]) -> HyperParameters:
        """A copy of the hp of a trial under way, at these values.

        With other values than the trial's, the model does not begin with the weights of the trial's
        parent: they would not fit it.
        """
        hp = self._open[number].hyperparameters
        if all(hp.values.get(name) == value for name, value in hparams.items()):
            return hp.copy()
        config = hp.get_config()
        config["values"] |= hparams
        config["values"].pop(PARENT, None)
        return type(hp).from_config(config)

    def n_to_come(self, n_left: int | None) -> int | None:
        """Trials that the oracle still wants, those tried again included."""
        if self._ending.known or (self._stopped and not self._oracle._retry_queue):
            return 0
        left = self._oracle.remaining_trials()
        return None if left is None else max(0, left) + len(self._oracle._retry_queue)

    @property
    def max_open(self) -> int | None:
        """The oracle's limit, or 1."""
        return 1 if self._alone else self._oracle.max_parallel

    # -- what the search tells ---------------------------------------------------------------------

    def on_renumbered(self, number: int, now: int) -> None:
        """See ``Searcher``."""
        tables: list[dict[int, Any]] = [self._open, self._errors, self._logs]
        for table in tables:
            if number in table:
                table[now] = table.pop(number)
        self._held.renumber(number, now)

    def on_trial_result(self, number: int, members: Sequence[Mapping[str, float]]) -> None:
        """Notes an epoch's logs, and tells the user."""
        epochs, trial = self._logs.setdefault(number, []), self._open[number]
        epochs.append(members)
        if not self._oracle.verbose:
            return
        before = trial.hyperparameters.values.get(BEGIN, 0)
        total = before + self._tuner._epochs(trial.hyperparameters, self._epochs)
        self._oracle.tell_epoch(trial, before + len(epochs), total, average_metrics_dicts(members))

    def on_member_result(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        """Holds an execution's weights where they are the best."""
        self._held.take(number, value, fetch)

    def on_trial_error(self, number: int, error: BaseException) -> bool:
        """Notes why a trial failed; the tuner tells the user when it has ended."""
        self._errors[number] = error
        return True

    def on_trial_complete(self, trial: Record) -> None:
        """Tells the oracle, and writes the weights.

        Raises:
            FatalError: This trial or a later one raised it, and all trials before have ended.
            RuntimeError: As FatalError, if too many trials have failed in a row.
        """
        number = trial.number
        ours, error = self._open.pop(number), self._errors.pop(number, None)
        epochs, weights = self._logs.pop(number, []), self._held.pop(number)
        error = error or self._without_value(epochs)
        if error is not None and _went_well(error, epochs, self._oracle):
            error = None
        try:
            if error is None:
                try:
                    self._complete(ours, epochs, weights, trial.program_id)
                except Exception as raised:  # in KerasTuner, a model that cannot be saved fails
                    error = raised
            if error is not None:
                self._tuner._note_failure(ours, error)
            self._tuner.on_trial_end(ours)
        except Exception as raised:
            self._ending.note(number, raised)
        self._ending.raise_if_due(self._open)

    def _without_value(self, epochs: Sequence[Sequence[Mapping[str, float]]]) -> Exception | None:
        """What a trial fails with that has no value of the objective in any of its epochs."""
        objective = self._oracle.objective
        for logs in zip(*epochs, strict=True):
            if not any(map(objective.has_value, logs)):
                names = ", ".join(logs[-1]) if logs else "none"
                return ValueError(f"no epoch has {objective.name!r}; its logs are {names}.")
        return None

    def trial_weights(self) -> TrialWeights:
        """Holds the weights of trials under way."""
        return self._held

    def _complete(
        self,
        trial: Trial,
        epochs: Sequence[Sequence[Mapping[str, float]]],
        weights: Any,
        program: str | None,
    ) -> None:
        objective = self._oracle.objective
        executions = list(zip(*epochs, strict=True))
        best = [best_epoch(logs, objective) for logs in executions]
        ends = [logs[at] for logs, at in zip(executions, best, strict=True)]
        metrics = average_metrics_dicts(ends)
        values = [objective.get_value(logs) for logs in ends]
        top = min(values) if objective.direction == "min" else max(values)
        self._tuner._callback_files.note_best(trial.trial_id, values.index(top))
        if weights is not None:
            self._save(trial, weights, program)
        self._oracle.update_trial(trial.trial_id, metrics, step=sum(best) // len(best))
        trial.status, trial.message = TrialStatus.COMPLETED, None

    # -- files -------------------------------------------------------------------------------------

    def _save(self, trial: Trial, weights: Any, program: str | None) -> None:
        """Writes the weights as ``model.save_weights`` does."""
        with ExitStack() as saving:
            # The layers may be the user's, and part of other trials' models.
            saving.enter_context(changes_kept())
            model = self._model_like(trial, program, weights)
            saving.enter_context(values_kept(model))
            apply_weights(model, weights)
            # The state of the optimizer is left out: this model has the state of another trial, and
            # KerasTuner does not read it back.
            optimizer, model.optimizer = model.optimizer, None
            try:
                model.save_weights(self._tuner._get_checkpoint_fname(trial.trial_id))
            finally:
                model.optimizer = optimizer
        self._tuner._save_build_config(trial.trial_id, model)

    def _model_like(self, trial: Trial, program: str | None, weights: Any) -> Any:
        """A model with the structure of a trial; its weights may be those of any trial."""
        hp = trial.hyperparameters
        numbers = {each.name for each in hp.space if each.kind == "Float"}
        counts = [len(part) for part in weights]  # Dropout(0.0) has no seed, its program has one
        key = (
            program,
            *counts,
            *((k, v) for k, v in hp.values.items() if k not in numbers | _TOLD),
        )
        model = self._models.get(key) if program is not None else None
        if model is None:
            hp = hp.copy()
            hp.values.pop(PARENT, None)  # no need to load the parent's weights first
            with random_state_kept():
                model = noted_build(lambda: self._tuner._try_build(hp))
                if not model.built and self._batch is not None:
                    keras_private.symbolic_build(model, self._batch)
            if shared_variables(model):
                return model  # the next build may set the flags of its layers
            self._models[key] = model
        self._models.move_to_end(key)
        if len(self._models) > _KEPT_MODELS:
            self._models.popitem(last=False)
        return model


def begin_trial(tuner: BaseTuner, number: int, *, alone: bool) -> Trial:
    """Asks the oracle of a tuner for a trial, and calls the hooks of the tuner.

    The status of the trial says whether there is one. No trial under way has this ``number``. If
    none is under way (``alone``), an oracle that is idle is asked again.

    Raises:
        RuntimeError: The oracle stays idle, and waits for nothing.
    """
    tuner.pre_create_trial()
    worker = tuner.tuner_id
    worker = f"{worker}-{number}" if worker in tuner.oracle.ongoing_trials else worker
    trial = tuner.oracle.create_trial(worker)
    until = time.monotonic() + _PATIENCE
    while alone and trial.status == TrialStatus.IDLE:
        if time.monotonic() > until:
            raise RuntimeError(
                f"the oracle has answered IDLE for {_PATIENCE:.0f} s while no trial was under way; "
                "have populate_space return RUNNING with values, or STOPPED."
            )
        time.sleep(0.01)
        trial = tuner.oracle.create_trial(worker)
    if trial.status == TrialStatus.RUNNING:
        tuner.on_trial_begin(trial)
    return trial


class EndingError:
    """The error that will end a search.

    Trials that began before the trial of the error train to their ends first, so that the project
    holds their results, as it would had they run one after another.
    """

    def __init__(self) -> None:
        self._error: Exception | None = None
        self._number = 0  # of the trial that raised it

    @property
    def known(self) -> bool:
        """Whether an error will end the search: then no further trial begins."""
        return self._error is not None

    def note(self, number: int, error: Exception) -> None:
        """Takes in an error of a trial; one of a trial that began earlier replaces one of a later.

        The limit of failures is exceeded again at the end of each further trial, whatever the
        number of that trial: only the first such error counts.
        """
        limit = isinstance(error, RuntimeError) and not is_a(error, FatalError)
        if self._error is None or (number < self._number and not limit):
            self._error, self._number = error, number

    def raise_if_due(self, under_way: Iterable[int]) -> None:
        """Raises the error once all trials that began before it have ended."""
        if self._error is not None and all(number > self._number for number in under_way):
            raise self._error


def _went_well(error: BaseException, epochs: Sequence[Any], oracle: Oracle) -> bool:
    """Whether a trial whose loss became NaN had a score before: KerasTuner completes such a one."""
    if not isinstance(error, FloatingPointError) or not epochs:
        return False
    values = [oracle.objective.get_value(logs) for logs in epochs[0]]
    return all(value == value for value in values)  # none is NaN


class _BestWeights(TrialWeights):
    """The best weights of each trial under way, over its epochs and executions.

    When a trial ends, ``OracleSearcher`` takes its weights out and saves them in the project, so
    this object holds the weights of no trial that has ended, and saves nothing itself.
    """

    def __init__(self, objective: Any, executions: int) -> None:
        self._objective = objective
        self._executions = executions  # trainings of each configuration
        self._by_trial: dict[int, tuple[float, Any]] = {}

    def take(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        """Keeps the weights of a trial if ``value`` is the best one of the trial so far."""
        best = self._by_trial.get(number)
        if value is not None and (best is None or self._objective.better_than(value, best[0])):
            self._by_trial[number] = value, fetch()

    def pop(self, number: int) -> Any:
        """Takes the weights of a trial out; None if there are none."""
        return self._by_trial.pop(number, (None, None))[1]

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Any]) -> None:
        """Keeps the weights if they are the best of the trial.

        The value of a trial with several executions is a mean: then ``OracleSearcher`` gives the
        weights of each execution to ``take``.
        """
        if self._executions == 1:
            self.take(number, value, fetch)

    def complete(self, number: int) -> None:
        """Does nothing: ``OracleSearcher`` takes the weights out."""

    def forget(self, number: int) -> None:
        """Does nothing: ``OracleSearcher`` takes the weights out."""

    def renumber(self, number: int, now: int) -> None:
        """Know a trial by another number."""
        if number in self._by_trial:
            self._by_trial[now] = self._by_trial.pop(number)

    def weights(self, number: int) -> None:
        """Returns None: no trial that has ended is held."""

    def save(self, rebuild: Any, note: Any = None) -> None:
        """Does nothing: the weights are saved when a trial ends."""
