"""Structure: which parameters decide the program of a trial, learnt from those that have one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_ABSENT = object()


class StructuralParameters:
    """The structural parameters, as far as trials have shown them.

    A parameter in which two trials of one program differ is not structural. Of the others, as few
    as tell the programs apart are taken to be, those with the most values first. So each new trial
    can only show that one more is needed, or that one of them is not: a guess that is wrong does
    not last. Parameters that matter for some values only (a dropout rate that may be 0) are not
    structural here: programs that nothing else tells apart stay in one family.
    """

    def __init__(self) -> None:
        self._names: tuple[str, ...] | None = ()  # None: to be found anew
        # Program -> stored values of its first trial; in what is not free, its trials are alike.
        self._first: dict[str, dict[str, Any]] = {}
        self._free: set[str] = set()
        self._finite: dict[str, None] = {}  # a set in the order met

    def learn(self, program: str, values: Mapping[str, Any], finite: Iterable[str]) -> None:
        """Learn from a trial.

        Args:
            program: Name of its program.
            values: Storage name -> stored value, only of the active parameters.
            finite: Those of them that have finitely many values; a continuous number is taken to
                be none of the structure.
        """
        self._finite |= dict.fromkeys(finite)
        first = self._first.get(program)
        if first is None:
            self._first[program] = dict(values)
            self._names = None
            return
        free = {
            name
            for name in first.keys() | values.keys()
            if first.get(name, _ABSENT) != values.get(name, _ABSENT)
        }
        if not free <= self._free:
            self._free |= free
            self._names = None

    @property
    def names(self) -> tuple[str, ...]:
        """Storage names of the structural parameters; none while one program is known."""
        if self._names is None:
            self._names = tuple(self._separating())
        return self._names

    @property
    def n_programs(self) -> int:
        """How many programs trials have fallen into."""
        return len(self._first)

    def of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of a trial's stored values that are structural; only of active parameters.

        A draw that agrees with them has the same structure, whatever it holds for parameters that
        are not active there.
        """
        return {name: values[name] for name in self.names if name in values}

    def _separating(self) -> list[str]:
        """Return parameters that tell programs apart, each time the one that tells most.

        One that is not always active is left for last: what activates it comes before, since a
        draw does not tell whether it would be asked for.
        """
        candidates = [name for name in self._finite if name not in self._free]
        names: list[str] = []
        alike = [list(self._first.values())]
        for absent in (False, True):
            while len(alike) < len(self._first):
                splits = {name: _split(alike, name, absent) for name in candidates}
                best = max(splits, key=lambda name: len(splits[name]), default=None)
                if best is None or len(splits[best]) == len(alike):
                    break  # nothing tells the others apart
                names.append(best)
                alike = splits[best]
        return names


def _split(
    alike: list[list[dict[str, Any]]], name: str, absent: bool
) -> list[list[dict[str, Any]]]:
    """Split lists of trials by their values of one parameter.

    Args:
        alike: The lists.
        name: The parameter.
        absent: Whether a list is split where some trials do not have it.
    """
    parts: list[list[dict[str, Any]]] = []
    for trials in alike:
        by_value: dict[Any, list[dict[str, Any]]] = {}
        for values in trials:
            by_value.setdefault(values.get(name, _ABSENT), []).append(values)
        parts += by_value.values() if absent or _ABSENT not in by_value else [trials]
    return parts
