"""The running trials of an oracle: how each begins and ends, and which error ends the search."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.compat.keras_tuner.engine.base_tuner import BaseTuner
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.errors import FatalError, is_a

#: Seconds that an oracle may answer IDLE while no trial runs.
_PATIENCE = 60.0


class OracleTrials:
    """The trials of one search that are running, by number.

    An error may end the search. Trials that began before the trial of the error train to their ends
    first. So the project has the same results as if trials had run one after another.
    """

    def __init__(self, tuner: BaseTuner) -> None:
        self._tuner = tuner
        self.running: dict[int, Trial] = {}
        self._stopped = False  # whether STOPPED is the oracle's last answer
        self.error: Exception | None = None  # will end the search
        self._number = 0  # of the trial that raised the error

    @property
    def over(self) -> bool:
        """Whether no further trial begins."""
        stopped = self._stopped and not self._tuner.oracle._retry_queue
        return self.error is not None or stopped

    def begin(self, number: int) -> Trial | None:
        """Begins the oracle's next trial, and calls the tuner's hooks; None if there is none now.

        No running trial has this ``number``.
        """
        try:
            trial = self._ask(number)
            if trial.status == TrialStatus.RUNNING:
                self._tuner.on_trial_begin(trial)
        except Exception as error:
            self._note(number, error)
            return None
        self._stopped = trial.status == TrialStatus.STOPPED
        if trial.status != TrialStatus.RUNNING:
            return None
        self.running[number] = trial
        return trial

    def _ask(self, number: int) -> Trial:
        """The oracle's answer; if no trial runs, it has some time to answer anything but IDLE."""
        self._tuner.pre_create_trial()
        oracle, worker = self._tuner.oracle, self._tuner.tuner_id
        worker = f"{worker}-{number}" if worker in oracle.ongoing_trials else worker
        trial = oracle.create_trial(worker)
        until = time.monotonic() + _PATIENCE
        while not self.running and trial.status == TrialStatus.IDLE:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"the oracle has answered IDLE for {_PATIENCE:.0f} s while no trial was "
                    "running. Return RUNNING with values, or STOPPED, from populate_space."
                )
            time.sleep(0.01)
            trial = oracle.create_trial(worker)
        return trial

    @contextmanager
    def ending(self, number: int) -> Iterator[Trial]:
        """A block that decides the status of a trial, which ends; an error in it ends the search.

        Raises that error, or an earlier one, once all trials that began before it have ended.
        """
        trial = self.running.pop(number)
        try:
            yield trial
            self._tuner.on_trial_end(trial)
        except Exception as error:
            self._note(number, error)
        self.raise_if_due()

    def _note(self, number: int, error: Exception) -> None:
        """An error of a trial that began earlier replaces one of a later trial.

        The limit of failures is exceeded again at the end of each further trial, whatever its
        number, so only the first such error counts.
        """
        limit = isinstance(error, RuntimeError) and not is_a(error, FatalError)
        if self.error is None or (number < self._number and not limit):
            self.error, self._number = error, number

    def raise_if_due(self) -> None:
        """Raises the error once all trials that began before it have ended."""
        if self.error is not None and all(number > self._number for number in self.running):
            raise self.error
