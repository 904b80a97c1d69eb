"""The parts of a result as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.table import Table as RichTable
from rich.text import Text

from paceline.benchmark.presentation.document import DocumentPart, Sentences, Table, TimeShares
from paceline.report import formats
from paceline.report.tables import plain_table, render


def text_of(parts: Sequence[DocumentPart], width: int | None = None) -> str:
    """Returns parts as lines without colours, the last one without a line end.

    ``width``: columns of the terminal; None: lines are as long as the tables need.
    """
    blocks = ["\n".join(_lines(part, width)) for part in parts]
    return "\n\n".join(block for block in blocks if block)


def _lines(part: DocumentPart, width: int | None) -> list[str]:
    if isinstance(part, Sentences):
        bullet = "- " if part.listed else ""
        return [line for each in part.sentences for line in _wrap(each, width, bullet)]
    if isinstance(part, Table):
        return _table(part, width)
    if isinstance(part, TimeShares):
        shares = [f"{seconds:>9}  {share:>4}  {what}" for seconds, share, what in part.shares]
        lines = [line for each in shares for line in _wrap(each, width, " " * 17)]
        return [*_wrap(part.first, width), *lines, *_wrap(part.last, width)]
    return []


def _table(part: Table, width: int | None) -> list[str]:
    left_out: list[str] = []
    spare = list(part.spare)
    text = render(_build(part, left_out), None)
    while width is not None and spare and max(map(len, text.splitlines())) > width:
        left_out.append(spare.pop(0))
        text = render(_build(part, left_out), None if spare else width)
    key = part.key
    if left_out:
        key += f" Left out: {', '.join(left_out)}. Use -o bench.html to see everything."
    return [text.rstrip("\n"), *_wrap(key, width)]


def _build(part: Table, left_out: Sequence[str]) -> RichTable:
    table = plain_table()
    kept = [i for i, name in enumerate(part.head) if name not in left_out]
    for name in (part.head[i] for i in kept):
        title = "\n".join(name.rsplit(" ", 1))  # on two lines: the figures below it are short
        justify = "left" if name in part.words else "right"
        table.add_column(title, justify=justify, no_wrap=True)
    for at, row in enumerate(part.rows):
        if at and row[0] != part.rows[at - 1][0]:
            table.add_section()
        first, *others = (row[i] for i in kept)
        table.add_row(*map(Text, [f"* {first}" if at == part.best else first, *others]))
    return table


def _wrap(text: str, width: int | None, bullet: str = "") -> list[str]:
    """The lines of a paragraph; all but the first are indented by the width of the bullet."""
    return textwrap.wrap(
        text,
        min(width or formats.READABLE, formats.READABLE),
        initial_indent="" if bullet.isspace() else bullet,
        subsequent_indent=" " * len(bullet),
        break_on_hyphens=False,
    )
