"""Draws the flowchart of rooms in docs/design.md as SVG.

Mermaid's own script is megabytes that a page would load from elsewhere, so this reads the part of
its language that the chart has: floors (subgraphs) with boxes, and arrows between boxes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from html import escape

WIDTH, LINE, MARGIN, GAP, TITLE = 720, 15, 14, 46, 18

_SUBGRAPH = re.compile(r'subgraph \w+\["(.*)"\]')
_BOX = re.compile(r'(\w+)\["(.*)"\]')
_ARROW = re.compile(r"([\w& ]+?) --> ([\w& ]+)")


@dataclass
class Floor:
    """One row of the chart.

    Attributes:
        title: Its name.
        boxes: Name of a box -> its lines of text.
    """

    title: str
    boxes: dict[str, list[str]] = field(default_factory=dict)


def parse(text: str) -> tuple[list[Floor], list[tuple[str, str]]]:
    """Return the floors, the highest first, and the arrows.

    Raises:
        ValueError: A line is of another kind, or an arrow ends at no box.
    """
    floors: list[Floor] = []
    arrows: list[tuple[str, str]] = []
    for line in map(str.strip, text.splitlines()):
        if line in ("", "end", "flowchart TB"):
            continue
        if match := _SUBGRAPH.fullmatch(line):
            floors.append(Floor(match[1]))
        elif (match := _BOX.fullmatch(line)) and floors:
            floors[-1].boxes[match[1]] = match[2].split("<br/>")
        elif match := _ARROW.fullmatch(line):
            ends = [[name.strip() for name in side.split("&")] for side in match.groups()]
            arrows += [(begin, end) for begin in ends[0] for end in ends[1]]
        else:
            raise ValueError(f"this line is not drawn: {line!r}")
    known = {name for floor in floors for name in floor.boxes}
    if unknown := {name for arrow in arrows for name in arrow} - known:
        raise ValueError(f"arrows lead to no box: {sorted(unknown)}")
    return floors, arrows


def draw(text: str) -> str:
    """Return the chart as an SVG element that takes its colours from the page.

    Raises:
        ValueError: As from ``parse``.
    """
    floors, arrows = parse(text)
    places: dict[str, tuple[float, float, float, float]] = {}  # x, y, width, height
    parts, y = [], 4.0
    for floor in floors:
        lines = max(len(box) for box in floor.boxes.values())
        height = lines * LINE + 12
        parts.append(
            f'<rect class="floor" x="4" y="{y}" width="{WIDTH - 8}" '
            f'height="{height + TITLE + 12}" rx="6"/>'
            f'<text class="title" x="{MARGIN}" y="{y + 15}">{escape(floor.title)}</text>'
        )
        room = (WIDTH - MARGIN * (len(floor.boxes) + 1)) / len(floor.boxes)
        width = min(room, 250)
        left = (WIDTH - len(floor.boxes) * (width + MARGIN) + MARGIN) / 2
        for at, (name, box) in enumerate(floor.boxes.items()):
            x = left + at * (width + MARGIN)
            places[name] = (x, y + TITLE + 4, width, height)
            parts.append(
                f'<rect class="box" x="{x:.0f}" y="{y + TITLE + 4}" width="{width:.0f}" '
                f'height="{height}" rx="4"/>'
            )
            parts += [
                f'<text class="{"name" if row == 0 else "note"}" text-anchor="middle" '
                f'x="{x + width / 2:.0f}" y="{y + TITLE + 18 + row * LINE}">{escape(each)}</text>'
                for row, each in enumerate(box)
            ]
        y += height + TITLE + 12 + GAP
    lines = []
    for begin, end in arrows:
        (x1, y1, w1, h1), (x2, y2, w2, _) = places[begin], places[end]
        lines.append(
            f'<line class="arrow" x1="{x1 + w1 / 2:.0f}" y1="{y1 + h1}" '
            f'x2="{x2 + w2 / 2:.0f}" y2="{y2 - 3}" marker-end="url(#floors-tip)"/>'
        )
    tip = (
        '<marker id="floors-tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto-start-reverse"><path class="tip" d="M0 0L10 5L0 10z"/>'
        "</marker>"
    )
    return (
        f'<svg viewBox="0 0 {WIDTH} {y - GAP + 4:.0f}" role="img" '
        f'aria-label="The rooms of the package and their imports"><defs>{tip}</defs>'
        f"{''.join(parts)}{''.join(lines)}</svg>"
    )
