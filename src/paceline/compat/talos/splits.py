"""Splits data into parts: arrays, pandas objects, lists and dicts of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.compat.talos.errors import TalosDataError, TalosTypeError


def take(values: Any, index: np.ndarray) -> Any:
    """Returns the examples with the numbers in ``index`` i64[K], of data nested in any way."""
    if isinstance(values, dict):
        return {key: take(value, index) for key, value in values.items()}
    if isinstance(values, list) and values and hasattr(values[0], "shape"):
        return [take(value, index) for value in values]
    table: Any = values
    if hasattr(table, "iloc"):
        return table.iloc[index]
    return np.asarray(values)[index]


def length(values: Any) -> int:
    """Returns the number of examples."""
    if isinstance(values, dict):
        return length(next(iter(values.values())))
    if isinstance(values, list) and values and hasattr(values[0], "shape"):
        return len(values[0])
    return len(values)


def check_inputs(x: Any, multi_input: bool) -> None:
    """Checks that a list of arrays is given with ``multi_input`` only.

    Raises:
        TalosTypeError: ``x`` is a list of arrays, and ``multi_input`` is False.
    """
    if isinstance(x, list) and x and hasattr(x[0], "shape") and not multi_input:
        raise TalosTypeError(
            "x: a list of arrays was given; for a model with several inputs set multi_input=True, "
            "else pass one array."
        )


def check_split(x: Any, y: Any, fraction: float) -> int:
    """Returns the number of training examples, if ``fraction`` of the examples validate.

    Raises:
        TalosDataError: The fraction is not inside (0, 1), or leaves one part empty, or x and y have
            different numbers of examples.
    """
    if not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise TalosDataError(f"val_split: {fraction!r} is not between 0 and 1.")
    n = length(y)
    if length(x) != n:
        raise TalosDataError(
            f"x, y: x has {length(x)} examples and y has {n}; they must have as many."
        )
    at = int(n * (1 - fraction))
    if at in (0, n):
        raise TalosDataError(
            f"val_split: {fraction} of {n} examples leaves one part empty; give more data or "
            "another fraction."
        )
    return at


def split(
    x: Any, y: Any, fraction: float, *, shuffle: bool = True, seed: int | None = None
) -> tuple[Any, Any, Any, Any]:
    """Splits data into training and validation data; ``fraction`` of the examples validate.

    Returns:
        x_train, y_train, x_val, y_val.

    Raises:
        TalosDataError: As of ``check_split``.
    """
    at, n = check_split(x, y, fraction), length(y)
    order = np.random.default_rng(seed).permutation(n) if shuffle else np.arange(n)
    train, val = order[:at], order[at:]
    return take(x, train), take(y, train), take(x, val), take(y, val)


def kfold(
    x: Any, y: Any, folds: int, *, shuffle: bool = True, seed: int | None = None
) -> list[tuple[Any, Any]]:
    """Splits data into ``folds`` parts.

    Returns:
        Pairs of features and targets.

    Raises:
        TalosDataError: There are fewer examples than parts, or ``folds`` is no positive whole
            number.
    """
    n = length(y)
    if not isinstance(folds, int) or not 1 <= folds <= n:
        raise TalosDataError(f"folds: {folds!r} is not a whole number from 1 to {n}.")
    order = np.random.default_rng(seed).permutation(n) if shuffle else np.arange(n)
    return [(take(x, part), take(y, part)) for part in np.array_split(order, folds)]
