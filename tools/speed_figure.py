"""Draws docs/speed.svg: the seconds of the README's table as bars, from their result.

    python tools/speed_figure.py

`make bench` runs it after the table is written.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "benchmarks" / "results" / "search_speed.json"
PICTURE = ROOT / "docs" / "speed.svg"

#: Work of the result -> its two lines beside the bars.
WORKS = {
    "digits64": ("Digits, dense network", "64 trials x 20 epochs"),
    "structures": ("Digits, 8 structures", "64 trials x 10 epochs"),
    "gru": ("8,000 sentences, GRU", "8 trials x 3 epochs"),
    "fashion": ("Fashion-MNIST, CNN", "2,048 images, 4 trials x 2 epochs"),
}
#: Side of the result -> its name.
SIDES = {"paceline": "Paceline", "keras_tuner": "KerasTuner on JAX"}

#: Pixels: the picture, its margin, the longest bar, a bar's height, a work's, and the legend's.
WIDTH, MARGIN, LONGEST, BAR, WORK, TOP = 520, 16, 420, 14, 68, 62

STYLE = """
text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif;
  fill: #24292f; }
.back { fill: #ffffff; stroke: #d0d7de; } .dim { fill: #57606a; font-size: 12px; }
.bold { font-weight: 600; } .paceline { fill: #0969da; } .keras_tuner { fill: #afb8c1; }
@media (prefers-color-scheme: dark) {
  text { fill: #c9d1d9; } .back { fill: #0d1117; stroke: #30363d; } .dim { fill: #9198a1; }
  .paceline { fill: #4493f8; } .keras_tuner { fill: #848d97; }
}
"""


def write(x: float, y: float, words: str, kind: str = "", end: bool = False) -> str:
    """Return one line of text that begins at a place, or ends there."""
    named = f' class="{kind}"' if kind else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{named}{anchor}>{html.escape(words)}</text>'


def figure(report: dict[str, Any]) -> str:
    """Return the picture of a result: for each work one bar for each side, first runs only."""
    works = report["works"]
    seconds = {
        work: {side: works[work]["seconds"][side]["cold"] for side in SIDES} for work in WORKS
    }
    scale = LONGEST / max(max(each.values()) for each in seconds.values())
    parts = [
        write(MARGIN, 26, "Seconds for the same search, first run (shorter is better)", "bold")
    ]
    x = MARGIN
    for side, name in SIDES.items():
        parts.append(f'<rect class="{side}" x="{x}" y="37" width="11" height="11" rx="2"/>')
        parts.append(write(x + 17, 47, name, "dim"))
        x += 36 + 7 * len(name)
    for row, (work, (name, detail)) in enumerate(WORKS.items()):
        y = TOP + row * WORK
        ratio = works[work]["ratios"]["keras_tuner"]["cold"]
        parts.append(write(MARGIN, y + 15, name))
        parts.append(write(MARGIN + 160, y + 15, detail, "dim"))
        parts.append(write(WIDTH - MARGIN, y + 15, f"{ratio:.1f}x as fast", "bold", end=True))
        for at, side in enumerate(SIDES):
            width, top = max(1.0, seconds[work][side] * scale), y + 23 + at * (BAR + 3)
            parts.append(
                f'<rect class="{side}" x="{MARGIN}" y="{top}" width="{width:.1f}" '
                f'height="{BAR}" rx="2"/>'
            )
            parts.append(write(MARGIN + width + 7, top + 11, f"{seconds[work][side]:.1f} s", "dim"))
    height = TOP + len(WORKS) * WORK + 2
    label = "Bars: seconds of four searches, with Paceline and with KerasTuner"
    head = f"<title>{html.escape(told(report))}</title>\n<style>{STYLE}</style>"
    return framed(parts, height, label, head)


def framed(parts: list[str], height: int, label: str, head: str) -> str:
    """Return a picture of these parts; ``label`` says what it shows, ``head`` comes before them."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" role="img" aria-label="{label}">\n'
        f"{head}\n"
        f'<rect class="back" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def told(report: dict[str, Any]) -> str:
    """Return the seconds in words, and where they were measured."""
    machine = report["machine"]
    parts = [
        f"{name}: {report['works'][work]['seconds']['paceline']['cold']:.1f} s, KerasTuner "
        f"{report['works'][work]['seconds']['keras_tuner']['cold']:.1f} s"
        for work, (name, _) in WORKS.items()
    ]
    where = f"{machine['cores']} cores of {machine['cpu']}, at commit {machine['commit']}"
    return f"{'; '.join(parts)}. Measured on {where}"


if __name__ == "__main__":
    PICTURE.write_text(figure(json.loads(RESULT.read_text(encoding="utf-8"))), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)}: written")
