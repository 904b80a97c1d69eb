"""Data sets that come with scikit-learn and Keras; Talos loads others from servers."""

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


def mnist() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns handwritten digits, which Keras downloads once.

    Returns:
        x_train f32[60000, 28, 28, 1] in 0 to 1, y_train f64[60000, 10], x_val f32[10000, 28, 28,
        1], y_val f64[10000, 10].
    """
    import keras

    (x, y), (x_val, y_val) = keras.datasets.mnist.load_data()
    images = [np.asarray(part[..., None] / 255, "float32") for part in (x, x_val)]
    return images[0], np.eye(10)[y], images[1], np.eye(10)[y_val]
