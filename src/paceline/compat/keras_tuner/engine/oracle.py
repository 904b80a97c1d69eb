"""Oracles: objects that choose the configurations to try, and keep the results."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import os
import random
import shutil
import threading
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from paceline.compat.keras_tuner.engine.display import Display
from paceline.compat.keras_tuner.engine.hyperparameters import (
    HyperParameters,
    as_ours,
)
from paceline.compat.keras_tuner.engine.metrics_tracking import MetricsTracker
from paceline.compat.keras_tuner.engine.objective import Objective, create_objective
from paceline.compat.keras_tuner.engine.stateful import Stateful
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.errors import ProjectError
from paceline.compat.keras_tuner.utils import load_json, save_json, say
from paceline.search_space import HyperParameter

__all__ = ["Objective", "Oracle", "synchronized"]


def synchronized(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of an oracle, so that calls of one oracle run one after another.

    For ``end_trial`` it also accepts the old arguments ``(trial_id, status)``.
    """

    @functools.wraps(func)
    def wrapped(self: Oracle, *args: Any, **kwargs: Any) -> Any:
        if func.__name__ == "end_trial":
            args, kwargs = _as_trial(self, *args, **kwargs)
        with vars(self).setdefault("_lock", threading.RLock()):
            return func(self, *args, **kwargs)

    return wrapped


def _as_trial(
    oracle: Oracle,
    trial: Any = None,
    status: str = TrialStatus.COMPLETED,
    *,
    trial_id: str | None = None,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    named = trial if isinstance(trial, str) else trial_id
    if named is None:
        return (trial,), {}
    return (Trial(oracle.trials[named].hyperparameters, named, status),), {}


class Oracle(Stateful):
    """An oracle: chooses the configurations to try. A subclass defines ``populate_space``.

    Args:
        objective: Name of a metric, an ``Objective``, or a list of these; None if ``run_trial`` or
            ``fit`` returns the one number to minimise.
        max_trials: Maximum number of trials; None: until the space is exhausted.
        hyperparameters: Declarations that replace those of the same names in ``build``.
        allow_new_entries: Whether ``build`` may declare other hyperparameters.
        tune_new_entries: Whether those other hyperparameters are searched; else they keep their
            defaults.
        seed: The random seed.
        max_retries_per_trial: How often a failed trial is tried again.
        max_consecutive_failed_trials: Number of failed trials in a row that ends the search.

    Attributes:
        trials: Trial id -> trial.
        ongoing_trials: Tuner id -> the trial that this tuner trains.
        hyperparameters: The known part of the space.
    """

    #: Fields of a subclass that its state holds under their names, without a leading "_".
    _own_state: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        objective: Any = None,
        max_trials: int | None = None,
        hyperparameters: Any = None,
        allow_new_entries: bool = True,
        tune_new_entries: bool = True,
        seed: int | None = None,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
    ) -> None:
        # A tuner sets the folder; None until then.
        self.directory: Any = None
        self.project_name: Any = None
        self.objective = create_objective(objective)
        self.max_trials = max_trials
        if hyperparameters is None:
            for name, given in (
                ("tune_new_entries", tune_new_entries),
                ("allow_new_entries", allow_new_entries),
            ):
                if not given:
                    raise ValueError(
                        f"If you set `{name}=False`, you must specify the search space via the "
                        "`hyperparameters` argument."
                    )
            self.hyperparameters = HyperParameters()
        else:
            self.hyperparameters = as_ours(hyperparameters)
        self.allow_new_entries, self.tune_new_entries = allow_new_entries, tune_new_entries
        self.trials: dict[str, Trial] = {}
        self.ongoing_trials: dict[str, Trial] = {}
        self.start_order: list[str] = []
        self.end_order: list[str] = []
        self._run_times: dict[str, int] = defaultdict(int)
        self._retry_queue: list[str] = []
        self.tuner_ids: set[str] = set()
        self.seed = seed or random.randint(1, 10000)
        self._seed_state = self.seed
        self._tried_so_far: set[str] = set()
        self._id_to_hash: dict[str, str | None] = {}
        self._max_collisions = 20
        self.multi_worker, self.should_report = False, True
        self.max_retries_per_trial = max_retries_per_trial
        self.max_consecutive_failed_trials = max_consecutive_failed_trials
        self._display = Display(self)

    # -- what a subclass defines -------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock())

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Chooses the values of a new trial; a subclass must define it.

        Args:
            trial_id: Id of the trial.

        Returns:
            ``{"status": ..., "values": ...}``. The status is "RUNNING" with values (name -> value);
            "IDLE" to wait for running trials; or "STOPPED" if nothing is left to try.
        """
        raise TypeError(
            f"{type(self).__name__} has no `populate_space(trial_id)`; override it to return "
            '{"status": "RUNNING", "values": {...}}.'
        )

    def score_trial(self, trial: Trial) -> None:
        """Sets the score of a complete trial: the best value of the objective."""
        trial.score = trial.metrics.get_best_value(self.objective.name)
        trial.best_step = trial.metrics.get_best_step(self.objective.name)

    @property
    def max_parallel(self) -> int | None:
        """How many trials may run at once; None: any number.

        An oracle that learns from results sets a limit, because it cannot learn from running trials
        yet.
        """
        return max(4, (self.max_trials or 0) // 8)

    # -- the life of a trial -----------------------------------------------------------------------

    @synchronized
    def create_trial(self, tuner_id: str) -> Trial:
        """Returns the trial to run next, or an empty one with the status IDLE or STOPPED.

        Args:
            tuner_id: Id of the tuner that asks. It gets the same trial until the trial has ended.
        """
        if tuner_id in self.ongoing_trials:
            return self.ongoing_trials[tuner_id]
        self.tuner_ids.add(tuner_id)
        if self._retry_queue:
            trial = self.trials[self._retry_queue.pop()]
            trial.status, trial.message = TrialStatus.RUNNING, None
            trial.metrics, trial.score = MetricsTracker(), None  # those of a run that did not end
            self._start(trial, tuner_id)
            return trial
        trial_id = str(len(self.trials)).zfill(len(str(self.max_trials)))
        values: Mapping[str, Any] | None = None
        if self.max_trials and len(self.trials) >= self.max_trials:
            status = TrialStatus.STOPPED
        else:
            response = self.populate_space(trial_id)
            status, values = response["status"], response.get("values")
        values = values or {}
        if status == TrialStatus.RUNNING:
            values = self._with_missing(values, trial_id)
        trial = Trial(self._space_with(values), trial_id, status)
        if status == TrialStatus.RUNNING:
            self._record_values(trial)
            self.trials[trial_id] = trial
            self.start_order.append(trial_id)
            self._save_trial(trial)
            self._start(trial, tuner_id)
        elif status == TrialStatus.STOPPED:
            self.tuner_ids.discard(tuner_id)
        return trial

    def _start(self, trial: Trial, tuner_id: str) -> None:
        self.ongoing_trials[tuner_id] = trial
        self.save()
        self._display.on_trial_begin(trial)

    @synchronized
    def update_trial(self, trial_id: str, metrics: Mapping[str, Any], step: int = 0) -> Trial:
        """Notes the metrics of a trial.

        Args:
            trial_id: Id of the trial.
            metrics: Name -> value, with the objective among them.
            step: The epoch of these values.

        Raises:
            ValueError: The objective is missing.
        """
        trial = self.trials[trial_id]
        wanted = getattr(self.objective, "name_to_direction", None) or [self.objective.name]
        missing = [name for name in wanted if name not in metrics]
        if missing:
            raise ValueError(
                f"Objective value missing in metrics reported to the Oracle, expected: {missing}, "
                f"found: {list(metrics)}"
            )
        for name, value in metrics.items():
            if not trial.metrics.exists(name):
                known = self.objective.name == name
                trial.metrics.register(name, self.objective.direction if known else None)
            trial.metrics.update(name, value, step=step)
        self._save_trial(trial)
        return trial

    @synchronized
    def end_trial(self, trial: Trial) -> None:
        """Ends a trial with the status COMPLETED, INVALID or FAILED.

        An INVALID trial is tried again if ``max_retries_per_trial`` allows that.

        Raises:
            RuntimeError: Too many trials have failed in a row.
        """
        ours = self.trials[trial.trial_id]
        ours.hyperparameters = trial.hyperparameters
        ours.status, ours.message = trial.status, trial.message
        trial = ours
        self.update_space(trial.hyperparameters)
        if trial.status == TrialStatus.COMPLETED:
            self.score_trial(trial)
            if trial.score is None or math.isnan(trial.score):
                trial.status = TrialStatus.INVALID
        self._record_values(trial)
        self._run_times[trial.trial_id] += 1
        again = self._retry(trial)
        if not again:
            self.end_order.append(trial.trial_id)
        self._save_trial(trial)
        for tuner_id, ongoing in list(self.ongoing_trials.items()):
            if ongoing.trial_id == trial.trial_id:
                del self.ongoing_trials[tuner_id]
        self.save()
        self._display.on_trial_end(trial)
        if not again:
            self._check_consecutive_failures()

    def _retry(self, trial: Trial) -> bool:
        """Queues an INVALID trial to be tried again, or marks it as FAILED; True if queued."""
        if trial.status != TrialStatus.INVALID:
            return False
        times = self._run_times[trial.trial_id]
        left = self.max_retries_per_trial + 1 - times
        if left <= 0:
            trial.status = TrialStatus.FAILED
            return False
        say(f"Trial {trial.trial_id} failed {times} times. {left} retries left.")
        self._retry_queue.append(trial.trial_id)
        return True

    def _check_consecutive_failures(self) -> None:
        # In the order in which trials began: builds that fail end before trials that train. A
        # running trial may end well, so failures on both sides of it are not in a row yet.
        in_a_row = 0
        for trial in (self.trials[trial_id] for trial_id in self.start_order):
            in_a_row = in_a_row + 1 if trial.status == TrialStatus.FAILED else 0
            if in_a_row == self.max_consecutive_failed_trials:
                raise RuntimeError(
                    "Number of consecutive failures exceeded the limit of "
                    f"{self.max_consecutive_failed_trials}.\n{trial.message or ''}"
                )

    def built(self, trial: Trial) -> None:
        """Learns which hyperparameters the ``build`` of a trial has declared, while it trains."""
        self.update_space(trial.hyperparameters)
        self._record_values(trial)

    # -- the space ---------------------------------------------------------------------------------

    def get_space(self) -> HyperParameters:
        """Returns a copy of the space."""
        return self.hyperparameters.copy()

    def update_space(self, hyperparameters: HyperParameters) -> None:
        """Adds new declarations to the space.

        Raises:
            RuntimeError: There are new ones, and ``allow_new_entries`` is False.
        """
        known = {(hp.name, _conditions(hp)) for hp in self.hyperparameters.space}
        new = [hp for hp in hyperparameters.space if (hp.name, _conditions(hp)) not in known]
        if new and not self.allow_new_entries:
            raise RuntimeError(
                f"`allow_new_entries` is `False`, but found new entries "
                f"{[hp.name for hp in new]}; declare them in `hyperparameters`, or leave it out."
            )
        if new and self.tune_new_entries:
            self.hyperparameters.merge(as_ours(hyperparameters).space if _foreign(new) else new)

    def _space_with(self, values: Mapping[str, Any]) -> HyperParameters:
        """The space with exactly these values."""
        config = {**self.hyperparameters.get_config(), "values": dict(values)}
        return HyperParameters.from_config(config)

    def _with_missing(self, values: Mapping[str, Any], trial_id: str) -> dict[str, Any]:
        """Values, with random ones in place of those that a user's oracle leaves out."""
        found = dict(values)
        while True:
            hps = self._space_with(found)
            missing = (hp for hp in hps.space if hps.is_active(hp) and hp.name not in found)
            hp = next(missing, None)
            if hp is None:
                return found
            seed = zlib.crc32(f"{self.seed} {trial_id} {hp.name}".encode())
            found[hp.name] = hp.random_sample(seed)

    def _random_values(self) -> dict[str, Any] | None:
        """Values drawn at random that have not been tried; None if none are found."""
        for _ in range(self._max_collisions + 1):
            values = self._chosen(self._draw)
            if not self._duplicate(values):
                return values
        return None

    def _draw(self, hp: HyperParameter) -> Any:
        self._seed_state += 1
        return hp.random_sample(self._seed_state - 1)

    def _chosen(self, choose: Callable[[HyperParameter], Any]) -> dict[str, Any]:
        """The values that a function chooses for all active hyperparameters, in order."""
        values: dict[str, Any] = {}
        for hp in self.hyperparameters.space:
            if all(condition.is_active(values) for condition in hp.conditions):
                values[hp.name] = choose(hp)
        return values

    def _duplicate(self, values: Mapping[str, Any]) -> bool:
        return self._compute_values_hash(values) in self._tried_so_far

    def _compute_values_hash(self, values: Mapping[str, Any]) -> str:
        text = "".join(f"{name}={values[name]}" for name in sorted(values))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _record_values(self, trial: Trial) -> None:
        """Counts the values of a trial as tried, in place of those it had when it began."""
        trial.hyperparameters.ensure_active_values()
        new = self._compute_values_hash(trial.hyperparameters.values)
        old = self._id_to_hash.get(trial.trial_id)
        if old is not None and old != new:
            self._tried_so_far.discard(old)
        self._tried_so_far.add(new)
        self._id_to_hash[trial.trial_id] = new

    # -- results -----------------------------------------------------------------------------------

    def get_trial(self, trial_id: str) -> Trial:
        """Returns the trial with an id; KeyError if there is none."""
        if trial_id not in self.trials:
            known = ", ".join(self.trials) or "none yet"
            raise KeyError(f"trial_id must be the id of a trial ({known}), got {trial_id!r}.")
        return self.trials[trial_id]

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """Returns the best trials, the best first; if too few are complete, others after them."""
        highest_first = self.objective.direction == "max"
        complete = sorted(self._complete(), key=lambda t: t.score, reverse=highest_first)
        others = [t for t in self.trials.values() if t.status != TrialStatus.COMPLETED]
        return [*complete, *others][:num_trials]

    def _complete(self) -> list[Trial]:
        return [t for t in self.trials.values() if t.status == TrialStatus.COMPLETED]

    def remaining_trials(self) -> int | None:
        """Returns the number of trials that have not begun yet; None without ``max_trials``."""
        return self.max_trials - len(self.trials) if self.max_trials else None

    def tell_epoch(self, trial: Trial, epoch: int, epochs: int, logs: Mapping[str, Any]) -> None:
        """Prints that a trial has ended an epoch, unless ``verbose`` is 0."""
        self._display.on_epoch_end(trial, epoch, epochs, logs)

    @property
    def verbose(self) -> Any:
        """Whether the search prints which trials begin and end: 0 or 1."""
        return self._display.verbose

    @verbose.setter
    def verbose(self, value: Any) -> None:
        self._display.verbose = 1 if value == "auto" else value

    # -- files -------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """Returns the state as JSON values, without the trials, which have files of their own."""
        return {
            "ongoing_trials": {k: trial.trial_id for k, trial in self.ongoing_trials.items()},
            "hyperparameters": self.hyperparameters.get_config(),
            "start_order": self.start_order,
            "end_order": self.end_order,
            "run_times": dict(self._run_times),
            "retry_queue": self._retry_queue,
            "seed": self.seed,
            "seed_state": self._seed_state,
            "tried_so_far": sorted(self._tried_so_far),
            "id_to_hash": self._id_to_hash,
            "display": self._display.get_state(),
            **{name.lstrip("_"): getattr(self, name) for name in self._own_state},
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the state of ``get_state``; load the trials first.

        States of KerasTuner before 1.1 hold less; the trials say the rest.
        """
        self.ongoing_trials = {k: self.trials[name] for k, name in state["ongoing_trials"].items()}
        self.hyperparameters = HyperParameters.from_config(state["hyperparameters"])
        over = (TrialStatus.COMPLETED, TrialStatus.FAILED, TrialStatus.INVALID)
        ended = [trial_id for trial_id, trial in self.trials.items() if trial.status in over]
        self.start_order = list(state.get("start_order", self.trials))
        self.end_order = list(state.get("end_order", ended))
        self._run_times = defaultdict(int, state.get("run_times", ()))
        self._retry_queue = list(state.get("retry_queue", ()))
        self.seed, self._seed_state = state["seed"], state["seed_state"]
        self._tried_so_far = set(state["tried_so_far"])
        self._id_to_hash = dict(state.get("id_to_hash", ()))
        if "display" in state:
            self._display.set_state(state["display"])
        for name in self._own_state:
            setattr(self, name, state[name.lstrip("_")])

    def save(self) -> None:
        """Writes ``oracle.json``."""
        save_json(self._get_oracle_fname(), self.get_state())

    def reload(self) -> None:
        """Reads the project; trials that were running are tried again.

        Raises:
            ProjectError: The project cannot be read.
        """
        self.trials.update((trial.trial_id, trial) for trial in self._saved_trials())
        path = self._get_oracle_fname()
        try:
            self.set_state(load_json(path))
        except (KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(path, error) from error
        self.take_back()

    def take_back(self) -> None:
        """Queues the running trials to be tried again, except those that have ended."""
        known = {*self.end_order, *self._retry_queue}
        running = [trial.trial_id for trial in self.ongoing_trials.values()]
        self._retry_queue += [trial_id for trial_id in running if trial_id not in known]
        self.ongoing_trials = {}

    def _set_project_dir(self, directory: Any, project_name: Any) -> None:
        self.directory, self.project_name = directory, project_name

    @property
    def _project_dir(self) -> str:
        if self.directory is None:
            raise ProjectError(
                f"this {type(self).__name__} has no folder yet. Pass it to a Tuner first."
            )
        folder = os.path.join(str(self.directory), str(self.project_name))
        os.makedirs(folder, exist_ok=True)
        return folder

    def _get_oracle_fname(self) -> str:
        return os.path.join(self._project_dir, "oracle.json")

    def _get_trial_dir(self, trial_id: str) -> str:
        folder = os.path.join(self._project_dir, f"trial_{trial_id}")
        os.makedirs(folder, exist_ok=True)
        return folder

    def _save_trial(self, trial: Trial) -> None:
        trial.save(os.path.join(self._get_trial_dir(trial.trial_id), "trial.json"))
        if trial.status == TrialStatus.COMPLETED:
            shutil.rmtree(self._aside, ignore_errors=True)

    @property
    def _aside(self) -> Path:
        """The folder of a project that is overwritten, until the new one has a complete trial."""
        folder = Path(self._project_dir)
        return folder.with_name(f".{folder.name}.before")

    def _put_aside(self) -> None:
        """Keeps the existing project until the new one has a complete trial."""
        if self._aside.exists():  # the project in the folder is a new one without such a trial
            shutil.rmtree(self._project_dir)
        elif any(Path(self._project_dir).iterdir()):
            Path(self._project_dir).rename(self._aside)

    def _bring_back(self) -> None:
        """Restores a project that was overwritten by one without a complete trial."""
        if not self._aside.exists():
            return
        try:
            done = any(trial.status == TrialStatus.COMPLETED for trial in self._saved_trials())
        except ProjectError:
            return  # the new project cannot be read, so both stay
        if done:
            shutil.rmtree(self._aside, ignore_errors=True)
        else:
            shutil.rmtree(self._project_dir)
            self._aside.rename(Path(self._project_dir))

    def _saved_trials(self) -> Iterator[Trial]:
        """The trials in the folder, sorted by their ids; ProjectError for a file without one."""
        for path in sorted(Path(self._project_dir).glob("trial_*/trial.json")):
            try:
                yield Trial.load(path)
            except (KeyError, TypeError) as error:
                raise self._unreadable(path, error) from error

    def _unreadable(self, path: Any, error: Exception) -> ProjectError:
        return ProjectError(
            f"{path} is not a file of a {type(self).__name__} ({type(error).__name__}: {error}). "
            "If you did not mean to continue an existing project, change `project_name` or pass "
            "`overwrite=True`."
        )

    # -- old names ---------------------------------------------------------------------------------

    def _populate_space(self, trial_id: str) -> dict[str, Any]:
        _warn_of_old_name("populate_space")
        return self.populate_space(trial_id)

    def _score_trial(self, trial: Trial) -> None:
        _warn_of_old_name("score_trial")
        self.score_trial(trial)


def _warn_of_old_name(name: str) -> None:
    text = f"`_{name}` is deprecated, please use `{name}`."
    warnings.warn(text, DeprecationWarning, stacklevel=3)


def running(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the answer of ``populate_space`` for values; None: "STOPPED"."""
    status = TrialStatus.STOPPED if values is None else TrialStatus.RUNNING
    return {"status": status, "values": values}


def waiting() -> dict[str, Any]:
    """Returns the answer "IDLE" of ``populate_space``."""
    return {"status": TrialStatus.IDLE, "values": None}


def given_to(function: Callable[..., Any], names: Mapping[str, Any]) -> dict[str, Any]:
    """Returns those of the ``locals()`` of an ``__init__`` that are arguments of another function.

    Editors show only signatures that are written out. So tuners and oracles write out their own,
    and pass arguments on with this function.
    """
    return {name: names[name] for name in inspect.signature(function).parameters if name in names}


def _conditions(hp: Any) -> tuple[Any, ...]:
    return tuple((condition.name, tuple(condition.values)) for condition in hp.conditions)


def _foreign(hps: list[Any]) -> bool:
    return not all(isinstance(hp, HyperParameter) for hp in hps)
