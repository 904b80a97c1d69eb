"""One trial of a study, trained again alone and compared with its record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paceline.data.adapters import is_data_set
from paceline.errors import BuildError, StudyError, UsageError
from paceline.executor.base import Answer, EpochReport, Job, LateAnswer, PackOptions
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.program.canonical import Unpackable
from paceline.search_space import HyperParameters
from paceline.study.trials.lineage import LineageSegment
from paceline.study.trials.table import note_logs
from paceline.study.trials.trial import Trial
from paceline.tuner.arguments.arguments import ARGUMENTS, SearchArguments
from paceline.tuner.search.members import BuiltTrial, MemberReports, jobs_of
from paceline.tuner.search.running_trials import UnfinishedTrials

#: Other trials of a search whose models are traced before one is trained again.
_SHOWN = 4


@dataclass(frozen=True)
class Reproduction:
    """A trial that was trained again.

    Attributes:
        trial: The trial as it is recorded.
        plan: The plan by which it was trained now: sequential or fit.
        history: Metric name -> one value per epoch.
        notes: Differences from the search: versions, device, data, callbacks.
    """

    trial: Trial
    plan: str
    history: dict[str, list[float]]
    notes: tuple[str, ...] = ()

    @property
    def differences(self) -> dict[str, float]:
        """Metric name -> the largest difference of an epoch; NaN where one lacks it."""
        found = {}
        for name in dict.fromkeys([*self.trial.history, *self.history]):
            ours, theirs = self.history.get(name, []), self.trial.history.get(name, [])
            if [math.isnan(value) for value in ours] != [math.isnan(value) for value in theirs]:
                found[name] = math.nan
                continue
            pairs = zip(ours, theirs, strict=True)
            found[name] = max((abs(a - b) for a, b in pairs if not math.isnan(a)), default=0)
        return found

    def to_json(self) -> dict[str, Any]:
        """What ``paceline reproduce --json`` prints."""
        return {
            "number": self.trial.number,
            "plan": {"recorded": self.trial.plan, "now": self.plan},
            "differences": self.differences,
            "history": self.history,
            "notes": list(self.notes),
        }


def arguments_again(
    stored: Mapping[str, Any], given: Mapping[str, Any], n_epochs: int, x: Any
) -> dict[str, Any]:
    """The arguments of ``search`` to train one trial with, as it was, without x and y.

    ``stored`` are the arguments of the search: no functions of hp, which must be given again.
    ``given`` come first. A data set ``x`` has its own batches.
    """
    for name, spec in ARGUMENTS.items():
        by_hp = spec.by_hp and name in stored and stored[name] is None and not is_data_set(x)
        if by_hp and name not in ("epochs", *given):
            raise UsageError(
                f"{name} was a function of hp in the search, which a study does not store. Pass "
                f"{name}= as in the search, None if it had none."
            )
    found = {name: value for name, value in stored.items() if value is not None}
    found.pop("callbacks", None)  # the study remembers their names alone
    # Those that are not in the key of a checkpoint say when a search ends, not how a trial trains.
    found = {
        name: value
        for name, value in {**found, **given}.items()
        if name != "verbose" and (name not in ARGUMENTS or ARGUMENTS[name].key)
    }
    before = found.get("initial_epoch")
    found["epochs"] = n_epochs + (0 if callable(before) else int(before or 0))
    return found


def train_again(
    builder: ModelBuilder,
    arguments: SearchArguments,
    line: Sequence[LineageSegment],
    beside: Iterable[Trial] = (),
) -> tuple[str, dict[str, list[float]]]:
    """Trains a trial alone, for as many epochs as are recorded; returns its plan and history.

    The trial is the last one of ``line``. Each trial trains its epochs of the line, and the next
    one takes over. The history is that of the whole line.

    ``beside`` are trials of the same search, in its order. Inputs of a program are the numbers that
    differed between trials before it was compiled, and another program rounds differently. So
    models of the first few trials that trained in it are shown again.
    """
    trial = line[-1].trial
    if line[0].trial.continued_at is not None:
        raise StudyError(
            f"trial {line[0].trial.number} cannot be trained again: it began after epoch "
            f"{line[0].trial.continued_at} with weights of trial {line[0].trial.continued_from}, "
            "which the study no longer has."
        )
    data = arguments.pack_data if trial.plan != "fit" else None
    packs = None
    if data is not None:
        packs = LocalExecutor(data, PackOptions(slots=1, plan="sequential"))
    replay = _LineageReplay(builder, arguments, packs, line[-1].last)
    replay.show(
        each.hparams
        for each in beside
        if each.number != trial.number and each.program_id == trial.program_id is not None
    )
    try:
        for before, now in zip([None, *line[:-1]], line, strict=True):
            if now.first <= now.last:
                replay.train(now, None if before is None else before.trial)
    finally:
        if packs is not None:
            packs.close()
    return replay.plan, replay.history


class _LineageReplay:
    """Trains trials in turn, ``epochs`` in all, and records these; in ``fit`` without ``packs``."""

    def __init__(
        self,
        builder: ModelBuilder,
        arguments: SearchArguments,
        packs: LocalExecutor | None,
        epochs: int,
    ) -> None:
        self._builder, self._arguments = builder, arguments
        self._packs, self._epochs = packs, epochs
        self._fit = FitExecutor(arguments.fit, batched=arguments.loaded.batched)
        self._trials = UnfinishedTrials(())
        self._members = MemberReports(arguments.n_members, False, packs, self._fit, self._trials)
        self._until = 0  # the epoch after which the present trial waits, or ends
        self.plan = "none"
        self.history: dict[str, list[float]] = {}

    def show(self, configurations: Iterable[Mapping[str, Any]]) -> None:
        """Traces models that are not trained: in what they differ is an input of the program."""
        if self._packs is None:
            return
        for hparams in islice(configurations, _SHOWN):
            hp = HyperParameters(values=hparams)
            with suppress(Exception):  # of a trial that failed; the one to train says why it fails
                model = self._builder(hp, 0)
                self._packs.pretrace(model, self._arguments.inputs_for(hp, model))

    def train(self, segment: LineageSegment, source: Trial | None) -> None:
        """Trains the epochs that one trial has of the line, as a copy of ``source`` or from the
        start.
        """
        trial, packs = segment.trial, self._packs
        self._until = segment.last
        self._trials.begin(trial.number, self._epochs)
        model, jobs = self._jobs(trial)
        try:
            if packs is None:
                raise Unpackable("it trained in fit")
            for job in jobs:
                packs.submit(job)
        except Unpackable as why:
            if source is not None:
                raise StudyError(
                    f"trial {trial.number} began as a copy, which needs packs, but it cannot be "
                    f"packed now: {why}."
                ) from None
            self._members.withdraw(trial.number)
            for job in jobs:
                self._fit.submit(job)
        if packs is not None and source is not None:
            self._take_over(packs, trial, source, model)

        def failed(job: int, error: BaseException) -> None:
            raise BuildError(f"trial {trial.number} failed this time: {error}") from error

        def receive(report: EpochReport) -> LateAnswer:
            return self._members.receive(report, self.of_trial)

        while packs is not None and packs.busy:
            StopSignal.of_process().check()  # one that Python has dropped
            packs.advance(receive, lambda: False, failed)
        while self._fit.busy:
            self._fit.advance(receive, lambda: False, failed)

    def of_trial(self, report: EpochReport) -> Answer:
        """Records an epoch, and says whether it was the last."""
        self.plan = report.plan
        before = max(map(len, self.history.values()), default=0)
        note_logs(self.history, before + 1, report.logs)
        if report.epoch >= self._until:
            return "stop" if self._until >= self._epochs else "pause"
        return "continue"

    def _jobs(self, trial: Trial) -> tuple[Any, list[Job]]:
        """The model of a trial, and its jobs."""
        arguments = self._arguments
        hp = HyperParameters(values=trial.hparams)
        inputs = arguments.inputs_for(
            hp, self._builder(hp.copy(), trial.seed) if arguments.reader.in_order else None
        )

        def build(seed: int) -> Any:
            return self._builder(HyperParameters(values=trial.hparams), seed)

        built = BuiltTrial(build(trial.seed), self._epochs, inputs)
        files = "{trial}-again"  # the files of the recorded trial stay as they are
        jobs = jobs_of(trial.number, trial.seed, built, arguments, build, trial.hparams, files)
        return built.model, jobs

    def _take_over(self, packs: LocalExecutor, trial: Trial, source: Trial, model: Any) -> None:
        """Has a trial that was submitted begin where the trial waits that it copies."""
        from paceline.tuner.population.effects import Effects  # most trials are not copies

        effects = Effects(self._builder, self._arguments, packs.copies, source.seed)
        own = model.non_trainable_variables
        compose = effects.compose(source.hparams, trial.hparams, own)
        if packs.copies.begin(trial.number, source.number, compose) is None:
            raise StudyError(
                f"trial {trial.number}: its model has other variables than that of trial "
                f"{source.number}, which it continues. Has build(hp) changed?"
            )
        packs.drop(source.number)
