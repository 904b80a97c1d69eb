"""Configurations that were built already, so that a duplicate is known without a build."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.search_space import Parameter
from paceline.study.samplers.values import Chooser


class Tried:
    """The configurations that builds of this process have met, as paths of choices.

    A build that makes the same choices asks for the same parameters, so a path that is known from
    end to end needs no build to be recognised. Paths of an earlier process are not taken: the user
    may have changed the build since.
    """

    def __init__(self) -> None:
        # Values chosen so far -> the parameter asked for next; None where the build ended.
        self._next: dict[tuple[Any, ...], Parameter | None] = {}

    def add(self, choices: Iterable[tuple[Parameter, Any]]) -> None:
        """Note a build that ended well, with the choices it asked for, in order."""
        path: tuple[Any, ...] = ()
        for parameter, value in choices:
            self._next[path] = parameter
            path += (value,)
        self._next[path] = None

    def leads_to_known(self, choose: Chooser) -> bool:
        """Return whether the choices of ``choose`` are those of a known configuration."""
        path: tuple[Any, ...] = ()
        while path in self._next:
            parameter = self._next[path]
            if parameter is None:
                return True
            path += (choose(parameter),)
        return False
