"""A study's part among the workers that search it: alone in most studies, with others in some."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from optuna.trial import FrozenTrial

from paceline.book import Book
from paceline.errors import StorageError, StudyError
from paceline.ledger import Ledger
from paceline.objective import Direction
from paceline.proposer import Proposer
from paceline.sharing import Heard, Sharing
from paceline.storage import Store
from paceline.worker import Worker

#: Seconds before a storage that did not answer is asked again.
_PAUSE = 1.0


class Outrun(Exception):
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
        self, store: Store, study: str, worker: Worker | None, book: Book, ledger: Ledger
    ) -> None:
        self._store, self._study, self._worker = store, study, worker
        self._book, self._ledger = book, ledger
        self._sharing: Sharing | None = None
        self._asks_again = 0.0  # when, after the storage did not answer

    def begin(self) -> None:
        """From now on, do what others have to be told, where the worker has joined them."""
        if self._worker is not None and self._worker.joined:
            self._sharing = Sharing(
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

    def hear(self, proposer: Proposer) -> Heard | None:
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
    store: Store,
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
