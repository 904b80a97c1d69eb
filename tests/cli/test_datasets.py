"""The forms of --data."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest

from paceline.cli import datasets
from paceline.errors import DataError, UsageError

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
W = np.ones(6)


def save(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


@pytest.fixture
def keras_data(monkeypatch):
    """Stand-ins for keras.datasets: one that loads, and one that has no network."""

    def load():
        sys.stdout.write("Downloading data")
        return (X, Y), (X[:2], Y[:2])

    def fail():
        raise Exception("URL fetch failure on https://example.invalid: None")

    package = types.ModuleType("keras.datasets")
    package.__path__ = []
    package.there = types.SimpleNamespace(load_data=load)  # type: ignore[attr-defined]
    package.offline = types.SimpleNamespace(load_data=fail)  # type: ignore[attr-defined]
    names = [types.SimpleNamespace(name=name) for name in ("there", "offline")]
    monkeypatch.setitem(sys.modules, "keras.datasets", package)
    monkeypatch.setattr("keras.datasets", package, raising=False)
    monkeypatch.setattr(datasets.pkgutil, "iter_modules", lambda path: names)


def test_digits_are_split_in_the_same_way_every_time():
    first, again = datasets.load("digits"), datasets.load("digits")
    assert first.x.shape == (1437, 64)
    assert first.x_val.shape == (360, 64)
    assert first.x.dtype == np.float32
    assert first.x.min() == 0
    assert first.x.max() == 1
    assert np.array_equal(first.x_val, again.x_val)
    assert np.array_equal(first.y_val, again.y_val)
    assert first.note is None


def test_digits_that_a_user_changes_are_the_user_s_own():
    (x, _), (_, y_val) = datasets.digits()
    x[:], y_val[:] = -1, -1
    (again, _), (_, labels) = datasets.digits()
    assert again.min() == 0
    assert labels.min() == 0


def test_digits_are_all_there_and_stratified():
    (_, y), (_, y_val) = datasets.digits()
    whole = np.bincount(np.concatenate([y, y_val]))
    assert whole.sum() == 1797
    assert np.abs(np.bincount(y_val) - whole * 360 / 1797).max() < 1


def test_digits_move_no_random_state(random_state_kept):
    datasets.digits()


def test_a_validation_part_is_used_before_a_test_part(tmp_path):
    path = save(
        tmp_path / "a.npz", x_train=X, y_train=Y, x_val=X[:2], y_val=Y[:2], x_test=X, y_test=Y
    )
    data = datasets.load(path)
    assert np.array_equal(data.x, X)
    assert np.array_equal(data.y, Y)
    assert len(data.x_val) == len(data.y_val) == 2
    assert data.note is None


def test_a_test_part_that_steers_the_search_is_said(tmp_path):
    path = save(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:3], y_test=Y[:3], x_val=X)
    data = datasets.load(path)
    assert len(data.x_val) == 3
    assert data.note is not None
    assert "a.npz" in data.note
    assert "test part steers the search" in data.note


def test_images_stay_as_small_as_they_are(tmp_path):
    images = X.astype(np.uint8)
    path = save(tmp_path / "a.npz", x_train=images, y_train=Y, x_val=images, y_val=Y)
    assert datasets.load(path).x.dtype == np.uint8


def test_missing_arrays_are_named_with_those_there_are(tmp_path):
    path = save(tmp_path / "a.npz", x_train=X, labels=Y)
    with pytest.raises(DataError, match=r"must hold x_train, y_train, .* got labels, x_train"):
        datasets.load(path)


def test_a_missing_file_is_named():
    with pytest.raises(DataError, match=r"nowhere\.npz: no such file"):
        datasets.load("nowhere.npz")


def test_a_file_that_is_no_archive_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(DataError, match=r"a\.npz cannot be read"):
        datasets.load(str(tmp_path / "a.npz"))
    with (tmp_path / "b.npz").open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError, match=r"b\.npz must hold x and y, got one bare array"):
        datasets.load(str(tmp_path / "b.npz"))
    (tmp_path / "c.npz").write_bytes(b"")
    with pytest.raises(DataError, match=r"c\.npz cannot be read"):
        datasets.load(str(tmp_path / "c.npz"))


def test_a_pickle_in_an_archive_is_never_opened(tmp_path):
    objects = np.array([{"a": 1}], dtype=object)
    path = save(tmp_path / "a.npz", x_train=objects, y_train=Y, x_val=X, y_val=Y)
    with pytest.raises(DataError, match="cannot be read .* plain numeric arrays"):
        datasets.load(path)


@pytest.mark.parametrize("spec", ["mnist", "a.xlsx", "", "Digits"])
def test_an_unknown_form_lists_the_known(spec):
    with pytest.raises(DataError, match=r"--data must be FILE\.npz, .*digits or keras:NAME"):
        datasets.load(spec)


def test_a_keras_data_set_keeps_stdout_free(keras_data, capsys):
    data = datasets.load("keras:there")
    assert np.array_equal(data.x, X)
    assert data.note is not None
    assert data.note.startswith("keras:there has no validation part")
    assert capsys.readouterr().out == ""


def test_a_download_that_fails_says_what_to_do(keras_data):
    with pytest.raises(DataError, match=r"keras:offline could not be loaded .*FILE\.npz"):
        datasets.load("keras:offline")


def test_an_unknown_keras_data_set_lists_those_there_are(keras_data):
    with pytest.raises(DataError, match=r"keras:other does not exist. Keras has offline, there"):
        datasets.load("keras:other")


def test_the_real_keras_has_the_names_the_examples_use():
    with pytest.raises(DataError, match=r"fashion_mnist, .*mnist"):
        datasets.load("keras:no_such_data")


def test_a_path_becomes_absolute_and_a_name_stays():
    assert datasets.portable_spec("a.npz") == str(Path.cwd() / "a.npz")
    assert datasets.portable_spec("a.csv") == str(Path.cwd() / "a.csv")
    assert datasets.portable_spec("digits") == "digits"
    assert datasets.portable_spec("keras:mnist") == "keras:mnist"


def test_a_function_returns_two_pairs():
    data = datasets.from_function(lambda: ((X, Y), (X[:1], Y[:1])), "m.py")
    assert len(data.x_val) == 1
    data = datasets.from_function(lambda: [[X, Y], [X, Y]], "m.py")
    assert data.y is Y
    assert data.sample_weight is None
    assert data.validation_data == (X, Y)


def test_a_function_may_return_the_weights_of_examples_as_third():
    data = datasets.from_function(lambda: ((X, Y, W), (X, Y)), "m.py")
    assert data.sample_weight is W
    assert data.validation_data == (X, Y)
    data = datasets.from_function(lambda: [[X, Y, W], (X, Y, W)], "m.py")
    assert data.validation_data == (X, Y, W)


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        (None, "None"),
        (X[0], "one ndarray"),
        ((X, Y, X, Y), "a tuple of 4"),
        ((X, Y, W), "a tuple of 3"),
        (((X, Y, W, W), (X, Y)), "a tuple of 2"),
        (((X, Y), (X,)), "a tuple of 2"),
        ((X[:2], Y[:2]), r"a tuple of 2 \(ndarray, ndarray\)"),
        ((X, Y), r"a tuple of 2 \(ndarray, ndarray\)"),
    ],
)
def test_a_function_that_returns_something_else_is_told(returned, found):
    with pytest.raises(DataError, match=rf"m\.py: data\(\) must return \(x, y\), .* got {found}"):
        datasets.from_function(lambda: returned, "m.py")


# -- data without a validation part ----------------------------------------------------------------

MANY = np.arange(200, dtype=np.float32).reshape(100, 2)
CLASSES = np.arange(100) % 4


@pytest.mark.parametrize(
    "names", [("x", "y"), ("features", "labels"), ("X", "Y"), ("x_train", "y_train")]
)
def test_a_part_of_an_archive_is_held_out_and_it_is_said(tmp_path, names):
    more = {"feature_names": np.array(["a", "b"])}
    path = save(tmp_path / "b.npz", **dict(zip(names, (MANY, CLASSES), strict=True)), **more)
    data = datasets.load(path)
    assert (len(data.x), len(data.x_val)) == (80, 20)
    assert np.bincount(data.y_val).tolist() == [5, 5, 5, 5]  # each class has its share
    for x, y in ((data.x, data.y), (data.x_val, data.y_val)):
        np.testing.assert_array_equal(x[:, 0] / 2 % 4, y)  # examples keep their labels
    assert sorted([*data.x[:, 0], *data.x_val[:, 0]]) == MANY[:, 0].tolist()
    assert "b.npz has no validation part, so 20 of its 100 examples are held out" in str(data.note)
    again = datasets.load(path, validation_split=None)
    assert np.array_equal(data.x_val, again.x_val)
    assert len(datasets.load(path, validation_split=0.5).x_val) == 50


def test_numbers_and_rare_classes_are_held_out_at_random(tmp_path):
    for y in (np.linspace(0, 1, 100), np.arange(100)):
        data = datasets.load(save(tmp_path / "b.npz", x=MANY, y=y))
        assert len(data.x_val) == 20
        assert "at random;" in str(data.note)


@pytest.mark.parametrize(
    ("arrays", "share", "error", "message"),
    [
        ({"x": X, "features": X, "y": Y}, None, DataError, "or x and y, got features, x, y"),
        (
            {"x": X, "y": Y[:3]},
            None,
            DataError,
            "the same number of examples, got 6 and 3",
        ),
        (
            {"x": X, "y": Y},
            0.01,
            DataError,
            r"--validation-split 0\.01 leaves .* 6 examples",
        ),
        (
            {"x_train": X, "y_train": Y, "x_val": X, "y_val": Y},
            0.2,
            UsageError,
            r"--validation-split 0\.2 has no effect, because --data .*b\.npz has a validation part",
        ),
    ],
)
def test_an_archive_that_cannot_be_split(tmp_path, arrays, share, error, message):
    with pytest.raises(error, match=message):
        datasets.load(save(tmp_path / "b.npz", **arrays), validation_split=share)


@pytest.mark.parametrize("part", ["val", "valid", "validation"])
def test_names_of_a_validation_part(tmp_path, part):
    arrays = {"X_train": X, "Y_train": Y, f"X_{part}": X[:2], f"Y_{part}": Y[:2]}
    data = datasets.load(save(tmp_path / "b.npz", **arrays))
    assert (len(data.x_val), data.note) == (2, None)


def test_a_pair_of_a_function_is_split_where_that_is_asked():
    data = datasets.from_function(lambda: (MANY, CLASSES), "m.py", validation_split=0.25)
    assert len(data.x_val) == 25
    with pytest.raises(DataError, match="Or use --validation-split"):
        datasets.from_function(lambda: (MANY, CLASSES), "m.py")
    with pytest.raises(UsageError, match=r"data\(\) of m\.py has a validation part"):
        datasets.from_function(lambda: ((X, Y), (X, Y)), "m.py", validation_split=0.2)


# -- tables ----------------------------------------------------------------------------------------


@pytest.fixture(params=["csv", "parquet"])
def table(request, tmp_path):
    path = tmp_path / f"t.{request.param}"
    frame = pd.DataFrame(
        {"size": MANY[:, 0], "color": ["red", "green"] * 50, "kind": list("abcd") * 25}
    )
    if request.param == "parquet":
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    else:
        frame.to_csv(path)  # with the numbers of rows, as most people write it
    return path


def test_a_table_becomes_numbers(table):
    data = datasets.load(str(table), target="kind")
    assert data.x.shape == (80, 3)
    assert np.bincount(data.y_val).tolist() == [5, 5, 5, 5]
    np.testing.assert_array_equal(data.x[:, 0] / 2 % 4, data.y)
    np.testing.assert_array_equal(data.x[:, 2], (data.x[:, 0] / 2) % 2 == 0)
    note = str(data.note)
    assert "100 rows; x has 3 columns (size, color=green, color=red); y is 'kind', 4 cl" in note
    assert ("the column Unnamed: 0 has no name" in note) == (table.suffix == ".csv")
    assert data.encoding is not None
    assert data.encoding["target"] == {"name": "kind", "categories": ("a", "b", "c", "d")}
    assert datasets.load(str(table), target="size", validation_split=0.1).y_val.shape == (10,)
    with pytest.raises(UsageError, match="--target 'size' or 'color' or 'kind'"):
        datasets.load(str(table))
    with pytest.raises(DataError, match="--target must be a column of t"):
        datasets.load(str(table), target="no")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read as a table"),
        ("a,b\n1,2\n1,2,3\n", "cannot be read as a table"),
        ("a,b\n1,2\n,3\n", r"column 'a' of t\.csv must have a value in each row, .* row 2"),
        ("a,b\n1,2\nNA,3\n", r"column 'a' .* got none .empty, NA or NaN. in row 2"),
        ('a,b\n"1,000",2\n"2,000",3\n', r"column 'a' of x must hold numbers, .*pd\.to_numeric"),
        ("b\n1\n", "must have other columns than its target"),
    ],
)
def test_a_table_that_is_none(tmp_path, text, message):
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        datasets.load(str(tmp_path / "t.csv"), target="b")


def test_bytes_that_are_no_table(tmp_path):
    (tmp_path / "t.csv").write_bytes(bytes(range(256)) * 4)
    with pytest.raises(DataError, match="cannot be read as a table"):
        datasets.load(str(tmp_path / "t.csv"), target="b")
    with pytest.raises(DataError, match="no such file"):
        datasets.load(str(tmp_path / "none.csv"), target="b")
    with pytest.raises(UsageError, match="--target 'b' needs a table, and --data digits"):
        datasets.load("digits", target="b")


def test_without_pyarrow_its_name_is_said(tmp_path, monkeypatch):
    def missing(*_, **__):
        raise ImportError("Unable to find a usable engine")

    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(pd, "read_parquet", missing)
    with pytest.raises(DataError, match="Parquet files need pyarrow. Run pip install pyarrow"):
        datasets.load(str(tmp_path / "t.parquet"), target="b")


# -- data sets in batches --------------------------------------------------------------------------


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int):
        return X, Y


def test_a_function_may_return_two_data_sets():
    train, validation = Batches(), Batches()
    data = datasets.from_function(lambda: (train, validation), "m.py")
    assert (data.x, data.y, data.validation_data) == (train, None, validation)
    assert data.batched
    data = datasets.from_function(lambda: (train, (X, Y)), "m.py")
    assert data.batched and data.validation_data == (X, Y)
    data = datasets.from_function(lambda: ((X, Y), validation), "m.py")
    assert not data.batched and data.validation_data is validation
    for returned in (train, (train,), (train, validation, validation), (train, X)):
        with pytest.raises(DataError, match="return training_set, validation_set"):
            datasets.from_function(lambda returned=returned: returned, "m.py")
