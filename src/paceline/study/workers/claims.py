"""The trials of a study that several workers share: whose each is, and what becomes of it.

What Optuna's storages settle between processes, all of them, is the order in which trials are made.
(A change of state is no such thing: on SQLite two processes can both win one.) So a claim is a
trial made, with all its values: where two have the same configuration, or one is beyond the number
wanted, the earlier ones stand, and whoever made the other withdraws it before training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.study.storage.storage import StudyStorage
from paceline.study.trial import INTERRUPTED
from paceline.study.trial_codec import WITHDRAWN, owner_of
from paceline.study.workers.worker import Worker


@dataclass
class TrialChanges:
    """What has become of a study since one last asked.

    Attributes:
        begun: Trials that others train now.
        ended: Trials that others have ended.
        withdrawn: Numbers of trials that were begun, and are none.
        lost: Trials of this worker's that others have ended.
        left: Trials that nobody trains, since their workers left or died: to be replaced.
    """

    begun: list[FrozenTrial] = field(default_factory=list)
    ended: list[FrozenTrial] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)
    lost: list[FrozenTrial] = field(default_factory=list)
    left: list[FrozenTrial] = field(default_factory=list)


class TrialClaims:
    """What a worker makes of the trials in a storage.

    Args:
        store: Where they are.
        study: The storage's id of the study.
        worker: Whose view it is.

    Attributes:
        mine: Numbers of the trials that this worker trains.
        theirs: Numbers of those that others train.
    """

    def __init__(self, store: StudyStorage, study: int, worker: Worker) -> None:
        self._store, self._study, self._worker = store, study, worker
        self._reader: tuple[BaseStorage, BaseStorage] | None = None
        self.mine: set[int] = set()
        self.theirs: set[int] = set()
        self._own: set[int] = set()  # those that were ever this worker's
        self._heard = 0  # trials below this number are known
        self._keys: dict[int, str] = {}  # of the trials that stand
        self._seen: dict[str, int] = {}  # configuration -> the first that stands

    @property
    def n_heard(self) -> int:
        """Trials that the storage had when one last asked."""
        return self._heard

    def begin(self, mine: Iterable[int], own: Iterable[int], known: Iterable[int]) -> None:
        """Say what this worker knows when it begins to share; the rest is news.

        Args:
            mine: Numbers of the trials that it trains.
            own: Numbers of those that are its own: it began them, or they had ended before.
            known: Numbers of others that it knows to have ended.
        """
        self.mine.update(mine)
        self._own.update(own)
        self._own.update(known)

    def claim(
        self, template: FrozenTrial, limit: int | None, *, replaces: int | None = None
    ) -> tuple[int, int] | None:
        """Make a trial, for this worker to train.

        Args:
            template: The trial, running, its configuration in the attribute ``hparams``, with this
                worker as its owner.
            limit: How many trials the study shall have; None for no end.
            replaces: Number of a trial that this one is trained in place of.

        Returns:
            Its number and the storage's id of it; None where others were quicker: it is withdrawn.

        Raises:
            StorageError: The storage does not answer. Where it has made the trial all the same,
                ``hear`` ends that.
        """
        with self._store.writing():
            storage = self._store.storage
            made = storage.create_new_trial(self._study, template)
            number = storage.get_trial_number_from_id(made)
            before = self._trials()[:number]
            for trial in [*(before[n] for n in self.theirs), *before[self._heard :]]:
                self._note(trial)
            if replaces is not None:
                self._forget(replaces)
            stand = sum(_counts(trial) for trial in before)
            full = limit is not None and stand >= limit and _counts(template)
            first = self._seen.get(_key(template))
            if full or (first is not None and first < number):
                self._withdraw(number, made)
                return None
        self.mine.add(number)
        self._own.add(number)
        self._keys[number] = _key(template)
        self._seen.setdefault(_key(template), number)
        return number, made

    def replace(self, trial: FrozenTrial, template: FrozenTrial) -> tuple[int, int] | None:
        """Take over a trial that nobody trains: end it as interrupted, and make another for it.

        The other one is made first. Where two workers do so the second is equal to the first; and
        where one dies in between, both are there for the next to find.

        Args:
            trial: One of ``TrialChanges.left``.
            template: What is trained in its place.

        Returns:
            As ``claim``; None also where somebody has ended the trial meanwhile.

        Raises:
            StorageError: The storage does not answer.
        """
        owner = owner_of(trial)
        if owner is not None and owner != self._worker.token:
            self._worker.crew.bury(owner)
        found = self.claim(template, None, replaces=trial.number)
        with self._store.writing():
            storage = self._store.storage
            made = storage.get_trial_id_from_study_id_trial_number(self._study, trial.number)
            try:
                storage.set_trial_user_attr(made, "error", INTERRUPTED)
                storage.set_trial_state_values(made, OptunaState.FAIL)
            except RuntimeError:  # Optuna 4 has no class of its own for this
                # Somebody else who was to take it over has ended it, and trains nothing for it,
                # since ours is earlier; or its worker has after all.
                if found is not None and not _interrupted(storage.get_trial(made)):
                    self._withdraw(*found)
                    found = None
        self._forget(trial.number)
        self.theirs.discard(trial.number)
        self._own.add(trial.number)
        return found

    def hear(self) -> TrialChanges:
        """Look at what has changed, and take over what dead workers left.

        Raises:
            StorageError: The storage does not answer.
        """
        news = TrialChanges()
        with self._store.errors("read"), self._store.turn:
            trials = self._trials()
        known, self._heard = self._heard, len(trials)
        for number in sorted(self.mine | self.theirs | set(range(known, len(trials)))):
            trial = trials[number]
            if number not in self._own:
                self._hear_of(trial, number >= known, news)
                continue
            self._note(trial)
            if number in self.mine and trial.state.is_finished():
                self.mine.discard(number)
                news.lost.append(trial)
        return news

    def _hear_of(self, trial: FrozenTrial, new: bool, news: TrialChanges) -> None:
        number = trial.number
        self._note(trial)
        if trial.state.is_finished():
            self.theirs.discard(number)
            if _withdrawn(trial):
                news.withdrawn.append(number)
            else:
                news.ended.append(trial)
            return
        self.theirs.add(number)
        if trial.state != OptunaState.RUNNING:
            return  # it waits for another program
        if new:
            news.begun.append(trial)
        if self._is_left(trial):
            news.left.append(trial)

    def ended(self, number: int) -> None:
        """Say that a trial of this worker has ended."""
        self.mine.discard(number)

    def _is_left(self, trial: FrozenTrial) -> bool:
        """Whether nobody trains a trial that runs.

        Its worker is gone; or it is this worker's, which does not know it: the answer to a claim
        was lost on its way.
        """
        owner, crew = owner_of(trial), self._worker.crew
        if owner == self._worker.token:
            return True
        if not crew.gone(owner):
            return False
        crew.look()  # its worker may have joined a moment ago: its sign comes before its trials
        return crew.gone(owner)

    def _withdraw(self, number: int, made: int) -> None:
        """Take back a trial of this worker's."""
        self._own.add(number)
        self.mine.discard(number)
        self._forget(number)
        self._store.storage.set_trial_system_attr(made, WITHDRAWN, True)
        self._store.storage.set_trial_state_values(made, OptunaState.FAIL)

    def _trials(self) -> list[FrozenTrial]:
        storage = self._store.storage
        if self._reader is None or self._reader[0] is not storage:
            # Optuna's own view of a database, which asks for what has changed only.
            self._reader = storage, optuna.storages.get_storage(storage)
        return self._reader[1].get_all_trials(self._study, deepcopy=False)

    def _note(self, trial: FrozenTrial) -> None:
        if not stands(trial):
            self._forget(trial.number)
        elif trial.number not in self._keys:
            key = self._keys[trial.number] = _key(trial)
            self._seen[key] = min(trial.number, self._seen.get(key, trial.number))

    def _forget(self, number: int) -> None:
        key = self._keys.pop(number, None)
        if key is None or self._seen.get(key) != number:
            return
        del self._seen[key]
        if others := [n for n, one in self._keys.items() if one == key]:
            self._seen[key] = min(others)  # somebody has begun it again already


def stands(trial: FrozenTrial) -> bool:
    """Whether a trial is one of the study's: it was not withdrawn, and is not tried again."""
    return not _withdrawn(trial) and trial.user_attrs.get("error") != INTERRUPTED


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial counts for ``n_trials``: those that go on with others do not."""
    return stands(trial) and "continues" not in trial.user_attrs


def _withdrawn(trial: FrozenTrial) -> bool:
    return WITHDRAWN in trial.system_attrs


def _key(trial: FrozenTrial) -> str:
    """What no two trials that stand have both: hparams, and the trial that they go on with."""
    found: Any = trial.user_attrs.get("hparams", trial.params)
    continues = trial.user_attrs.get("continues")
    return json.dumps([found, continues], sort_keys=True, default=str)


def _interrupted(trial: FrozenTrial) -> bool:
    return trial.state == OptunaState.FAIL and trial.user_attrs.get("error") == INTERRUPTED
