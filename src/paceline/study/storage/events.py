"""Records of what happened in a study, which ``WriteBehind`` writes to a storage in their order."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from optuna.trial import FrozenTrial

from paceline.study.trial_codec import OPTUNA_STATES


class TrialOwner(Protocol):
    """Says whether trials that were begun without the storage may still be written to it."""

    def still_mine(self) -> bool:
        """Whether no other worker has taken this one for dead.

        Raises StorageError where the storage does not answer.
        """
        ...


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
    """The end of a trial, with the attributes known by then: complete, pruned or failed.

    It has a value for each objective, or none. ``noted`` are system attributes: the constraints as
    the sampler has evaluated them.
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


Record = TrialCreated | TrialTaken | EpochReported | TrialAnnotated | TrialFinished | StudyDescribed


def folded(batch: list[Record]) -> list[Record]:
    """Return a batch in which each new trial's later records are part of its first one.

    A slow storage (SQLite syncs the disk for every call) gets large batches, in which many trials
    begin and end: each of them then takes one call instead of some twenty.
    """
    new: dict[int, FrozenTrial] = {}
    others: list[Record] = []
    for record in batch:
        if isinstance(record, TrialCreated):
            new[record.number] = record.template
        if isinstance(record, TrialCreated | StudyDescribed) or record.number not in new:
            others.append(record)
            continue
        template = new[record.number]
        match record:
            case EpochReported(_, epoch, value):
                template.intermediate_values[epoch] = value
            case TrialAnnotated(_, attrs):
                template.user_attrs = {**template.user_attrs, **attrs}
            case TrialFinished(_, state, values, attrs, when, noted):
                template.user_attrs = {**template.user_attrs, **attrs}
                template.system_attrs = {**template.system_attrs, **noted}
                template.state, template.values = OPTUNA_STATES[state], values
                template.datetime_complete = when
    return others
