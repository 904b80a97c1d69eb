"""The writer: a thread that puts a study's records into its storage, so that nobody waits."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import PacelineError
from paceline.storage import Store
from paceline.study_record import META
from paceline.trial_record import OPTUNA_STATES


@dataclass(frozen=True, slots=True)
class Created:
    """A trial that began to run, in its stored form, which is the writer's from now on."""

    number: int
    template: FrozenTrial


@dataclass(frozen=True, slots=True)
class Reported:
    """The objective after an epoch, counted from 1."""

    number: int
    epoch: int
    value: float


@dataclass(frozen=True, slots=True)
class Annotated:
    """Attributes of a running trial, JSON values."""

    number: int
    attrs: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of a trial, with the attributes known by then: complete, pruned or failed."""

    number: int
    state: str
    value: float | None
    attrs: dict[str, Any] = field(default_factory=dict)
    when: datetime = field(default_factory=datetime.now)


@dataclass(frozen=True, slots=True)
class Described:
    """What only Paceline knows of the study."""

    meta: dict[str, Any]


Record = Created | Reported | Annotated | Finished | Described


class Writer:
    """Writes records in the order given, a batch at a time, in a thread of its own.

    Attributes:
        cpu_seconds: Processor time of the thread so far.
    """

    # Records of a batch: a journal's lock is then held for a tenth of a second at most.
    BATCH = 5000

    def __init__(self, store: Store) -> None:
        """Collect records for a storage; nothing is written before ``start``."""
        self.cpu_seconds = 0.0
        self._store = store
        self._study = 0
        # Paceline's trial number -> the storage's trial id.
        self._ids: dict[int, int] = {}
        self._records: collections.deque[Record] = collections.deque()
        self._change = threading.Condition()
        self._unwritten = 0
        self._hurry = False
        self._closing = False
        self._error: PacelineError | None = None
        self._thread: threading.Thread | None = None

    @property
    def started(self) -> bool:
        """Whether records go to the storage, rather than being kept for later."""
        return self._thread is not None

    def start(self, study: str) -> None:
        """Begin to write.

        Args:
            study: Name of the study, which exists in the storage.

        Raises:
            StorageError: The storage cannot be read.
        """
        self._study = self._store.study_id(study)
        # A daemon: an interrupted program ends; whoever opened the study closes it at exit.
        self._thread = threading.Thread(target=self._run, name="paceline-writer", daemon=True)
        self._thread.start()

    def put(self, records: Iterable[Record]) -> None:
        """Hand records over; returns at once.

        Raises:
            StorageError: An earlier record could not be written; none is written after that.
        """
        with self._change:
            self._check()
            if self._closing:
                raise RuntimeError("the study is closed; open it again to go on")
            before = len(self._records)
            self._records.extend(records)
            self._unwritten += len(self._records) - before
            if not before:  # the thread sleeps only while there is nothing to do
                self._change.notify_all()

    def flush(self) -> None:
        """Wait until everything handed over is in the storage.

        Raises:
            StorageError: It could not be written.
        """
        with self._change:
            if self.started:
                self._hurry = True
                self._change.notify_all()
                self._change.wait_for(lambda: not self._unwritten or self._error is not None)
                self._hurry = False
            self._check()

    def close(self) -> None:
        """Write what is left and end the thread; safe to call again.

        Raises:
            StorageError: Something could not be written.
        """
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise type(self._error)(*self._error.args)

    def _run(self) -> None:
        began = time.thread_time()
        try:
            while batch := self._next_batch():
                with self._store.errors("written"), self._store.batch():
                    for record in _folded(batch):
                        try:
                            self._write(record)
                        except RuntimeError:  # Optuna 4 has no class of its own for this
                            if not self._has_ended(record):
                                raise
                with self._change:
                    self._unwritten -= len(batch)
                    self.cpu_seconds = time.thread_time() - began
                    self._change.notify_all()
        except PacelineError as error:
            with self._change:
                self._error = error
                self._records.clear()
                self._change.notify_all()

    def _next_batch(self) -> list[Record]:
        """Wait for records and return some; an empty list says that there will be no more."""
        with self._change:
            self._change.wait_for(lambda: self._records or self._closing)
            self._change.wait_for(
                lambda: self._hurry or self._closing or len(self._records) >= self.BATCH,
                timeout=self._store.linger,
            )
            count = min(len(self._records), self.BATCH)
            return [self._records.popleft() for _ in range(count)]

    def _write(self, record: Record) -> None:
        storage = self._store.storage
        match record:
            case Created(number, template):
                trial = storage.create_new_trial(self._study, template)
                if not template.state.is_finished():
                    self._ids[number] = trial
            case Reported(number, epoch, value):
                storage.set_trial_intermediate_value(self._id(number), epoch, value)
            case Annotated(number, attrs):
                self._annotate(number, attrs)
            case Finished(number, state, value, attrs):
                self._annotate(number, attrs)
                values = None if value is None else [value]
                storage.set_trial_state_values(self._id(number), OPTUNA_STATES[state], values)
                del self._ids[number]  # an ended trial is not written again
            case Described(meta):
                storage.set_study_user_attr(self._study, META, meta)

    def _has_ended(self, record: Record) -> bool:
        """Return whether another process has ended the trial of a record: its word stands."""
        if isinstance(record, Created | Described):
            return False
        return self._store.storage.get_trial(self._id(record.number)).state.is_finished()

    def _annotate(self, number: int, attrs: dict[str, Any]) -> None:
        for key, value in attrs.items():
            self._store.storage.set_trial_user_attr(self._id(number), key, value)

    def _id(self, number: int) -> int:
        if number not in self._ids:  # a trial of an earlier session
            self._ids[number] = self._store.storage.get_trial_id_from_study_id_trial_number(
                self._study, number
            )
        return self._ids[number]


def _folded(batch: list[Record]) -> list[Record]:
    """Return the records with all that became of a trial that is new in this batch put into its
    first one.

    A storage that is slow (SQLite syncs the disk for every call) gets large batches, in which many
    trials begin and end: one call for each of them instead of some twenty.
    """
    new: dict[int, FrozenTrial] = {}
    others: list[Record] = []
    for record in batch:
        if isinstance(record, Created):
            new[record.number] = record.template
        if isinstance(record, Created | Described) or record.number not in new:
            others.append(record)
            continue
        template = new[record.number]
        match record:
            case Reported(_, epoch, value):
                template.intermediate_values[epoch] = value
            case Annotated(_, attrs):
                template.user_attrs = {**template.user_attrs, **attrs}
            case Finished(_, state, value, attrs, when):
                template.user_attrs = {**template.user_attrs, **attrs}
                template.state, template.value = OPTUNA_STATES[state], value
                template.datetime_complete = when
    return others
