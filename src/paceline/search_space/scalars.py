"""Plain Python scalars out of what users write: NumPy's are welcome, a bool is never an int."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.errors import SpaceError

Scalar = bool | int | float | str

# Relative distance under which two floats are one grid point: a value that went through text or a
# float sum comes back to its choice, and neighbouring choices are further apart than this in any
# real space.
SAME_FLOAT = 1e-9


def plain(value: Any) -> Any:
    """Return a NumPy scalar or 0-d array as the Python scalar it holds; anything else unchanged."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        return value.item()
    return value


def whole(where: str, argument: str, value: Any) -> int:
    """Return ``value`` as an int.

    Args:
        where: The call at fault, as the user wrote it; begins the message.
        argument: Name of the argument.
        value: An int, a NumPy integer or a float without fraction.

    Raises:
        SpaceError: It is none of these, or a bool.
    """
    value = plain(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and value % 1 == 0:
        return int(value)
    raise SpaceError(f"{where}: {argument} is {value!r}, expected a whole number; pass an int.")


def number(where: str, argument: str, value: Any) -> float:
    """Return ``value`` as a finite float.

    Args:
        where: The call at fault, as the user wrote it; begins the message.
        argument: Name of the argument.
        value: An int, a float or a NumPy number.

    Raises:
        SpaceError: It is none of these, a bool, infinite or NaN.
    """
    value = plain(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise SpaceError(f"{where}: {argument} is {value!r}, expected a finite number; pass a float.")


def same(value: Any, other: Scalar) -> bool:
    """Return whether two scalars are equal; a bool equals only a bool."""
    if not isinstance(value, Scalar):
        return False
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def find_choice(value: Any, choices: Sequence[Scalar]) -> Scalar | None:
    """Return the choice that ``value`` means, in the type of the choices; None when there is none.

    ``1`` finds ``1.0`` and the other way round; a bool finds only a bool, a str only a str.

    Args:
        value: What was given.
        choices: Scalars of one type.
    """
    value = plain(value)
    if not isinstance(value, Scalar):
        return None
    if value in choices:
        choice = choices[choices.index(value)]
        return choice if same(value, choice) else None
    if isinstance(value, float):
        for choice in choices:
            if isinstance(choice, float) and math.isclose(value, choice, rel_tol=SAME_FLOAT):
                return choice
    return None
