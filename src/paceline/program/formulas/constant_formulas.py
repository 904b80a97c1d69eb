"""How the constants of a step follow from a model's numbers, learnt from trials that were traced.

Each constant that differs between traced trials is explained by one of a few formulas of one number
(``1 - rate``, ``1 / (1 - rate)``, ``2 * l2``, ...). It must be equal bit for bit in all of them.
Keras also decides by numbers: it drops a dropout of rate 0, and bounds or rounds may hide
elsewhere. Such decisions are made at thresholds, or at integers. So a number is trusted only
strictly between traced values with the same program, and never at an integer that was not traced. A
trial with any other number is traced, and widens what is known. Where no formula explains a
constant, nothing of that group is predicted from then on.

The formulas of a structure are kept on disk (``StoredFormulas``). The first search of a structure
traces four or more models before it trusts the formulas. The next search traces only one. That one
tells whether the stored group is the same; only then is the rest believed. The key of a file holds
all that decides a step: structure, shapes, versions and the code of this package.

Notation
    structure: a model without its numbers (``model_structure.py``), and whatever else its steps
        depend on. group: trials of one structure that share a program.
    numbers: the floating-point numbers of a model, in a fixed order.
    steps: the constants of the train step and, with validation data, of the test step.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from paceline.program import jax_compat
from paceline.program.canonical import Constant
from paceline.program.compilation_cache import DiskCache, source_digest
from paceline.program.step_template import same

#: Trials that are traced before any is predicted.
ENOUGH = 4
#: Values of a number that are traced before values between them are trusted.
_VALUES = 3
#: Structures that are remembered: where each trial has its own, they must not pile up.
_STRUCTURES = 64
#: Traced trials whose numbers are kept.
_ROWS = 256
#: Traced trials whose constants are kept, to test formulas and to serve trials equal to them.
_REMEMBERED = 32
#: Bytes of a stored file, at most; constants may be arrays.
_MOST = 2**20

_CACHE = DiskCache("structures", kept=500)

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
#: (which of the numbers, which of ``_FORMULAS``)
Formula = tuple[int, int]


class ConstantPredictor:
    """The formulas of all structures that a search has met.

    A structure may have several groups (a dropout of rate 0 gives another program), each with
    formulas of its own. The last ``widths`` numbers of a trial are whole ones that decide extents.
    """

    def __init__(self, widths: int = 0) -> None:
        self._widths = widths
        self._by_structure: OrderedDict[Any, list[GroupFormulas]] = OrderedDict()

    def add(
        self, structure: Any, group: Any, numbers: Numbers, steps: Sequence[Sequence[Constant]]
    ) -> None:
        """Learns from a traced trial.

        ``structure`` includes all else that the trial's steps depend on (batch size). ``steps`` are
        the constants of its train step and, with validation data, its test step.
        """
        groups = self._by_structure.setdefault(structure, [])
        self._by_structure.move_to_end(structure)
        if len(self._by_structure) > _STRUCTURES:
            self._by_structure.popitem(last=False)
        ours = next((learned for learned in groups if learned.group == group), None)
        if ours is None:
            ours = GroupFormulas(group, self._widths)
            for other in groups:
                for met in other.met:
                    ours.exclude(met)
            groups.append(ours)
        ours.add(numbers, steps)
        for other in groups:
            if other is not ours:
                other.exclude(numbers)

    def exclude(self, structure: Any, group: Any, numbers: Numbers) -> None:
        """Learns that a trial of the structure is not in ``group``, which was met before."""
        for learned in self._by_structure[structure]:
            if learned.group == group:
                learned.exclude(numbers)

    def by_structure(self) -> Iterator[tuple[Any, list[GroupFormulas]]]:
        """All structures, each with the formulas of its groups."""
        yield from self._by_structure.items()

    def predict(self, structure: Any, numbers: Numbers) -> tuple[Any, Steps] | None:
        """The group of a trial and the constants of its steps; None: it must be traced."""
        for learned in self._by_structure.get(structure, ()):
            steps = learned.predict(numbers)
            if steps is not None:
                return learned.group, steps
        return None


@dataclass
class GroupFormulas:
    """The formulas of one group of a structure."""

    group: Any  # its key
    # As of ``ConstantPredictor``. Two widths of which the walk over both traces has proved a
    # program are enough to trust those between; other numbers need more traces. No constant is
    # explained by a width.
    widths: int = 0
    # Some constant has no formula, or a number between traced ones gave another program: only
    # trials equal to traced ones are predicted from then on.
    unpredictable: bool = False
    _traced: dict[Numbers, Steps] = field(default_factory=dict)
    _rows: list[Numbers] = field(default_factory=list)  # the numbers of traced trials
    _elsewhere: list[Numbers] = field(default_factory=list)  # those of trials in other groups
    _formulas: list[dict[int, list[Formula]]] = field(
        default_factory=list
    )  # per step: constant -> formulas
    _values: list[set[float]] = field(default_factory=list)  # per number: its traced values
    _choices: tuple[int, ...] = ()  # which numbers have few values
    _combinations: set[Numbers] = field(default_factory=set)  # traced values of the choices
    _enough: int = ENOUGH  # trials that are traced before any is predicted

    @property
    def met(self) -> list[Numbers]:
        """Numbers of traced trials."""
        return self._rows

    @property
    def traced(self) -> dict[Numbers, Steps]:
        """Traced trials with their constants, up to a limit."""
        return self._traced

    def add(self, numbers: Numbers, steps: Sequence[Sequence[Constant]]) -> None:
        """Learns from a traced trial of the group; ``steps`` as in ``ConstantPredictor.add``."""
        if numbers in self._traced:
            return
        self.unpredictable = self.unpredictable or not self._explain(numbers, steps)
        if len(self._traced) < _REMEMBERED:
            self._traced[numbers] = [tuple(step) for step in steps]
        if not self.unpredictable and len(self._rows) < _ROWS:
            self._rows.append(numbers)
            self._survey()

    def exclude(self, numbers: Numbers) -> None:
        """Learns that a trial of the same structure belongs to another group."""
        if not self.unpredictable and len(self._elsewhere) < _ROWS:
            self._elsewhere.append(numbers)
            self._survey()

    def predict(self, numbers: Numbers) -> Steps | None:
        """The constants of a trial's steps; None: it must be traced."""
        if numbers in self._traced:
            return self._traced[numbers]
        if self.unpredictable or not self._trusted(numbers):
            return None
        steps = []
        for template, formulas in zip(self._template, self._formulas, strict=True):
            constants = list(template)
            for i, explanations in formulas.items():
                # Two numbers may have been equal so far, so that either explains the constant.
                # Where they differ now, nobody knows which one counts: trace.
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
        """Brings up to date between which values numbers are trusted.

        A trial with an integer among the numbers that differ is left out, unless it is a width. It
        may hide the effect of others, as a product with 0 hides the other factor.
        """
        if not self._rows:
            return
        rows = np.array(self._rows)
        differ = (rows != rows[0]).any(axis=0)
        n_plain = rows.shape[1] - self.widths
        differ[n_plain:] = False
        self._enough = ENOUGH if differ.any() or not self.widths else 2
        plain = rows[~(rows[:, differ] == np.round(rows[:, differ])).any(axis=1)]
        self._values = [set(column) for column in plain.T.tolist()]
        n_values = [len(values) for values in self._values]
        # Numbers with few values may have met by chance: only combinations that were traced count.
        self._choices = tuple(
            j for j, n in enumerate(n_values[:n_plain]) if 1 < n < max(_VALUES, len(plain) / 2)
        )
        self._combinations = {self._combination(row) for row in plain.tolist()}
        if len(plain):
            low, high = plain.min(axis=0), plain.max(axis=0)
            others = np.array(self._elsewhere).reshape(-1, rows.shape[1])
            self.unpredictable = bool(((low <= others) & (others <= high)).all(axis=1).any())

    def _trusted(self, numbers: Numbers) -> bool:
        """Whether each number lies between traced values, and is not a new integer."""
        if len(self._rows) < self._enough:
            return False
        n_plain = len(numbers) - self.widths
        for j, (value, values) in enumerate(zip(numbers, self._values, strict=True)):
            if value in values:
                continue
            if not values or not min(values) < value < max(values):
                return False
            if j < n_plain and (len(values) < _VALUES or value.is_integer()):
                return False
        return self._combination(numbers) in self._combinations

    def _combination(self, numbers: Sequence[float]) -> Numbers:
        return tuple(numbers[j] for j in self._choices)

    def _explain(self, numbers: Numbers, steps: Sequence[Sequence[Constant]]) -> bool:
        """Brings the formulas up to date; False: some constant has no formula."""
        if not self._traced:
            self._formulas = [{} for _ in steps]
            return True
        for step, template, formulas in zip(steps, self._template, self._formulas, strict=True):
            for i, (new, old) in enumerate(zip(step, template, strict=True)):
                if i not in formulas:
                    if same(new.value, old.value):
                        continue
                    # Until now this constant was the same in every trial.
                    formulas[i] = self._formulas_of(old.value)
                formulas[i] = [
                    formula for formula in formulas[i] if _holds(formula, numbers, new.value)
                ]
                if not formulas[i]:
                    return False
        return True

    def _formulas_of(self, value: np.ndarray) -> list[Formula]:
        """Every formula that gives this value in all traced trials that are kept."""
        if value.ndim:
            return []
        # Of widths nothing but extents follows, which need no formula.
        n_plain = len(self._rows[0]) - self.widths
        formulas = [(j, f) for j in range(n_plain) for f in range(len(_FORMULAS))]
        for numbers in self._traced:
            formulas = [formula for formula in formulas if _holds(formula, numbers, value)]
        return formulas


def _holds(formula: Formula, numbers: Numbers, value: np.ndarray) -> bool:
    j, which = formula
    made = _apply(which, numbers[j], value.dtype)
    return made is not None and same(made, value)


def _apply(formula: int, number: float, dtype: Any) -> np.ndarray | None:
    try:
        made = _FORMULAS[formula](number)
        if isinstance(made, complex):  # the root of a negative number
            return None
        with np.errstate(over="ignore", invalid="ignore"):
            value = np.asarray(made).astype(dtype)
        # An integer is not a rounded one.
        return value if jnp.issubdtype(dtype, jnp.inexact) or value == made else None
    except (ArithmeticError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class StoredFormulas:
    """The formulas of one group as a file holds them."""

    group: tuple[Any, ...]  # its key
    # For each traced trial its numbers and, per step, the bytes of each constant, in hexadecimal.
    rows: list[tuple[Numbers, list[list[str]]]]

    @classmethod
    def of(cls, formulas: GroupFormulas) -> StoredFormulas:
        """What to keep of a group with these formulas."""
        rows = [
            (numbers, [[constant.value.tobytes().hex() for constant in step] for step in steps])
            for numbers, steps in formulas.traced.items()
        ]
        return cls(formulas.group, rows)

    def like(self, steps: Sequence[Sequence[Constant]]) -> Iterator[tuple[Numbers, Steps]]:
        """The rows as constants with the shapes and dtypes of ``steps``; rows that fit only."""
        for numbers, values in self.rows:
            with suppress(ValueError, TypeError):  # others, of another size, or no text
                pairs = [zip(*pair, strict=True) for pair in zip(steps, values, strict=True)]
                yield numbers, [tuple(_as(c, v) for c, v in pair) for pair in pairs]


def formulas_key(structure: str, *shapes: Any) -> str:
    """The key of the file that holds the formulas of a structure, which is given by its digest.

    ``shapes``: whatever else its steps depend on, as text or trees of shapes.
    """
    versions = (keras.__version__, jax.__version__, jax.default_backend(), jax_compat.settings())
    parts = (source_digest(), *versions, structure, *(str(part) for part in shapes))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def load_formulas(key: str) -> list[StoredFormulas]:
    """The formulas stored under a key, one for each group; none where no valid file is found."""
    body = _CACHE.read(f"{key}.json")
    if body is None:
        return []
    try:
        return [
            StoredFormulas(
                tuple(each["group"]), [(tuple(map(float, n)), steps) for n, steps in each["rows"]]
            )
            for each in json.loads(body)
        ]
    except (ValueError, TypeError, KeyError):  # another program wrote the file
        return []


def store_formulas(key: str, groups: Sequence[StoredFormulas]) -> None:
    """Stores the formulas of a structure's groups; without groups, removes the file of the key."""
    body = json.dumps([vars(group) for group in groups]).encode()
    if groups and len(body) <= _MOST:
        _CACHE.write(f"{key}.json", body)
    else:
        _CACHE.remove(f"{key}.json")


def _as(constant: Constant, raw: str) -> Constant:
    value = np.frombuffer(bytes.fromhex(raw), constant.value.dtype).reshape(constant.value.shape)
    return (
        constant if value.tobytes() == constant.value.tobytes() else replace(constant, value=value)
    )
