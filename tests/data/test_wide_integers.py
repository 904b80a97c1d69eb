"""Integers beyond 32 bits in arrays: which they are, and what the device is given of them."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pandas as pd
import pytest

from paceline.data.arrays import beyond, prepare
from paceline.data.batched import inspect_dataset, read_all
from paceline.data.wide_integers import widest
from paceline.errors import DataError

LARGE = 3_000_000_000
X = np.zeros((3, 2), "float32")
FRAME = pd.DataFrame({"id": [1, 2, 3], "ms": [5, 1_700_000_000_000, 7]})


@pytest.mark.parametrize(
    ("values", "dtype", "found"),
    [
        ([2**31 - 1, -(2**31)], "int64", None),
        ([2**31, 0], "int64", 2**31),
        ([-(2**31) - 1, 2**31 - 1], "int64", -(2**31) - 1),
        ([2**32 - 1, 0], "uint64", None),
        ([2**32, 2**64 - 1], "uint64", 2**64 - 1),
        ([2**32 - 1], "uint32", None),
        ([3e9], "float64", None),
        ([], "int64", None),
    ],
)
def test_what_jax_would_wrap_around(values: list[Any], dtype: str, found: int | None) -> None:
    array = np.array(values, dtype)
    assert beyond(array) == found
    if found is None and array.size:
        np.testing.assert_array_equal(np.asarray(jax.numpy.asarray(array)), array)


@pytest.mark.parametrize(
    ("x", "y", "where"),
    [
        (X, np.array([1, LARGE, 2]), "y"),
        (X, pd.Series([1, LARGE, 2]), "y"),
        (X, [1, LARGE, 2], "y"),
        (FRAME, None, "x, column 'ms',"),
        ({"a": X, "when": FRAME.to_numpy()}, None, "x['when'], column 1,"),
        ({"a": X, "table": FRAME}, None, "x['table'], column 'ms',"),
        ([X, np.array([1, 2, LARGE])], None, "x[1]"),
    ],
)
def test_the_argument_and_the_column_are_named(x: Any, y: Any, where: str) -> None:
    data = prepare(x, y)
    ((number, wide),) = data.wide.items()
    assert wide in [(where, LARGE), (where, 1_700_000_000_000)]
    leaf = jax.tree.leaves(data.on_device())[number]
    given = jax.tree.leaves(data.inputs)[number]
    np.testing.assert_array_equal(np.asarray(leaf), given.astype("float32"))
    shape = jax.tree.leaves(data.batch_shapes(2))[number]
    assert leaf.dtype == shape.dtype == "float32"
    assert jax.tree.leaves(data.slice(0, 1).batch_shapes(1))[number].dtype == "float32"


class Batches(keras.utils.PyDataset):
    """The middle batch holds what the others do not."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return X, np.arange(3) + (LARGE if index == 1 else 0)


def test_one_batch_decides_for_the_data_set() -> None:
    data, _ = read_all(Batches(), None, allow_nan=False, what="validation_data")
    assert data.wide == {1: ("y", LARGE + 2)}
    expected = np.concatenate([Batches()[i][1] for i in range(3)]).astype("float32")
    np.testing.assert_array_equal(np.asarray(data.on_device()[1]), expected)

    found = inspect_dataset(Batches(), None)
    assert found.shapes[1].dtype == "float32"
    for number, batch in enumerate(found.read()):
        sent = found.as_sent(batch, number)
        assert (sent[0].dtype, sent[1].dtype) == ("float32", "float32")


def test_a_later_batch_is_an_error_where_the_first_ones_were_narrow() -> None:
    found = inspect_dataset(Batches(), None)
    late = np.full((3, 2), LARGE), np.arange(3)
    with pytest.raises(
        DataError,
        match=r"x: batch 7 of the Batches: x, column 0, holds 3,000,000,000, .* the data read",
    ):
        found.as_sent(late, 7)


def test_of_two_batches_the_larger_number_is_named() -> None:
    small, large = (prepare(X, np.array([1, 2, n])).wide for n in (LARGE, -LARGE - 1))
    assert widest(small, large) == widest(large, small) == {1: ("y", -LARGE - 1)}
    assert widest({}, small) == small == widest(small, {})
