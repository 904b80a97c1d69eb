"""The members of a trial: the same hparams trained from several seeds, or on the folds of the data.

A trial has ``repeats`` times ``folds`` members, most often one. To executors each member is a job
of its own. This module combines the reports of members into reports of the trial: the mean of every
log, once the last member has reported an epoch. All members get the answer to that report.

Members may sit in different packs, or wait for a slot while other members train. A member that is
ahead waits for the others in two cases. With a pruner every member waits, because all follow one
verdict. The first member always waits: its model is the trial's model, and only the mean over all
members shows whether an epoch was the best. Executors begin with the last member, so that the first
member is rarely ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from paceline.data.inputs import TrialInputs
from paceline.executor.base import (
    Answer,
    EpochReport,
    Job,
    JobSpec,
    LateAnswer,
    SearchOutlook,
    SiblingModelBuilder,
    Weights,
)
from paceline.executor.fit import FitExecutor
from paceline.executor.pack_executor import PackExecutor
from paceline.pack.callbacks.per_trial import CallbackFactory
from paceline.search_space import HyperParameters
from paceline.search_space.parameter import Parameter
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.search.running_trials import TrialMembers, UnfinishedTrials


class BuiltTrial(NamedTuple):
    """A trial ready for an executor."""

    model: Any  # compiled, of the first repeat
    epochs: int  # to train
    inputs: TrialInputs  # data, batch sizes and so on
    parameters: Sequence[Parameter] = ()  # that build declared
    costs: Mapping[str, float] = MappingProxyType({})  # where they are objectives
    why_fit: str | None = None  # why only the session can build the model, which is None then


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
    widths: SiblingModelBuilder | None = None,
) -> list[Job]:
    """Makes a job for each repeat of a trial, the last repeat first; folds are parts of a job.

    ``build`` makes the trial's model from a seed. ``files`` is what callbacks call the trial in
    names of files. ``widths`` builds models like the trial's, at other widths.
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
    widths: SiblingModelBuilder | None = None,
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
    share_widths: bool | str,
    outlook: SearchOutlook,
    job: int | None = None,
) -> SiblingModelBuilder | None:
    """Builds models like a trial's; None if it is to have a program of its own.

    ``build`` makes a model of hyperparameters, from the trial's seed. ``job`` is the number of the
    trial's first job, where a search that continues may ask for it.
    """
    if share_widths is False:
        return None
    other = SiblingModelBuilder(
        built.parameters,
        hparams,
        lambda values: build({**hparams, **values}),
        built.epochs * outlook.trained,
        share_widths is True,
        job,
        outlook,
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


@dataclass(eq=False, repr=False)
class MemberReports:
    """Makes reports of trials from the reports of their members."""

    size: int  # members of each trial; with 1, reports and answers pass through unchanged
    together: bool  # whether members wait for each other after every epoch, for a pruner's verdict
    packs: PackExecutor | None  # trains members side by side
    fit: FitExecutor  # trains the others one after another: there no member can wait for another
    trials: UnfinishedTrials
    # Trial -> fetches the weights of its first member, which has reported and has no answer yet.
    _fetch: dict[int, Callable[[], Weights]] = field(init=False, default_factory=dict)

    def jobs_of(self, number: int) -> range:
        """The numbers of a trial's jobs, the first member's first."""
        return range(number * self.size, (number + 1) * self.size)

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
        running = self.trials.running[self.trial_of(job)]
        return running.epoch if running.members is None else running.members.trained.get(job, 0)

    def is_first(self, job: int) -> bool:
        """Whether a job is its trial's first member, which executors begin with last."""
        return job % self.size == 0

    def receive(self, report: EpochReport, of_trial: Callable[[EpochReport], Answer]) -> LateAnswer:
        """Handles the report of a job; ``of_trial`` that of its trial, once all members have it.

        The answer may be a function that returns it, to be called when the round has all reports.
        """
        number = self.trial_of(report.number)
        running = self.trials.get(number)
        if running is None:
            return "stop"  # another member has failed
        if self.size == 1:
            return of_trial(report)
        if running.members is None:
            running.members = TrialMembers()
        members = running.members
        members.add(report)
        if self.is_first(report.number):
            self._fetch[number], members.held = report.weights, None
            if report.last and report.epoch < running.epochs:
                # Its pack drops the weights, and the other members may train on.
                members.held = self._fetch.pop(number)()
        while (mean := self._mean(number, members, report)) is not None:
            members.verdict = of_trial(mean)
            if members.verdict != "continue":
                break
            self._catch_up(members)
        return lambda: self._answer(number, report)

    def _mean(self, number: int, members: TrialMembers, report: EpochReport) -> EpochReport | None:
        """The trial's next epoch, once all members have trained it or ended before it; else None.

        Its logs are means over the members; plan and program are those of ``report``, the last one.
        """
        logs = members.due(self.jobs_of(number))
        if logs is None:
            return None
        members.complete += 1
        del members.reports[members.complete]
        seconds, members.seconds = members.seconds, 0.0
        wall, members.wall = max(members.wall.values(), default=0.0), {}
        held = members.held
        names = [name for name in logs[0] if all(name in each for each in logs)]
        return replace(
            report,
            number=number,
            epoch=members.complete,
            logs={name: sum(each[name] for each in logs) / len(logs) for name in names},
            seconds=seconds,
            weights=self._fetch[number] if held is None else lambda: held,
            members=logs,
            state=None,
            wall=wall,
            last=len(members.ended) == self.size and not members.reports,
        )

    def resume(self, number: int) -> None:
        """Trains all members of a paused trial on."""
        members = self.trials.running[number].members or TrialMembers()
        members.verdict = "continue"
        members.waiting.update(job for job in self.jobs_of(number) if job not in members.ended)
        self._catch_up(members)

    def end(self, number: int) -> None:
        """Forgets a trial that has ended: its members that train stop when they report."""
        self._fetch.pop(number, None)
        for job in self.jobs_of(number):
            self.fit.drop(job)
            if self.packs is not None:
                self.packs.drop(job)

    def in_slot(self, number: int) -> bool:
        """Whether packs train a job that has the number of one of a trial's."""
        return self.packs is not None and any(map(self.packs.in_slot, self.jobs_of(number)))

    def withdraw(self, number: int) -> None:
        """Takes a trial's jobs back from the packs, because ``fit`` will train them."""
        if self.packs is not None:
            for job in self.jobs_of(number):
                self.packs.drop(job)

    def _catch_up(self, members: TrialMembers) -> None:
        assert self.packs is not None or not members.waiting
        # Each goes to the front of the queue: the first trains last.
        for job in sorted(members.waiting):
            if self.packs is not None:
                self.packs.resume(job)
        members.waiting.clear()

    def _answer(self, number: int, report: EpochReport) -> Answer:
        running, first = self.trials.get(number), self.is_first(report.number)
        fetch = self._fetch.pop(number, None) if first else None
        if running is None:
            return "stop"
        members, packed = running.members, report.plan != "fit"
        assert members is not None
        if report.epoch <= members.complete or members.verdict == "stop":
            return "stop" if report.last else members.verdict
        if not packed or not (first or self.together):
            return "continue"
        if fetch is not None:
            members.held = fetch()
        if report.last or report.epoch >= running.epochs:
            return "stop"
        members.waiting.add(report.number)
        return "pause"
