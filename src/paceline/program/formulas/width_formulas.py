"""How the steps of trials of several widths follow from their models, learnt from traced trials.

A trial shares the program of its family. What is its own are the extents of its variables, which
their shapes tell, and the constants of its steps. Models of a family differ in floating-point
numbers and in integers, which ``model_structure.py`` reads without a trace. A trial between the
family's two models, at the largest and at smaller widths, is traced only where one of these is not
explained:

- An integer that differs must be an extent of a variable, or one that always equals it. Other
  integers (a bound of an activation, a number of heads) are as in the models that were traced.
- A constant that differs must follow from floating-point numbers (``constant_formulas.py``). One
  that follows from a width (the number of elements of a mean) has no formula: other widths may
  explain it by chance.
- All classes of the model take the same steps at any widths (``ModelStructure.any_width``).

Notation
    skeleton: a model without its numbers, whole ones included, and whatever else its steps
        depend on.
    column: a place among a model's integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.program.canonical import Constant
from paceline.program.formulas.constant_formulas import ConstantPredictor, Numbers, Steps
from paceline.program.formulas.model_structure import ModelStructure

#: Trials of a skeleton that are traced before it is given up: what they show is not enough.
_MOST = 64


class WidthFormulas:
    """The formulas of all skeletons that a search has met."""

    def __init__(self) -> None:
        self._skeletons: dict[Any, _Skeleton] = {}

    def add(
        self, kind: Any, structure: ModelStructure, group: Any, steps: Sequence[Sequence[Constant]]
    ) -> None:
        """Learns from a traced trial.

        Args:
            kind: Whatever its steps depend on besides the model.
            structure: The structure of its model.
            group: What trials share that are predicted from one another; None: the trial shares
                no program.
            steps: The constants of its train step and, with validation data, of its test step,
                without extents.
        """
        if structure.any_width:
            known = self._skeletons.setdefault((kind, structure.skeleton), _Skeleton())
            known.add(_TracedTrial(structure, group, [tuple(step) for step in steps]))

    def predict(self, kind: Any, structure: ModelStructure) -> tuple[Any, Steps] | None:
        """The group of a trial and the constants of its steps; None: it must be traced."""
        known = self._skeletons.get((kind, structure.skeleton))
        found = None if known is None else known.predict(structure)
        return None if found is None or found[0] is None else found


@dataclass(frozen=True)
class _TracedTrial:
    structure: ModelStructure
    group: Any
    steps: Steps


@dataclass
class _Skeleton:
    """The formulas of a skeleton."""

    rows: list[_TracedTrial] = field(default_factory=list)  # the trials that were traced
    _differ: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # [columns]
    # The first column that equals an extent -> those that have been equal to it in all rows.
    _widths: dict[int, np.ndarray] = field(default_factory=dict)
    _others: np.ndarray = field(default_factory=lambda: np.zeros(0, int))  # which differ otherwise
    # Integers that are not widths -> the formulas of such trials.
    _predictors: dict[tuple[int, ...], ConstantPredictor] = field(default_factory=dict)

    def add(self, row: _TracedTrial) -> None:
        if len(self.rows) > _MOST:
            return
        self.rows.append(row)
        if len(self.rows) > _MOST or all(each.group is None for each in self.rows):
            return  # it is given up, or nothing shares the program yet
        integers = np.array([each.structure.integers for each in self.rows], dtype=object)
        differ = (integers != integers[0]).any(axis=0)
        widths: dict[int, np.ndarray] = {}
        left = differ.copy()
        for column in row.structure.extents:
            if left[column]:
                same = differ & (integers == integers[:, [column]]).all(axis=0)
                widths[column] = np.flatnonzero(same)
                left &= ~same
        others = np.flatnonzero(left)
        changed = (
            not self._predictors
            or not np.array_equal(differ, self._differ)
            or not np.array_equal(others, self._others)
            or {k: v.tolist() for k, v in widths.items()}
            != {k: v.tolist() for k, v in self._widths.items()}
        )
        self._differ, self._widths, self._others = differ, widths, others
        if changed:
            self._predictors.clear()
        for each in self.rows if changed else [row]:
            numbers, beside = self._numbers(each.structure), self._other_integers(each.structure)
            assert numbers is not None
            new = ConstantPredictor(widths=len(widths))
            predictor = self._predictors.setdefault(beside, new)
            predictor.add(None, each.group, numbers, each.steps)

    def predict(self, structure: ModelStructure) -> tuple[Any, Steps] | None:
        if not self._predictors or len(self.rows) > _MOST:
            return None
        numbers = self._numbers(structure)
        predictor = self._predictors.get(self._other_integers(structure))
        return None if numbers is None or predictor is None else predictor.predict(None, numbers)

    def _other_integers(self, structure: ModelStructure) -> tuple[int, ...]:
        """The integers that differ between models and are not widths."""
        return tuple(structure.integers[column] for column in self._others.tolist())

    def _numbers(self, structure: ModelStructure) -> Numbers | None:
        """What decides a model's steps; None: integers differ that have not before."""
        integers = np.array(structure.integers, dtype=object)
        known = np.array(self.rows[0].structure.integers, dtype=object)
        if (integers != known)[~self._differ].any():
            return None
        widths = []
        for column, same in self._widths.items():
            if (integers[same] != integers[column]).any():
                return None
            widths.append(float(integers[column]))
        return (*structure.numbers, *widths)
