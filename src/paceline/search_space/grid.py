"""The walk of a grid: every configuration of a space in turn, without knowing the space before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from paceline.search_space.parameter import Parameter


class GridWalk:
    """Walks every configuration by running build once for each.

    It starts with the first value everywhere. ``advance`` turns the parameter that the last build
    asked for last; those after it are forgotten, because another value may make build ask for
    others. So a conditional space is walked as a tree, each leaf once.

    Use::

        grid, more = GridWalk(), True
        while more:
            build(HyperParameters(chooser=grid.chooser()))
            more = grid.advance()
    """

    def __init__(self, *, every: bool = False) -> None:
        """Start at the first configuration.

        ``every``: walk all values of an int on a log scale, not 10 of them: then a finite space is
        walked completely.
        """
        self._every = every
        # Storage name -> index of the value shown, outermost first.
        self._shown: dict[str, int] = {}
        # Storage name -> parameter of what the last build asked for.
        self._met: dict[str, Parameter] = {}
        self.done = False  # whether every configuration has been shown

    def chooser(self) -> Callable[[Parameter], Any]:
        """Return the chooser of the configuration now shown, for one run of build."""
        self._met = met = {}

        def choose(parameter: Parameter) -> Any:
            met[parameter.storage_name] = parameter
            index = self._shown.setdefault(parameter.storage_name, 0)
            values = parameter.values(every=self._every)
            # There may be fewer values than before: Space raises after the build then.
            return values[min(index, len(values) - 1)]

        return choose

    def advance(self) -> bool:
        """Show the next configuration, after a build; return False when there is none left."""
        while self._shown:
            name, index = self._shown.popitem()
            # A parameter that the last build did not ask for, although an earlier build with the
            # same values did, does not vary any more.
            parameter = self._met.get(name)
            if parameter is not None and index + 1 < len(parameter.values(every=self._every)):
                self._shown[name] = index + 1
                self._met = {}
                return True
        self.done = True
        return False

    def to_json(self) -> dict[str, Any]:
        """Return the configuration now shown as JSON values; ``from_json`` is the way back."""
        return {"every": self._every, "shown": dict(self._shown), "done": self.done}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GridWalk:
        """Return the walk that ``to_json`` described."""
        grid = cls(every=data["every"])
        grid._shown = dict(data["shown"])
        grid.done = data["done"]
        return grid
