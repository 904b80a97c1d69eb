"""A tuner that cross-validates models of scikit-learn."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.compat.interception import check_concurrent
from paceline.compat.keras_tuner.engine.base_tuner import BaseTuner
from paceline.compat.keras_tuner.engine.oracle import Oracle
from paceline.compat.keras_tuner.engine.trial import Trial
from paceline.compat.keras_tuner.errors import ProjectError


class SklearnTuner(BaseTuner):
    """A tuner that searches the hyperparameters of scikit-learn models.

    The model of a trial, trained on the last fold, is kept in memory. Files of scikit-learn models
    are pickles, and reading a pickle can run code.

    Args:
        oracle: An oracle with the objective ``Objective("score", "max")``.
        hypermodel: A function ``build(hp)`` that returns a model, or a ``HyperModel``.
        scoring: ``scoring(model, x, y, sample_weight=)``; None: the ``score`` of the model.
        metrics: Functions ``metric(y, predicted, sample_weight=)``, reported with the score.
        cv: A splitter of scikit-learn; None: 5 folds, shuffled.
        **kwargs: Arguments of ``BaseTuner``. ``concurrent`` of other tuners has no effect here:
            models of scikit-learn train one after another.

    Raises:
        UsageError: ``concurrent`` is not True, False or None.
    """

    def __init__(
        self,
        oracle: Oracle,
        hypermodel: Any,
        scoring: Callable[..., Any] | None = None,
        metrics: Any = None,
        cv: Any = None,
        **kwargs: Any,
    ) -> None:
        check_concurrent(kwargs.pop("concurrent", None))
        super().__init__(oracle, hypermodel, **kwargs)
        from sklearn.model_selection import KFold

        self.scoring = scoring
        listed = metrics if isinstance(metrics, list | tuple) else [metrics]
        self.metrics = [metric for metric in listed if metric is not None]
        self.cv = cv or KFold(5, shuffle=True, random_state=1)
        self._models: dict[str, Any] = {}

    def search(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> None:  # noqa: N803
        """Runs trials until the oracle stops.

        Args:
            X: Features [N, ...]: an array or a DataFrame.
            y: Targets [N, ...].
            sample_weight: Weights of the examples [N]; None: all are 1.
            groups: Groups of the examples [N], for splitters that use them.
        """
        super().search(X, y, sample_weight=sample_weight, groups=groups)

    def run_trial(
        self,
        trial: Trial,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        groups: Any = None,
    ) -> dict[str, Any]:
        """Trains a model on each fold; returns the means of the score and of each metric.

        The arguments after the trial are those of ``search``.
        """
        found: dict[str, list[Any]] = defaultdict(list)
        model = None
        for train, test in self.cv.split(X, y, **({} if groups is None else {"groups": groups})):
            model = self.hypermodel.build(trial.hyperparameters)
            known = inspect.signature(model.fit).parameters
            weights = _part(sample_weight, train)
            weighted = {"sample_weight": weights} if "sample_weight" in known else {}
            model.fit(_part(X, train), _part(y, train), **weighted)
            x_test, y_test, weights = _part(X, test), _part(y, test), _part(sample_weight, test)
            score = model.score if self.scoring is None else self.scoring
            of = () if self.scoring is None else (model,)
            found["score"].append(score(*of, x_test, y_test, sample_weight=weights))
            predicted = model.predict(x_test) if self.metrics else None
            for metric in self.metrics:
                value = metric(y_test, predicted, sample_weight=weights)
                found[metric.__name__].append(value)
        self.save_model(trial.trial_id, model)
        return {name: np.mean(values) for name, values in found.items()}

    def save_model(self, trial_id: str, model: Any, step: int = 0) -> None:
        """Keeps the model of a trial in memory."""
        self._models[trial_id] = model

    def load_model(self, trial: Trial) -> Any:
        """Returns the model of a trial.

        Raises:
            ProjectError: Another process trained the model.
        """
        if trial.trial_id not in self._models:
            raise ProjectError(
                f"the model of trial {trial.trial_id} was trained by another process. Paceline "
                "reads no pickles, so build the model with "
                "`tuner.hypermodel.build(trial.hyperparameters)` and fit it."
            )
        return self._models[trial.trial_id]


def _part(data: Any, rows: np.ndarray) -> Any:
    """Some rows of an array or a DataFrame; TypeError for other data."""
    if data is None:
        return None
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if isinstance(data, np.ndarray):
        return data[rows]
    raise TypeError(
        f"Expected the data to be numpy.ndarray or pandas.DataFrame. Received: {type(data)}."
    )
