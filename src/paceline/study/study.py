"""A study: its trials, and everything that keeps them.

A trial is kept three times: as the ``Trial`` that users see, in the samplers' study
(``samplers/in_memory_study.py``), and in the storage (``storage/write_behind.py``). ``accept`` and
the methods of ``TrialUpdates`` do not wait for the storage; opening, ``persist``, ``state`` and
``close`` do.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import weakref
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial

from paceline.errors import PacelineError
from paceline.search_space import HyperParameters
from paceline.study.ask_tell import TrialAsker, TrialUpdates
from paceline.study.metadata import RestoredStudy, StudyMetadata, check_name
from paceline.study.objectives import Direction
from paceline.study.proposer import Proposal, Proposer
from paceline.study.samplers.earlier_studies import (
    names_others,
    notes_on,
    read_earlier_studies,
    stored_earlier_studies,
)
from paceline.study.samplers.samplers import Searcher, resolve_sampler, strategy_of
from paceline.study.samplers.values import check_seed
from paceline.study.sharing.peers import (
    ClaimLost,
    PeerChanges,
    StudyPeers,
    join_and_load,
    sampling_seed,
)
from paceline.study.sharing.watch import StudyWatch
from paceline.study.sharing.worker import Worker
from paceline.study.storage.events import StudyDescribed, TrialTaken
from paceline.study.storage.folder import (
    check_folder,
    check_pickles,
    check_storage_text,
    check_unowned,
    raise_renamed,
)
from paceline.study.storage.storage import StudyStorage
from paceline.study.storage.write_behind import LOGGED, WriteBehind
from paceline.study.trials import trial_codec
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import UNDER_WAY, Trial


class Study:
    """Trials over one search space, for one objective or several, kept in one storage."""

    def __init__(
        self,
        name: str,
        *,
        storage: str | BaseStorage | None = None,
        directory: Path = Path("runs"),
        direction: Direction | Sequence[Direction] | None = None,
        sampler: str | BaseSampler = "random",
        seed: int = 0,
        n_trials: int | None = None,
        resumed: Mapping[str, Any] | None = None,
        worker: Worker | None = None,
        is_left: Callable[[FrozenTrial], bool] | None = None,
        note: Callable[[str], None] = LOGGED,
    ) -> None:
        """Open a study with what is stored of it; writes nothing.

        ``storage`` is as for ``StudyStorage.of``. ``direction`` is one, or one for each objective;
        None takes what is stored, or waits for ``trials.set_direction``. ``n_trials`` is None when
        only time bounds the search. ``resumed`` is of ``state``: the study is as it was then, as
        far as the storage allows. ``worker`` is None for a study that is only read. ``is_left``
        returns whether a trial that runs in the storage can be continued without a snapshot. It is
        then taken over as from a dead worker.

        Raises StudyError for an impossible name, another direction than the stored one, or a study
        that this version cannot read. Raises SamplerError or MissingExtraError for the sampler.
        """
        check_name(name)
        check_storage_text(storage)
        check_folder(Path(directory) / name)
        store = StudyStorage.of(storage, name, Path(directory))
        watch = StudyWatch(store)
        writer = WriteBehind(
            store,
            note=note,
            still_mine=worker and worker.still_mine,
            look=worker and watch.look,
        )
        with writer.stopwatch.running():
            resumed, stored = join_and_load(worker, store, name, writer, resumed, is_left)
            others = store.names() if storage is None and stored is None else []
            if others and name not in others:  # another worker may have made it since
                raise_renamed(name, Path(directory), others)
            if stored is None and worker is not None:
                check_unowned(Path(directory) / name, storage)
            check_pickles(name, stored.trials if stored is not None else ())
            self.name, self.writer, self.watch = name, writer, watch
            self._store = store
            self.exists = stored is not None  # in the storage, when it was opened
            self._restored = restored = RestoredStudy(stored, resumed)
            self.resumed = restored.resumed is not None  # it continues from a snapshot
            # Every search that begins has a session of its own; one that is resumed keeps it.
            session = secrets.token_hex(8) if worker is None else worker.token
            if self.resumed and stored is not None:
                session = stored.meta["session"]
            self.trials = TrialTable(name)
            if stored is not None:
                self.trials.set_direction(*stored.directions)
            if direction is not None:
                named = (direction,) if isinstance(direction, str) else direction
                self.trials.set_direction(*named)
            self.metadata = StudyMetadata(name, stored, session)
            self._worker, self.seed = worker, check_seed(seed)
            self.strategy = strategy_of(sampler)
            sampling = sampling_seed(self.seed, worker)
            self.proposer = Proposer(
                resolve_sampler(sampler, sampling),
                sampling,
                self.metadata.space,
                restored,
                self.trials.signs,
                note,
            )
            # A ``Searcher`` decides alone what is tried.
            watch.runs_waiting = not isinstance(sampler, Searcher)
            if watch.runs_waiting:
                self.proposer.take_waiting = watch.take_waiting
                self.proposer.refuse_waiting = watch.refuse
            self.peers = StudyPeers(store, name, worker, self.trials, self.proposer, writer, watch)
            self.asker = TrialAsker(
                sampler, self.strategy, self.proposer, self.trials, self.peers, n_trials
            )
            self.updates = TrialUpdates(
                self.trials,
                self.asker,
                self.proposer,
                writer,
                self.peers,
                restored,
                self.metadata,
                watch,
            )
            # The writer's thread keeps the writer alive, so it ends with the study.
            weakref.finalize(self, _close_quietly, writer)

    @property
    def seconds(self) -> dict[str, float]:
        """Time of the calling thread: ``sampler`` and ``storage``."""
        return {
            "sampler": self.proposer.sampled.stopwatch.seconds,
            "storage": self.writer.stopwatch.seconds,
        }

    def accept(
        self, proposal: Proposal, hp: HyperParameters, n_may_begin: int | None = None
    ) -> int:
        """Make the proposal that was proposed last a running trial, and return its number.

        ``hp`` is as build left it. ``n_may_begin`` is how many more trials may begin, as far as
        this worker knows. Raises ClaimLost, and drops the proposal, where another worker was
        quicker, or the storage does not answer that would have to number the trial.
        """
        values, parameters = self.proposer.stored_values(proposal, hp), hp.parameters
        trial = Trial(
            proposal.number,
            hparams=hp.hparams,
            seed=proposal.seed,
            continued_from=proposal.continued_from,
            continued_at=proposal.continued_at,
            rejected=proposal.rejected,
            enqueued=proposal.enqueued or proposal.waited,
        )
        # Another worker that joins meanwhile waits: a trial is numbered here or by the storage.
        with self.peers.numbering_lock():
            stored = trial_codec.to_frozen(
                trial,
                values,
                {name: parameters[name].distribution for name in values},
                draw=None if self.asker.draws_alone else proposal.draw,
                owner=None if self._worker is None else self._worker.token,
                attributes={
                    **trial_codec.constraint_attributes(proposal.constraints),
                    **self.proposer.sampled.noted(proposal.place),
                },
            )
            if proposal.waited:
                self.writer.record(TrialTaken(proposal.number, stored))
            elif self.peers.shared:
                number = self.peers.claim(stored, self.asker.n_trials_with(n_may_begin))
                if number is None:
                    self.proposer.reject(proposal)
                    raise ClaimLost
                proposal.number = trial.number = number
            elif proposal.number not in self._restored.foretold:
                number = self.writer.create(proposal.number, stored)
                if number != proposal.number:
                    self.strategy.on_renumbered(proposal.number, number)
                    proposal.number = trial.number = number
        self.proposer.accept(proposal, stored, hp.hparams)
        if not self._restored.ended_before(trial.number):
            confirmed = self.peers.shared or not self.writer.unnumbered
            self.watch.began(trial.number, confirmed=confirmed)
        self.trials.add(trial)
        self.asker.count_trial(trial)
        # Another process that reads the study finds its space there.
        if self.metadata.outgrown and self.writer.started:
            self._describe(self.metadata.meta)
        return trial.number

    def warm_start_from(self, names: Sequence[str], directory: Path, storage: Any) -> None:
        """Warm-start from earlier studies, which are read and never written.

        A study that has begun continues with what it learnt at its beginning, so that it decides
        the same whatever became of the earlier studies. Call it after the space of the first build
        is known, and before the first trial. ``names`` have passed ``check_warm_start_from``.
        """
        told, stored = self.proposer.sampled.told, self.metadata
        if not stored.learnt and (not names or told is None):
            return
        learnt = stored_earlier_studies(self.name, stored.learnt)
        if not learnt and not self.trials:
            found = read_earlier_studies(names, directory, (self.name, storage))
            learnt, notes = notes_on(found, stored.space.parameters)
            for text in notes:
                self.proposer.note(text)
            stored.learnt = [each.to_json() for each in learnt]
        elif names_others(names, directory, learnt):
            self.proposer.note(
                f"warm_start_from is ignored: study {self.name!r} keeps the earlier studies that "
                f"it began with ({', '.join(each.study for each in learnt) or 'none'})"
            )
        if told is not None:
            told.learn(learnt)

    def state(self, afresh: Container[int] = ()) -> dict[str, Any]:
        """Return what the storage does not hold of the study, as JSON values.

        The trials that have ended are in the storage when this returns. ``afresh`` has the numbers
        of trials that would restart from their first epoch.
        """
        self.writer.flush()
        under_way = self.updates.under_way(afresh)
        return {**self.proposer.state(), "open": under_way, "session": self.metadata.session}

    def take_renumbered(self) -> dict[int, int]:
        """Take up the storage's numbers of trials that were begun while it did not answer.

        Returns number until now -> new number. Unfinished ones are as at their beginning.
        """
        moved = self.writer.take_renumbered()
        for number, now in sorted(moved.items(), reverse=True):  # they only grow
            trial = self.trials.by_number(number)
            self.trials.remove(number)
            trial.number = now
            self.trials.add(trial)
            self.proposer.renumber(number, now)
            self.strategy.on_renumbered(number, now)
            if trial.state in UNDER_WAY:
                self.updates.restart(now)
                trial.state = "running"
        if not self.writer.unnumbered:
            self.watch.renumber(moved)
        return moved

    def sync_workers(self) -> PeerChanges | None:
        """Learn of other workers' trials, and take over those that dead workers left, if it can."""
        if not self.peers.shared:
            return None
        self.metadata.end_session()
        changes = self.peers.sync()
        if changes is not None:
            self.asker.recount_trials()
        return changes

    def persist(self, meta: Mapping[str, Any]) -> None:
        """Make the study's folder and storage at the first call, and describe the study there.

        Trials that were accepted before are written as well. Trials that a dead process left
        running become failed, with the error "interrupted". ``meta`` replaces ``metadata.meta``:
        JSON values without the format's version and the space, which are added here.
        """
        if self.writer.started:
            self._describe(meta)
            return
        if not self.trials.directions:
            raise RuntimeError("persist before set_direction")
        if self.exists:
            if not self.metadata.id and not self._restored.begun:
                self.metadata.id = self.peers.settle_id(secrets.token_hex(8))
            self._describe(meta)
        else:
            self.metadata.write(meta)
            joined = self.peers.create_study(self.trials.directions, self.metadata.meta)
            if joined is not None:  # the worker that made it has decided what is learnt
                meta = self._with_sampler_of(joined.meta, meta)
                self.metadata.learnt = list(joined.meta.get("learnt", ()))
                self.metadata.id = self.peers.settle_id(self.metadata.id)
                self.metadata.write(meta)
            if self.peers.shared:
                chosen = meta["sampler"] if meta.get("sampler_reason") else None
                self.asker.share(sampling_seed(self.seed, self._worker), chosen)
                if (told := self.proposer.sampled.told) is not None:
                    told.learn(stored_earlier_studies(self.name, self.metadata.learnt))
        self.updates.fail_left_running()
        self.writer.start(self.name)
        if self._worker is not None:
            self.watch.begin(self.writer.study_id, self._worker, self._restored)

    def _with_sampler_of(
        self, theirs: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return meta with the sampler of another worker, where "auto" has chosen one here."""
        sampler = theirs.get("sampler")
        if not meta.get("sampler_reason") or sampler in (None, meta["sampler"]):
            return meta
        from paceline.study.samplers.auto import is_name  # seldom needed

        if not is_name(sampler):
            return meta
        reason = theirs.get("sampler_reason") or "another process began the study with this sampler"
        self.proposer.note(f'sampler: "auto" keeps {sampler}: {reason}')
        return {**meta, "sampler": sampler, "sampler_reason": reason}

    def optuna_study(self) -> optuna.Study:
        """Return the study as Optuna's own object; StorageError if the storage does not answer."""
        if self.writer.started:
            self.writer.flush()
        with self._store.errors("read"), self._store.turn:
            return optuna.load_study(study_name=self.name, storage=self._store.storage)

    def close(self) -> None:
        """Write the records left and end the writer; safe to call again. Reading still works."""
        self.writer.close()
        self._store.compact()

    def _describe(self, meta: Mapping[str, Any]) -> None:
        self.metadata.write(meta)
        self.writer.record(StudyDescribed(self.metadata.meta))


#: Seconds for which collecting a study waits for its storage; what is left is written meanwhile.
_SECONDS_TO_COLLECT = 5.0


def _close_quietly(writer: WriteBehind) -> None:
    """Close what nobody has closed: where Python ends, or where the study is collected.

    The collector may run in anybody's code, which a storage that does not answer must not hold up.
    """
    ends = not threading.main_thread().is_alive()
    with contextlib.suppress(PacelineError):
        writer.close(None if ends else _SECONDS_TO_COLLECT)
