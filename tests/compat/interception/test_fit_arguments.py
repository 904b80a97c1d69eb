"""Fits train on one executor if their data are equal, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.compat.interception.fit_arguments import FitArguments, copied
from paceline.data.arrays import prepare
from paceline.executor.base import SearchData

X, Y = np.arange(39, dtype=np.float32).reshape(13, 3), np.arange(13)


def arguments(x=X, y=Y, *, validates=False, size=None, shuffle=True) -> FitArguments:
    data = prepare(x, y, allow_nan=True)
    return FitArguments(data, data if validates else None, 4, size, 2, 0, shuffle, [], 0)


def held(given: FitArguments) -> SearchData:
    data = given.search_data()
    validation = data.validation and copied(data.validation)
    return SearchData(
        copied(data.train), validation, data.validation_batch_size, shuffle=data.shuffle
    )


def changed(x: np.ndarray, at: tuple[int, int], value: float) -> np.ndarray:
    x = x.copy()
    x[at] = value
    return x


OTHERS = [
    {},
    {"x": changed(X, (12, 2), -1.0)},  # the last number, beyond the whole words
    {"x": changed(X, (0, 0), -0.0)},  # equal as a number, and not byte by byte
    {"x": changed(X, (3, 1), np.nan)},
    {"x": X[:, ::-1]},
    {"x": X.astype(np.int32)},
    {"x": X.reshape(13, 3, 1)},
    {"x": {"a": X}},
    {"x": np.arange(13, dtype=np.uint8).reshape(13, 1)},
    {"y": Y[::-1]},
    {"validates": True},
    {"size": 5},
    {"shuffle": False},
]


@pytest.mark.parametrize("one", OTHERS)
@pytest.mark.parametrize("other", OTHERS)
def test_data_are_compared_as_their_keys_are(one, other):
    first, second = arguments(**one), arguments(**other)
    assert second.trains_on(held(first)) is (first.key() == second.key())
    assert second.trains_on(held(first)) is (one is other)
