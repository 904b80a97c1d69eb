"""The members of a trial: the same hparams trained from several seeds, or on the folds of the data.

A trial has ``repeats`` times ``folds`` members, most often one. To executors each member is a job
of its own. This module makes reports of the trial from the reports of its members: the mean of
every log, once the last member has reported an epoch. All members get the answer to that report.

Members may sit in different packs, or wait for a slot while other members train. A member that is
ahead waits for the others in two cases. With a pruner every member waits, because all follow one
verdict. The first member always waits, because its model is the model of the trial, and only the
mean over all members shows whether an epoch was the best. Executors begin with the last member, so
that the first member is rarely ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from paceline.data.inputs import TrialInputs
from paceline.executor.base import (
    Answer,
    EpochReport,
    Job,
    JobSpec,
    LateAnswer,
    OtherModels,
    Weights,
)
from paceline.pack.callbacks.per_trial import CallbackFactory
from paceline.program.files import get_parts, put_parts
from paceline.search_space import HyperParameters
from paceline.search_space.parameter import Parameter
from paceline.study.trials import expected_by_time
from paceline.tuner.arguments import SearchArguments


class DropsJobs(Protocol):
    """An executor that can forget jobs."""

    def drop(self, number: int) -> None:
        """Forgets a job that does not train now."""
        ...


class PausesJobs(DropsJobs, Protocol):
    """An executor that can also pause jobs."""

    def resume(self, number: int) -> None:
        """Trains a paused job on."""
        ...

    def in_slot(self, number: int) -> bool:
        """Whether a job is in a slot."""
        ...


class HandlesReports(Protocol):
    """Handles the reports of whole trials."""

    def of_trial(self, report: EpochReport) -> Answer:
        """Handles an epoch of a trial, and says what becomes of the trial."""
        ...


class BuiltTrial(NamedTuple):
    """A trial ready for an executor."""

    model: Any  # compiled, of the first repeat
    epochs: int  # to train
    inputs: TrialInputs  # data, batch sizes and so on
    parameters: Sequence[Parameter] = ()  # that build declared
    costs: Mapping[str, float] = MappingProxyType({})  # where they are objectives


def member_seed(seed: int, repeat: int) -> int:
    """The seed of one repeat, 31 bits; the first repeat has the trial's own seed."""
    if repeat == 0:
        return seed
    return int(np.random.SeedSequence([seed, repeat]).generate_state(1)[0]) >> 1


def jobs_of(
    number: int,
    seed: int,
    built: BuiltTrial,
    arguments: SearchArguments,
    build: Callable[[int], Any],
    hparams: Mapping[str, Any],
    files: str = "{trial}",
    widths: OtherModels | None = None,
) -> list[Job]:
    """Makes a job for each repeat of a trial, the last repeat first; folds are parts of a job.

    ``build`` makes the trial's model from a seed. Callbacks that depend on ``hparams`` are given
    them; ``files`` is what callbacks call the trial in names of files. ``widths`` builds models
    like the trial's, at other widths; None: it trains by itself.
    """
    # Models are built in the order of the repeats.
    jobs = [
        job_of(
            JobSpec(
                number=number * arguments.n_members + repeat * (arguments.folds or 1),
                trial=number,
                seed=seed,
                epochs=built.epochs,
                hparams=hparams,
                repeat=repeat,
            ),
            built,
            arguments,
            build,
            files,
            widths,
        )
        for repeat in range(arguments.repeats)
    ]
    return jobs[::-1]


def job_of(
    spec: JobSpec,
    built: BuiltTrial,
    arguments: SearchArguments,
    build: Callable[[int], Any],
    files: str = "{trial}",
    widths: OtherModels | None = None,
) -> Job:
    """Makes the job of one repeat of a trial; arguments as of ``jobs_of``."""
    callbacks, own = None, member_seed(spec.seed, spec.repeat)
    if arguments.callbacks is not None:
        callbacks = partial(
            _callbacks_of, arguments.callbacks, spec.hparams, files, arguments.n_members
        )
    folds = arguments.loaded.folds
    return Job(
        number=spec.number,
        seed=own,
        epochs=spec.epochs,
        batch_size=built.inputs.batch_size,
        model=built.model if spec.repeat == 0 else build(own),
        rebuild=partial(build, own),
        folds=folds if spec.fold is None else (folds[spec.fold],),
        counts=spec.repeat == 0,
        callbacks=callbacks,
        setting=built.inputs,
        widths=widths,
        spec=spec,
    )


def other_models(
    build: Callable[[dict[str, Any]], Any],
    hparams: Mapping[str, Any],
    built: BuiltTrial,
    widths: str,
    n_trials: int,
    job: int | None = None,
) -> OtherModels | None:
    """Builds models like a trial's; None where it is to have a program of its own.

    ``build`` makes a model of hyperparameters, from the trial's seed; ``widths`` is as the argument
    of ``Tuner``. ``job`` is the number of the trial's first job, where a search that goes on may
    ask for it.
    """
    if widths == "apart":
        return None
    expected, level = n_trials, 0
    if not expected:
        expected = expected_by_time(job or 0)
        level = (expected // expected_by_time(0)).bit_length() - 1
    other = OtherModels(
        built.parameters,
        hparams,
        lambda values: build({**hparams, **values}),
        built.epochs,
        widths == "together",
        job,
        expected,
        level,
    )
    any_width = any(type(value) is int for value in hparams.values())
    return other if any_width or other.choices() else None


def _callbacks_of(
    callbacks: CallbackFactory,
    hparams: Mapping[str, Any],
    files: str,
    size: int,
    job: int,
    model: Any,
) -> list[Any]:
    """New callbacks of a member of a trial."""
    trial = str(job) if size == 1 else f"{job // size}-{job % size}"
    return callbacks.of(files.format(trial=trial), HyperParameters(values=hparams), model)


class TrialMembers:
    """The ``size`` members of one trial, by the numbers of their jobs."""

    def __init__(self, number: int, size: int, epochs: int) -> None:
        self.number, self.epochs = number, epochs
        self.jobs = range(number * size, (number + 1) * size)  # the first member's first
        self.complete = 0  # epochs that all members have reported
        self.trained = dict.fromkeys(self.jobs, 0)  # job -> epochs it has reported
        self.waiting: set[int] = set()  # jobs paused until the others have caught up
        self.verdict: Answer = "continue"  # to the last epoch that all have reported
        # Job -> the latest value of each of its logs; not every epoch validates.
        self.latest: dict[int, dict[str, float]] = {}
        self.ended: set[int] = set()  # jobs that train no further
        self._reports: dict[int, dict[int, Mapping[str, float]]] = {}  # epoch -> job -> logs
        self._held: Weights | None = None  # what ``_fetch`` returns, once it is copied
        self._seconds = 0.0
        self._wall = dict.fromkeys(self.jobs, 0.0)  # since the trial's last epoch
        self._fetch: Callable[[], Weights] | None = None  # the first member's latest weights

    def add(self, report: EpochReport) -> None:
        """Takes in an epoch of a member."""
        job, epoch = report.number, report.epoch
        self.trained[job] = epoch
        self._seconds += report.seconds
        self._wall[job] += report.wall
        self._reports.setdefault(epoch, {})[job] = report.logs
        self.latest[job] = {**self.latest.get(job, {}), **report.logs}
        if report.last:
            self.ended.add(job)
        if job == self.jobs[0]:
            self._fetch, self._held = report.weights, None
            if report.last and epoch < self.epochs:
                self.hold()  # its pack drops the weights, and other members may train on

    def due(self, report: EpochReport) -> EpochReport | None:
        """The trial's next epoch, once all members have trained it or ended before it; else None.

        Its logs are means over the members; plan and program are those of ``report``, the last one.
        """
        epoch = self.complete + 1
        logs = self._reports.get(epoch, {})
        if not logs:
            return None
        # A member that a callback has stopped counts with the last value of each log.
        logs = {job: self.latest[job] for job in self.ended} | logs
        logs_of_all = [logs[job] for job in self.jobs if job in logs]
        if len(logs_of_all) < len(self.jobs):
            return None
        del self._reports[epoch]
        assert self._fetch is not None
        self.complete, seconds, self._seconds = epoch, self._seconds, 0.0
        wall, self._wall = max(self._wall.values()), dict.fromkeys(self.jobs, 0.0)
        return EpochReport(
            number=self.number,
            epoch=epoch,
            logs=_mean(logs_of_all),
            seconds=seconds,
            program=report.program,
            plan=report.plan,
            weights=self._fetch,
            members=logs_of_all,
            wall=wall,
            worker=report.worker,
            last=len(self.ended) == len(self.jobs) and not self._reports,
        )

    def hold(self) -> None:
        """Copies the first member's weights, for when the other members have caught up."""
        assert self._fetch is not None
        self._hold(self._fetch())

    def _hold(self, weights: Weights) -> None:
        self._held, self._fetch = weights, lambda: weights

    def snapshot(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """How far each member is, as JSON values; weights that are held go into ``arrays``."""
        sizes = None
        if self._held is not None:
            sizes = put_parts(f"team.{self.number}", self._held, arrays)
        return {
            "complete": self.complete,
            "trained": list(self.trained.items()),
            "waiting": sorted(self.waiting),
            "verdict": self.verdict,
            "reports": [
                [epoch, job, dict(logs)]
                for epoch, found in self._reports.items()
                for job, logs in found.items()
            ],
            "latest": list(self.latest.items()),
            "ended": sorted(self.ended),
            "seconds": self._seconds,
            "wall": list(self._wall.items()),
            "held": sizes,
        }

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Puts the members back to where they were when ``snapshot`` was called."""
        self.complete, self.verdict = facts["complete"], facts["verdict"]
        self.trained, self.waiting = dict(facts["trained"]), set(facts["waiting"])
        for epoch, job, logs in facts["reports"]:
            self._reports.setdefault(epoch, {})[job] = logs
        self.ended, self.latest = set(facts["ended"]), dict(facts["latest"])
        self._seconds, self._wall = facts["seconds"], dict(facts["wall"])
        if facts["held"] is not None:
            trainable, fixed = get_parts(f"team.{self.number}", facts["held"], arrays)
            self._hold((trainable, fixed))


@dataclass(eq=False, repr=False)
class MemberReports:
    """Makes reports of trials from the reports of their members."""

    size: int  # members of each trial; with 1, reports and answers pass through unchanged
    together: bool  # whether members wait for each other after every epoch, for a pruner's verdict
    packs: PausesJobs | None  # trains members side by side
    fit: DropsJobs  # trains the others one after another: there no member can wait for another
    _trials: dict[int, TrialMembers] = field(init=False, default_factory=dict)

    def begin(self, number: int, epochs: int) -> TrialMembers:
        """Expects reports of the members of a trial."""
        self._trials[number] = TrialMembers(number, self.size, epochs)
        return self._trials[number]

    def jobs_of(self, number: int) -> range:
        """The numbers of a trial's jobs, the first member's first."""
        return range(number * self.size, (number + 1) * self.size)

    def snapshot(self, numbers: Iterable[int], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """How far members of trials are, as JSON values and arrays; empty with one member each."""
        if self.size == 1:
            return {}
        return {str(number): self._trials[number].snapshot(arrays) for number in numbers}

    def restore(self, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Puts the members of trials that have begun back to where they were."""
        for number, was in facts.items():
            self._trials[int(number)].restore(was, arrays)

    def trial_of(self, job: int) -> int:
        """The number of the trial that a job is a member of."""
        return job // self.size

    def name_of(self, job: int, n_folds: int) -> str:
        """Names the member that a job is, for messages; empty for a trial's only member."""
        if self.size == 1:
            return ""
        repeat, fold = divmod(job % self.size, max(1, n_folds))
        parts = [f"repeat {repeat + 1}"] if self.size > max(1, n_folds) else []
        return " of " + ", ".join([*parts, *([f"fold {fold + 1}"] if n_folds else [])])

    def trained(self, job: int) -> int:
        """Epochs that a job of a running trial has reported."""
        return self._trials[self.trial_of(job)].trained[job]

    def is_first(self, job: int) -> bool:
        """Whether a job is its trial's first member, which executors begin with last."""
        return job % self.size == 0

    def receive(self, report: EpochReport, handler: HandlesReports) -> LateAnswer:
        """Handles the report of a job; ``handler`` that of the trial, once all members have it.

        The answer may be a function that returns it, to be called when the round has all reports.
        """
        number = self.trial_of(report.number)
        members = self._trials.get(number)
        if members is None:
            return "stop"  # another member has failed
        if self.size == 1:
            members.trained[report.number] = report.epoch
            return handler.of_trial(report)
        members.add(report)
        while (mean := members.due(report)) is not None:
            members.verdict = handler.of_trial(mean)
            if members.verdict != "continue":
                break
            self._catch_up(members)
        return lambda: self._answer(number, report)

    def resume(self, number: int) -> None:
        """Trains all members of a paused trial on."""
        members = self._trials[number]
        members.verdict = "continue"
        members.waiting.update(job for job in members.jobs if job not in members.ended)
        self._catch_up(members)

    def end(self, number: int) -> None:
        """Forgets a trial that has ended: its members that train stop when they report."""
        for job in self._trials.pop(number).jobs:
            self.fit.drop(job)
            if self.packs is not None:
                self.packs.drop(job)

    def in_slot(self, number: int) -> bool:
        """Whether packs train a job that has the number of one of a trial's."""
        return self.packs is not None and any(map(self.packs.in_slot, self.jobs_of(number)))

    def withdraw(self, number: int) -> None:
        """Takes a trial's jobs back from the packs, because ``fit`` will train them."""
        if self.packs is not None:
            for job in self._trials[number].jobs:
                self.packs.drop(job)

    def _catch_up(self, members: TrialMembers) -> None:
        assert self.packs is not None or not members.waiting
        for job in sorted(
            members.waiting
        ):  # each goes to the front of the queue: the first trains last
            if self.packs is not None:
                self.packs.resume(job)
        members.waiting.clear()

    def _answer(self, number: int, report: EpochReport) -> Answer:
        members = self._trials.get(number)
        if members is None:
            return "stop"
        if report.epoch <= members.complete or members.verdict == "stop":
            return "stop" if report.last else members.verdict
        first, packed = self.is_first(report.number), report.plan != "fit"
        if not packed or not (first or self.together):
            return "continue"
        if first:
            members.hold()
        if report.last or report.epoch >= members.epochs:
            return "stop"
        members.waiting.add(report.number)
        return "pause"


def _mean(members: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The mean of every log that all members have."""
    names = [name for name in members[0] if all(name in logs for logs in members)]
    return {name: sum(logs[name] for logs in members) / len(members) for name in names}
