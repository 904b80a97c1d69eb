"""The slot timeline: which trial was in which slot when, and when programs were compiled."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.study.timeline import PackMade, SearchTimeline, SlotStay

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: Slots that are drawn at most; a pack of many slots has them all side by side.
MOST_ROWS = 96
#: Stays that are drawn at most, the first ones.
MOST_STAYS = 20_000
#: Colours of neighbouring stays, of the best trial, and of compiles; seen on white and on black.
_COLOURS = ("#4c78a8", "#9ecae9")
_BEST, _COMPILED, _CACHED = "#e45756", "#f58518", "#ffbf79"


@dataclass(frozen=True)
class SlotRows:
    """The rows of a timeline: slots of packs that were never there at once share one.

    Attributes:
        row: Pack and slot -> row, from 0.
        n_rows: The number of rows.
    """

    row: dict[tuple[int, int], int]
    n_rows: int


def rows_of(search: SearchTimeline) -> SlotRows:
    """Give each slot of a search's packs a row."""
    ends: dict[int, float] = {}
    begins: dict[int, float] = {}
    slots: dict[int, int] = {}
    for stay in search.stays:
        ends[stay.pack] = max(ends.get(stay.pack, 0.0), stay.ended)
        begins[stay.pack] = min(begins.get(stay.pack, stay.began), stay.began)
        slots[stay.pack] = max(slots.get(stay.pack, 0), stay.slot + 1)
    free_at: list[float] = []  # when each row is free
    row: dict[tuple[int, int], int] = {}
    for pack in sorted(begins, key=lambda each: (begins[each], each)):
        used = 0
        for slot in range(slots[pack]):
            # The first free row: slots of a pack stay in their order.
            while used < len(free_at) and free_at[used] > begins[pack]:
                used += 1
            if used == len(free_at):
                free_at.append(0.0)
            free_at[used] = ends[pack]
            row[pack, slot] = used
            used += 1
    return SlotRows(row, len(free_at))


def busy_share(search: SearchTimeline) -> float | None:
    """Return the share of the packs' slots that held a trial, over the time of each pack.

    Times in which a pack waits for another one count as busy where its slots are held.
    """
    made: dict[int, PackMade] = {each.pack: each for each in search.packs}
    held, there = 0.0, 0.0
    by_pack: dict[int, list[SlotStay]] = {}
    for stay in search.stays:
        by_pack.setdefault(stay.pack, []).append(stay)
    for pack, stays in by_pack.items():
        if pack not in made:
            continue
        span = max(stay.ended for stay in stays) - min(stay.began for stay in stays)
        there += span * made[pack].slots
        held += sum(stay.ended - stay.began for stay in stays)
    return min(1.0, held / there) if there else None


def slots_figure(
    searches: Sequence[SearchTimeline], best: int | None, wanted: Collection[int] | None = None
) -> Figure:
    """Draw the searches of a study, one after another.

    Args:
        searches: What they did; at least one has a stay or a compile.
        best: The number of the best trial, which has a colour of its own.
        wanted: Only these trials; None: all.
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    lines = {name: _Segments() for name in ("a", "b", "best", "compiled", "cached")}
    begins_at, n_rows, n_stays, dropped = 0.0, 0, 0, False
    for number, search in enumerate(searches):
        rows = rows_of(search)
        n_rows = max(n_rows, min(rows.n_rows, MOST_ROWS))
        turns: dict[int, int] = {}
        for stay in sorted(search.stays, key=lambda each: each.began):
            row = rows.row[stay.pack, stay.slot]
            if row >= MOST_ROWS or n_stays >= MOST_STAYS:
                dropped = True
                continue
            if wanted is not None and stay.trial not in wanted:
                continue
            n_stays += 1
            turns[row] = turns.get(row, 0) + 1
            kind = "best" if stay.trial == best else "ab"[turns[row] % 2]
            lines[kind].add(begins_at + stay.began, begins_at + stay.ended, row, _stay_text(stay))
        for each in search.compiled:
            kind = "cached" if each.from_cache else "compiled"
            text = f"{'from the cache' if each.from_cache else 'compiled'}, {each.slots} slots"
            lines[kind].add(begins_at + each.began, begins_at + each.ended, -1.5, html.escape(text))
        if number:
            figure.add_vline(x=begins_at, line={"width": 1, "dash": "dot", "color": "#888"})
        begins_at += search.seconds
    width = max(2.0, min(14.0, 300 / max(1, n_rows + 2)))
    for kind, name, colour in (
        ("a", "a trial", _COLOURS[0]),
        ("b", "the next trial in the slot", _COLOURS[1]),
        ("best", "the best trial", _BEST),
        ("compiled", "compiling", _COMPILED),
        ("cached", "compiled before, from the cache", _CACHED),
    ):
        segments = lines[kind]
        if segments.x:
            figure.add_scatter(
                x=segments.x,
                y=segments.y,
                mode="lines",
                line={"width": width, "color": colour},
                name=name,
                text=segments.text,
                hoverinfo="text",
                connectgaps=False,
            )
    title = "slots over time" + (": the first ones, for there are more" if dropped else "")
    figure.update_layout(title=title, xaxis_title="seconds of searching", yaxis_title="slot")
    figure.update_yaxes(range=[max(n_rows, 1) - 0.5, -2.2], tickformat="d", zeroline=False)
    return figure


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


def _stay_text(stay: SlotStay) -> str:
    epochs = f"{stay.epochs} epoch{'' if stay.epochs == 1 else 's'}"
    parts: list[Any] = [f"trial {stay.trial}", f"{epochs} in {stay.ended - stay.began:.2f} s"]
    parts += [part for part in (stay.program, stay.plan) if part]
    return html.escape(", ".join(map(str, parts)))
