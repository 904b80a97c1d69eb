"""The slot timeline: which trial was in which slot when, and when programs were compiled."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.records import SlotStay
from paceline.report import formats
from paceline.study.timeline import SearchTimeline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: Slots that are drawn at most; a pack of many slots has them all side by side.
MOST_ROWS = 96
#: Stays from which on they are an image, and its columns.
MANY, COLUMNS = 600, 400
#: Where compiles are drawn: rows above slot 0, or a share of all rows, so that their label has
#: space.
_COMPILE_ROW, _COMPILE_SHARE = -1.5, 0.06
_NEXT = "the next trial in the slot"
#: Colours of neighbouring stays, of the best trial, and of compiles; seen on white and on black.
_COLOURS = ("#4c78a8", "#9ecae9")
_BEST, _COMPILED, _CACHED = "#e45756", "#f58518", "#ffbf79"
#: What a slot does while it holds a trial, and the kinds of gaps between.
HELD = "held a trial"
BEFORE = "before the first trial (reading data, building, tracing)"
COMPILING = "while steps were compiled"
FREE = "free while others trained: no trial was ready for the slot"
FEWER = "in packs of fewer slots"
BETWEEN = "between trials (asking, building, reporting, storing, other programs' load)"
AFTER = "after the last trial"
GAPS = (BEFORE, COMPILING, FREE, FEWER, BETWEEN, AFTER)


def rows_of(search: SearchTimeline) -> dict[tuple[int, int], int]:
    """Return the row of each pack's slots; packs that were never there at once share rows.

    The rows of a cluster's workers lie one worker below another.
    """
    by_worker: dict[str | None, list[SlotStay]] = {}
    for stay in sorted(search.stays, key=lambda stay: stay.began):
        by_worker.setdefault(stay.worker, []).append(stay)
    rows: dict[tuple[int, int], int] = {}
    for stays in by_worker.values():
        rows |= _rows_from(1 + max(rows.values(), default=-1), stays)
    return rows


def _rows_from(first: int, stays: Sequence[SlotStay]) -> dict[tuple[int, int], int]:
    """Return the rows of a worker's packs, ``first`` and those below it."""
    free_at: list[float] = []  # when each row is free
    row: dict[tuple[int, int], int] = {}
    packs = ((began, pack, ended, n) for pack, (began, ended, n) in _packs_of(stays).items())
    for began, pack, ended, n_slots in sorted(packs):
        used = 0
        for slot in range(n_slots):
            # The first free row: slots of a pack stay in their order.
            while used < len(free_at) and free_at[used] > began:
                used += 1
            if used == len(free_at):
                free_at.append(0.0)
            free_at[used] = ended
            row[pack, slot] = first + used
            used += 1
    return row


def _packs_of(stays: Iterable[SlotStay]) -> dict[int, tuple[float, float, int]]:
    """Return pack -> when its first stay began and its last one ended, and its slots with stays."""
    found: dict[int, tuple[float, float, int]] = {}
    for stay in stays:
        began, ended, n = found.get(stay.pack, (stay.began, stay.ended, 0))
        found[stay.pack] = min(began, stay.began), max(ended, stay.ended), max(n, stay.slot + 1)
    return found


def slot_shares(searches: Sequence[SearchTimeline]) -> dict[str, float]:
    """Return ``HELD`` and the kinds in ``GAPS`` -> share of the area of the slot timeline.

    The shares add up to 1; there are none if no search has a stay. A trial holds a slot from its
    first epoch in it to its last one, whatever the device does meanwhile for others.
    """
    n_rows = max((max(rows_of(each).values(), default=-1) + 1 for each in searches), default=0)
    areas: dict[str, float] = dict.fromkeys((HELD, *GAPS), 0.0)
    for search in searches:
        for name, area in _areas(search, n_rows):
            areas[name] += area
    total = sum(areas.values())
    return {name: area / total for name, area in areas.items()} if total else {}


def _areas(search: SearchTimeline, n_rows: int) -> Iterator[tuple[str, float]]:
    """Give what ``n_rows`` slots did from moment to moment, in seconds times slots."""
    made = {each.pack: each.slots for each in search.packs}
    packs = _packs_of(search.stays)
    changes: list[tuple[float, int, int, int]] = []  # when; slots held, slots there, compiles
    for stay in search.stays:
        changes += [(stay.began, 1, 0, 0), (stay.ended, -1, 0, 0)]
    for pack, (first, last, used) in packs.items():
        n_slots = max(made.get(pack, 0), used)
        changes += [(first, 0, n_slots, 0), (last, 0, -n_slots, 0)]
    for each in search.compiled:
        changes += [(each.began, 0, 0, 1), (each.ended, 0, 0, -1)]
    end = search.seconds
    before = min((first for first, _, _ in packs.values()), default=end)
    after = max((last for _, last, _ in packs.values()), default=end)
    held = there = compiles = 0
    now = 0.0
    # What begins and ends in one moment adds up before the time after it is counted.
    for moment, *change in [*sorted(changes), (end, 0, 0, 0)]:
        seconds, now = max(0.0, moment - now), max(now, moment)
        shown, room = min(held, n_rows), min(there, n_rows)
        yield HELD, seconds * shown
        if now <= before:
            gap = COMPILING if compiles else BEFORE
        elif now > after:
            gap = AFTER
        elif held:
            gap = FREE
        else:
            gap = COMPILING if compiles else BETWEEN
        if gap == FREE:
            yield FEWER, seconds * (n_rows - max(shown, room))
            yield FREE, seconds * (max(shown, room) - shown)
        else:
            yield gap, seconds * (n_rows - shown)
        held, there, compiles = held + change[0], there + change[1], compiles + change[2]


def slots_note(searches: Sequence[SearchTimeline]) -> str:
    """Return in a sentence how much of the slot timeline is gaps, and why; empty for none."""
    shares = slot_shares(searches)
    if not shares:
        return ""
    gaps = sorted((name for name in GAPS if shares[name] >= 0.005), key=lambda n: -shares[n])
    said = "; ".join(f"{shares[name]:.0%} {name}" for name in gaps)
    return f"Slots held a trial in {shares[HELD]:.0%} of the area" + (
        f". The gaps: {said}." if said else "."
    )


def slots_figure(searches: Sequence[SearchTimeline], best: int | None) -> Figure:
    """Draw the searches on a study, one after another; at least one has a stay or a compile.

    Many stays are drawn as an image of ``COLUMNS`` columns: as lines each would be a path of its
    own, which takes a browser long. The trial ``best`` has a colour of its own.
    """
    import plotly.graph_objects as go

    figure, compiled, cached = go.Figure(), _Segments(), _Segments()
    placed, starts, dropped = _placed(searches)
    n_rows = 1 + max((each.row for each in placed), default=0)
    total = starts[-1] + searches[-1].seconds
    compile_row = min(_COMPILE_ROW, -_COMPILE_SHARE * n_rows)
    if len(placed) > MANY:
        figure.add_trace(_image(placed, n_rows, total, best))
    else:
        for trace in _bars(placed, n_rows, best):
            figure.add_trace(trace)
    for search, start in zip(searches, starts, strict=True):
        for each in search.compiled:
            text = f"{'from the cache' if each.from_cache else 'compiled'}, {each.slots} slots"
            lines = cached if each.from_cache else compiled
            lines.add(start + each.began, start + each.ended, compile_row, html.escape(text))
        if start:
            figure.add_vline(x=start, line={"width": 1, "dash": "dot", "color": "#888"})
    for lines, name, colour in (
        (compiled, "compiling", _COMPILED),
        (cached, "compiled before, from the cache", _CACHED),
    ):
        if lines.x:
            figure.add_trace(lines.trace(name, colour, _width(n_rows)))
    title = "slots over time" + (f": only the first {MOST_ROWS} slots" if dropped else "")
    figure.update_layout(title=title, xaxis_title="seconds of searching", yaxis_title="slot")
    every = max(1, -(-n_rows // 16))
    rows = list(range(0, n_rows, every))
    names = _names_of_rows(searches, n_rows)
    if names:
        rows = [*names]
    ticks = {
        "tickvals": [compile_row, *rows],
        "ticktext": ["compile", *(html.escape(names.get(row, str(row))) for row in rows)],
    }
    figure.update_yaxes(
        range=[n_rows - 0.4, 1.5 * compile_row], zeroline=False, showgrid=False, **ticks
    )
    figure.update_xaxes(range=[0, total])
    return figure


def _names_of_rows(searches: Sequence[SearchTimeline], n_rows: int) -> dict[int, str]:
    """Return the workers of a cluster at their first rows; empty without a cluster.

    Searches have workers of their own, of which those of the last search are named.
    """
    first: dict[str, int] = {}
    rows = rows_of(searches[-1])
    for stay in searches[-1].stays:
        row = rows[stay.pack, stay.slot]
        if stay.worker is not None:
            first[stay.worker] = min(row, first.get(stay.worker, row))
    return {row: name for row, name in sorted((r, n) for n, r in first.items()) if row < n_rows}


@dataclass(frozen=True)
class _Placed:
    """A stay with its place in the figure; moments are those of the figure."""

    stay: SlotStay
    row: int
    turn: int  # how many trials were in the row before
    began: float
    ended: float


def _placed(searches: Sequence[SearchTimeline]) -> tuple[list[_Placed], list[float], bool]:
    """Place all stays; also when each search begins, and whether some are left out."""
    placed: list[_Placed] = []
    starts, start, dropped = [], 0.0, False
    for search in searches:
        rows, turns = rows_of(search), dict[int, int]()
        for stay in sorted(search.stays, key=lambda each: each.began):
            row = rows[stay.pack, stay.slot]
            if row >= MOST_ROWS:
                dropped = True
                continue
            turns[row] = turn = turns.get(row, 0) + 1
            placed.append(_Placed(stay, row, turn, start + stay.began, start + stay.ended))
        starts.append(start)
        start += search.seconds
    return placed, starts, dropped


def _bars(placed: Sequence[_Placed], n_rows: int, best: int | None) -> list[Any]:
    lines = {"the best trial": _Segments(), "a trial": _Segments(), _NEXT: _Segments()}
    for each in placed:
        kind = (_NEXT, "a trial")[each.turn % 2]
        if each.stay.trial == best:
            kind = "the best trial"
        lines[kind].add(each.began, each.ended, each.row, _stay_text(each.stay))
    colours = {"a trial": _COLOURS[0], _NEXT: _COLOURS[1], "the best trial": _BEST}
    return [
        lines[name].trace(name, colour, _width(n_rows))
        for name, colour in colours.items()
        if lines[name].x
    ]


def _image(placed: Sequence[_Placed], n_rows: int, total: float, best: int | None) -> Any:
    """An image: a cell shows the trial that was in the slot at the middle of the cell's time."""
    import plotly.graph_objects as go

    wide = total / COLUMNS
    colours: list[list[float | None]] = [[None] * COLUMNS for _ in range(n_rows)]
    trials: list[list[int | None]] = [[None] * COLUMNS for _ in range(n_rows)]
    for each in placed:
        first = max(0, math.ceil(each.began / wide - 0.5))
        last = min(COLUMNS - 1, math.floor(each.ended / wide - 0.5))
        found = 2 if each.stay.trial == best else each.turn % 2
        for column in range(first, last + 1):
            colours[each.row][column], trials[each.row][column] = found, each.stay.trial
    steps = [_COLOURS[1], _COLOURS[0], _BEST]
    scale = [[at / 3, colour] for i, colour in enumerate(steps) for at in (i, i + 1)]
    return go.Heatmap(
        z=colours,
        customdata=trials,
        x0=wide / 2,
        dx=wide,
        y0=0,
        dy=1,
        zmin=0,
        zmax=2,
        colorscale=scale,
        showscale=False,
        hovertemplate="trial %{customdata}, slot %{y}<extra></extra>",
        hoverongaps=False,
        name="trials",
    )


def _width(n_rows: int) -> float:
    """Pixels of a line, so that the lines of all rows fit."""
    return max(2.0, min(14.0, 300 / max(1, n_rows + 2)))


class _Segments:
    """Horizontal lines of one trace, with gaps between them."""

    def __init__(self) -> None:
        self.x: list[float | None] = []
        self.y: list[float | None] = []
        self.text: list[str] = []

    def add(self, began: float, ended: float, row: float, text: str) -> None:
        self.x += [round(began, 3), round(ended, 3), None]
        self.y += [row, row, None]
        self.text += [text, text, ""]

    def trace(self, name: str, colour: str, width: float) -> Any:
        """Return them as a trace."""
        import plotly.graph_objects as go

        return go.Scatter(
            x=self.x,
            y=self.y,
            mode="lines",
            line={"width": width, "color": colour},
            name=name,
            text=self.text,
            hoverinfo="text",
            connectgaps=False,
        )


def _stay_text(stay: SlotStay) -> str:
    epochs = formats.count(stay.epochs, "epoch")
    parts: list[Any] = [f"trial {stay.trial}", f"{epochs} in {stay.ended - stay.began:.2f} s"]
    parts += [part for part in (stay.program, stay.plan, stay.worker) if part]
    return html.escape(", ".join(map(str, parts)))
