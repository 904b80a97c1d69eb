"""Small pieces of HTML for notebooks: tables, bars and curves, on a page of any colour.

Text is black or white as the notebook has it, because every colour is ``currentColor`` or one that
can be read on both. All text is escaped: names and errors come from users.
"""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

#: Rows of a table at most; what is left out is said below it.
ROWS = 30
#: Characters of a cell at most.
CELL = 200
#: Points of a curve at most.
POINTS = 60

_WIDTH, _HEIGHT = 90, 18
_CURVE = "#4c8bd6"  # can be read on white and on black, which an image does not know
_TABLE = "border-collapse:collapse;font-variant-numeric:tabular-nums;color:inherit;margin:4px 0"
_EDGE = "border:0;border-bottom:1px solid rgba(128,128,128,.35);background:none;color:inherit"
_CELL = f"{_EDGE};padding:2px 10px 2px 0;text-align:left;vertical-align:top"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object, most: int = CELL) -> Markup:
    """Return a value as escaped text of at most ``most`` characters, without control characters."""
    if isinstance(value, Markup):
        return value
    plain = _visible(_number(value) if isinstance(value, float) else str(value))
    return Markup(html.escape(plain if len(plain) <= most else f"{plain[: most - 3]}..."))


def _visible(plain: str) -> str:
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in plain)


def table(
    head: Sequence[object], rows: Sequence[Sequence[object]], *, faint: Container[int] = ()
) -> Markup:
    """Return a table of at most ``ROWS`` rows; ``faint`` are positions of rows in lighter type."""
    top = "".join(f'<th scope="col" style="{_CELL};font-weight:600">{text(h)}</th>' for h in head)
    body = "".join(
        ('<tr style="opacity:.7">' if i in faint else "<tr>")
        + "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in row)
        + "</tr>"
        for i, row in enumerate(rows[:ROWS])
    )
    left = len(rows) - ROWS
    more = f'<div style="opacity:.7">and {left:,} more rows</div>' if left > 0 else ""
    return Markup(
        f'<div style="overflow-x:auto"><table style="{_TABLE}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>{more}"
    )


def pairs(title: str, values: Mapping[str, Any]) -> Markup:
    """Return a title, and a table of names and values."""
    return block(title, table(("name", "value"), list(values.items())))


def block(title: object, *parts: Markup) -> Markup:
    """Return parts under a title."""
    head = f'<div style="font-weight:600">{text(title)}</div>'
    return Markup(f'<div class="paceline" style="color:inherit">{head}{"".join(parts)}</div>')


def preformatted(plain: str) -> Markup:
    """Return text whose columns stay as they are, of any length."""
    return Markup(
        '<pre style="color:inherit;background:none;overflow-x:auto;white-space:pre">'
        f"{html.escape(_visible(plain))}</pre>"
    )


def bar(share: float) -> Markup:
    """Return a bar that is full up to a share between 0 and 1."""
    percent = 100 * min(1.0, max(0.0, share))
    return Markup(
        '<div style="height:6px;max-width:480px;border-radius:3px;margin:4px 0;'
        'background:rgba(128,128,128,.3)"><div style="height:6px;border-radius:3px;'
        f'background:#2f9e62;width:{percent:.1f}%"></div></div>'
    )


def thin(values: Iterable[T], most: int = POINTS) -> tuple[T, ...]:
    """Return at most this many of the values, evenly spread, the first and the last among them."""
    known = list(values)
    if len(known) <= most:
        return tuple(known)
    step = (len(known) - 1) / (most - 1)
    return tuple(known[round(i * step)] for i in range(most))


def curve(values: Sequence[float]) -> Markup:
    """Return a small curve; epochs without a finite value are left out."""
    points = [(i, v) for i, v in enumerate(thin(values)) if math.isfinite(v)]
    if len(points) < 2:
        return Markup("")
    low, high = min(v for _, v in points), max(v for _, v in points)
    # Halves, because the difference of two huge numbers may be infinite.
    span = high / 2 - low / 2
    last = points[-1][0] or 1

    def height(value: float) -> float:
        return (value / 2 - low / 2) / span if span else 0.5

    line = " ".join(
        f"{1 + i / last * (_WIDTH - 2):.1f},{1 + (1 - height(v)) * (_HEIGHT - 2):.1f}"
        for i, v in points
    )
    # An image, because JupyterLab takes SVG out of the HTML of a notebook that it does not trust.
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
        f'<polyline points="{line}" fill="none" stroke="{_CURVE}" stroke-width="1.3"/></svg>'
    )
    data = base64.b64encode(drawn.encode()).decode()
    return Markup(
        f'<img class="curve" width="{_WIDTH}" height="{_HEIGHT}" '
        f'alt="from {_number(points[0][1])} to {_number(points[-1][1])}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


def _number(value: float) -> str:
    return f"{value:.6g}"


def numbers(values: Sequence[float]) -> list[str]:
    """Return the numbers of a column, all in the precision in which the largest has six digits."""
    known = [abs(value) for value in values if math.isfinite(value)]
    most = math.floor(math.log10(max(known))) if any(known) else 0
    form = f".{max(0, 5 - most)}f" if -4 <= most < 6 else ".5e"
    return [format(value, form) for value in values]


class HistoryTable(dict[str, list[float]]):
    """A trial's history: a dict by metric, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        n = max(map(len, self.values()), default=0)
        first = max(0, n - ROWS + 1)
        rows: list[list[object]] = [["", *(curve(values) for values in self.values())]]
        columns = [numbers(values[first:]) for values in self.values()]
        for at in range(n - first):
            rows.append([first + at + 1, *(c[at] if at < len(c) else "" for c in columns)])
        said = f"{n:,} epochs" + (f", the last {n - first}" if first else "")
        return block(said, table(("epoch", *self), rows))


class HparamsTable(dict[str, Any]):
    """Hyperparameters: a dict by name, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return pairs("hyperparameters", self)


class ShownValues:
    """What is shown by its ``values`` (name -> value), in Python and in a notebook."""

    values: dict[str, Any]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.values!r})"

    def _repr_html_(self) -> str:
        return pairs("hyperparameters", self.values)
