"""The output of a search while it runs, in the form of KerasTuner."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.compat.keras_tuner.utils import say
from paceline.tuner.search.progress import to_stderr

_WIDTH = 18


def notes_of(oracle: Any) -> Callable[[str], None]:
    """Takes the notes of a search: prints them, or with ``verbose=0`` logs them as warnings.

    KerasTuner's output is off then. A search that is slow for a reason still says the reason, in a
    way that programs can direct or silence: ``logging.getLogger("paceline")``.
    """
    logger = logging.getLogger("paceline")
    return to_stderr if oracle.verbose else lambda text: logger.warning("paceline: %s", text)


class Display:
    """Prints which trials begin and end, unless ``verbose`` is 0."""

    def __init__(self, oracle: Any, verbose: int = 1) -> None:
        self.oracle, self.verbose = oracle, verbose
        self.search_start: datetime | None = None
        self.trial_start: dict[str, datetime] = {}
        self.trial_number: dict[str, int] = {}

    def on_trial_begin(self, trial: Trial) -> None:
        """Prints that a trial begins."""
        now = datetime.now()
        self.trial_start[trial.trial_id] = now
        self.search_start = self.search_start or now
        number = self.trial_number[trial.trial_id] = len(self.oracle.trials)
        if self.verbose < 1:
            return
        say(f"\nSearch: Running Trial #{number}\n")
        self.show_hyperparameter_table(trial)
        say()

    def on_epoch_end(self, trial: Trial, epoch: int, epochs: int, logs: Mapping[str, Any]) -> None:
        """Prints that a trial has ended an epoch, counted from 1, of its ``epochs``."""
        if self.verbose < 1:
            return
        number = self.trial_number.get(trial.trial_id, len(self.oracle.trials))
        shown = [f"{name}: {_metric(float(value))}" for name, value in logs.items()]
        say(" - ".join([f"Trial {number}", f"Epoch {epoch}/{epochs}", *shown]))

    def on_trial_end(self, trial: Trial) -> None:
        """Prints that a trial has ended."""
        if self.verbose < 1:
            return
        now, trial_id, name = datetime.now(), trial.trial_id, self.oracle.objective.name
        taken = now - self.trial_start.get(trial_id, now)
        number = self.trial_number.get(trial_id, len(self.oracle.trials))
        say(f"\nTrial {number} Complete [{self.format_duration(taken)}]")
        if trial.score is not None:
            say(f"{name}: {trial.score}")
        best = self.oracle.get_best_trials()
        say(f"\nBest {name} So Far: {best[0].score if best else None}")
        elapsed = now - (self.search_start or now)
        say(f"Total elapsed time: {self.format_duration(elapsed)}")

    def show_hyperparameter_table(self, trial: Trial) -> None:
        """Prints the values of a trial, next to those of the best trial so far."""
        values = trial.hyperparameters.values
        if not values:
            say("default configuration")
            return
        best = self.oracle.get_best_trials()
        known: Mapping[str, Any] = best[0].hyperparameters.values if best else {}
        say(_row("Value", "Best Value So Far", "Hyperparameter"))
        for name, value in values.items():
            shown = self.format_value(known.get(name) if best else "?")
            say(_row(self.format_value(value), shown, name))

    def format_value(self, value: Any) -> str:
        """Returns a value as text of at most 18 characters."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:.5g}"
        text = str(value)
        return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 3]}..."

    def format_duration(self, duration: timedelta) -> str:
        """Returns a duration as ``00h 02m 05s``."""
        hours, seconds = divmod(round(duration.total_seconds()), 3600)
        days, hours = divmod(hours, 24)
        text = f"{hours:02d}h {seconds // 60:02d}m {seconds % 60:02d}s"
        return f"{days}d {text}" if days else text

    def get_state(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        start = self.search_start
        return {
            "search_start": None if start is None else start.isoformat(),
            "trial_start": {name: when.isoformat() for name, when in self.trial_start.items()},
            "trial_number": self.trial_number,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what ``get_state`` returned."""
        start, begun = state["search_start"], state["trial_start"].items()
        self.search_start = None if start is None else datetime.fromisoformat(start)
        self.trial_start = {name: datetime.fromisoformat(when) for name, when in begun}
        self.trial_number = dict(state["trial_number"])


def _metric(value: float) -> str:
    """A metric as Keras prints it."""
    return f"{value:.4f}" if abs(value) > 1e-3 else f"{value:.4e}"


def _row(value: str, best: str, name: str) -> str:
    return f"{value:<{_WIDTH}}|{best:<{_WIDTH}}|{name}"
