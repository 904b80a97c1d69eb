"""Draws: the configurations of random search, numbered, in whatever order they are tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paceline.search_space import Parameter
from paceline.study.samplers.values import Chooser, random_chooser, random_value

#: Storage name -> stored value of the structural parameters that are active.
Values = Mapping[str, Any]


class RandomDraws:
    """Keeps the draws that are next in a pool, from which they are tried by structure.

    What draw n holds follows from the study's seed and n. The pool is filled in the order of
    numbers and never holds more draws than trials are sure to be run, so what has been tried when
    it is empty is what the plain order would have tried. A search that goes on after a crash fills
    it with what was left.
    """

    def __init__(self, seed: int, used: Iterable[int]) -> None:
        """Begin, or go on.

        Args:
            seed: The study's.
            used: Numbers of draws that earlier sessions have tried.
        """
        taken = frozenset(used)
        self.used = set(taken)  # those that have been tried, or turned down
        self._seed = seed
        self._fresh = (number for number in itertools.count() if number not in taken)
        self._pool: dict[int, dict[str, Any]] = {}  # number -> what is known of its stored values

    def fill(self, size: int) -> None:
        """Take draws into the pool, up to ``size``; one at least."""
        while len(self._pool) < max(1, size):
            self._pool[next(self._fresh)] = {}

    def chooser(self, number: int) -> Chooser:
        """Return the chooser of a draw."""
        return random_chooser(self._seed, number)

    def done(self, number: int) -> None:
        """Note that a draw was tried, or had been tried before."""
        del self._pool[number]
        self.used.add(number)

    @property
    def first(self) -> int:
        """The first draw of the pool."""
        return next(iter(self._pool))

    def like(self, values: Values, parameters: Mapping[str, Parameter]) -> list[int]:
        """Return the draws of the pool that have these values, the first first."""
        return [
            number
            for number in self._pool
            if all(self._value(number, parameters[name]) == value for name, value in values.items())
        ]

    def of_largest(
        self, known: Iterable[Values], names: Sequence[str], parameters: Mapping[str, Parameter]
    ) -> int:
        """Return the first draw of the pool's largest family; of equal ones the first to come.

        Args:
            known: The structures of earlier trials. They tell what would not be asked for: draws
                that differ there alone are of one family.
            names: The structural parameters.
            parameters: Storage name -> parameter.
        """
        families: dict[tuple[Any, ...], list[int]] = {}
        for number in self._pool:
            key = tuple(self._value(number, parameters[name]) for name in names)
            families.setdefault(key, []).append(number)
        for values in known:
            if len(values) < len(names):
                asked = [(i, values[name]) for i, name in enumerate(names) if name in values]
                alike = [key for key in families if all(key[i] == value for i, value in asked)]
                if alike:
                    families[alike[0]] = sorted(n for key in alike for n in families.pop(key))
        return max(families.values(), key=lambda found: (len(found), -found[0]))[0]

    def _value(self, number: int, parameter: Parameter) -> Any:
        """Return the stored value that a draw has for a parameter."""
        known, name = self._pool[number], parameter.storage_name
        if name not in known:
            known[name] = parameter.to_storage(random_value(parameter, self._seed, number))
        return known[name]
