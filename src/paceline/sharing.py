"""A study that other workers search too: what of theirs this one takes note of, and how."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from optuna.trial import FrozenTrial

from paceline import trial_record
from paceline.book import Book
from paceline.company import Company, News
from paceline.ledger import Ledger
from paceline.proposer import Proposer
from paceline.storage import Store
from paceline.trial import INTERRUPTED, Trial
from paceline.worker import Worker

_UNDER_WAY = ("running", "paused")


@dataclass
class Heard:
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


class Sharing:
    """One worker's part in a study.

    Args:
        store: Where the study is.
        study: Its name.
        worker: The worker, which has joined.
        book: Its trials, as this worker knows them.
        ledger: Where this worker's records go.
    """

    def __init__(
        self, store: Store, study: str, worker: Worker, book: Book, ledger: Ledger
    ) -> None:
        self._store, self._worker, self._book, self._ledger = store, worker, book, ledger
        self._study = store.study_id(study)
        self._company: Company | None = None
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

    def hear(self, proposer: Proposer) -> Heard:
        """Take note of what others did, and take over what dead ones left.

        Raises:
            StorageError: The storage does not answer.
        """
        heard = Heard()
        if self._buried:
            self._disown(proposer, heard)
        company = self._joined(proposer)
        self._note(company.hear(), proposer, heard)
        proposer.number_from(company.n_heard)
        theirs = map(self._book.get, company.theirs)
        heard.n_theirs = sum(t is not None and t.continues is None for t in theirs)
        return heard

    def _joined(self, proposer: Proposer) -> Company:
        """The study's trials as the storage has them; made when they begin to be shared."""
        if self._company is None:
            self._ledger.flush()  # what was numbered here is in the storage before what is claimed
            trials = self._book.trials
            self._company = Company(self._store, self._study, self._worker)
            self._company.begin(
                mine=[t.number for t in trials if self._alone and t.state in _UNDER_WAY],
                own=range(proposer.next_number if self._alone else 0),
                known=[t.number for t in trials if self._trusts and t.state not in _UNDER_WAY],
            )
        return self._company

    def _note(self, news: News, proposer: Proposer, heard: Heard) -> None:
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
        was = trial_record.read(stored)
        if was is None:
            return None
        template = trial_record.begun(
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
        trial = trial_record.read(stored)
        if trial is not None:
            self._book.put(trial)
        return trial

    def _bury(self) -> None:
        """Others have thought this worker dead; called in the heart's thread."""
        self._ledger.fence_off()
        self._buried = True

    def _disown(self, proposer: Proposer, heard: Heard) -> None:
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
