"""Workers of one study in one process, with a clock that the tests move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

from paceline.study.sharing.peers import ClaimLost
from paceline.study.sharing.worker import Worker
from paceline.study.storage.storage import StudyStorage
from paceline.study.study import Study

EVERY = 5.0


class Clock:
    """A clock that stands still until it is moved; who waits by it lets the others beat."""

    def __init__(self) -> None:
        self.now = 0.0
        self.beating: list[Worker] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        """Time passes, and those who live give their signs."""
        self.now += seconds
        for worker in self.beating:
            if worker.joined:
                worker.beat()


class Party:
    """Workers of one study."""

    def __init__(self, storage: Any, clock: Clock) -> None:
        self.storage, self.clock = storage, clock
        self.notes: list[str] = []
        self.workers: dict[Study, Worker] = {}

    def join(self, *, beats: bool = True, folder: Path | None = None, **arguments: Any) -> Study:
        """One more; those that beat do so whenever time passes."""
        worker = Worker(
            folder,
            self.notes.append,
            every=EVERY,
            clock=self.clock,
            pause=self.clock.pause,
            beats=False,
        )
        settings: dict[str, Any] = {"direction": "maximize", "n_trials": 1000, **arguments}
        settings["note"] = self.notes.append
        study = Study("s", storage=self.storage, worker=worker, **settings)
        study.persist({})
        self.workers[study] = worker
        if beats:
            self.clock.beating.append(worker)
        return study

    def die(self, study: Study) -> None:
        """No sign comes from it any more."""
        self.clock.beating.remove(self.workers[study])

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds / EVERY)):
            self.clock.pause(EVERY)

    def stored(self) -> list[optuna.trial.FrozenTrial]:
        found = StudyStorage.of(self.storage, "s", Path("runs")).load("s")
        assert found is not None
        return found.trials


def floating(hp: Any, proposal: Any) -> None:
    hp.Float("x", 0.0, 1.0)


def begin(study: Study, build: Callable[..., Any] = floating) -> int | None:
    found = study.asker.propose(build)
    try:
        return None if found is None else study.accept(*found[:2])
    except ClaimLost:
        return None


def must_begin(study: Study, build: Callable[..., Any] = floating) -> int:
    number = begin(study, build)
    assert number is not None
    return number


def end(study: Study, number: int, value: float = 0.5) -> None:
    study.updates.report(number, 1, {"val": value}, value)
    study.updates.finish(number, "complete")
