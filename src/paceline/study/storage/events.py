"""Records of what happened in a study, which ``WriteBehind`` writes to a storage in their order."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from optuna.trial import FrozenTrial

from paceline.study.trials.trial_codec import OPTUNA_STATES


@dataclass(frozen=True, slots=True)
class TrialCreated:
    """A trial that began to run, in its stored form; only the writer changes that from now on.

    ``number`` is the one that the trial has unless another program adds trials before it;
    ``numbered`` is told the storage's, once it is written.
    """

    number: int
    template: FrozenTrial
    numbered: Future[int] = field(default_factory=Future, compare=False)


@dataclass(frozen=True, slots=True)
class TrialTaken:
    """A trial of the storage that waited and runs now, with what was chosen for it."""

    number: int
    template: FrozenTrial


@dataclass(frozen=True, slots=True)
class EpochReported:
    """The objective after an epoch, counted from 1."""

    number: int
    epoch: int
    value: float


@dataclass(frozen=True, slots=True)
class TrialAnnotated:
    """Attributes of a running trial, JSON values."""

    number: int
    attrs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """The end of a trial, complete, pruned or failed, with a value for each objective, or none.

    ``noted`` are system attributes: the constraints as the sampler has evaluated them.
    """

    number: int
    state: str
    values: list[float] | None
    attrs: dict[str, Any] = field(default_factory=dict)
    when: datetime = field(default_factory=datetime.now)
    noted: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StudyDescribed:
    """The contents of the study's attribute ``paceline``, JSON values."""

    meta: dict[str, Any]


OfBegunTrial = EpochReported | TrialAnnotated | TrialFinished
Record = TrialCreated | TrialTaken | OfBegunTrial | StudyDescribed


def fold(record: OfBegunTrial, trial: FrozenTrial) -> None:
    """Puts what a record says into a trial in its stored form."""
    match record:
        case EpochReported(_, epoch, value):
            trial.intermediate_values[epoch] = value
        case TrialAnnotated(_, attrs):
            trial.user_attrs = {**trial.user_attrs, **attrs}
        case TrialFinished(_, state, values, attrs, when, noted):
            trial.user_attrs = {**trial.user_attrs, **attrs}
            trial.system_attrs = {**trial.system_attrs, **noted}
            trial.state, trial.values = OPTUNA_STATES[state], values
            trial.datetime_complete = when
