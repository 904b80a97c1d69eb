"""``Tuner``: what users hold. It checks arguments, opens the study, and runs searches over it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import collector, identity
from paceline import data as data_module
from paceline.best import BestModels, apply_weights
from paceline.builder import Builder, random_state_kept
from paceline.checkpoint import Checkpoints, Snapshot
from paceline.corners import study_ends
from paceline.errors import StudyError, UsageError
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.folds import Fold
from paceline.keeper import Keeper
from paceline.mesh import check_mesh, check_use
from paceline.objective import Objective, resolve_objective
from paceline.precision import check_precision, policy_of
from paceline.probe import Probe, probe
from paceline.program import keras_private
from paceline.program.compiling import use_persistent_cache
from paceline.progress import Progress
from paceline.pruners import check_pruner, make_pruner, pruner_text
from paceline.report.live import live_view
from paceline.report.results import results_frame
from paceline.reproduction import Reproduction, changes, train_again
from paceline.roster import counts
from paceline.search import FAILURES_IN_A_ROW, Search
from paceline.search_arguments import Arguments, read_arguments, whole_number
from paceline.search_space import HyperParameters
from paceline.study import Study
from paceline.study_lock import study_lock
from paceline.study_record import check_name
from paceline.trial import Trial

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

EXECUTORS = ("auto", "local", "fit")
PLANS = ("auto", "stacked", "mapped", "sequential")


class Tuner:
    """Searches the hyperparameters of a Keras model; many trials train in one compiled program.

    Args:
        build: ``build(hp) -> compiled keras.Model``, or a ``keras_tuner.HyperModel``.
        objective: A name in ``fit``'s logs such as ``"val_accuracy"``, ``"max:NAME"`` or
            ``"min:NAME"``; None: ``val_`` and the first metric the model was compiled with, else
            ``val_loss``.
        study: The study's name; also the name of its folder below ``directory``.
        storage: None for a journal file in the study's folder, ``"journal:PATH"``, any Optuna URL,
            or an Optuna storage object.
        sampler: "tpe", "random", "qmc", "grid", "gp", or an Optuna sampler.
        pruner: None; "median", "percentile[:P]", "hyperband", "threshold:VALUE",
            "patience[:EPOCHS]", "asha[:MIN_EPOCHS[:REDUCTION_FACTOR]]", with repeats or folds
            "wilcoxon[:P]", a ``paceline.ASHA``, or an object of ``optuna.pruners``.
        seed: Decides every trial's hyperparameters, weights and order of examples.
        executor: "auto": packs, and Keras' ``fit`` for what cannot be packed; "local": an error
            where no trial could be packed; "fit": Keras' ``fit`` for all.
        slots: Trials that train at once, or "auto".
        direction: "maximize" or "minimize" where it cannot be inferred from the objective.
        plan: "auto", "stacked" (one program, all slots at once), "mapped" (one program, a loop over
            slots) or "sequential" (one program for trial after trial).
        mesh: Devices to train on: "auto" (all accelerators, or the CPU), their number, or
            ``(trial, data)``: devices that trials are spread over, and devices that each trial's
            batch is split over.
        precision: "float32" or "bfloat16" (Keras' policy mixed_bfloat16); None: Keras' policy as
            it is.
        directory: Where study folders go.
        keep_best: How many of the best models are saved.
        progress: Called with a ``Progress`` a few times a second.
        notes: Called with sentences worth telling the user. Without ``progress`` and ``notes``, a
            search shows itself: a panel on stderr in a terminal, a line in a notebook, a line a
            minute elsewhere.
        origin: Where the study comes from, for ``paceline resume``.

    Raises:
        UsageError: An argument has a value that cannot work.
    """

    def __init__(
        self,
        build: Any,
        objective: Any = None,
        study: str = "study",
        storage: Any = None,
        sampler: Any = "tpe",
        pruner: Any = None,
        seed: int = 0,
        executor: str = "auto",
        slots: int | str = "auto",
        direction: str | None = None,
        *,
        plan: str = "auto",
        mesh: Any = "auto",
        precision: str | None = None,
        directory: str | Path = "runs",
        keep_best: int = 1,
        progress: Callable[[Progress], None] | None = None,
        notes: Callable[[str], None] | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self._builder = Builder(build)
        self._pruner = check_pruner(pruner)
        if executor not in EXECUTORS:
            raise UsageError(f"executor: {executor!r} is not one of {', '.join(EXECUTORS)}.")
        if plan not in PLANS:
            raise UsageError(f"plan: {plan!r} is not one of {', '.join(PLANS)}.")
        self._precision = check_precision(precision)
        self._mesh = check_mesh(mesh)
        check_use(self._mesh, plan, executor)
        self._slots = slots if slots == "auto" else whole_number(slots, "slots")
        self._seed = whole_number(seed, "seed", least=0)
        self._keep_best = whole_number(keep_best, "keep_best")
        self.name = study
        self._objective_given, self._direction = objective, direction
        self._storage, self._sampler = storage, sampler
        self._executor, self._plan = executor, plan
        self._directory = Path(directory)
        self._progress = progress
        self._notes_given = notes
        self._notes: Callable[[str], None] = notes or _to_stderr
        self._origin = dict(origin) if origin else None
        self._study: Study | None = None
        self._best: BestModels | None = None
        self._objective: Objective | None = None
        self._enqueued: list[dict[str, Any]] = []
        self._summary: dict[str, Any] = {}
        self._folds: tuple[Fold, ...] = ()

    # -- searching ---------------------------------------------------------------------------------

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
        repeats: int = 1,
        folds: int | None = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        validation_batch_size: int | None = None,
        allow_nan: bool = False,
        verbose: int | str = "auto",
        **fit_arguments: Any,
    ) -> None:
        """Searches until the study has ``n_trials`` trials; an existing study goes on.

        Takes what ``model.fit`` takes. ``epochs`` and ``batch_size`` may be functions of hp.

        Args:
            x: Training data: arrays, or lists, tuples and dicts of arrays, first axis examples. A
                generator or a ``keras.utils.PyDataset`` goes to Keras' own ``fit``.
            y: Targets, likewise.
            validation_data: ``(x, y)`` or ``(x, y, sample_weight)``.
            validation_split: Fraction of the end of x and y to validate on instead.
            epochs: Epochs per trial.
            batch_size: Examples per step; 32 by default, as in Keras.
            n_trials: The study's total, failed trials included, or ``"+N"`` for N more.
            timeout: Stop after this many seconds; trials under way are tried again next time.
            repeats: Train each trial's hparams from this many seeds. Its value and history are then
                means over them, its ``spread`` the standard deviation of the value.
            folds: Train each trial's hparams on this many folds of x and y, each validated on what
                the others leave (k-fold cross-validation), instead of validation data; value,
                history and spread as for ``repeats``. Classes have their share in every fold.
            shuffle: A new order each epoch, decided by the trial's seed.
            class_weight: As in Keras.
            sample_weight: As in Keras.
            validation_batch_size: Examples per validation step; the batch size by default.
            allow_nan: Accept NaN and infinity in the data, for models that mask them.
            verbose: 0 shows notes only.
            **fit_arguments: Other arguments of ``model.fit``, such as ``callbacks``; trials then
                run in Keras' own ``fit``.

        Raises:
            UsageError, DataError, BuildError, ObjectiveError, SpaceError, StudyError, StorageError,
            SamplerError: Something cannot work; nothing has been trained or written then.
        """
        began = time.perf_counter()
        arguments = self._read(
            x,
            y,
            validation_data=validation_data,
            validation_split=validation_split,
            epochs=epochs,
            batch_size=batch_size,
            n_trials=n_trials,
            timeout=timeout,
            shuffle=shuffle,
            class_weight=class_weight,
            sample_weight=sample_weight,
            validation_batch_size=validation_batch_size,
            allow_nan=allow_nan,
            repeats=repeats,
            folds=folds,
            others=fit_arguments,
            needs_end=self._sampler != "grid",
        )
        self._folds = arguments.folds
        use_persistent_cache()
        with (
            self._view(verbose),
            random_state_kept(),
            policy_of(self._precision),
            collector.calm(),
        ):
            found = probe(self._builder, arguments, self._seed, FAILURES_IN_A_ROW)
            check_name(self.name)
            with closing(self._checkpoints()) as checkpoints:
                objective = resolve_objective(self._objective_given, self._direction, found.names)
                key = identity.key(self._settings(), arguments, objective, self._executor)
                keeper = Keeper(checkpoints, key)
                study, snapshot = self._open(objective, found, keeper)
                self._run(study, arguments, found, began, keeper, snapshot)

    def reproduce(
        self, number: int, x: Any = None, y: Any = None, **search_arguments: Any
    ) -> Reproduction:
        """Trains one trial again, alone, from its recorded seed and hparams; writes nothing.

        Args:
            number: The trial's.
            x: As for ``search``.
            y: Likewise.
            **search_arguments: As the search had them; batch size, shuffle, repeats and folds are
                taken from the study where they are not given.

        Returns:
            The history, and how it differs from the recorded one: not at all where the trial
            trained in the plan ``sequential`` on this device, by the order of sums elsewhere.

        Raises:
            StudyError: There is no such study or trial, or it has no epochs.
            UsageError, DataError, BuildError: As from ``search``.
        """
        trial = self.trial(number)
        if trial.epochs == 0:
            raise StudyError(f"study: trial {number} of {self.name!r} has no epochs to reproduce.")
        meta = self._require_study().meta
        stored = {k: v for k, v in meta.get("search", {}).items() if v is not None}
        given = {**stored, **search_arguments}
        for name in ("epochs", "n_trials", "timeout", "verbose"):
            given.pop(name, None)
        known = {**_NO_ARGUMENTS, **{k: given.pop(k) for k in _NO_ARGUMENTS if k in given}}
        arguments = self._read(x, y, **known, epochs=trial.epochs, others=given)
        use_persistent_cache()
        with random_state_kept(), policy_of(self._precision):
            plan, history = train_again(self._builder, arguments, trial)
        now = {
            "data": None if arguments.data is None else arguments.data.digest(),
            "versions": identity.versions(),
        }
        return Reproduction(trial, plan, history, changes(meta, now))

    def _read(self, x: Any, y: Any, **given: Any) -> Arguments:
        return read_arguments(x, y, **given, executor=self._executor, seed=self._seed)

    @contextmanager
    def _view(self, verbose: int | str) -> Iterator[None]:
        """Shows the search, unless the caller gave functions of his own to tell."""
        if self._progress is not None or self._notes_given is not None:
            yield
            return
        with live_view(self.name, quiet=verbose == 0, last_line=True) as view:
            self._progress, self._notes = view.update, view.note
            try:
                yield
            finally:
                self._progress, self._notes = None, _to_stderr

    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self._directory / self.name / "checkpoints", self._notes)

    def _settings(self) -> dict[str, Any]:
        """What of this tuner decides a study's trials, beside the objective: JSON values."""
        sampler = self._sampler
        return {
            "sampler": sampler if isinstance(sampler, str) else type(sampler).__name__,
            "seed": self._seed,
            "slots": self._slots,
            "plan": self._plan,
            "pruner": pruner_text(self._pruner),
            "precision": self._precision,
            "mesh": None if self._mesh is None else list(self._mesh),
        }

    def _run(
        self,
        study: Study,
        arguments: Arguments,
        found: Probe,
        began: float,
        keeper: Keeper,
        snapshot: Snapshot | None,
    ) -> None:
        objective, best = self._objective, self._best
        assert objective is not None and best is not None
        under_way = ("running", "paused") if study.resumed else ()
        n_open = sum(trial.state in under_way for trial in study.trials)
        n_done = n_open + sum(map(counts, study.trials))
        wanted, before = snapshot.facts["limit"] if snapshot is not None else (None, None)
        if isinstance(wanted, str) and arguments.wanted == wanted:
            arguments.n_trials = before  # the same call goes on, and adds no more
        else:
            arguments.settle(n_done)
        limit = study.n_trials = arguments.n_trials
        if limit is not None and n_done >= limit and not n_open:
            self._notes(
                f"study {study.name!r} already has its {limit} trials; n_trials='+N' (--trials +N) "
                "adds N"
            )
        if arguments.folds_text is not None:
            self._notes(arguments.folds_text)
        pruner = make_pruner(
            self._pruner,
            direction=objective.direction,
            epochs=None if callable(arguments.epochs) else int(arguments.epochs),
            n_trials=limit,
            n_members=arguments.n_members,
            note=self._notes,
            past=[
                (trial, trial.history.get(objective.name, []))
                for trial in study.trials
                if trial.state in ("complete", "pruned")
            ],
        )
        # The first that is left is the last that is done here.
        with ExitStack() as stack:
            packs = None
            if arguments.why_fit is None and arguments.data is not None:
                packs = LocalExecutor(
                    arguments.data,
                    arguments.validation,
                    validation_batch_size=arguments.validation_batch_size,
                    shuffle=bool(arguments.shuffle),
                    slots=self._slots,
                    plan=self._plan,
                    mesh=self._mesh,
                    fold=arguments.fold,
                )
                stack.callback(packs.close)
                if not callable(arguments.batch_size):
                    packs.check_batch(arguments.batch_size_for(found.hp))
                if limit is None or limit > n_done - n_open:
                    study_ends(packs, self._builder, arguments, found.hp, self._seed)
            search = Search(
                builder=self._builder,
                study=study,
                objective=objective,
                best=best,
                arguments=arguments,
                packs=packs,
                fit=FitExecutor(arguments.fit, batched=arguments.batched),
                pruner=pruner,
                progress=self._progress,
                notes=self._notes,
                keeper=keeper,
            )
            stack.enter_context(study_lock(self._directory / self.name))
            if study.trials:
                identity.compare(study.name, study.meta, arguments, self._notes)
            meta = identity.meta(self._settings(), arguments, objective, found.batch)
            study.persist({**meta, **({"origin": self._origin} if self._origin else {})})
            stack.callback(self._finish, search, began)
            stack.callback(study.close)
            stack.callback(lambda: best.save(self._with_weights, self._notes))
            saver = _Throttled(lambda: best.save(self._with_weights, self._notes))
            search.each_round = saver
            if snapshot is not None:
                self._notes(
                    f"going on from the last checkpoint: {n_done - n_open} trials have ended "
                    f"there, {n_open} are under way; what came after it comes again"
                )
                search.resume(snapshot)
            search.run()
            best.save(self._with_weights, self._notes)
            study.show_ends()
            study.close()
            if search.done:  # and all that came of it is on disk
                keeper.clear()

    def _finish(self, search: Search, began: float) -> None:
        self._summary = search.summary(time.perf_counter() - began)
        if self._progress is not None:
            self._progress(search.progress("done"))

    def _open(
        self, objective: Objective, found: Probe, keeper: Keeper
    ) -> tuple[Study, Snapshot | None]:
        """Opens the study, with what to go on from; writes nothing."""
        snapshot = keeper.load(self._notes)
        study = Study.open(
            self.name,
            storage=self._storage,
            directory=self._directory,
            direction=objective.direction,
            sampler=self._sampler,
            seed=self._seed,
            resumed=None if snapshot is None else snapshot.facts["study"],
        )
        study.on_note(self._notes)
        stored = study.meta.get("objective")
        if stored is not None and stored != objective.name:
            raise StudyError(
                f"study: {self.name!r} was made with the objective {stored!r}, not "
                f"{objective.name!r}; use another study name, or that objective."
            )
        study.space.learn(found.hp)
        for hparams in self._enqueued:
            study.enqueue(hparams)
        self._enqueued.clear()
        if self._study is not None:
            self._study.close()
        self._study, self._objective = study, objective
        self._best = self._best_models(objective.direction)
        if snapshot is not None and not study.resumed and snapshot.facts["trials"]:
            self._notes(
                "the checkpoint of this study is not used: the storage holds other trials than it "
                "was taken with; those that were under way are tried again"
            )
        return study, snapshot if study.resumed else None

    # -- what came of it ---------------------------------------------------------------------------

    @property
    def best_trial(self) -> Trial:
        """The best trial.

        Raises:
            StudyError: No trial has a value yet.
        """
        best = self._require_study().best
        if best is None:
            raise StudyError(
                f"study: {self.name!r} has no finished trial with a value yet; run search first."
            )
        return best

    @property
    def best_hparams(self) -> dict[str, Any]:
        """The hyperparameters of the best trial."""
        return dict(self.best_trial.hparams)

    def best_model(self) -> Any:
        """The best trial's model, compiled, with the weights of its best epoch.

        With repeats or folds that is the model of the trial's first member: trained from the
        trial's own seed, with folds on all but the first of ``folds``. ``evaluate`` gives that
        member's value, the first of ``best_trial.members[best_trial.best_epoch - 1]``, and not the
        mean.

        Raises:
            StudyError: There is no such trial, or its saved weights are gone.
        """
        trial = self.best_trial
        assert self._best is not None
        weights = self._best.weights(trial.number)
        with random_state_kept(), policy_of(self._precision):
            if weights is not None:
                return self._with_weights(trial.number, weights)
            path = self._best.weights_path(trial.number)
            if path is None:
                raise StudyError(
                    f"study: the saved model of trial {trial.number} is not in "
                    f"{self._directory / self.name / 'best'}, or it was changed there; train it "
                    "again with build(paceline.HyperParameters(values=tuner.best_hparams))."
                )
            model = self._rebuild(trial)
            try:
                model.load_weights(path)
            except ValueError as error:
                raise StudyError(
                    f"study: the saved weights of trial {trial.number} do not fit the model that "
                    "build(hp) makes now; was it changed since? The model as it was is in "
                    f"{path}: keras.models.load_model reads it."
                ) from error
            return model

    def results(self) -> pd.DataFrame:
        """All trials, a row each.

        Returns:
            Columns number, state, value, epochs, seconds, seed, program, plan, where there are
            repeats or folds also spread, then one for each hyperparameter: ``hp.NAME`` where it is
            called like one of those.
        """
        return results_frame(self._require_study().trials)

    def trial(self, number: int) -> Trial:
        """One trial.

        Raises:
            StudyError: There is no trial of that number.
        """
        return self._require_study().trial(number)

    @property
    def folds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The folds of the last search: numbers of examples to train on, and to validate on."""
        return [(fold.train.copy(), fold.validation.copy()) for fold in self._folds]

    def history(self, number: int) -> dict[str, list[float]]:
        """Metric name -> one value per epoch, names as Keras has them; with members the mean."""
        return dict(self.trial(number).history)

    def enqueue(self, hparams: Mapping[str, Any]) -> None:
        """Tries these values next; the sampler chooses those not named."""
        self._enqueued.append(dict(hparams))

    def summary(self) -> dict[str, Any]:
        """What ``paceline search --json`` prints, for the last search."""
        return dict(self._summary)

    # -- helpers -----------------------------------------------------------------------------------

    def _require_study(self) -> Study:
        if self._study is None:
            study = Study.open(self.name, storage=self._storage, directory=self._directory)
            if not study.exists:
                raise StudyError(f"study: there is no study {self.name!r} yet; run search first.")
            self._study, self._best = study, self._best_models(study.direction)
        return self._study

    def _best_models(self, direction: Any) -> BestModels:
        return BestModels(self._directory / self.name / "best", self._keep_best, direction)

    def _rebuild(self, trial: Trial) -> Any:
        model = self._builder(HyperParameters(values=trial.hparams), trial.seed)
        batch = self._require_study().meta.get("batch")
        if model.built:
            model.optimizer.build(model.trainable_variables)  # its state is saved with the model
        elif batch is not None:
            keras_private.symbolic_build(model, data_module.shapes_from_json(batch))
        return model

    def _with_weights(self, number: int, weights: Any) -> Any:
        model = self._rebuild(self._require_study().trial(number))
        apply_weights(model, weights)
        return model


#: Arguments of ``search`` that ``reproduce`` knows, as they are where nobody gives them.
_NO_ARGUMENTS: dict[str, Any] = {
    "validation_data": None,
    "validation_split": 0.0,
    "batch_size": None,
    "n_trials": 1,
    "timeout": None,
    "shuffle": True,
    "class_weight": None,
    "sample_weight": None,
    "validation_batch_size": None,
    "allow_nan": False,
    "repeats": 1,
    "folds": None,
    "needs_end": False,
}


class _Throttled:
    """Saves now and then while a search runs: a session may die, the best model shall not.

    Args:
        save: Takes a tenth of a second or more.
    """

    EVERY = 30.0  # s

    def __init__(self, save: Callable[[], None]) -> None:
        self._save, self._last = save, time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._last > self.EVERY:
            self._save()
            self._last = time.perf_counter()


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"paceline: {text}\n")
