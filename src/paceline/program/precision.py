"""The precision that models are built and traced in: Keras' dtype policy, for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import keras

from paceline.errors import UsageError

#: As users name it -> Keras' policy.
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}


def check_precision(name: str | None) -> str | None:
    """Returns the name if it is known.

    Raises:
        UsageError: It is not.
    """
    if name is not None and name not in POLICIES:
        raise UsageError(f"precision: {name!r} is not one of {', '.join(POLICIES)}.")
    return name


@contextlib.contextmanager
def policy_of(name: str | None) -> Iterator[None]:
    """Keras' policy is the one meant inside, and as it was after; None changes nothing.

    A ``build`` that sets a policy of its own, or gives layers a dtype, has its way.
    """
    if name is None:
        yield
        return
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(POLICIES[name])
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
