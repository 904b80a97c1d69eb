"""Draws: the configurations of random search, numbered, in whatever order they are tried."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.samplers import Chooser, random_chooser, random_value
from paceline.search_space import Parameter


class Draws:
    """Hands out draws, those of one structure after another.

    What draw n holds follows from the study's seed and n. Draws are taken a window at a time: the
    lowest numbers that were not tried, no more than trials are sure to be run. So the order in a
    window changes nothing in what has been tried when it is empty, and a search that goes on after
    a crash begins with what was left.
    """

    def __init__(self, seed: int, used: Iterable[int]) -> None:
        """Begin, or go on.

        Args:
            seed: The study's.
            used: Numbers of draws that earlier sessions have tried.
        """
        taken = frozenset(used)
        self._seed = seed
        self._fresh = (number for number in itertools.count() if number not in taken)
        self._window: list[int] = []
        self._known: dict[tuple[int, str], Any] = {}  # what draws of the window hold

    def next(
        self, size: int, structure: Mapping[str, Any], parameters: Mapping[str, Parameter]
    ) -> int:
        """Return the next draw, which is the next one again until it is ``done``.

        Args:
            size: Draws of a new window; 1 is the plain order.
            structure: Storage name -> stored value; the first draw that agrees is taken, or, where
                none does, the first of all.
            parameters: Storage name -> parameter.
        """
        if not self._window:
            self._window = list(itertools.islice(self._fresh, max(1, size)))
            self._known.clear()
        found = self._agreeing(structure, parameters)
        return self._window[0] if found is None else found

    def agree(self, structure: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> bool:
        """Return whether there are draws of the window that agree with ``structure``."""
        return self._agreeing(structure, parameters) is not None

    def chooser(self, number: int) -> Chooser:
        """Return the chooser of a draw."""
        return random_chooser(self._seed, number)

    def done(self, number: int) -> None:
        """Note that a draw was tried, or had been tried before."""
        self._window.remove(number)

    def _agreeing(
        self, structure: Mapping[str, Any], parameters: Mapping[str, Parameter]
    ) -> int | None:
        for number in self._window:
            if all(
                self._value(number, parameters[name]) == value for name, value in structure.items()
            ):
                return number
        return None

    def _value(self, number: int, parameter: Parameter) -> Any:
        """Return the stored value that a draw has for a parameter."""
        key = number, parameter.storage_name
        if key not in self._known:
            self._known[key] = parameter.to_storage(random_value(parameter, self._seed, number))
        return self._known[key]
