"""A grouper for tests of executors that train nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from paceline.executor.base import Job
from paceline.executor.remote.jobs import RemoteGroup
from paceline.pack.pack import SlotTrial
from paceline.program.trace import State


class OneGroup:
    """All jobs share a program; nothing is traced."""

    families = None

    def __init__(self, *_: Any, **__: Any) -> None:
        full = SimpleNamespace(canonical=SimpleNamespace(constants=[]))
        role: Any = SimpleNamespace(
            settle=lambda n: None, observed=set(), lifted=(), settled=True, widened=False, full=full
        )
        shapes: Any = State([np.zeros(1)], [], [], [])
        work: Any = None
        self.group = RemoteGroup("p", work, [role], shapes, [], False, False)
        self.group.n_trials = 1
        self.groups = [self.group]

    @property
    def waiting(self) -> int:
        """Jobs without a slot."""
        return len(self.group.queue)

    def add(self, job: Job) -> RemoteGroup:
        """Queues a job."""
        trial = SlotTrial(job.number, job.seed, job.epochs, self.group.state, ())
        self.group.queue.append(trial)
        return self.group

    def save_formulas(self) -> None:
        """Nothing was learnt."""
