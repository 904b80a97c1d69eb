"""``Tuner``: checks arguments and runs searches; ``results`` tells what came of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from paceline.data.adapters import holds_text
from paceline.errors import BuildError, DataError, StudyError, UsageError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import StopSignal, search_process
from paceline.executor.tf_replicas import let_memory_grow
from paceline.executor.wall.guard import guard_of_process
from paceline.pack.mesh import check_mesh, check_use
from paceline.program.trace import check_precision, refusal
from paceline.report import formats
from paceline.report.live import live_view
from paceline.report.notebook import interrupted
from paceline.report.progress import Progress
from paceline.report.summary import search_summary, steps_in_python
from paceline.search_space import HyperParameters
from paceline.study.metadata import check_name
from paceline.study.objectives import Objective
from paceline.study.pruners.pruners import check_pruner
from paceline.study.samplers.earlier_studies import check_warm_start_from
from paceline.study.samplers.samplers import strategy_of
from paceline.study.sharing.worker import WORKERS, Worker
from paceline.study.storage.folder import JOURNAL, aside_of, at_home, study_lock
from paceline.study.trials.lineage import copied_line
from paceline.tuner.after.reproduce import Reproduction, arguments_again, train_again
from paceline.tuner.after.results import StudyResults
from paceline.tuner.arguments import comparison, provenance, several
from paceline.tuner.arguments.arguments import SearchArguments, read_arguments, whole_number
from paceline.tuner.arguments.config import Listeners, TunerConfig, WorkerFolder
from paceline.tuner.arguments.constraints import checked
from paceline.tuner.arguments.naming import default_study
from paceline.tuner.arguments.pruner_choice import (
    note_on_averages,
    rule_of,
    with_chosen_pruner,
)
from paceline.tuner.checkpoint.files import CheckpointManager, SavePolicy
from paceline.tuner.search.first_build import first_preprocessing, probe
from paceline.tuner.search.progress import to_stderr, unpacked_backend
from paceline.tuner.search.run import SearchRun, executor_of, one_of
from paceline.tuner.search.running_trials import IN_A_ROW
from paceline.tuner.search.timeouts import run_with_timeout
from paceline.tuner.session.text_ahead import TextAhead
from paceline.tuner.trackers.choice import make_trackers

PLANS = ("auto", "vectorized", "looped", "sequential")
SHARE_WIDTHS = ("auto", True, False)

if TYPE_CHECKING:
    from paceline.data.arrays import ArrayData
    from paceline.data.folds import Fold

_NAN_EPOCHS = (
    "validation_freq: the history has NaN for epochs without validation, which Keras leaves out"
)


class Tuner(StudyResults):
    """Searches the hyperparameters of a Keras model; many trials train in one compiled program.

    Args:
        build: ``build(hp) -> compiled keras.Model``, or a ``keras_tuner.HyperModel``.
        objective: A name in ``fit``'s logs such as ``"val_accuracy"``, ``"max:NAME"`` or
            ``"min:NAME"``; None: ``val_`` and the first metric the model was compiled with, else
            ``val_loss``. Or a list, such as ``["val_accuracy", "params"]``; see ``pareto``.
        study: The study's name; also the name of its folder below ``directory``. None: the name of
            the script, or of the notebook if that is known, else "study".
        storage: None for a journal file in the study's folder, ``"journal:PATH"``, any Optuna URL,
            or an Optuna storage object.
        sampler: "tpe", "cmaes", "random", "qmc", "grid", "gp", "auto" (depends on the space and the
            number of trials), or an Optuna sampler. Or a ``Searcher``, which chooses trials itself
            and keeps the models.
        pruner: "auto" (ASHA if it can help), "none", "median", "percentile[:P]", "hyperband",
            "threshold:VALUE", "patience[:EPOCHS]", "asha[:MIN_EPOCHS[:REDUCTION_FACTOR]]",
            "pbt[:EPOCHS[:FRACTION]]", or with repeats or folds "wilcoxon[:P]". Or a
            ``paceline.ASHA``, ``paceline.PBT`` or object of ``optuna.pruners``. None: "auto" if a
            timeout ends the search, else "none".
        seed: Decides every trial's hyperparameters, weights and order of examples.
        executor: "auto": packs, and Keras' ``fit`` for trials that cannot be packed. "packed": an
            error if no trial can be packed. "fit": Keras' ``fit`` for all. "ray", or a
            ``paceline.Ray``: packs on the machines of a Ray cluster.
        parallel_trials: Trials that train at once, or "auto".
        direction: "maximize" or "minimize", if it cannot be inferred from the objective.
        plan: "auto", "vectorized" (one program, all slots at once), "looped" (one program, a loop
            over slots) or "sequential" (one program for trial after trial).
        share_widths: True: trials whose layers differ in width share one program, if it is proved
            that their results are the same as alone. False: each width has its own program. "auto":
            whichever takes less time.
        constraints: Conditions on a built model: ``{"params": ("<=", 200_000)}`` (or
            "trainable_params"), a function of (model, hparams), or several in a dict. The function
            returns True, or a number of at most 0, if the model is allowed. Other trials are
            rejected, and do not count for ``n_trials``.
        mesh: Devices to train on: "auto" (all accelerators, or the CPU), their number, or
            ``(trial, data)``. Trials are spread over ``trial`` groups of ``data`` devices; these
            split each batch.
        precision: "float32" or "bfloat16" (Keras' policy mixed_bfloat16); None: Keras' policy as
            it is.
        directory: Where study folders go.
        keep_best: How many of the best models to save.
        warm_start_from: Earlier studies for "tpe" and "cmaes", one or a list: names, paths of their
            folders, or storage URLs (``sqlite:///a.db#NAME``). They are only read, and their trials
            do not count. Fixed at a study's first search.
        trackers: "mlflow", "wandb", "tensorboard", an object with the methods begin, log_trial and
            end, or a list of these. They log each finished trial. "mlflow+model" and "wandb+model"
            also store the best model.
        overwrite: Start the study over. The old study is kept as a backup until the new one has a
            complete or pruned trial, and is restored if there is none.
        isolate: True: run searches in a process of their own. If that process runs out of memory
            or crashes, a new one continues from the last checkpoint. It trains fewer trials at
            once, and a trial that kills the process twice alone fails. ``paceline search`` and
            sessions on TensorFlow or PyTorch always work this way.
        on_progress: Called with a ``Progress`` a few times a second. When it returns False, the
            search stops at once, without an error; the next search continues from the last
            checkpoint.
        on_note: Called with sentences worth telling the user. Without ``on_progress`` and
            ``on_note``, a search shows a panel on stderr in a terminal, a table in a notebook, or a
            line every 30 seconds.
        on_hang: Called in its own thread if a ``build`` or ``fit`` hangs beyond ``trial_timeout``
            and cannot be interrupted. It gets a text, and whether another process can continue
            without that trial. The function may end the process. None: a note asks you to end the
            process.

    Raises:
        UsageError: An argument has a value that cannot work.
        ConstraintError: ``constraints`` does not say what is allowed.
    """

    def __init__(
        self,
        build: Any,
        objective: Any = None,
        study: str | None = None,
        storage: Any = None,
        sampler: Any = "tpe",
        pruner: Any = None,
        seed: int = 0,
        executor: Any = "auto",
        parallel_trials: int | str = "auto",
        direction: str | None = None,
        *,
        plan: str = "auto",
        share_widths: bool | str = "auto",
        constraints: Any = None,
        mesh: Any = "auto",
        precision: str | None = None,
        directory: str | Path = "runs",
        keep_best: int = 1,
        warm_start_from: Any = None,
        trackers: Any = None,
        overwrite: bool = False,
        isolate: bool = False,
        on_progress: Callable[[Progress], object] | None = None,
        on_note: Callable[[str], None] | None = None,
        _origin: Mapping[str, Any] | None = None,  # for ``paceline resume``
        on_hang: Callable[[str, bool], None] | None = None,
    ) -> None:
        self._given = _without(locals(), "self", "on_progress", "on_note", "on_hang")
        builder = ModelBuilder(build)
        executor, cluster = executor_of(executor, mesh, sampler)
        one_of("plan", plan, PLANS)
        one_of("share_widths", share_widths, SHARE_WIDTHS)
        if overwrite and storage is not None:
            raise UsageError(
                "overwrite=True needs the journal in the study's folder, but you passed storage. "
                "Use another study name, or remove the study with `paceline delete`."
            )
        self._overwrite, self._strategy = overwrite, strategy_of(sampler)
        one_of("isolate", isolate, (True, False))
        self._isolate = isolate
        if isolate and (cluster is not None or not self._strategy.resumable):
            raise UsageError(
                f"isolate: {'a cluster' if cluster is not None else 'a Searcher'} can't run in a "
                "separate process. Remove isolate=True."
            )
        self._name_note: str | None = None
        home = Path(directory).absolute()  # a user's function may change the working directory
        if study is None:
            study, self._name_note = default_study()
        config = TunerConfig(
            builder=builder,
            study=study,
            storage=at_home(storage),
            sampler=sampler,
            warm_start_from=check_warm_start_from(warm_start_from, sampler),
            pruner=check_pruner(pruner),
            pruner_rule=rule_of(pruner),
            seed=whole_number(seed, "seed", least=0, most=2**32 - 1),
            executor=executor,
            cluster=cluster,
            parallel_trials=parallel_trials
            if parallel_trials == "auto"
            else whole_number(parallel_trials, "parallel_trials"),
            plan=plan,
            share_widths=share_widths,
            constraints=checked(constraints, self._strategy),
            mesh=check_mesh(mesh),
            precision=check_precision(precision),
            directory=home,
            folder=home / str(study),  # its name is checked when it is used
            keep_best=whole_number(keep_best, "keep_best"),
            trackers=make_trackers(trackers),
            origin=dict(_origin) if _origin else None,
        )
        check_use(config.mesh, plan, executor)
        if isinstance(objective, list | tuple):
            objective = several.check_tuner(objective, config)
        super().__init__(config)
        self._objective_given, self._direction = objective, direction
        self._progress = on_progress
        self._notes_given = on_note
        self._when_stuck = on_hang
        if keras.backend.backend() == "tensorflow":
            # Else TensorFlow takes all of a GPU when it first touches it, and packs have none.
            let_memory_grow()
        if on_note is not None:
            self._notes = on_note

    def __getstate__(self) -> dict[str, Any]:
        """As for results; a view that shows a search meanwhile is not copied."""
        state = super().__getstate__()
        if self._notes_given is None and self._notes is not to_stderr:
            state |= {"_progress": None, "_notes": to_stderr}
        return state

    def search(
        self,
        x: Any = None,
        y: Any = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        epochs: int | Callable[[Any], int] = 10,
        batch_size: int | Callable[[Any], int] | None = None,
        n_trials: int | str | None = None,
        timeout: float | None = None,
        trial_timeout: float | None = None,
        target_value: float | None = None,
        patience_trials: int | None = None,
        max_total_epochs: int | None = None,
        enqueue_defaults: bool = False,
        continue_best: int | None = None,
        repeats: int = 1,
        folds: int | None = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | Callable[[Any], Mapping[int, float]] | None = None,
        sample_weight: Any = None,
        validation_batch_size: int | Callable[[Any], int] | None = None,
        initial_epoch: int | Callable[[Any], int] = 0,
        steps_per_epoch: int | Callable[[Any], int] | None = None,
        validation_steps: int | Callable[[Any], int] | None = None,
        validation_freq: int | Sequence[int] = 1,
        allow_nan: bool = False,
        verbose: int | str = "auto",
        **fit_arguments: Any,
    ) -> None:
        """Searches until the study has ``n_trials`` trials; an existing study continues.

        Takes what ``model.fit`` takes. Any number may be a function of hp, and so may x, y,
        sample_weight, validation_data and class_weight.

        N: training examples. V: validation examples.

        Args:
            x: Features [N, ...]: an array, or a list, tuple or dict of arrays. Or batches: a
                ``keras.utils.PyDataset``, ``tf.data.Dataset``, PyTorch ``DataLoader``, Grain data
                set or generator. A pack reads them once for all its trials.
            y: Targets [N, ...], in the same forms; part of x where x comes in batches.
            validation_data: ``(x, y)`` or ``(x, y, sample_weight)``, each [V, ...], or batches,
                which are read once for the whole search.
            validation_split: Fraction of the end of x and y to validate on instead.
            epochs: Epochs per trial.
            batch_size: Examples per step; 32 by default, as in Keras. Fewer are one smaller batch.
            n_trials: The study's total, failed trials included and rejected ones not, or ``"+N"``
                for N more.
            timeout: Stop after this many seconds; the next search continues with unfinished trials.
            trial_timeout: Seconds on the clock that one trial may take to build and to train; a
                trial that takes longer fails. A compiled step cannot be stopped. If a step hangs,
                the search ends with an error, and the next process continues without that trial.
            target_value: End the search as soon as a trial's objective is as good as this. Like
                ``timeout``, this and the next two leave unfinished trials to the next search.
            patience_trials: End the search after this many finished trials in a row without a
                better value.
            max_total_epochs: Begin no trial whose epochs would exceed this total of all trials.
            enqueue_defaults: First try the defaults, in a new study.
            continue_best: First train this many of the best trials further, up to ``epochs``. Each
                continuation is a new trial with the same hyperparameters, seed and history.
                Continuations do not count for ``n_trials``, which may be left out. Trials beyond
                ``keep_best`` train from their first epoch again.
            repeats: Train each trial's hparams from this many seeds. Its value and history are
                means over them; ``value_std`` is the standard deviation of the value.
            folds: K-fold cross-validation: train each trial's hparams on this many folds of x and
                y, each validated on the examples that it leaves out. Value, history and
                ``value_std`` are as for ``repeats``. Folds are stratified by class.
            shuffle: A new order each epoch, by the trial's seed; "batch": within each batch only.
            class_weight: As in Keras: class, from 0 -> factor of its examples' losses.
            sample_weight: As in Keras: factors of the examples' losses [N].
            validation_batch_size: Examples per validation step; the batch size by default.
            initial_epoch: As in Keras: epochs before it are not trained.
            steps_per_epoch: Batches of an epoch; all of the data by default.
            validation_steps: Batches to validate on; all of the validation data by default.
            validation_freq: Validate every N epochs, or after the listed epochs, from 1.
            allow_nan: Accept NaN and infinity in the data, for models that mask them.
            verbose: 0 shows notes only; "auto", 1 and 2 also show progress.
            **fit_arguments: ``callbacks`` of ``model.fit``, or a function of hp that returns them.
                Each trial has its own copies. Trials stay in packs unless callbacks act within a
                batch or within validation.

        Raises:
            UsageError, DataError: An argument cannot work, or the data; nothing has been trained.
            BuildError: ``build`` failed on its first values, or returned no compiled model.
            ObjectiveError, SpaceError, SamplerError: Objective, space or sampler cannot work.
            StudyError, StorageError: The study cannot continue, or its storage cannot be used.
            ConstraintError: A constraint failed at first; or, later, 100 rejections in a row.
            TrialHangError: A compiled step hangs; search again in another process.
            KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; the next search continues open trials.
        """
        given = _without(locals(), "self", "verbose", "fit_arguments") | fit_arguments
        began, config = time.perf_counter(), self._config
        with ExitStack() as stack:
            stop = stack.enter_context(StopSignal.of_process())
            stop.check()  # of the command, while it loaded file and data
            one_of("verbose", verbose, ("auto", 0, 1, 2))
            self._tell_name()
            given, why = self._search_in_process(given, verbose, stop)
            if given is None:
                return
            if refusal() is None and config.cluster is None and holds_text(given["x"]):
                given, config = self._behind_text(given)
            arguments = self._read(given, needs_end=not self._strategy.ends_by_itself)
            if isinstance(self._objective_given, list):
                several.check_search(arguments, self._objective_given)
            stop.check()
            if why is None:
                self._warn_of_backend()
            loaded = arguments.loaded
            self._folds = loaded.folds
            self._validation = None if loaded.preprocessed or loaded.key else loaded.validation
            if config is not self._config:  # models read texts, not these numbers
                self._validation = None
            stack.enter_context(self._view(arguments.timeout, arguments.wanted, verbose))
            stack.enter_context(search_process(config.precision))
            first = self._strategy.first_look()
            found = run_with_timeout(
                arguments.trial_timeout,
                lambda: probe(
                    config.builder, arguments, config.seed, IN_A_ROW, first, config.constraints
                ),
                "trial_timeout: the first model, with default values, was not ready in time",
            )
            self._put_aside(stack)
            worker, folder = self._join(stack)
            checkpoints = CheckpointManager(folder / "checkpoints", self._notes)
            stack.callback(checkpoints.close)
            called = bool(arguments.callbacks)
            objective = found.objective(self._objective_given, self._direction, callbacks=called)
            if not isinstance(objective, Objective):
                several.check_alone(objective, self.name, alone=folder == config.folder)
            elif (text := found.note_on(objective, self._objective_given)) is not None:
                self._tell(text)
            if arguments.validated and arguments.validation_freq != 1:
                self._tell(_NAN_EPOCHS)
            if config.sampler == "auto":
                from paceline.tuner.arguments.sampler_choice import (
                    with_chosen_sampler,  # seldom needed
                )

                config = with_chosen_sampler(config, arguments, found, objective, self._tell)
            if self._chooses_pruner(arguments):
                config = with_chosen_pruner(config, arguments, objective, self._tell)
            if (text := note_on_averages(config, arguments, found, objective)) is not None:
                self._tell(text)
            key = provenance.checkpoint_key(config, arguments, objective)
            run = SearchRun(
                config,
                arguments,
                found,
                objective,
                self._listeners(stop),
                WorkerFolder(folder, worker, SavePolicy(checkpoints, key)),
            )
            if why is not None:
                self._warn_of_backend(why)
            run.open(self._enqueued)
            self._enqueued.clear()
            if self._study is not None:
                self._study.close()
            self._study, self._models = run.study, run.models
            try:
                run.run(began)
            finally:
                self._summary = run.summary or self._summary

    def reproduce(
        self, number: int, x: Any = None, y: Any = None, **search_arguments: Any
    ) -> Reproduction:
        """Trains one trial again, alone, from its recorded seed and hparams; writes nothing.

        Args:
            number: The trial's.
            x: As for ``search``.
            y: As for ``search``.
            **search_arguments: Arguments as the search had them; batch size, shuffle, repeats and
                folds are taken from the study where they are not given.

        Returns:
            The history, and its difference from the recorded one. With the same program there is
            none, as in the plan ``sequential`` on this device; else rounding. A copy is trained
            together with the trials that it continues.

        Raises:
            StudyError: There is no such study or trial, or it has no epochs.
            UsageError, DataError, BuildError: As from ``search``.
        """
        trial = self.trial(number)
        if trial.epochs == 0:
            raise StudyError(f"study: trial {number} of {self.name!r} has no epochs to reproduce.")
        if refusal() is not None and trial.plan != "fit":
            from paceline.tuner.search.own_process import reproduced  # not in sessions on JAX

            given = {"x": x, "y": y, **search_arguments}
            found = reproduced(Tuner, self._elsewhere(), number, given)
            if found is not None:
                return found
        meta = (study := self._require_study()).metadata.meta
        stored = provenance.search_of(meta, number)
        again = arguments_again(stored, search_arguments, trial.epochs, x)
        arguments = self._read({"x": x, "y": y, **again}, needs_end=False)
        with search_process(self._config.precision or check_precision(meta.get("precision"))):
            line = copied_line(self._line(number))
            beside = (t for t in study.trials if provenance.search_of(meta, t.number) == stored)
            plan, history = train_again(self._config.builder, arguments, line, beside)
            notes = comparison.changes({**meta, "search": stored}, arguments)
        return Reproduction(trial, plan, history, notes)

    def _read(
        self,
        given: Mapping[str, Any],
        *,
        needs_end: bool,
        note: Callable[[str], None] | None = None,
    ) -> SearchArguments:
        config = self._config
        check_name(self.name)  # a folder is called so
        preprocessing, failed = None, None
        try:
            first = self._strategy.first_look()
            preprocessing = first_preprocessing(
                config.builder, config.seed, config.precision, first
            )
        except BuildError as error:  # other values of hp may work, as ``probe`` finds out
            failed = error
        try:
            return read_arguments(
                given,
                executor=config.executor,
                needs_end=needs_end,
                seed=config.seed,
                folder=config.folder / "trials",
                note=note or self._tell,
                preprocessing=preprocessing,
            )
        except DataError:
            if failed is None:
                raise
            raise failed from failed.__cause__  # which may be why the data cannot be read

    def _last_search(self) -> tuple[dict[str, Any], tuple[tuple[Fold, ...], ArrayData | None]]:
        """The summary of the last search, its folds, and validation data that all trials share."""
        return self._summary, (self._folds, self._validation)

    def _listeners(self, stop: StopSignal) -> Listeners:
        guard = guard_of_process()
        return Listeners(self._progress, self._notes, self._when_stuck, stop, guard)

    def _search_in_process(
        self, given: dict[str, Any], verbose: int | str, stop: StopSignal
    ) -> tuple[dict[str, Any] | None, str | None]:
        """Searches in the session's own process: Keras is not on JAX here, or for its faults.

        Returns the arguments with which this process must continue, None if the search is over, and
        why.
        """
        config = self._config
        isolate = self._isolate and refusal() is None
        can = isolate or (config.executor in ("auto", "packed") and config.cluster is None)
        if (refusal() is None and not isolate) or not can or not self._strategy.resumable:
            return given, None
        from paceline.tuner.search.own_process import SearchInProcess  # not in sessions on JAX

        if self._study is not None:
            self._study.close()
            self._study = None
        tuner = self._elsewhere() | {"overwrite": self._overwrite}
        with self._view(given["timeout"], given["n_trials"], verbose):
            search = SearchInProcess(
                Tuner,
                tuner,
                dict(given),
                [*self._enqueued],
                self._listeners(stop),
                config.builder,
                lambda given: self._read(given, needs_end=False, note=lambda text: None),
                config.trackers,
                isolate,
            )
            why: str | None = None
            try:
                why = search.run()
            finally:
                self._folds, self._validation = search.fold_data
                if search.began:
                    self._overwrite, self._enqueued = search.tuner["overwrite"], []
                if why is None:
                    self._summary = search.summary or self._summary
        return None if why is None else search.search, why

    def _behind_text(self, given: dict[str, Any]) -> tuple[dict[str, Any], TunerConfig]:
        """Arguments with numbers in the place of text, and a builder of models that take them.

        Both are as they were where the models must read the text themselves.
        """
        config = self._config
        first = self._strategy.first_look() or HyperParameters()
        looks = config.constraints is not None or isinstance(self._objective_given, list)
        try:
            ahead = TextAhead.of(
                config.builder, config.seed, first, config.precision, given, looks=looks
            )
            if ahead is None:
                return given, config
            given = ahead.here(given)
        except ValueError as error:
            self._tell(str(error))
            return given, config
        return given, replace(config, builder=config.builder.behind(ahead.sent))

    def _elsewhere(self) -> dict[str, Any]:
        """The arguments of a tuner in another process that is as this one."""
        config = self._config
        own = {"study": config.study, "storage": config.storage, "directory": config.directory}
        return {**self._given, **own, "overwrite": False, "isolate": False}

    def _tell_name(self) -> None:
        if self._name_note is not None:
            self._tell(self._name_note)
            self._name_note = None

    def _warn_of_backend(self, why: str | None = None) -> None:
        """Says it if Keras' backend keeps trials out of packs; a searcher's own tool says it.

        ``why``: the reason why they do not train in the session's own process.
        """
        told = unpacked_backend(why)
        if told is not None and self._config.executor != "fit" and self._strategy.resumable:
            self._tell(told)

    @contextmanager
    def _view(self, timeout: float | None, wanted: Any, verbose: int | str) -> Iterator[None]:
        """Shows the search and its end, unless the user gave ``on_progress`` or ``on_note``."""
        before = self._summary
        try:
            if self._progress is not None or self._notes_given is not None:
                yield
                return
            with live_view(self.name, quiet=verbose == 0, last_line=verbose != 0) as view:
                self._progress, self._notes = view.update, view.note
                try:
                    yield
                finally:
                    self._progress, self._notes = None, to_stderr
        except KeyboardInterrupt as stop:
            raise interrupted(stop, None if self._summary is before else self._summary) from None
        if verbose != 0 and self._summary is not before:
            total = sum(self._summary["n_trials"].values())
            cut_off = timeout is not None
            tried_all = isinstance(wanted, int) and total < wanted
            more = self._strategy.resumable and (cut_off or not tried_all)
            objective = "value" if view.latest is None else view.latest.objective
            steps = steps_in_python(self._summary, more=more)
            with suppress(OSError, ValueError):  # stdout may be closed
                text = formats.visible(search_summary(self._summary, objective, steps))
                sys.stdout.write(f"{text}\n")

    def _chooses_pruner(self, arguments: SearchArguments) -> bool:
        """Whether a rule may choose the pruner, or has chosen that of a study that is there."""
        config = self._config
        if config.pruner_rule != "by time" or arguments.timeout is not None:
            return config.pruner_rule != "given"
        return config.storage is not None or (config.folder / JOURNAL).exists()

    def _put_aside(self, stack: ExitStack) -> None:
        """Starts the study over if that was asked for, or ends what an earlier search began."""
        config = self._config
        overwrite, self._overwrite = self._overwrite, False
        if config.storage is None and (overwrite or aside_of(config.folder).exists()):
            from paceline.study.storage.removal import begun_anew  # seldom needed

            if self._study is not None:
                self._study.close()
                self._study = None
            stack.enter_context(begun_anew(self.name, config.directory, overwrite=overwrite))

    def _join(self, stack: ExitStack) -> tuple[Worker | None, Path]:
        """Joins the workers of the study until the stack ends; returns the worker and its folder.

        The worker is None for a search of a searcher.
        """
        whole = self._config.folder
        first = stack.enter_context(study_lock(whole))
        if not self._strategy.resumable:
            if not first:
                raise StudyError(
                    f"study: another process is searching {self.name!r}, but a Searcher needs its "
                    "own study. Wait for it, or use another study name."
                )
            return None, whole
        worker = Worker(whole / WORKERS, self._notes)
        stack.callback(worker.leave)
        return worker, whole if first else whole / WORKERS / worker.token


def _without(names: Mapping[str, Any], *left_out: str) -> dict[str, Any]:
    """Arguments by name, those left out that a call does not pass on."""
    return {name: value for name, value in names.items() if name not in (*left_out, "__class__")}
