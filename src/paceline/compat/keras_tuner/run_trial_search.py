"""A search whose trials train by themselves: their ``fit`` calls share packs.

``run_trial`` of each trial runs in the interception engine, as it would alone. The order of events
of one trial is KerasTuner's; several trials are under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from paceline.compat.interception import Call, Engine, Outcome
from paceline.compat.keras_tuner.engine.protocols import SearchTuner
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.oracle_search import to_stderr
from paceline.study.samplers.values import trial_seed


def search(tuner: SearchTuner, *args: Any, **kwargs: Any) -> None:
    """Runs all trials of a tuner's oracle.

    Args:
        tuner: The tuner.
        *args: What ``run_trial`` gets beside the trial.
        **kwargs: Likewise.

    Raises:
        FatalError: A trial raised it, or returned nothing that can be scored.
        RuntimeError: Too many trials failed in a row.
    """
    oracle = tuner.oracle
    run = _Run(tuner, args, kwargs)
    notes = to_stderr if oracle.verbose else None
    left = oracle.remaining_trials()
    try:
        with Engine(notes=notes, noun="trial") as engine:
            for outcome in engine.run(run.calls(), n_calls=left and left + run.retries):
                run.end(outcome)
    finally:
        oracle.take_back()
        tuner.save()


class _Run:
    """The trials of one search.

    Args:
        tuner: Whose they are.
        args: What ``run_trial`` gets beside the trial.
        kwargs: Likewise.
    """

    def __init__(self, tuner: SearchTuner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tuner, self._oracle, self._args, self._kwargs = tuner, tuner.oracle, args, kwargs
        self._open: dict[int, Trial] = {}
        self._before = len(self._oracle.trials)

    @property
    def retries(self) -> int:
        """Trials that wait to be tried again."""
        return len(self._oracle._retry_queue)

    def calls(self) -> Iterator[Call | None]:
        """The oracle's trials, as far as it has any; None while it waits for others."""
        number = 0
        while True:
            for trial in self._open.values():  # what they have declared by now is no news later
                self._oracle.built(trial)
            most = self._oracle.max_parallel
            if most is not None and len(self._open) >= most:
                yield None
                continue
            self._tuner.pre_create_trial()
            worker = self._tuner.tuner_id
            worker = f"{worker}-{number}" if worker in self._oracle.ongoing_trials else worker
            trial = self._oracle.create_trial(worker)
            if trial.status != TrialStatus.RUNNING:
                if trial.status == TrialStatus.STOPPED and not self._open:
                    return
                yield None  # those under way may have to be tried again
                continue
            self._tuner.on_trial_begin(trial)
            self._open[number] = trial
            function = partial(self._tuner.run_trial, trial, *self._args, **self._kwargs)
            yield Call(number, function, trial_seed(self._oracle.seed, self._before + number))
            number += 1

    def end(self, outcome: Outcome) -> None:
        """A trial has ended."""
        trial = self._open.pop(outcome.number)
        error: Exception | None = outcome.error
        if error is None:
            try:
                self._tuner._update_trial(trial, outcome.value)
                trial.status, trial.message = TrialStatus.COMPLETED, None
            except Exception as raised:
                error = raised
        if error is not None:
            self._tuner._note_failure(trial, error)
        self._tuner.on_trial_end(trial)
