"""Integers beyond the 32 bits that JAX keeps of 64: found, and sent to the device as floats.

JAX makes int32 of int64 without a word, and -1,294,967,296 of 3,000,000,000. On TensorFlow such
integers reach the model, which mostly casts them to floats at once: losses cast the targets, a
``keras.Input`` the features. So JAX is given these floats. ``executor/wide_integers.py`` makes sure
that a model does cast them. Arrays with such integers are called wide; ``find_wide`` of
``data/arrays.py`` finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from paceline.data.arrays import FLOAT, Wide, find_wide
from paceline.errors import DataError


def error_of(wide: Wide, what: str, why: str | None = None) -> DataError:
    """The error where an integer cannot be sent as a float: ``why``; None: no model casts it."""
    where, value = wide
    return DataError(
        f"{what}: {where} holds {value:,}, which needs more than the 32 bits that JAX keeps of an "
        f"integer, and {why or 'the model does not cast it to a float at once'}. Pass floats "
        "(.astype('float32')) or smaller integers (np.unique(values, return_inverse=True)[1])."
    )


def widest(one: Mapping[int, Wide], other: Mapping[int, Wide]) -> dict[int, Wide]:
    """What is known of both, of each array the integer farthest from zero."""
    each = {**other, **one}
    return {
        number: max(found, other.get(number, found), key=lambda wide: abs(wide[1]))
        for number, found in each.items()
    }


def as_floats(batch: Any, wide: Iterable[int], what: str) -> Any:
    """A nest of arrays whose wide ones, by leaf number, are floats; no other one may be wide."""
    leaves, nest = jax.tree.flatten(batch)
    for number in wide:
        leaves[number] = leaves[number].astype(FLOAT)
    cast = jax.tree.unflatten(nest, leaves)
    for found in find_wide(cast).values():
        raise error_of(found, what, "the data read before training need no more")
    return cast
