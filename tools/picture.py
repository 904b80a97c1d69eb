"""Makes docs/search.svg: a search of 200 digits trials as its terminal shows it, in its own time.

    python tools/picture.py [--trials N] [-o FILE.svg]

The search runs in a process of its own, with the caches of this user: what a second search looks
like. Run it on a quiet machine, and look at the picture in a light and in a dark browser.
"""

from __future__ import annotations

import argparse
import html
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 88, 21
#: Pixels of a character and of a line, and around all of them.
WIDTH, HEIGHT, MARGIN = 8.4, 18, 14
#: Seconds between two frames, and for which the last one stays.
EVERY, STAYS = 0.25, 5.0
COMMAND = "paceline search examples/digits.py --trials {}"

STYLE = """
text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #24292f;
  white-space: pre; }
.back { fill: #f6f8fa; stroke: #d0d7de; }
.dim { fill: #6e7781; } .bold { font-weight: 600; }
.green { fill: #116329; } .cyan { fill: #0b6a7d; }
@media (prefers-color-scheme: dark) {
  text { fill: #c9d1d9; } .back { fill: #0d1117; stroke: #30363d; }
  .dim { fill: #8b949e; } .green { fill: #56d364; } .cyan { fill: #39c5cf; }
}
"""


def search(n_trials: int) -> list[tuple[float, RenderableType]]:
    """Searches, and returns what its panel showed when, in seconds since the command began."""
    began = time.perf_counter()
    os.environ.setdefault("KERAS_BACKEND", "jax")
    from paceline.report.panel import LivePanel
    from paceline.report.summary import search_summary

    frames: list[tuple[float, RenderableType]] = []

    def show(progress: Any = None) -> None:
        panel = LivePanel("digits")
        panel.progress, panel.status = progress, "loading examples/digits.py"
        frames.append((time.perf_counter() - began, panel))

    show()
    import paceline

    sys.path.insert(0, str(ROOT / "examples"))
    import digits

    (x, y), validation = digits.data()
    with tempfile.TemporaryDirectory() as folder:
        tuner = paceline.Tuner(
            digits.build, study="digits", directory=folder, on_progress=show, on_note=lambda _: None
        )
        tuner.search(x, y, validation_data=validation, epochs=10, batch_size=32, n_trials=n_trials)
        summary = tuner.summary()
    steps = [("paceline export digits", "its trained model"), ("paceline report digits", "figures")]
    frames.append(
        (time.perf_counter() - began, Text(search_summary(summary, "val_accuracy", steps)))
    )
    return frames


def thinned(frames: list[tuple[float, RenderableType]]) -> list[tuple[float, RenderableType]]:
    """One frame every ``EVERY`` seconds, and the last one."""
    kept: list[tuple[float, RenderableType]] = []
    for at, shown in frames[:-1]:
        if not kept or at - kept[-1][0] >= EVERY:
            kept.append((at, shown))
    return [*kept, frames[-1]]


def lines_of(shown: RenderableType) -> list[list[Segment]]:
    """What Rich draws on a terminal of ``COLUMNS``."""
    console = Console(width=COLUMNS, height=ROWS, color_system="standard", force_terminal=True)
    options = console.options.update(width=COLUMNS, height=ROWS)
    return console.render_lines(shown, options, pad=False)[: ROWS - 1]


def classes(style: Style | None) -> str:
    """The CSS classes of a style."""
    if style is None:
        return ""
    found = [name for name in ("dim", "bold") if getattr(style, name)]
    colour = style.color.name if style.color is not None else ""
    found += [name for name in ("green", "cyan") if name in colour]
    return " ".join(found)


def drawn(lines: list[list[Segment]]) -> str:
    """Lines as text of SVG, below the line of the command."""
    parts = []
    for row, segments in enumerate(lines, start=1):
        spans, column = [], 0
        for segment in segments:
            text, name = segment.text.rstrip("\n"), classes(segment.style)
            if text.strip():
                x = MARGIN + column * WIDTH
                attribute = f' class="{name}"' if name else ""
                length = f' textLength="{len(text) * WIDTH:.1f}"'
                spans.append(f'<tspan x="{x:.1f}"{attribute}{length}>{html.escape(text)}</tspan>')
            column += segment.cell_length
        if spans:
            y = MARGIN + (row + 1) * HEIGHT
            parts.append(f'<text y="{y}" xml:space="preserve">{"".join(spans)}</text>')
    return "".join(parts)


def motion(times: list[float]) -> str:
    """The CSS of frames that begin at some seconds.

    The last frame comes first and stays, then the search runs again from its beginning. So who
    shows the first frame alone shows a search that is done.
    """
    total = times[-1] + STAYS
    begins = [STAYS + at for at in times[:-1]]
    rules = [
        f"@keyframes f{n} {{ 0%, {100 * begin / total - 1e-3:.3f}% {{ opacity: 0; }} "
        f"{100 * begin / total:.3f}%, {100 * end / total - 1e-3:.3f}% {{ opacity: 1; }} "
        f"{100 * end / total:.3f}%, 100% {{ opacity: 0; }} }}"
        for n, (begin, end) in enumerate(zip(begins, [*begins[1:], total], strict=True))
    ]
    first = 100 * begins[0] / total
    rules.append(
        f"@keyframes f{len(begins)} {{ 0%, {first - 1e-3:.3f}% {{ opacity: 1; }} "
        f"{first:.3f}%, 100% {{ opacity: 0; }} }}"
    )
    each = [
        f"#f{n} {{ animation: f{n} {total:.2f}s step-end infinite; }}" for n in range(len(times))
    ]
    return "\n".join(line for pair in zip(rules, each, strict=True) for line in pair)


def picture(frames: list[tuple[float, RenderableType]], n_trials: int, where: str) -> str:
    """The whole picture: frames that show one after the other, again and again."""
    width, height = MARGIN * 2 + COLUMNS * WIDTH, MARGIN * 2 + (ROWS + 1) * HEIGHT
    groups = []
    for n, (_, shown) in enumerate(frames):
        # Without animation, and where it is not wanted, the last frame shows.
        hidden = "" if n == len(frames) - 1 else ' opacity="0"'
        groups.append(f'<g id="f{n}"{hidden}>{drawn(lines_of(shown))}</g>')
    rules = motion([at for at, _ in frames])
    command = html.escape(COMMAND.format(n_trials))
    top = MARGIN + HEIGHT * 0.8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="A search of {n_trials} trials in a terminal">\n'
        f"<title>{command}: {frames[-1][0]:.1f} s on {html.escape(where)}</title>\n"
        f"<style>{STYLE}@media (prefers-reduced-motion: no-preference) {{\n{rules}\n}}</style>\n"
        f'<rect class="back" x="0.5" y="0.5" width="{width - 1:.0f}" height="{height - 1:.0f}" '
        'rx="6"/>\n'
        f'<text x="{MARGIN}" y="{top:.1f}"><tspan class="dim">$ </tspan>'
        f'<tspan class="bold">{command}</tspan></text>\n' + "\n".join(groups) + "\n</svg>\n"
    )


def machine() -> str:
    """The processor, the number of its cores that this process may use, and the commit."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {names[0] if names else model}, at commit {commit}"


def main() -> None:
    """Searches, and writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "search.svg")
    given = parser.parse_args()
    frames = thinned(search(given.trials))
    given.output.write_text(picture(frames, given.trials, machine()), encoding="utf-8")
    size = given.output.stat().st_size / 1000
    print(f"{given.output}: {len(frames)} frames, {frames[-1][0]:.1f} s, {size:.0f} kB")


if __name__ == "__main__":
    main()
