"""Optuna's output for a study that is optimized: a line for each trial, and a progress bar."""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from contextlib import ExitStack
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from paceline.compat import progress

_logger = optuna.logging.get_logger("optuna.study")


class StudyLog:
    """Writes to Optuna's logger, and draws the progress bar of ``show_progress_bar``."""

    def __init__(
        self, study: optuna.Study, n_trials: int | None, timeout: float | None, *, bar: bool
    ) -> None:
        self._study, self._timeout = study, timeout
        if bar and n_trials is None and timeout is None:
            warnings.warn(
                "Progress bar won't be displayed because n_trials and timeout are None.",
                stacklevel=4,
            )
        self._stack = ExitStack()
        self._began = time.monotonic()
        self._bar: Any = None
        self._by_time = n_trials is None
        if bar and not (n_trials is None and timeout is None):
            total = timeout if n_trials is None else n_trials
            shape = "{desc} {percentage:3.0f}%|{bar}| {elapsed}/" + tqdm.format_interval(total or 0)
            self._bar = tqdm(total=total, bar_format=shape if self._by_time else None)
            self._stack.callback(self._bar.close)
            redirect = logging_redirect_tqdm([logging.getLogger("optuna")])
            self._stack.enter_context(redirect)

    def close(self) -> None:
        """Ends the progress bar."""
        self._stack.close()

    @property
    def is_quiet(self) -> bool:
        """Whether the user sees the progress bar, or wants no line for each trial."""
        return self._bar is not None or optuna.logging.get_verbosity() > optuna.logging.INFO

    def say(self, text: str) -> None:
        """Prints a note of Paceline."""
        if self._bar is None:
            progress.say(text)
        else:
            self._bar.write(f"paceline: {' '.join(text.split())}")

    def ended(
        self, trial: FrozenTrial, value: Any, error: BaseException | None, warning: str | None
    ) -> None:
        """Logs the end of a trial in Optuna's words; ``value`` is its objective's return value."""
        if trial.state == TrialState.COMPLETE:
            self._completed(trial)
        elif trial.state == TrialState.PRUNED:
            _logger.info(f"Trial {trial.number} pruned. {error or ''}")
        elif trial.state == TrialState.FAIL:
            why = repr(error) if error is not None else warning
            text = f"Trial {trial.number} failed with parameters: {trial.params} because of the "
            text += f"following error: {why}."
            if error is not None:
                text += f"\n{''.join(traceback.format_exception(error))}"
            _logger.warning(text)
            _logger.warning(f"Trial {trial.number} failed with value {value!r}.")
        self._move()

    def _completed(self, trial: FrozenTrial) -> None:
        if not _logger.isEnabledFor(logging.INFO):
            return
        if len(self._study.directions) > 1:
            text = f"Trial {trial.number} finished with values: {trial.values} and parameters: "
            _logger.info(f"{text}{trial.params}.")
            return
        text = f"Trial {trial.number} finished with value: {trial.value} and parameters: "
        text += f"{trial.params}."
        try:
            best = self._study.best_trial
            text += f" Best is trial {best.number} with value: {best.value}."
        except ValueError:  # no trial satisfies the constraints
            pass
        _logger.info(text)

    def _move(self) -> None:
        if self._bar is None:
            return
        if len(self._study.directions) == 1:
            try:
                best = self._study.best_trial
                text = f"Best trial: {best.number}. Best value: {best.value:.6g}"
                self._bar.set_description(text)
            except ValueError:  # no trial is complete
                pass
        seconds = time.monotonic() - self._began
        if not self._by_time:
            self._bar.update(1)
            if self._timeout is not None:
                self._bar.set_postfix_str(f"{seconds:.02f}/{self._timeout} seconds")
        else:
            self._bar.update(min(seconds, self._bar.total) - self._bar.n)
