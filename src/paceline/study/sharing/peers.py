"""A study that other workers may search too: what this worker tells them and learns from them."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import StorageError, StudyError
from paceline.study.metadata import META, StoredStudy
from paceline.study.objectives import Direction
from paceline.study.proposer import Proposer
from paceline.study.sharing.claims import TrialClaims
from paceline.study.sharing.watch import StudyWatch, TrialChange
from paceline.study.sharing.worker import Worker
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import WriteBehind
from paceline.study.trials import trial_codec
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import INTERRUPTED, UNDER_WAY, Trial

#: Seconds before a storage that did not answer is asked again.
_PAUSE = 1.0


class ClaimLost(Exception):
    """A trial was not begun: another worker has it, or the storage does not answer."""


@dataclass
class PeerChanges:
    """What others have changed, as far as a search has to act on it."""

    lost: list[int] = field(default_factory=list)  # trials that this worker no longer trains
    # Trials of this worker that another program has ended.
    told: list[FrozenTrial] = field(default_factory=list)
    ended: list[Trial] = field(default_factory=list)  # of others
    # This worker's new trials, which replace trials that nobody trains: the search begins them.
    adopted: list[int] = field(default_factory=list)
    n_theirs: int = 0  # trials that others train now


class StudyPeers:
    """The other workers of a study: whether there are any, and what is shared with them.

    ``worker`` is None for a study that is only read, or that nobody else may search.
    """

    def __init__(
        self,
        store: StudyStorage,
        study: str,
        worker: Worker | None,
        trials: TrialTable,
        proposer: Proposer,
        writer: WriteBehind,
        watch: StudyWatch,
    ) -> None:
        self._store, self._study, self.worker, self._watch = store, study, worker, watch
        self._trials, self._proposer, self._writer = trials, proposer, writer
        self._asks_again = 0.0  # when, after the storage did not answer
        self._claims: TrialClaims | None = None
        # Whether the trials so far were numbered by this worker, not by the storage.
        self._numbered_alone = not self.shared
        self._n_deaths = 0  # those that ``sync`` has dealt with
        # Whether the trials that ended here have ended so in the storage, too.
        self._ends_are_stored = True
        # What was found and not returned yet: the storage may stop to answer in between.
        self._found = PeerChanges()

    @property
    def shared(self) -> bool:
        """Whether other workers search the study, or have since this one joined."""
        return shares(self.worker)

    @property
    def n_workers(self) -> int:
        """Workers that search the study, this one included."""
        return 1 + len(self.worker.heartbeats.others) if self.shared and self.worker else 1

    @property
    def waits(self) -> bool:
        """Whether no trial can be begun now, since the storage does not answer."""
        return time.monotonic() < self._asks_again

    def numbering_lock(self) -> AbstractContextManager[object]:
        """Return a block in which ``shared`` does not change."""
        return contextlib.nullcontext() if self.worker is None else self.worker.numbering_lock

    def create_study(
        self, directions: Sequence[Direction], meta: Mapping[str, Any]
    ) -> StoredStudy | None:
        """Make the study in the storage, or join the worker that has made it a moment ago.

        Returns what that worker has stored; None if the study was made here. Raises StudyError if
        it was created meanwhile without a worker to join, or with another direction.
        """
        made = True
        try:
            with self._writer.stopwatch.running():
                self._store.create(self._study, directions, dict(meta))
        except StudyError:
            if self.worker is None:
                raise
            made = False
        if self.worker is None:
            return None
        found = self._store.study_id(self._study)
        self.worker.join(self._store, found, self._writer, share=not made)
        self._numbered_alone = not self.worker.shared
        stored = None if made else self._store.load(self._study)
        if stored is not None:
            self._trials.set_direction(*stored.directions)
        return stored

    def settle_id(self, made: str) -> str:
        """Return the id of a study that is in the storage without a trial of Paceline's.

        Another worker may have begun it a moment ago, after it was read here: its id stands.
        ``made`` is the id of a study that has none.
        """
        study = self._store.study_id(self._study)
        with self._store.writing():
            storage = self._store.storage
            meta = storage.get_study_user_attrs(study).get(META) or {}
            if not meta.get("id"):
                storage.set_study_user_attr(study, META, {**meta, "id": made})
        # Read again: between the two calls of a database, another worker may have written its own.
        with self._store.errors("read"), self._store.turn:
            return storage.get_study_user_attrs(study)[META]["id"]

    def claim(self, template: FrozenTrial, limit: int | None) -> int | None:
        """Number a trial of a shared study in the storage, and begin it for this worker.

        None if it is not begun: another worker was quicker, or the storage does not answer.
        """
        try:
            claims = self._begun_claims()
            claimed = claims.claim(template, limit)
        except StorageError as error:
            self._asks_again = time.monotonic() + _PAUSE
            self._proposer.note(f"no trial can be started now: {error}")
            return None
        if claimed is None:
            if claims.taken:  # otherwise it is proposed again until the next ``sync``
                self._proposer.tried.note(template.user_attrs["hparams"])
            return None
        number, trial_id = claimed
        self._writer.know_trial_id(number, trial_id)
        return number

    def hear(self) -> PeerChanges | None:
        """Learn what others have done to a study that is not shared, as last read, if anything."""
        if self.shared:
            return None
        changes, theirs = self._watch.take_changes()
        if not changes:
            return None
        self._learn(changes)
        return self._take_found(theirs)

    def sync(self) -> PeerChanges | None:
        """Learn what others have done to a shared study, and take over what dead workers left."""
        assert self.worker is not None
        try:
            if self.worker.n_deaths > self._n_deaths:
                self._disown(self.worker.n_deaths)
            claims = self._begun_claims()
            self._watch.look()
            changes, theirs = self._watch.take_changes()
            self._learn(changes)
            left = self._watch.left(theirs)
            replaced = {stored.number for stored in left if self._adopt(stored, claims)}
        except StorageError:  # the writer tells the user
            self._asks_again = time.monotonic() + _PAUSE
            return None
        self._proposer.skip_numbers(self._watch.n_known)
        return self._take_found([one for one in theirs if one.number not in replaced])

    def _take_found(self, theirs: Sequence[FrozenTrial]) -> PeerChanges:
        known = [self._trials.get(stored.number) for stored in theirs]
        found, self._found = self._found, PeerChanges()
        found.n_theirs = sum(trial is not None and trial.continued_from is None for trial in known)
        return found

    def _begun_claims(self) -> TrialClaims:
        """The claims, made when the study's trials begin to be shared."""
        if self._claims is None:
            assert self.worker is not None
            # Trials that were numbered here are in the storage before any is claimed there.
            self._writer.flush()
            ended = [trial.number for trial in self._trials if trial.state not in UNDER_WAY]
            mine = [t.number for t in self._trials if t.state in UNDER_WAY and not t.by_others]
            self._watch.share(
                mine=mine if self._numbered_alone else (),
                ended=ended if self._ends_are_stored else (),
            )
            self._claims = TrialClaims(self._store, self._writer.study_id, self.worker, self._watch)
        return self._claims

    def _learn(self, changes: Iterable[TrialChange]) -> None:
        """Bring the table of trials and the proposer up to date with the storage."""
        found = self._found
        for change in changes:
            stored, number = change.trial, change.trial.number
            match change.kind:
                case "begun":
                    self._put(stored)
                    self._proposer.learn_peer_trial(stored, self._trials.signs)
                case "ended":
                    was, trial = self._trials.get(number), self._put(stored)
                    self._proposer.learn_peer_trial(stored, self._trials.signs)
                    if trial is None or trial.error == INTERRUPTED:
                        found.lost.append(number)  # this worker may have trained it
                    elif was is None or was.state in UNDER_WAY:
                        found.ended.append(trial)
                case "withdrawn":
                    self._trials.remove(number)
                    self._proposer.lose_trial(number)
                case "ended here" if stored.user_attrs.get("error") == INTERRUPTED:
                    self._put(stored)
                    self._proposer.lose_trial(number)
                    found.lost.append(number)
                case "ended here":
                    found.told.append(stored)

    def _put(self, stored: FrozenTrial) -> Trial | None:
        """Show a trial as others have it."""
        trial = trial_codec.from_frozen(stored, maximize=self._trials.sign < 0)
        if trial is not None:
            self._trials.add(trial)
        return trial

    def _adopt(self, stored: FrozenTrial, claims: TrialClaims) -> bool:
        """Begin a trial in place of one that its worker left; False if it has ended after all."""
        assert self.worker is not None
        left = trial_codec.from_frozen(stored)
        if left is None:
            return False
        template = trial_codec.to_frozen(
            left,
            stored.params,
            stored.distributions,
            owner=self.worker.token,
            attributes=trial_codec.kept_attributes(stored),
        )
        interrupted, claimed = claims.replace(stored, template)
        if not interrupted:
            return False
        self._trials.add(replace(left, state="failed", error=INTERRUPTED))
        self._proposer.lose_trial(left.number)
        if claimed is not None:
            number, trial_id = claimed
            self._writer.know_trial_id(number, trial_id)
            self._watch.began(number, confirmed=True)
            begun = Trial(
                number, hparams=left.hparams, seed=left.seed, continued_from=left.continued_from
            )
            self._trials.add(replace(begun, rejected=left.rejected, enqueued=left.enqueued))
            self._proposer.adopt_peer_trial(number, template, left.hparams)
            self._found.adopted.append(number)
        return True

    def _disown(self, n_deaths: int) -> None:
        """Give up this worker's unfinished trials, since others declared it dead.

        Other workers take them over; those that were not written to the storage are nobody's.
        """
        self._writer.flush()
        self._n_deaths = n_deaths
        _, theirs = self._watch.take_changes()
        under_way = {trial.number for trial in self._trials if trial.state in UNDER_WAY}
        mine = under_way - {stored.number for stored in theirs}
        lost = sorted({*self._found.lost, *mine, *self._writer.dropped})
        self._found = PeerChanges(lost)
        for number in lost:
            self._proposer.lose_trial(number)
            self._trials.remove(number)
        self._claims, self._numbered_alone, self._ends_are_stored = None, False, False


def shares(worker: Worker | None) -> bool:
    """Whether a worker shares its study with others, or has since it joined."""
    return worker is not None and worker.joined and worker.shared


def sampling_seed(seed: int, worker: Worker | None) -> int:
    """Return the seed from which a worker draws: 31 bits of its own where the study is shared.

    Only a worker that is alone draws from the study's seed: two workers would draw the same.
    """
    if worker is None or not shares(worker):
        return seed
    digest = hashlib.sha256(f"{seed} {worker.token}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def join_and_load(
    worker: Worker | None,
    store: StudyStorage,
    study: str,
    writer: WriteBehind,
    resumed: Mapping[str, Any] | None,
    is_left: Callable[[FrozenTrial], bool] | None,
) -> tuple[Mapping[str, Any] | None, StoredStudy | None]:
    """Join the other workers of a study, if it is in the storage, and read it.

    ``worker`` is None if the study is only read; ``is_left`` is as ``Study`` takes it. Returns the
    snapshot, or None if other workers have searched on; and the study, or None if there is none.
    """
    while True:
        if worker is not None and (found := store.find(study)) is not None:
            share = False
            if resumed is None and is_left is not None and (there := store.load(study)) is not None:
                under_way = (trial for trial in there.trials if not trial.state.is_finished())
                share = any(map(is_left, under_way))
            session = None if resumed is None else resumed.get("session")
            if not worker.join(store, found, writer, session, share=share):
                resumed = None
        stored = store.load(study)
        if stored is None or worker is None or worker.joined:
            return resumed, stored
        # Another worker made the study between the two steps: this one joins it.
