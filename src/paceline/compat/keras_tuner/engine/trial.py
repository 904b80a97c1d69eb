"""A trial with the names and the files of KerasTuner."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.compat.keras_tuner.engine.hyperparameters import HyperParameters
from paceline.compat.keras_tuner.engine.metrics_tracking import MetricsTracker
from paceline.compat.keras_tuner.engine.stateful import Stateful
from paceline.compat.keras_tuner.protos import theirs
from paceline.compat.keras_tuner.utils import load_json, say

#: Names of values that Hyperband adds to those of a trial's hyperparameters.
EPOCHS, BEGIN, PARENT = "tuner/epochs", "tuner/initial_epoch", "tuner/trial_id"
BRACKET, ROUND = "tuner/bracket", "tuner/round"


class TrialStatus:
    """The states of a trial.

    An INVALID trial has failed and may be tried again. IDLE and STOPPED are answers of an oracle:
    it has no trial now, or no trial is left.
    """

    RUNNING = "RUNNING"
    IDLE = "IDLE"
    INVALID = "INVALID"
    STOPPED = "STOPPED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"

    @staticmethod
    def to_proto(status: str | None) -> Any:
        """Returns the number that KerasTuner's messages have for a state."""
        return theirs("engine.trial").TrialStatus.to_proto(status)

    @staticmethod
    def from_proto(proto: Any) -> str | None:
        """Returns the state of a number from ``to_proto``."""
        return theirs("engine.trial").TrialStatus.from_proto(proto)


class Trial(Stateful):
    """One configuration and its results.

    Args:
        hyperparameters: The values, with the space as it was then.
        trial_id: A unique id; None: a random one.
        status: One of ``TrialStatus``.
        message: Why the trial failed; None if it did not.

    Attributes:
        metrics: The metrics by step.
        score: Value of the objective; None until the trial is complete.
        best_step: The epoch of the score, from 0.
    """

    def __init__(
        self,
        hyperparameters: Any,
        trial_id: str | None = None,
        status: str = TrialStatus.RUNNING,
        message: str | None = None,
    ) -> None:
        self.hyperparameters: HyperParameters = hyperparameters
        self.trial_id = secrets.token_hex(16) if trial_id is None else trial_id
        self.metrics = MetricsTracker()
        self.score: Any = None
        self.best_step: int | None = 0
        self.status = status
        self.message = message

    def summary(self) -> None:
        """Prints the trial."""
        say(f"Trial {self.trial_id} summary")
        say("Hyperparameters:")
        self.display_hyperparameters()
        if self.score is not None:
            say(f"Score: {self.score}")
        if self.message is not None:
            say(self.message)

    def display_hyperparameters(self) -> None:
        """Prints the values."""
        for name, value in self.hyperparameters.values.items():
            say(f"{name}: {value}")
        if not self.hyperparameters.values:
            say("default configuration")

    def get_state(self) -> dict[str, Any]:
        """Returns the trial as JSON values."""
        return {
            "trial_id": self.trial_id,
            "hyperparameters": self.hyperparameters.get_config(),
            "metrics": self.metrics.get_config(),
            "score": None if self.score is None else float(self.score),
            "best_step": self.best_step,
            "status": self.status,
            "message": self.message,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what ``get_state`` returned."""
        self.trial_id = state["trial_id"]
        self.hyperparameters = HyperParameters.from_config(state["hyperparameters"])
        self.metrics = MetricsTracker.from_config(state["metrics"])
        self.score, self.best_step = state["score"], state["best_step"]
        self.status, self.message = state["status"], state.get("message")

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Trial:
        """Returns the trial whose ``get_state`` gave ``state``."""
        trial = cls(None)
        trial.set_state(state)
        return trial

    def to_proto(self) -> Any:
        """Returns KerasTuner's message of this trial; needs KerasTuner itself."""
        return theirs("engine.trial").Trial.from_state(self.get_state()).to_proto()

    @classmethod
    def from_proto(cls, proto: Any) -> Trial:
        """Returns the trial of a message of ``to_proto``; needs KerasTuner itself."""
        return cls.from_state(theirs("engine.trial").Trial.from_proto(proto).get_state())

    @classmethod
    def load(cls, fname: str | Path) -> Trial:
        """Returns the trial in a ``trial.json``."""
        return cls.from_state(load_json(fname))
