"""The numbers that the columns of a table become: x and y, by one rule that a study keeps.

A column of numbers stays as it is. Each category of a column of text or truth values becomes a
column of 0 and 1, in the order of sorted names. A new category is 0 in all of them. Categories of
the target are numbered from 0 in that order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.data.refusals import is_category, refuse_values
from paceline.errors import DataError

#: Categories of a column, at most: more are names or texts, by which nothing can be learnt.
_MOST = 100
#: The largest integer up to which float32 has all of them.
_EXACT = 2**24


@dataclass(frozen=True)
class TableColumn:
    """A column of the table."""

    name: str
    categories: tuple[str, ...] | None  # in order; None: it holds numbers


@dataclass(frozen=True)
class TableEncoding:
    """How a table with named columns, a data frame, becomes x and y."""

    features: tuple[TableColumn, ...]
    target: TableColumn

    @classmethod
    def of(cls, frame: Any, target: str, where: str) -> TableEncoding:
        """The encoding of a table; ``where`` is its name in messages.

        Raises DataError where a column is missing, lacks values, or holds neither numbers nor
        categories.
        """
        names = [str(name) for name in frame.columns]
        if target not in names:
            raise DataError(
                f"--target must be a column of {where}, got {target!r}. It has {_listed(names)}."
            )
        if len(names) < 2:
            raise DataError(
                f"{where} must have other columns than its target, got {target!r} only."
            )
        columns = {name: _column(frame, name, where, target) for name in names}
        features = tuple(column for name, column in columns.items() if name != target)
        return cls(features, columns[target])

    @property
    def names(self) -> list[str]:
        """Names of the columns of x, such as ``age`` and ``color=red``."""
        return [
            name
            for column in self.features
            for name in (
                [column.name]
                if column.categories is None
                else [f"{column.name}={category}" for category in column.categories]
            )
        ]

    def x(self, frame: Any) -> np.ndarray:
        """The features, f32[N, D]."""
        columns = []
        for column in self.features:
            values = frame[column.name]
            if column.categories is None:
                columns.append(np.asarray(values.to_numpy(), dtype=np.float32))
            else:
                texts = np.asarray([str(value) for value in values.to_numpy()])
                columns += [texts == category for category in column.categories]
        return np.stack(columns, axis=1).astype(np.float32)

    def y(self, frame: Any) -> np.ndarray:
        """The targets, [N]: numbers as they are, categories i64 from 0."""
        values = frame[self.target.name]
        if self.target.categories is None:
            return np.asarray(values.to_numpy())
        number = {category: i for i, category in enumerate(self.target.categories)}
        return np.asarray([number[str(value)] for value in values.to_numpy()])

    def rounded(self, frame: Any) -> list[str]:
        """Columns with integers that float32 has not all of, such as account numbers."""
        found = []
        for column in self.features:
            values = frame[column.name]
            if column.categories is None and getattr(values.dtype, "kind", "") in "iu":
                if max(abs(int(values.min())), abs(int(values.max()))) > _EXACT:
                    found.append(column.name)
        return found

    def to_json(self) -> dict[str, Any]:
        """The encoding as JSON values."""
        return {"features": [asdict(each) for each in self.features], "target": asdict(self.target)}


def _column(frame: Any, name: str, where: str, target: str) -> TableColumn:
    values = frame[name]
    missing = np.flatnonzero(np.asarray(values.isna()))
    if len(missing):
        raise DataError(
            f"column {name!r} of {where} must have a value in each row, got none (empty, NA or "
            f"NaN) in row {int(missing[0]) + 1}, the first of {len(missing):,}. Fill in the "
            "values, or remove those rows or the column."
        )
    if getattr(values.dtype, "kind", "O") in "iuf":
        numbers = np.asarray(values.to_numpy(), dtype=np.float64)
        if not np.isfinite(numbers).all():
            row = int(np.argmin(np.isfinite(numbers))) + 1
            raise DataError(
                f"column {name!r} of {where} must hold finite numbers, got infinity in row {row}."
            )
        return TableColumn(name, None)
    if getattr(values.dtype, "kind", "O") != "b" and not is_category(values):
        refuse_values(values, "y" if name == target else "x", where, column=name)
    texts = sorted({str(value) for value in values.to_numpy()})
    if len(texts) > _MOST:
        raise DataError(
            f"column {name!r} of {where} must hold numbers or at most {_MOST} categories, got "
            f"{len(texts):,} different texts in {len(values):,} rows. Remove the column, or "
            "convert it to numbers."
        )
    if name == target and len(texts) < 2:
        raise DataError(f"column {name!r} of {where} must have two classes, got {texts[0]!r} only.")
    return TableColumn(name, tuple(texts))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return ", ".join(map(repr, names[:20])) + more
