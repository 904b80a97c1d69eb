"""Data that hold no numbers: what is found in them, and what to write instead."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest

from paceline.data.arrays import prepare
from paceline.data.inputs import DataArguments, DataReader
from paceline.data.labels import check_class_weight
from paceline.errors import DataError, PacelineError, UsageError

X = np.arange(20, dtype="float32").reshape(10, 2)
Y = np.arange(10) % 2
RNG = np.random.default_rng(0)


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def column(values: Any) -> pd.DataFrame:
    return pd.DataFrame({"age": X[:, 0], "some": values, "size": X[:, 1]})


SEQUENCES = [RNG.integers(0, 9, n) for n in RNG.integers(4, 88, 1000)]
SEQUENCES[3], SEQUENCES[500] = np.zeros(3, int), np.zeros(89, int)
DAYS = pd.to_datetime(["2024-01-03", "2024-02-01"] * 5)


@pytest.mark.parametrize(
    ("x", "found", "fits"),
    [
        (SEQUENCES, "a list of 1,000 arrays of length 3 to 89", "keras.utils.pad_sequences(x"),
        ([s.tolist() for s in SEQUENCES], "arrays of length 3 to 89", "keras.utils.pad_sequences"),
        (objects(SEQUENCES), "sequences of 3 to 89 values", "keras.utils.pad_sequences(x, padding"),
        (pd.Series(SEQUENCES), "sequences of 3 to 89 values", "keras.utils.pad_sequences(x, padd"),
        ({"a": objects(SEQUENCES)}, "x['a'] must hold numbers, got seq", "keras.utils.pad_sequ"),
        (objects([X[0]] * 10), "objects, each of 2 values", "np.stack(x)"),
        (column(["red", "green"] * 5), "column 'some' of x must hold numbers, got text such as "
         "'red', 'green'.", "OrdinalEncoder"),
        (column(pd.Categorical(["b", "a"] * 5)), "categories such as 'b', 'a'",
         "x['some'].cat.codes"),
        (column(pd.array(["b", "a"] * 5, dtype="string")), "'some' of x must .* text", "Encoder"),
        (column(["1,200", "13,500.5"] * 5), "text such as '1,200', '13,500.5'",
         "pd.to_numeric(x['some'].str.replace"),
        (column(["$1,200", "- 3"] * 5), "text such as", "pd.to_numeric"),
        (column(["1,5", "12,75"] * 5), "text such as '1,5'", "x['some'].str.replace(',', '.')"),
        (column(["5", "7", "?", "9", "3"] * 2), "text such as '5'", "but not '?'. pd.to_numeric(x"),
        ({"a": [list(range(i % 5 + 1)) for i in range(10)]}, "x['a'] must be one array .* 1 to 5",
         "keras.utils.pad_sequences(x['a']"),
        ([X, keras.Input((3,))], "x[1] must be an array, got a KerasTensor", "two variables"),
        (column(["12 %", "3.5 %"] * 5), "text such as", "pd.to_numeric"),
        (column(["2024-01-03", "2024-02-01"] * 5), "text such as '2024-01-03'",
         "(pd.to_datetime(x['some']) - np.datetime64('2000-01-01')) / np.timedelta64(1, 's')"),
        (column(["3/1/2024", "14.02.2024"] * 5), "text such as", "seconds since a date"),
        (column(["10:30", "11:45:02"] * 5), "text such as", "pd.to_timedelta(x['some'])"),
        (column(DAYS), "dates such as 2024-01-03, 2024-02-01", "(x['some'] - np.datetime64("),
        (column(DAYS.tz_localize("UTC")), "dates such as 2024-01-03 00:00:00", "utc=True"),
        (column([datetime.date(2024, 1, 3)] * 10), "dates such as 2024-01-03", "pd.to_datetime(x["),
        (column(DAYS - DAYS[0]), "durations such as", "x['some'] / np.timedelta64(1, 's')"),
        (pd.DataFrame({"some": DAYS}), "column 'some' of x must hold numbers, got date", "seconds"),
        (DAYS.to_numpy(), "x must hold numbers, got dates such as 2024-01-03", "(x - np."),
        (np.ones(10, "timedelta64[s]"), "durations such as 1 seconds", "x / np.timedelta64"),
        ([datetime.datetime(2024, 1, 3)] * 10, "dates such as 2024-01-03", "seconds since"),
        (["a.png", "b.JPG"] * 5, "text such as 'a.png'", "image_dataset_from_directory"),
        (["the dog ran home", "a cat sat"] * 5, "text such as 'the dog", "TfidfVectorizer"),
        (np.array(["a", "b"] * 5), "text such as 'a', 'b'", "OrdinalEncoder"),
        (np.array([b"a", b"b"] * 5), "text such as 'a', 'b'", "OrdinalEncoder"),
        (np.array([[1.0, None]] * 10), "a missing value (None) in example 0", "fillna"),
        ([1.0, 2.0, None], "a missing value (None) in example 2", "fillna"),
        (objects([1, 2.5]), "Python objects such as 1, 2.5", "x.astype('float32')"),
        (objects([Decimal("1.5")]), "Python objects such as Decimal('1.5')", "astype"),
        (objects([{"a": 1}]), "objects of the type dict", "arrays of numbers"),
        (objects([None, None]), "missing values only", "Drop"),
        (np.zeros(10, [("a", "f4"), ("b", "f4")]), "records with the fields 'a', 'b'",
         "structured_to_unstructured"),
        ([X[i] for i in range(10)], "a list of 10 arrays of length 2", "np.stack(x)"),
    ],
)  # fmt: skip
def test_what_is_found_and_what_fits(x: Any, found: str, fits: str) -> None:
    y = np.zeros(10 if isinstance(x, dict) else len(x)) if isinstance(x, (list, dict)) else None
    with pytest.raises(DataError, match=r"^training data: ") as caught:
        prepare(x, y)
    message = str(caught.value)
    assert all(part in message for part in found.split(" .* ")) and fits in message
    assert len(message) < 400
    assert "TfidfVectorizer" not in message or "dog" in message


def test_labels_in_words_are_numbered() -> None:
    for y in (np.array(["a", "b"] * 5), ["a", "b"] * 5, pd.Series(["a", "b"] * 5)):
        with pytest.raises(DataError, match=r"y must hold .*from 0: np\.unique\(y, return"):
            prepare(X, y)


def test_two_inputs_of_different_lengths_are_still_two_inputs() -> None:
    with pytest.raises(DataError, match=r"number of examples, but x\[0\] has 10, x\[1\] has 9"):
        prepare([X, X[:9]], Y)


def test_targets_one_by_one_are_joined() -> None:
    with pytest.raises(
        DataError, match=r"y must be one array .* list of 10 arrays of length 1\. .*"
    ):
        prepare(X, [np.array([n]) for n in Y])


def test_of_many_columns_one_is_described() -> None:
    frame = pd.DataFrame({f"column {i}": ["a"] * 3 for i in range(500)})
    with pytest.raises(DataError, match=r"column 'column 0' of x must .* 499 other columns hold"):
        prepare(frame)


def test_the_suggested_code_runs() -> None:
    frame = column(["1,200", "13,500.5"] * 5)
    text = frame["some"].str.replace(r"[^0-9.eE+-]", "", regex=True)
    assert np.asarray(pd.to_numeric(text)).tolist() == [1200, 13500.5] * 5
    plain = column(DAYS)["some"]
    zoned = pd.to_datetime(column(DAYS.tz_localize("UTC"))["some"], utc=True).dt.tz_convert(None)
    for days in (plain, zoned):
        seconds: Any = (days - np.datetime64("2000-01-01")) / np.timedelta64(1, "s")
        assert seconds[0] == 757_555_200
    assert keras.utils.pad_sequences(objects(SEQUENCES), padding="post").shape == (1000, 89)


@pytest.mark.parametrize(
    ("path", "how"),
    [
        (".", "image_dataset_from_directory"),
        (Path("train/images"), "image_dataset_from_directory"),
        ("a.csv", r"pd\.read_csv\(path\)"),
        (Path("a.parquet"), r"pd\.read_parquet\(path\)"),
        ("a.npz", r"np\.load\(path\)\['x'\]"),
        ("a.h5", "h5py"),
        ("a.xyz", "pass its arrays"),
        ("x" * 5000, "pass its arrays|directory"),
        ("a\0b", "directory"),
    ],
)
def test_a_path_is_no_data(path: Any, how: str) -> None:
    with pytest.raises(DataError, match=f"x must be arrays or a data set, got the path .*{how}"):
        prepare(path)


@pytest.mark.parametrize(
    ("class_weight", "message"),
    [
        ({"p": {0: 1.0}, "q": {0: 2.0}}, r"one for each output \('p', 'q'\)\. .*sample_weight"),
        ("balanced", "got 'balanced'.*compute_class_weight"),
        ([1.0, 2.0], r"Pass dict\(enumerate\(weights\)\)"),
        (np.ones(2), r"Pass dict\(enumerate\(weights\)\)"),
        ({"a": 1.0}, "got the class 'a'"),
    ],
)
def test_class_weights_of_other_forms(class_weight: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"class_weight must be a dict of class .*{message}"):
        check_class_weight(class_weight)


# -- functions -------------------------------------------------------------------------------------


def endless() -> Any:
    while True:
        yield X, Y


def sized(batch_size: int) -> Any:
    yield X[:batch_size], Y[:batch_size]


def by_hp(hp: Any) -> Any:
    yield X, Y


class Batches(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> Any:
        return X, Y


def reader(**given: Any) -> DataReader:
    others = dict.fromkeys("y sample_weight class_weight validation_data folds batch_size".split())
    others |= {"steps_per_epoch": None, "validation_steps": None, "validation_split": 0.0}
    return DataReader(DataArguments(**{**others, **given}, allow_nan=False, seed=0, packs=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": endless}, r"x must be a generator, got the function endless\(\)\. .*x=endless\(\)"),
        ({"x": sized}, r"got the function sized\(batch_size\).* Call it: x=sized\(\.\.\.\)"),
        ({"x": X, "validation_data": endless}, r"Call it: validation_data=endless\(\)"),
        ({"x": lambda: X}, "x must be data or a function of hp, got the function <lambda>"),
        ({"x": [X, 5]}, r"x\[1\] must be an array, got a int. Pass one array"),
        ({"x": Batches}, r"got the class Batches\. Pass an object of it: Batches\(\.\.\.\)"),
        ({"x": Batches(), "validation_split": 0.2}, "validation_split can .* second data set"),
        ({"x": Batches(), "sample_weight": Y}, r"the batches of x must be \(x, y, sample_weight\)"),
    ],
)
def test_what_was_meant_to_be_called(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        reader(**given).read(None)


def test_a_generator_function_of_hp_is_a_function_of_hp() -> None:
    assert reader(x=by_hp, steps_per_epoch=1).read(None).data is not None


# -- length ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [PacelineError, DataError, UsageError])
def test_no_message_is_longer_than_600_characters(error: type[PacelineError]) -> None:
    text = "x" * 10_000 + " Pass less."
    message = str(error(text))
    assert len(message) == 600
    assert message.startswith("xxx") and message.endswith("Pass less.") and " [...] " in message
    assert str(error("short.")) == "short."
    assert error(text).args == error(*error(text).args).args  # as from another process


@pytest.mark.parametrize(
    "x",
    [
        objects(["y" * 5000] * 3),
        pd.DataFrame({"n" * 5000: ["a"]}),
        {f"feature {i}" * 99: np.zeros(i + 1) for i in range(8)},
        objects([type("T" * 3000, (), {})()]),
    ],
)
def test_long_data_make_no_long_message(x: Any) -> None:
    with pytest.raises(DataError, match="training data") as caught:
        prepare(x)
    assert len(str(caught.value)) <= 600
