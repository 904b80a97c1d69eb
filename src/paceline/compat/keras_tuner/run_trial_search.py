"""A search whose trials call ``fit`` themselves, in ``run_trial``; their fits share packs.

The interception engine runs ``run_trial`` of each trial, with the same result as alone. The hooks
of one trial are called in KerasTuner's order, but several trials run at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from paceline.compat.interception import CallOutcome, Engine, FunctionCall
from paceline.compat.keras_tuner.engine.display import notes_of
from paceline.compat.keras_tuner.engine.hypermodel import own_code
from paceline.compat.keras_tuner.engine.model_tuner import HANDS_ON, TRIAL_HOOKS, ModelTuner
from paceline.compat.keras_tuner.engine.trial import TrialStatus
from paceline.compat.keras_tuner.oracle_trials import OracleTrials
from paceline.study.samplers.values import trial_seed


def search(tuner: ModelTuner, *args: Any, **kwargs: Any) -> None:
    """Runs all trials of a tuner's oracle; ``run_trial`` gets the other arguments after the trial.

    Raises FatalError if a trial raised it or returned no score, and RuntimeError if too many trials
    failed in a row.
    """
    oracle, trials = tuner.oracle, OracleTrials(tuner)
    left = oracle.remaining_trials()
    n_calls = left and left + len(oracle._retry_queue)
    try:
        with Engine(notes=notes_of(oracle), noun="trial", concurrent=tuner.concurrent) as engine:
            shared = {name: value for name, value in kwargs.items() if name != "callbacks"}
            given = {f"argument {i}": value for i, value in enumerate(args)} | shared
            code = {"tuner": tuner, "hypermodel": own_code(tuner.hypermodel)}
            engine.look_at(given | code, ("build", "fit", *TRIAL_HOOKS, *HANDS_ON))
            for outcome in engine.run(_calls(tuner, trials, args, kwargs), n_calls=n_calls):
                _end(tuner, trials, outcome)
            trials.raise_if_due()
    finally:
        oracle.take_back()
        tuner.save()


def _calls(
    tuner: ModelTuner, trials: OracleTrials, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[FunctionCall | None]:
    """Yields a call for each trial of the oracle; None while the oracle waits for results."""
    oracle = tuner.oracle
    number, before = 0, len(oracle.trials)
    # After the oracle's last answer, running trials may fail and be tried again.
    while trials.error is None and (trials.running or not trials.over):
        for trial in trials.running.values():  # learn what their builds have declared by now
            oracle.built(trial)
        most = oracle.max_parallel
        full = most is not None and len(trials.running) >= most
        trial = None if full or trials.over else trials.begin(number)
        if trial is not None:
            function = partial(tuner.run_trial, trial, *args, **kwargs)
            yield FunctionCall(number, function, trial_seed(oracle.seed, before + number))
            number += 1
        elif trials.error is None:
            yield None


def _end(tuner: ModelTuner, trials: OracleTrials, outcome: CallOutcome) -> None:
    """Reports the outcome of a trial to the oracle; raises as ``search``."""
    with trials.ending(outcome.number) as trial:
        error = outcome.error
        if error is None:
            try:
                tuner._update_trial(trial, outcome.value)
                trial.status, trial.message = TrialStatus.COMPLETED, None
            except Exception as raised:
                error = raised
        if error is not None:
            tuner._note_failure(trial, error)
