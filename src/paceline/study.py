"""A study: its trials, what to try next, and where all of it is kept.

A trial is kept three times, each for one purpose: as the ``Trial`` that users see, in the mirror
that samplers learn from (``proposer.py``), and in the storage, which a thread writes behind
(``writer.py``). Calls here never wait for a storage; ``open``, ``persist``, ``flush`` and ``close``
do.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from paceline import trial_record
from paceline.book import Book
from paceline.director import Director
from paceline.draft import BuildFailed, Draft
from paceline.errors import SpaceError, StorageError, StudyError
from paceline.guard import check_attributes, check_folder, check_storage_text
from paceline.ledger import Ledger
from paceline.objective import Direction
from paceline.past import Past
from paceline.proposer import Proposer
from paceline.record import Annotated, Created, Described, Finished, Reported
from paceline.samplers import check_seed, resolve_sampler
from paceline.search_space import HyperParameters, Space
from paceline.sharing import Heard, Sharing, own_seed
from paceline.storage import Store
from paceline.study_record import FORMAT, StoredStudy, check_name, stored_space
from paceline.trial import INTERRUPTED, Trial, TrialState
from paceline.worker import Worker

__all__ = ["INTERRUPTED", "BuildFailed", "Draft", "Outrun", "Study"]

T = TypeVar("T")
#: Seconds before a storage that did not answer is asked again.
_PAUSE = 1.0


class Outrun(Exception):
    """A trial was not begun: another worker has it, or the storage does not answer."""


class Study:
    """Trials by number, and the next one.

    Attributes:
        name: Its name.
        exists: Whether it was in the storage when opened.
        meta: What only Paceline knows of it, JSON values; see ``persist``.
        n_trials: Trials wanted in all; None when only time bounds the search.
        resumed: Whether it goes on from a snapshot.
    """

    def __init__(
        self,
        name: str,
        store: Store,
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
        self.meta = stored.meta if stored is not None else {}
        self.n_trials = n_trials
        self._past = past = Past(stored, resumed)
        self.resumed = past.resumed is not None
        self._store, self._worker = store, worker
        # Of every search that begins; one that goes on is the same.
        self._session = secrets.token_hex(8) if worker is None else worker.token
        if self.resumed:
            self._session = self.meta["session"]
        self._book = Book(name)
        if stored is not None:
            self._book.direction = stored.direction
        if direction is not None:
            self.set_direction(direction)
        self._sampler, self._seed = sampler, check_seed(seed)
        self._adaptive = resolve_sampler(sampler, seed).adaptive
        self._proposer = self._make_proposer(stored_space(name, self.meta), past)
        self._known_parameters = len(self.space.parameters)
        self._ledger = Ledger(store)
        self._n_counted = 0  # of these, for n_trials: those that are not tried again
        self._left_running: list[int] = []
        self._in_trouble = False
        self._asks_again = 0.0  # when, after the storage did not answer
        self._sharing: Sharing | None = None
        if worker is not None and worker.joined:
            self._sharing = Sharing(store, name, worker, self._book, self._ledger)
        for stored_trial in past.trials:
            trial = trial_record.read(stored_trial)
            if trial is not None:
                self._take_over(trial)
        if past.resumed is not None:
            for number, was in past.resumed["open"].items():
                trial_record.resume(self.trial(int(number)), was)

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
        store = Store.of(storage, name, Path(directory))
        if worker is not None and (found := store.find(name)) is not None:
            share = False
            if resumed is None and is_left is not None and (there := store.load(name)) is not None:
                share = any(is_left(t) for t in there.trials if not t.state.is_finished())
            session = None if resumed is None else resumed.get("session")
            back = worker.join(store, found, session, share=share)
            resumed = resumed if back else None
        stored = store.load(name)
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
    def direction(self) -> Direction | None:
        """Whether the objective is to maximize or minimize; None while it is not known."""
        return self._book.direction

    @property
    def space(self) -> Space:
        """What is known of the search space, earlier sessions included."""
        return self._proposer.space

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
    def max_open(self) -> int | None:
        """How many trials may be open at once; None where the sampler does not mind.

        An adaptive sampler that is asked ahead knows less: in waves of 64, TPE is random search.
        """
        if self.director is not None:
            return self.director.max_open
        if not self._adaptive:
            return None
        n_workers = 1 + len(self._worker.crew.others) if self.shared and self._worker else 1
        return max(2 if n_workers > 1 else 4, (self.n_trials or 0) // 8 // n_workers)

    @property
    def director(self) -> Director | None:
        """Who decides instead of a sampler; None in most studies."""
        return self._proposer.director

    @property
    def n_again(self) -> int:
        """Trials that a dead process left under way, to be begun again as new ones."""
        return len(self._left_running)

    @property
    def in_order(self) -> bool:
        """Whether trials come as a grid walks, so that the first say little of the next."""
        return self.director is not None or self._sampler == "grid"

    @property
    def exhausted(self) -> bool:
        """Whether the last ``propose`` found nothing that had not been tried."""
        return self._proposer.exhausted

    @property
    def seconds(self) -> dict[str, float]:
        """Time of the calling thread: ``sampler`` and ``storage``."""
        return {"sampler": self._proposer.seconds, "storage": self._ledger.seconds}

    @property
    def writer_seconds(self) -> float:
        """Processor time that the writer's thread has taken."""
        return self._ledger.cpu_seconds

    def seen(self, hparams: Mapping[str, Any]) -> bool:
        """Return whether some trial had exactly these values, failed ones included.

        Those that were interrupted do not count: they are tried again.
        """
        return self._proposer.seen(hparams)

    # What to try next

    def on_note(self, note: Callable[[str], None]) -> None:
        """Have ``note`` called with each line of text that users may want to see."""
        self._proposer.note = note

    def propose(
        self, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T] | None:
        """Return the next configuration, one not tried before, and what ``run`` made of it.

        First come the trials that an earlier process left unfinished and those enqueued, then the
        sampler's. ``accept`` the draft before the next call, or it is dropped.

        Args:
            run: Calls the user's build with hp and returns what it made; called again for each
                attempt.

        Returns:
            Draft, hp and the result of ``run``; None when nothing is left to try: then
            ``exhausted`` is true.

        Raises:
            BuildFailed: ``run`` raised, for a configuration that has not failed before.
            SpaceError: A hyperparameter declared with impossible or conflicting bounds, or an
                enqueued value or name that build does not know.
            SamplerError: The sampler failed.
        """
        families = self._proposer.families
        families.open = self.max_open or 1
        if self.n_trials is not None:
            families.sure = self.n_trials - self._n_counted
        return self._proposer.propose(run)

    def propose_on(
        self, number: int, run: Callable[[HyperParameters, Draft], T]
    ) -> tuple[Draft, HyperParameters, T]:
        """Return a draft that goes on with a trial that has ended: its hparams and its seed.

        Args:
            number: The trial's.
            run: As for ``propose``.

        Raises:
            BuildFailed, SpaceError, SamplerError: As from ``propose``.
        """
        trial = self.trial(number)
        return self._proposer.go_on(number, trial.hparams, trial.seed, run)

    def ask(self, *, attempt: int = 0) -> Draft:
        """Return a draft of the next trial, whose values are chosen while build runs.

        Args:
            attempt: How many proposals for this trial were turned down before.

        Raises:
            SamplerError: The sampler failed.
        """
        return self._proposer.ask(attempt)

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
        values, parameters = self._proposer.settle(draft, hp), hp.parameters
        trial = Trial(draft.number, hparams=hp.hparams, seed=draft.seed, continues=draft.continues)
        with contextlib.nullcontext() if self._worker is None else self._worker.door:
            stored = trial_record.begun(
                trial,
                values,
                {name: parameters[name].distribution for name in values},
                draw=None if self._draws_alone else draft.draw,
                owner=None if self._worker is None else self._worker.token,
            )
            if self.shared:
                draft.number = trial.number = self._claim(draft, stored)
            elif not self._past.has(draft.number):
                self._ledger.put(Created(trial.number, stored))
        self._proposer.accept(draft, values, hp.hparams)
        self._book.put(trial)
        self._n_counted += draft.continues is None
        if len(self.space.parameters) > self._known_parameters and self._ledger.started:
            self._describe(self.meta)
        return trial.number

    def reject(self, draft: Draft, reason: str = "") -> None:
        """Drop a draft: only samplers know that it was proposed.

        Args:
            draft: The last one proposed or asked for.
            reason: Why; kept nowhere.
        """
        self._proposer.reject(draft)

    def enqueue(self, hparams: Mapping[str, Any]) -> None:
        """Have a configuration tried next; the sampler chooses what it does not name.

        Args:
            hparams: Plain name -> real value. A name or value that build does not know is an
                error of the next ``propose``.

        Raises:
            SpaceError: No names, or values that no hyperparameter can have.
        """
        values = {name: trial_record.plain(value) for name, value in dict(hparams).items()}
        for name, value in values.items():
            if not isinstance(name, str) or not isinstance(value, bool | int | float | str):
                raise SpaceError(
                    f"enqueue: {name!r} is {value!r}; give names of hyperparameters with int, "
                    "float, str or bool values."
                )
        if not values:
            raise SpaceError("enqueue: no hyperparameter is named; give at least one value.")
        self._proposer.enqueue(values, users=True)

    # Families

    def fill(self, slots: int) -> None:
        """Have trials that share a program asked for one after another, where the sampler lets us.

        Args:
            slots: Trials that train at once; 1 is the plain order.
        """
        self._proposer.families.slots = slots

    @property
    def wave(self) -> int:
        """How many trials of one structure the sampler is asked for at once; 1 with most."""
        return self._proposer.families.wave

    @property
    def in_family(self) -> bool:
        """Whether the next trial can share the last one's program, as far as is known."""
        return self._proposer.in_family

    def learn_program(self, number: int, program: str) -> None:
        """Note into which program a trial fell: that tells which hyperparameters are structural.

        Args:
            number: The trial's.
            program: The program's name.
        """
        self.trial(number).program = program
        self._proposer.families.learn_program(number, program)

    # What became of it

    def report(
        self,
        number: int,
        epoch: int,
        logs: Mapping[str, float],
        value: float | None,
        members: Sequence[float] = (),
    ) -> None:
        """Note an epoch of a running trial.

        Args:
            number: The trial's.
            epoch: Counted from 1; one reported again, after a restart, replaces what was.
            logs: Metric name -> value.
            value: The objective; None when there is none this time.
            members: The objective of each member, where ``value`` is their mean.
        """
        value = None if value is None else float(value)
        self._book.note_epoch(self._running(number), epoch, logs, value, members)
        if value is not None:
            self._proposer.report(number, epoch, self._book.sign * value)
            self._ledger.put(Reported(number, epoch, value))

    def finish(
        self,
        number: int,
        state: TrialState,
        *,
        value: float | None = None,
        attrs: Mapping[str, Any] | None = None,
    ) -> TrialState:
        """End a trial.

        Args:
            number: The trial's.
            state: complete, pruned or failed. Complete without a number for a value is failed.
            value: The objective at its best epoch; None takes the best one reported.
            attrs: Fields of ``Trial`` (seconds, program, plan, error, history, ...) and anything
                else worth storing, JSON values.

        Returns:
            Its state; where it comes again after a checkpoint, that of its first end.

        Raises:
            SamplerError: The sampler failed at learning of it.
        """
        if self.trial(number).state == "paused":
            self.unpause(number)
        trial = self._running(number)
        if state not in ("complete", "pruned", "failed"):
            raise ValueError(f"state is {state!r}; a trial ends complete, pruned or failed")
        if value is not None:
            trial.value = float(value)
        other = trial_record.set_fields(trial, attrs or {})
        if state == "complete" and (trial.value is None or math.isnan(trial.value)):
            state, trial.value = "failed", None
            trial.error = trial.error or "the objective was not a number in any epoch"
        trial.state = state
        kept = self._past.end_of(number, state, trial.value)
        if kept is not None:
            self._book.put(kept)
            trial, state = kept, kept.state
        complete = state == "complete" and trial.value is not None
        loss = self._book.sign * trial.value if complete and trial.value is not None else None
        self._ledger.put(Finished(number, state, *trial_record.ended(trial, other)))
        self._proposer.tell(number, trial_record.OPTUNA_STATES[state], loss)
        if self._sharing is not None:
            self._sharing.ended(number)
        return state

    def carry_over(self, source: int, number: int) -> None:
        """Give a running trial the epochs of the one that it goes on with.

        Args:
            source: The number of that one.
            number: The trial's.

        Raises:
            StorageError: An earlier record could not be written.
        """
        before = self.trial(source)
        self.take_up(number, before.history, before.epochs)

    def take_up(self, number: int, history: Mapping[str, Sequence[float]], epochs: int) -> None:
        """Give a trial that has just begun epochs that were trained before.

        Args:
            number: The trial's.
            history: Metric name -> values, one for each epoch.
            epochs: How many.
        """
        objective = self.meta["objective"]
        for epoch in range(1, epochs + 1):
            logs = {name: column[epoch - 1] for name, column in history.items()}
            value = logs.get(objective, math.nan)
            self.report(number, epoch, logs, None if math.isnan(value) else value)

    def pause(self, number: int) -> None:
        """Have a running trial wait; in the storage it runs, with the attribute "paused"."""
        self.annotate(number, paused=True)
        self.trial(number).state = "paused"

    def unpause(self, number: int) -> None:
        """Let a paused trial go on."""
        self.trial(number).state = "running"
        self.annotate(number, paused=False)

    def begin_again(self, number: int) -> None:
        """Forget the epochs of a trial under way, which trains from its first one again."""
        trial = self.trial(number)
        trial_record.resume(trial, trial_record.suspended(trial, afresh=True))

    def annotate(self, number: int, **attrs: Any) -> None:
        """Store attributes of a running trial; storages accept none once it has ended.

        Args:
            number: The trial's.
            **attrs: As those of ``finish``.
        """
        trial_record.set_fields(self._running(number), attrs)
        self._ledger.put(Annotated(number, trial_record.plain(attrs)))

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
        opened = {
            str(trial.number): trial_record.suspended(trial, afresh=trial.number in afresh)
            for trial in self.trials
            if trial.state in ("running", "paused")
        }
        return {**self._proposer.snapshot(), "open": opened, "session": self._session}

    # Other workers

    @property
    def shared(self) -> bool:
        """Whether other workers search the study, or have while this one did."""
        return self._worker is not None and self._worker.joined and self._worker.shared

    @property
    def waits(self) -> bool:
        """Whether no trial can be begun now, since the storage does not answer."""
        return time.monotonic() < self._asks_again

    def watch(self) -> None:
        """From now on, see whether the other workers live."""
        if self._worker is not None:
            self._worker.watch()

    def all_alive(self) -> bool:
        """Whether all other workers have given a sign of life since ``watch``, or are gone."""
        return self._worker is None or self._worker.all_alive()

    def hear(self) -> Heard | None:
        """Take note of what other workers did, and take over what dead ones left.

        Returns:
            What a search has to do about it; None where there is nothing to hear.
        """
        if self._sharing is None or not self.shared:
            return None
        self._session = f"shared-{self._session.removeprefix('shared-')}"  # nobody goes back to it
        try:
            heard = self._sharing.hear(self._proposer)
        except StorageError:  # the writer tells
            self._asks_again = time.monotonic() + _PAUSE
            return None
        self._n_counted = sum(
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
            self._set_meta(meta)
            self._create(self.direction)
        for number in self._left_running:
            trial = self.trial(number)
            trial.state, trial.error = "failed", INTERRUPTED
            self._ledger.put(Finished(number, "failed", None, {"error": INTERRUPTED}))
        self._left_running = []
        self._ledger.start(self.name)

    @property
    def refused(self) -> dict[str, Any] | None:
        """The last values given by the user that were an error."""
        return self._proposer.refused

    def show_ends(self) -> None:
        """Show trials that were to come again and have not as they ended before."""
        for trial in self._past.not_again():
            self._book.put(trial)

    def look_after(self) -> bool:
        """Say when the storage stops taking records and when it takes them again.

        Returns:
            Whether it takes them.
        """
        trouble = self._ledger.trouble
        if trouble is not None and not self._in_trouble:
            self._proposer.note(
                f"{trouble} Training goes on; {self._ledger.waiting} records wait, and are written "
                "when it answers"
            )
        elif trouble is None and self._in_trouble:
            self._proposer.note("the storage answers again; what waited is written")
        self._in_trouble = trouble is not None
        return trouble is None

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

    def _make_proposer(self, space: Space, past: Past | None) -> Proposer:
        """What proposes trials; of a study of others' this worker draws from a seed of its own."""
        self._draws_alone = self._worker is not None and self.shared
        seed = self._seed
        if self._worker is not None and self._draws_alone:
            seed = own_seed(seed, self._worker.token)
        trials = [] if past is None else past.trials
        resumed = None if past is None else past.resumed
        return Proposer(
            resolve_sampler(self._sampler, seed),
            seed,
            space,
            # A storage may hold trials of other programs that wait to be run: they have numbers.
            next_number=len(trials),
            past=trials,
            sign=self._book.sign,
            resumed=resumed,
            foretold=None if past is None or resumed is None else past.foretold,
        )

    def _create(self, direction: Direction) -> None:
        """Make the study, or join the worker that has made it a moment ago."""
        try:
            self._ledger.create(self.name, direction, self.meta)
            made = True
        except StudyError:
            if self._worker is None:
                raise
            made = False
        if self._worker is None:
            return
        self._worker.join(self._store, self._store.study_id(self.name), share=not made)
        self._sharing = Sharing(self._store, self.name, self._worker, self._book, self._ledger)
        if not made:
            stored = self._store.load(self.name)
            if stored is not None:
                self.set_direction(stored.direction)
        if self.shared:
            before = self._proposer
            self._proposer = self._make_proposer(self.space, None)
            self._proposer.succeed(before)

    def _claim(self, draft: Draft, stored: FrozenTrial) -> int:
        """Have the storage number a trial; raises Outrun where it is not to be."""
        assert self._sharing is not None
        try:
            number = self._sharing.claim(self._proposer, stored, self.n_trials)
        except StorageError as error:
            self._asks_again = time.monotonic() + _PAUSE
            self._proposer.note(f"no trial can be begun now: {error}")
            number = None
        if number is None:
            self._proposer.reject(draft)
            raise Outrun
        return number

    def _take_over(self, trial: Trial) -> None:
        """Know a trial of an earlier session, or of another worker."""
        self._book.put(trial)
        if trial.state == "running" and not self.resumed:
            if self.shared:
                return  # it is another's, or taken over when one hears of it
            self._left_running.append(trial.number)
            if trial.continues is None:
                self._proposer.enqueue(trial.hparams, users=False)
        elif trial.error != INTERRUPTED:
            self._n_counted += trial.continues is None
            self._proposer.have_seen(trial.hparams)

    def _running(self, number: int) -> Trial:
        trial = self.trial(number)
        if trial.state != "running" or number in self._left_running:
            raise RuntimeError(f"trial {number} is not running here")
        return trial

    def _set_meta(self, meta: Mapping[str, Any]) -> None:
        space = self.space.to_json()
        self._known_parameters = len(space)
        more = {"format": FORMAT, "space": space, "session": self._session}
        self.meta = trial_record.plain({**meta, **more})

    def _describe(self, meta: Mapping[str, Any]) -> None:
        self._set_meta(meta)
        self._ledger.put(Described(self.meta))
