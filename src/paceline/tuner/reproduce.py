"""One trial of a study, trained again alone and compared with its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import BuildError, StudyError
from paceline.executor.base import Answer, EpochReport, LateAnswer, PackOptions
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal
from paceline.program.canonical import Unpackable
from paceline.report.summary import STOPPING_RULES
from paceline.search_space import HyperParameters
from paceline.study.trial import Trial
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.members import BuiltTrial, MemberReports, jobs_of

#: Arguments of a search that are of use here, and their values when they are not given.
_NONE_GIVEN: dict[str, Any] = {
    "validation_data": None,
    "validation_split": 0.0,
    "batch_size": None,
    "n_trials": 1,
    "timeout": None,
    "shuffle": True,
    "class_weight": None,
    "sample_weight": None,
    "validation_batch_size": None,
    "initial_epoch": 0,
    "steps_per_epoch": None,
    "validation_steps": None,
    "validation_freq": 1,
    "allow_nan": False,
    "repeats": 1,
    "folds": None,
    "needs_end": False,
}


@dataclass(frozen=True)
class Reproduction:
    """A trial that was trained again.

    Attributes:
        trial: The trial as it is recorded.
        plan: The plan by which it was trained now: sequential or fit.
        history: Metric name -> one value per epoch.
        notes: What is not as it was in the search: versions, device, data, callbacks.
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
            if len(ours) != len(theirs):
                found[name] = float("nan")
            else:
                found[name] = max(
                    (abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0
                )
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
    stored: Mapping[str, Any], given: Mapping[str, Any], n_epochs: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments to train one trial with, as it was trained.

    Args:
        stored: The arguments of the search, as far as the study remembers them.
        given: Arguments that are given now; they come first.
        n_epochs: The number of epochs that are recorded of the trial.

    Returns:
        Arguments that ``Tuner.search`` has by name, and other arguments of ``fit``.
    """
    others = {**{name: value for name, value in stored.items() if value is not None}, **given}
    if "callbacks" not in given:
        others.pop("callbacks", None)  # the study remembers their names alone
    for name in ("epochs", "n_trials", "timeout", "trial_timeout", "verbose", *STOPPING_RULES):
        others.pop(name, None)
    known = {name: others.pop(name, value) for name, value in _NONE_GIVEN.items()}
    before = known["initial_epoch"]
    known["epochs"] = n_epochs + (0 if callable(before) else int(before))
    return known, others


def train_again(
    builder: ModelBuilder, arguments: SearchArguments, trial: Trial
) -> tuple[str, dict[str, list[float]]]:
    """Trains a trial alone, for as many epochs as are recorded.

    Args:
        builder: Builds the model.
        arguments: The arguments of the search that the trial is from.
        trial: The trial, of which the hparams, the seed and the number of epochs are used.

    Returns:
        The plan, and the history: metric name -> one value per epoch.

    Raises:
        StudyError: The trial began with the weights of another one.
        BuildError: The trial failed this time.
    """
    if trial.continued_at is not None:
        raise StudyError(
            f"trial {trial.number}: it began after epoch {trial.continued_at} with the weights of "
            f"trial {trial.continues}, so it cannot be trained alone; tuner.schedule("
            f"{trial.number}) has the hyperparameters of all its epochs, and "
            "paceline.FollowSchedule trains a model by them in fit."
        )
    recorder = _HistoryRecorder(trial.epochs)

    def receive(report: EpochReport) -> LateAnswer:
        return members.receive(report, recorder)

    def failed(job: int, error: BaseException) -> None:
        raise BuildError(f"trial {trial.number} failed this time: {error}") from error

    hp = HyperParameters(values=trial.hparams)
    inputs = arguments.inputs_for(
        hp, builder(hp.copy(), trial.seed) if arguments.reader.in_order else None
    )
    packs = _packs(arguments) if trial.plan != "fit" else None
    fit = FitExecutor(arguments.fit, batched=arguments.batched)
    members = MemberReports(arguments.n_members, False, packs, fit)
    members.begin(trial.number, trial.epochs)

    def build(seed: int) -> Any:
        return builder(HyperParameters(values=trial.hparams), seed)

    built = BuiltTrial(build(trial.seed), trial.epochs, inputs)
    files = "{trial}-again"  # the files of the recorded trial stay as they are
    jobs = jobs_of(trial.number, trial.seed, built, arguments, build, trial.hparams, files)
    try:
        if packs is None:
            raise Unpackable("it trained in fit")
        for job in jobs:
            packs.submit(job)
    except Unpackable:
        members.withdraw(trial.number)
        for job in jobs:
            fit.submit(job)
    try:
        while packs is not None and packs.busy:
            StopSignal.of_process().check()  # one that Python has dropped
            packs.advance(receive, lambda: False, failed)
        while fit.busy:
            fit.advance(receive, lambda: False, failed)
    finally:
        if packs is not None:
            packs.close()
    return recorder.plan, recorder.history


class _HistoryRecorder:
    """Records the epochs of one trial, and stops it after so many."""

    def __init__(self, epochs: int) -> None:
        self._epochs = epochs
        self.plan = "none"
        self.history: dict[str, list[float]] = {}

    def of_trial(self, report: EpochReport) -> Answer:
        self.plan = report.plan
        for name, value in report.logs.items():
            self.history.setdefault(name, []).append(float(value))
        return "stop" if report.epoch >= self._epochs else "continue"


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What is not as it was when a study was searched last, a sentence each.

    Args:
        before: The study's metadata.
        now: ``data`` (digest), ``versions`` and names of ``callbacks`` as they are now.
    """
    found = []
    callbacks = (before.get("search") or {}).get("callbacks")
    if callbacks != now["callbacks"]:
        names = callbacks if isinstance(callbacks, str) else ", ".join(callbacks or ["none"])
        found.append(f"the search had other callbacks ({names}); pass callbacks= as it had them")
    if before.get("data") not in (None, now["data"]):
        found.append("the data are not those that the study was searched with")
    then = before.get("versions") or {}
    for name, version in now["versions"].items():
        if then.get(name, version) != version:
            found.append(f"{name} is {version}, it was {then[name]}")
    return tuple(found)


def _packs(arguments: SearchArguments) -> LocalExecutor | None:
    data = arguments.pack_data
    if data is None:
        return None
    return LocalExecutor(data, PackOptions(slots=1, plan="sequential"))
