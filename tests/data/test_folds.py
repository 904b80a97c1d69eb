"""Folds: equal in size, apart from each other, every class by its share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.folds import class_labels, make_folds
from paceline.errors import UsageError


@st.composite
def labels(draw) -> tuple[np.ndarray, int]:
    """Classes of any sizes in any order, and a number of folds that they allow."""
    counts = draw(st.lists(st.integers(2, 30), min_size=1, max_size=6))
    y = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(draw(st.integers(0, 99))).shuffle(y)
    return y, draw(st.integers(2, min(counts)))


@given(labels())
def test_classes_have_their_share_and_only_a_remainder_is_left_out(drawn) -> None:
    y, k = drawn
    folds, text = make_folds(y, len(y), k, 0)
    validated = np.concatenate([fold.validation for fold in folds])
    assert len(set(validated.tolist())) == len(validated) == len(y) - len(y) % k
    assert ("left out" in text) == bool(len(y) % k)
    for fold in folds:
        assert len(fold.validation) == len(y) // k
        # What others validate on, and nothing else: what is left out is left out of all.
        assert sorted([*fold.train, *fold.validation]) == sorted(validated)
        for label, count in zip(*np.unique(y, return_counts=True), strict=True):
            assert count // k <= (y[fold.validation] == label).sum() <= -(-count // k)


@pytest.mark.parametrize("n", [10, 11, 14])
def test_targets_that_are_no_classes(n: int) -> None:
    folds, text = make_folds(np.linspace(0, 1, n), n, 5, 0)
    validated = sorted(np.concatenate([fold.validation for fold in folds]).tolist())
    assert len(set(validated)) == n - n % 5
    assert {len(fold.train) for fold in folds} == {4 * (n // 5)}
    assert "drawn at random" in text
    assert f"5 folds of {n // 5} examples each" in text


def test_folds_follow_from_the_seed_alone() -> None:
    y = np.arange(40) % 2

    def drawn(seed: int) -> list[list[int]]:
        return [fold.validation.tolist() for fold in make_folds(y, 40, 4, seed)[0]]

    assert drawn(1) == drawn(1) != drawn(2)


def test_numbers_are_in_the_order_of_the_data() -> None:
    for fold in make_folds(None, 20, 4, 0)[0]:
        for numbers in (fold.train, fold.validation):
            assert numbers.dtype == np.int32
            assert (np.diff(numbers) > 0).all()


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([2, 0, 1]), [2, 0, 1]),
        (np.array([[1], [0], [1]], "uint8"), [1, 0, 1]),
        (np.array([True, False]), [1, 0]),
        (np.eye(3, dtype="float32")[[2, 1]], [2, 1]),
        (np.array([0.0, 1.0]), None),
        (np.array([[1, 1, 0], [0, 1, 0]]), None),
        (np.zeros((4, 3, 2), int), None),
        ([np.array([1, 2])], None),
        (None, None),
    ],
)
def test_what_counts_as_classes(y, expected) -> None:
    found = class_labels(y)
    assert (None if found is None else found.tolist()) == expected


def test_more_folds_than_examples_or_than_those_of_a_class() -> None:
    with pytest.raises(UsageError, match="folds must be at most 4, the number of examples, got 5"):
        make_folds(np.zeros(4), 4, 5, 0)
    y = np.array([0] * 9 + [7] * 2)
    with pytest.raises(UsageError, match="3 folds, but class 7 has 2 examples. Pass fewer"):
        make_folds(y, len(y), 3, 0)
    assert len(make_folds(y.astype(float), len(y), 3, 0)[0]) == 3
