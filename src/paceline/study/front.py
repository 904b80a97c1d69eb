"""The front of several objectives: the points that no other point is better than throughout.

N: points. M: objectives. A loss is a value whose lower end is the good one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def front_of(losses: Sequence[Sequence[float]]) -> list[int]:
    """Return the positions of the points that no other point dominates, in their order.

    A point dominates another where no loss of it is higher and one is lower. Points that are equal
    do not dominate each other: all of them are of the front. ``losses`` are f64[N, M], without NaN.
    """
    points = np.asarray(losses, dtype=np.float64)
    if not len(points):
        return []
    # Sorted by their losses, a point is dominated by earlier points alone, so the first of those
    # that are left is of the front. What it dominates need not be looked at any more.
    left = np.lexsort(points.T[::-1])
    found: list[int] = []
    while len(left):
        point, others = points[left[0]], points[left[1:]]
        found.append(int(left[0]))
        left = left[1:][~((point <= others).all(axis=1) & (point < others).any(axis=1))]
    return sorted(found)


def best_of(losses: Sequence[Sequence[float]], n: int) -> list[int]:
    """Return the positions of at least ``n`` points: the front, the front of the others, and so on.

    The last front is taken as a whole; all points if there are fewer.
    """
    left = list(range(len(losses)))
    found: list[int] = []
    while left and len(found) < n:
        front = {left[place] for place in front_of([losses[i] for i in left])}
        found += sorted(front)
        left = [place for place in left if place not in front]
    return sorted(found)
