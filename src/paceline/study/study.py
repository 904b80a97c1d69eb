"""A study: its trials, what became of them, and where all of it is kept.

A trial is kept three times, each for one purpose: as the ``Trial`` that users see (``book.py``), in
the mirror that samplers learn from (``agenda.py``, ``proposer.py``), and in the storage, which a
thread writes behind (``ledger.py``, ``writer.py``). Calls here never wait for a storage; ``open``,
``persist``, ``flush`` and ``close`` do.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from paceline.search_space import HyperParameters, Space
from paceline.study import trial_codec
from paceline.study.ask import TrialAsker
from paceline.study.draft import Draft
from paceline.study.metadata import RestoredStudy, StoredStudy, StudyMetadata, check_name
from paceline.study.objective import Direction
from paceline.study.storage.events import StudyDescribed, TrialCreated
from paceline.study.storage.folder import (
    check_attributes,
    check_folder,
    check_storage_text,
    raise_renamed,
)
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import Ledger
from paceline.study.tell import TrialUpdates
from paceline.study.trial import INTERRUPTED, Trial
from paceline.study.trials import TrialTable
from paceline.study.workers.shared_study import ClaimLost, Membership, PeerChanges, join
from paceline.study.workers.worker import Worker


class Study:
    """Trials by number.

    Attributes:
        name: Its name.
        exists: Whether it was in the storage when opened.
        resumed: Whether it goes on from a snapshot.
        agenda: What it tries next.
        course: What becomes of its trials.
        membership: Its part among the workers that search it.
    """

    def __init__(
        self,
        name: str,
        store: StudyStorage,
        stored: StoredStudy | None,
        *,
        direction: Direction | None,
        sampler: str | BaseSampler,
        seed: int,
        n_trials: int | None,
        resumed: Mapping[str, Any] | None = None,
        worker: Worker | None = None,
    ) -> None:
        """Make a study of what a storage holds; use ``Study.open``."""
        self.name = name
        self.exists = stored is not None
        self._past = past = RestoredStudy(stored, resumed)
        self.resumed = past.resumed is not None
        # Of every search that begins; one that goes on is the same.
        session = secrets.token_hex(8) if worker is None else worker.token
        if self.resumed and stored is not None:
            session = stored.meta["session"]
        self._book = TrialTable(name)
        if stored is not None:
            self._book.direction = stored.direction
        if direction is not None:
            self.set_direction(direction)
        self._description = StudyMetadata(name, stored, session)
        self._ledger = Ledger(store)
        self.membership = Membership(store, name, worker, self._book, self._ledger)
        self.agenda = TrialAsker(
            sampler, seed, self.space, past, self._book, self.membership, n_trials
        )
        self.membership.begin()
        self.course = TrialUpdates(
            self._book, self.agenda, self._ledger, self.membership, past, self._description
        )

    @classmethod
    def open(
        cls,
        name: str,
        *,
        storage: str | BaseStorage | None = None,
        directory: Path = Path("runs"),
        direction: Direction | None = None,
        sampler: str | BaseSampler = "random",
        seed: int = 0,
        n_trials: int | None = None,
        resumed: Mapping[str, Any] | None = None,
        worker: Worker | None = None,
        is_left: Callable[[FrozenTrial], bool] | None = None,
    ) -> Study:
        """Return a study with what is stored of it; writes nothing.

        Args:
            name: Its name, also that of its folder.
            storage: ``journal:PATH``, an Optuna URL, a storage object, or None for the journal
                file ``<directory>/<name>/journal.log``.
            directory: Folder of the studies.
            direction: maximize or minimize; None takes the stored one, or waits for
                ``set_direction``.
            sampler: random, qmc, tpe, gp, grid or an object of ``optuna.samplers``.
            seed: Of all that is drawn at random; 0 or above.
            n_trials: Trials wanted in all; None when only time bounds the search.
            resumed: Of ``snapshot``: the study is as it was then, as far as the storage allows.
            worker: Joins the others that search the study, if there are any: give one to search
                it, and none to read it.
            is_left: Whether a trial that runs in the storage can be gone on with although there is
                no snapshot: then it is taken over, as if its worker had died a moment ago.

        Raises:
            StudyError: An impossible name, another direction than the stored one, or a study that
                this version cannot read.
            StorageError: The storage cannot be opened or read.
            SamplerError: An unknown sampler.
            MissingExtraError: A sampler whose package is not installed.
            UsageError: A seed that is no whole number from 0.
        """
        check_name(name)
        check_storage_text(storage)
        check_folder(Path(directory) / name)
        began = time.perf_counter()
        store = StudyStorage.of(storage, name, Path(directory))
        if worker is not None:
            resumed = join(worker, store, name, resumed, is_left)
        stored = store.load(name)
        if storage is None and stored is None and (others := store.names()):
            raise_renamed(name, Path(directory), others)
        check_attributes(name, stored.trials if stored is not None else ())
        study = cls(
            name,
            store,
            stored,
            direction=direction,
            sampler=sampler,
            seed=seed,
            n_trials=n_trials,
            resumed=resumed,
            worker=worker,
        )
        study._ledger.stopwatch.seconds += time.perf_counter() - began
        return study

    # Reading

    @property
    def meta(self) -> dict[str, Any]:
        """What only Paceline knows of it, JSON values; see ``persist``."""
        return self._description.meta

    @property
    def direction(self) -> Direction | None:
        """Whether the objective is to maximize or minimize; None while it is not known."""
        return self._book.direction

    @property
    def space(self) -> Space:
        """What is known of the search space, earlier sessions included."""
        return self._description.space

    @property
    def trials(self) -> list[Trial]:
        """All trials by number, those still running included. Not to be changed."""
        return self._book.trials

    def trial(self, number: int) -> Trial:
        """Return one trial.

        Raises:
            StudyError: There is none of this number.
        """
        return self._book.trial(number)

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best value, the first of equals; None when there is none."""
        return self._book.best

    @property
    def leading(self) -> Trial | None:
        """The trial with the best value so far, whatever its state; None when there is none."""
        return self._book.leading

    @property
    def seconds(self) -> dict[str, float]:
        """Time of the calling thread: ``sampler`` and ``storage``."""
        return {"sampler": self.agenda.proposer.seconds, "storage": self._ledger.seconds}

    @property
    def writer_seconds(self) -> float:
        """Processor time that the writer's thread has taken."""
        return self._ledger.cpu_seconds

    def accept(self, draft: Draft, hp: HyperParameters) -> int:
        """Make a draft a running trial.

        Args:
            draft: The last one proposed or asked for.
            hp: After build.

        Returns:
            The trial's number.

        Raises:
            Outrun: Another worker was quicker, or the storage does not answer, which would have to
                number it; the draft is dropped.
            SpaceError: A parameter is known with other bounds.
        """
        agenda, membership = self.agenda, self.membership
        values, parameters = agenda.proposer.settle(draft, hp), hp.parameters
        trial = Trial(draft.number, hparams=hp.hparams, seed=draft.seed, continues=draft.continues)
        with membership.door():
            stored = trial_codec.to_frozen(
                trial,
                values,
                {name: parameters[name].distribution for name in values},
                draw=None if agenda.draws_alone else draft.draw,
                owner=membership.token,
            )
            if membership.shared:
                number = membership.claim(agenda.proposer, stored, agenda.n_trials)
                if number is None:
                    agenda.reject(draft)
                    raise ClaimLost
                draft.number = trial.number = number
            elif not self._past.has(draft.number):
                self._ledger.put(TrialCreated(trial.number, stored))
        agenda.proposer.accept(draft, values, hp.hparams)
        self._book.put(trial)
        agenda.n_counted += draft.continues is None
        if self._description.outgrown and self._ledger.started:
            self._describe(self.meta)
        return trial.number

    def set_direction(self, direction: Direction) -> None:
        """Say whether high or low values are good, where ``open`` could not.

        Raises:
            StudyError: The study is searched in the other direction.
        """
        self._book.set_direction(direction)

    def snapshot(self, afresh: Container[int] = ()) -> dict[str, Any]:
        """The study as it is, as far as the storage would not tell: JSON values.

        What has ended is in the storage then.

        Args:
            afresh: Trials under way that would begin again from their first epoch.

        Raises:
            StorageError: It could not be written.
        """
        self.flush()
        session = self._description.session
        opened = self.course.under_way(afresh)
        return {**self.agenda.proposer.snapshot(), "open": opened, "session": session}

    def hear(self) -> PeerChanges | None:
        """Take note of what other workers did, and take over what dead ones left.

        Returns:
            What a search has to do about it; None where there is nothing to hear.
        """
        if not self.membership.shared:
            return None
        self._description.share()
        heard = self.membership.hear(self.agenda.proposer)
        if heard is not None:
            self.agenda.n_counted = sum(
                trial.error != INTERRUPTED and trial.continues is None for trial in self.trials
            )
        return heard

    # Storage

    def persist(self, meta: Mapping[str, Any]) -> None:
        """Make the study's folder and storage, at the first call, and describe the study there.

        What was accepted before is written as well. Trials that a dead process left running become
        failed, with the error "interrupted".

        Args:
            meta: Replaces ``meta``, JSON values: objective, direction, sampler, seed, origin,
                search arguments. The format's version and the space are added here.

        Raises:
            StorageError: It cannot be written.
            StudyError: Another process has just made a study of this name.
        """
        if self._ledger.started:
            self._describe(meta)
            return
        if self.direction is None:
            raise RuntimeError("persist before set_direction")
        if self.exists:
            self._describe(meta)
        else:
            self._description.write(meta)
            self.membership.create(self.direction, self.meta)
            if self.membership.shared:
                self.agenda.share()
        self.course.give_up_left()
        self._ledger.start(self.name)

    def look_after(self) -> bool:
        """Say when the storage stops taking records and when it takes them again.

        Returns:
            Whether it takes them.
        """
        return self._ledger.look_after(self.agenda.proposer.note)

    def flush(self) -> None:
        """Wait until everything is in the storage.

        Raises:
            StorageError: It cannot be written now.
        """
        self._ledger.flush()

    def close(self) -> None:
        """Write what is left and end the writer; safe to call again. Reading goes on working.

        Raises:
            StorageError: Something could not be written: the storage has not answered for a minute.
        """
        self._ledger.close()

    # Inside

    def _describe(self, meta: Mapping[str, Any]) -> None:
        self._description.write(meta)
        self._ledger.put(StudyDescribed(self.meta))
