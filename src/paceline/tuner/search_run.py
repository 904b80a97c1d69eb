"""One search of a study: it is opened, what trains it is made, it runs, and all is put away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paceline.errors import StorageError, StudyError, TrialTimeoutError
from paceline.executor.base import EpochLimit, PackOptions, SearchData
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.report.progress import Progress
from paceline.study.objective import Objective
from paceline.study.pruners.pruners import Pruner, make_pruner, pruner_text
from paceline.study.samplers.samplers import strategy_of
from paceline.study.storage.folder import check_folder
from paceline.study.study import Study
from paceline.study.trials import trials_to_continue
from paceline.study.workers.worker import Worker
from paceline.tuner import provenance
from paceline.tuner.arguments import SearchArguments
from paceline.tuner.checkpoint.files import Snapshot
from paceline.tuner.checkpoint.handoff import TrialHandoff
from paceline.tuner.checkpoint.policy import SavePolicy
from paceline.tuner.first_build import FirstBuild
from paceline.tuner.loop import SearchLoop
from paceline.tuner.pretrace import trace_ends_of_space
from paceline.tuner.running_trials import counts
from paceline.tuner.timeouts import StuckTrials, TrialTimeout, WhenStuck
from paceline.tuner.trained_models import TrainedModels


@dataclass(frozen=True)
class TunerConfig:
    """What a tuner was made with, checked; attributes as the arguments of ``Tuner``."""

    study: str
    storage: Any
    sampler: Any
    pruner: Any
    seed: int
    executor: str
    slots: Any
    plan: str
    mesh: tuple[int, int | None] | None
    precision: str | None
    directory: Path
    keep_best: int
    origin: dict[str, Any] | None

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self.directory / self.study

    def decisive(self) -> dict[str, Any]:
        """What of them decides a study's trials: JSON values."""
        sampler = self.sampler
        return {
            "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
            "seed": self.seed,
            "slots": self.slots,
            "plan": self.plan,
            "pruner": pruner_text(self.pruner),
            "precision": self.precision,
            "mesh": None if self.mesh is None else list(self.mesh),
        }


class SearchRun:
    """One call of ``Tuner.search``, arguments checked and a first model built.

    Args:
        settings: The tuner's.
        builder: Builds models.
        arguments: Of the call.
        found: What the first model showed.
        objective: What is searched for.
        keeper: The study's checkpoints.
        progress: Told how it goes.
        notes: Told what users may want to know.
        when_stuck: As ``Tuner`` has it.
        worker: Joins the study's others, if there are any; None for a search that is alone.
        folder: Where this search keeps what is its own.

    Attributes:
        study: Its trials, once it is open.
        models: Its best models, likewise.
        summary: What ``--json`` prints, once it has run.
    """

    study: Study
    models: TrainedModels

    def __init__(
        self,
        settings: TunerConfig,
        builder: ModelBuilder,
        arguments: SearchArguments,
        found: FirstBuild,
        objective: Objective,
        keeper: SavePolicy,
        progress: Callable[[Progress], None] | None,
        notes: Callable[[str], None],
        when_stuck: WhenStuck | None,
        worker: Worker | None,
        folder: Path,
    ) -> None:
        self._settings, self._builder, self._arguments = settings, builder, arguments
        self._found, self._objective, self._keeper = found, objective, keeper
        self._progress, self._notes = progress, notes
        self._when_stuck = when_stuck or self._say_stuck
        self._worker, self._folder = worker, folder
        self._relay = None
        if worker is not None:
            self._relay = TrialHandoff(settings.folder, keeper.key, notes, own=folder)
        self._snapshot: Snapshot | None = None
        self.summary: dict[str, Any] = {}

    def open(self, enqueued: Iterable[Mapping[str, Any]]) -> None:
        """Opens the study, with what to go on from; writes nothing.

        Args:
            enqueued: Configurations to try first.

        Raises:
            StudyError, StorageError, SamplerError, SpaceError: It cannot be gone on with.
        """
        settings, objective = self._settings, self._objective
        check_folder(settings.folder)
        resumable = strategy_of(settings.sampler).resumable
        snapshot = self._keeper.load(self._notes) if resumable else None
        self.study = study = Study.open(
            settings.study,
            storage=settings.storage,
            directory=settings.directory,
            direction=objective.direction,
            sampler=settings.sampler,
            seed=settings.seed,
            resumed=None if snapshot is None else snapshot.facts["study"],
            worker=self._worker,
            is_left=None if self._relay is None else self._relay.has,
            note=self._notes,
        )
        if self._relay is not None:
            self._relay.forget()  # others may train on, and die later
        stored = study.metadata.meta.get("objective")
        if stored is not None and stored != objective.name:
            raise StudyError(
                f"study: {study.name!r} was made with the objective {stored!r}, not "
                f"{objective.name!r}; use another study name, or that objective."
            )
        study.strategy.on_search_begin(study.metadata.space, self._found.hp, self._found.batch)
        for hparams in enqueued:
            study.asker.enqueue(hparams)
        self.models = TrainedModels(
            study,
            self._builder,
            self._folder,
            settings.keep_best,
            settings.precision,
            whole=settings.folder,
        )
        if snapshot is not None and not study.resumed and snapshot.facts["trials"]:
            self._notes(
                "the checkpoint of this study is not used: the storage holds other trials than it "
                "was taken with; those that were under way are tried again"
            )
        if (n_again := study.updates.n_again) and resumable and not self._keeper.any:
            self._notes(
                f"there is no checkpoint in {settings.folder / 'checkpoints'} (it was removed, or "
                "never written: several processes that search one study write none): "
                f"{n_again} trials that were under way begin again as new ones; what has ended "
                "stays"
            )
        self._snapshot = snapshot if study.resumed else None

    def run(self, began: float) -> None:
        """Searches; raises as ``SearchLoop.run`` does.

        Args:
            began: When the call did, by ``time.perf_counter``.
        """
        study, arguments, settings = self.study, self._arguments, self._settings
        n_done, n_open = self._settle()
        limit = arguments.n_trials
        # The first that is left is the last that is done here.
        with ExitStack() as stack:
            pruner = self._make_pruner()
            watch = self._make_watch()
            packs = self._make_packs(stack, watch)
            more = study.strategy.resumable and (limit is None or limit > n_done - n_open)
            if packs is not None and more:
                with suppress(TrialTimeoutError):  # what it is about shows in the trials
                    watch.build(partial(self._study_ends, packs))
            search = SearchLoop(
                builder=self._builder,
                study=study,
                objective=self._objective,
                best=self.models.best,
                arguments=arguments,
                packs=packs,
                fit=FitExecutor(arguments.fit, batched=arguments.batched, note=self._notes),
                pruner=pruner,
                progress=self._progress,
                notes=self._notes,
                watch=watch,
                ends=self.models.ends,
                keeper=self._keeper if study.strategy.resumable else None,
                relay=self._relay,
            )
            if study.trials:
                provenance.compare(study.name, study.metadata.meta, arguments, self._notes)
            meta = provenance.meta(
                settings.decisive(), arguments, self._objective, self._found.batch
            )
            study.persist({**meta, **({"origin": settings.origin} if settings.origin else {})})
            stack.callback(self._finish, search, began)
            stack.callback(study.close)
            stack.callback(lambda: None if search.stuck else self._save())
            # Alone, a search that dies goes back to a checkpoint, which holds what is not saved.
            search.each_round = _Throttled(
                self._save, at_once=lambda: study.peers.shared and self.models.best.unsaved
            )
            self._ask_for_more(search)
            if self._snapshot is not None:
                self._notes(
                    f"going on from the last checkpoint: {n_done - n_open} trials have ended "
                    f"there, {n_open} are under way; what came after it comes again"
                )
                self._resume(search, self._snapshot)
            search.run()
            unsaved = self._save()
            study.updates.show_ends()
            study.close()
            if unsaved is not None:
                raise StorageError(
                    f"{unsaved}. All trials are in the storage; make room, and run the same search "
                    "again: it saves the model from its last checkpoint."
                )
            if search.done:  # and all that came of it is on disk
                watch.condemned.clear()
                self._keeper.clear()
                if self._worker is not None and not self._worker.has_peers and self._relay:
                    self._relay.clear()

    def _ask_for_more(self, search: SearchLoop) -> None:
        """Has the best trials train longer, where the call says so."""
        best, epochs = self._arguments.continue_best, self._arguments.epochs
        if not best:
            return
        wanted = None if callable(epochs) else int(epochs)
        direction = self._objective.direction
        numbers = trials_to_continue(self.study.trials, best, wanted, direction)
        if numbers:
            search.continuation.go_on_with(numbers, [best, wanted or 0])
        else:
            self._notes(
                f"none of the best {best} trials of study {self.study.name!r} can go on: none is "
                f"complete, or they have {epochs} epochs already; give more epochs"
            )

    def _make_watch(self) -> TrialTimeout:
        condemned = StuckTrials(self._settings.folder / "checkpoints" / "stuck.json")
        return TrialTimeout(self._arguments.trial_timeout, condemned, self.study, self._when_stuck)

    def _study_ends(self, packs: LocalExecutor) -> None:
        seed = self._settings.seed
        trace_ends_of_space(packs, self._builder, self._arguments, self._found.hp, seed)

    def _say_stuck(self, text: str, again: bool) -> None:
        self._notes(
            f"{text}, and what it waits for cannot be interrupted: end this process (restart the "
            "kernel) and search again"
            + ("; the search goes on without that trial" if again else "")
        )

    def _resume(self, search: SearchLoop, snapshot: Snapshot) -> None:
        try:
            search.continuation.resume(snapshot)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise StudyError(
                f"study {self.study.name!r}: its last checkpoint does not hold what this version "
                f"of Paceline writes ({type(error).__name__}: {error}); go on with the version "
                f"that wrote it, or remove {self._settings.folder / 'checkpoints'}: then the "
                "trials that were under way begin again, and what has ended stays."
            ) from error

    def _settle(self) -> tuple[int, int]:
        """Works out how many trials the study shall have.

        Returns:
            How many it has, and how many of them are under way.
        """
        study, arguments = self.study, self._arguments
        under_way = ("running", "paused") if study.resumed else ()
        is_open = [trial for trial in study.trials if trial.state in under_way]
        n_open = sum(trial.continues is None for trial in is_open)
        n_done = n_open + sum(map(counts, study.trials))
        facts = self._snapshot.facts if self._snapshot is not None else {}
        wanted, before = facts.get("limit", (None, None))
        if isinstance(wanted, str) and arguments.wanted == wanted:
            arguments.n_trials = before  # the same call goes on, and adds no more
        else:
            arguments.settle(n_done)
        limit = arguments.n_trials
        study.asker.limit_trials(limit)
        if limit is not None and n_done >= limit and not is_open and not arguments.continue_best:
            self._notes(
                f"study {study.name!r} already has its {limit} trials; n_trials='+N' (--trials +N) "
                "adds N"
            )
        if arguments.folds_text is not None:
            self._notes(arguments.folds_text)
        return n_done, n_open

    def _make_pruner(self) -> Pruner | None:
        objective, epochs = self._objective, self._arguments.epochs
        return make_pruner(
            self._settings.pruner,
            direction=objective.direction,
            epochs=None if callable(epochs) else int(epochs),
            n_trials=self._arguments.n_trials,
            n_members=self._arguments.n_members,
            note=self._notes,
            past=[
                (trial, trial.history.get(objective.name, []))
                for trial in self.study.trials
                if trial.state in ("complete", "pruned")
            ],
        )

    def _make_packs(self, stack: ExitStack, watch: TrialTimeout) -> LocalExecutor | None:
        """Where trials are packed, closed when ``stack`` is; None where none can be."""
        arguments, settings = self._arguments, self._settings
        if arguments.why_fit is not None or arguments.data is None:
            return None
        data = SearchData(
            arguments.data,
            arguments.validation,
            validation_freq=arguments.validation_freq,
            shuffle=bool(arguments.shuffle),
            fold=arguments.fold,
        )
        packs = LocalExecutor(
            data,
            PackOptions(settings.slots, settings.plan, settings.mesh),
            note=self._notes,
            limit=EpochLimit(watch.seconds, watch.condemned.suspects),
            in_order=self.study.strategy.ends_by_itself,
        )
        stack.callback(packs.close)
        if not callable(arguments.batch_size):
            packs.check_batch(arguments.setting_for(self._found.hp).batch_size)
        return packs

    def _save(self) -> str | None:
        return self.models.save(self._notes)

    def _finish(self, search: SearchLoop, began: float) -> None:
        self.summary = search.summary(time.perf_counter() - began)
        if self._progress is not None:
            self._progress(search.progress("done"))


class _Throttled:
    """Saves now and then while a search runs: a session may die, the best model shall not.

    Args:
        save: Takes a tenth of a second or more.
        at_once: Whether not to wait.
    """

    EVERY = 30.0  # s

    def __init__(self, save: Callable[[], object], at_once: Callable[[], bool]) -> None:
        self._save, self._at_once, self._last = save, at_once, time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._last > self.EVERY or self._at_once():
            self._save()
            self._last = time.perf_counter()
