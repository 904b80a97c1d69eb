"""A line chart as inline SVG, readable without colours: dashes, markers and labels differ too.

Colours are CSS variables of the page (``--c0`` and so on), so that the same picture serves a light
and a dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 74, 14, 44
COLOURS = 6
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "12 4", "1 4")


@dataclass(frozen=True)
class Line:
    """One line of a chart: the label at its end, and pairs (x, y), sorted by x."""

    label: str
    points: Sequence[tuple[float, float]]


def picture(
    lines: Sequence[Line],
    x_title: str,
    y_title: str,
    target: float | None = None,
    *,
    whole: bool = False,
) -> str:
    """Returns a chart as an SVG element.

    Args:
        lines: Lines with at least one point among them.
        x_title: Text below the chart.
        y_title: Text above the vertical axis.
        target: A value of y to mark; None: nothing is marked.
        whole: Whether x is a count, so that ticks stand at whole numbers only.
    """
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + ([] if target is None else [target])
    x_ticks = ticks(min(0.0, *xs), max(xs), whole=whole)
    y_ticks = ticks(min(ys), max(ys))
    area = _Area(x_ticks, y_ticks)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_title)} against '
        f'{escape(x_title)}">'
    ]
    parts += [area.y_tick(value) for value in y_ticks]
    parts += [area.x_tick(value) for value in x_ticks]
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - 8}" '
        f'text-anchor="middle">{escape(x_title)}</text>'
    )
    if target is not None:
        y = area.y(target)
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="target"/>'
        )
    places = _apart([area.y(line.points[-1][1]) for line in lines if line.points])
    drawn = [line for line in lines if line.points]
    for i, (line, place) in enumerate(zip(drawn, places, strict=True)):
        parts.append(_drawn(line, i, area, place))
    return "".join([*parts, "</svg>"])


def ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> list[float]:
    """Returns at most ``most`` steps of round numbers, from at most ``low`` to at least ``high``.

    If ``whole``, they are whole numbers only.
    """
    if high <= low:
        high = low + (abs(low) or 1.0)
    raw = (high - low) / most
    if whole:
        raw = math.ceil(raw)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step = next(power * m for m in steps if power * m >= raw)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


class _Area:
    """The area of the chart: places values of both axes in the coordinates of the picture."""

    def __init__(self, x_ticks: Sequence[float], y_ticks: Sequence[float]) -> None:
        self._x, self._y = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])

    def x(self, value: float) -> float:
        low, high = self._x
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def y_tick(self, value: float) -> str:
        y = self.y(value)
        return (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
            f'<text x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{value:.4g}</text>'
        )

    def x_tick(self, value: float) -> str:
        return (
            f'<text x="{self.x(value):.1f}" y="{HEIGHT - BOTTOM + 18}" '
            f'text-anchor="middle">{value:.4g}</text>'
        )


def _drawn(line: Line, i: int, area: _Area, label_y: float) -> str:
    points = [(area.x(x), area.y(y)) for x, y in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    colour = f"var(--c{i % COLOURS})"
    dash = f' stroke-dasharray="{dashes}"' if (dashes := _DASHES[i % len(_DASHES)]) else ""
    text = (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}>'
        f"<title>{escape(line.label)}</title></polyline>"
    )
    every = max(1, len(points) // 8)
    text += "".join(_marker(i, x, y, colour) for x, y in points[::every])
    x, y = points[-1]
    end = WIDTH - RIGHT + 12
    text += (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{end - 3}" y2="{label_y:.1f}" class="lead"/>'
        f"{_marker(i, x, y, colour)}"
        f'<text x="{end}" y="{label_y + 4:.1f}">{escape(line.label)}</text>'
    )
    return text


def _marker(i: int, x: float, y: float, colour: str) -> str:
    kind = i % 4
    if kind == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
    if kind == 1:
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{colour}"/>'
    shape = [(0, -4.5), (4, 3), (-4, 3)] if kind == 2 else [(0, -5), (5, 0), (0, 5), (-5, 0)]
    path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in shape)
    return f'<polygon points="{path}" fill="{colour}"/>'


def _apart(places: Sequence[float], gap: float = 15.0) -> list[float]:
    """The same places, moved just far enough apart that labels do not cover each other."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    found = list(places)
    for before, i in zip(order, order[1:], strict=False):
        found[i] = max(found[i], found[before] + gap)
    over = max((found[order[-1]] if order else 0.0) - (HEIGHT - BOTTOM), 0.0)
    limit = HEIGHT - BOTTOM
    for i in reversed(order) if over else ():
        found[i] = min(found[i], limit)
        limit = found[i] - gap
    return found
