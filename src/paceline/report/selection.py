"""Which trials are shown and in what order: ``--where "lr<1e-3 and units>=64"``, ``--sort``.

A condition compares columns of ``Tuner.results()`` with literals:

    condition := all ("or" all)*            all := one ("and" one)*
    one := name operator literal | "(" condition ")"
    operator := < <= > >= = == !=
    literal := number | word | 'text' | "text" | true | false | none

Names with spaces or signs stand between backquotes. ``none`` is a value that a trial lacks; apart
from ``name = none``, a trial that lacks the value does not fulfil a comparison.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import UsageError
from paceline.report import tables
from paceline.study.trials.trial import Trial

#: Whether the trial at a place, counted from 0, is chosen.
Condition = Callable[[int], bool]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign><=|>=|==|!=|<|>|=|\(|\))
      | `(?P<name>[^`]*)`
      | "(?P<double>[^"]*)" | '(?P<single>[^']*)'
      | (?P<word>[^\s<>=!()`"']+)
    )""",
    re.VERBOSE,
)
#: Conditions nest no deeper, so that no text can use up Python's stack.
_DEEPEST = 50


@dataclass(frozen=True)
class _Token:
    """A part of a condition: ``kind`` is sign, name, text or word; ``at`` is its place."""

    kind: str
    text: str
    at: int


class Columns:
    """The columns by which trials can be selected, and each trial's values in them.

    ``objective`` is another name of the column ``value``. Several ``objectives`` have a column each
    in place of ``value``, which is another name of the first.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        objective: str | None = None,
        objectives: Sequence[str] = (),
    ) -> None:
        #: Column -> the value of each trial, None if it lacks one.
        self.values = tables.values_by_column(trials, objectives)
        self._aliases = {"trial": "number", "time": "train_seconds", objective or "value": "value"}
        if objectives:
            self._aliases["value"] = objectives[0]

    def named(self, name: str, option: str) -> str:
        """Return the column of a name; raises UsageError if there is none."""
        found = name if name in self.values else self._aliases.get(name)
        if found not in self.values:
            raise UsageError(
                f"{option}: there is no column {name!r}. The study has {', '.join(self.values)}"
            )
        return found

    def is_numeric(self, name: str) -> bool:
        """Whether the column holds numbers and nothing else: they have no alphabetical order."""
        kinds = {type(value) for value in self.values[name] if value is not None}
        return bool(kinds) and kinds <= {int, float}


def select(
    trials: Sequence[Trial],
    *,
    where: str | None = None,
    sort: str | None = None,
    reverse: bool = False,
    maximize: bool = True,
    objective: str | None = None,
    objectives: Sequence[str] = (),
    directions: Sequence[str] = (),
) -> list[Trial]:
    """Return trials that fulfil the condition ``where`` (None: all), in the order of a column.

    ``sort``: the column; None: the order of ``trials``. ``value`` has the best trial first, other
    columns the smallest value; ``reverse`` turns that round. Trials that lack the value come last.
    ``objective`` is another name of ``value``. ``directions``: "maximize" or "minimize" for each of
    several objectives.
    """
    columns = Columns(trials, objective, objectives)
    every = list(trials)
    places = list(range(len(every)))
    if where is not None:
        places = list(filter(_Parser(where, columns).condition(), places))
    if sort is None:
        places = places[::-1] if reverse else places
    else:
        name = columns.named(sort, f"--sort {sort}")
        values = columns.values[name]
        if objectives:
            maximize = dict(zip(objectives, directions, strict=True)).get(name) == "maximize"
        downwards = ((name == "value" or name in objectives) and maximize) != reverse
        there = [place for place in places if not _lacks(values[place])]
        there.sort(key=lambda place: _rank(values[place]), reverse=downwards)
        places = [*there, *(place for place in places if _lacks(values[place]))]
    return [every[place] for place in places]


def _lacks(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _rank(value: Any) -> tuple[bool, Any]:
    """Orders numbers before texts, so that a column may hold both."""
    return (True, str(value)) if not isinstance(value, bool | int | float) else (False, value)


class _Parser:
    """Reads one condition, by recursive descent."""

    def __init__(self, text: str, columns: Columns) -> None:
        self._text, self._columns = text, columns
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def condition(self) -> Condition:
        """Return the whole text as a condition."""
        if not self._tokens:
            raise self._error('is empty. Write a condition such as "lr<1e-3 and units>=64"')
        found = self._any()
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            raise self._error(f"{token.text!r} at {token.at + 1}: expected `and`, `or` or the end")
        return found

    def _split(self) -> list[_Token]:
        tokens, at = [], 0
        text = self._text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._error(
                    f"{text[at:].strip()[:10]!r} at {at + 1} is not a name, number or sign"
                )
            group = str(match.lastgroup)
            kind = "text" if group in ("double", "single") else group
            tokens.append(_Token(kind, match[group], match.start(group)))
            at = match.end()
        return tokens

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._take_word("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda at: any(part(at) for part in parts)

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._take_word("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda at: all(part(at) for part in parts)

    def _one(self) -> Condition:
        token = self._take("the name of a column")
        if token.kind == "sign" and token.text == "(":
            self._depth += 1
            if self._depth > _DEEPEST:
                raise self._error(f"has more than {_DEEPEST} nested parentheses")
            found = self._any()
            closing = self._take("a closing parenthesis")
            if closing.text != ")" or closing.kind != "sign":
                raise self._error(f"{closing.text!r} at {closing.at + 1}: expected )")
            self._depth -= 1
            return found
        if token.kind not in ("name", "word"):
            raise self._error(f"{token.text!r} at {token.at + 1}: expected the name of a column")
        name = self._columns.named(token.text, f"--where {self._text!r}")
        sign = self._take(f"an operator ({' '.join(_COMPARE)})")
        if sign.kind != "sign" or sign.text not in _COMPARE:
            raise self._error(
                f"{sign.text!r} at {sign.at + 1}: expected an operator: {' '.join(_COMPARE)}"
            )
        return self._comparison(name, sign.text, self._take(f"a value after {sign.text}"))

    def _comparison(self, name: str, sign: str, literal: _Token) -> Condition:
        if literal.kind not in ("word", "text"):
            raise self._error(f"{literal.text!r} at {literal.at + 1}: expected a value")
        compare, text, values = _COMPARE[sign], literal.text, self._columns.values[name]
        word = text.lower() if literal.kind == "word" else ""
        if word == "none":
            if sign not in ("=", "==", "!="):
                raise self._error(f"{sign} none: a missing value has no order. Use = or !=")
            return lambda at: compare(_lacks(values[at]), True)
        number = {"true": True, "false": False}.get(word)
        if number is None and literal.kind == "word":
            number = _number(text)
        if number is None and self._columns.is_numeric(name):
            raise self._error(f"column {name!r} holds numbers, but {text!r} is not a number")

        def holds(at: int) -> bool:
            value = values[at]
            if _lacks(value):
                return False
            if isinstance(value, bool | int | float):
                return compare(value, number) if number is not None else sign == "!="
            return compare(str(value), text)

        return holds

    def _take(self, wanted: str) -> _Token:
        if self._next == len(self._tokens):
            raise self._error(f"ends before {wanted}")
        self._next += 1
        return self._tokens[self._next - 1]

    def _take_word(self, word: str) -> bool:
        if self._next == len(self._tokens):
            return False
        token = self._tokens[self._next]
        found = token.kind == "word" and token.text.lower() == word
        self._next += found
        return found

    def _error(self, text: str) -> UsageError:
        return UsageError(f"--where {self._text!r}: {text}")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
