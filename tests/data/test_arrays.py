"""Arrays as Keras' ``fit`` reads them, and orders from seeds."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.arrays import (
    NotArrays,
    epoch_order,
    prepare,
    shapes_from_json,
    shapes_to_json,
    split,
)
from paceline.errors import DataError


def test_floats_are_in_keras_floatx_and_the_rest_is_left():
    data = prepare(np.zeros((4, 2)), np.arange(4), np.ones(4, "float16"))
    assert [part.dtype for part in data.inputs] == ["float32", "int64", "float32"]
    images = np.zeros((4, 2, 2, 1), "uint8")
    assert prepare(images).inputs[0] is images  # uint8 stays, and is not copied
    assert data.n == 4


@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_several_inputs_keep_their_nest(kind):
    a, b = np.zeros((3, 1)), np.zeros((3, 2))
    x = {"list": [a, b], "tuple": (a, b), "dict": {"a": a, "b": b}}[kind]
    data = prepare(x, x)
    assert type(data.inputs[0]) is type(x)
    assert data.n == 3
    shapes = data.batch_shapes(2)
    assert shapes_from_json(shapes_to_json(shapes)) == shapes


def test_numbers_of_python_and_pandas():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert prepare(frame, frame["a"]).inputs[0].shape == (2, 2)
    assert prepare([1, 2, 3], [0, 1, 0]).n == 3
    mixed = frame.assign(c=[True, False], d=pd.array([1, 2], dtype="Int64"))
    np.testing.assert_array_equal(prepare(mixed).inputs[0], [[1, 3, 1, 1], [2, 4, 0, 2]])
    missing = frame.assign(d=pd.array([1, None], dtype="Int64"))
    with pytest.raises(DataError, match="x holds 1 values that are NaN .* in example 1"):
        prepare(missing)
    assert prepare([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]).inputs[0].shape == (3, 2)
    assert prepare(keras.ops.ones((5, 2))).n == 5


@pytest.mark.parametrize("x", [object(), iter([]), None])
def test_what_is_no_array(x):
    with pytest.raises(NotArrays, match="x is a"):
        prepare(x)


def test_large_values_are_no_infinities():
    x = np.full((3, 2), 3e38, "float32")  # their sum overflows float32
    assert prepare(x).n == 3
    both = np.array([[np.inf, -np.inf]], "float32")
    with pytest.raises(DataError, match="x holds 2 values"):
        prepare(both)


def test_the_place_of_a_bad_number_is_named():
    x = {"a": np.zeros((3, 1)), "b": np.array([[0.0], [0.0], [np.nan]])}
    with pytest.raises(DataError, match=r"x\['b'\] holds 1 values .* first in example 2"):
        prepare(x)
    assert prepare(x, allow_nan=True).n == 3


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["i2", "i4", "i8", "u2", "f2", "f4", "f8"])
def test_the_byte_order_of_files_is_that_of_the_machine(order, kind, tmp_path):
    """As HDF5, IDX and NetCDF have it; of arrays, frames, dicts, targets, weights and files."""
    values = np.array([[1, 2], [3, 1000]])
    foreign, own = values.astype(order + kind), values.astype("f4" if kind[0] == "f" else kind)
    frame = pd.DataFrame(foreign, columns=["a", "b"])
    np.save(tmp_path / "x.npy", foreign)
    in_file = np.load(tmp_path / "x.npy", mmap_mode="r")
    for x in (foreign, frame, {"a": foreign}, [foreign, foreign], in_file):
        if kind == "f2" and x is in_file:
            continue  # it had to be copied whole
        data = prepare(x, foreign[:, 0], foreign[:, 1])
        for leaf, shape in zip(
            jax.tree.leaves(data.on_device()), jax.tree.leaves(data.batch_shapes(2)), strict=True
        ):
            assert leaf.dtype == shape.dtype and leaf.dtype.isnative
        for leaf in jax.tree.leaves(data.on_device()[0]):
            np.testing.assert_array_equal(np.asarray(leaf), own)
        np.testing.assert_array_equal(np.asarray(data.on_device()[1]), own[:, 0])
        np.testing.assert_array_equal(np.asarray(data.on_device()[2]), own[:, 1])


def test_lengths_are_named():
    with pytest.raises(DataError, match=r"x\[0\] has 3, x\[1\] has 2"):
        prepare([np.zeros((3, 1)), np.zeros((2, 1))])
    with pytest.raises(DataError, match="single number"):
        prepare(np.float32(3))
    many = {f"feature {i}": np.zeros(40 - i % 2) for i in range(300)}
    with pytest.raises(
        DataError, match=r"300 arrays of x have 39 \(x\['feature 1'\]\) to 40 .*, y"
    ):
        prepare(many, np.zeros(40))


@pytest.mark.parametrize("fraction", [0.1, 0.25, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("n", [2, 7, 10, 50])
def test_a_split_is_that_of_keras(n, fraction):
    x = np.arange(n, dtype="float32")[:, None]
    kept = int(np.floor(n * (1.0 - fraction)))
    if kept == 0:
        with pytest.raises(DataError, match="leaves one part empty"):
            split(prepare(x), fraction)
        return
    train, validation = split(prepare(x, x, x[:, 0]), fraction)
    assert (train.n, validation.n) == (kept, n - kept)
    np.testing.assert_array_equal(validation.inputs[2], x[kept:, 0])


@pytest.mark.parametrize(
    "y",
    [
        np.array([0, 1, 2, 1]),
        np.array([[0], [1], [2], [1]]),
        np.eye(3)[[0, 1, 2, 1]],
        np.array([0.0, 1.0, 2.0, 1.0]),
    ],
)
def test_class_weights_are_those_of_keras(y):
    data = prepare(np.zeros((4, 1)), y, class_weight={0: 2.0, 1: 0.5})
    np.testing.assert_array_equal(data.inputs[2], [2.0, 0.5, 1.0, 0.5])


def test_class_weights_need_one_target():
    for y in (None, [np.zeros(2), np.zeros(2)]):
        with pytest.raises(DataError, match="class_weight needs a single target"):
            prepare(np.zeros((2, 1)), y, class_weight={0: 1.0})


def test_one_weight_array_serves_all_outputs():
    y, weight = {"a": np.zeros(3), "b": np.zeros((3, 2))}, np.ones(3)
    weights = prepare(np.zeros((3, 1)), y, weight).inputs[2]
    assert set(weights) == {"a", "b"}


@given(seed=st.integers(0, 2**31 - 1), epoch=st.integers(0, 1000), n=st.integers(1, 100))
def test_an_order_is_a_permutation_that_the_seed_decides(seed, epoch, n):
    order = epoch_order(seed, epoch, n, shuffle=True)
    assert order.dtype == np.int32
    assert sorted(order.tolist()) == list(range(n))
    np.testing.assert_array_equal(order, epoch_order(seed, epoch, n, shuffle=True))


def test_orders_differ_between_epochs_and_seeds():
    orders = {
        tuple(epoch_order(seed, epoch, 50, shuffle=True)) for seed in range(3) for epoch in range(3)
    }
    assert len(orders) == 9
    assert epoch_order(0, 5, 4, shuffle=False).tolist() == [0, 1, 2, 3]


def test_a_series_is_a_column_as_in_keras():
    import pandas as pd

    found = prepare(np.zeros((3, 2), np.float32), pd.Series([1.0, 2.0, 3.0]))
    assert found.inputs[1].shape == (3, 1)


def test_what_two_data_sets_share_is_on_the_device_once():
    x, y = np.zeros((6, 4), "float32"), np.zeros(6, "int32")
    plain = prepare(x, y)
    weighted = prepare(*plain.inputs, class_weight={0: 2.0})
    there: dict[int, Any] = {}
    ours, theirs = plain.on_device(there=there), weighted.on_device(there=there)
    assert [a is b for a, b in zip(ours, theirs, strict=False)] == [True, True]
    assert len(there) == 3
    assert plain.nbytes_beside(weighted) == 0
    assert weighted.nbytes_beside(plain) == 6 * 4
    assert plain.on_device()[0] is not ours[0]


def test_a_file_of_numbers_that_would_have_to_be_copied_goes_to_fit(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((4, 2), "float16"))
    with pytest.raises(NotArrays, match="x is a file of float16 values, but Keras' floatx is"):
        prepare(np.load(path, mmap_mode="r"))
    np.save(path, np.zeros((4, 2)))
    data = prepare(np.load(path, mmap_mode="r"))
    assert isinstance(data.inputs[0], np.memmap)
    assert data.batch_shapes(2)[0].dtype == "float32"


def test_what_is_computed_from_a_file_is_searched_for_nan(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1.0], [np.nan]]))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert isinstance(prepare(mapped[:1]).inputs[0], np.memmap)
    with pytest.raises(DataError, match="x holds 1 values that are NaN or infinite"):
        prepare(mapped.astype("float32"))
