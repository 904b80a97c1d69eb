"""The permutations of a params dictionary, and the random methods that choose among them."""

from __future__ import annotations

import copy
import math
import random
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from paceline.compat.talos.errors import TalosDataError, TalosParamsError, TalosTypeError

_TIME = "%Y-%m-%d %H:%M"
#: Size of a space for whose permutations numbers can be made in well under a second.
_LARGE = 2**22
#: Comparisons of picks and candidates that take about a second.
_MANY = 10**9


class ParamSpace:
    """The permutations of a params dictionary to try, and which of them are left.

    Args:
        params: Name -> list of values, or ``(start, end, steps)``.
        param_keys: The names to use; None: all.
        random_method: How permutations are drawn if a limit leaves some out. Without a limit they
            are tried in order, and the last name varies fastest.
        fraction_limit: Share of the permutations to try.
        round_limit: Number of permutations to try.
        time_limit: ``"%Y-%m-%d %H:%M"``: no permutation begins after that time.
        boolean_limit: ``function(params) -> bool``; permutations with a false value are left out.
        seed: Decides the permutations that are drawn.

    Attributes:
        param_space: Permutations, one list of values each, in the order of ``param_keys``.
        param_index: Rows of ``param_space`` that are left, in order.
        numbers: For each row of ``param_space``, its number among all permutations.
        dimensions: Number of all permutations of the dictionary.

    Raises:
        TalosParamsError, TalosTypeError: The dictionary or a limit cannot work.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        param_keys: Iterable[str] | None = None,
        random_method: str = "uniform_mersenne",
        fraction_limit: float | None = None,
        round_limit: int | None = None,
        time_limit: str | None = None,
        boolean_limit: Callable[[dict[str, Any]], Any] | None = None,
        seed: int | None = None,
    ) -> None:
        if not isinstance(params, Mapping):
            raise TalosTypeError(
                f"params must be a dictionary or a ParamSpace, got {type(params).__name__}. Pass a "
                "dictionary of lists, such as {'lr': [0.1, 0.01]}."
            )
        if not params:
            raise TalosParamsError("params must have a parameter to vary, got an empty dictionary.")
        self.params = params
        self.param_keys = list(params if param_keys is None else param_keys)
        self.random_method, self.seed = random_method, seed
        self.fraction_limit, self.round_limit = fraction_limit, round_limit
        self.boolean_limit = boolean_limit
        self.time_limit = time_limit
        self._ends = None if time_limit is None else _moment(time_limit)
        self.p = {name: _values(name, params[name]) for name in self.param_keys}
        self.dimensions = math.prod(len(values) for values in self.p.values())
        self.round_counter = 0
        limit = round_limit if fraction_limit is None else float(fraction_limit)
        check_method(random_method)
        drawn: Iterable[int] = range(self.dimensions)
        if limit is not None:
            drawn = sample(limit, self.dimensions, random_method, seed)
        self.take(drawn)
        if boolean_limit is not None:
            self.take(
                number
                for number, row in zip(self.numbers, self.param_space, strict=True)
                if boolean_limit(self._as_dict(row))
            )
            if not self.param_space:
                raise TalosParamsError(
                    "boolean_limit must be true for some permutations, and it is false for all."
                )

    def __len__(self) -> int:
        return len(self.param_index)

    def take(self, numbers: Iterable[int]) -> None:
        """Makes the permutations of these numbers the space, in this order."""
        self.numbers = list(numbers)
        self.param_space = [self._row(number) for number in self.numbers]
        self.param_index = list(range(len(self.param_space)))

    def parameters(self, row: int) -> dict[str, Any]:
        """Returns a row of ``param_space``, name -> value."""
        return self._as_dict(self.param_space[row])

    def round_parameters(self) -> dict[str, Any] | bool:
        """Returns the next permutation, name -> value; False if none is left or the time is up."""
        if not self.param_index or not self._check_time_limit():
            return False
        self.round_counter += 1
        return self.parameters(self.param_index.pop(0))

    def why_none(self) -> str:
        """Returns why ``round_parameters`` has returned none."""
        if self.param_index:
            return f"time_limit {self.time_limit} is in the past"
        return "the space has no permutation left. Make a new ParamSpace for each scan"

    def put_in_order(self, order: str | None) -> None:
        """Sorts the rows that are left, as ``search_method`` of 2018; None: the order stays."""
        if order == "random":
            rng = np.random.default_rng(self.seed)
            self.param_index = [self.param_index[i] for i in rng.permutation(len(self))]
        elif order is not None:
            self.param_index.sort(reverse=order == "reverse")

    def _check_time_limit(self) -> bool:
        return self._ends is None or datetime.now() < self._ends

    def _row(self, number: int) -> list[Any]:
        """The values of a permutation; the last name varies fastest."""
        values: list[Any] = []
        for name in reversed(self.param_keys):
            number, at = divmod(number, len(self.p[name]))
            values.append(self.p[name][at])
        return values[::-1]

    def _as_dict(self, row: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self.param_keys, row, strict=True))

    # -- removing permutations ---------------------------------------------------------------------

    def remove_is(self, label: str, value: Any) -> None:
        """Removes the permutations that have a value."""
        self._keep(lambda params: not _same(params[label], value))

    def remove_is_not(self, label: str, value: Any) -> None:
        """Removes all permutations but those that have a value."""
        self._keep(lambda params: _same(params[label], value))

    def remove_ge(self, label: str, value: Any) -> None:
        """Removes the permutations with this value or a greater one."""
        self._keep(lambda params: not params[label] >= value)

    def remove_le(self, label: str, value: Any) -> None:
        """Removes the permutations with this value or a smaller one."""
        self._keep(lambda params: not params[label] <= value)

    def remove_lambda(self, function: Callable[[dict[str, Any]], Any]) -> None:
        """Removes the permutations for which a function is false."""
        self._keep(function)

    def _keep(self, wanted: Callable[[dict[str, Any]], Any]) -> None:
        space = self.param_space
        self.param_index = [i for i in self.param_index if wanted(self._as_dict(space[i]))]


class DistributeParamSpace:
    """A space in parts, one for each machine.

    Args:
        params, param_keys, random_method, fraction_limit, round_limit, time_limit, boolean_limit,
            seed: As for ``ParamSpace``.
        machines: Number of machines.

    Attributes:
        param_spaces: Number of the machine -> its ``ParamSpace``.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        param_keys: Iterable[str] | None = None,
        random_method: str = "uniform_mersenne",
        fraction_limit: float | None = None,
        round_limit: int | None = None,
        time_limit: str | None = None,
        boolean_limit: Callable[[dict[str, Any]], Any] | None = None,
        machines: int = 2,
        seed: int | None = None,
    ) -> None:
        if not isinstance(machines, int) or isinstance(machines, bool) or machines < 1:
            raise TalosParamsError(f"machines must be a positive integer, got {machines!r}.")
        self.machines = machines
        self.param_spaces: dict[int, ParamSpace] = {}
        # All machines must divide the same permutations. Without a fixed seed, each would draw
        # different ones.
        arguments = (params, param_keys, random_method, fraction_limit, round_limit, time_limit)
        seed = 0 if seed is None else seed
        whole = ParamSpace(*arguments, boolean_limit, seed)
        order = list(range(len(whole)))
        random.Random(seed).shuffle(order)
        for machine, part in enumerate(np.array_split(np.array(order, dtype=int), machines)):
            space = copy.copy(whole)
            space.take(whole.numbers[row] for row in part)
            space.dimensions = len(space)
            self.param_spaces[machine] = space


def _values(name: str, given: Any) -> list[Any]:
    if isinstance(given, tuple):
        return _range(name, given)
    if isinstance(given, np.ndarray) and given.ndim == 1:
        given = given.tolist()
    if not isinstance(given, list):
        raise TalosTypeError(
            f"params[{name!r}] must be a list of values or (start, end, steps), got {given!r}. "
            f"For one value, write [{given!r}]."
        )
    if not given:
        raise TalosParamsError(
            f"params[{name!r}] must have at least one value, got an empty list. Add a value, or "
            "remove the name."
        )
    return list(given)


def _range(name: str, given: tuple[Any, ...]) -> list[Any]:
    """Values from start to below end; integers if start and end are integers."""
    numbers = len(given) == 3 and all(
        isinstance(v, (int, float, np.number)) and not isinstance(v, bool) for v in given
    )
    if not numbers or given[0] == given[1] or given[2] < 1:
        raise TalosParamsError(
            f"params[{name!r}] must be (start, end, steps) with two different numbers and at least "
            f"1 step, got {given!r}. To list the values themselves, write a list."
        )
    start, end, steps = given
    values = np.arange(start, end, (end - start) / steps, dtype=float)
    if isinstance(start, (int, np.integer)) and isinstance(end, (int, np.integer)):
        return np.unique(values.astype(int)).tolist()
    return values.tolist()


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal and either both bool or neither; arrays must equal entirely."""
    if isinstance(one, bool) is not isinstance(other, bool):
        return False
    try:
        return bool(np.all(one == other)) and np.shape(one) == np.shape(other)
    except (TypeError, ValueError):
        return one is other


def _moment(text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME)
    except (TypeError, ValueError) as error:
        raise TalosParamsError(
            f"time_limit must be a date and time such as '2026-12-31 18:00', got {text!r}."
        ) from error


# -- random methods --------------------------------------------------------------------------------
# From the same seed each method draws the same permutations as Talos 2.0.10. Several of Talos'
# methods make a number for every permutation, and a space of billions does not fit into memory. In
# spaces above ``_LARGE`` these methods draw in another way, and differ from Talos.


def sample(limit: float | int, n_all: int, random_method: str, seed: int | None) -> list[int]:
    """Draws different permutations, a fraction (float) or a number; returns their numbers."""
    check_method(random_method)
    n = int(n_all * limit) if isinstance(limit, float) else int(limit)
    if n < 1:
        raise TalosDataError(
            f"fraction_limit and round_limit must leave at least 1 permutation, got {limit!r} of "
            f"{n_all}. Pass a larger limit."
        )
    return METHODS[random_method](min(n, n_all), n_all, seed)


def check_method(random_method: str) -> None:
    """Checks the name of a random method."""
    if random_method not in METHODS:
        raise TalosParamsError(
            f"random_method must be one of {', '.join(METHODS)}, got {random_method!r}."
        )


def _mersenne(n: int, n_all: int, seed: int | None) -> list[int]:
    return random.Random(seed).sample(range(n_all), n)


def _crypto(n: int, n_all: int, seed: int | None) -> list[int]:
    """Random numbers of the operating system; a seed has no effect, as in Talos."""
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
    rng.uniform(size=n_all)  # SciPy draws each point's place in its part before the order
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


#: Name of each method of Talos -> its function. In Talos, "quantum" and "ambience" ask a server for
#: random numbers. Here the operating system draws them, as for ``uniform_crypto``.
METHODS: dict[str, Callable[[int, int, int | None], list[int]]] = {
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
