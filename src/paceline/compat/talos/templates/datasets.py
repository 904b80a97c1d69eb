"""Data sets for templates.

``iris`` and ``breast_cancer`` come with scikit-learn, ``mnist`` with Keras. Talos downloads the
others. Here they are random numbers from a fixed seed, in the shape of these data sets. They are
enough to run a notebook or a test, but no real data.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]


def iris() -> Arrays:
    """Returns 150 flowers of three kinds: x f64[150, 4]; y f64[150, 3], a column for each kind."""
    from sklearn.datasets import load_iris

    data: Any = load_iris()
    return data.data, np.eye(3)[data.target]


def breast_cancer() -> Arrays:
    """Returns 569 tumours, benign or not: x f64[569, 30], columns with mean 0; y i64[569]."""
    from sklearn.datasets import load_breast_cancer

    data: Any = load_breast_cancer()
    x = data.data
    return (x - x.mean(axis=0)) / x.std(axis=0), data.target


def titanic() -> Arrays:
    """Returns random passengers: x f64[891, 21]; y i64[891], 1 in four of ten.

    Columns: age, siblings, parents; then 18 columns of 0 and 1 for class, town, who, deck and sex.
    """
    rng = np.random.default_rng(1912)
    n = 891
    numbers = [rng.uniform(1, 75, n).round(), rng.integers(0, 6, n), rng.integers(0, 5, n)]
    kinds = [np.eye(width)[rng.integers(0, width, n)] for width in (3, 3, 3, 7, 2)]
    x = np.column_stack([*numbers, *kinds]).astype(float)
    return x, _labels(x, 0.4, rng)


def cervical_cancer() -> Arrays:
    """Returns random patients: x f64[668, 30], numbers and flags; y i64[668], 1 in one of ten."""
    rng = np.random.default_rng(858)
    n = 668
    numbers = rng.gamma(2.0, 2.0, (n, 8)).round(1)
    flags = (rng.random((n, 22)) < 0.15).astype(float)
    x = np.column_stack([numbers, flags])
    return x, _labels(x, 0.1, rng)


def icu_mortality(samples: int | None = None) -> Arrays:
    """Returns N random patients, by default 3500: x f64[N, 40]; y i64[N], 1 in one of six."""
    rng = np.random.default_rng(40)
    x = rng.normal(size=(3500, 40))
    y = _labels(x, 1 / 6, rng)
    return x[:samples], y[:samples]


def telco_churn(quantile: float = 0.5) -> tuple[np.ndarray, list[np.ndarray]]:
    """Returns random results of a scan with two targets: x f64[2000, 30]; y two of [2000].

    Targets say which results are in the best ``quantile``; 0: they are numbers.
    """
    rng = np.random.default_rng(30)
    x = np.column_stack([np.eye(5)[rng.integers(0, 5, 2000)] for _ in range(6)])
    loss, score = (_scores(x, rng) for _ in range(2))
    if quantile <= 0:
        return x, [loss, score]
    low, high = np.quantile(loss, quantile), np.quantile(score, quantile)
    return x, [(loss < low).astype(int), (score > high).astype(int)]


def _labels(x: np.ndarray, share: float, rng: np.random.Generator) -> np.ndarray:
    """Labels that models can partly predict: 1 for the given share of the rows."""
    scores = _scores(x, rng)
    return (scores > np.quantile(scores, 1 - share)).astype(int)


def _scores(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A weighted sum of the columns, f64[N], and as much noise."""
    scaled = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)
    clean = scaled @ rng.normal(size=x.shape[1])
    return clean / clean.std() + rng.normal(size=len(x))


def mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns x_train, y_train, x_val, y_val: handwritten digits, which Keras downloads once.

    x is f32[N, 28, 28, 1] in 0 to 1, y is f64[N, 10]; N is 60000 and 10000.
    """
    import keras

    (x, y), (x_val, y_val) = keras.datasets.mnist.load_data()
    images = [np.asarray(part[..., None] / 255, "float32") for part in (x, x_val)]
    return images[0], np.eye(10)[y], images[1], np.eye(10)[y_val]
