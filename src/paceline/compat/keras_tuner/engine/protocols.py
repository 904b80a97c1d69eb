"""Protocols of an oracle and of a tuner, for modules that ``oracle.py`` and ``tuner.py`` import.

The display, the callbacks and the two kinds of search cannot import those two files, or imports
would run in a circle. ``Oracle`` and ``Tuner`` fulfil the protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from paceline.compat.keras_tuner.engine.callback_files import CallbackFiles
from paceline.compat.keras_tuner.engine.objective import Objective
from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.search_space import HyperParameters


class OracleTrials(Protocol):
    """The trials of an oracle, as the display tells of them.

    Attributes:
        objective: What the trials are ranked by.
        trials: All trials so far, by id.
    """

    objective: Objective
    trials: dict[str, Trial]

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """The best trials, the best first."""
        ...


class SearchOracle(OracleTrials, Protocol):
    """An oracle that a search asks for trials and tells what came of them.

    Attributes:
        ongoing_trials: The trials under way, by the id of the worker that trains each.
        seed: Decides the seeds of the trials.
    """

    ongoing_trials: dict[str, Trial]
    seed: int
    _retry_queue: list[str]

    @property
    def max_parallel(self) -> int | None:
        """How many trials may be under way at once; None: any number."""
        ...

    @property
    def verbose(self) -> Any:
        """0: nothing is shown."""
        ...

    def create_trial(self, tuner_id: str) -> Trial:
        """The next trial; its status says whether there is one."""
        ...

    def built(self, trial: Trial) -> None:
        """Learns what the build of a trial has declared."""
        ...

    def update_trial(self, trial_id: str, metrics: Mapping[str, Any], step: int = 0) -> Trial:
        """Notes the metrics of a trial."""
        ...

    def tell_epoch(self, trial: Trial, epoch: int, epochs: int, logs: Mapping[str, Any]) -> None:
        """Tells the user that a trial has ended an epoch."""
        ...

    def get_space(self) -> HyperParameters:
        """The space so far, without values."""
        ...

    def remaining_trials(self) -> int | None:
        """Trials to come, those to be tried again left out; None: no limit."""
        ...

    def take_back(self) -> None:
        """Queues the trials under way to be tried again."""
        ...


class EpochHooks(Protocol):
    """The hooks of a tuner that its callbacks call."""

    def on_epoch_begin(self, trial: Trial, model: Any, epoch: int, logs: Any = None) -> None:
        """An epoch begins."""
        ...

    def on_epoch_end(self, trial: Trial, model: Any, epoch: int, logs: Any = None) -> None:
        """An epoch has ended."""
        ...

    def on_batch_begin(self, trial: Trial, model: Any, batch: int, logs: Any) -> None:
        """A batch begins."""
        ...

    def on_batch_end(self, trial: Trial, model: Any, batch: int, logs: Any = None) -> None:
        """A batch has ended."""
        ...


class SearchTuner(Protocol):
    """A tuner whose trials a search trains.

    Attributes:
        tuner_id: Name of this process among those that share an oracle.
        executions_per_trial: Trainings of each configuration.
        hypermodel: Builds models; None where ``run_trial`` does.
        interleave: Whether trials that fit for themselves begin while others are under way.
    """

    tuner_id: str
    executions_per_trial: int
    _callback_files: CallbackFiles
    hypermodel: Any
    interleave: bool | None

    @property
    def oracle(self) -> SearchOracle:
        """Decides what is tried."""
        ...

    @property
    def project_dir(self) -> str:
        """The folder of the project."""
        ...

    def pre_create_trial(self) -> None:
        """Called before a trial is asked for."""
        ...

    def on_trial_begin(self, trial: Trial) -> None:
        """A trial begins."""
        ...

    def on_trial_end(self, trial: Trial) -> None:
        """A trial has ended."""
        ...

    def run_trial(self, trial: Trial, *fit_args: Any, **fit_kwargs: Any) -> Any:
        """Trains a trial; returns what can be scored."""
        ...

    def save(self) -> None:
        """Writes the state of the tuner."""
        ...

    def _has_own(self, name: str) -> bool: ...

    def _epochs(self, hp: HyperParameters, given: int) -> int: ...

    def _try_build(self, hp: HyperParameters) -> Any: ...

    def _note_failure(self, trial: Trial, error: BaseException) -> None: ...

    def _update_trial(self, trial: Trial, results: Any) -> None: ...

    def _save_build_config(self, trial_id: str, model: Any) -> None: ...

    def _get_checkpoint_fname(self, trial_id: str) -> str: ...
