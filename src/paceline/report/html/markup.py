"""Pieces of HTML of a report. All text that comes in is escaped."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from paceline.search_space import html

#: Characters of a cell at most.
_CELL = 400
#: And of a sentence, which may hold many names.
_SENTENCE = 4_000
#: Characters from which on a cell wraps; all others keep to one line, and the table scrolls.
_LONG = 40


def text(value: object, most: int = _CELL) -> str:
    """Return a value as escaped text of bounded length, without control characters."""
    return html.text(value, most)


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Container[int] = (),
    marked: Container[int] = (),
) -> str:
    """Return a table that scrolls by itself where the page is narrow.

    ``numbers``: positions of columns that are aligned to the right. ``marked``: of rows in bold.
    """
    top = "".join(
        f'<th scope="col"{_kind(i in numbers, "")}>{text(each)}</th>' for i, each in enumerate(head)
    )
    body = "".join(
        ('<tr class="best">' if i in marked else "<tr>")
        + "".join(
            f"<td{_kind(k in numbers, str(cell))}>{text(cell)}</td>" for k, cell in enumerate(row)
        )
        + "</tr>"
        for i, row in enumerate(rows)
    )
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


class Column(NamedTuple):
    """A column of a table."""

    head: object
    cells: Sequence[object]
    number: bool = True  # whether it is aligned to the right


def columns_table(columns: Sequence[Column], *, marked: Container[int] = ()) -> str:
    """Return a table of columns; ``marked`` as of ``table``."""
    numbers = [place for place, column in enumerate(columns) if column.number]
    rows = zip(*(column.cells for column in columns), strict=True)
    return table([column.head for column in columns], rows, numbers=numbers, marked=marked)


def _kind(number: bool, cell: str) -> str:
    """The class of a cell: numbers are aligned to the right, and long texts wrap."""
    kinds = [*(["number"] if number else []), *(["long"] if len(cell) > _LONG else [])]
    return f' class="{" ".join(kinds)}"' if kinds else ""


def items(sentences: Iterable[str]) -> str:
    """Return sentences as a list."""
    return f"<ul>{''.join(f'<li>{text(sentence, _SENTENCE)}</li>' for sentence in sentences)}</ul>"


def dim(sentence: str) -> str:
    """Return a sentence in small grey type."""
    return f'<p class="dim">{text(sentence, _SENTENCE)}</p>'
