"""The part of a tuner that does not depend on Keras: trials, hooks, files, summaries."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Any

from paceline.compat.hints import add_hint
from paceline.compat.keras_tuner.distribute import check_not_asked_for
from paceline.compat.keras_tuner.engine.hypermodel import get_hypermodel
from paceline.compat.keras_tuner.engine.hyperparameters import config_of
from paceline.compat.keras_tuner.engine.oracle import Oracle
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.engine.tuner_utils import (
    convert_to_metrics_dict,
    get_best_step,
    validate_trial_results,
)
from paceline.compat.keras_tuner.errors import FailedTrialError, FatalError, is_a
from paceline.compat.keras_tuner.utils import load_json, save_json, say
from paceline.search_space import HyperParameters


class BaseTuner:
    """A tuner that runs the trials of an oracle; a subclass defines ``run_trial`` for one trial.

    The arguments are those of ``Tuner`` with the same names.

    Raises:
        ValueError: ``oracle`` is not an ``Oracle``, or an argument is unknown.
        ProjectError: The project cannot be read.
        FatalRuntimeError: The environment asks for parallel tuning over several machines.
    """

    def __init__(
        self,
        oracle: Oracle,
        hypermodel: Any = None,
        directory: Any = None,
        project_name: str | None = None,
        overwrite: bool = False,
        tuner_id: str | None = None,
        logger: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(oracle, Oracle):
            raise ValueError(
                "Expected `oracle` argument to be an instance of `Oracle` of "
                f"paceline.compat.keras_tuner. Received: oracle={oracle!r}"
            )
        if kwargs:
            raise ValueError(
                f"Unrecognized arguments {list(kwargs)} for `{type(self).__name__}.__init__()`."
            )
        if logger is not None:
            warnings.warn(
                "The `logger` argument is no longer supported and will be ignored.",
                DeprecationWarning,
                stacklevel=2,
            )
        check_not_asked_for()
        self.logger = logger
        self.oracle = oracle
        self.hypermodel = get_hypermodel(hypermodel)
        self.directory = directory or "."
        self.project_name = project_name or "untitled_project"
        self.tuner_id = tuner_id or os.environ.get("KERASTUNER_TUNER_ID", "tuner0")
        self.oracle._set_project_dir(self.directory, self.project_name)
        if overwrite:
            self.oracle._put_aside()
        else:
            self.oracle._bring_back()
        if self._is_project():
            say(f"Reloading Tuner from {self._get_tuner_fname()}")
            self.reload()
        else:
            self._populate_initial_space()

    # -- the space ---------------------------------------------------------------------------------

    def _populate_initial_space(self) -> None:
        """Learns the space by building models, until each conditional scope was active once."""
        if self.hypermodel is None:
            return
        hp = self.oracle.get_space()
        declare = getattr(self.hypermodel, "declare_hyperparameters", None)
        if declare is not None:
            declare(hp)
            self.oracle.update_space(hp)
        once: set[Any] = set()  # the scopes that were entered while their conditions held
        never: list[Any] = []  # other scopes, in the order in which builds have entered them
        hp = self.oracle.get_space()
        while True:
            self._look_at_build(hp)
            self.oracle.update_space(hp)
            once.update(hp.active_scopes)
            never = [each for each in [*never, *hp.inactive_scopes] if each not in once]
            if not never:
                return
            once.add(never[0])  # also if it cannot be made to hold: the loop must end
            hp = self.oracle.get_space()
            for condition in never[0]:
                hp.values[condition.name] = condition.values[0]
            hp.ensure_active_values()

    def _look_at_build(self, hp: HyperParameters) -> None:
        try:
            self.hypermodel.build(hp)
        except Exception as error:
            add_hint(error)
            raise

    # -- searching ---------------------------------------------------------------------------------

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Runs trials until the oracle stops.

        Args:
            *fit_args: Positional arguments of ``run_trial`` after the trial.
            **fit_kwargs: Keyword arguments of ``run_trial``.

        Raises:
            FatalError: A trial raised it, or returned something without a score.
            RuntimeError: Too many trials failed in a row.
        """
        if "verbose" in fit_kwargs:
            self.oracle.verbose = fit_kwargs["verbose"]
        self.oracle.take_back()  # trials that were running when a search was interrupted
        self.on_search_begin()
        self._search(*fit_args, **fit_kwargs)
        self.on_search_end()

    def _search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Runs one trial after another."""
        while True:
            self.pre_create_trial()
            trial = self.oracle.create_trial(self.tuner_id)
            if trial.status == TrialStatus.STOPPED:
                return
            if trial.status == TrialStatus.IDLE:
                continue
            self.on_trial_begin(trial)
            self._try_run_and_update_trial(trial, *fit_args, **fit_kwargs)
            self.on_trial_end(trial)

    def _try_run_and_update_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> None:
        try:
            self._run_and_update_trial(trial, *fit_args, **fit_kwargs)
        except Exception as error:
            self._note_failure(trial, error)
        else:
            trial.status = TrialStatus.COMPLETED

    def _note_failure(self, trial: Trial, error: BaseException) -> None:
        """Marks a trial as failed, and prints why; raises a fatal error."""
        if is_a(error, FatalError) or not isinstance(error, Exception):
            raise error
        failed = is_a(error, FailedTrialError)
        trial.status = TrialStatus.FAILED if failed else TrialStatus.INVALID
        add_hint(error)
        trial.message = "".join(traceback.format_exception(error))
        # At any verbosity, as in KerasTuner: the status of the trial does not say why it failed.
        sys.stderr.write(f"Trial {trial.trial_id} failed:\n{trial.message}")

    def _run_and_update_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> None:
        self._update_trial(trial, self.run_trial(trial, *fit_args, **fit_kwargs))

    def _update_trial(self, trial: Trial, results: Any) -> None:
        """Reports the return value of ``run_trial`` to the oracle."""
        objective = self.oracle.objective
        if self.oracle.get_trial(trial.trial_id).metrics.exists(objective.name):
            warnings.warn(
                "Calling `self.oracle.update_trial(trial_id, metrics)` in `run_trial()` is "
                "deprecated. Please remove the call, and return the metrics instead.",
                DeprecationWarning,
                stacklevel=2,
            )
            return
        validate_trial_results(results, objective, f"{type(self).__name__}.run_trial()")
        metrics = convert_to_metrics_dict(results, objective)
        step = get_best_step(results, objective)
        self.oracle.update_trial(trial.trial_id, metrics, step=step)

    def run_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> Any:
        """Evaluates a trial; a subclass must define it.

        Args:
            trial: The trial.
            *fit_args: Positional arguments of ``search``.
            **fit_kwargs: Keyword arguments of ``search``.

        Returns:
            A number, a dict of metrics, a ``History``, or a list of one of these.
        """
        raise TypeError(f"{type(self).__name__} has no `run_trial(trial, ...)`; override it.")

    # -- hooks -------------------------------------------------------------------------------------

    def pre_create_trial(self) -> None:
        """Called before the oracle is asked for a trial."""

    def on_trial_begin(self, trial: Trial) -> None:
        """Called when a trial begins."""

    def on_trial_end(self, trial: Trial) -> None:
        """Called when a trial has ended; reports it to the oracle."""
        self.oracle.end_trial(trial)
        self.save()

    def on_search_begin(self) -> None:
        """Called at the beginning of ``search``."""

    def on_search_end(self) -> None:
        """Called at the end of ``search``."""

    # -- models ------------------------------------------------------------------------------------

    def save_model(self, trial_id: str, model: Any, step: int = 0) -> None:
        """Saves the model of a trial; does nothing unless a subclass defines it."""

    def load_model(self, trial: Trial) -> Any:
        """Returns the model of a trial; a subclass must define it."""
        raise TypeError(f"{type(self).__name__} has no `load_model(trial)`; override it.")

    def get_best_models(self, num_models: int = 1) -> list[Any]:
        """Returns the models of the best trials, the best first."""
        return [self.load_model(trial) for trial in self.oracle.get_best_trials(num_models)]

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[HyperParameters]:
        """Returns the hyperparameters of the best trials, the best first.

        ``hypermodel.build`` takes each of them.
        """
        return [trial.hyperparameters for trial in self.oracle.get_best_trials(num_trials)]

    # -- summaries ---------------------------------------------------------------------------------

    def search_space_summary(self, extended: bool = False) -> None:
        """Prints the search space."""
        space = self.oracle.get_space().space
        say("Search space summary")
        say(f"Default search space size: {len(space)}")
        for hp in space:
            config = config_of(hp)
            say(f"{config.pop('name')} ({hp.kind})")
            say(config)

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints the best trials."""
        say("Results summary")
        say(f"Results in {self.project_dir}")
        say(f"Showing {num_trials} best trials")
        say(self.oracle.objective)
        for trial in self.oracle.get_best_trials(num_trials):
            say()
            trial.summary()

    @property
    def remaining_trials(self) -> int | None:
        """Number of trials that have not begun yet; None without ``max_trials``."""
        return self.oracle.remaining_trials()

    # -- files -------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Returns the state of a subclass as JSON values."""
        return {}

    def set_state(self, state: Any) -> None:
        """Restores what ``get_state`` returned."""

    def save(self) -> None:
        """Writes the state of the oracle and of this tuner."""
        self.oracle.save()
        save_json(self._get_tuner_fname(), self.get_state())

    def reload(self) -> None:
        """Reads the project.

        Raises:
            ProjectError: The project cannot be read.
        """
        self.oracle.reload()
        if os.path.exists(self._get_tuner_fname()):
            self.set_state(load_json(self._get_tuner_fname()))

    @property
    def project_dir(self) -> str:
        """The folder of the project."""
        folder = os.path.join(str(self.directory), self.project_name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def get_trial_dir(self, trial_id: str) -> str:
        """Returns the folder of a trial."""
        folder = os.path.join(self.project_dir, f"trial_{trial_id}")
        os.makedirs(folder, exist_ok=True)
        return folder

    def _is_project(self) -> bool:
        return any(
            os.path.exists(path)
            for path in (self._get_tuner_fname(), os.path.join(self.project_dir, "oracle.json"))
        )

    def _get_tuner_fname(self) -> str:
        return os.path.join(self.project_dir, f"{self.tuner_id}.json")
