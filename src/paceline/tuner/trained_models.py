"""The trained models of a study: made again from ``build(hp)`` and the weights that are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from paceline.data import arrays as data_module
from paceline.errors import StudyError
from paceline.executor.model_builder import ModelBuilder
from paceline.executor.process import search_process
from paceline.program import keras_private
from paceline.search_space import HyperParameters
from paceline.study.study import Study
from paceline.study.trial import Trial
from paceline.study.trials import rank
from paceline.tuner.checkpoint.best_models import FOLDER, BestModels, apply_weights, find_saved
from paceline.tuner.checkpoint.last_variables import LastVariables


class TrainedModels:
    """Makes models of a study's trials.

    Args:
        study: The study; its direction is known.
        builder: Builds its models.
        folder: Where models are kept.
        keep: How many of the best are kept.
        precision: As the tuner has it.
        whole: The study's folder, where ``folder`` is that of one of its workers.

    Attributes:
        best: The weights of the best trials.
        ends: Their variables at their ends.
    """

    def __init__(
        self,
        study: Study,
        builder: ModelBuilder,
        folder: Path,
        keep: int,
        precision: str | None,
        whole: Path | None = None,
    ) -> None:
        self._study, self._builder, self._precision = study, builder, precision
        self._folder, self._whole = folder / FOLDER, whole or folder
        self._said: str | None = None
        values = {
            trial.number: trial.value
            for trial in study.trials
            if trial.state == "complete" and trial.value is not None
        }
        self.best: Any = BestModels(self._folder, keep, study.trials.direction)
        if not study.resumed:  # else some that have ended are under way again
            self.best.expect(values)
        if (searchers := study.strategy.trial_weights()) is not None:
            self.best = searchers
        assert study.trials.direction is not None
        self.ends = LastVariables(
            folder / "ends",
            keep,
            partial(rank, direction=study.trials.direction),
            values,
        )

    def model(self, trial: Trial) -> Any:
        """A trial's model, compiled, with the weights of its best epoch.

        Raises:
            StudyError: Its saved weights are gone, or do not fit what build makes now.
        """
        weights = self.best.weights(trial.number)
        with search_process(self._precision):
            if weights is not None:
                return self._with_weights(trial.number, weights)
            path = self.best.weights_path(trial.number)
            path = path or find_saved(self._whole, trial.number, trial.value)
            if path is None:
                raise StudyError(
                    f"study: the saved model of trial {trial.number} is not in {self._folder}, or "
                    "it was changed there; train it again with "
                    "build(paceline.HyperParameters(values=tuner.best_hparams))."
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

    def save(self, note: Callable[[str], None]) -> str | None:
        """Writes the best models that are not on disk yet.

        Args:
            note: As in ``BestModels.save``; told also, once, that there is no room for them.

        Returns:
            Why they cannot be written; they stay in memory then.
        """
        try:
            self.best.save(self._with_weights, note)
            self.ends.save()
        except OSError as error:
            why = f"the best model cannot be saved in {self._folder}: {error.strerror or error}"
            if why != self._said:
                self._said = why
                note(f"{why}; the search goes on, and tries again")
            return why
        return None

    def _rebuild(self, trial: Trial) -> Any:
        model = self._builder(HyperParameters(values=trial.hparams), trial.seed)
        batch = self._study.metadata.meta.get("batch")
        if model.built:
            model.optimizer.build(model.trainable_variables)  # its state is saved with the model
        elif batch is not None:
            keras_private.symbolic_build(model, data_module.shapes_from_json(batch))
        return model

    def _with_weights(self, number: int, weights: Any) -> Any:
        model = self._rebuild(self._study.trials.by_number(number))
        apply_weights(model, weights)
        return model
