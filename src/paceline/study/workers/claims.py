"""The trials of a study that several workers share: which worker trains each of them.

All of Optuna's storages settle one thing between processes: the order in which trials are made.
(They do not settle changes of state: on SQLite two processes can both succeed at one.) So a worker
claims a configuration by making a trial with all its values. Where two trials have the same
configuration, or one is beyond the number wanted, the earlier trials stand, and the worker that
made the later one withdraws it before training.
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
from paceline.study.trial_codec import WITHDRAWN, is_ours, owner_of
from paceline.study.workers.worker import Worker


@dataclass
class TrialChanges:
    """How a study's trials have changed since the storage was last read."""

    begun: list[FrozenTrial] = field(default_factory=list)  # other workers train them now
    ended: list[FrozenTrial] = field(default_factory=list)  # by other workers
    withdrawn: list[int] = field(default_factory=list)  # by their workers
    lost: list[FrozenTrial] = field(default_factory=list)  # this worker's, which others have ended
    # Trials that nobody trains, since their workers left or died: to be replaced.
    left: list[FrozenTrial] = field(default_factory=list)


class TrialClaims:
    """One worker's view of whose the trials in the storage are.

    ``study`` is the storage's id. Methods that read or write raise StorageError where the storage
    does not answer.
    """

    def __init__(self, store: StudyStorage, study: int, worker: Worker) -> None:
        self._store, self._study, self._worker = store, study, worker
        self._reader: tuple[BaseStorage, BaseStorage] | None = None
        self.mine: set[int] = set()  # numbers of the trials that this worker trains
        self.of_peers: set[int] = set()  # and of those that other workers train
        self._own: set[int] = set()  # numbers of trials that were ever this worker's
        self._n_known = 0  # trials below this number are known
        self._keys: dict[int, str] = {}  # number -> configuration, of the trials that stand
        self._seen: dict[str, int] = {}  # configuration -> number of the first trial that stands

    @property
    def n_known(self) -> int:
        """How many trials the storage had when it was last read."""
        return self._n_known

    def set_known(self, mine: Iterable[int], own: Iterable[int], known: Iterable[int]) -> None:
        """Set what this worker knows when it begins to share; ``changes`` returns the rest.

        By number: ``mine`` are the trials that it trains, ``own`` those that it began and those
        that had ended before, ``known`` further ones that it knows to have ended.
        """
        self.mine.update(mine)
        self._own.update(own)
        self._own.update(known)

    def claim(
        self, template: FrozenTrial, limit: int | None, *, replaces: int | None = None
    ) -> tuple[int, int] | None:
        """Make a trial, for this worker to train.

        ``template`` is the trial, running, its configuration in the attribute ``hparams``, with
        this worker as its owner. ``limit`` is how many trials the study shall have (None: no end),
        and ``replaces`` the number of a trial that this one is trained in place of.

        Returns the trial's number and the storage's id of it; None where another worker was
        quicker: then it is withdrawn. Where a storage that raises has made the trial all the same,
        ``changes`` lists it as left.
        """
        with self._store.writing():
            storage = self._store.storage
            made = storage.create_new_trial(self._study, template)
            number = storage.get_trial_number_from_id(made)
            before = self._trials()[:number]
            for trial in [*(before[n] for n in self.of_peers), *before[self._n_known :]]:
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

    def taken(self, template: FrozenTrial) -> bool:
        """Whether another trial stands that has the configuration of one that was not begun."""
        return _key(template) in self._seen

    def replace(self, trial: FrozenTrial, template: FrozenTrial) -> tuple[int, int] | None:
        """Take over a trial that nobody trains: make another for it, and end it as interrupted.

        The new trial, of ``template``, is made first: should this worker die in between, the next
        one finds both. Where two workers take over the same trial, their new ones are equal, so the
        later one is withdrawn. Returns what ``claim`` does; None also where the trial has ended
        meanwhile: ``changes`` tells how.
        """
        owner = owner_of(trial)
        if owner is not None and owner != self._worker.token:
            self._worker.heartbeats.declare_dead(owner)
        found = self.claim(template, None, replaces=trial.number)
        with self._store.writing():
            storage = self._store.storage
            made = storage.get_trial_id_from_study_id_trial_number(self._study, trial.number)
            try:
                storage.set_trial_user_attr(made, "error", INTERRUPTED)
                storage.set_trial_state_values(made, OptunaState.FAIL)
            except RuntimeError:  # Optuna 4 has no class of its own for this
                # The trial has ended. Either another worker took it over too, and trains nothing
                # for it, since our new trial is the earlier one; or its own worker ended it.
                if not _interrupted(storage.get_trial(made)):
                    if found is not None:
                        self._withdraw(*found)
                    return None  # it is told later, as an end of another worker's trial
        self._forget(trial.number)
        self.of_peers.discard(trial.number)
        self._own.add(trial.number)
        return found

    def changes(self) -> TrialChanges:
        """Read the storage, and return what has changed since it was last read."""
        changes = TrialChanges()
        with self._store.errors("read"), self._store.turn:
            trials = self._trials()
        known, self._n_known = self._n_known, len(trials)
        for number in sorted(self.mine | self.of_peers | set(range(known, len(trials)))):
            trial = trials[number]
            if number not in self._own or _of_another_program(trial):
                self.mine.discard(number)
                self._note_of_peer(trial, number >= known, changes)
                continue
            self._note(trial)
            if number in self.mine and trial.state.is_finished():
                self.mine.discard(number)
                changes.lost.append(trial)
        return changes

    def _note_of_peer(self, trial: FrozenTrial, new: bool, changes: TrialChanges) -> None:
        """Note a trial that another worker began."""
        number = trial.number
        self._note(trial)
        if trial.state.is_finished():
            self.of_peers.discard(number)
            if _withdrawn(trial):
                changes.withdrawn.append(number)
            else:
                changes.ended.append(trial)
            return
        self.of_peers.add(number)
        if trial.state != OptunaState.RUNNING:
            return  # it waits to be run by another program
        if new:
            changes.begun.append(trial)
        if self._is_left(trial):
            changes.left.append(trial)

    def own(self, number: int) -> None:
        """Note that a trial that waited is this worker's now."""
        self.of_peers.discard(number)
        self.mine.add(number)
        self._own.add(number)

    def release(self, number: int) -> None:
        """Note that a trial of this worker has ended."""
        self.mine.discard(number)

    def _is_left(self, trial: FrozenTrial) -> bool:
        """Whether nobody trains a trial that runs in the storage.

        Either its worker is gone; or it is this worker's own, and this worker does not know of it,
        because the storage's answer to the claim was lost.
        """
        owner, heartbeats = owner_of(trial), self._worker.heartbeats
        if _of_another_program(trial):
            return False
        if owner == self._worker.token:
            return True
        if not heartbeats.gone(owner):
            return False
        # Its worker may have joined a moment ago: a worker's first beat comes before its trials.
        heartbeats.look()
        return heartbeats.gone(owner)

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
            # Optuna's own view of a database, which asks only for the trials that have changed.
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
            self._seen[key] = min(others)  # another worker has begun the configuration again


def stands(trial: FrozenTrial) -> bool:
    """Whether a trial counts as tried: it was not withdrawn, and not interrupted."""
    return not _withdrawn(trial) and trial.user_attrs.get("error") != INTERRUPTED


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial counts for ``n_trials``: not one that continues another or is rejected."""
    attrs = trial.user_attrs
    return stands(trial) and "continues" not in attrs and "rejected" not in attrs


def _of_another_program(trial: FrozenTrial) -> bool:
    """Whether a trial is none of Paceline's: plain Optuna trains it, or it waits to be run."""
    return owner_of(trial) is None and not is_ours(trial.user_attrs)


def _withdrawn(trial: FrozenTrial) -> bool:
    return WITHDRAWN in trial.system_attrs


def _key(trial: FrozenTrial) -> str:
    """Return a text of hparams and of the trial continued: it differs between trials that stand.

    Copies in a population may be alike in both, and then differ in their seeds.
    """
    attrs = trial.user_attrs
    found: list[Any] = [attrs.get("hparams", trial.params), attrs.get("continues")]
    if "continued_at" in attrs:
        found.append(attrs.get("seed"))
    return json.dumps(found, sort_keys=True, default=str)


def _interrupted(trial: FrozenTrial) -> bool:
    return trial.state == OptunaState.FAIL and trial.user_attrs.get("error") == INTERRUPTED
