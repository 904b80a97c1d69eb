"""The numbers that the columns of a table become, and tables that become none."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paceline.data.table_encoding import TableEncoding
from paceline.errors import DataError

FRAME = pd.DataFrame(
    {
        "age": [30, 41, 52, 63],
        "pay": [1.5, 2.5, 3.5, 4.5],
        "color": ["red", "green", "red", "blue"],
        "member": [True, False, True, True],
        "kind": ["b", "a", "b", "c"],
    }
)


def test_numbers_stay_and_categories_become_columns() -> None:
    encoding = TableEncoding.of(FRAME, "kind", "t.csv")
    assert encoding.names == [
        *("age", "pay", "color=blue", "color=green", "color=red", "member=False", "member=True")
    ]
    x = encoding.x(FRAME)
    assert x.dtype == "float32"
    np.testing.assert_array_equal(x[:, 0], FRAME["age"])
    np.testing.assert_array_equal(x[:, 1], FRAME["pay"])
    np.testing.assert_array_equal(x[:, 2:5], [[0, 0, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(x[:, 5:], [[0, 1], [1, 0], [0, 1], [0, 1]])
    np.testing.assert_array_equal(encoding.y(FRAME), [1, 0, 1, 2])
    again = TableEncoding.of(FRAME[::-1].reset_index(drop=True), "kind", "t.csv")
    assert again == encoding  # whatever the order of the rows
    assert json.loads(json.dumps(encoding.to_json()))["target"]["categories"] == ["a", "b", "c"]


def test_numbers_are_targets_as_they_are_and_new_categories_are_none() -> None:
    encoding = TableEncoding.of(FRAME, "pay", "t.csv")
    np.testing.assert_array_equal(encoding.y(FRAME), FRAME["pay"])
    other = FRAME.assign(color="violet")
    colors = [i for i, name in enumerate(encoding.names) if name.startswith("color=")]
    assert encoding.x(other)[:, colors].sum() == 0


@pytest.mark.parametrize("dtype", ["string", "category", "object"])
def test_every_kind_of_text_column(dtype: str) -> None:
    frame = FRAME.assign(color=FRAME["color"].astype(dtype))
    found = TableEncoding.of(frame, "pay", "t.csv")
    np.testing.assert_array_equal(found.x(frame), TableEncoding.of(FRAME, "pay", "t.csv").x(FRAME))


def test_integers_that_are_rounded_are_named() -> None:
    frame = FRAME.assign(account=[2**24 + 1, 1, 2, 3])
    assert TableEncoding.of(frame, "pay", "t.csv").rounded(frame) == ["account"]


def with_missing(column: str, row: int) -> pd.DataFrame:
    frame = FRAME.astype({"age": float, "member": object})
    frame.loc[row, column] = None
    return frame


@pytest.mark.parametrize(
    ("frame", "target", "message"),
    [
        (FRAME, "kid", r"--target must be a column of t\.csv, got 'kid'\. It has 'age', 'pay'"),
        (FRAME[["pay"]], "pay", "must have other columns than its target"),
        (with_missing("age", 2), "pay", r"column 'age' of t\.csv must .* .* in row 3"),
        (with_missing("color", 0), "pay", "column 'color' .* .* in row 1"),
        (with_missing("member", 1), "pay", "column 'member' .* .* in row 2"),
        (with_missing("kind", 3), "kind", "column 'kind' .* .* in row 4"),
        (FRAME.assign(pay=[1, np.inf, 2, 3]), "age", "'pay' .* finite numbers, .* in row 2"),
        (FRAME.assign(pay=["1,200", "3,000", "5", "7"]), "age", r"column 'pay' of x .*to_numeric"),
        (FRAME.assign(pay=["1", "?", "5", "7"]), "age", r"column 'pay' of x .*errors='coerce'"),
        (FRAME.assign(day=["2024-01-03"] * 4), "age", r"column 'day' of x .*pd\.to_datetime"),
        (FRAME.assign(day=pd.to_datetime(["2024-01-03"] * 4)), "age", "'day' of x .* got dates"),
        (FRAME.assign(kind="a"), "kind", "'kind' of t.csv must have two classes, got 'a' only"),
        (
            pd.DataFrame({"name": [f"name {i} x" for i in range(101)], "y": range(101)}),
            "y",
            "'name' of t.csv must .* at most 100 categories, got 101 different texts in 101 rows",
        ),
    ],
)
def test_a_table_that_is_refused(frame: Any, target: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        TableEncoding.of(frame, target, "t.csv")
