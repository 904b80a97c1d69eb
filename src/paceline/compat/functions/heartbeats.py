"""Heartbeats of the running trials of an Optuna study, for storages that want them."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import fail_stale_trials

from paceline.compat.functions import optuna_private


class TrialHeartbeats:
    """Records heartbeats of all running trials in one thread, until it is closed."""

    def __init__(self, study: optuna.Study, running: Mapping[int, optuna.Trial]) -> None:
        self._study, self._running = study, running
        self._interval = optuna_private.heartbeat_interval(study)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def before_ask(self) -> None:
        """Fails trials whose process has died, as Optuna does before each trial."""
        if self._interval is None:
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            fail_stale_trials(self._study)

    def begin(self, trial: optuna.Trial) -> None:
        """Records the first heartbeat of a trial."""
        if self._interval is None:
            return
        optuna_private.record_heartbeat(self._study, trial)
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(self._interval):
            for trial in list(self._running.values()):
                optuna_private.record_heartbeat(self._study, trial)
        optuna_private.end_session(self._study)
