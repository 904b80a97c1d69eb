"""Draws docs/quality.svg: the best value of a search by the second, from its result.

    python tools/quality_figure.py

`make bench-quality` runs it after the measurement.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from speed_figure import MARGIN, STYLE, framed, write

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "quality_per_second.json"
PICTURE = ROOT / "docs" / "quality.svg"

#: Work of the result -> its title.
WORKS = {
    "layers": "Fashion-MNIST, dense layers",
    "images": "Fashion-MNIST, small CNN",
    "sentences": "Sentences, GRU",
    "table": "Table with categories",
    "digits": "Digits, numbers only",
}
#: Side of the result -> its name. Other sides that were measured have no curve.
SIDES = {
    "paceline": "Paceline",
    "optuna": "Optuna, TPE and median pruner",
    "hyperband": "KerasTuner, Hyperband",
}
#: A panel shows values that are so far below the best one. The gap between two lines of the grid.
SHOWN, GRID = 0.15, 0.05
#: Pixels of a panel: its width and height, and the space between panels with their words.
PANEL_WIDTH, PANEL_HEIGHT, GAP, HEAD, FOOT, TOP = 206, 110, 44, 26, 26, 40

LINES = """
polyline { fill: none; stroke-width: 2; } .grid { stroke: #d0d7de; stroke-width: 1; }
polyline.paceline { fill: none; stroke: #0969da; } polyline.optuna { stroke: #57606a; }
polyline.hyperband { stroke: #57606a; stroke-dasharray: 3 3; }
@media (prefers-color-scheme: dark) {
  .grid { stroke: #30363d; } polyline.paceline { stroke: #4493f8; }
  polyline.optuna, polyline.hyperband { stroke: #9198a1; }
}
"""


def longest(report: dict[str, Any]) -> int:
    """Return the seconds of the longest searches."""
    return max(int(key.split()[3]) for key in report["entries"])


def curve(report: dict[str, Any], work: str, side: str) -> list[float]:
    """Return the median of the seeds of the best value after 0, 1, 2, ... seconds; 0 for none."""
    end = longest(report)
    searches = [
        entry["bests"]
        for key, entry in report["entries"].items()
        if key.split()[:2] == [work, side] and int(key.split()[3]) == end
    ]
    return [
        statistics.median(
            max((value for at, value in bests if at <= second), default=0.0) for bests in searches
        )
        for second in range(end + 1)
    ]


def panel(report: dict[str, Any], work: str, left: float, top: float) -> Iterator[str]:
    """Yield the parts of a work's panel."""
    curves = {side: curve(report, work, side) for side in SIDES}
    best = max(max(each) for each in curves.values())
    x_scale = PANEL_WIDTH / longest(report)
    y_scale = PANEL_HEIGHT / SHOWN

    def y(value: float) -> float:
        return top + HEAD + (best - value) * y_scale

    yield write(left, top + 14, WORKS[work], "bold")
    line = round(best // GRID * GRID, 2)
    while line >= best - SHOWN:
        at = y(line)
        ends = f'x1="{left}" y1="{at:.1f}" x2="{left + PANEL_WIDTH}" y2="{at:.1f}"'
        yield f'<line class="grid" {ends}/>'
        yield write(left + PANEL_WIDTH + 34, at + 4, f"{line:.2f}", "dim", end=True)
        line = round(line - GRID, 2)
    for side, values in reversed(curves.items()):  # ours is drawn last, on top
        points = " ".join(
            f"{left + second * x_scale:.1f},{y(value):.1f}"
            for second, value in enumerate(values)
            if value >= best - SHOWN
        )
        yield f'<polyline class="{side}" points="{points}"/>'
    bottom = top + HEAD + PANEL_HEIGHT + 16
    yield write(left, bottom, "0", "dim")
    yield write(left + PANEL_WIDTH, bottom, f"{longest(report)} s", "dim", end=True)


def figure(report: dict[str, Any]) -> str:
    """Return the picture of a result: a panel for each work, a curve for each side."""
    parts = [write(MARGIN, 26, "Best validation accuracy so far, by seconds of search", "bold")]
    places = [
        (MARGIN + column * (PANEL_WIDTH + GAP), TOP + row * (HEAD + PANEL_HEIGHT + FOOT))
        for row in range(3)
        for column in range(2)
    ]
    for work, (left, top) in zip(WORKS, places, strict=False):
        parts += panel(report, work, left, top)
    left, top = places[len(WORKS)]
    for row, (side, name) in enumerate(SIDES.items()):
        at = top + 40 + 24 * row
        parts.append(f'<polyline class="{side}" points="{left},{at} {left + 26},{at}"/>')
        parts.append(write(left + 34, at + 4, name, "dim"))
    height = TOP + 3 * (HEAD + PANEL_HEIGHT + FOOT) + 8
    label = "Curves: the best validation accuracy of five searches by the second"
    return framed(parts, height, label, f"<style>{STYLE}{LINES}</style>")


if __name__ == "__main__":
    PICTURE.write_text(figure(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: written")
