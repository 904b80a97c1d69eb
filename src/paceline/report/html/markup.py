"""Pieces of HTML of a report. All text that comes in is escaped."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from html import escape

from paceline.report import formats

#: Characters of a cell at most.
_CELL = 400


def text(value: object) -> str:
    """Return a value as escaped text of bounded length, without control characters."""
    plain = formats.hparam(value) if isinstance(value, float) else str(value)
    plain = formats.visible(plain)
    return escape(plain if len(plain) <= _CELL else f"{plain[: _CELL - 3]}...")


def table(
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Container[int] = (),
    marked: Container[int] = (),
) -> str:
    """Return a table that scrolls by itself where the page is narrow.

    Args:
        head: The names of its columns.
        rows: Its cells.
        numbers: Positions of columns that are aligned to the right.
        marked: Positions of rows in bold type.
    """
    kinds = ['class="number"' if i in numbers else 'class="long"' for i in range(len(head))]
    top = "".join(
        f'<th scope="col" {kind}>{text(each)}</th>' for kind, each in zip(kinds, head, strict=True)
    )
    body = "".join(
        ('<tr class="best">' if i in marked else "<tr>")
        + "".join(f"<td {kind}>{text(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for i, row in enumerate(rows)
    )
    inner = f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll"><table>{inner}</table></div>'


def items(sentences: Iterable[str]) -> str:
    """Return sentences as a list."""
    return f"<ul>{''.join(f'<li>{text(sentence)}</li>' for sentence in sentences)}</ul>"


def dim(sentence: str) -> str:
    """Return a sentence in small grey type."""
    return f'<p class="dim">{text(sentence)}</p>'
