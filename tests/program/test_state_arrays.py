"""Parts of arrays by name."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.program.state_arrays import get_parts, put_parts

PARTS = [[np.arange(3.0), np.ones((2, 2))], [], [np.array(7)]]


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("best.4", ["best.4.0.0", "best.4.0.1", "best.4.2.0"]),
        ("", ["0.0", "0.1", "2.0"]),  # as the files of the last variables have them
    ],
)
def test_parts_come_back_and_names_are_those_of_old_files(name: str, keys: list[str]) -> None:
    arrays: dict[str, np.ndarray] = {"another": np.zeros(1)}
    sizes = put_parts(name, PARTS, arrays)
    assert sizes == [2, 0, 1]
    assert list(arrays) == ["another", *keys]
    found = get_parts(name, sizes, arrays)
    assert [len(part) for part in found] == sizes
    for part, was in zip(found, PARTS, strict=True):
        for leaf, before in zip(part, was, strict=True):
            np.testing.assert_array_equal(leaf, before)


def test_an_array_that_is_missing_is_named() -> None:
    arrays: dict[str, np.ndarray] = {}
    put_parts("fit", PARTS, arrays)
    with pytest.raises(KeyError, match=r"fit\.0\.2"):
        get_parts("fit", [3, 0, 1], arrays)
