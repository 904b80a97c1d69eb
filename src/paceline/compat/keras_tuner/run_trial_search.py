"""A search whose trials call ``fit`` themselves, in ``run_trial``; their fits share packs.

The interception engine runs ``run_trial`` of each trial, with the result that it would have alone.
The hooks of one trial are called in KerasTuner's order; several trials are under way at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from paceline.compat.interception import CallOutcome, Engine, FunctionCall
from paceline.compat.keras_tuner.engine.hypermodel import own_code
from paceline.compat.keras_tuner.engine.model_tuner import ModelTuner
from paceline.compat.keras_tuner.engine.trial import Trial, TrialStatus
from paceline.compat.keras_tuner.oracle_search import EndingError, begin_trial
from paceline.study.samplers.values import trial_seed
from paceline.tuner.search.progress import to_stderr

#: Methods of tuners and hypermodels that are called while trials run.
_CALLED = (
    "build",
    "fit",
    "run_trial",
    "_build_and_fit_model",
    "pre_create_trial",
    "on_trial_begin",
    "on_trial_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_batch_begin",
    "on_batch_end",
)


def search(tuner: ModelTuner, *args: Any, **kwargs: Any) -> None:
    """Runs all trials of a tuner's oracle; ``run_trial`` gets the other arguments after the trial.

    Raises:
        FatalError: A trial raised it, or returned something without a score.
        RuntimeError: Too many trials failed in a row.
    """
    oracle = tuner.oracle
    run = _Run(tuner, args, kwargs)
    notes = to_stderr if oracle.verbose else None
    left = oracle.remaining_trials()
    try:
        with Engine(notes=notes, noun="trial", concurrent=tuner.concurrent) as engine:
            shared = {name: value for name, value in kwargs.items() if name != "callbacks"}
            given = {f"argument {i}": value for i, value in enumerate(args)} | shared
            code = {"tuner": tuner, "hypermodel": own_code(tuner.hypermodel)}
            engine.look_at(given | code, _CALLED)
            for outcome in engine.run(run.calls(), n_calls=left and left + run.retries):
                run.end(outcome)
            run.ending.raise_if_due(())
    finally:
        oracle.take_back()
        tuner.save()


class _Run:
    """The trials of one search."""

    def __init__(self, tuner: ModelTuner, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tuner, self._oracle, self._args, self._kwargs = tuner, tuner.oracle, args, kwargs
        self._open: dict[int, Trial] = {}
        self.ending = EndingError()  # the error that will end the search
        self._before = len(self._oracle.trials)

    @property
    def retries(self) -> int:
        """Number of trials that wait to be tried again."""
        return len(self._oracle._retry_queue)

    def calls(self) -> Iterator[FunctionCall | None]:
        """Yields a call for each trial of the oracle; None while the oracle waits for results."""
        number = 0
        while not self.ending.known:
            for trial in self._open.values():  # learn what their builds have declared by now
                self._oracle.built(trial)
            most = self._oracle.max_parallel
            if most is not None and len(self._open) >= most:
                yield None
                continue
            try:
                trial = begin_trial(self._tuner, number, alone=not self._open)
            except Exception as error:
                self.ending.note(number, error)
                return
            if trial.status != TrialStatus.RUNNING:
                if trial.status == TrialStatus.STOPPED and not self._open:
                    return
                yield None  # trials under way may fail and be tried again
                continue
            self._open[number] = trial
            function = partial(self._tuner.run_trial, trial, *self._args, **self._kwargs)
            yield FunctionCall(
                number, function, trial_seed(self._oracle.seed, self._before + number)
            )
            number += 1

    def end(self, outcome: CallOutcome) -> None:
        """Reports the outcome of a trial to the oracle.

        Raises:
            FatalError: This trial or a later one raised it, and all trials before have ended.
            RuntimeError: As FatalError, if too many trials have failed in a row.
        """
        trial = self._open.pop(outcome.number)
        error: Exception | None = outcome.error
        if error is None:
            try:
                self._tuner._update_trial(trial, outcome.value)
                trial.status, trial.message = TrialStatus.COMPLETED, None
            except Exception as raised:
                error = raised
        try:
            if error is not None:
                self._tuner._note_failure(trial, error)
            self._tuner.on_trial_end(trial)
        except Exception as raised:
            self.ending.note(outcome.number, raised)
        self.ending.raise_if_due(self._open)
