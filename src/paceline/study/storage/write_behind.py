"""A thread writes a study's records into its storage, so that the search does not wait for it."""

from __future__ import annotations

import collections
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import TYPE_CHECKING, Any

from optuna.trial import FrozenTrial

from paceline.errors import PacelineError, StorageError
from paceline.study.metadata import META
from paceline.study.storage.events import (
    EpochReported,
    Record,
    StudyDescribed,
    TrialAnnotated,
    TrialCreated,
    TrialFinished,
    TrialTaken,
    fold,
)
from paceline.study.storage.storage import Stopwatch, StudyStorage
from paceline.study.trials.trial_codec import OPTUNA_STATES, identity, kept_attributes

if TYPE_CHECKING:
    from paceline.study.storage.rdb_bulk import BulkWriter

#: Where lines of text for users go unless a search shows them.
LOGGED: Callable[[str], None] = logging.getLogger("paceline").info


class WriteBehind:
    """Writes records in the order given, a batch at a time, in a thread of its own.

    Records that cannot be written wait. The thread tries again while the study is open, soon at
    first and then every ``WAITS[-1]`` seconds. ``still_mine`` says whether no other worker has
    declared this one dead, and is asked before a new trial is written. The thread calls ``look``
    now and then; what it raises is not an error of the records.
    """

    # Records of a batch: a journal's lock is then held for a tenth of a second at most.
    BATCH = 5000
    # Seconds before the next attempt, while a storage does not answer.
    WAITS = (0.5, 1.0, 2.0, 5.0, 10.0)
    # Seconds that a study which ends waits for a storage that does not answer.
    PATIENCE = 60.0
    # Seconds that a trial which begins waits for its number.
    NUMBERING = 1.0
    # Seconds between two looks for what other programs have changed.
    LOOK = 0.25

    def __init__(
        self,
        store: StudyStorage,
        *,
        note: Callable[[str], None] = LOGGED,
        still_mine: Callable[[], bool] | None = None,
        look: Callable[[], None] | None = None,
    ) -> None:
        # Time of the calling threads; processor time of the writing thread so far.
        self.stopwatch, self.cpu_seconds = Stopwatch(), 0.0
        self._store, self._note, self._look = store, note, look
        self._still_mine = still_mine
        self._next_look = 0.0
        self.study_id = 0  # the storage's, once the study is written to
        # Trials that were begun while the storage did not answer, and have another number there.
        self._numbers: dict[int, int] = {}
        self._unnumbered: dict[int, Future[int]] = {}
        self._given: dict[int, int] = {}  # the same, of trials that are being written
        self._there: dict[str, int] | None = None  # trials of the storage, after a failure
        # Paceline's trial number -> the storage's trial id.
        self._ids: dict[int, int] = {}
        self._records: collections.deque[Record] = collections.deque()
        self._change = threading.Condition()
        self.n_waiting = 0  # records that are not in the storage yet
        self._hurry = 0  # how many callers wait
        self._closing = False
        self._until = 0.0  # when to give up, once it closes
        self._attempts = 0  # in all
        self._failed = 0  # number of the last attempt that failed
        self._doubtful = False  # whether the records to write may be in the storage already
        self.trouble: PacelineError | None = None  # why records wait; None while they are taken
        self._error: PacelineError | None = None
        self._thread: threading.Thread | None = None
        self._noted_trouble = False
        # Whether this worker has lost what it began without the storage; it never gets that back.
        self._taken_over = False
        # Numbers of trials that were not written, because another worker took this one for dead.
        # Other workers may have given them to trials of their own by then.
        self.dropped: set[int] = set()

    @property
    def started(self) -> bool:
        """Whether records go to the storage, rather than being kept for later."""
        return self._thread is not None

    def check_storage(self) -> bool:
        """Whether the storage takes records; the user is told when that changes."""
        trouble = self.trouble
        if trouble is not None and not self._noted_trouble:
            self._note(
                f"{trouble} Training continues. {self.n_waiting} records are queued and will be "
                "written when the storage responds"
            )
        elif trouble is None and self._noted_trouble:
            self._note("the storage responds again; all queued records are written")
        self._noted_trouble = trouble is not None
        return trouble is None

    def start(self, study: str) -> None:
        """Begin to write to a study that the storage has, also the records handed over before."""
        with self.stopwatch.running():
            self.study_id = self._store.study_id(study)
        # A daemon thread lets an interrupted program end; the study closes the writer at exit.
        self._thread = threading.Thread(target=self._run, name="paceline-writer", daemon=True)
        self._thread.start()

    def record(self, *records: Record) -> None:
        """Hand over records; returns at once."""
        with self.stopwatch.running(), self._change:
            if self._closing:
                raise RuntimeError("the study is closed. Open it again to continue")
            before = len(self._records)
            self._records.extend(records)
            self.n_waiting += len(self._records) - before
            if not before:  # the thread sleeps only while there is nothing to do
                self._change.notify_all()

    def create(self, number: int, template: FrozenTrial) -> int:
        """Hand over a trial that begins to run; wait for the storage's number, and return it.

        Where the storage does not answer that is ``number``, and ``take_renumbered`` tells of
        another one later.
        """
        record = TrialCreated(number, template)
        self.record(record)
        waits = self.started and self.trouble is None
        if waits and all(numbered.done() for numbered in self._unnumbered.values()):
            with self.stopwatch.running(), self._hurried(), contextlib.suppress(NotYet):
                found = record.numbered.result(self.NUMBERING)
                if found != number:
                    with self._change:  # no record is of ``number``
                        self._ids.pop(number, None)
                        self._numbers.pop(number, None)
                return found
        self._unnumbered[number] = record.numbered
        return number

    @property
    def unnumbered(self) -> bool:
        """Whether some trials have numbers that the storage has not confirmed."""
        return bool(self._unnumbered)

    def take_renumbered(self) -> dict[int, int]:
        """The trials that were begun while the storage did not answer and now have other numbers.

        Returns number that ``create`` returned -> the storage's, of all of them at once, when the
        storage answers again. Records handed over from then on are of the latter.
        """
        if not self._unnumbered or not all(n.done() for n in self._unnumbered.values()):
            return {}
        found = {number: numbered.result() for number, numbered in self._unnumbered.items()}
        if all(number == now for number, now in found.items()):
            self._unnumbered.clear()
            return {}
        try:
            self.flush()  # what was handed over before is of the former numbers
        except StorageError:
            return {}
        with self._change:
            self._unnumbered.clear()
            self._numbers.clear()
            self._ids.clear()
        return {number: now for number, now in found.items() if now != number}

    @contextlib.contextmanager
    def _hurried(self) -> Iterator[None]:
        """A block in which the thread waits for nothing but the storage."""
        with self._change:
            self._hurry += 1
            self._change.notify_all()
        try:
            yield
        finally:
            with self._change:
                self._hurry -= 1

    def know_trial_id(self, number: int, trial: int) -> None:
        """Write further records to a trial that is in the storage already, by the storage's id."""
        self._ids[number] = trial

    def flush(self) -> None:
        """Wait until everything handed over is stored; StorageError where it cannot be for now."""
        with self.stopwatch.running(), self._change:
            if not self.started:
                return
            # A running attempt may have met an error that is over now: only a later one tells.
            before = self._attempts
            with self._hurried():
                self._change.wait_for(lambda: not self.n_waiting or self._failed > before)
            if self.n_waiting and self.trouble is not None:
                raise _raised_again(self.trouble)

    def close(self, seconds: float | None = None) -> None:
        """Write the records left and end the thread, waiting for at most ``seconds``.

        StorageError where the storage has not answered for ``PATIENCE`` seconds.
        """
        with self.stopwatch.running():
            with self._change:
                if not self._closing:
                    self._until = time.monotonic() + self.PATIENCE
                self._closing = True
                self._change.notify_all()
            if self._thread is not None:
                self._thread.join(seconds)
        if self._error is not None:
            raise _raised_again(self._error)

    def _run(self) -> None:
        with contextlib.closing(self._store):
            self._write_batches()

    def _write_batches(self) -> None:
        began = time.thread_time()
        while batch := self._next_batch():
            count, left = len(batch), collections.deque(_folded(batch))
            tries = 0
            while not self._written(left):
                wait = self.WAITS[min(tries, len(self.WAITS) - 1)]
                tries += 1
                if not self._waited(wait):
                    return
            self._doubtful = False
            with self._change:
                self.n_waiting -= count
                self.trouble = None
                self.cpu_seconds = time.thread_time() - began
                self._change.notify_all()

    def _written(self, left: collections.deque[Record]) -> bool:
        """Write records; after a failure, those that are left in ``left`` are to be tried again."""
        done, self._there = 0, None
        with self._change:
            self._attempts += 1
        try:
            with self._store.errors("written"):
                if (rows := self._store.rows) is not None:
                    self._write_rows(rows, left)
                    return True
                with self._store.batch(lambda: self._number(left)):
                    for record in left:
                        if not self._is_dropped(record):
                            self._write_open(record)
                        done += 1
            self._number(left)
            return True
        except PacelineError as error:
            if not self._store.whole:
                self._number([left.popleft() for _ in range(done)])
            self._ids.clear()
            self._store.reopen()
            self._doubtful = True
            with self._change:
                self.trouble = self.trouble or error
                self._failed = self._attempts
                self._change.notify_all()
            return False

    def _waited(self, seconds: float) -> bool:
        """Wait for the next attempt; False when it is given up."""
        with self._change:
            self._change.wait_for(lambda: self._hurry or self._closing, timeout=seconds)
            if self._closing and time.monotonic() + seconds > self._until:
                assert self.trouble is not None
                self._error = StorageError(
                    f"{self.trouble} {self.n_waiting} records of the last trials are not "
                    "stored. When the storage responds, search again: the search resumes from the "
                    "last checkpoint."
                )
                return False
        if self._closing:
            time.sleep(min(seconds, max(0.0, self._until - time.monotonic())))
        return True

    def _next_batch(self) -> list[Record]:
        """Wait for records and return some; an empty list says that there will be no more."""
        self._look_around()
        with self._change:
            while not self._change.wait_for(
                lambda: self._records or self._closing, None if self._look is None else self.LOOK
            ):
                self._change.release()
                try:
                    self._look_around()
                finally:
                    self._change.acquire()
            self._change.wait_for(
                lambda: self._hurry or self._closing or len(self._records) >= self.BATCH,
                timeout=self._store.linger,
            )
            count = min(len(self._records), self.BATCH)
            return [self._records.popleft() for _ in range(count)]

    def _write_rows(self, rows: BulkWriter, records: Iterable[Record]) -> None:
        """Write records at once, but those that are in the storage already."""
        new: list[Record] = []
        for record in records:
            if self._is_dropped(record):
                continue
            if isinstance(record, TrialCreated) and self._doubtful:
                if self._begun(record) is not None:
                    continue
            elif isinstance(record, TrialTaken):
                self._write_open(record)
            elif not isinstance(record, StudyDescribed) and record.number in self._numbers:
                self._id(record.number)
            new.append(record)
        self._ids |= rows.write(self.study_id, new, self._ids)
        self._given |= rows.given
        self._number(records)
        for record in new:
            if isinstance(record, TrialFinished):  # an ended trial is not written again
                self._ids.pop(record.number, None)

    def _write_open(self, record: Record) -> None:
        """Write a record, unless another process has ended its trial: that end stands."""
        try:
            self._write(record)
        except RuntimeError:  # Optuna 4 has no class of its own for this
            if not self._has_ended(record):
                raise

    def _write(self, record: Record) -> None:
        storage = self._store.storage
        match record:
            case TrialCreated(number, template):
                trial = self._begun(record) if self._doubtful else None
                if trial is None:
                    trial = storage.create_new_trial(self.study_id, template)
                    self._given[number] = storage.get_trial_number_from_id(trial)
                if not template.state.is_finished():
                    self._ids[number] = trial
            case TrialTaken(number, template):
                taken, params = self._id(number), template.params
                for name, kind in template.distributions.items():
                    storage.set_trial_param(taken, name, kind.to_internal_repr(params[name]), kind)
                self._annotate(number, template.user_attrs, kept_attributes(template))
            case EpochReported(number, epoch, value):
                storage.set_trial_intermediate_value(self._id(number), epoch, value)
            case TrialAnnotated(number, attrs):
                self._annotate(number, attrs, {})
            case TrialFinished(number, state, values, attrs, _, noted):
                self._annotate(number, attrs, noted)
                storage.set_trial_state_values(self._id(number), OPTUNA_STATES[state], values)
                self._ids.pop(number, None)  # an ended trial is not written again
            case StudyDescribed(meta):
                storage.set_study_user_attr(self.study_id, META, meta)

    def _is_dropped(self, record: Record) -> bool:
        """Return whether a record is of a trial that was begun here and now is another worker's."""
        if isinstance(record, StudyDescribed):
            return False
        if isinstance(record, TrialCreated) and not self._is_still_mine():
            self.dropped.add(record.number)
            self._given[record.number] = record.number
        return record.number in self.dropped

    def _is_still_mine(self) -> bool:
        if self._still_mine is not None and not self._taken_over:
            self._taken_over = not self._still_mine()
        return not self._taken_over

    def _number(self, written: Iterable[Record]) -> None:
        """Tell which numbers the storage has given to the trials that were written."""
        for record in written:
            if isinstance(record, TrialCreated) and record.number in self._given:
                number, told = self._given.pop(record.number), record.numbered
                if number != record.number:
                    self._numbers[record.number] = number
                if not told.done():
                    told.set_result(number)
                elif number != told.result():  # the disk failed after the number was told
                    self._note(f"trial {told.result()} is trial {number} in the storage")

    def _begun(self, record: TrialCreated) -> int | None:
        """The id of a trial that was written before a failure showed; None for a new one."""
        storage = self._store.storage
        if self._there is None:
            trials = storage.get_all_trials(self.study_id, deepcopy=False)
            self._there = {identity(trial): trial.number for trial in trials}
        # Another program may have added trials, so that it has another number.
        number = self._there.get(identity(record.template))
        if number is None:
            return None
        self._given[record.number] = number
        found = storage.get_trial_id_from_study_id_trial_number(self.study_id, number)
        return self._ids.setdefault(record.number, found)

    def _look_around(self) -> None:
        """Let ``look`` look, unless it has a moment ago."""
        now = time.monotonic()
        if self._look is None or now < self._next_look:
            return
        try:
            self._look()
        except PacelineError:  # what is written next meets it, too
            pass
        except Exception as error:  # records are written whatever another program has done
            self._note(
                f"could not read the changes of other programs: {type(error).__name__}: {error}"
            )
            self._look = None
            return
        # A storage that answers slowly is looked at less often.
        self._next_look = time.monotonic() + max(self.LOOK, 10 * (time.monotonic() - now))

    def _has_ended(self, record: Record) -> bool:
        """Return whether another process has ended the trial of a record: that end stands."""
        if isinstance(record, TrialCreated | StudyDescribed):
            return False
        return self._store.storage.get_trial(self._id(record.number)).state.is_finished()

    def _annotate(self, number: int, attrs: dict[str, Any], noted: dict[str, Any]) -> None:
        for key, value in noted.items():
            self._store.storage.set_trial_system_attr(self._id(number), key, value)
        for key, value in attrs.items():
            self._store.storage.set_trial_user_attr(self._id(number), key, value)

    def _id(self, number: int) -> int:
        if number not in self._ids:  # a trial of an earlier session
            self._ids[number] = self._store.storage.get_trial_id_from_study_id_trial_number(
                self.study_id, self._numbers.get(number, number)
            )
        return self._ids[number]


def _raised_again(error: PacelineError) -> PacelineError:
    """Return a copy of an error, so that each raise has a traceback of its own."""
    return type(error)(*error.args)


def _folded(batch: list[Record]) -> list[Record]:
    """Return a batch in which each new trial's later records are part of its first one.

    A slow storage (SQLite syncs the disk for every call) gets large batches, in which many trials
    begin and end. Each trial then takes one call instead of some twenty.
    """
    new: dict[int, FrozenTrial] = {}
    others: list[Record] = []
    for record in batch:
        if isinstance(record, TrialCreated):
            new[record.number] = record.template
        if isinstance(record, TrialCreated | StudyDescribed) or record.number not in new:
            others.append(record)
            continue
        if not isinstance(record, TrialTaken):
            fold(record, new[record.number])
    return others
