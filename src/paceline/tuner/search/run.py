"""One search on a study, from opening the study to saving what came of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from paceline.errors import PacelineError, StorageError, StudyError, TrialTimeoutError, UsageError
from paceline.executor.base import LEAST_TRIALS, EpochLimit, PackOptions, SearchOutlook
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.executor.pack_executor import PackExecutor
from paceline.executor.remote.cluster import Cluster
from paceline.executor.training.planner import cores
from paceline.program.files import as_shown
from paceline.study.objectives import Objective
from paceline.study.pruners.asha import ASHA
from paceline.study.pruners.base import Pruner
from paceline.study.pruners.pbt import PBT
from paceline.study.pruners.pruners import make_pruner, pruner_text
from paceline.study.samplers.samplers import note_on_state, strategy_of
from paceline.study.samplers.structure_order import TIMED_WAVE
from paceline.study.storage.folder import check_folder
from paceline.study.storage.schema import UNREADABLE
from paceline.study.study import Study
from paceline.study.trials.table import counts, trials_to_continue
from paceline.study.trials.trial import UNDER_WAY
from paceline.tuner.arguments import comparison, provenance
from paceline.tuner.arguments.arguments import SearchArguments
from paceline.tuner.arguments.config import Listeners, TunerConfig, WorkerFolder
from paceline.tuner.checkpoint.best_models import TrainedModels, find_saved
from paceline.tuner.checkpoint.files import Snapshot, unreadable
from paceline.tuner.checkpoint.trial_variables import TrialHandoff
from paceline.tuner.search.checkpointer import SearchFacts
from paceline.tuner.search.context import SearchContext
from paceline.tuner.search.first_build import FirstBuild, trace_ends_of_space
from paceline.tuner.search.loop import SearchLoop
from paceline.tuner.search.members import MemberReports
from paceline.tuner.search.running_trials import UnfinishedTrials, has_ended
from paceline.tuner.search.session import SearchSession
from paceline.tuner.search.stopping import StoppingCheck
from paceline.tuner.search.timeouts import SearchTimeout, StuckTrials, TrialTimeout
from paceline.tuner.trackers.base import TrackedStudy
from paceline.tuner.trackers.threads import TrackerThreads

if TYPE_CHECKING:
    from paceline.study.objectives import Objectives
    from paceline.tuner.arguments.costs import TrialCosts

#: Notes that a dashboard shows.
_NOTES = 30


def one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """Checks an argument that names a choice."""
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}.")


EXECUTORS = ("auto", "packed", "fit", "ray")


def executor_of(executor: Any, mesh: Any, sampler: Any) -> tuple[str, Cluster | None]:
    """The name of ``Tuner``'s argument ``executor``, and the machines of one that has several."""
    if executor == "ray" or not isinstance(executor, str):
        from paceline.tuner.search.on_cluster import cluster_of  # seldom needed

        return cluster_of(executor, mesh, sampler)
    one_of("executor", executor, EXECUTORS)
    return executor, None


class SearchRun:
    """One call of ``Tuner.search``, whose arguments are checked and whose first model is built."""

    study: Study  # once it is open
    models: TrainedModels  # once the study is open

    def __init__(
        self,
        config: TunerConfig,
        arguments: SearchArguments,
        first_build: FirstBuild,
        objective: Objective | Objectives,
        listeners: Listeners,
        folder: WorkerFolder,
    ) -> None:
        self._config, self._arguments = config, arguments
        self._several = None if isinstance(objective, Objective) else objective
        self._objective = objective if isinstance(objective, Objective) else objective.first
        self._first_build, self._listeners = first_build, listeners
        self._said: deque[str] = deque(maxlen=_NOTES)
        self._worker, self._policy, self._folder = folder.worker, folder.policy, folder.path
        self._handoff = None
        if self._worker is not None:
            key = self._policy.key
            self._handoff = TrialHandoff(config.folder, key, self._note, own=folder.path)
        self._snapshot: Snapshot[SearchFacts] | None = None
        self._guard = listeners.guard
        self.summary: dict[str, Any] = {}  # what ``paceline search --json`` prints, once it has run

    def _note(self, text: str) -> None:
        """Tells the user, and remembers it for whoever looks on."""
        self._said.append(text)
        self._listeners.notes(text)

    def open(self, enqueued: Iterable[Mapping[str, Any]]) -> None:
        """Opens the study and its last checkpoint; ``enqueued`` are tried first. Writes nothing."""
        config, objective = self._config, self._objective
        check_folder(config.folder)
        resumable = strategy_of(config.sampler).resumable
        snapshot = None
        if resumable and not self._guard.precautions.afresh:
            snapshot = self._policy.load(SearchFacts, self._note)
        self.study = study = Study(
            config.study,
            storage=config.storage,
            directory=config.directory,
            direction=objective.direction if self._several is None else self._several.directions,
            sampler=config.sampler,
            seed=config.seed,
            resumed=None if snapshot is None else snapshot.facts.study,
            worker=self._worker,
            is_left=None if self._handoff is None else self._handoff.has,
            note=self._note,
        )
        if self._handoff is not None:
            self._handoff.forget()  # the other workers may train on, and die later
        if self._several is not None:
            self._several.check_study(study.name, study.metadata.meta)
        elif (stored := study.metadata.meta.get("objective")) not in (None, objective.name):
            raise StudyError(
                f"study: {study.name!r} was created with the objective {stored!r}, not "
                f"{objective.name!r}. Use another study name, or that objective."
            )
        self._check_population()
        built = self._first_build
        study.strategy.on_search_begin(study.metadata.space, built.hp, built.batch)
        if study.trials and (said := note_on_state(config.sampler)):
            self._note(said)
        study.warm_start_from(config.warm_start_from, config.directory, config.storage)
        if self._arguments.enqueue_defaults and not study.trials and built.hp.hparams:
            study.asker.enqueue(built.hp.hparams)
        for hparams in enqueued:
            study.asker.enqueue(hparams)
        self.models = TrainedModels(
            study,
            config.builder.whole,
            self._folder,
            config.keep_best,
            config.precision,
            study_folder=config.folder,
        )
        if SearchSession.current is not None:
            self.models.elsewhere = SearchSession.current.model_of
        if snapshot is not None and not study.resumed and snapshot.facts.trials:
            self._note(
                "ignored the checkpoint of this study, because the storage holds other trials. "
                "Unfinished trials are tried again"
            )
        if (n_again := len(study.updates.left_running)) and resumable and not self._policy.any:
            self._note(
                f"no checkpoint in {as_shown(config.folder / 'checkpoints')}, so {n_again} "
                "unfinished trials restart as new trials. Finished trials are kept. (Processes "
                "that share a study write no checkpoint.)"
            )
        self._snapshot = snapshot if study.resumed else None

    def _check_population(self) -> None:
        """Refuses to join a population, whose trials wait for one another in its own process."""
        pruner = self.study.metadata.meta.get("pruner") or ""
        if self._worker is None or not self._worker.has_peers:
            return
        if pruner.startswith("pbt") and not isinstance(self._config.pruner, PBT):
            raise UsageError(
                f"study: another process is searching {self.study.name!r} with pruner {pruner!r}, "
                "whose population needs a single process. Wait for it, or use another study name."
            )

    def run(self, began: float) -> None:
        """Searches, and saves what came of it, what the search has begun at KeyboardInterrupt.

        ``began`` is when the call of ``Tuner.search`` began, by ``time.perf_counter``, in seconds.
        Raises as ``SearchLoop.run``, and StorageError where something cannot be written.
        """
        study, config = self.study, self._config
        n_done, n_open = self._resolve_n_trials()
        # The stack calls back in reverse order: it closes the study first, the packs last.
        with ExitStack() as stack:
            context = self._context(stack, n_done - n_open, began)
            search = SearchLoop(context)
            search.check(self._first_build.hp)
            context.stop.check()  # nothing has been written yet
            if context.session is not None:
                built = self._first_build.hp, config.seed
                context.session.begin(self._arguments, config.builder, *built)
            stack.enter_context(context.stop.deferred(self._note))
            before = study.metadata.meta if study.trials else {}
            if before:
                if self._arguments.continue_best:
                    comparison.check_alike(before, self._arguments)
                comparison.compare(before, config, self._arguments, self._note)
            objective, batch = self._several or self._objective, self._first_build.batch
            meta = provenance.study_meta(config, self._arguments, objective, batch)
            meta["build"] = before.get("build") or provenance.code(config.builder.code_digest)
            meta["outlook"] = asdict(self._outlook)
            meta["eras"] = provenance.eras(before, self._arguments, len(study.trials))
            study.persist(meta)
            self._guard.begin(self._arguments.n_trials)
            self.models.forget_failed()
            if context.trackers is not None:
                stack.callback(context.trackers.abandon)
                context.trackers.begin(self._tracked())
            stack.callback(self._finish, search, began)
            stack.callback(study.close)
            stack.callback(lambda: None if search.stuck else self.models.save(self._note))
            self._continue_best(search)
            if self._snapshot is not None:
                # A search that failed before its first trial has left nothing to continue with.
                if study.trials:
                    ended = [has_ended(trial) for trial in study.trials if trial.rejected is None]
                    self._note(
                        f"resuming from the last checkpoint: {sum(ended)} trials finished, "
                        f"{len(ended) - sum(ended)} unfinished. Epochs trained after it are "
                        "trained again"
                    )
                self._resume(search, self._snapshot)
            search.run()
            unsaved = self.models.save(self._note)
            study.updates.show_ends()
            study.close()
            if unsaved is not None:
                raise StorageError(
                    f"{unsaved}. All trials are in the storage. Free some space and run the same "
                    "search again: it saves the model from its last checkpoint."
                )
            if search.done:  # and all that came of it is on disk
                context.trial_timeout.stuck_trials.clear()
                self._policy.clear()
                if self._worker is not None and not self._worker.has_peers and self._handoff:
                    self._handoff.clear()

    def _context(self, stack: ExitStack, n_ended: int, began: float) -> SearchContext:
        """Makes what trains the trials; ``n_ended`` trials of the study have ended."""
        study, arguments = self.study, self._arguments
        pruner = self._make_pruner()
        stuck_trials = StuckTrials(self._config.folder / "checkpoints" / "stuck.json")
        trial_timeout = TrialTimeout(
            arguments.trial_timeout, stuck_trials, study, self._listeners.stuck
        )
        packs = self._make_packs(stack, stuck_trials)
        session, batched = SearchSession.current, arguments.loaded.batched
        elsewhere = None if session is None else session.fit
        fit = FitExecutor(arguments.fit, batched=batched, note=self._note, elsewhere=elsewhere)
        if packs is not None:
            limit = arguments.n_trials
            careful = self._guard.precautions.at_once is not None
            if study.strategy.resumable and not careful and (limit is None or limit > n_ended):
                config, first = self._config, self._first_build.hp
                with suppress(TrialTimeoutError):  # the trials will take too long too, and say so
                    trial_timeout.build(
                        lambda: trace_ends_of_space(
                            packs, config.builder, arguments, first, config.seed
                        )
                    )
            study.proposer.structure_order.fill(max(1, packs.max_slots // arguments.n_members))
        trackers, rules = self._config.trackers, arguments.stopping
        trials = UnfinishedTrials(study.trials)
        self._guard.running = trials.running
        return SearchContext(
            study=study,
            arguments=arguments,
            objective=self._objective,
            objectives=self._several,
            costs=self._costs(packs),
            builder=self._config.builder,
            # A program of many widths would be as large as the largest.
            share_widths=not self._guard.precautions.alone and self._config.share_widths,
            constraints=self._config.constraints,
            outlook=self._outlook,
            packs=packs,
            fit=fit,
            pruner=pruner,
            trials=trials,
            members=MemberReports(arguments.n_members, pruner is not None, packs, fit, trials),
            models=self.models,
            trackers=TrackerThreads(trackers, study, self._note) if trackers else None,
            timeout=SearchTimeout(arguments.timeout),
            trial_timeout=trial_timeout,
            stopping=None
            if rules is None
            else StoppingCheck(rules, study.trials, trials, self._objective, self._epochs),
            policy=self._policy if study.strategy.resumable else None,
            handoff=self._handoff,
            stop=self._listeners.stop,
            notes=self._note,
            said=self._said,
            folder=self._config.folder,
            began=began,
            progress=self._listeners.progress,
            guard=self._guard,
            session=session,
        )

    @property
    def _epochs(self) -> int | None:
        """Epochs that each trial trains; None if that depends on hp."""
        epochs, first = self._arguments.epochs, self._arguments.initial_epoch
        return None if callable(epochs) or callable(first) else int(epochs) - int(first)

    def _costs(self, packs: PackExecutor | None) -> TrialCosts | None:
        """What tells the costs of models; None if they are not objectives."""
        if self._several is None or not self._several.costs:
            return None
        from paceline.tuner.arguments.costs import TrialCosts

        assert packs is None or isinstance(packs, LocalExecutor)  # ``several`` refuses clusters
        names, builder = self._several.costs, self._config.builder
        return TrialCosts(names, self._arguments, builder, self.models, packs)

    def _tracked(self) -> TrackedStudy:
        """What trackers are told of the study."""
        return TrackedStudy(
            self.study.name,
            self._objective.name,
            self._objective.direction,
            self._config.folder,
            self.study.metadata.meta,
            self.study.peers.shared,
        )

    def _continue_best(self, search: SearchLoop) -> None:
        """Trains the best trials longer, where the call asks for it."""
        best, wanted = self._arguments.continue_best, self._epochs
        if not best:
            return
        direction = self._objective.direction
        numbers = trials_to_continue(self.study.trials, best, wanted, direction)
        if numbers:
            search.checkpointer.continue_trials(numbers, [best, wanted or 0])
        else:
            self._note(
                f"none of the best {best} trials of study {self.study.name!r} can continue: none "
                f"is complete, or they already have {wanted or 'as many'} epochs. Pass more epochs"
            )

    def _resume(self, search: SearchLoop, snapshot: Snapshot[SearchFacts]) -> None:
        try:
            search.checkpointer.resume(snapshot)
        except PacelineError:  # SpaceError is a ValueError, too
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, *UNREADABLE) as error:
            study, why = f"study {self.study.name!r}", f"{type(error).__name__}: {error}"
            raise unreadable(study, why, self._config.folder / "checkpoints") from error

    def _resolve_n_trials(self) -> tuple[int, int]:
        """Works out the study's total of trials; returns how many it has, and how many are open."""
        study, arguments = self.study, self._arguments
        under_way = UNDER_WAY if study.resumed else ()
        is_open = [trial for trial in study.trials if trial.state in under_way]
        n_open = sum(trial.continued_from is None for trial in is_open)
        n_done = n_open + sum(counts(trial) for trial in study.trials if has_ended(trial))
        wanted, before = (None, None) if self._snapshot is None else self._snapshot.facts.limit
        if isinstance(wanted, str) and arguments.wanted == wanted:
            # The same call continues: it adds no more.
            arguments = replace(arguments, n_trials=before)
        else:
            arguments = arguments.settled(n_done)
        self._arguments = arguments
        limit = arguments.n_trials
        study.asker.limit_trials(limit, by_time=arguments.timeout is not None)
        study.asker.draws_at_once = isinstance(self._config.pruner, PBT)
        if limit is not None and n_done >= limit and not is_open and not arguments.continue_best:
            self._note(
                f"study {study.name!r} already has its {limit} trials; to add N, pass "
                "n_trials='+N' (--trials +N)"
            )
        if arguments.loaded.folds_text is not None:
            self._note(arguments.loaded.folds_text)
        return n_done, n_open

    def _make_pruner(self) -> Pruner | None:
        if self._config.pruner is None:
            return None
        objective = self._objective
        if self._several is not None:
            self._note(self._several.note_on_pruner(pruner_text(self._config.pruner) or ""))
        first = self._arguments.initial_epoch
        freq = self._arguments.validation_freq if objective.name.startswith("val_") else 1
        return make_pruner(
            self._config.pruner,
            direction=objective.direction,
            epochs=self._epochs,
            n_trials=self._arguments.n_trials,
            by_time=self._arguments.timeout is not None,
            freq=freq,
            first=0 if callable(first) else int(first),
            n_members=self._arguments.n_members,
            note=self._note,
            past=[
                (trial, trial.by_epoch(objective.name))
                for trial in self.study.trials
                if trial.state in ("complete", "pruned")
            ],
        )

    @property
    def _outlook(self) -> SearchOutlook:
        """As ``SearchContext`` has it: a study that continues keeps its own."""
        study, arguments = self.study, self._arguments
        if study.trials or self._snapshot is not None:
            return SearchOutlook(**study.metadata.meta.get("outlook", {}))
        n_trials = study.strategy.n_to_come(arguments.n_trials)
        if arguments.timeout is None:
            return SearchOutlook(n_trials or LEAST_TRIALS)
        pruner, epochs = self._config.pruner, self._epochs
        trained = 1.0
        if isinstance(pruner, ASHA) and epochs is not None:
            trained = pruner.share_trained(epochs)
        alike = TIMED_WAVE if study.proposer.structure_order.in_waves else 1
        return SearchOutlook(n_trials or 0, arguments.timeout * cores(), trained, alike)

    def _make_packs(self, stack: ExitStack, stuck_trials: StuckTrials) -> PackExecutor | None:
        """The executor of packs, closed with ``stack``; None when no trial can be packed."""
        arguments, config = self._arguments, self._config
        data = arguments.pack_data
        if data is None:
            return None
        careful, size = self._guard.precautions, arguments.n_members
        most = None if careful.at_once is None else careful.at_once * size
        most = 1 if careful.alone else most
        options = PackOptions(config.parallel_trials, config.plan, config.mesh, most=most)
        limit = EpochLimit(
            arguments.trial_timeout,
            stuck_trials.suspects,
            careful.alone,
            lambda jobs: self._guard.trains({job // size for job in jobs}),
        )
        in_order = self.study.strategy.ends_by_itself
        if config.cluster is not None:
            from paceline.tuner.search.on_cluster import cluster_executor  # seldom needed

            how = options, limit, in_order, self._outlook
            packs: PackExecutor = cluster_executor(
                config, arguments, how, self._objective, self.models, self._note
            )
        else:
            packs = LocalExecutor(data, options, note=self._note, limit=limit, in_order=in_order)
        stack.callback(packs.close)
        if not callable(arguments.batch_size):
            packs.check_batch(arguments.inputs_for(self._first_build.hp).batch_size)
        return packs

    def _finish(self, search: SearchLoop, began: float) -> None:
        self.summary = search.summary(time.perf_counter() - began)
        search.timeline.finish(self.summary, finished=search.done)
        if search.trackers is not None:
            of_study = self._config.folder, self.study.metadata.id
            search.trackers.close(
                lambda trial: find_saved(*of_study, trial.number, trial.value),
                hurried=not search.done,
            )
        search.live.finish(search.progress)
        if self._listeners.progress is not None:
            self._listeners.progress(search.progress("done"))
