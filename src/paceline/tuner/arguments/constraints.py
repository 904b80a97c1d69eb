"""Constraints: what a model must satisfy, from its build alone, for its trial to be trained."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import ConstraintError, TrialRejected, UsageError
from paceline.report.formats import count_reasons
from paceline.study.samplers.samplers import SearchStrategy

#: What bounds may be put on -> how it is counted in a built model.
_COUNTS: dict[str, Callable[[Any], int]] = {
    "params": lambda model: n_weights(model.weights),
    "trainable_params": lambda model: n_weights(model.trainable_weights),
}
OPERATORS = ("<=", "<", ">=", ">")
#: The operator of what violates a bound.
_OPPOSITE = {"<=": ">", "<": ">=", ">=": "<", ">": "<="}
_FORM = 'such as constraints={"params": ("<=", 200_000)}'
_TEXT = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*(\S+)\s*")
#: A search ends with an error after this many rejected configurations in a row, unless they come in
#: the order of a grid. A space of which one in 20 is allowed gets there once in 170 times.
REJECTED_IN_A_ROW = 100
#: The largest amount that is stored: JSON has no infinity.
_MOST = sys.float_info.max


@dataclass(frozen=True)
class _CountLimit:
    """A bound on a count of the model."""

    name: str  # of ``_COUNTS``
    operator: str  # of ``OPERATORS``
    limit: float

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.limit:,}"

    def amount(self, model: Any, hparams: Mapping[str, Any]) -> tuple[float, str]:
        """By how much a model violates the bound, at most 0 where it does not; and how."""
        count = _COUNTS[self.name](model)
        # Counts are integers: one below 10 is at most 9, one below 9.5 as well.
        match self.operator:
            case "<=":
                over = count - self.limit
            case "<":
                over = count - (math.ceil(self.limit) - 1)
            case ">=":
                over = self.limit - count
            case _:
                over = math.floor(self.limit) + 1 - count
        return over, f"{self.name} {count:,} {_OPPOSITE[self.operator]} {self.limit:,}"


@dataclass(frozen=True)
class _UserConstraint:
    """A function of the user's: ``function(model, hparams)``."""

    name: str  # in messages and the storage
    # Returns whether the model is allowed; or a number, 0 or below where it is.
    function: Callable[[Any, dict[str, Any]], Any]

    def __str__(self) -> str:
        return self.name

    def amount(self, model: Any, hparams: Mapping[str, Any]) -> tuple[float, str]:
        """By how much a model violates the constraint, at most 0 where it does not; and how."""
        try:
            found = self.function(model, dict(hparams))
        except Exception as error:  # the user's code may raise anything
            raise ConstraintError(
                f"constraints: {self.name}(model, hparams) raised {type(error).__name__}: "
                f"{error}, with {dict(hparams)}. Correct the function."
            ) from error
        if isinstance(found, bool | np.bool_):
            return float(not found), f"{self.name} is not satisfied"
        try:
            amount = float(found)
        except (TypeError, ValueError):
            amount = math.nan
        if math.isnan(amount):
            raise ConstraintError(
                f"constraints: {self.name}(model, hparams) must return True, or a number of at "
                f"most 0, if the model is allowed, got {found!r} with {dict(hparams)}."
            )
        return amount, f"{self.name} is {amount:,.6g} > 0"


class Constraints:
    """The constraints of a search, from the argument ``constraints`` of ``Tuner``."""

    def __init__(self, given: Any = None) -> None:
        self._all: dict[str, _CountLimit | _UserConstraint] = {}
        if given is None:
            return
        if callable(given):
            given = {getattr(given, "__name__", type(given).__name__): given}
        if not isinstance(given, Mapping):
            raise ConstraintError(
                f"constraints must be names with bounds, {_FORM}, or a function of (model, "
                f"hparams), got {given!r}."
            )
        for name, value in given.items():
            for each in self._read(name, value):
                self._all[str(each)] = each

    def __bool__(self) -> bool:
        return bool(self._all)

    def __str__(self) -> str:
        return ", ".join(self._all) or "none"

    @property
    def names(self) -> list[str]:
        """The names under which the amounts are stored."""
        return list(self._all)

    def to_json(self) -> dict[str, list[list[Any]] | None]:
        """Name -> bounds as ``[operator, limit]``; None for a function, which no file can hold."""
        found: dict[str, list[list[Any]] | None] = {}
        for each in self._all.values():
            if isinstance(each, _UserConstraint):
                found[each.name] = None
            else:
                bounds = found.setdefault(each.name, [])
                assert bounds is not None
                bounds.append([each.operator, each.limit])
        return found

    def check(self, model: Any, hparams: Mapping[str, Any]) -> dict[str, float]:
        """Name of each constraint -> by how much the model violates it: none is above 0.

        All variables of the model are made. TrialRejected holds the amounts where one is above 0.
        """
        amounts: dict[str, float] = {}
        said = []
        for name, each in self._all.items():
            amount, text = each.amount(model, hparams)
            amounts[name] = min(max(float(amount), -_MOST), _MOST)
            if amount > 0:
                said.append(text)
        if said:
            raise TrialRejected(", ".join(said), amounts)
        return amounts

    def amounts_of(self, rejected: TrialRejected) -> dict[str, float]:
        """The amounts to store of a trial that was rejected.

        ``hp.reject`` may come before there is a model; the constraints count as satisfied then.
        """
        return {**dict.fromkeys(self._all, 0.0), **rejected.amounts}

    def _read(self, name: Any, value: Any) -> Sequence[_CountLimit | _UserConstraint]:
        if not isinstance(name, str) or not name.strip():
            raise ConstraintError(f"constraints: names must be text, {_FORM}, got {name!r}.")
        if callable(value):
            if name in _COUNTS:
                raise ConstraintError(
                    f"constraints: {name!r} is a count of the model, so it needs a bound, "
                    f"{_FORM}, not a function. Rename the function."
                )
            return [_UserConstraint(name, value)]
        if name not in _COUNTS:
            raise ConstraintError(
                f"constraints: {name!r} is unknown. Use {' or '.join(_COUNTS)}, or a function of "
                "(model, hparams). Results of training cannot be constraints."
            )
        several = isinstance(value, list | tuple) and value and not isinstance(value[0], str)
        pairs = list(value) if several else [value]
        return [_bound(name, pair) for pair in pairs]


def parse_constraint(text: str) -> tuple[str, tuple[str, float]]:
    """Reads name, operator and limit of a command line's constraint: ``params<=200000``."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ConstraintError(
            f"--constraint must be NAME, one of {' '.join(OPERATORS)}, and a number, such as "
            f"'params<=200000', in quotes, got {text!r}."
        )
    name, operator, number = match.groups()
    try:
        limit: float = int(number)
    except ValueError:
        try:
            limit = float(number)
        except ValueError:
            raise ConstraintError(
                f"--constraint {text!r}: {number!r} is not a number. Write for instance "
                "'params<=200000'."
            ) from None
    bound = _bound(name, (operator, limit))
    return name, (bound.operator, bound.limit)


def of_command(texts: Sequence[str]) -> dict[str, list[tuple[str, float]]]:
    """The argument ``constraints`` of ``Tuner`` for the options of the command line."""
    found: dict[str, list[tuple[str, float]]] = {}
    for text in texts:
        name, pair = parse_constraint(text)
        found.setdefault(name, []).append(pair)
    Constraints(found)
    return found


def rejections_text(rejected: Sequence[str], over: bool) -> str:
    """Says why configurations of a space were ``rejected``; ``over``: the space has no others."""
    reasons = "; ".join(count_reasons(rejected))
    said = "every configuration of the space that is left" if over else "one after the other"
    return (
        f"constraints: {len(rejected)} configurations in a row were rejected before training, "
        f"{said}: {reasons}. Loosen the constraint, or declare smaller ranges in build(hp), so "
        "that more of the space is allowed."
    )


def _bound(name: str, pair: Any) -> _CountLimit:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ConstraintError(
            f"constraints: {name!r} must have an operator and a number, {_FORM}, got {pair!r}."
        )
    operator, limit = pair
    if operator not in OPERATORS:
        raise ConstraintError(
            f"constraints: the operator of {name!r} must be one of {', '.join(OPERATORS)}, "
            f"{_FORM}, got {operator!r}."
        )
    if isinstance(limit, np.number):
        limit = limit.item()
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
        raise ConstraintError(
            f"constraints: the bound of {name!r} must be a number, {_FORM}, got {limit!r}."
        )
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    return _CountLimit(name, operator, limit)


def n_weights(variables: Sequence[Any]) -> int:
    """How many numbers variables hold together."""
    return sum(math.prod(variable.shape) for variable in variables)


def checked(given: Any, strategy: SearchStrategy) -> Constraints | None:
    """Return the constraints that ``Tuner`` is given; None without."""
    if given is None:
        return None
    constraints = Constraints(given)
    if constraints and not strategy.resumable:
        raise UsageError(
            "constraints: a Searcher chooses trials by itself. Call hp.reject in its build, or "
            "use another sampler."
        )
    return constraints
