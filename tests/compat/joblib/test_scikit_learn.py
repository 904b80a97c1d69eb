"""scikit-learn on the backend "paceline" returns what it returns on joblib's sequential one."""

from __future__ import annotations

import warnings
from typing import Any

import joblib
import keras
import numpy as np
import pytest
from keras.wrappers import SKLearnClassifier, SKLearnRegressor
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier, BaggingRegressor, VotingClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401 - it changes sklearn
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    permutation_test_score,
    validation_curve,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from marks import slow_where
from paceline.compat.interception.shared_steps import steps_shared
from paceline.compat.joblib import backend
from toys import CLASSES, data

X, Y = data(48, seed=1)
HEIGHTS = X.sum(axis=1)
FIT = {"epochs": 2, "batch_size": 16, "verbose": 0}
RATES = [{"rate": 0.01}, {"rate": 0.1}]


def make(X: Any, y: Any, rate: float = 0.05, units: int = 4) -> keras.Model:
    """A model that decides its weights, and the order of its examples, itself."""
    keras.utils.set_random_seed(7)
    if rate > 1:
        raise ValueError("rate is above 1")
    classes = CLASSES if y.ndim == 2 and y.shape[1] > 1 else 1
    model = keras.Sequential([keras.Input((X.shape[1],)), keras.layers.Dense(units, "relu")])
    model.add(keras.layers.Dense(classes, "softmax" if classes > 1 else None))
    loss = "categorical_crossentropy" if classes > 1 else "mse"
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


class Classifier(SKLearnClassifier):
    """A user's class: clones keep the arguments of ``fit``, and ``predict`` shows no bar."""

    def fit(self, X: Any, y: Any, **arguments: Any) -> Any:
        self.n_fits_ = getattr(self, "n_fits_", 0) + 1
        return super().fit(X, y, **{**FIT, **arguments})

    def predict(self, X: Any) -> Any:
        return self._reverse_process_target(self.model_.predict(X, verbose=0))

    def decision_function(self, X: Any) -> Any:
        return self.model_.predict(X, verbose=0)


class Regressor(SKLearnRegressor):
    """As ``Classifier``."""

    def fit(self, X: Any, y: Any, **arguments: Any) -> Any:
        return super().fit(X, y, **{**FIT, **arguments})

    def predict(self, X: Any) -> Any:
        return self._reverse_process_target(self.model_.predict(X, verbose=0))


@pytest.fixture(autouse=True)
def stock_tags():
    """Keras 3.15 asks for tags in a way that scikit-learn 1.9 warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning, module="sklearn|keras")
        yield


@pytest.fixture
def plans(monkeypatch):
    """The plan of each fit in a job, in the order in which jobs end."""
    found: list[str] = []
    tell = backend._JobRun._tell

    def told(run, job):
        found.extend(fit.plan for fit in job.outcome.fits)
        tell(run, job)

    monkeypatch.setattr(backend._JobRun, "_tell", told)
    return found


def search(kind: Any, grid: Any, **arguments: Any) -> dict[str, Any]:
    made = kind(Classifier(make), grid, cv=2, **arguments).fit(X, Y)
    predicted = made.best_estimator_.predict(X)
    found = {k: v for k, v in made.cv_results_.items() if not k.endswith("_time")}
    return found | {"best": made.best_params_, "predicted": predicted}


def grid() -> Any:
    return search(GridSearchCV, {"model_kwargs": RATES}, return_train_score=True)


def randomized() -> Any:
    rates = {"model_kwargs": [{"rate": rate} for rate in np.geomspace(0.001, 0.1, 9)]}
    return search(RandomizedSearchCV, rates, n_iter=3, random_state=3)


def halving_grid() -> Any:
    grid = {"model_kwargs": [*RATES, {"rate": 0.05}]}
    return search(HalvingGridSearchCV, grid, min_resources=24, random_state=1)


def halving_random() -> Any:
    rates = {"model_kwargs": [{"rate": rate} for rate in np.geomspace(0.001, 0.1, 9)]}
    return search(HalvingRandomSearchCV, rates, min_resources=24, random_state=1)


def pipeline() -> Any:
    steps = make_pipeline(StandardScaler(), Classifier(make))
    grid = {"classifier__model_kwargs": RATES}
    made = GridSearchCV(steps, grid, cv=2, refit=False).fit(X, Y)
    return {k: v for k, v in made.cv_results_.items() if not k.endswith("_time")}


def scores() -> Any:
    return cross_val_score(Classifier(make), X, Y, cv=3)


def regressor() -> Any:
    found = cross_validate(
        Regressor(make), X, HEIGHTS, cv=2, scoring=["r2", "neg_mean_squared_error"]
    )
    return {k: v for k, v in found.items() if not k.endswith("_time")}


def predicted() -> Any:
    return cross_val_predict(Classifier(make), X, Y, cv=2, method="decision_function")


def curves() -> Any:
    one = learning_curve(Classifier(make), X, Y, cv=2, train_sizes=[0.5, 1.0])
    other = validation_curve(
        Classifier(make), X, Y, cv=2, param_name="model_kwargs", param_range=RATES
    )
    return one, other


def permuted() -> Any:
    return permutation_test_score(Classifier(make), X, Y, cv=2, n_permutations=2, random_state=0)


def bagging() -> Any:
    bag = BaggingClassifier(Classifier(make), n_estimators=3, random_state=2).fit(X, Y)
    trees = [each.model_.get_weights() for each in bag.estimators_]
    return bag.predict(X), bag.estimators_samples_, trees


def bagged_regressors() -> Any:
    bag = BaggingRegressor(Regressor(make), n_estimators=2, random_state=2).fit(X, HEIGHTS)
    return bag.predict(X)


def voting() -> Any:
    members = [(str(kwargs), Classifier(make, model_kwargs=kwargs)) for kwargs in RATES]
    return VotingClassifier(members).fit(X, Y).predict(X)


def nested() -> Any:
    inner = GridSearchCV(Classifier(make), {"model_kwargs": RATES}, cv=2)
    return cross_val_score(inner, X, Y, cv=2)


def bag_in_a_search() -> Any:
    bag = BaggingClassifier(Classifier(make), random_state=2)
    made = GridSearchCV(bag, {"n_estimators": [1, 2]}, cv=2, refit=False).fit(X, Y)
    return made.cv_results_["mean_test_score"]


def one_by_one(function: Any) -> Any:
    with steps_shared():  # bit for bit the same, and sooner
        return function()


def packed(function: Any) -> Any:
    with joblib.parallel_config(backend="paceline"):
        return function()


def assert_same(one: Any, there: Any) -> None:
    if isinstance(there, dict):
        assert list(one) == list(there)
        one, there = list(one.values()), list(there.values())
    if isinstance(there, (list, tuple)):
        for part, part_there in zip(one, there, strict=True):
            assert_same(part, part_there)
    elif isinstance(there, np.ndarray) and there.dtype.kind == "f":
        np.testing.assert_allclose(one, there, 1e-4, 1e-5)
    else:
        np.testing.assert_array_equal(one, there)


#: Function -> fits that train in jobs.
WAYS = {
    grid: 4,
    bagging: 3,
    nested: 10,
    randomized: 6,
    halving_grid: 6,
    halving_random: 4,
    pipeline: 4,
    scores: 3,
    regressor: 2,
    predicted: 2,
    curves: 8,
    permuted: 4,
    bagged_regressors: 2,
    voting: 2,
    bag_in_a_search: 6,
}
QUICK = (grid, bagging)


@pytest.mark.parametrize("way", slow_where(WAYS, lambda way: way not in QUICK))
def test_it_returns_what_it_returns_without_us(way, plans, capfd):
    expected = one_by_one(way)
    assert plans == []
    assert_same(packed(way), expected)
    assert plans == ["vectorized"] * WAYS[way]
    assert "one at a time" not in capfd.readouterr().err


def test_a_fit_that_fails_has_the_error_score(plans):
    rates = {"model_kwargs": [{"rate": 0.1}, {"rate": 2.0}]}
    made = GridSearchCV(Classifier(make), rates, cv=2, refit=False)
    warnings.filterwarnings("ignore", "One or more of the test scores")  # put back by a fixture
    with pytest.warns(FitFailedWarning, match="rate is above 1"):
        packed(lambda: made.fit(X, Y))
    assert np.isnan(made.cv_results_["mean_test_score"]).tolist() == [False, True]
    assert plans == ["vectorized"] * 2
    made = clone(made).set_params(error_score="raise")
    with pytest.raises(ValueError, match="rate is above 1"):
        packed(lambda: made.fit(X, Y))


def test_keras_own_classes_with_arguments_of_fit(plans):
    def fitted():
        made = GridSearchCV(SKLearnClassifier(make), {"model_kwargs": RATES}, cv=2, refit=False)
        return made.fit(X, Y, **FIT).cv_results_["mean_test_score"]

    expected = one_by_one(fitted)
    assert_same(packed(fitted), expected)
    assert plans == ["vectorized"] * 4


def test_a_callback_for_all_fits_is_one_for_each(plans, capfd):
    def fitted():
        stop = keras.callbacks.EarlyStopping("loss", patience=1, min_delta=0.2)
        searched = GridSearchCV(Classifier(make), {"model_kwargs": RATES}, cv=2, refit=False)
        searched.fit(X, Y, epochs=6, callbacks=[stop])
        return searched.cv_results_["mean_test_score"], stop.stopped_epoch, stop.best

    expected = one_by_one(fitted)
    assert_same(packed(fitted), expected)
    assert expected[1] > 0  # the last fit was stopped
    assert plans == ["vectorized"] * 4
    assert "one at a time" not in capfd.readouterr().err


def test_a_callback_that_remembers_makes_fits_run_one_at_a_time(plans, capfd, tmp_path):
    def fitted():
        keep = keras.callbacks.ModelCheckpoint(
            tmp_path / "best.keras", monitor="loss", save_best_only=True
        )
        searched = GridSearchCV(Classifier(make), {"model_kwargs": RATES}, cv=2, refit=False)
        searched.fit(X, Y, callbacks=[keep])
        return searched.cv_results_["mean_test_score"], keep.best

    expected = one_by_one(fitted)
    assert_same(packed(fitted), expected)
    assert "ModelCheckpoint" in capfd.readouterr().err
