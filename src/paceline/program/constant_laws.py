"""How the constants of a step follow from a model's numbers, learnt from trials that were traced.

Each constant that differs between traced trials is explained as one of a few formulas of one number
(``1 - rate``, ``1 / (1 - rate)``, ``2 * l2``, ...), equal to the bit in every one of them. Keras
also decides by numbers: it drops a dropout of rate 0, and bounds or rounds may hide elsewhere. Such
decisions are made at thresholds, or at whole numbers. So a number is trusted strictly between
values that were traced and gave the same program, and never at a whole number that was not itself
traced. Whatever lies outside is traced, and widens what is known; one constant that no formula
explains ends it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paceline.program.canonical import Constant
from paceline.program.step_template import same

#: Trials that are traced before any is predicted.
ENOUGH = 4
#: Values of a number that are traced before values between them are trusted.
_VALUES = 3
#: Structures remembered: where each trial has its own, they must not pile up.
_STRUCTURES = 64
#: Traced trials whose numbers are kept.
_ROWS = 256
#: Those whose constants are kept, to explain later ones and for trials equal to them.
_REMEMBERED = 32

_FORMULAS: tuple[Callable[[float], float], ...] = (
    lambda v: v,
    lambda v: 1.0 - v,
    lambda v: 1.0 / (1.0 - v),
    lambda v: 2.0 * v,
    lambda v: -v,
    lambda v: 1.0 / v,
    lambda v: v * v,
    lambda v: 1.0 - (1.0 - v),
    lambda v: 0.5 * v,
    lambda v: v - 1.0,
    lambda v: v / (1.0 - v),
    lambda v: 1.0 + v,
    lambda v: v**0.5,
)

Numbers = tuple[float, ...]
Steps = list[tuple[Constant, ...]]
#: (number, formula)
Law = tuple[int, int]


class ConstantPredictor:
    """All that has been learnt, by structure.

    A structure may fall into several groups (a dropout of rate 0 is another program): each is
    learnt apart.
    """

    def __init__(self) -> None:
        self._shelves: OrderedDict[Any, list[GroupLaws]] = OrderedDict()

    def add(
        self, structure: Any, group: Any, numbers: Numbers, steps: Sequence[Sequence[Constant]]
    ) -> None:
        """Learns from a traced trial.

        Args:
            structure: Of its recipe, with whatever else its steps depend on (batch size).
            group: Key of the group it belongs to.
            numbers: Of its recipe.
            steps: The constants of its train step and, with validation data, its test step.
        """
        shelf = self._shelves.setdefault(structure, [])
        self._shelves.move_to_end(structure)
        if len(self._shelves) > _STRUCTURES:
            self._shelves.popitem(last=False)
        ours = next((learned for learned in shelf if learned.group == group), None)
        if ours is None:
            ours = GroupLaws(group)
            for other in shelf:
                for met in other.met:
                    ours.exclude(met)
            shelf.append(ours)
        ours.add(numbers, steps)
        for other in shelf:
            if other is not ours:
                other.exclude(numbers)

    def exclude(self, structure: Any, group: Any, numbers: Numbers) -> None:
        """Learns that a trial of the structure does not belong to a group met before."""
        for learned in self._shelves[structure]:
            if learned.group == group:
                learned.exclude(numbers)

    def shelves(self) -> Iterator[tuple[Any, list[GroupLaws]]]:
        """All structures, with what is known of them by group."""
        yield from self._shelves.items()

    def predict(self, structure: Any, numbers: Numbers) -> tuple[Any, Steps] | None:
        """The group of a trial and the constants of its steps; None where it has to be traced."""
        for learned in self._shelves.get(structure, ()):
            steps = learned.predict(numbers)
            if steps is not None:
                return learned.group, steps
        return None


@dataclass
class GroupLaws:
    """What is known of one structure within one group.

    Attributes:
        group: Key of the group that its traced trials belong to.
        hopeless: Nothing will be predicted but trials equal to traced ones.
    """

    group: Any
    hopeless: bool = False
    _traced: dict[Numbers, Steps] = field(default_factory=dict)
    _rows: list[Numbers] = field(default_factory=list)  # the numbers of traced trials
    _elsewhere: list[Numbers] = field(default_factory=list)  # and of those in other groups
    _laws: list[dict[int, list[Law]]] = field(default_factory=list)  # per step: constant -> laws
    _values: list[set[float]] = field(default_factory=list)  # per number: traced, not special
    _choices: tuple[int, ...] = ()  # numbers with few values
    _combinations: set[Numbers] = field(default_factory=set)  # of choices, traced

    @property
    def met(self) -> list[Numbers]:
        """Numbers of traced trials."""
        return self._rows

    @property
    def traced(self) -> dict[Numbers, Steps]:
        """Traced trials with their constants, up to a limit."""
        return self._traced

    def add(self, numbers: Numbers, steps: Sequence[Sequence[Constant]]) -> None:
        """Learns from a traced trial of the group.

        Args:
            numbers: Of its recipe.
            steps: The constants of its train step and, with validation data, its test step.
        """
        if numbers in self._traced:
            return
        self.hopeless = self.hopeless or not self._explain(numbers, steps)
        if len(self._traced) < _REMEMBERED:
            self._traced[numbers] = [tuple(step) for step in steps]
        if not self.hopeless and len(self._rows) < _ROWS:
            self._rows.append(numbers)
            self._survey()

    def exclude(self, numbers: Numbers) -> None:
        """Learns that a trial of the same structure belongs to another group."""
        if not self.hopeless and len(self._elsewhere) < _ROWS:
            self._elsewhere.append(numbers)
            self._survey()

    def predict(self, numbers: Numbers) -> Steps | None:
        """The constants of a trial's steps; None where it has to be traced."""
        if numbers in self._traced:
            return self._traced[numbers]
        if self.hopeless or not self._trusted(numbers):
            return None
        steps = []
        for template, laws in zip(self._template, self._laws, strict=True):
            constants = list(template)
            for i, explanations in laws.items():
                # Two numbers may have gone together so far: where they part, trace.
                dtype = constants[i].value.dtype
                first, *others = (_apply(f, numbers[j], dtype) for j, f in explanations)
                if first is None or any(v is None or not same(v, first) for v in others):
                    return None
                constants[i] = replace(constants[i], value=first)
            steps.append(tuple(constants))
        return steps

    @property
    def _template(self) -> Steps:
        return next(iter(self._traced.values()))

    def _survey(self) -> None:
        """Brings up to date where numbers are trusted.

        Trials with a whole number among those that differ show nothing of other values: a product
        with 0 hides the other factor.
        """
        if not self._rows:
            return
        rows = np.array(self._rows)
        differ = (rows != rows[0]).any(axis=0)
        plain = rows[~(rows[:, differ] == np.round(rows[:, differ])).any(axis=1)]
        self._values = [set(column) for column in plain.T.tolist()]
        n_values = [len(values) for values in self._values]
        # Numbers with few values may have gone together by chance: only combinations seen count.
        self._choices = tuple(
            j for j, n in enumerate(n_values) if 1 < n < max(_VALUES, len(plain) / 2)
        )
        self._combinations = {self._combination(row) for row in plain.tolist()}
        if len(plain):
            low, high = plain.min(axis=0), plain.max(axis=0)
            others = np.array(self._elsewhere).reshape(-1, rows.shape[1])
            self.hopeless = bool(((low <= others) & (others <= high)).all(axis=1).any())

    def _trusted(self, numbers: Numbers) -> bool:
        """Whether each number lies where its effect has been seen."""
        if len(self._rows) < ENOUGH:
            return False
        for value, values in zip(numbers, self._values, strict=True):
            if value in values:
                continue
            if len(values) < _VALUES or not min(values) < value < max(values):
                return False
            if value.is_integer():
                return False
        return self._combination(numbers) in self._combinations

    def _combination(self, numbers: Sequence[float]) -> Numbers:
        return tuple(numbers[j] for j in self._choices)

    def _explain(self, numbers: Numbers, steps: Sequence[Sequence[Constant]]) -> bool:
        """Brings the laws up to date; False when a constant has none."""
        if not self._traced:
            self._laws = [{} for _ in steps]
            return True
        for step, template, laws in zip(steps, self._template, self._laws, strict=True):
            for i, (new, old) in enumerate(zip(step, template, strict=True)):
                if i not in laws:
                    if same(new.value, old.value):
                        continue
                    # Until now it was always the same.
                    laws[i] = self._laws_of(old.value)
                laws[i] = [law for law in laws[i] if _holds(law, numbers, new.value)]
                if not laws[i]:
                    return False
        return True

    def _laws_of(self, value: np.ndarray) -> list[Law]:
        """Every law that gives this value in all trials remembered."""
        if value.ndim:
            return []
        laws = [(j, f) for j in range(len(self._rows[0])) for f in range(len(_FORMULAS))]
        for numbers in self._traced:
            laws = [law for law in laws if _holds(law, numbers, value)]
        return laws


def _holds(law: Law, numbers: Numbers, value: np.ndarray) -> bool:
    j, formula = law
    made = _apply(formula, numbers[j], value.dtype)
    return made is not None and same(made, value)


def _apply(formula: int, number: float, dtype: Any) -> np.ndarray | None:
    try:
        made = _FORMULAS[formula](number)
        if isinstance(made, complex):  # the root of a negative number
            return None
        with np.errstate(over="ignore"):
            return np.asarray(made).astype(dtype)
    except (ArithmeticError, TypeError, ValueError):
        return None
