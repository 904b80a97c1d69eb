"""What other programs change in a study: plain Optuna, optuna-dashboard, ``paceline stop``.

They add trials that wait to be run, train trials of their own, end trials, and ask a search to stop
or to pause. The thread that writes a study's records looks for such changes now and then
(``OutsideWatch.look``), and the search acts on them between two epochs.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import optuna
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from paceline.errors import SpaceError, StorageError, StudyError
from paceline.search_space import Parameter
from paceline.study.metadata import FIXED, META, RestoredStudy, stored_space
from paceline.study.storage.events import TrialFinished
from paceline.study.storage.journal_storage import JournalStorage
from paceline.study.storage.storage import StudyStorage
from paceline.study.trial_codec import OPTUNA_STATES, OWNER, best_so_far, is_ours, owner_of

#: The attribute of a study by which each worker of it beats, with its token behind.
BEAT = "paceline:worker:"
#: The attribute of a study that asks the search of it to stop or to pause.
REQUEST = "paceline:request"

Request = Literal["stop", "pause", "continue"]


@dataclass
class WaitingTrial:
    """A trial that another program has added, to be run here."""

    number: int
    values: dict[str, Any]  # by names of the storage, stored; the sampler chooses the others


@dataclass
class OutsideChanges:
    """What other programs have changed since the last look."""

    begun: list[FrozenTrial] = field(default_factory=list)  # other programs train them now
    ended: list[FrozenTrial] = field(default_factory=list)  # trials of other programs
    ended_here: list[FrozenTrial] = field(default_factory=list)  # of this search, by others

    def __bool__(self) -> bool:
        return bool(self.begun or self.ended or self.ended_here)


class OutsideWatch:
    """Watches one study for what other programs change.

    One thread calls ``look``, another the rest; neither waits for the other for longer than a
    dictionary is changed.
    """

    def __init__(self, store: StudyStorage) -> None:
        self._store = store
        self._study: int | None = None
        self._token: str | None = None
        self._mutex = threading.Lock()
        self._reader: tuple[BaseStorage, BaseStorage] | None = None
        self._n_known = 0
        self._n_lines: int | None = None  # of a journal, by others; None to look again
        self._of_others: set[int] = set()  # trials under way in other programs, and those that wait
        self._waiting: dict[int, WaitingTrial] = {}
        self._taking: int | None = None  # a trial that waited, until it is known whose it is
        # Some of this search's trials have numbers that the storage has not confirmed: there, a
        # trial of another program may have such a number.
        self._held = False
        self._changes = OutsideChanges()
        self._asked_before: Any = None
        self._looking = threading.Lock()
        # Trials that have ended here, and how: another program may have ended them before.
        self._ending: dict[int, TrialFinished] = {}
        self.mine: set[int] = set()  # this search's trials under way
        self.runs_waiting = True  # whether trials that other programs add are run here
        # What another program last asked this search to do; None where nothing was asked since
        # ``begin``, but that a study which was paused before stays paused.
        self.request: Request | None = None

    def begin(
        self,
        study: int,
        token: str | None,
        restored: RestoredStudy,
        is_gone: Callable[[str | None], bool],
    ) -> None:
        """Watch from now on.

        ``study`` is the storage's id, ``token`` this worker's; ``is_gone`` tells whether the worker
        of a token trains no longer.
        """
        resumed = restored.resumed
        under_way = {} if resumed is None else resumed["open"]
        for trial in restored.stored:
            number, owner = trial.number, owner_of(trial)
            if str(number) in under_way or number in restored.foretold:
                if not trial.state.is_finished():
                    self.mine.add(number)
                continue
            if trial.state.is_finished() or (is_ours(trial.user_attrs) and resumed is None):
                continue
            # A worker that died may have taken a trial that waited.
            left = owner is not None and (owner == token or is_gone(owner))
            if left or trial.state == OptunaState.WAITING:
                self._waiting[number] = WaitingTrial(number, fixed_values(trial))
            if not left:
                self._of_others.add(number)
        self._n_known, self._token = len(restored.stored), token
        with self._store.errors("read"), self._store.turn:
            asked = self._store.storage.get_study_system_attrs(study).get(REQUEST)
        self._asked_before = asked
        if _meaning(asked) == "pause":
            self.request = "pause"
        self._study = study

    @property
    def n_waiting(self) -> int:
        """How many trials wait to be run here."""
        return len(self._waiting) if self.runs_waiting else 0

    def look(self) -> None:
        """Read what has changed in the storage; ``take_changes`` and ``request`` tell it.

        Raises StorageError where the storage does not answer.
        """
        with self._looking:
            self._look()

    def _look(self) -> None:
        study = self._study
        if study is None:
            return
        with self._store.errors("read"), self._store.turn:
            storage = self._store.storage
            if not self._has_news(storage, study):
                return
            asked = storage.get_study_system_attrs(study).get(REQUEST)
            trials = self._trials(storage, study)
        with self._mutex:
            self._note(trials)
        if asked != self._asked_before:
            self._asked_before = asked
            self.request = _meaning(asked)

    def end(self, end: TrialFinished) -> None:
        """Note that a trial of this search has ended here; the storage is about to be told."""
        with self._mutex:
            self.mine.discard(end.number)
            self._ending[end.number] = end

    def began(self, number: int, *, confirmed: bool) -> None:
        """Note that a trial of this search runs.

        ``confirmed``: the storage has it under this number. Where not, nothing of other programs'
        trials is taken in before ``renumber``.
        """
        with self._mutex:
            self._held |= not confirmed
            self.mine.add(number)

    def renumber(self, moved: Mapping[int, int]) -> None:
        """Note that the storage has confirmed all numbers, but for ``moved``: old -> new number."""
        if not self._held:
            return
        with self._mutex:
            self.mine = {moved.get(number, number) for number in self.mine}
            self._ending = {moved.get(number, number): end for number, end in self._ending.items()}
            self._held, self._n_lines = False, None

    def take_changes(self) -> OutsideChanges:
        """Return what was found since the last call; nothing before all numbers are confirmed."""
        if not self._changes or self._held:
            return OutsideChanges()
        with self._mutex:
            found, self._changes = self._changes, OutsideChanges()
        return found

    def take_waiting(self) -> WaitingTrial | None:
        """Begin to run the first trial that waits, unless another program is quicker.

        Returns the trial, which runs in the storage now; None where none waits, or the storage does
        not answer, or has not confirmed the numbers of this search's trials.
        """
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
                    self._of_others.discard(number)
                    self.mine.add(number)
                    return waiting
                self._of_others.add(number)  # how it goes on there is told later
        return None

    def refuse(self, waiting: WaitingTrial, why: str) -> None:
        """End a trial that was taken and cannot be run; the next search tries to, otherwise."""
        self.mine.discard(waiting.number)
        with contextlib.suppress(StorageError), self._store.writing():
            storage, found = self._store.storage, self._id(waiting.number)
            storage.set_trial_user_attr(found, "error", why)
            storage.set_trial_state_values(found, OptunaState.FAIL)
            ended = storage.get_trial(found)
            with self._mutex:
                self._changes.ended.append(ended)

    def _take(self, number: int) -> bool:
        """Begin to run a waiting trial in the storage; return whether it is this search's now."""
        with self._store.writing():
            storage, found = self._store.storage, self._id(number)
            trial = storage.get_trial(found)
            if trial.state == OptunaState.WAITING:
                try:
                    taken = storage.set_trial_state_values(found, OptunaState.RUNNING)
                except RuntimeError:  # it has ended meanwhile; Optuna 4 has no class of its own
                    taken = False
            else:  # a worker took it that died
                taken = trial.state == OptunaState.RUNNING and owner_of(trial) is not None
            if taken and self._token is not None:
                storage.set_trial_system_attr(found, OWNER, self._token)
        return taken

    def _id(self, number: int) -> int:
        assert self._study is not None
        return self._store.storage.get_trial_id_from_study_id_trial_number(self._study, number)

    def _note(self, trials: list[FrozenTrial]) -> None:
        """Compare the storage's trials with what was known of them."""
        if self._held:
            self._n_lines = None  # they are looked at later
            return
        known, self._n_known = self._n_known, len(trials)
        for number, end in list(self._ending.items()):
            trial = trials[number] if number < len(trials) else None
            if trial is not None and trial.state.is_finished():
                del self._ending[number]
                if not _ended_so(trial, end):  # the first end stands
                    self._changes.ended_here.append(trial)
        for number in sorted(self.mine | self._of_others | set(range(known, len(trials)))):
            if number >= len(trials):
                continue  # it has begun since the trials were read
            if number == self._taking:
                self._n_lines = None  # the next look tells what becomes of it
                continue
            trial = trials[number]
            finished = trial.state.is_finished()
            if number in self.mine:
                if finished:
                    self.mine.discard(number)
                    self._changes.ended_here.append(trial)
                continue
            if owner_of(trial) is not None or number in self._ending:
                if finished:  # before this search noted that it is its own
                    self._n_lines = None
                continue  # this search's, which is about to note it, or another worker's
            if trial.state == OptunaState.WAITING:
                self._of_others.add(number)
                self._waiting[number] = WaitingTrial(number, fixed_values(trial))
                continue
            self._waiting.pop(number, None)
            if finished:
                self._of_others.discard(number)
                self._changes.ended.append(trial)
            else:
                if number >= known:
                    self._changes.begun.append(trial)
                self._of_others.add(number)

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
            waiting, known = set(self._waiting), self._n_known
        opened = rows.open_trials(study, known)
        runs_on = {n for n, state in opened.items() if not OptunaState[state].is_finished()}
        new = {number for number in opened if number >= known} - self.mine
        runs = {number for number in waiting if opened.get(number) != OptunaState.WAITING.name}
        asked = rows.study_attribute(study, REQUEST)
        return bool(under_way - runs_on or new or runs) or asked != self._asked_before

    def _trials(self, storage: BaseStorage, study: int) -> list[FrozenTrial]:
        if self._reader is None or self._reader[0] is not storage:
            # Optuna's own view of a database, which asks only for the trials that have changed.
            self._reader = storage, optuna.storages.get_storage(storage)
        return self._reader[1].get_all_trials(study, deepcopy=False)


def ask(store: StudyStorage, study: int, request: Request) -> None:
    """Ask the search of a study (the storage's id) to stop, to pause, or to continue.

    Raises StorageError where the storage does not answer.
    """
    with store.writing():
        record = {"do": request, "id": secrets.token_hex(8)}
        store.storage.set_study_system_attr(study, REQUEST, record)


def is_paused(store: StudyStorage, study: int) -> bool:
    """Whether a study is paused; StorageError where the storage does not answer."""
    with store.errors("read"), store.turn:
        return asks_to_pause(store.storage.get_study_system_attrs(study))


def asks_to_pause(attrs: Mapping[str, Any]) -> bool:
    """Whether the attributes that programs write for one another pause a study."""
    return _meaning(attrs.get(REQUEST)) == "pause"


def enqueue(store: StudyStorage, study: int, name: str, values: Mapping[str, Any]) -> int:
    """Add a trial that waits to be run, and return its number.

    ``study`` is the storage's id; ``values`` are plain name -> real value, and the sampler chooses
    the others. Raises SpaceError for a name that no trial of the study has had, or a value that it
    cannot have, and StorageError where the storage does not answer.
    """
    with store.errors("read"), store.turn:
        meta = store.storage.get_study_user_attrs(study).get(META) or {}
    by_name: dict[str, list[Parameter]] = {}
    for parameter in stored_space(name, meta).parameters.values():
        by_name.setdefault(parameter.name, []).append(parameter)
    fixed = {}
    for key, value in values.items():
        if key not in by_name:
            known = ", ".join(sorted(by_name)) or "none yet"
            raise SpaceError(f"enqueue: {name!r} has no hyperparameter {key!r}; it has {known}.")
        stored = [parameter.to_storage(value) for parameter in by_name[key]]
        # Under several conditions a name has several parameters: build tells which one it is.
        several = len(stored) > 1
        fixed[key if several else by_name[key][0].storage_name] = value if several else stored[0]
    template = create_trial(state=OptunaState.WAITING, system_attrs={FIXED: fixed})
    with store.writing():
        return store.storage.get_trial_number_from_id(
            store.storage.create_new_trial(study, template)
        )


def stop_trial(store: StudyStorage, study: int, name: str, number: int, reason: str) -> None:
    """End a trial that runs or waits as pruned, and store the reason with it.

    ``study`` is the storage's id. Raises StudyError where there is no such trial, or it has ended,
    and StorageError where the storage does not answer.
    """
    ended = f"trial {number} of {name!r} has ended already"
    with store.writing():
        storage = store.storage
        if number >= storage.get_n_trials(study):
            raise StudyError(f"study {name!r} has no trial {number}")
        found = storage.get_trial_id_from_study_id_trial_number(study, number)
        if storage.get_trial(found).state.is_finished():
            raise StudyError(ended)
        try:
            storage.set_trial_user_attr(found, "error", reason)
            directions = storage.get_study_directions(study)
            best = best_so_far(storage.get_trial(found), directions[0] == StudyDirection.MAXIMIZE)
            values = None
            if best is not None and len(directions) == 1:
                storage.set_trial_user_attr(found, "best_epoch", best[0])
                values = [best[1]]
            storage.set_trial_state_values(found, OptunaState.PRUNED, values)
        except RuntimeError:  # a moment ago; Optuna 4 has no class of its own for this
            raise StudyError(ended) from None


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


def _meaning(asked: Any) -> Request | None:
    found = asked.get("do") if isinstance(asked, dict) else None
    return found if found in ("stop", "pause", "continue") else None
