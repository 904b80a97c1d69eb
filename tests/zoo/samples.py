"""Seeded data for the catalogue: each function is ``(n, seed) -> (x, y[, sample_weight])``.

Inputs carry something to learn, so that losses and metrics move. Values are float32, which float64
represents exactly: the float64 runs see the same data.
"""

from __future__ import annotations

import numpy as np

N_CLASSES = 4
N_WORDS = 20


def _classes(features: np.ndarray, seed: int = 7) -> np.ndarray:
    """Labels int32[N] from a fixed linear map of features[N, F], so that they can be learnt."""
    weights = np.random.default_rng(seed).normal(size=(features.shape[1], N_CLASSES))
    return np.argmax(features @ weights, axis=1).astype("int32")


def one_hot(labels: np.ndarray) -> np.ndarray:
    """int[N] to float32[N, N_CLASSES]."""
    return np.eye(N_CLASSES, dtype="float32")[labels]


def vectors(n: int, seed: int) -> tuple:
    """x f32[n, 12] in about -3..3, y int32[n] in 0..3."""
    x = np.random.default_rng(seed).normal(size=(n, 12)).astype("float32")
    return x, _classes(x)


def vectors_one_hot(n: int, seed: int) -> tuple:
    """x f32[n, 12], y f32[n, 4] one-hot."""
    x, y = vectors(n, seed)
    return x, one_hot(y)


def vectors_binary(n: int, seed: int) -> tuple:
    """x f32[n, 12], y f32[n, 1] of 0 and 1."""
    x, y = vectors(n, seed)
    return x, (y % 2).astype("float32")[:, None]


def vectors_weighted(n: int, seed: int) -> tuple:
    """vectors with sample weights f32[n] in 0.2..2, some of them 0."""
    x, y = vectors(n, seed)
    weight = np.random.default_rng(seed + 100).uniform(0.2, 2.0, size=n).astype("float32")
    weight[::9] = 0.0
    return x, y, weight


def regression(n: int, seed: int) -> tuple:
    """x f32[n, 12], y f32[n, 2] around 0."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 12)).astype("float32")
    w = np.random.default_rng(8).normal(size=(12, 2)) / 3
    return x, (np.tanh(x @ w) + 0.1 * rng.normal(size=(n, 2))).astype("float32")


def counts(n: int, seed: int) -> tuple:
    """x f32[n, 12], y f32[n, 1] of counts 0, 1, 2, ... for the Poisson loss."""
    x, y = vectors(n, seed)
    return x, y.astype("float32")[:, None]


def images(n: int, seed: int) -> tuple:
    """x f32[n, 8, 8, 2] in 0..1, y int32[n]: each class is bright in another quarter."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, N_CLASSES, size=n).astype("int32")
    x = rng.uniform(0.0, 0.6, size=(n, 8, 8, 2)).astype("float32")
    for image, label in zip(x, y, strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[row : row + 4, column : column + 4] += 0.4
    return x, y


def images_uint8(n: int, seed: int) -> tuple:
    """The same as uint8[n, 8, 8, 2] in 0..255."""
    x, y = images(n, seed)
    return (x * 255).astype("uint8"), y


def segments(n: int, seed: int) -> tuple:
    """x f32[n, 6, 6, 2], y int32[n, 6, 6]: a class for every pixel."""
    x = np.random.default_rng(seed).normal(size=(n, 6, 6, 2)).astype("float32")
    return x, ((x[..., 0] > 0) + 2 * (x[..., 1] > 0)).astype("int32")


def series(n: int, seed: int) -> tuple:
    """x f32[n, 7, 3], y int32[n]; the class follows the mean over time."""
    x = np.random.default_rng(seed).normal(size=(n, 7, 3)).astype("float32")
    return x, _classes(x.mean(axis=1))


def series_padded(n: int, seed: int) -> tuple:
    """series whose tails are 0.0 from a random step on (for Masking), y int32[n]."""
    x, y = series(n, seed)
    lengths = np.random.default_rng(seed + 50).integers(2, 8, size=n)
    x[np.arange(7)[None, :] >= lengths[:, None]] = 0.0
    return x, y


def series_tagged(n: int, seed: int) -> tuple:
    """series_padded with one label for every step: y int32[n, 7]."""
    x, _ = series_padded(n, seed)
    return x, ((x[..., 0] > 0) + 2 * (x[..., 1] > 0)).astype("int32")


def words(n: int, seed: int) -> tuple:
    """x int32[n, 8] word numbers 1..19 with zeros behind the end, y int32[n]."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, N_CLASSES, size=n).astype("int32")
    x = (rng.integers(0, 8, size=(n, 8)) + 4 * y[:, None]).clip(1, N_WORDS - 1).astype("int32")
    lengths = rng.integers(3, 9, size=n)
    x[np.arange(8)[None, :] >= lengths[:, None]] = 0
    return x, y


def two_inputs_dict(n: int, seed: int) -> tuple:
    """x {"left" f32[n, 12], "right" int32[n, 8]}, y {"kind" int32[n], "amount" f32[n, 2]}."""
    x, amount = regression(n, seed)
    right, kind = words(n, seed + 10)
    return {"left": x, "right": right}, {"kind": kind, "amount": amount}


def two_inputs_list(n: int, seed: int) -> tuple:
    """The same as lists, for targets and inputs by position."""
    x, y = two_inputs_dict(n, seed)
    return [x["left"], x["right"]], [y["kind"], y["amount"]]
