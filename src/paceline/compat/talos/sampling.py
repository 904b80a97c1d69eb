"""Which permutations are tried when there are limits: Talos' random methods."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.compat.talos.errors import TalosDataError, TalosParamsError

Draw = Callable[[int, int, np.random.Generator], list[int]]


def sample(limit: float | int, n_all: int, random_method: str, seed: int | None) -> list[int]:
    """Numbers of different permutations.

    Args:
        limit: A fraction (float) or a number (int) of them.
        n_all: How many there are.
        random_method: One of ``METHODS``.
        seed: Decides them; None: another draw each time.

    Raises:
        TalosParamsError: An unknown method.
        TalosDataError: The limit leaves none.
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
        TalosParamsError: It is unknown.
    """
    if random_method not in METHODS:
        raise TalosParamsError(
            f"random_method: {random_method!r} is not one of {', '.join(METHODS)}."
        )


def _mersenne(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    twister = np.random.Generator(np.random.MT19937(int(rng.integers(2**63))))
    return _different(n, n_all, lambda k: twister.integers(n_all, size=k), twister)


def _crypto(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    """From the operating system: no seed decides it, as Talos says of it."""
    system = np.random.default_rng(secrets.randbits(128))
    return _different(n, n_all, lambda k: [secrets.randbelow(n_all) for _ in range(k)], system)


def _different(
    n: int, n_all: int, draw: Callable[[int], object], rng: np.random.Generator
) -> list[int]:
    """Different numbers below n_all, without a list of all where they are few of them."""
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
        kinds: Any = (qmc.Sobol, qmc.Halton)  # the name of their argument is changing
        engine = kinds[kind != "sobol"](1, seed=seed)
        found: dict[int, None] = {}
        for attempt in range(64):
            if len(found) >= n:
                break
            # A power of two is what Sobol's points are even in.
            points = engine.random(1 << max(1, (n - 1).bit_length() + min(attempt, 4)))[:, 0]
            found.update(dict.fromkeys(int(p * n_all) for p in points))
        if len(found) < n:  # the points leave some out of a space that is nearly all wanted
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
    """Parts as in ``_latin``, each pick the farthest of some from those before it."""
    edges = np.linspace(0, n_all, n + 1).astype(int)
    picks: list[int] = []
    for part in rng.permutation(n):
        some = rng.integers(edges[part], edges[part + 1], size=8)
        near = [min((abs(int(s) - p) for p in picks[-64:]), default=0) for s in some]
        picks.append(int(some[int(np.argmax(near))]))
    return picks


def _korobov(n: int, n_all: int, rng: np.random.Generator) -> list[int]:
    """A lattice: multiples of a number without a common factor, near the golden section."""
    step = max(1, round(n_all * (math.sqrt(5) - 1) / 2))
    while math.gcd(step, n_all) != 1:
        step += 1
    start = int(rng.integers(n_all))
    return [(start + i * step) % n_all for i in range(n)]


#: What Talos knows. Two of its methods ask a service in the net for numbers: here they come from
#: the operating system, as for ``uniform_crypto``.
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
