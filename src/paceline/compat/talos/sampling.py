"""The random methods of Talos, which choose the permutations to try if there is a limit.

From a seed each method draws what Talos 2.0.10 draws. Several of Talos' methods make a number for
every permutation of the space, so that a space of billions does not fit into memory: in spaces
above ``_LARGE`` they draw by other means, and then differ from Talos.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Iterable

import numpy as np

from paceline.compat.talos.errors import TalosDataError, TalosParamsError

Draw = Callable[[int, int, int | None], list[int]]
#: Permutations of a space for each of which a number can be made in well under a second.
_LARGE = 2**22
#: Comparisons of picks and candidates that take about a second.
_MANY = 10**9


def sample(limit: float | int, n_all: int, random_method: str, seed: int | None) -> list[int]:
    """Draws different permutations, and returns their numbers.

    Args:
        limit: A fraction (float) or a number (int) of permutations.
        n_all: Number of all permutations.
        random_method: One of ``METHODS``.
        seed: Decides what is drawn; None: another draw each time.

    Raises:
        TalosParamsError: The method is unknown.
        TalosDataError: The limit leaves no permutation.
    """
    check_method(random_method)
    n = int(n_all * limit) if isinstance(limit, float) else int(limit)
    if n < 1:
        raise TalosDataError(
            f"fraction_limit, round_limit: {limit!r} of {n_all} permutations is less than 1; "
            "give a larger limit."
        )
    return METHODS[random_method](min(n, n_all), n_all, seed)


def check_method(random_method: str) -> None:
    """Checks the name of a random method.

    Raises:
        TalosParamsError: The method is unknown.
    """
    if random_method not in METHODS:
        raise TalosParamsError(
            f"random_method: {random_method!r} is not one of {', '.join(METHODS)}."
        )


def _mersenne(n: int, n_all: int, seed: int | None) -> list[int]:
    return random.Random(seed).sample(range(n_all), n)


def _crypto(n: int, n_all: int, seed: int | None) -> list[int]:
    """Random numbers of the operating system, on which a seed has no effect, as in Talos."""
    return secrets.SystemRandom().sample(range(n_all), n)


def _korobov(n: int, n_all: int, seed: int | None) -> list[int]:
    """A Korobov lattice: multiples of a number near the golden section, coprime to ``n_all``."""
    step = max(1, int(n_all * 0.6180339887498949))
    while math.gcd(step, n_all) != 1:
        step += 1
    return [i * step % n_all for i in range(n)]


def _latin_improved(n: int, n_all: int, seed: int | None) -> list[int]:
    """Each pick is the one of 100 random permutations that is farthest from all earlier picks."""
    if n * max(100 * n, n_all) > _MANY:
        return _one_of_each_part(n, n_all, seed)
    rng = np.random.default_rng(seed)
    left = np.arange(n_all)
    first = int(rng.integers(n_all))
    picks, left = [first], np.delete(left, first)
    while len(picks) < n:
        some = rng.choice(left, size=min(100, len(left)), replace=False)
        apart = np.abs(np.array(picks)[:, None] - some)
        nearest = np.minimum(apart, n_all - apart).min(axis=0)  # the space is a circle
        pick = int(some[int(np.argmax(nearest))])
        picks.append(pick)
        left = np.delete(left, np.searchsorted(left, pick))
    return picks


def _sobol(n: int, n_all: int, seed: int | None) -> list[int]:
    from scipy.stats import qmc

    if n_all > _LARGE:
        points = qmc.Sobol(1, scramble=False).random_base2((2 * n - 1).bit_length())
        return _different(points[:, 0], n, n_all)
    points = qmc.Sobol(1, scramble=False).random_base2(math.ceil(math.log2(n_all)))
    return _smallest(points[:n_all, 0], n)


def _halton(n: int, n_all: int, seed: int | None) -> list[int]:
    from scipy.stats import qmc

    if n_all > _LARGE:
        return _different(qmc.Halton(1, scramble=False).random(2 * n)[:, 0], n, n_all)
    return _smallest(qmc.Halton(1, scramble=False).random(n_all)[:, 0], n)


def _latin(n: int, n_all: int, seed: int | None) -> list[int]:
    """A Latin hypercube of one dimension with a part for each permutation: a random order."""
    if n_all > _LARGE:
        return _one_of_each_part(n, n_all, seed)
    rng = np.random.default_rng(seed)
    rng.uniform(size=n_all)  # SciPy draws each point's place in its part; the order has none of it
    order = np.arange(n_all)
    rng.shuffle(order)
    return _smallest(order, n)


def _smallest(points: np.ndarray, n: int) -> list[int]:
    """The permutations whose points, [n_all], are smallest, the smallest first."""
    return np.argsort(points, kind="stable")[:n].tolist()


def _different(points: Iterable[float], n: int, n_all: int) -> list[int]:
    """The first n different permutations at points in 0 to 1."""
    found = dict.fromkeys(int(point * n_all) for point in points)
    for number in range(n_all):  # points may fall on the same permutation
        if len(found) >= n:
            break
        found.setdefault(number)
    return list(found)[:n]


def _one_of_each_part(n: int, n_all: int, seed: int | None) -> list[int]:
    """One permutation from each of n equal parts, in random order."""
    rng = np.random.default_rng(seed)
    edges = [part * n_all // n for part in range(n + 1)]
    picks = [int(rng.integers(low, high)) for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return [picks[i] for i in rng.permutation(n)]


#: Name of each method of Talos -> its function. Two methods of Talos ask a service on the internet
#: for random numbers; here the operating system gives them, as for ``uniform_crypto``.
METHODS: dict[str, Draw] = {
    "uniform_mersenne": _mersenne,
    "uniform_crypto": _crypto,
    "quantum": _crypto,
    "ambience": _crypto,
    "sobol": _sobol,
    "halton": _halton,
    "korobov_matrix": _korobov,
    "latin_matrix": _latin,
    "latin_sudoku": _latin,
    "latin_improved": _latin_improved,
}
