"""``Tuner``: what users hold. It checks arguments, opens the study, and runs searches over it."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from paceline import data as data_module
from paceline.best import BestModels, apply_weights
from paceline.builder import Builder, check_labels, metric_names, random_state_kept
from paceline.data import ArrayData, NotArrays
from paceline.errors import BuildError, PacelineError, StudyError, UsageError
from paceline.executor.fit import FitExecutor
from paceline.executor.local import LocalExecutor
from paceline.objective import Objective, resolve_objective
from paceline.program import keras_private
from paceline.program.compiling import use_persistent_cache
from paceline.progress import Progress
from paceline.report.live import live_view
from paceline.report.results import results_frame
from paceline.search import FAILURES_IN_A_ROW, Arguments, Search, number_of
from paceline.search_space import HyperParameters
from paceline.study import INTERRUPTED, Study
from paceline.trial import Trial

if TYPE_CHECKING:
    import pandas as pd

EXECUTORS = ("auto", "local", "fit")
PLANS = ("auto", "stacked", "sequential")


class Tuner:
    """Searches the hyperparameters of a Keras model; many trials train at once in one compiled program.

    Args:
        build: ``build(hp) -> compiled keras.Model``, or a ``keras_tuner.HyperModel``.
        objective: A name in ``fit``'s logs such as ``"val_accuracy"``, ``"max:NAME"`` or ``"min:NAME"``; None:
            ``val_`` and the first metric the model was compiled with, else ``val_loss``.
        study: The study's name; also the name of its folder below ``directory``.
        storage: None for a journal file in the study's folder, ``"journal:PATH"``, any Optuna URL, or an Optuna
            storage object.
        sampler: "tpe", "random", "qmc", "grid", "gp", or an Optuna sampler.
        pruner: None; pruning comes in a later version.
        seed: Decides every trial's hyperparameters, weights and order of examples.
        executor: "auto": packs, and Keras' ``fit`` for what cannot be packed; "local": packs or an error;
            "fit": Keras' ``fit`` for all.
        slots: Trials that train at once, or "auto".
        direction: "maximize" or "minimize" where it cannot be inferred from the objective.
        plan: "auto", "stacked" (all slots in one program) or "sequential" (one after another, one program).
        directory: Where study folders go.
        keep_best: How many of the best models are saved.
        progress: Called with a ``Progress`` a few times a second.
        notes: Called with sentences worth telling the user. Without ``progress`` and ``notes``, a search shows
            itself: a panel on stderr in a terminal, a line in a notebook, a line a minute elsewhere.
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
        directory: str | Path = "runs",
        keep_best: int = 1,
        progress: Callable[[Progress], None] | None = None,
        notes: Callable[[str], None] | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> None:
        self._builder = Builder(build)
        if pruner not in (None, "none"):
            raise UsageError(f"pruner: {pruner!r} is not available yet; leave it out or pass None.")
        if executor not in EXECUTORS:
            raise UsageError(f"executor: {executor!r} is not one of {', '.join(EXECUTORS)}.")
        if plan not in PLANS:
            raise UsageError(f"plan: {plan!r} is not one of {', '.join(PLANS)}.")
        if slots != "auto" and (isinstance(slots, (bool, str)) or int(slots) < 1):
            raise UsageError(f"slots: {slots!r} is neither 'auto' nor a positive whole number.")
        if isinstance(seed, bool) or int(seed) != seed or seed < 0:
            raise UsageError(f"seed: {seed!r} is not a whole number of at least 0.")
        if keep_best < 1:
            raise UsageError(f"keep_best: {keep_best!r} must be at least 1.")
        self.name = study
        self._objective_given, self._direction = objective, direction
        self._storage, self._sampler, self._seed = storage, sampler, int(seed)
        self._executor, self._slots, self._plan = executor, slots, plan
        self._directory, self._keep_best = Path(directory), int(keep_best)
        self._progress = progress
        self._notes_given = notes
        self._notes: Callable[[str], None] = notes or _to_stderr
        self._origin = dict(origin) if origin else None
        self._study: Study | None = None
        self._best: BestModels | None = None
        self._objective: Objective | None = None
        self._enqueued: list[dict[str, Any]] = []
        self._summary: dict[str, Any] = {}

    # -- searching -----------------------------------------------------------------------------------------------

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
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        validation_batch_size: int | None = None,
        allow_nan: bool = False,
        verbose: int | str = "auto",
        **fit_arguments: Any,
    ) -> None:
        """Searches until the study has ``n_trials`` trials; goes on where an existing study stopped.

        Takes what ``model.fit`` takes. ``epochs`` and ``batch_size`` may be functions of hp.

        Args:
            x, y: Training data: arrays, or lists, tuples and dicts of arrays, first axis examples.
            validation_data: ``(x, y)`` or ``(x, y, sample_weight)``.
            validation_split: Fraction of the end of x and y to validate on instead.
            epochs: Epochs per trial.
            batch_size: Examples per step; 32 by default, as in Keras.
            n_trials: The study's total, failed trials included, or ``"+N"`` for N more.
            timeout: Stop after this many seconds; trials under way are tried again by the next search.
            shuffle: A new order each epoch, decided by the trial's seed.
            class_weight, sample_weight: As in Keras.
            validation_batch_size: Examples per validation step; the batch size by default.
            allow_nan: Accept NaN and infinity in the data, for models that mask them.
            verbose: 0 shows notes only.
            **fit_arguments: Other arguments of ``model.fit``; trials then run in Keras' own ``fit``.

        Raises:
            UsageError, DataError, BuildError, ObjectiveError, SpaceError, StudyError, StorageError,
            SamplerError: Something cannot work; nothing has been trained or written then.
        """
        began = time.perf_counter()
        total = self._check_counts(n_trials, timeout, epochs, batch_size)
        why_fit, unknown = _why_fit(fit_arguments, shuffle, self._executor)
        if unknown:
            raise UsageError(
                f"search: unknown argument {unknown!r}; it takes what model.fit takes, and n_trials, timeout."
            )
        use_persistent_cache()
        train: ArrayData | None = None
        validation: ArrayData | None = None
        try:
            train = data_module.prepare(x, y, sample_weight, class_weight, allow_nan=allow_nan)
            if validation_data is not None:
                validation = data_module.prepare(
                    *_unpack(validation_data), allow_nan=allow_nan, what="validation data"
                )
            elif validation_split:
                train, validation = data_module.split(train, validation_split)
        except NotArrays as reason:
            train, validation = None, None
            why_fit = why_fit or f"{reason}, and packs need arrays"
            if self._executor == "local":
                raise UsageError(
                    f"executor: 'local' cannot run this: {reason}, and packs need arrays; use 'auto'."
                ) from None
        if train is not None and isinstance(batch_size, int) and batch_size > train.n:
            raise UsageError(f"batch_size: {batch_size} is above the {train.n} training examples.")
        arguments = Arguments(train, validation, epochs, batch_size, None, timeout)
        fit_data = {
            "x": x,
            "y": y,
            "validation_data": validation_data,
            "validation_split": validation_split if validation_data is None else 0.0,
            "shuffle": shuffle,
            "class_weight": class_weight,
            "sample_weight": sample_weight,
            "validation_batch_size": validation_batch_size,
            "_batched": train is not None or batch_size is not None,
            **fit_arguments,
        }
        has_validation = validation_data is not None or bool(validation_split)
        with self._view(verbose), random_state_kept():
            self._open(arguments, has_validation)
            study = self._require_study()
            arguments.n_trials = study.n_trials = self._total(total, study)
            search_meta = {
                "epochs": None if callable(epochs) else epochs,
                "batch_size": None if callable(batch_size) else batch_size,
                "n_trials": arguments.n_trials,
                "shuffle": shuffle,
            }
            self._run(arguments, fit_data, why_fit, validation_batch_size, search_meta, began)

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

    def _run(
        self,
        arguments: Arguments,
        fit_data: dict[str, Any],
        why_fit: str | None,
        validation_batch_size: int | None,
        search_meta: dict[str, Any],
        began: float,
    ) -> None:
        study, objective, best = self._require_study(), self._objective, self._best
        assert objective is not None and best is not None
        packs = None
        if why_fit is None and arguments.data is not None:
            packs = LocalExecutor(
                arguments.data,
                arguments.validation,
                validation_batch_size=validation_batch_size,
                shuffle=bool(fit_data["shuffle"]),
                slots=self._slots,
                plan=self._plan,
            )
        fit = FitExecutor({k: v for k, v in fit_data.items() if v is not None})
        limit = arguments.n_trials
        done = _n_done(study)
        if limit is not None and done >= limit:
            self._notes(
                f"study {study.name!r} already has its {limit} trials; n_trials='+N' (--trials +N) adds N"
            )
        study.persist(
            {
                "objective": objective.name,
                "direction": objective.direction,
                "sampler": self._sampler
                if isinstance(self._sampler, str)
                else type(self._sampler).__name__,
                "seed": self._seed,
                "slots": self._slots,
                "plan": self._plan,
                "search": search_meta,
                "batch": None
                if arguments.data is None
                else data_module.shapes_to_json(arguments.data.batch_shapes(1)),
                **({"origin": self._origin} if self._origin else {}),
            }
        )
        search = Search(
            builder=self._builder,
            study=study,
            objective=objective,
            best=best,
            arguments=arguments,
            packs=packs,
            fit=fit,
            progress=self._progress,
            notes=self._notes,
            why_fit=why_fit,
        )
        try:
            search.run()
        finally:
            try:
                best.save(self._with_weights)
            finally:
                study.close()
                self._summary = search.summary(time.perf_counter() - began)
                if self._progress is not None:
                    self._progress(search.progress("done"))
                if packs is not None:
                    packs.close()

    def _check_counts(self, n_trials: Any, timeout: Any, epochs: Any, batch_size: Any) -> Any:
        hp = HyperParameters()
        for name, value in (("epochs", epochs), ("batch_size", batch_size)):
            if value is not None and not callable(value):
                number_of(value, hp, name)
        if timeout is not None and not timeout > 0:
            raise UsageError(f"timeout: {timeout!r} must be above 0 seconds.")
        if isinstance(n_trials, str):
            if not re.fullmatch(r"\+[1-9][0-9]*", n_trials):
                raise UsageError(f"n_trials: {n_trials!r} is neither a number nor '+N'.")
            return n_trials
        if n_trials is None:
            if timeout is None and self._sampler != "grid":
                raise UsageError(
                    "n_trials: say how many trials the study shall have, or give a timeout."
                )
            return None
        return number_of(n_trials, hp, "n_trials")

    def _total(self, total: Any, study: Study) -> int | None:
        return _n_done(study) + int(total) if isinstance(total, str) else total

    def _open(self, arguments: Arguments, has_validation: bool) -> None:
        """Probes the space with its defaults, settles the objective, opens the study."""
        hp, model = self._probe(arguments)
        data = arguments.data
        names: list[str] | None = None
        if data is not None:
            check_labels(model, data, "training data")
            if arguments.validation is not None:
                check_labels(model, arguments.validation, "validation data")
            size = number_of(arguments.batch_size or 32, hp, "batch_size")
            names = metric_names(model, data, size)
            if has_validation:
                names = [*names, *(f"val_{name}" for name in names)]
        self._objective = resolve_objective(self._objective_given, self._direction, names)
        if self._study is not None:
            self._study.close()
        self._study = study = Study.open(
            self.name,
            storage=self._storage,
            directory=self._directory,
            direction=self._objective.direction,
            sampler=self._sampler,
            seed=self._seed,
        )
        study.on_note(self._notes)
        stored = study.meta.get("objective")
        if stored is not None and stored != self._objective.name:
            raise StudyError(
                f"study: {self.name!r} was made with the objective {stored!r}, not {self._objective.name!r}; "
                "use another study name, or that objective."
            )
        study.space.learn(hp)
        for hparams in self._enqueued:
            study.enqueue(hparams)
        self._enqueued.clear()
        self._best = self._best_models(self._objective.direction)

    def _probe(self, arguments: Arguments) -> tuple[HyperParameters, Any]:
        """The model of the default hyperparameters; other draws where that one does not build."""
        rng = np.random.default_rng(self._seed)
        error: BaseException | None = None
        for attempt in range(FAILURES_IN_A_ROW):
            hp = HyperParameters(
                chooser=None if attempt == 0 else lambda parameter: _any_of(parameter.values(), rng)
            )
            try:
                model = self._builder(hp, self._seed)
                for name in ("epochs", "batch_size"):
                    value = getattr(arguments, name)
                    if callable(value):
                        number_of(value, hp, name)
                return hp, model
            except PacelineError:
                raise
            except Exception as raised:  # anything: it is the user's code
                error = error or raised
        raise BuildError(
            f"build(hp) failed {FAILURES_IN_A_ROW} times, the first time with "
            f"{type(error).__name__}: {error}"
        ) from error

    # -- what came of it -----------------------------------------------------------------------------------------

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

        Raises:
            StudyError: There is no such trial, or its saved weights are gone.
        """
        trial = self.best_trial
        assert self._best is not None
        weights = self._best.weights(trial.number)
        with random_state_kept():
            if weights is not None:
                return self._with_weights(trial.number, weights)
            path = self._best.path(trial.number)
            if path is None:
                raise StudyError(
                    f"study: the saved model of trial {trial.number} is not in "
                    f"{self._directory / self.name / 'best'} or was changed; train it again with search."
                )
            model = self._rebuild(trial)
            model.load_weights(path)
            return model

    def results(self) -> pd.DataFrame:
        """All trials: number, state, value, epochs, seconds, seed, program, plan, then each hyperparameter.

        A hyperparameter called like one of those columns is ``hp.NAME``.
        """
        return results_frame(self._require_study().trials)

    def trial(self, number: int) -> Trial:
        """One trial.

        Raises:
            StudyError: There is no trial of that number.
        """
        return self._require_study().trial(number)

    def history(self, number: int) -> dict[str, list[float]]:
        """Metric name -> one value per epoch, names as Keras has them."""
        return dict(self.trial(number).history)

    def enqueue(self, hparams: Mapping[str, Any]) -> None:
        """Tries these values next; the sampler chooses those not named."""
        self._enqueued.append(dict(hparams))

    def summary(self) -> dict[str, Any]:
        """What ``paceline search --json`` prints, for the last search."""
        return dict(self._summary)

    # -- helpers ---------------------------------------------------------------------------------------------------

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
        if batch is not None:
            keras_private.symbolic_build(model, data_module.shapes_from_json(batch))
        return model

    def _with_weights(self, number: int, weights: Any) -> Any:
        model = self._rebuild(self._require_study().trial(number))
        apply_weights(model, weights)
        return model


def _n_done(study: Study) -> int:
    """Trials that count for ``n_trials``: those a dead process left under way are tried again."""
    return sum(t.error != INTERRUPTED and t.state != "running" for t in study.trials)


def _why_fit(
    arguments: Mapping[str, Any], shuffle: Any, executor: str
) -> tuple[str | None, str | None]:
    """Why trials must run in Keras' ``fit``, or None; and the first argument that ``fit`` does not know."""
    known = {
        "callbacks",
        "initial_epoch",
        "steps_per_epoch",
        "validation_steps",
        "validation_freq",
    }
    for name in arguments:
        if name not in known:
            return None, name
    given = [name for name, value in arguments.items() if value is not None]
    if executor == "fit":
        return "executor='fit'", None
    if keras.backend.backend() != "jax":
        return f"Keras runs on {keras.backend.backend()}; packs need KERAS_BACKEND=jax", None
    if given:
        return f"{given[0]} is not supported in packs yet", None
    if shuffle not in (True, False):
        return f"shuffle={shuffle!r} is not supported in packs", None
    return None, None


def _unpack(validation: Any) -> tuple[Any, Any, Any]:
    if isinstance(validation, (tuple, list)) and len(validation) in (1, 2, 3):
        return (*validation, None, None, None)[:3]  # type: ignore[return-value]
    raise NotArrays("validation_data is no (x, y) tuple")


def _any_of(values: Sequence[Any], rng: Any) -> Any:
    return values[int(rng.integers(len(values)))]


def _to_stderr(text: str) -> None:
    print(f"paceline: {text}", file=sys.stderr)
