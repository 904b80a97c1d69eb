"""A search over a plain ``build``: an oracle suggests trials, ``paceline.Tuner`` trains them.

Each trial of the oracle is also a trial of a Paceline study in memory. The results are stored in
the folder of the project, in the files of KerasTuner. Many trials run at once, so
``on_trial_begin`` of one trial may come before ``on_trial_end`` of another one.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import keras
from optuna.storages import InMemoryStorage

import paceline.tuner.tuner
from paceline.compat.interception.sharing.hazards import (
    why_in_order,
    why_one_at_a_time,
)
from paceline.compat.keras_tuner.engine.callback_files import ExecutionPaths
from paceline.compat.keras_tuner.engine.display import notes_of
from paceline.compat.keras_tuner.engine.model_tuner import TRIAL_HOOKS, ModelTuner
from paceline.compat.keras_tuner.engine.objective import Objective
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
from paceline.compat.keras_tuner.oracle_trials import OracleTrials
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

#: Number of models that are kept in order to save the weights of other trials with them.
_KEPT_MODELS = 4
#: Values that do not change the model.
_TOLD = {EPOCHS, BEGIN, PARENT, BRACKET, ROUND}


class CannotStartError(Exception):
    """Raised before the first trial if no model can be built, or none takes the data."""


def search(tuner: ModelTuner, fit: dict[str, Any], ahead: LayersAhead | None = None) -> None:
    """Runs all trials of a tuner's oracle with these arguments of ``model.fit``.

    Models go without the layers ``ahead``. Raises CannotStartError, FatalError of a ``build``,
    PacelineError if the arguments cannot work, and RuntimeError if too many trials failed in a row.
    """
    epochs = fit.pop("epochs", 1)
    notes = notes_of(tuner.oracle)
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
    hooks = [name for name in TRIAL_HOOKS if tuner._has_own(name)]
    found = reached({"tuner": tuner}, hooks)
    return (why_one_at_a_time(found) or why_in_order(found)[0]) if hooks else None


def as_fit_reads(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``model.fit`` by their names; TypeError for one that it does not have."""
    bound = inspect.signature(keras.Model.fit).bind(None, *args, **kwargs)
    found = dict(bound.arguments)
    del found[next(iter(found))]  # self
    return found


@dataclass
class _Results:
    """The results of a running trial."""

    # For each epoch, the logs of each execution.
    epochs: list[Sequence[Mapping[str, float]]] = field(default_factory=list)
    best: tuple[float, Any] | None = None  # the best value over epochs and executions, and weights
    error: BaseException | None = None


class OracleSearcher(Searcher):
    """Suggests the trials of a tuner's oracle, and reports their results to the oracle.

    If ``alone`` is True, one trial ends before the next begins.
    """

    def __init__(self, tuner: ModelTuner, epochs: int, *, alone: bool) -> None:
        self._tuner, self._oracle, self._epochs = tuner, tuner.oracle, epochs
        self._alone = alone
        self.began = False  # whether a trial has begun
        self._trials = OracleTrials(tuner)
        self._built: Trial | None = None  # the last trial of the oracle
        self._results: defaultdict[int, _Results] = defaultdict(_Results)
        self._models: OrderedDict[Any, Any] = OrderedDict()  # by structure, the latest used last
        self._batch: Any = None

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
        # The oracle learns what the last build has declared.
        before, self._built = self._built, None
        if before is not None and before.status == TrialStatus.RUNNING:
            self._oracle.built(before)
        trial = None if self._trials.over else self._trials.begin(number)
        if trial is None:
            self._trials.raise_if_due()
            return None
        self.began, self._built = True, trial
        return trial.hyperparameters

    def execution_of(self, name: str) -> tuple[str, int]:
        """The oracle's id of a running trial, and its execution, by Paceline's name for both."""
        number, _, execution = name.partition("-")
        return self._trials.running[int(number)].trial_id, int(execution or 0)

    def hp_again(self, number: int, hparams: Mapping[str, Any]) -> HyperParameters:
        """A copy of the hp of a running trial, at these values.

        With other values than the trial's, the model does not begin with the weights of the trial's
        parent, which would not fit it.
        """
        hp = self._trials.running[number].hyperparameters
        if all(hp.values.get(name) == value for name, value in hparams.items()):
            return hp.copy()
        config = hp.get_config()
        config["values"] |= hparams
        config["values"].pop(PARENT, None)
        return type(hp).from_config(config)

    def n_to_come(self, n_left: int | None) -> int | None:
        """Trials that the oracle still wants, retries included."""
        if self._trials.over:
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
        tables: list[dict[int, Any]] = [self._trials.running, self._results]
        for table in tables:
            if number in table:
                table[now] = table.pop(number)

    def on_trial_result(self, number: int, members: Sequence[Mapping[str, float]]) -> None:
        """Keeps an epoch's logs, and prints them."""
        epochs, trial = self._results[number].epochs, self._trials.running[number]
        epochs.append(members)
        if not self._oracle.verbose:
            return
        before = trial.hyperparameters.values.get(BEGIN, 0)
        total = before + self._tuner._epochs(trial.hyperparameters, self._epochs)
        self._oracle.tell_epoch(trial, before + len(epochs), total, average_metrics_dicts(members))

    def on_member_result(self, number: int, value: float | None, fetch: Callable[[], Any]) -> None:
        """Keeps an execution's weights if they are the best of the trial."""
        found, better_than = self._results[number], self._oracle.objective.better_than
        if value is not None and (found.best is None or better_than(value, found.best[0])):
            found.best = value, fetch()

    def on_trial_error(self, number: int, error: BaseException) -> bool:
        """Keeps the error of a trial; the tuner prints it when the trial has ended."""
        self._results[number].error = error
        return True

    def on_trial_complete(self, trial: Record) -> None:
        """Reports the trial to the oracle, and writes the weights; raises as ``OracleTrials``."""
        found = self._results.pop(trial.number, _Results())
        error = found.error or self._without_value(found.epochs)
        if error is not None and _went_well(error, found.epochs, self._oracle.objective):
            error = None
        with self._trials.ending(trial.number) as ours:
            if error is None:
                try:
                    self._complete(ours, found, trial.program_id)
                except Exception as raised:  # in KerasTuner, a model that cannot be saved fails
                    error = raised
            if error is not None:
                self._tuner._note_failure(ours, error)

    def _without_value(self, epochs: Sequence[Sequence[Mapping[str, float]]]) -> Exception | None:
        """The error of a trial without a value of the objective in any of its epochs."""
        objective = self._oracle.objective
        for logs in zip(*epochs, strict=True):
            if not any(map(objective.has_value, logs)):
                names = ", ".join(logs[-1]) if logs else "none"
                return ValueError(
                    f"objective must be in the logs of an epoch, got {objective.name!r}. The logs "
                    f"have {names}."
                )
        return None

    def trial_weights(self) -> TrialWeights:
        """Passes the weights of trials with one execution to ``on_member_result``.

        With several executions the search calls it itself.
        """
        return _Weights(None if self._tuner.executions_per_trial > 1 else self.on_member_result)

    def _complete(self, trial: Trial, found: _Results, program: str | None) -> None:
        objective = self._oracle.objective
        executions = list(zip(*found.epochs, strict=True))
        best = [best_epoch(logs, objective) for logs in executions]
        ends = [logs[at] for logs, at in zip(executions, best, strict=True)]
        metrics = average_metrics_dicts(ends)
        values = [objective.get_value(logs) for logs in ends]
        top = min(values) if objective.direction == "min" else max(values)
        self._tuner._callback_files.note_best(trial.trial_id, values.index(top))
        if found.best is not None:
            self._save(trial, found.best[1], program)
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
            # Without the optimizer's state: it is that of another trial, and KerasTuner does not
            # read it.
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


def _went_well(error: BaseException, epochs: Sequence[Any], objective: Objective) -> bool:
    """Whether a trial had a score before its loss became NaN: KerasTuner completes such a trial."""
    if not isinstance(error, FloatingPointError) or not epochs:
        return False
    values = [objective.get_value(logs) for logs in epochs[0]]
    return all(value == value for value in values)  # none is NaN


class _Weights(TrialWeights):
    """Passes weights to a function, which keeps them until the trial ends."""

    def __init__(self, take: Callable[[int, float, Callable[[], Any]], None] | None) -> None:
        self._take = take

    def offer(self, number: int, epoch: int, value: float, fetch: Callable[[], Any]) -> None:
        """Passes on the weights of a trial at its best epoch so far."""
        if self._take is not None:
            self._take(number, value, fetch)

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Does nothing: ``OracleSearcher`` saves the weights of a trial in the project."""

    complete = forget = renumber = weights = save = _nothing
