"""A benchmark as one HTML page without other files: bars, curves, the table and the advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from paceline.benchmark.advice import Advice, explain, fastest, way
from paceline.benchmark.lines_svg import Line, picture
from paceline.benchmark.records import Curve, Measurement, Run, labels
from paceline.benchmark.table import COLUMNS, facts, missing
from paceline.report import formats

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --dim: #57606a; --page: #ffffff;
  --rule: #d0d7de; --soft: #f3f5f7; --c0: #0b62c4; --c1: #b3420a; --c2: #1a7f37; --c3: #8250df;
  --c4: #9a6700; --c5: #a40e5c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9da7b1; --page: #0d1117;
  --rule: #30363d; --soft: #161b22; --c0: #58a6ff; --c1: #ff9b5e; --c2: #56d364; --c3: #c9a2ff;
  --c4: #e3b341; --c5: #ff8fc2; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p, li { max-width: 46rem; } .dim { color: var(--dim); font-size: .875rem; margin: .15rem 0; }
ul { padding-left: 1.2rem; } li { margin: .3rem 0; }
.bars { display: grid; grid-template-columns: minmax(7rem, 15rem) 1fr; gap: .25rem .75rem;
  align-items: center; }
.bars h3 { grid-column: 1 / -1; font-size: .95rem; margin: .8rem 0 0; }
.bars .name { font-size: .875rem; }
.bars .row { display: flex; align-items: center; gap: .5rem; min-width: 0; }
.bars .bar { height: 1.1rem; min-width: 2px; border: 1px solid var(--ink); flex: none; }
.bars .value { font-size: .875rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
.k0 { background: var(--c0); }
.k1 { background: repeating-linear-gradient(45deg, var(--c1) 0 4px, var(--page) 4px 8px); }
.k2 { background: repeating-linear-gradient(90deg, var(--c2) 0 3px, var(--page) 3px 7px); }
.k3 { background: repeating-linear-gradient(-45deg, var(--c3) 0 2px, var(--page) 2px 7px); }
.k4 { background: repeating-linear-gradient(0deg, var(--c4) 0 3px, var(--page) 3px 6px); }
.k5 { background: radial-gradient(var(--c5) 35%, var(--page) 38%) 0 0 / 6px 6px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .5rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--rule); }
th { color: var(--dim); font-weight: 600; } tr.best td { font-weight: 700;
  background: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1rem; }
figure { margin: 0; } figcaption { font-size: .875rem; color: var(--dim); }
svg { width: 100%; height: auto; font-size: 13px; } svg text { fill: var(--ink); }
svg .grid { stroke: var(--rule); } svg .lead { stroke: var(--dim); stroke-width: .5; }
svg .target { stroke: var(--ink); stroke-dasharray: 2 4; }
"""
_KINDS = 6


def page(
    runs: Sequence[Run],
    advice: Sequence[Advice],
    *,
    target: float | None = None,
    more: Sequence[str] = (),
) -> str:
    """Return the whole page as HTML.

    Args:
        runs: The runs to show.
        advice: The findings to show.
        target: A value of the metric to mark in the curves; None: nothing is marked.
        more: Further sentences, such as those of a prediction.
    """
    name = str(runs[0].model.get("name", "model")) if runs else "model"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(name)}: paceline bench</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(name)}: what training costs</h1>",
        *(f'<p class="dim">{escape(line)}</p>' for run in runs for line in facts(run)),
        *(f'<p class="dim">Note: {escape(note)}</p>' for run in runs for note in run.notes),
        *_list("What follows", [each.text for each in advice]),
        *_list("Will it be done?", more),
        *_bars(runs),
        *_curves(runs, target),
        *_first_epochs(runs),
        *_tables(runs),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _list(title: str, sentences: Sequence[str]) -> Iterator[str]:
    if sentences:
        yield f"<h2>{escape(title)}</h2><ul>"
        yield from (f"<li>{escape(text)}</li>" for text in sentences)
        yield "</ul>"


def _bars(runs: Sequence[Run]) -> Iterator[str]:
    """The seconds of a trial's epoch as bars: one for each batch size, device and way to train."""
    rows = list(_rows(runs))
    if not rows:
        return
    longest = max(seconds for _, _, seconds, _ in rows)
    kinds = {
        kind: i % _KINDS for i, kind in enumerate(dict.fromkeys(kind for _, kind, _, _ in rows))
    }
    yield "<h2>Training time by batch size</h2>"
    yield (
        '<p class="dim">Seconds of one trial\'s epoch, steady: what it takes on its own, or its '
        'share where several train at once. Shorter is better.</p><div class="bars">'
    )
    before = None
    for size, kind, seconds, how in rows:
        if size != before:
            yield f"<h3>batch {size:,}</h3>"
            before = size
        width = 70 * seconds / longest  # percent; the value stands beside the longest
        yield (
            f'<span class="name" title="{escape(how)}">{escape(kind)}</span>'
            f'<span class="row"><span class="bar k{kinds[kind]}" style="width:{width:.2f}%"></span>'
            f'<span class="value">{formats.fine(seconds)}</span></span>'
        )
    yield "</div>"


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
    measurements = [
        measurement for measurement in run.measured if measurement.config.batch_size == size
    ]
    groups = {
        "Keras' fit": [c for c in measurements if c.config.plan == "fit"],
        "one trial": [c for c in measurements if c.config.plan != "fit" and c.config.at_once == 1],
        "several trials at once": [c for c in measurements if c.config.at_once > 1],
    }
    for kind, found in groups.items():
        if found:
            yield kind, max(found, key=lambda measurement: measurement.rate)


def _curves(runs: Sequence[Run], target: float | None) -> Iterator[str]:
    for label, run in zip(labels(runs), runs, strict=True):
        curves = [curve for curve in run.curves if curve.values]
        if not curves:
            continue
        metric = curves[0].metric
        where = f" on {label}" if len(runs) > 1 else ""
        yield f'<h2>{escape(metric)} by batch size{escape(where)}</h2><div class="figures">'
        for title, lines in (
            ("epochs", [_line(c, list(range(1, len(c.values) + 1))) for c in curves]),
            ("seconds of training and validation", [_line(c, c.seconds) for c in curves]),
        ):
            drawing = picture(lines, title, metric, target, whole=title == "epochs")
            caption = f"{metric} against {title}; each line is a batch size."
            yield f"<figure>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"
        yield "</div>"


def _line(curve: Curve, xs: Sequence[float]) -> Line:
    return Line(str(curve.batch_size), list(zip(xs, curve.values, strict=False)))


def _first_epochs(runs: Sequence[Run]) -> Iterator[str]:
    for label, run in zip(labels(runs), runs, strict=True):
        if run.first_epoch is None:
            continue
        head, *parts, last = explain(run.first_epoch, run.n_examples)
        where = f" ({label})" if len(runs) > 1 else ""
        yield f"<h2>Why the first epoch is slow{escape(where)}</h2><p>{escape(head)}</p><ul>"
        yield from (f"<li>{escape(_part(part))}</li>" for part in parts)
        yield f"</ul><p>{escape(last)}</p>"


def _part(line: str) -> str:
    """``0.40 s  10%  tracing`` as ``0.40 s (10%) tracing``."""
    value, unit, share, *words = line.split()
    return f"{value} {unit} ({share}) {' '.join(words)}"


def _tables(runs: Sequence[Run]) -> Iterator[str]:
    winner = fastest(runs)
    for label, run in zip(labels(runs), runs, strict=True):
        where = f" ({label})" if len(runs) > 1 else ""
        yield f'<h2>All that was measured{escape(where)}</h2><div class="scroll"><table><tr>'
        yield "".join(f"<th>{escape(name)}</th>" for name, _ in COLUMNS) + "</tr>"
        for measurement in sorted(run.measured, key=lambda c: (c.config.batch_size, -c.rate)):
            best = winner is not None and winner[1] is measurement
            texts = [value(run, measurement) for _, value in COLUMNS]
            texts[0] += " *" if best else ""
            cells = "".join(f"<td>{escape(text)}</td>" for text in texts)
            yield f"<tr{' class=best' if best else ''}>{cells}</tr>"
        yield "</table></div>"
        if run.measured:
            yield (
                '<p class="dim">* the most examples per second. step: of all trials at once, '
                "median; ± half the distance of its quartiles.</p>"
            )
        yield from (f'<p class="dim">{escape(line)}</p>' for line in missing(run))
