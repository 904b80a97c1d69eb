"""The random methods of Talos, which choose the permutations to try if there is a limit."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.compat.talos.errors import TalosDataError, TalosParamsError

Draw = Callable[[int, int, np.random.Generator], list[int]]


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
    return METHODS[random_method](min(n, n_all), n_all, np.random.default_rng(seed))


def check_method(random_method: str) -> None:
    """Checks the name of a random method.

    Raises:
        TalosParamsError: The method is unknown.
    """
    if random_method not in METHODS:
        raise TalosParamsError(
            f"random_method: {random_method!r} is not one of {', '.join(METHODS)}."
        )


def _mersenne(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    twister = np.random.Generator(np.random.MT19937(int(rng.integers(2**63))))
    return _different(n, n_all, lambda k: twister.integers(n_all, size=k), twister)


def _crypto(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    """Random numbers of the operating system, on which a seed has no effect, as in Talos."""
    system = np.random.default_rng(secrets.randbits(128))
    return _different(n, n_all, lambda k: [secrets.randbelow(n_all) for _ in range(k)], system)


def _different(
    n: int, n_all: int, draw: Callable[[int], object], rng: np.random.Generator
) -> list[int]:
    """Different numbers below n_all; a few of many are drawn without a list of all numbers."""
    if n > n_all // 4:
        return [int(i) for i in rng.permutation(n_all)[:n]]
    found: dict[int, None] = {}
    while len(found) < n:
        found.update(dict.fromkeys(int(i) for i in draw(n - len(found))))  # type: ignore[attr-defined]
    return list(found)[:n]


def _quasi(kind: str) -> Draw:
    def draw(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
        from scipy.stats import qmc

        seed = int(rng.integers(2**31))
        kinds: Any = (qmc.Sobol, qmc.Halton)  # their keyword for the seed differs between versions
        engine = kinds[kind != "sobol"](1, seed=seed)
        found: dict[int, None] = {}
        for attempt in range(64):
            if len(found) >= n:
                break
            # Sobol's points are spread evenly only if their number is a power of two.
            points = engine.random(1 << max(1, (n - 1).bit_length() + min(attempt, 4)))[:, 0]
            found.update(dict.fromkeys(int(p * n_all) for p in points))
        if len(found) < n:  # the points may miss some if nearly all are wanted
            left = set(range(n_all)).difference(found)
            found.update(dict.fromkeys(sorted(left)))
        return list(found)[:n]

    return draw


def _latin(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    """One number from each of n equal parts, in random order."""
    edges = np.linspace(0, n_all, n + 1).astype(int)
    picks = [int(rng.integers(low, high)) for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return [picks[i] for i in rng.permutation(n)]


def _latin_improved(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    """As ``_latin``, but of some candidates each pick is the one farthest from earlier picks."""
    edges = np.linspace(0, n_all, n + 1).astype(int)
    picks: list[int] = []
    for part in rng.permutation(n):
        some = rng.integers(edges[part], edges[part + 1], size=8)
        near = [min((abs(int(s) - p) for p in picks[-64:]), default=0) for s in some]
        picks.append(int(some[int(np.argmax(near))]))
    return picks


def _korobov(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    """A Korobov lattice: multiples of a number near the golden section, coprime to ``n_all``."""
    step = max(1, round(n_all * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, n_all) != 1:
        step += 1
    start = int(rng.integers(n_all))
    return [(start + i * step) % n_all for i in range(n)]


#: Name of each method of Talos -> its function. Two methods of Talos ask a service on the internet
#: for random numbers; here the operating system gives them, as for ``uniform_crypto``.
METHODS: dict[str, Draw] = {
    "uniform_mersenne": _mersenne,
    "uniform_crypto": _crypto,
    "quantum": _crypto,
    "ambience": _crypto,
    "sobol": _quasi("sobol"),
    "halton": _quasi("halton"),
    "korobov_matrix": _korobov,
    "latin_matrix": _latin,
    "latin_sudoku": _latin,
    "latin_improved": _latin_improved,
}
