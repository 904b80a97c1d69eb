"""The parts of a result as one HTML page without other files, in the style of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from paceline.benchmark.presentation.advice import way
from paceline.benchmark.presentation.document import (
    DocumentPart,
    Section,
    Sentences,
    Table,
    TimeShares,
)
from paceline.benchmark.records import Curve, Measurement, Run, labels
from paceline.report import formats
from paceline.report import html as report_html
from paceline.report.html.markup import dim, items, table
from paceline.report.static import picture

_STYLE = """
:root { --c0: #0b62c4; --c1: #b3420a; --c2: #1a7f37; --c3: #8250df; --c4: #9a6700; --c5: #a40e5c; }
@media (prefers-color-scheme: dark) { :root { --c0: #58a6ff; --c1: #ff9b5e; --c2: #56d364;
  --c3: #c9a2ff; --c4: #e3b341; --c5: #ff8fc2; } }
.bars { display: grid; grid-template-columns: minmax(7rem, 15rem) 1fr; gap: .25rem .75rem;
  align-items: center; font-size: .875rem; }
.bars h3 { grid-column: 1 / -1; margin: .8rem 0 0; }
.bars .row { display: flex; align-items: center; gap: .5rem; min-width: 0; }
.bars .bar { height: 1.1rem; min-width: 2px; border: 1px solid var(--ink); flex: none; }
.bars .value { white-space: nowrap; font-variant-numeric: tabular-nums; }
.k0 { background: var(--c0); }
.k1 { background: repeating-linear-gradient(45deg, var(--c1) 0 4px, var(--page) 4px 8px); }
.k2 { background: repeating-linear-gradient(90deg, var(--c2) 0 3px, var(--page) 3px 7px); }
.k3 { background: repeating-linear-gradient(-45deg, var(--c3) 0 2px, var(--page) 2px 7px); }
.k4 { background: repeating-linear-gradient(0deg, var(--c4) 0 3px, var(--page) 3px 6px); }
.k5 { background: radial-gradient(var(--c5) 35%, var(--page) 38%) 0 0 / 6px 6px; }
tr.best td { background: var(--soft); } th.number, td.number { padding: .2rem .5rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1rem; }
figure { margin: 0; } figcaption { font-size: .875rem; color: var(--dim); }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 13px; }
svg path { stroke: var(--rule); }
"""
#: Colours of the style; lines differ by dashes and marks, too, for who sees no colours.
_KINDS = 6
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_MARKS = ("circle", "square", "triangle-up", "diamond")


@dataclass(frozen=True)
class _Picture(DocumentPart):
    """A part that only a page can show."""

    markup: str


def page(
    runs: Sequence[Run], parts: Sequence[DocumentPart], target_value: float | None = None
) -> str:
    """Returns the whole page as HTML, with bars and curves.

    ``parts`` are what is said of the runs; ``target_value`` is a value of the metric to mark in the
    curves.
    """
    name = str(runs[0].model.get("name", "model")) if runs else "model"
    style = Path(report_html.__file__).with_name("page.css").read_text(encoding="utf-8") + _STYLE
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(name)}: paceline bench</title><style>{style}</style></head><body>",
        f"<h1>{escape(name)}: what training costs</h1>",
    ]
    above = ""
    pictures = [*_bars(runs), *_curves(runs, target_value)]
    for part in sorted([*parts, *pictures], key=lambda part: part.section):
        if part.title != above:
            lines.append(f"<h2>{escape(part.title)}</h2>")
            above = part.title
        lines += _lines(part)
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _lines(part: DocumentPart) -> Iterator[str]:
    if isinstance(part, Sentences):
        if part.listed:
            yield items(part.sentences)
        else:
            yield from map(dim, part.sentences)
    elif isinstance(part, Table):
        numbers = [i for i, name in enumerate(part.head) if name not in part.words]
        marked = [] if part.best is None else [part.best]
        rows = [list(row) for row in part.rows]
        for i in marked:
            rows[i][0] += " *"
        yield table(part.head, rows, numbers=numbers, marked=marked)
        yield dim(part.key)
    elif isinstance(part, TimeShares):
        yield f"<p>{escape(part.first)}</p>"
        yield items([f"{seconds} ({share}) {what}" for seconds, share, what in part.shares])
        yield f"<p>{escape(part.last)}</p>"
    elif isinstance(part, _Picture):
        yield part.markup


def _bars(runs: Sequence[Run]) -> Iterator[_Picture]:
    """The seconds of a trial's epoch as bars: one for each batch size, device and way to train."""
    rows = list(_rows(runs))
    if not rows:
        return
    longest = max(seconds for _, _, seconds, _ in rows)
    kinds = list(dict.fromkeys(kind for _, kind, _, _ in rows))
    sentence = (
        "Seconds per epoch of one trial, without compiling: its own time, or its share if several "
        "train at once. Shorter is better."
    )
    lines, above = [f'{dim(sentence)}<div class="bars">'], None
    for size, kind, seconds, how in rows:
        if size != above:
            lines.append(f"<h3>batch {size:,}</h3>")
            above = size
        width = 70 * seconds / longest  # percent; the value stands beside the longest
        pattern = f"k{kinds.index(kind) % _KINDS}"
        lines.append(
            f'<span class="name" title="{escape(how)}">{escape(kind)}</span>'
            f'<span class="row"><span class="bar {pattern}" style="width:{width:.2f}%"></span>'
            f'<span class="value">{formats.fine(seconds)}</span></span>'
        )
    markup = "\n".join([*lines, "</div>"])
    yield _Picture(Section.PICTURES, "Training time by batch size", markup)


def _rows(runs: Sequence[Run]) -> Iterator[tuple[int, str, float, str]]:
    sizes = sorted({measurement.config.batch_size for run in runs for measurement in run.measured})
    for size in sizes:
        for label, run in zip(labels(runs), runs, strict=True):
            name = f"{label}, " if len(runs) > 1 else ""
            for kind, measurement in _kinds(run, size):
                seconds = measurement.epoch(run.n_examples)
                if seconds is not None:
                    yield size, f"{name}{kind}", seconds, way(measurement.config)


def _kinds(run: Run, size: int) -> Iterator[tuple[str, Measurement]]:
    """Keras' fit, the fastest way for one trial, and the fastest way for several at once."""
    found = sorted(run.measured, key=lambda measurement: -measurement.rate)
    found = [measurement for measurement in found if measurement.config.batch_size == size]
    for kind, fits in (
        ("Keras' fit", lambda config: config.plan == "fit"),
        ("one trial", lambda config: config.plan != "fit" and config.at_once == 1),
        ("several trials at once", lambda config: config.at_once > 1),
    ):
        yield from [(kind, each) for each in found if fits(each.config)][:1]


def _curves(runs: Sequence[Run], target_value: float | None) -> Iterator[_Picture]:
    for label, run in zip(labels(runs), runs, strict=True):
        curves = [curve for curve in run.curves if curve.values]
        if not curves:
            continue
        metric, figures = curves[0].metric, ""
        for title, whole in (("epochs", True), ("seconds of training and validation", False)):
            caption = escape(f"{metric} against {title}; each line is a batch size.")
            drawing = picture(_figure(curves, title, target_value, whole=whole))
            figures += (
                f'<figure><div role="img" aria-label="{caption}">{drawing}</div>'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        where = f" on {label}" if len(runs) > 1 else ""
        heading, markup = f"{metric} by batch size{where}", f'<div class="figures">{figures}</div>'
        yield _Picture(Section.PICTURES, heading, markup)


def _figure(
    curves: Sequence[Curve], title: str, target_value: float | None, *, whole: bool
) -> dict[str, Any]:
    """Curves over epochs if ``whole``, else over seconds, as a figure of Plotly's."""
    data: list[dict[str, Any]] = []
    for i, curve in enumerate(curves):
        n = len(curve.values)
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers+text",
                "x": list(range(1, n + 1)) if whole else curve.seconds[:n],
                "y": curve.values,
                "text": [*[""] * (n - 1), str(curve.batch_size)],
                "line": {"color": f"var(--c{i % _KINDS})", "dash": _DASHES[i % len(_DASHES)]},
                "marker": {"symbol": _MARKS[i % len(_MARKS)], "size": 7, "maxdisplayed": 9},
            }
        )
    if target_value is not None:
        last = max(trace["x"][-1] for trace in data)
        line = {"color": "var(--ink)", "dash": "dot", "width": 1}
        data.append(
            {"type": "scatter", "mode": "lines+text", "x": [0, last], "y": [target_value] * 2}
        )
        data[-1] |= {"line": line, "text": ["", "target"]}
    across = {"title": title, "rangemode": "tozero", "tickformat": "d" if whole else ""}
    layout = {"width": 520, "height": 330, "paper_bgcolor": "none", "xaxis": across}
    return {"data": data, "layout": {**layout, "yaxis": {"title": curves[0].metric}}}
