"""A study that other workers search too: what of theirs this one takes note of, and how.

A study's part among the workers that search it: alone in most studies, with others in some.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from optuna.trial import FrozenTrial

from paceline.errors import StorageError, StudyError
from paceline.study import trial_codec
from paceline.study.objective import Direction
from paceline.study.proposer import Proposer
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import Ledger
from paceline.study.trial import INTERRUPTED, Trial
from paceline.study.trials import TrialTable
from paceline.study.workers.claims import TrialChanges, TrialClaims
from paceline.study.workers.worker import Worker

_UNDER_WAY = ("running", "paused")


@dataclass
class PeerChanges:
    """What a search has to know of the others.

    Attributes:
        lost: Numbers of trials that this worker trains no more, or whose end is not its own.
        ended: Trials that have ended elsewhere.
        adopted: Numbers of trials that others left and that are this worker's now, to be begun.
        n_theirs: Trials that others train now.
    """

    lost: list[int] = field(default_factory=list)
    ended: list[Trial] = field(default_factory=list)
    adopted: list[int] = field(default_factory=list)
    n_theirs: int = 0


class SharedStudy:
    """One worker's part in a study.

    Args:
        store: Where the study is.
        study: Its name.
        worker: The worker, which has joined.
        book: Its trials, as this worker knows them.
        ledger: Where this worker's records go.
    """

    def __init__(
        self, store: StudyStorage, study: str, worker: Worker, book: TrialTable, ledger: Ledger
    ) -> None:
        self._store, self._worker, self._book, self._ledger = store, worker, book, ledger
        self._study = store.study_id(study)
        self._company: TrialClaims | None = None
        self._alone = not worker.shared
        self._buried = False
        self._trusts = True  # what it thinks has ended has ended so
        worker.on_company = ledger.flush  # likewise before others are told that they may claim
        worker.on_buried = self._bury
        ledger.guard(worker.fence)

    @property
    def theirs(self) -> set[int]:
        """Numbers of the trials that others train."""
        return set() if self._company is None else self._company.theirs

    def claim(self, proposer: Proposer, template: FrozenTrial, limit: int | None) -> int | None:
        """Make a trial in the storage, for this worker.

        Args:
            proposer: Of the study.
            template: Its stored form.
            limit: How many trials the study shall have; None for no end.

        Returns:
            Its number; None where another worker was quicker.

        Raises:
            StorageError: The storage does not answer.
        """
        found = self._joined(proposer).claim(template, limit)
        if found is None:
            return None
        number, made = found
        self._ledger.know(number, made)
        return number

    def ended(self, number: int) -> None:
        """Say that a trial of this worker has ended."""
        if self._company is not None:
            self._company.ended(number)

    def hear(self, proposer: Proposer) -> PeerChanges:
        """Take note of what others did, and take over what dead ones left.

        Raises:
            StorageError: The storage does not answer.
        """
        heard = PeerChanges()
        if self._buried:
            self._disown(proposer, heard)
        company = self._joined(proposer)
        self._note(company.hear(), proposer, heard)
        proposer.number_from(company.n_heard)
        theirs = map(self._book.get, company.theirs)
        heard.n_theirs = sum(t is not None and t.continues is None for t in theirs)
        return heard

    def _joined(self, proposer: Proposer) -> TrialClaims:
        """The study's trials as the storage has them; made when they begin to be shared."""
        if self._company is None:
            self._ledger.flush()  # what was numbered here is in the storage before what is claimed
            trials = self._book.trials
            self._company = TrialClaims(self._store, self._study, self._worker)
            self._company.begin(
                mine=[t.number for t in trials if self._alone and t.state in _UNDER_WAY],
                own=range(proposer.next_number if self._alone else 0),
                known=[t.number for t in trials if self._trusts and t.state not in _UNDER_WAY],
            )
        return self._company

    def _note(self, news: TrialChanges, proposer: Proposer, heard: PeerChanges) -> None:
        for stored in news.begun:
            self._put(stored)
            proposer.hear(stored, self._book.sign)
        for stored in news.ended:
            was = self._book.get(stored.number)
            trial = self._put(stored)
            proposer.hear(stored, self._book.sign)
            if trial is None or trial.error == INTERRUPTED:
                heard.lost.append(stored.number)  # if it was this worker's
            elif was is None or was.state in _UNDER_WAY:
                heard.ended.append(trial)
        for number in news.withdrawn:
            self._book.drop(number)
            proposer.lose(number)
        for stored in news.lost:
            trial = self._put(stored)
            proposer.lose(stored.number)
            heard.lost.append(stored.number)
            if trial is not None and trial.error != INTERRUPTED:
                heard.ended.append(trial)
        for stored in news.left:
            number = self._adopt(stored, proposer)
            if number is not None:
                heard.adopted.append(number)

    def _adopt(self, stored: FrozenTrial, proposer: Proposer) -> int | None:
        """Begin a trial in place of one that its worker left; None where another does."""
        was = trial_codec.from_frozen(stored)
        if was is None:
            return None
        template = trial_codec.to_frozen(
            was, stored.params, stored.distributions, owner=self._worker.token
        )
        found = self._joined(proposer).replace(stored, template)
        self._book.put(replace(was, state="failed", error=INTERRUPTED))
        proposer.lose(was.number)
        if found is None:
            return None
        number, made = found
        self._ledger.know(number, made)
        self._book.put(Trial(number, hparams=was.hparams, seed=was.seed, continues=was.continues))
        proposer.adopt(number, template, was.hparams)
        return number

    def _put(self, stored: FrozenTrial) -> Trial | None:
        trial = trial_codec.from_frozen(stored)
        if trial is not None:
            self._book.put(trial)
        return trial

    def _bury(self) -> None:
        """Others have thought this worker dead; called in the heart's thread."""
        self._ledger.fence_off()
        self._buried = True

    def _disown(self, proposer: Proposer, heard: PeerChanges) -> None:
        """What this worker trained is others', and what the storage did not have is nobody's."""
        self._ledger.flush()
        self._buried = False
        mine = {t.number for t in self._book.trials if t.state in _UNDER_WAY} - self.theirs
        heard.lost = sorted(mine | self._ledger.lost)
        for number in heard.lost:
            proposer.lose(number)
            self._book.drop(number)
        self._company, self._alone, self._trusts = None, False, False


def own_seed(seed: int, token: str) -> int:
    """The seed of what a worker draws that shares a study: 31 bits, its own.

    Only a worker that is alone draws from the study's seed; two would draw the same.
    """
    digest = hashlib.sha256(f"{seed} {token}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


#: Seconds before a storage that did not answer is asked again.
_PAUSE = 1.0


class ClaimLost(Exception):
    """A trial was not begun: another worker has it, or the storage does not answer."""


class Membership:
    """Whether others search a study, and what they have to do with it.

    Args:
        store: Where the study is.
        study: Its name.
        worker: Joins the others; None for a study that is only read, or never shared.
        book: Its trials.
        ledger: Where its records go.
    """

    def __init__(
        self,
        store: StudyStorage,
        study: str,
        worker: Worker | None,
        book: TrialTable,
        ledger: Ledger,
    ) -> None:
        self._store, self._study, self._worker = store, study, worker
        self._book, self._ledger = book, ledger
        self._sharing: SharedStudy | None = None
        self._asks_again = 0.0  # when, after the storage did not answer

    def begin(self) -> None:
        """From now on, do what others have to be told, where the worker has joined them."""
        if self._worker is not None and self._worker.joined:
            self._sharing = SharedStudy(
                self._store, self._study, self._worker, self._book, self._ledger
            )

    @property
    def shared(self) -> bool:
        """Whether other workers search the study, or have while this one did."""
        return self._worker is not None and self._worker.joined and self._worker.shared

    @property
    def n_workers(self) -> int:
        """Workers that search the study, this one included."""
        return 1 + len(self._worker.crew.others) if self.shared and self._worker else 1

    @property
    def token(self) -> str | None:
        """Tells this worker from all others; None without one."""
        return None if self._worker is None else self._worker.token

    @property
    def waits(self) -> bool:
        """Whether no trial can be begun now, since the storage does not answer."""
        return time.monotonic() < self._asks_again

    def door(self) -> AbstractContextManager[object]:
        """A block in which ``shared`` stays as it is."""
        return contextlib.nullcontext() if self._worker is None else self._worker.door

    def watch(self) -> None:
        """From now on, see whether the other workers live."""
        if self._worker is not None:
            self._worker.watch()

    def all_alive(self) -> bool:
        """Whether all other workers have given a sign of life since ``watch``, or are gone."""
        return self._worker is None or self._worker.all_alive()

    def create(self, direction: Direction, meta: Mapping[str, Any]) -> None:
        """Make the study, or join the worker that has made it a moment ago.

        Raises:
            StorageError: It cannot be written.
            StudyError: There is no worker to join with, or the other has another direction.
        """
        made = True
        try:
            self._ledger.create(self._study, direction, meta)
        except StudyError:
            if self._worker is None:
                raise
            made = False
        if self._worker is None:
            return
        self._worker.join(self._store, self._store.study_id(self._study), share=not made)
        self.begin()
        stored = None if made else self._store.load(self._study)
        if stored is not None:
            self._book.set_direction(stored.direction)

    def claim(self, proposer: Proposer, template: FrozenTrial, limit: int | None) -> int | None:
        """Have the storage number a trial of a study that is shared.

        Args:
            proposer: Of the study.
            template: Its stored form.
            limit: How many trials the study shall have; None for no end.

        Returns:
            Its number; None where it is not to be: another worker was quicker, or the storage does
            not answer.
        """
        assert self._sharing is not None
        try:
            return self._sharing.claim(proposer, template, limit)
        except StorageError as error:
            self._asks_again = time.monotonic() + _PAUSE
            proposer.note(f"no trial can be begun now: {error}")
            return None

    def hear(self, proposer: Proposer) -> PeerChanges | None:
        """Take note of what others of a study that is shared did; None where nothing is heard."""
        assert self._sharing is not None
        try:
            return self._sharing.hear(proposer)
        except StorageError:  # the writer tells
            self._asks_again = time.monotonic() + _PAUSE
            return None

    def ended(self, number: int) -> None:
        """A trial of this worker has ended."""
        if self._sharing is not None:
            self._sharing.ended(number)


def join(
    worker: Worker,
    store: StudyStorage,
    study: str,
    resumed: Mapping[str, Any] | None,
    is_left: Callable[[FrozenTrial], bool] | None,
) -> Mapping[str, Any] | None:
    """Have a worker join the others of a study, if that is in the storage.

    Args:
        worker: The worker.
        store: Where the study is.
        study: Its name.
        resumed: A snapshot of the study, or None.
        is_left: As ``Study.open`` takes it.

    Returns:
        The snapshot, where the study goes on from it; None where others have gone on meanwhile.
    """
    found = store.find(study)
    if found is None:
        return resumed
    share = False
    if resumed is None and is_left is not None and (there := store.load(study)) is not None:
        share = any(is_left(trial) for trial in there.trials if not trial.state.is_finished())
    session = None if resumed is None else resumed.get("session")
    return resumed if worker.join(store, found, session, share=share) else None
