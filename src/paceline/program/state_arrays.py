"""Parts of arrays by name: how the variables of a trial are laid into a flat dict of arrays.

A trial's variables come in parts (trainable, non-trainable, optimizer and metric variables), and
a part is a list of arrays. A checkpoint holds arrays by name. Array ``at`` of part ``part`` is
called ``NAME.PART.AT``, or ``PART.AT`` where the parts have no name of their own. Files hold these
names: they stay as they are.

The module stands in ``program``, beside ``trace.State``, because ``executor`` and ``tuner`` both
write checkpoints and ``executor`` must not import ``tuner``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def put_parts(
    name: str, parts: Sequence[Sequence[np.ndarray]], arrays: dict[str, np.ndarray]
) -> list[int]:
    """Adds parts to a dict of arrays.

    Args:
        name: The name of the parts; empty for none.
        parts: Lists of arrays of any shape and dtype, on the host or on a device.
        arrays: Name -> array on the host; what is added shares memory with ``parts`` where it can.

    Returns:
        The number of arrays of each part, which ``get_parts`` needs.
    """
    for part, leaves in enumerate(parts):
        for at, leaf in enumerate(leaves):
            arrays[_key(name, part, at)] = np.asarray(leaf)
    return [len(leaves) for leaves in parts]


def get_parts(
    name: str, sizes: Sequence[int], arrays: Mapping[str, np.ndarray]
) -> list[list[np.ndarray]]:
    """Finds the parts that ``put_parts`` has added.

    Args:
        name: The name of the parts; empty for none.
        sizes: The number of arrays of each part.
        arrays: Name -> array.

    Raises:
        KeyError: An array is missing.
    """
    return [[arrays[_key(name, part, at)] for at in range(n)] for part, n in enumerate(sizes)]


def _key(name: str, part: int, at: int) -> str:
    return f"{name}.{part}.{at}" if name else f"{part}.{at}"
