"""What came of the searches on a study: trials, tables, models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.data.arrays import ArrayData, NotArrays, prepare
from paceline.data.folds import Fold
from paceline.errors import PacelineError, StudyError, UsageError
from paceline.report import formats
from paceline.report.notebook import tuner_html, tuner_text
from paceline.report.tables import column_names, hparam_names, results_frame
from paceline.search_space.html import HistoryTable, HparamsTable
from paceline.study.objectives import Objective
from paceline.study.study import Study
from paceline.study.trials.lineage import LineageSegment, line_of, schedule_of
from paceline.study.trials.table import TrialTable
from paceline.study.trials.trial import Trial
from paceline.tuner.arguments.arguments import whole_number
from paceline.tuner.arguments.config import TunerConfig
from paceline.tuner.arguments.initial_configurations import Configurations, read_configurations
from paceline.tuner.checkpoint.best_models import TrainedModels
from paceline.tuner.search.progress import to_stderr

if TYPE_CHECKING:
    import numpy as np
    import optuna
    import pandas as pd

    from paceline.report.html.subject import ReportSubject
    from paceline.report.plots import StudyPlots


class StudyResults:
    """What a ``Tuner`` tells of its study, which is opened when something is first asked."""

    def __init__(self, config: TunerConfig) -> None:
        self.name = config.study
        self._config = config
        self._notes: Callable[[str], None] = to_stderr
        self._study: Study | None = None
        self._models: TrainedModels | None = None
        self._enqueued: list[dict[str, Any]] = []
        self._summary: dict[str, Any] = {}
        self._folds: tuple[Fold, ...] = ()
        self._validation: ArrayData | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has, or a pickle: the arguments; the copy opens the study again."""
        return {**vars(self), "_study": None, "_models": None}

    def __repr__(self) -> str:
        # A repr opens no storage, which may be far away.
        return tuner_text(self.name, None if self._study is None else self._study.trials)

    def _repr_html_(self) -> str:
        return tuner_html(self.name, self._known_trials())

    def _known_trials(self) -> TrialTable | None:
        """The trials; None if the study is not there yet, or cannot be read."""
        try:
            return self._require_study().trials
        except PacelineError:
            return None

    @property
    def best_trial(self) -> Trial:
        """The trial with the best value in any epoch, of a study with one objective.

        Its ``state`` says whether it is complete. A trial that was stopped early or is unfinished
        is the best if no other trial has reached its value.

        Raises:
            StudyError: No trial has a value yet, or the study has several objectives; use
                ``pareto`` for these.
        """
        study = self._require_study()
        if study.trials.several:
            names = study.metadata.meta.get("objectives") or study.trials.directions
            raise StudyError(
                f"study: {self.name!r} has no best trial, because it has the objectives "
                f"{', '.join(names)}. Use pareto() to list the trials of the Pareto front, and "
                "best_model(number=N) for the model of a trial."
            )
        best = study.trials.best
        if best is None:
            if any(trial.violates and trial.value is not None for trial in study.trials):
                raise StudyError(
                    f"study: {self.name!r} has no best trial: each trial with a value violates a "
                    "constraint. Continue the search, or loosen the constraint."
                )
            raise StudyError(
                f"study: no trial of {self.name!r} has been validated for an epoch yet. Continue "
                "the search."
            )
        return best

    def pareto(self) -> list[Trial]:
        """The trials of the Pareto front: no other one is as good in every objective, and better
        in one.

        Each trial's ``values`` are in the order of the objectives. The trial that is best by the
        first objective comes first. With one objective, the list holds the best trial and its
        equals. ``best_model(number=N)`` returns the model of a trial, ``plot.pareto_front`` draws
        them.

        Raises:
            StudyError: There is no such study.
        """
        return self._require_study().trials.front

    @property
    def best_hparams(self) -> dict[str, Any]:
        """The hyperparameters of the best trial, by plain name, those that were active.

        Raises:
            StudyError: No trial has a value yet.
        """
        return HparamsTable(self.best_trial.hparams)

    def best_model(self, rank: int = 1, *, number: int | None = None) -> Any:
        """The model of the best trial, compiled, with the weights of its best epoch.

        With repeats or folds this is the model of the trial's first member, which has the trial's
        seed and leaves out the first fold. ``evaluate`` gives that member's value, not the mean.

        Args:
            rank: 1 for the best trial, 2 for the second best. Models of the best ``keep_best``
                trials are kept. A continuation without a better value shares the model of the trial
                that it continues, and has no rank.
            number: The number of a trial, in place of its rank: with several objectives one of
                ``pareto``, whose models are kept.

        Raises:
            StudyError: There is no such trial, its model is not kept, or the study has several
                objectives and ``number`` is missing.
            UsageError: ``rank`` is not an integer from 1.
        """
        whole_number(rank, "rank")
        if number is None:
            return self._model(self._ranked_trial(rank), rank)
        trial, trials = self.trial(number), self._require_study().trials
        if trials.several and trial not in trials.front:
            numbers = ", ".join(str(each.number) for each in trials.front) or "none"
            raise StudyError(
                f"study: trial {number} of {self.name!r} is not on the Pareto front, so its model "
                f"is not kept. Trials on the Pareto front: {numbers}."
            )
        return self._model(trial)

    def best_models(self, n: int) -> list[Any]:
        """The models of the ``n`` best trials, the best first, as ``best_model`` makes them.

        Args:
            n: How many; at most ``keep_best``.

        Raises:
            StudyError: As from ``best_model``.
            UsageError: ``n`` is not an integer from 1.
        """
        whole_number(n, "n")
        self._ranked_trial(n)
        return [self._model(self._ranked_trial(rank), rank) for rank in range(1, n + 1)]

    def ensemble(self, k: int = 5, *, validation_data: Any = None) -> Any:
        """One model that returns the mean prediction of several trials' models.

        One half of the validation data selects models, with replacement, among the ``keep_best``
        best ones. A note and the report name their trials, and the values of the ensemble and the
        best single model on the other half.

        Args:
            k: Models of the ensemble at most, repeated ones included.
            validation_data: ``(x, y)`` or ``(x, y, sample_weight)``; None: those of the last search
                of this tuner.

        Returns:
            A ``keras.Model``, compiled as the best model.

        Raises:
            UsageError: Fewer than two models are kept, the data are missing or not arrays, or these
                models cannot be combined.
            StudyError: As from ``best_model``.
        """
        from paceline.study.ensemble_record import write_ensemble
        from paceline.tuner.after.ensemble import make_ensemble, worth_of

        k = whole_number(k, "k")
        if validation_data is None and self._folds:
            raise UsageError(
                "ensemble: with folds, each model was trained on validation data of others. Pass "
                "validation_data=(x, y) that no fold was trained on."
            )
        data = self._validation if validation_data is None else _arrays(validation_data)
        if data is None:
            raise UsageError(
                "ensemble: this search had no validation data in arrays that are the same for all "
                "trials. Pass validation_data=(x, y)."
            )
        if self._require_study().trials.several:
            self.best_trial  # noqa: B018 - which says what there is instead
        kept = min(self._config.keep_best, len(self._require_study().trials.ranked_models))
        if kept < 2:
            raise UsageError(
                f"ensemble: only {kept} model is kept, but an ensemble needs several. Search with "
                "Tuner(keep_best=10), or `paceline search --keep-best 10`."
            )
        numbers = [self._ranked_trial(rank).number for rank in range(1, kept + 1)]
        models = list(zip(numbers, self.best_models(kept), strict=True))
        meta = self._require_study().metadata.meta
        objective = Objective(meta["objective"], meta["direction"])
        model, record = make_ensemble(models, data, objective, k, self._config.seed)
        self._tell(worth_of(record))
        try:
            write_ensemble(self._config.folder, record)
        except OSError as error:  # the model exists anyway
            self._tell(f"the report will not show this ensemble: {error}")
        return model

    def _model(self, trial: Trial, rank: int = 1) -> Any:
        self._require_study()
        assert self._models is not None
        return self._models.model(trial, self._tell, rank=rank)

    def _ranked_trial(self, rank: int) -> Trial:
        if rank == 1 or self._require_study().trials.several:
            return self.best_trial
        trials = self._require_study().trials.ranked_models
        if rank > len(trials):
            ranked = formats.count(len(trials), "trial")
            raise StudyError(
                f"study: {self.name!r} has {ranked} with a value of "
                f"{'its' if len(trials) == 1 else 'their'} own, so there is no model of rank "
                f"{rank}. Ask for fewer, or train more trials."
            )
        return trials[rank - 1]

    def results(self) -> pd.DataFrame:
        """All trials, a row each.

        Returns:
            First come value (or one column for each objective), with repeats or folds value_std,
            and one column for each hyperparameter. Then come number, state, best_epoch, epochs,
            train_seconds, seed, program_id and plan. If a trial has failed, was rejected or was
            stopped by hand, reason says why. A hyperparameter with the name of another column has
            ``hp.NAME``. ``train_seconds`` is the trial's share of its pack's time for training and
            validation.

        Raises:
            StudyError: There is no such study.
        """
        study = self._require_study()
        return results_frame(study.trials, study.metadata.meta.get("objectives", ()))

    def trial(self, number: int) -> Trial:
        """One trial.

        Args:
            number: Its number in the study, from 0.

        Raises:
            StudyError: There is no trial of that number.
        """
        return self._require_study().trials.by_number(number)

    @property
    def folds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The folds of the last search, each as two arrays of integers.

        One holds the numbers of the examples that the fold trains on, from 0, the other those that
        it is validated on. Empty without ``folds``.
        """
        return [(fold.train.copy(), fold.validation.copy()) for fold in self._folds]

    def history(self, number: int) -> dict[str, list[float]]:
        """The logs of one trial: metric name -> one value per epoch, with members the mean.

        Names are as Keras has them. A dict, which a notebook shows as a table.

        NaN in epochs without validation, which Keras' history leaves out. A metric that is an array
        has its mean under its name, and each number under ``NAME_0``, ``NAME_1`` and so on.

        Args:
            number: The trial's number in the study, from 0.

        Raises:
            StudyError: There is no trial of that number.
        """
        return HistoryTable(self.trial(number).history)

    def lineage(self, number: int | None = None) -> pd.DataFrame:
        """The trials that a trial continues, under ``pruner="pbt"``, the oldest first.

        Args:
            number: The trial's number; None: the best one's.

        Returns:
            One row for each trial: its number, its first and last epoch (from 1), the objective at
            the last one (value), and its hyperparameters. A hyperparameter with the name of another
            column has ``hp.NAME``.

        Raises:
            StudyError: There is no such trial, or none is complete.
        """
        import pandas as pd

        rows = []
        objective, line = self._objective_of_study(), self._line(number)
        hparams = hparam_names(each.trial for each in line)
        columns = column_names(hparams, ("number", "first_epoch", "last_epoch", "value"))
        for each in line:
            values = each.trial.history.get(objective, [])
            value = values[each.last - 1] if 0 < each.last <= len(values) else None
            row = {"number": each.trial.number, "first_epoch": each.first, "last_epoch": each.last}
            chosen = {columns[name]: of for name, of in each.trial.hparams.items()}
            rows.append({**row, "value": value, **chosen})
        return pd.DataFrame(rows)

    def schedule(self, number: int | None = None) -> pd.DataFrame:
        """The hyperparameters that the weights of a trial were trained with, epoch by epoch.

        Most trials have one configuration. Under ``pruner="pbt"`` it changes on the way, and the
        schedule is what was learnt; ``paceline.ReplaySchedule`` trains a model by it.

        Args:
            number: The trial's number; None: the best one's.

        Returns:
            One row for each epoch, the epoch (from 1) as index, and a column for each
            hyperparameter.

        Raises:
            StudyError: There is no such trial, or none is complete.
        """
        import pandas as pd

        rows = schedule_of(self._line(number))
        index = pd.RangeIndex(1, len(rows) + 1, name="epoch")
        return pd.DataFrame([dict(row) for row in rows], index=index)

    def _line(self, number: int | None) -> list[LineageSegment]:
        trial = self.best_trial if number is None else self.trial(number)
        return line_of(trial, self._require_study().trials.get)

    def _objective_of_study(self) -> str:
        return str(self._require_study().metadata.meta.get("objective"))

    @property
    def plot(self) -> StudyPlots:
        """The study's figures, such as ``plot.history()``, ``importances`` and ``parallel``.

        Raises:
            StudyError: There is no such study.
        """
        from paceline.report.plots import StudyPlots

        study = self._require_study()
        objective = str(study.metadata.meta.get("objective") or "value")
        several = study.metadata.meta.get("objectives", ())
        return StudyPlots(
            self.optuna_study(), study.trials, objective, self._config.folder, several
        )

    def report(self, path: str | Path = "report.html", *, compare: str | None = None) -> Path:
        """Writes a report of the study: one HTML page that needs no other file and no network.

        Args:
            path: An .html file in a folder that is there; an earlier report is replaced.
            compare: Another study of the same storage to put beside it.

        Returns:
            The path.

        Raises:
            StudyError: There is no such study.
            StorageError: The storage cannot be read.
            UsageError: The file cannot be written, or is there and no report.
        """
        from paceline.report.html.page import check_path, write_report

        target = check_path(path)
        other = None
        if compare is not None:
            config = replace(self._config, study=compare)
            other = StudyResults(config)._subject()
        write_report(target, self._subject(), other)
        return target

    def _subject(self) -> ReportSubject:
        """The study as reports and plots take it."""
        from paceline.report.html.subject import ReportSubject

        study = self._require_study()
        frozen = self.optuna_study().get_trials(deepcopy=False)
        return ReportSubject.beside(
            self._config.folder, study.name, study.metadata.meta, study.trials, frozen
        )

    def enqueue(self, hparams: Configurations) -> None:
        """Tries these values next; the sampler chooses those not named.

        Args:
            hparams: Name -> value, or a list of such dicts. Or a DataFrame with a column for each
                hyperparameter and a row for each configuration, such as ``results()`` of another
                study. The sampler chooses missing cells.

        Raises:
            SpaceError: It is nothing of the kind, or names no hyperparameter.
        """
        self._enqueued.extend(read_configurations(hparams))

    def optuna_study(self) -> optuna.Study:
        """The study as Optuna's own object.

        Raises:
            StudyError: There is no such study.
            StorageError: The storage cannot be read.
        """
        return self._require_study().optuna_study()

    def summary(self) -> dict[str, Any]:
        """What ``paceline search --json`` prints, for the last search."""
        return dict(self._summary)

    def _tell(self, text: str) -> None:
        """Tells the user, by the live view or the function that is in use at the moment."""
        self._notes(text)

    def _require_study(self) -> Study:
        if self._study is None:
            config = self._config
            study = Study(self.name, storage=config.storage, directory=config.directory)
            if not study.exists:
                raise StudyError(f"study: there is no study {self.name!r} yet. Run search first.")
            self._study = study
            self._models = TrainedModels(
                study, config.builder, config.folder, config.keep_best, config.precision
            )
        return self._study


def _arrays(validation_data: Any) -> ArrayData:
    """Validation data as a user gives them."""
    if not isinstance(validation_data, (tuple, list)) or len(validation_data) not in (2, 3):
        raise UsageError("validation_data must be (x, y) or (x, y, sample_weight).")
    try:
        return prepare(*validation_data, what="validation data")
    except NotArrays as reason:
        raise UsageError(f"validation_data must be arrays, but {reason}.") from None
