"""Oracles: who decides what is tried, and remembers what came of it."""

from __future__ import annotations

import functools
import hashlib
import math
import random
import threading
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from paceline.compat.keras_tuner.engine.display import Display
from paceline.compat.keras_tuner.engine.hyperparameters import as_ours, draw
from paceline.compat.keras_tuner.engine.metrics_tracking import MetricsTracker
from paceline.compat.keras_tuner.engine.objective import MultiObjective, Objective, create_objective
from paceline.compat.keras_tuner.engine.project_folder import ProjectFolder
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.files import read_json, say, write_json
from paceline.search_space import HyperParameter, HyperParameters

__all__ = ["Objective", "Oracle", "synchronized"]


def synchronized(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method of an oracle: one call of one oracle at a time.

    It knows the old ``end_trial(trial_id, status)`` as well.
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


class Oracle(ProjectFolder):
    """Decides what is tried; a subclass says how in ``populate_space``.

    Args:
        objective: A metric's name, an ``Objective``, or a list of them; None where ``run_trial`` or
            ``fit`` returns the one number to minimise.
        max_trials: Trials at most; None: until the space is exhausted.
        hyperparameters: Declarations that override those of the same name in ``build``.
        allow_new_entries: Whether ``build`` may declare others.
        tune_new_entries: Whether those are searched; else they keep their defaults.
        seed: Of what is drawn at random.
        max_retries_per_trial: How often a trial that crashed is tried again.
        max_consecutive_failed_trials: So many failed trials in a row end the search.

    Attributes:
        trials: Trial id -> trial.
        ongoing_trials: Who trains -> trial.
        hyperparameters: The space as far as it is known.
    """

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
        super().__init__()
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
            self.hyperparameters.trusting = True
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

    # -- what a subclass decides -------------------------------------------------------------------

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Chooses the values of a new trial; a subclass must say how.

        Args:
            trial_id: The trial's id.

        Returns:
            ``{"status": ..., "values": ...}``: "RUNNING" with name -> value; "IDLE" to wait for
            trials under way; "STOPPED" when there is nothing left to try.
        """
        raise TypeError(
            f"{type(self).__name__} has no `populate_space(trial_id)`; override it to return "
            '{"status": "RUNNING", "values": {...}}.'
        )

    def score_trial(self, trial: Trial) -> None:
        """Gives a complete trial its score: the best value of the objective."""
        trial.score = trial.metrics.get_best_value(self.objective.name)
        trial.best_step = trial.metrics.get_best_step(self.objective.name)

    @property
    def max_parallel(self) -> int | None:
        """How many trials may be under way at once; None where it does not matter.

        An oracle that goes by results knows little when many are asked for at once.
        """
        return max(4, (self.max_trials or 0) // 8)

    # -- the life of a trial -----------------------------------------------------------------------

    @synchronized
    def create_trial(self, tuner_id: str) -> Trial:
        """The trial to run next, or an empty one with the status IDLE or STOPPED.

        Args:
            tuner_id: Who asks; the same one gets the same trial until it has ended.
        """
        if tuner_id in self.ongoing_trials:
            return self.ongoing_trials[tuner_id]
        self.tuner_ids.add(tuner_id)
        if self._retry_queue:
            trial = self.trials[self._retry_queue.pop()]
            trial.status, trial.message = TrialStatus.RUNNING, None
            trial.metrics, trial.score = MetricsTracker(), None  # of a run that did not end
            self._start(trial, tuner_id)
            return trial
        trial_id = str(len(self.trials)).zfill(len(str(self.max_trials)))
        values: Mapping[str, Any] | None = None
        if self.max_trials and len(self.trials) >= self.max_trials:
            status = TrialStatus.STOPPED
        else:
            response = self.populate_space(trial_id)
            status, values = response["status"], response.get("values")
        trial = Trial(self._space_with(values or {}), trial_id, status)
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
        """Notes a trial's metrics.

        Args:
            trial_id: The trial's.
            metrics: Name -> value; the objective is among them.
            step: The epoch they are from.

        Raises:
            ValueError: The objective is not among them.
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
        """Ends a trial that is COMPLETED, INVALID (perhaps tried again) or FAILED.

        Raises:
            RuntimeError: Too many have failed in a row.
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
        """Whether a trial is tried again; one that is not, and is INVALID, has FAILED."""
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
        in_a_row = 0
        for trial in (self.trials[trial_id] for trial_id in self.end_order):
            in_a_row = in_a_row + 1 if trial.status == TrialStatus.FAILED else 0
            if in_a_row == self.max_consecutive_failed_trials:
                raise RuntimeError(
                    "Number of consecutive failures exceeded the limit of "
                    f"{self.max_consecutive_failed_trials}.\n{trial.message or ''}"
                )

    def built(self, trial: Trial) -> None:
        """Learns what a trial's ``build`` has declared, while it trains."""
        self.update_space(trial.hyperparameters)
        self._record_values(trial)

    # -- the space ---------------------------------------------------------------------------------

    def get_space(self) -> HyperParameters:
        """A copy of the space."""
        return self.hyperparameters.copy()

    def update_space(self, hyperparameters: HyperParameters) -> None:
        """Takes over declarations that are new.

        Raises:
            RuntimeError: There are some, and ``allow_new_entries`` is False.
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
        """The space with these values, and no others."""
        config = {**self.hyperparameters.get_config(), "values": dict(values)}
        return HyperParameters.from_config(config, trusting=True)

    def _random_values(self) -> dict[str, Any] | None:
        """Values drawn at random that have not been tried; None where none are found."""
        for _ in range(self._max_collisions + 1):
            values: dict[str, Any] = {}
            for hp in self.hyperparameters.space:
                if all(condition.is_active(values) for condition in hp.conditions):
                    values[hp.name] = draw(hp, self._seed_state)
                    self._seed_state += 1
            if not self._duplicate(values):
                return values
        return None

    def _duplicate(self, values: Mapping[str, Any]) -> bool:
        return self._compute_values_hash(values) in self._tried_so_far

    def _compute_values_hash(self, values: Mapping[str, Any]) -> str:
        text = "".join(f"{name}={values[name]}" for name in sorted(values))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _record_values(self, trial: Trial) -> None:
        """Counts a trial's values as tried, and no more what they were when it began."""
        trial.hyperparameters.ensure_active_values()
        new = self._compute_values_hash(trial.hyperparameters.values)
        old = self._id_to_hash.get(trial.trial_id)
        if old is not None and old != new:
            self._tried_so_far.discard(old)
        self._tried_so_far.add(new)
        self._id_to_hash[trial.trial_id] = new

    # -- what came of it ---------------------------------------------------------------------------

    def get_trial(self, trial_id: str) -> Trial:
        """One trial.

        Raises:
            KeyError: There is none of this id.
        """
        if trial_id not in self.trials:
            known = ", ".join(self.trials) or "none"
            raise KeyError(f"there is no trial {trial_id!r}; there are: {known}")
        return self.trials[trial_id]

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """The best trials, the best first; where too few are complete, others after them."""
        complete = [t for t in self.trials.values() if t.status == TrialStatus.COMPLETED]
        complete.sort(key=lambda trial: trial.score, reverse=self.objective.direction == "max")
        others = [t for t in self.trials.values() if t.status != TrialStatus.COMPLETED]
        return [*complete, *others][:num_trials]

    def remaining_trials(self) -> int | None:
        """Trials not begun yet; None without ``max_trials``."""
        return self.max_trials - len(self.trials) if self.max_trials else None

    @property
    def verbose(self) -> Any:
        """Whether the search tells of its trials: 0 or 1."""
        return self._display.verbose

    @verbose.setter
    def verbose(self, value: Any) -> None:
        self._display.verbose = 1 if value == "auto" else value

    # -- files -------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """JSON values; trials have files of their own."""
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
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Becomes what ``get_state`` described; the trials are there already.

        States of releases before 1.1 hold less: what they leave out is told from the trials.
        """
        self.ongoing_trials = {k: self.trials[name] for k, name in state["ongoing_trials"].items()}
        self.hyperparameters = HyperParameters.from_config(state["hyperparameters"], trusting=True)
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

    def save(self) -> None:
        """Writes ``oracle.json``."""
        write_json(self._get_oracle_fname(), self.get_state())

    def reload(self) -> None:
        """Reads a project; its trials under way are tried again.

        Raises:
            ProjectError: It cannot be read.
        """
        self.trials.update((trial.trial_id, trial) for trial in self._saved_trials())
        path = self._get_oracle_fname()
        try:
            self.set_state(read_json(path))
        except (KeyError, TypeError, AttributeError) as error:
            raise self._unreadable(path, error) from error
        self.take_back()

    def take_back(self) -> None:
        """Has trials that were under way tried again; not one that had ended all but in name."""
        known = {*self.end_order, *self._retry_queue}
        under_way = [trial.trial_id for trial in self.ongoing_trials.values()]
        self._retry_queue += [trial_id for trial_id in under_way if trial_id not in known]
        self.ongoing_trials = {}

    # -- names of before ---------------------------------------------------------------------------

    def _populate_space(self, trial_id: str) -> dict[str, Any]:
        warnings.warn(
            "`_populate_space` is deprecated, please use `populate_space`.",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.populate_space(trial_id)

    def _score_trial(self, trial: Trial) -> None:
        warnings.warn(
            "`_score_trial` is deprecated, please use `score_trial`.",
            DeprecationWarning,
            stacklevel=2,
        )
        self.score_trial(trial)


def running(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """What ``populate_space`` returns for values, and for None, when there are none left."""
    status = TrialStatus.STOPPED if values is None else TrialStatus.RUNNING
    return {"status": status, "values": values}


def multiple(objective: Objective) -> bool:
    """Whether an objective is a sum of several."""
    return isinstance(objective, MultiObjective)


def _conditions(hp: Any) -> tuple[Any, ...]:
    return tuple((condition.name, tuple(condition.values)) for condition in hp.conditions)


def _foreign(hps: list[Any]) -> bool:
    return not all(isinstance(hp, HyperParameter) for hp in hps)
