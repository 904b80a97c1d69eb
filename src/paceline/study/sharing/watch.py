"""What others do in a study: other workers, plain Optuna, optuna-dashboard, ``paceline stop``.

They begin and end trials, add trials that wait to be run, and ask a search to stop or to pause. The
thread that writes a study's records looks for such changes now and then (``StudyWatch.look``). A
search that shares its study also looks before it begins a trial. It acts on changes between two
epochs.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.errors import StorageError
from paceline.study.metadata import FIXED, RestoredStudy
from paceline.study.storage.events import TrialFinished
from paceline.study.storage.journal_storage import JournalStorage
from paceline.study.storage.storage import StudyStorage
from paceline.study.trials.trial_codec import OPTUNA_STATES, OWNER, WITHDRAWN, is_ours, owner_of

if TYPE_CHECKING:
    from paceline.study.sharing.worker import Worker


#: The attribute of a study that asks the search of it to stop or to pause.
REQUEST = "paceline:request"

Request = Literal["stop", "pause", "continue"]


@dataclass
class WaitingTrial:
    """A trial that another program has added, to be run here."""

    number: int
    values: dict[str, Any]  # by names of the storage, stored; the sampler chooses the others


@dataclass
class TrialChange:
    """What others have done to a trial."""

    kind: Literal[
        "begun",  # they train it now
        "ended",  # a trial of theirs
        "withdrawn",  # by the worker that had made it
        "ended here",  # a trial of this search
    ]
    trial: FrozenTrial  # as it was read


class StudyWatch:
    """Reads what others change in a study, and knows whose each trial is.

    Several threads call ``look``, one the rest; neither waits for the other for longer than a
    dictionary is changed.
    """

    _worker: Worker  # from ``begin`` on

    def __init__(self, store: StudyStorage) -> None:
        self._store = store
        self._study: int | None = None
        self._mutex = threading.Lock()
        self._looking = threading.Lock()
        self._reader: tuple[BaseStorage, BaseStorage] | None = None
        self._read: list[FrozenTrial] = []  # the trials as they were when last read
        self.n_known = 0  # how many the storage had then
        self._n_lines: int | None = None  # of a journal, by others; None to look again
        self.mine: set[int] = set()  # this search's unfinished trials
        # Trials that are this search's or were, and others of which it knows that they have ended.
        self._own: set[int] = set()
        self._of_others: set[int] = set()  # their running and waiting ones
        self._waiting: dict[int, WaitingTrial] = {}
        self._taking: int | None = None  # a trial that waited, until it is known whose it is
        # Trials that have ended here, and how: others may have ended them before.
        self._ending: dict[int, TrialFinished] = {}
        # Some of this search's trials have numbers that the storage has not confirmed: there, a
        # trial of another program may have such a number.
        self._held = False
        self._changes: list[TrialChange] = []
        self._asked_before: Any = None
        self.runs_waiting = True  # whether trials that other programs add are run here
        # What another program last asked this search to do since ``begin``; a study that was paused
        # before stays paused. None: nothing.
        self.request: Request | None = None

    def begin(self, study: int, worker: Worker, restored: RestoredStudy) -> None:
        """Watch from now on; ``study`` is the storage's id, ``worker`` has joined."""
        self._worker, resumed = worker, restored.resumed
        under_way = {} if resumed is None else resumed["open"]
        for trial in restored.stored:
            number = trial.number
            if str(number) in under_way or number in restored.foretold:
                if not trial.state.is_finished():
                    self._note_own(number)
                continue
            if trial.state.is_finished() or (is_ours(trial.user_attrs) and resumed is None):
                continue
            self._of_others.add(number)
            if self._waits(trial):
                self._waiting[number] = WaitingTrial(number, fixed_values(trial))
        self._read, self.n_known = restored.stored, len(restored.stored)
        with self._store.errors("read"), self._store.turn:
            asked = self._store.storage.get_study_system_attrs(study).get(REQUEST)
        self._asked_before = asked
        if meaning(asked) == "pause":
            self.request = "pause"
        self._study = study

    def share(self, mine: Iterable[int], ended: Iterable[int]) -> None:
        """Start over, since other workers search the study: look at all trials again.

        By number: ``mine`` are the trials that this worker trains, ``ended`` those of which it
        knows that they have ended. All of them are in the storage, under these numbers.
        """
        with self._mutex:
            self.mine, self._of_others = set(mine), set()
            self._own = {*self.mine, *ended}
            self._ending, self._changes, self._held = {}, [], False
            self.n_known, self._n_lines = 0, None

    # Reading

    def look(self) -> None:
        """Read what has changed in the storage; ``take_changes`` and ``request`` tell it."""
        if self._study is None:
            return
        with self._looking:
            with self._store.errors("read"), self._store.turn:
                storage = self._store.storage
                if not self._has_news(storage, self._study):
                    return
                asked = storage.get_study_system_attrs(self._study).get(REQUEST)
                trials = self.read_trials()
            with self._mutex:
                self._note_all(trials)
            if asked != self._asked_before:
                self._asked_before = asked
                self.request = meaning(asked)

    def _has_news(self, storage: BaseStorage, study: int) -> bool:
        """Whether anything may have changed, as far as that is told without reading all trials."""
        if isinstance(storage, JournalStorage):
            storage.get_study_name_from_id(study)  # reads on
            n_lines, self._n_lines = self._n_lines, storage.n_foreign
            return n_lines != self._n_lines
        rows = self._store.rows
        if rows is None:
            return True
        with self._mutex:
            under_way = self.mine | self._of_others | self._ending.keys()
            waiting, known = set(self._waiting), self.n_known
        opened = rows.open_trials(study, known)
        runs_on = {n for n, state in opened.items() if not OptunaState[state].is_finished()}
        new = {number for number in opened if number >= known} - self.mine
        runs = {number for number in waiting if opened.get(number) != OptunaState.WAITING.name}
        asked = rows.study_attribute(study, REQUEST)
        return bool(under_way - runs_on or new or runs) or asked != self._asked_before

    def read_trials(self) -> list[FrozenTrial]:
        """Return all trials of the study as they are now."""
        storage, study = self._store.storage, self._study
        assert study is not None
        if self._reader is None or self._reader[0] is not storage:
            # Optuna's own view of a database, which asks only for the trials that have changed.
            self._reader = storage, optuna.storages.get_storage(storage)
        return self._reader[1].get_all_trials(study, deepcopy=False)

    def _note_all(self, trials: list[FrozenTrial]) -> None:
        """Compare the storage's trials with what was known of them."""
        if self._held:
            self._n_lines = None  # they are looked at later
            return
        self._read, known = trials, self.n_known
        self.n_known = len(trials)
        for number, end in list(self._ending.items()):
            trial = trials[number] if number < len(trials) else None
            if trial is not None and trial.state.is_finished():
                del self._ending[number]
                if not _ended_so(trial, end):  # the first end stands
                    self._changes.append(TrialChange("ended here", trial))
        for number in sorted(self.mine | self._of_others | set(range(known, len(trials)))):
            if number >= len(trials):
                continue  # it has begun since the trials were read
            if number == self._taking:
                self._n_lines = None  # the next look tells what becomes of it
                continue
            self._note(trials[number], new=number >= known)

    def _note(self, trial: FrozenTrial, *, new: bool) -> None:
        """Note whose a trial is, and what has become of it."""
        number, owner = trial.number, owner_of(trial)
        if number in self.mine:
            if trial.state.is_finished():
                self.mine.discard(number)
                self._changes.append(TrialChange("ended here", trial))
            return
        if number in self._own:
            return
        # This search's, which is about to note it, or another worker's, of which nothing is told
        # before the study is shared.
        untold = owner is not None and (owner == self._worker.token or not self._worker.shared)
        if trial.state.is_finished():
            self._of_others.discard(number)
            self._waiting.pop(number, None)
            if untold:  # before this search noted that it is its own
                self._n_lines = None
            else:
                kind = "withdrawn" if is_withdrawn(trial) else "ended"
                self._changes.append(TrialChange(kind, trial))
            return
        self._of_others.add(number)
        if self._waits(trial):
            self._waiting[number] = WaitingTrial(number, fixed_values(trial))
            return
        self._waiting.pop(number, None)
        if new and not untold:
            self._changes.append(TrialChange("begun", trial))

    def _waits(self, trial: FrozenTrial) -> bool:
        """Whether a trial of another program waits; a worker that died may have taken it."""
        if trial.state == OptunaState.WAITING:
            return True
        owner = owner_of(trial)
        if owner is None or is_ours(trial.user_attrs):
            return False
        return owner == self._worker.token or self._worker.heartbeats.gone(owner)

    def left(self, theirs: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Return those of others' trials that nobody trains; the thread that claims asks for them.

        Either the worker of such a trial is gone, or it is this worker's, but the storage's answer
        to the claim was lost. A waiting trial whose worker died before it chose the values waits
        again.
        """
        left = [
            trial
            for trial in theirs
            if trial.state == OptunaState.RUNNING
            and trial.number not in self._waiting
            and (owner_of(trial) is not None or is_ours(trial.user_attrs))  # else plain Optuna's
            and self._is_gone(owner_of(trial))
        ]
        with self._mutex:
            for trial in left:
                if not is_ours(trial.user_attrs):
                    self._waiting[trial.number] = WaitingTrial(trial.number, fixed_values(trial))
        return [trial for trial in left if is_ours(trial.user_attrs)]

    def _is_gone(self, owner: str | None) -> bool:
        """Whether a worker does not train a trial of which this search does not know."""
        if owner == self._worker.token:
            return True
        heartbeats = self._worker.heartbeats
        if not heartbeats.gone(owner):
            return False
        # Its worker may have joined a moment ago: a worker's first beat comes before its trials.
        heartbeats.look()
        return heartbeats.gone(owner)

    # Acting

    def take_changes(self) -> tuple[list[TrialChange], list[FrozenTrial]]:
        """Return what was found since the last call, and others' trials that have not ended."""
        if self._held:
            return [], []
        with self._mutex:
            found, self._changes = self._changes, []
            others = [self._read[number] for number in sorted(self._of_others)]
        return found, others

    def began(self, number: int, *, confirmed: bool) -> None:
        """Note that a trial of this search runs.

        Where it is not ``confirmed`` that the storage has it under this number, nothing of other
        programs' trials is taken in before ``renumber``.
        """
        with self._mutex:
            self._held |= not confirmed
            self._note_own(number)

    def end(self, end: TrialFinished) -> None:
        """Note that a trial of this search has ended here; the storage is about to be told."""
        with self._mutex:
            self.mine.discard(end.number)
            self._own.add(end.number)
            self._ending[end.number] = end

    def drop(self, number: int) -> None:
        """Note that this search has ended a trial in the storage that it does not train."""
        with self._mutex:
            self.mine.discard(number)
            self._of_others.discard(number)
            self._own.add(number)

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Note that the storage has confirmed all numbers, but for ``moved``: old -> new number."""
        if not self._held and not moved:
            return
        with self._mutex:
            self.mine = {moved.get(number, number) for number in self.mine}
            self._own = {moved.get(number, number) for number in self._own}
            self._ending = {moved.get(number, number): end for number, end in self._ending.items()}
            self._held, self._n_lines = False, None

    def _note_own(self, number: int) -> None:
        self._of_others.discard(number)
        self.mine.add(number)
        self._own.add(number)

    # Trials that wait

    @property
    def n_waiting(self) -> int:
        """How many trials wait to be run here."""
        return len(self._waiting) if self.runs_waiting else 0

    def take_waiting(self) -> WaitingTrial | None:
        """Begin to run the first trial that waits, unless others are quicker; None: none."""
        while self._waiting and not self._held:
            with self._mutex:
                number = min(self._waiting)
                waiting, self._taking = self._waiting.pop(number), number
            try:
                taken = self._take(number)
            except StorageError:  # the writer tells the user
                with self._mutex:
                    self._waiting[number], self._taking = waiting, None
                return None
            with self._mutex:
                self._taking = None
                if taken:
                    self._note_own(number)
                    return waiting
                self._of_others.add(number)  # how it continues there is told later
        return None

    def refuse(self, waiting: WaitingTrial, why: str) -> None:
        """End a trial that was taken and cannot be run; the next search tries to, otherwise."""
        self.drop(waiting.number)
        with contextlib.suppress(StorageError), self._store.writing():
            storage, found = self._store.storage, self._id(waiting.number)
            storage.set_trial_user_attr(found, "error", why)
            storage.set_trial_state_values(found, OptunaState.FAIL)
            ended = storage.get_trial(found)
            with self._mutex:
                self._changes.append(TrialChange("ended", ended))

    def _take(self, number: int) -> bool:
        """Begin to run a waiting trial in the storage; return whether it is this search's now."""
        was = self._read[number]
        owner = owner_of(was)
        # A worker took it that died. (Heartbeats cannot be read inside of a batch.)
        left = was.state == OptunaState.RUNNING and owner is not None and self._is_gone(owner)
        with self._store.writing():
            storage, found = self._store.storage, self._id(number)
            trial = storage.get_trial(found)
            if trial.state == OptunaState.WAITING:
                try:
                    taken = storage.set_trial_state_values(found, OptunaState.RUNNING)
                except RuntimeError:  # it has ended meanwhile; Optuna 4 has no class of its own
                    taken = False
            else:
                taken = left and trial.state == was.state and owner_of(trial) == owner
            if taken:
                storage.set_trial_system_attr(found, OWNER, self._worker.token)
        return taken

    def _id(self, number: int) -> int:
        assert self._study is not None
        return self._store.storage.get_trial_id_from_study_id_trial_number(self._study, number)


def meaning(asked: Any) -> Request | None:
    """Return what the attribute ``REQUEST`` asks for; None if it asks for nothing known."""
    found = asked.get("do") if isinstance(asked, dict) else None
    return found if found in ("stop", "pause", "continue") else None


def is_withdrawn(trial: FrozenTrial) -> bool:
    """Whether the worker that made a trial has taken it back."""
    return WITHDRAWN in trial.system_attrs


def fixed_values(trial: FrozenTrial) -> dict[str, Any]:
    """Return the values that a waiting trial was given: plain name -> real value."""
    fixed = trial.system_attrs.get(FIXED, {})
    return {**trial.params, **(fixed if isinstance(fixed, dict) else {})}


def _ended_so(trial: FrozenTrial, end: TrialFinished) -> bool:
    """Whether a stored trial has ended as this search ended it; databases may keep fewer digits."""
    if trial.state != OPTUNA_STATES[end.state]:
        return False
    stored, told = trial.values or [], end.values or []
    if len(stored) != len(told):
        return False
    return all(math.isclose(*pair, rel_tol=1e-6) for pair in zip(stored, told, strict=True))
