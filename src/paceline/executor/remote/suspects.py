"""Jobs that may be why machines go: those whose machines died, and those of packs that hang."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from paceline.errors import ClusterError, TrialTimeoutError
from paceline.executor.base import EpochLimit
from paceline.executor.remote.jobs import JobTable

#: Machines that may die under a job, without an epoch in between, before it trains alone.
_TOGETHER = 2
#: Machines that may die in all before the job fails: machines also die for other reasons.
_DEATHS = 8


class CrashSuspects:
    """Finds the job that ends every machine on which it trains, among those that were with it.

    A job that was on machines that died trains alone on a machine, until it has trained an epoch.
    If it ends that machine, too, and again, it is the reason.
    """

    def __init__(self, jobs: JobTable) -> None:
        self._jobs = jobs
        # Number of a job -> machines that have died under it since its last epoch.
        self._deaths: dict[int, int] = {}

    @property
    def alone(self) -> set[int]:
        """Numbers of the jobs that get a machine each."""
        return {number for number, deaths in self._deaths.items() if deaths >= _TOGETHER}

    def trained(self, number: int) -> None:
        """A job has trained an epoch."""
        self._deaths.pop(number, None)

    def died(self, host: str, why: str) -> dict[int, Exception]:
        """A machine that still has its jobs has died; the job that fails, with the error."""
        numbers = [job.number for job in self._jobs.on(host) if not job.paused]
        for number in numbers:
            self._deaths[number] = self._deaths.get(number, 0) + 1
        if len(numbers) != 1 or self._deaths[numbers[0]] < _DEATHS:
            return {}
        (number,) = numbers
        text = (
            f"executor: {self._deaths.pop(number)} workers died with this trial, the last ones "
            f"while they trained nothing else ({why}). See Ray's logs of the worker. If the model "
            "needs too much memory, request more for each worker, or limit the model's size in "
            "build(hp)."
        )
        return {number: ClusterError(text)}

    def stuck(self, packs: Iterable[dict[int, int]], limit: EpochLimit) -> dict[int, Exception]:
        """Packs do not come back: a job that was alone in one fails, others are suspected.

        Each of ``packs`` has the epochs that its jobs have trained, by number; each suspect of
        ``limit`` trains the next such epoch alone. Returns the errors by the number of the job that
        fails.
        """
        suspects, failed = cast(dict[int, int], limit.suspects), dict[int, Exception]()
        for pack in packs:
            jobs = {n: epoch for n, epoch in pack.items() if self._jobs.get(n) is not None}
            if len(jobs) > 1 and any(suspects.get(n) != epoch for n, epoch in jobs.items()):
                suspects.update(jobs)
                continue
            for number, epoch in jobs.items():
                text = f"epoch {epoch + 1} had not finished after {limit.seconds or 0:g} s"
                failed[number] = TrialTimeoutError(f"trial_timeout: {text}")
        return failed
