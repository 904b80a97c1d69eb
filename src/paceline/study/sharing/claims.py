"""How the workers of one study agree on who trains which configuration.

All of Optuna's storages settle one thing between processes: the order in which trials are made.
(They do not settle changes of state: on SQLite two processes can both succeed at one.) So a worker
claims a configuration by making a trial with all its values. If two trials have the same
configuration, or one exceeds the number wanted, the earlier trials stand. The worker of the later
one withdraws it before training.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from paceline.study.sharing.watch import StudyWatch, is_withdrawn
from paceline.study.sharing.worker import Worker
from paceline.study.storage.storage import StudyStorage
from paceline.study.trials.trial import INTERRUPTED
from paceline.study.trials.trial_codec import WITHDRAWN, owner_of


@dataclass(eq=False, repr=False)
class TrialClaims:
    """Makes the trials of one worker in the storage."""

    _store: StudyStorage
    _study: int  # the storage's id
    _worker: Worker
    _watch: StudyWatch
    # Whether an earlier trial stood, at the last claim, that has the same configuration.
    taken: bool = field(default=False, init=False)

    def claim(
        self, template: FrozenTrial, limit: int | None, *, replaces: int | None = None
    ) -> tuple[int, int] | None:
        """Make a trial, for this worker to train; return its number and its id in the storage.

        ``template`` is the trial, running, its configuration in the attribute ``hparams``, with
        this worker as its owner. ``limit`` is the study's total of trials (None: no end). None if
        another worker was quicker, and the trial is withdrawn. If a storage raises but has created
        the trial, the watch finds it as an abandoned one.
        """
        with self._store.writing():
            storage = self._store.storage
            made = storage.create_new_trial(self._study, template)
            number = storage.get_trial_number_from_id(made)
            before = self._watch.read_trials()[:number]
            full = limit is not None and sum(map(_counts, before)) >= limit and _counts(template)
            self.taken = any(
                _are_alike(trial, template) and stands(trial) and trial.number != replaces
                for trial in before
            )
            if full or self.taken:
                self._withdraw(number, made)
                return None
        return number, made

    def replace(
        self, trial: FrozenTrial, template: FrozenTrial
    ) -> tuple[bool, tuple[int, int] | None]:
        """Take over a trial that nobody trains: make another for it, and end it as interrupted.

        The new trial, of ``template``, is made first: should this worker die in between, the next
        one finds both. Where two workers take over the same trial, their new ones are equal, so the
        later one is withdrawn. Returns whether the trial is interrupted now, and what ``claim``
        does; (False, None) if it has ended otherwise meanwhile.
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
                # The trial has ended. Either another worker also took it over, but trains nothing,
                # since our new trial is earlier. Or its own worker ended it.
                if not _interrupted(storage.get_trial(made)):
                    if found is not None:
                        self._withdraw(*found)
                    return False, None  # it is told later, as an end of another worker's trial
        self._watch.drop(trial.number)
        return True, found

    def _withdraw(self, number: int, made: int) -> None:
        """Take back a trial of this worker's."""
        self._watch.drop(number)
        self._store.storage.set_trial_system_attr(made, WITHDRAWN, True)
        self._store.storage.set_trial_state_values(made, OptunaState.FAIL)


def stands(trial: FrozenTrial) -> bool:
    """Whether a trial counts as tried: it was not withdrawn, and not interrupted."""
    return not is_withdrawn(trial) and trial.user_attrs.get("error") != INTERRUPTED


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial counts for ``n_trials``: not one that continues another or is rejected."""
    attrs = trial.user_attrs
    return stands(trial) and "continued_from" not in attrs and "rejected" not in attrs


def _are_alike(trial: FrozenTrial, other: FrozenTrial) -> bool:
    """Whether trials have equal hparams, and continue the same trial, or none.

    Copies in a population may be alike in both, and then differ in their seeds.
    """
    if _configuration(trial) != _configuration(other):
        return False
    keys = (json.dumps(_configuration(t), sort_keys=True, default=str) for t in (trial, other))
    return next(keys) == next(keys)  # to Python, 1 is 1.0 and True


def _configuration(trial: FrozenTrial) -> list[Any]:
    attrs = trial.user_attrs
    seed = attrs.get("seed") if "continued_at" in attrs else None
    return [attrs.get("hparams", trial.params), attrs.get("continued_from"), seed]


def _interrupted(trial: FrozenTrial) -> bool:
    return trial.state == OptunaState.FAIL and trial.user_attrs.get("error") == INTERRUPTED
