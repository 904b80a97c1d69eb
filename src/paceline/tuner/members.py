"""The members of a trial: the same hparams trained from several seeds, or on the folds of the data.

A trial has ``repeats`` times ``folds`` members, most often one. To executors each member is a job
of its own. Here what they report becomes what the trial reports: the mean of every log, once the
last member has reported an epoch; and one answer goes to all of them.

Members may sit in different packs, or wait for a slot while others train. One that is ahead of the
others waits for them where it matters: with a pruner, because all members follow one verdict; and
always the first member, because its model is the trial's, and whether an epoch was the best shows
only when all have reported it. Executors begin with the last member, so that the first is rarely
ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np

from paceline.data.inputs import TrialInputs
from paceline.executor.base import Answer, EpochReport, Job, LateAnswer, Weights
from paceline.pack.callbacks.per_trial import CallbackFactory
from paceline.search_space import HyperParameters
from paceline.tuner.arguments import SearchArguments


class Runs(Protocol):
    """What is needed of an executor."""

    def drop(self, number: int) -> None:
        """Forgets a job that does not train now."""
        ...


class Packs(Runs, Protocol):
    """An executor that can pause."""

    def resume(self, number: int) -> None:
        """Has a paused job go on."""
        ...


def member_seed(seed: int, repeat: int) -> int:
    """The seed of one repeat, 31 bits: the first has the trial's own."""
    if repeat == 0:
        return seed
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0]) >> 1


def jobs_of(
    number: int,
    seed: int,
    made: tuple[Any, int, TrialInputs],
    arguments: SearchArguments,
    build: Callable[[int], Any],
    hparams: Mapping[str, Any],
    files: str = "{trial}",
) -> list[Job]:
    """A job for each repeat of a trial, the last one first; folds are parts of a job.

    Args:
        number: The trial's.
        seed: The trial's.
        made: The model of the first repeat, epochs and setting.
        arguments: Of the search.
        build: Makes the trial's model from a seed.
        hparams: The trial's, for callbacks that hang on them.
        files: What callbacks call the trial in the names of their files.
    """
    model, epochs, setting = made
    folds, jobs = arguments.folds, []
    callbacks = None
    if arguments.callbacks is not None:
        callbacks = partial(_callbacks_of, arguments.callbacks, hparams, files, arguments.n_members)
    for repeat in range(arguments.repeats):
        own = member_seed(seed, repeat)
        job = Job(
            number=number * arguments.n_members + repeat * max(1, len(folds)),
            seed=own,
            epochs=epochs,
            batch_size=setting.batch_size,
            model=model if repeat == 0 else build(own),
            rebuild=partial(build, own),
            folds=folds,
            counts=repeat == 0,
            callbacks=callbacks,
            setting=setting,
        )
        jobs.append(job)
    return jobs[::-1]


def _callbacks_of(
    callbacks: CallbackFactory, hparams: Mapping[str, Any], files: str, size: int, job: int
) -> list[Any]:
    """New callbacks of a member of a trial."""
    trial = str(job) if size == 1 else f"{job // size}-{job % size}"
    return callbacks.of(files.format(trial=trial), HyperParameters(values=hparams))


class TrialMembers:
    """The members of one trial, by the numbers of their jobs.

    Args:
        number: The trial's number.
        size: How many members it has.
        epochs: Epochs it is to train.

    Attributes:
        jobs: Their numbers, the first member's first.
        complete: Epochs that all members have reported.
        trained: Job -> epochs it has reported.
        ended: Jobs that train no further -> the logs of their last epoch.
        waiting: Jobs that are paused until the others have caught up.
        verdict: The answer to the last epoch that all have reported.
    """

    def __init__(self, number: int, size: int, epochs: int) -> None:
        self.number, self.epochs = number, epochs
        self.jobs = range(number * size, (number + 1) * size)
        self.complete = 0
        self.trained = dict.fromkeys(self.jobs, 0)
        self.waiting: set[int] = set()
        self.verdict: Answer = "continue"
        self.ended: dict[int, Mapping[str, float]] = {}
        self._reports: dict[int, dict[int, Mapping[str, float]]] = {}  # epoch -> job -> logs
        self._held: Weights | None = None  # what ``_fetch`` returns, where it was copied
        self._seconds = 0.0
        self._wall = dict.fromkeys(self.jobs, 0.0)  # since the last epoch of all
        self._fetch: Callable[[], Weights] | None = None  # the first member's latest weights

    def add(self, report: EpochReport) -> None:
        """Notes a member's epoch."""
        job, epoch = report.number, report.epoch
        self.trained[job] = epoch
        self._seconds += report.seconds
        self._wall[job] += report.wall
        self._reports.setdefault(epoch, {})[job] = report.logs
        if report.last:
            self.ended[job] = report.logs
        if job == self.jobs[0]:
            self._fetch, self._held = report.weights, None
            if report.last and epoch < self.epochs:
                self.hold()  # others may train on without it

    def due(self, report: EpochReport) -> EpochReport | None:
        """The trial's next epoch, if all members have trained it or have ended before.

        Args:
            report: A member's, just added: where it trains, the trial does.
        """
        epoch = self.complete + 1
        logs = self._reports.get(epoch, {})
        if not logs:
            return None
        # A member that a callback has stopped counts with its last epoch.
        found = {job: logs.get(job, self.ended.get(job)) for job in self.jobs}
        members = [each for each in found.values() if each is not None]
        if len(members) < len(self.jobs):
            return None
        del self._reports[epoch]
        assert self._fetch is not None
        self.complete, seconds, self._seconds = epoch, self._seconds, 0.0
        wall, self._wall = max(self._wall.values()), dict.fromkeys(self.jobs, 0.0)
        return EpochReport(
            number=self.number,
            epoch=epoch,
            logs=_mean(members),
            seconds=seconds,
            program=report.program,
            plan=report.plan,
            weights=self._fetch,
            members=members,
            wall=wall,
            last=len(self.ended) == len(self.jobs) and not self._reports,
        )

    def hold(self) -> None:
        """Copies the first member's weights, to have them when the others have caught up."""
        assert self._fetch is not None
        self._hold(self._fetch())

    def _hold(self, weights: Weights) -> None:
        self._held, self._fetch = weights, lambda: weights

    def snapshot(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Who has come how far, as JSON values and, in ``arrays``, weights that are held."""
        for part, leaves in enumerate(self._held or ()):
            for at, leaf in enumerate(leaves):
                arrays[f"team.{self.number}.{part}.{at}"] = leaf
        return {
            "complete": self.complete,
            "trained": list(self.trained.items()),
            "waiting": sorted(self.waiting),
            # "go" is the word that checkpoints of earlier versions hold.
            "verdict": "go" if self.verdict == "continue" else self.verdict,
            "reports": [
                [epoch, job, dict(logs)]
                for epoch, found in self._reports.items()
                for job, logs in found.items()
            ],
            "ended": [[job, dict(logs)] for job, logs in self.ended.items()],
            "seconds": self._seconds,
            "wall": list(self._wall.items()),
            "held": None if self._held is None else [len(part) for part in self._held],
        }

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Has everyone come as far as a snapshot says."""
        self.complete, verdict = facts["complete"], facts["verdict"]
        self.verdict = "continue" if verdict == "go" else verdict
        self.trained, self.waiting = dict(facts["trained"]), set(facts["waiting"])
        for epoch, job, logs in facts["reports"]:
            self._reports.setdefault(epoch, {})[job] = logs
        self.ended = dict(facts.get("ended", ()))
        self._seconds, self._wall = facts["seconds"], dict(facts["wall"])
        if facts["held"] is not None:
            first, second = (
                [arrays[f"team.{self.number}.{part}.{at}"] for at in range(n)]
                for part, n in enumerate(facts["held"])
            )
            self._hold((first, second))


class MemberReports:
    """The teams of a search, between its executors and its trials.

    Args:
        size: Members of each trial; with one, reports and answers pass through as they are.
        together: Whether members wait for each other after every epoch, for a pruner's verdict.
        packs: Where members train; None when none can be packed.
        fit: Where they train otherwise, one after another: nobody can wait there.
        handle: Handles what a trial reports.
    """

    def __init__(
        self,
        size: int,
        together: bool,
        packs: Packs | None,
        fit: Runs,
        handle: Callable[[EpochReport], Answer],
    ) -> None:
        self.size = size
        self._together, self._packs, self._fit, self._handle = together, packs, fit, handle
        self._teams: dict[int, TrialMembers] = {}

    def begin(self, number: int, epochs: int) -> TrialMembers:
        """A trial is under way."""
        self._teams[number] = TrialMembers(number, self.size, epochs)
        return self._teams[number]

    def jobs_of(self, number: int) -> range:
        """The numbers of a trial's jobs."""
        return range(number * self.size, (number + 1) * self.size)

    def snapshot(self, numbers: Iterable[int], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Teams of trials, as JSON values and arrays; of trials with one member there are none."""
        if self.size == 1:
            return {}
        return {str(number): self._teams[number].snapshot(arrays) for number in numbers}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Puts teams that have begun back to where they were."""
        for number, was in facts.items():
            self._teams[int(number)].restore(was, arrays)

    def trial_of(self, job: int) -> int:
        """The number of the trial that a job is a member of."""
        return job // self.size

    def name_of(self, job: int, n_folds: int) -> str:
        """Which member a job is, for messages; nothing for a trial's only one."""
        if self.size == 1:
            return ""
        repeat, fold = divmod(job % self.size, max(1, n_folds))
        parts = [f"repeat {repeat + 1}"] if self.size > max(1, n_folds) else []
        return " of " + ", ".join([*parts, *([f"fold {fold + 1}"] if n_folds else [])])

    def trained(self, job: int) -> int:
        """Epochs that a job of a trial under way has reported."""
        return self._teams[self.trial_of(job)].trained[job]

    def is_first(self, job: int) -> bool:
        """Whether a job is its trial's first member, which executors begin with last."""
        return job % self.size == 0

    def receive(self, report: EpochReport) -> LateAnswer:
        """Handles a report of a job; the answer may have to wait for others of the same round."""
        number = self.trial_of(report.number)
        team = self._teams.get(number)
        if team is None:
            return "stop"  # another member has failed
        if self.size == 1:
            team.trained[report.number] = report.epoch
            return self._handle(report)
        team.add(report)
        while (mean := team.due(report)) is not None:
            team.verdict = self._handle(mean)
            if team.verdict != "continue":
                break
            self._catch_up(team)
        return lambda: self._answer(number, report)

    def resume(self, number: int) -> None:
        """All members of a paused trial go on."""
        team = self._teams[number]
        team.verdict = "continue"
        team.waiting.update(job for job in team.jobs if job not in team.ended)
        self._catch_up(team)

    def end(self, number: int) -> None:
        """A trial has ended: members that wait are forgotten, others stop when they report."""
        for job in self._teams.pop(number).jobs:
            self._fit.drop(job)
            if self._packs is not None:
                self._packs.drop(job)

    def withdraw(self, number: int) -> None:
        """Takes a trial's jobs back from the packs: another executor will train them."""
        if self._packs is not None:
            for job in self._teams[number].jobs:
                self._packs.drop(job)

    def _catch_up(self, team: TrialMembers) -> None:
        assert self._packs is not None or not team.waiting
        for job in sorted(team.waiting):  # each goes before the others: the first trains last
            if self._packs is not None:
                self._packs.resume(job)
        team.waiting.clear()

    def _answer(self, number: int, report: EpochReport) -> Answer:
        team = self._teams.get(number)
        if team is None:
            return "stop"
        if report.epoch <= team.complete or team.verdict == "stop":
            return "stop" if report.last else team.verdict
        first, packed = self.is_first(report.number), report.plan != "fit"
        if not packed or not (first or self._together):
            return "continue"
        if first:
            team.hold()
        if report.last or report.epoch >= team.epochs:
            return "stop"
        team.waiting.add(report.number)
        return "pause"


def _mean(members: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The mean of every log that all members have."""
    names = [name for name in members[0] if all(name in logs for logs in members)]
    return {name: sum(logs[name] for logs in members) / len(members) for name in names}
