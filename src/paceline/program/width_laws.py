"""How the steps of trials of several widths follow from their models, learnt from traced trials.

A trial rides in the program of its family. What is its own are the constants of its steps, its
extents among them. Models of a family differ in floating-point numbers and in whole numbers, which
``model_structure.py`` reads without a trace; ``constant_laws.py`` explains constants by both. Where
the family's two models, at the largest and at smaller widths, have been traced and walked, a
trial between them is traced only if something is not explained.

Notation
    skeleton: a model without its numbers, whole ones included, and whatever else its steps
        depend on.
    column: a place among a model's whole numbers. Columns that have been equal in all traced models
        of a skeleton are one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.program.canonical import Constant
from paceline.program.constant_laws import ConstantPredictor, Numbers, Steps
from paceline.program.model_structure import ModelStructure

#: Traced trials of a skeleton that are learnt from.
_MOST = 64


class WidthLaws:
    """The laws of all skeletons that a search has met."""

    def __init__(self) -> None:
        self._skeletons: dict[Any, _Skeleton] = {}

    def add(
        self, kind: Any, structure: ModelStructure, group: Any, steps: Sequence[Sequence[Constant]]
    ) -> None:
        """Learns from a traced trial.

        Args:
            kind: Whatever its steps depend on besides the model.
            structure: The structure of its model.
            group: What trials share that are predicted from one another.
            steps: The constants of its train step and, with validation data, of its test step.
        """
        known = self._skeletons.setdefault((kind, structure.skeleton), _Skeleton())
        known.add(_Row(structure, group, [tuple(step) for step in steps]))

    def exclude(self, kind: Any, structure: ModelStructure) -> None:
        """Learns that a traced trial rides nowhere; it is predicted to have the group None."""
        if (kind, structure.skeleton) in self._skeletons:
            self.add(kind, structure, None, [])

    def predict(self, kind: Any, structure: ModelStructure) -> tuple[Any, Steps] | None:
        """The group of a trial and the constants of its steps; None: it must be traced."""
        known = self._skeletons.get((kind, structure.skeleton))
        return None if known is None else known.predict(structure)


@dataclass(frozen=True)
class _Row:
    structure: ModelStructure
    group: Any
    steps: Steps


@dataclass
class _Skeleton:
    """The laws of a skeleton.

    Attributes:
        rows: The trials that were traced.
    """

    rows: list[_Row] = field(default_factory=list)
    _predictor: ConstantPredictor = field(default_factory=ConstantPredictor)
    _integers: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), int))  # [rows, columns]
    _differ: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))  # [columns]
    # [columns that differ]: the first column that has been equal in all rows
    _same: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    def add(self, row: _Row) -> None:
        if len(self.rows) >= _MOST:
            return
        self.rows.append(row)
        integers = np.array([each.structure.integers for each in self.rows], dtype=object)
        differ = (integers != integers[0]).any(axis=0)
        columns = [tuple(column) for column in integers[:, differ].T]
        same = np.array([columns.index(column) for column in columns], int)
        known = np.array_equal(differ, self._differ) and np.array_equal(same, self._same)
        self._integers, self._differ, self._same = integers, differ, same
        if not known:
            self._predictor = ConstantPredictor(widths=len(set(same.tolist())))
        for each in [row] if known else self.rows:
            numbers = self._numbers(each.structure)
            assert numbers is not None
            self._predictor.add(None, each.group, numbers, each.steps)

    def predict(self, structure: ModelStructure) -> tuple[Any, Steps] | None:
        numbers = self._numbers(structure)
        return None if numbers is None else self._predictor.predict(None, numbers)

    def _numbers(self, structure: ModelStructure) -> Numbers | None:
        """What decides a model's steps; None: whole numbers differ that have not before."""
        integers = np.array(structure.integers, dtype=object)
        if (integers[~self._differ] != self._integers[0][~self._differ]).any():
            return None
        differing = integers[self._differ]
        if (differing != differing[self._same]).any():
            return None
        return (*structure.numbers, *map(float, differing[np.unique(self._same)]))
