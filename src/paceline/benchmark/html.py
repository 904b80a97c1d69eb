"""The parts of a result as one HTML page without other files, in the style of a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from paceline.benchmark.document import Bars, Curves, Part, Sentences, Shares, Table
from paceline.benchmark.lines_svg import Line, picture
from paceline.report import formats
from paceline.report import html as report_html
from paceline.report.html.markup import table

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
svg { width: 100%; height: auto; font-size: 13px; } svg text { fill: var(--ink); }
svg .grid { stroke: var(--rule); } svg .lead { stroke: var(--dim); stroke-width: .5; }
svg .target { stroke: var(--ink); stroke-dasharray: 2 4; }
"""
_KINDS = 6


def page(name: str, parts: Sequence[Part]) -> str:
    """Returns the whole page as HTML.

    Args:
        name: Name of the model.
        parts: The parts, in any order of sections.
    """
    style = Path(report_html.__file__).with_name("page.css").read_text(encoding="utf-8") + _STYLE
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(name)}: paceline bench</title><style>{style}</style></head><body>",
        f"<h1>{escape(name)}: what training costs</h1>",
    ]
    above = ""
    for part in sorted(parts, key=lambda part: part.section):
        if part.title != above:
            lines.append(f"<h2>{escape(part.title)}</h2>")
            above = part.title
        lines += _lines(part)
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _lines(part: Part) -> Iterator[str]:
    if isinstance(part, Sentences):
        if part.listed:
            yield _list(part.sentences)
        else:
            yield from map(_dim, part.sentences)
    elif isinstance(part, Table):
        numbers = [i for i, name in enumerate(part.head) if name not in part.words]
        marked = [] if part.best is None else [part.best]
        rows = [list(row) for row in part.rows]
        for i in marked:
            rows[i][0] += " *"
        yield table(part.head, rows, numbers=numbers, marked=marked)
        yield _dim(part.key)
    elif isinstance(part, Shares):
        yield f"<p>{escape(part.first)}</p>"
        yield _list([f"{seconds} ({share}) {what}" for seconds, share, what in part.shares])
        yield f"<p>{escape(part.last)}</p>"
    elif isinstance(part, Bars):
        yield from _bars(part)
    elif isinstance(part, Curves):
        yield from _curves(part)


def _list(sentences: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(each)}</li>' for each in sentences)}</ul>"


def _dim(sentence: str) -> str:
    return f'<p class="dim">{escape(sentence)}</p>'


def _bars(part: Bars) -> Iterator[str]:
    longest = max(bar.seconds for bar in part.bars)
    names = list(dict.fromkeys(bar.name for bar in part.bars))
    yield f'{_dim(part.sentence)}<div class="bars">'
    above = None
    for bar in part.bars:
        if bar.group != above:
            yield f"<h3>{escape(bar.group)}</h3>"
            above = bar.group
        kind = names.index(bar.name) % _KINDS
        width = 70 * bar.seconds / longest  # percent; the value stands beside the longest
        yield (
            f'<span class="name" title="{escape(bar.hint)}">{escape(bar.name)}</span>'
            f'<span class="row"><span class="bar k{kind}" style="width:{width:.2f}%"></span>'
            f'<span class="value">{formats.fine(bar.seconds)}</span></span>'
        )
    yield "</div>"


def _curves(part: Curves) -> Iterator[str]:
    metric = part.curves[0].metric
    yield '<div class="figures">'
    for title in ("epochs", "seconds of training and validation"):
        whole = title == "epochs"
        lines = [
            Line(str(curve.batch_size), list(zip(xs, curve.values, strict=False)))
            for curve in part.curves
            for xs in [range(1, len(curve.values) + 1) if whole else curve.seconds]
        ]
        drawing = picture(lines, title, metric, part.target, whole=whole)
        caption = f"{metric} against {title}; each line is a batch size."
        yield f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
    yield "</div>"
