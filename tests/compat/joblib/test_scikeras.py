"""SciKeras' wrapper on the backend "paceline"; `make test-compat` has SciKeras, `make test` not."""

from __future__ import annotations

import warnings

import joblib
import keras
import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from paceline.compat.joblib import backend
from toys import data

wrappers = pytest.importorskip("scikeras.wrappers")
X, Y = data(48, seed=1)


def make(meta, rate=0.01):
    layers = [keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.2)]
    regression = meta["target_type_"] == "continuous"
    output = keras.layers.Dense(*(1,) if regression else (meta["n_classes_"], "softmax"))
    model = keras.Sequential([keras.Input((meta["n_features_in_"],)), *layers, output])
    loss = "mse" if regression else "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(rate), loss)
    return model


@pytest.mark.parametrize("kind", ["KerasClassifier", "KerasRegressor"])
def test_random_state_gives_the_results_of_the_sequential_backend(kind, monkeypatch):
    y, predict = (Y, "predict_proba") if kind == "KerasClassifier" else (X.sum(1), "predict")
    plans = []
    tell = backend._JobRun._tell

    def told(run, job):
        plans.extend(fit.plan for fit in job.outcome.fits)
        tell(run, job)

    def searched():
        model = getattr(wrappers, kind)(make, random_state=3, epochs=2, batch_size=16, verbose=0)
        search = GridSearchCV(model, {"model__rate": [0.01, 0.1]}, cv=2).fit(X, y)
        scores = search.cv_results_["mean_test_score"]
        return scores, getattr(search, predict)(X), search.best_params_

    monkeypatch.setattr(backend._JobRun, "_tell", told)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciKeras' own, of newer releases of scikit-learn
        expected = searched()
        with joblib.parallel_config(backend="paceline"):
            found = searched()
    assert plans == ["vectorized"] * 4
    assert found[2] == expected[2]
    for one, there in zip(found[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one, there, 1e-4, 1e-5)
