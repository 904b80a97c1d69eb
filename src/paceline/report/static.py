"""A Plotly figure as a picture, for places where no script runs.

Untrusted notebooks, pages of ``nbconvert`` and previews show pictures, but nothing that a script
would draw. So does the page of ``paceline bench``. The picture supports the parts of this library's
figures: lines, points, bars, images and parallel coordinates, on linear, log and category axes.
Anything else of Plotly's is left out.

Notation
    Pixels are those of the picture, (0, 0) at its upper left corner.
"""

from __future__ import annotations

import base64
import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.report import formats
from paceline.search_space.html import thin

#: Colours that Plotly gives to traces that name none.
_COLOURS = ("#636efa", "#ef553b", "#00a878", "#ab63fa", "#ffa15a", "#19b3d3", "#d6568a", "#7a9a2e")
#: How a line is broken, by Plotly's name.
_DASHES = {"dot": "2 3", "dash": "7 4", "dashdot": "9 3 2 3", "longdash": "12 4"}
_DASHES["longdashdot"] = "12 4 2 4"
#: Corners of a marker, in its radii, by Plotly's name; any other marker is a circle.
_CORNERS = {
    "square": ((-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)),
    "diamond": ((0, -1.4), (1.4, 0), (0, 1.4), (-1.4, 0)),
    "triangle-up": ((0, -1.3), (1.2, 0.9), (-1.2, 0.9)),
}
#: Names in the legend at most, and points of a line.
_MOST_NAMES, _MOST_POINTS = 6, 150
#: Labels of an axis at most, and at least where the values allow it.
_MOST_TICKS, _LEAST_TICKS = 7, 3
#: Pixels from one line of text to the next.
_LINE = 15
_TEXT = 'font-family="system-ui, DejaVu Sans, sans-serif" font-size="12" fill="#1b1f24"'


def as_dict(figure: Any) -> dict[str, Any]:
    """Return a Plotly figure as dicts and lists, without its template."""
    found = json.loads(figure.to_json())
    found["layout"].pop("template", None)
    return {"data": [_decoded(trace) for trace in found["data"]], "layout": found["layout"]}


def _decoded(value: Any) -> Any:
    """Arrays that Plotly has packed as base64, as lists."""
    if isinstance(value, dict):
        if set(value) >= {"dtype", "bdata"}:
            import numpy as np

            array = np.frombuffer(base64.b64decode(value["bdata"]), dtype=value["dtype"])
            return array.tolist()
        return {key: _decoded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_decoded(each) for each in value]
    return value


class _Paper:
    """The picture's size, and the edges of the area in it that is drawn in."""

    def __init__(self, figure: Mapping[str, Any]) -> None:
        layout, data = figure["layout"], figure["data"]
        self.width, self.height = layout.get("width") or 760, layout.get("height") or 420
        self.title = _title(layout)
        named = [t for t in data if t.get("name") and t.get("showlegend", True) is not False]
        self.named = named if len(named) > 1 else []  # the traces of the legend
        ends = any("text" in trace.get("mode", "") for trace in data)
        self.left, self.right = 70, self.width - (74 if ends else 24)
        self.top, self.bottom = 64 if self.title or self.named else 14, self.height - 56


def picture(figure: Mapping[str, Any]) -> str:
    """Return a figure, as ``as_dict`` returns it, as SVG."""
    layout, data, paper = figure["layout"], figure["data"], _Paper(figure)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{paper.width}" height="{paper.height}" '
        f'viewBox="0 0 {paper.width} {paper.height}"><rect width="100%" height="100%" '
        f'fill="{_safe(layout.get("paper_bgcolor") or "#ffffff")}"/>'
    ]
    parts.append(_text(paper.width / 2, 22, paper.title, size=14))
    if any(trace["type"] == "parcoords" for trace in data):
        parts += [part for trace in data for part in _parallel(paper, trace)]
    else:
        parts += _legend(paper)
        panels = dict.fromkeys((t.get("xaxis", "x"), t.get("yaxis", "y")) for t in data)
        for x, y in panels:
            here = [(t.get("xaxis", "x"), t.get("yaxis", "y")) for t in data]
            inside = [(i, t) for i, t in enumerate(data) if here[i] == (x, y)]
            parts += _panel(paper, layout, inside, x, y)
    return "".join([*parts, "</svg>"])


def picture_html(figure: Mapping[str, Any]) -> str:
    """Return the picture as HTML that a notebook shows without trusting it."""
    paper = _Paper(figure)
    data = base64.b64encode(picture(figure).encode()).decode()
    alt = html.escape(_plain(paper.title) or "figure")
    return (
        f'<img alt="{alt}" style="max-width: 100%" width="{paper.width}" '
        f'src="data:image/svg+xml;base64,{data}">'
    )


# -- axes ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Axis:
    """Where values lie: ``low`` is at the pixel ``first``, ``high`` at the pixel ``last``."""

    kind: str
    low: float
    high: float
    first: float
    last: float
    categories: tuple[str, ...]
    settings: Mapping[str, Any]

    def place(self, value: Any) -> float | None:
        """The pixel of a value; None if it has none."""
        if self.kind == "category":
            text = str(value)
            found = float(self.categories.index(text)) if text in self.categories else math.nan
        elif not isinstance(value, int | float):
            return None
        elif self.kind == "log":
            found = math.log10(value) if value > 0 else math.nan
        else:
            found = float(value)
        if not math.isfinite(found):
            return None
        share = (found - self.low) / (self.high - self.low) if self.high != self.low else 0.5
        return self.first + share * (self.last - self.first)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Pixels and texts of its labels."""
        values = self.settings.get("tickvals")
        texts = self.settings.get("ticktext")
        if self.kind == "category" and values is None:
            values = texts = list(self.categories)
        elif values is None:
            low, high = sorted((self.low, self.high))
            if self.kind == "log":
                values = log_ticks(10.0**low, 10.0**high)
            else:
                values = round_ticks(low, high, whole=self.settings.get("tickformat") == "d")
        if texts is None:
            percent = "%" in str(self.settings.get("tickformat", ""))
            texts = [f"{value:.0%}" if percent else f"{value:.6g}" for value in values]
        for value, text in zip(values, texts, strict=False):
            place = self.place(value)
            if place is not None and min(self.first, self.last) - 1 <= place:
                if place <= max(self.first, self.last) + 1:
                    yield place, str(text)


def round_ticks(low: float, high: float, *, whole: bool = False) -> list[float]:
    """Return round values from ``low`` to ``high``, the same step apart; if ``whole``, whole ones.

    The step is 1, 2 or 5 times a power of ten, and the widest of which there are enough.
    """
    rough = (high - low) / _LEAST_TICKS or 1.0
    unit = 10.0 ** math.floor(math.log10(rough))
    step = max((f * unit for f in (1, 2, 5) if f * unit <= rough), default=unit)
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the values that are labelled on a log axis from ``low`` to ``high``, both positive.

    Powers of ten if there are enough of them. Else also their double and fivefold, or the round
    values of a linear axis.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    room = (low * (1 - 1e-9), high * (1 + 1e-9))  # 0.1 as a power of ten may be 0.1 but for a bit
    for factors in ((1,), (1, 2, 5)):
        found = [float(f"{f}e{power}") for power in range(first, last + 1) for f in factors]
        found = [tick for tick in found if room[0] <= tick <= room[1]]
        if len(found) >= _LEAST_TICKS:
            return found[:: -(-len(found) // _MOST_TICKS)]
    return [low] if low == high else round_ticks(low, high) or [low, high]


def _axis(
    settings: Mapping[str, Any], values: Sequence[Any], first: float, last: float, *, bars: bool
) -> _Axis:
    kind = settings.get("type", "-")
    known = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    categories: tuple[str, ...] = ()
    if kind == "category" or (kind == "-" and any(isinstance(v, str) for v in values)):
        kind = "category"
        order = [*settings.get("categoryarray", ()), *values]
        categories = tuple(dict.fromkeys(str(each) for each in order if each is not None))
        low, high = -0.5, max(0.5, len(categories) - 0.5)
    else:
        kind = "log" if kind == "log" else "linear"
        if kind == "log":
            known = [math.log10(value) for value in known if value > 0]
        low, high = min(known, default=0.0), max(known, default=1.0)
        bars = bars or settings.get("rangemode") == "tozero"
        low = min(0.0, low) if bars else low
        room = 0.04 * ((high - low) or abs(high) or 1.0)
        low, high = low - (0.0 if bars and low == 0 else room), high + room
    if settings.get("range"):
        low, high = settings["range"]
    domain = settings.get("domain", (0.0, 1.0))
    first, last = first + domain[0] * (last - first), first + domain[1] * (last - first)
    return _Axis(kind, low, high, first, last, categories, settings)


# -- what is drawn on axes -------------------------------------------------------------------------


def _panel(
    paper: _Paper,
    layout: Mapping[str, Any],
    traces: Sequence[tuple[int, Mapping[str, Any]]],
    x: str,
    y: str,
) -> Iterator[str]:
    along, up = (f"{name[0]}axis{name[1:]}" for name in (x, y))
    xs = [v for _, t in traces for v in _values(t, "x")]
    ys = [v for _, t in traces for v in _values(t, "y")]
    bars = any(trace["type"] == "bar" for _, trace in traces)
    across = _axis(layout.get(along, {}), xs, paper.left, paper.right, bars=bars)
    height = _axis(layout.get(up, {}), ys, paper.bottom, paper.top, bars=False)
    for place, text in across.ticks():
        yield _line(place, height.first, place, height.last)
        yield _text(place, paper.bottom + 18, text)
    for place, text in height.ticks():
        yield _line(across.first, place, across.last, place)
        if across.first < paper.left + 1 or not layout.get(up, {}).get("matches"):
            yield _text(across.first - 6, place + 4, text, anchor="end")
    yield _text((across.first + across.last) / 2, paper.height - 12, _title(across.settings))
    if text := _title(height.settings):
        middle = (height.first + height.last) / 2
        turned = f'<g transform="translate({across.first - 52:.0f} {middle:.0f}) rotate(-90)">'
        yield f"{turned}{_text(0, 0, text)}</g>"
    before: list[tuple[float, float]] = []
    for i, trace in traces:
        colour = _colour(trace, i)
        if trace["type"] == "bar":
            yield from _bars(trace, across, height, colour)
        elif trace["type"] == "heatmap":
            yield from _cells(trace, across, height)
        else:
            parts, before = _scatter(trace, across, height, colour, before)
            yield from parts
    yield from _end_labels(traces, across, height)


def _values(trace: Mapping[str, Any], letter: str) -> list[Any]:
    if trace["type"] == "heatmap":
        n = len(trace["z"]) if letter == "y" else max(map(len, trace["z"]), default=0)
        first, step = trace.get(f"{letter}0", 0), trace.get(f"d{letter}", 1)
        return [first + step * i for i in range(n)]
    return list(trace.get(letter) or ())


def _scatter(
    trace: Mapping[str, Any],
    across: _Axis,
    height: _Axis,
    colour: str,
    before: list[tuple[float, float]],
) -> tuple[list[str], list[tuple[float, float]]]:
    """The marks of a trace, and its points: a later trace may fill the room down to them."""
    pixels = [
        (across.place(x), height.place(y))
        for x, y in zip(_values(trace, "x"), _values(trace, "y"), strict=False)
    ]
    known = [(x, y) for x, y in pixels if x is not None and y is not None]
    mode = trace.get("mode", "lines")
    parts: list[str] = []
    if trace.get("fill") == "tonexty" and before and known:
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*known, *before[::-1]])
        parts.append(f'<polygon points="{outline}" fill="#808080" fill-opacity="0.2"/>')
    width = (trace.get("line") or {}).get("width", 2)
    if "lines" in mode and width:
        stepped = (trace.get("line") or {}).get("shape") == "hv"
        dashes = _DASHES.get(str((trace.get("line") or {}).get("dash")))
        broken = f' stroke-dasharray="{dashes}"' if dashes else ""
        for piece in _pieces(pixels, joined=bool(trace.get("connectgaps"))):
            points = _stairs(piece) if stepped else piece
            text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            parts.append(
                f'<polyline points="{text}" fill="none" stroke="{colour}" stroke-width="{width}"'
                f"{broken}/>"
            )
    if "markers" in mode:
        marker = trace.get("marker") or {}
        size = marker.get("size", 6)
        radius = (size if isinstance(size, int | float) else 6) / 2
        each = _point_colours(marker, len(pixels), colour)
        marks = list(zip(pixels, each, strict=True))
        for (x, y), own in thin(marks, marker.get("maxdisplayed") or len(marks)):
            if x is not None and y is not None:
                parts.append(_marker(str(marker.get("symbol", "")), x, y, radius, own))
    return parts, known


def _marker(symbol: str, x: float, y: float, radius: float, colour: str) -> str:
    fill = f'fill="none" stroke="{colour}"' if "open" in symbol else f'fill="{colour}"'
    if symbol not in _CORNERS:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" {fill}/>'
    points = " ".join(f"{x + radius * a:.1f},{y + radius * b:.1f}" for a, b in _CORNERS[symbol])
    return f'<polygon points="{points}" {fill}/>'


def _end_labels(
    traces: Sequence[tuple[int, Mapping[str, Any]]], across: _Axis, height: _Axis
) -> Iterator[str]:
    """The texts of lines at the right of their last points, moved apart to be readable."""
    ends: list[tuple[float, float, str]] = []
    for _, trace in traces:
        if "text" in trace.get("mode", "") and trace.get("x"):
            x, y = across.place(trace["x"][-1]), height.place(trace["y"][-1])
            if x is not None and y is not None:
                ends.append((y, x, trace["text"][-1]))
    ends.sort()
    places: list[float] = []
    for y, _, _ in ends:
        places.append(max(y, places[-1] + _LINE) if places else y)
    lowest = height.first
    for i in reversed(range(len(places))):
        places[i] = min(places[i], lowest)
        lowest = places[i] - _LINE
    for (y, x, text), place in zip(ends, places, strict=True):
        yield _line(x, y, across.last + 9, place)
        yield _text(across.last + 12, place + 4, text, anchor="start")


def _pieces(
    pixels: Sequence[tuple[float | None, float | None]], *, joined: bool
) -> Iterator[list[tuple[float, float]]]:
    """The parts of a line between its gaps, each of at most ``_MOST_POINTS`` points."""
    piece: list[tuple[float, float]] = []
    for x, y in [*pixels, (None, None)]:
        if x is not None and y is not None:
            piece.append((x, y))
        elif piece and not joined:
            yield list(thin(piece, _MOST_POINTS))
            piece = []
    if piece:
        yield list(thin(piece, _MOST_POINTS))


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    found = list(points[:1])
    for x, y in points[1:]:
        found += [(x, found[-1][1]), (x, y)]
    return found


def _bars(trace: Mapping[str, Any], across: _Axis, height: _Axis, colour: str) -> Iterator[str]:
    names, shares = _values(trace, "y"), _values(trace, "x")
    thick = 0.7 * abs(height.last - height.first) / max(1, len(names))
    zero = across.place(0) or across.first
    texts = trace.get("text") or [""] * len(names)
    for name, share, text in zip(names, shares, texts, strict=False):
        x, y = across.place(share), height.place(name)
        if x is None or y is None:
            continue
        yield (
            f'<rect x="{min(zero, x):.1f}" y="{y - thick / 2:.1f}" width="{abs(x - zero):.1f}" '
            f'height="{thick:.1f}" fill="{colour}"/>'
        )
        yield _text(max(zero, x) + 4, y + 4, text, anchor="start")


def _cells(trace: Mapping[str, Any], across: _Axis, height: _Axis) -> Iterator[str]:
    """The cells of an image, neighbours of one colour in a row as one."""
    rows, columns = _values(trace, "y"), _values(trace, "x")
    wide = abs(across.last - across.first) / max(1, len(columns))
    tall = abs(height.last - height.first) / (abs(height.high - height.low) or 1.0)
    low, high = trace.get("zmin", 0), trace.get("zmax", 1)
    for row, cells in zip(rows, trace["z"], strict=False):
        y, at = height.place(row), 0
        while at < len(cells):
            end = at + 1
            while end < len(cells) and cells[end] == cells[at]:
                end += 1
            x = across.place(columns[at])
            if cells[at] is not None and x is not None and y is not None:
                share = (cells[at] - low) / (high - low) if high != low else 0.5
                colour = _on_scale(trace.get("colorscale"), share)
                yield (
                    f'<rect x="{x - wide / 2:.1f}" y="{y - tall / 2:.1f}" '
                    f'width="{wide * (end - at):.1f}" height="{tall:.1f}" fill="{colour}"/>'
                )
            at = end


def _parallel(paper: _Paper, trace: Mapping[str, Any]) -> Iterator[str]:
    left, top = paper.left, paper.top + 16
    dimensions, line = trace["dimensions"], trace.get("line") or {}
    step = (paper.right - left - 30) / max(1, len(dimensions) - 1)
    axes = []
    for dimension in dimensions:
        settings = {"range": dimension["range"]} if dimension.get("range") else {}
        settings |= {n: dimension[n] for n in ("tickvals", "ticktext") if n in dimension}
        made = _axis(settings, dimension["values"], paper.bottom, top, bars=False)
        axes.append(made)
    colours = _point_colours(line, len(dimensions[0]["values"]), _COLOURS[0])
    for i, colour in enumerate(colours):
        places = [a.place(d["values"][i]) for a, d in zip(axes, dimensions, strict=True)]
        points = " ".join(
            f"{left + k * step:.1f},{y:.1f}" for k, y in enumerate(places) if y is not None
        )
        yield f'<polyline points="{points}" fill="none" stroke="{colour}"/>'
    for k, (axis, dimension) in enumerate(zip(axes, dimensions, strict=True)):
        x = left + k * step
        yield _line(x, axis.first, x, axis.last, colour="#57606a")
        yield _text(x, top - 12, dimension.get("label", ""))
        for place, text in axis.ticks():
            yield _text(x - 5, place + 4, text, anchor="end")


# -- pieces ----------------------------------------------------------------------------------------


def _colour(trace: Mapping[str, Any], place: int) -> str:
    for part in ("line", "marker"):
        found = (trace.get(part) or {}).get("color")
        if isinstance(found, str):
            return _safe(found)
    return _COLOURS[place % len(_COLOURS)]


def _safe(colour: str) -> str:
    """A colour, or the CSS variable of a page that has it; grey for anything else."""
    named = r"#[0-9a-fA-F]{3,8}|[a-zA-Z]+|rgba?\([\d., %]+\)|var\(--\w+\)"
    return colour if re.fullmatch(named, colour) else "#57606a"


def _point_colours(marker: Mapping[str, Any], n: int, other: str) -> list[str]:
    """The colour of each point, from numbers on a scale."""
    found = marker.get("color")
    if not isinstance(found, list) or not all(isinstance(v, int | float) for v in found):
        return [other] * n
    low, high = marker.get("cmin", min(found, default=0)), marker.get("cmax", max(found, default=1))
    turned = bool(marker.get("reversescale"))
    shares = [(value - low) / (high - low) if high != low else 0.5 for value in found]
    scale = marker.get("colorscale")
    return [_on_scale(scale, 1 - share if turned else share) for share in shares]


def _on_scale(scale: Any, share: float) -> str:
    """A colour between the two of a scale that are nearest."""
    steps = (
        scale if isinstance(scale, list) and len(scale) > 1 else [[0, "#c6dbef"], [1, "#08306b"]]
    )
    share = min(1.0, max(0.0, share))
    for (first, one), (last, other) in zip(steps, steps[1:], strict=False):
        if first <= share <= last and last > first:
            return _mixed(str(one), str(other), (share - first) / (last - first))
    return _safe(str(steps[-1][1]))


def _mixed(one: str, other: str, share: float) -> str:
    if not all(re.fullmatch(r"#[0-9a-fA-F]{6}", each) for each in (one, other)):
        return _safe(one)
    pairs = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in pairs)


def _legend(paper: _Paper) -> list[str]:
    shown, parts = list(enumerate(paper.named))[:_MOST_NAMES], []
    x = float(paper.left)
    for i, trace in shown:
        text = _plain(trace["name"])[:32]
        parts.append(f'<rect x="{x}" y="38" width="14" height="6" fill="{_colour(trace, i)}"/>')
        parts.append(_text(x + 18, 46, text, anchor="start"))
        x += 34 + 7 * len(text)
        if x > paper.width - 60:
            break
    return parts


def _title(settings: Mapping[str, Any]) -> str:
    title = settings.get("title") or {}
    return str(title.get("text") or "") if isinstance(title, Mapping) else str(title)


def _plain(text: Any) -> str:
    """A text of Plotly's, which may hold some HTML, as what it says."""
    return formats.visible(html.unescape(re.sub(r"<[^>]*>", " ", str(text))))


def _line(x0: float, y0: float, x1: float, y1: float, colour: str = "#d0d7de") -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: Any, *, anchor: str = "middle", size: int = 12) -> str:
    if not text:
        return ""
    found = html.escape(_plain(text)[:90])
    kind = _TEXT.replace('"12"', f'"{size}"')
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {kind}>{found}</text>'
