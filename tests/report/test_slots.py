"""The slot timeline: what its area and its gaps are said to be."""

from __future__ import annotations

import json

import pytest

from paceline.records import PackCreated, SlotStay, StepCompiled
from paceline.report.html.figures import figures_of
from paceline.report.html.importance import importances_of
from paceline.report.slots import (
    AFTER,
    BEFORE,
    BETWEEN,
    COMPILING,
    FEWER,
    FREE,
    HELD,
    MOST_ROWS,
    rows_of,
    slot_shares,
    slots_figure,
    slots_note,
)
from paceline.study.timeline import SearchBegun, SearchTimeline, Spent
from subjects import subject_of, timeline_of


def search(*records) -> SearchTimeline:
    found = SearchTimeline(SearchBegun(1.7e9))
    for record in records:
        found.add(record)
    return found


def test_a_search_that_is_full_from_its_first_epoch_on_was_not_busy_before() -> None:
    shares = slot_shares([timeline_of(32, 10)])  # 2.2 s until the first trial, 1.6 s of compiling
    assert shares == pytest.approx(
        {HELD: 2 / 4.5, BEFORE: 0.6 / 4.5, COMPILING: 1.6 / 4.5, AFTER: 0.3 / 4.5}
        | dict.fromkeys((FREE, FEWER, BETWEEN), 0.0)
    )


def test_gaps_are_told_apart() -> None:
    shares = slot_shares(
        [
            search(
                PackCreated(0, 2, 1.0),
                SlotStay(0, 0, 0, 1.0, 3.0),
                SlotStay(1, 0, 1, 2.0, 3.0),  # its slot was free for a second
                StepCompiled(4.0, 5.0),  # between trials, like the second before it
                PackCreated(1, 1, 5.0),
                SlotStay(2, 1, 0, 5.0, 8.0),  # in one slot of two
                Spent(10.0, {}),
            )
        ]
    )
    seconds = {name: 20 * share for name, share in shares.items()}
    assert seconds == pytest.approx(
        {HELD: 6, BEFORE: 2, COMPILING: 2, FREE: 1, FEWER: 3, BETWEEN: 2, AFTER: 4}
    )


def test_the_area_held_is_the_one_that_is_drawn() -> None:
    subject = subject_of(40)  # 16 slots, the last round half full
    figures = {figure.name: figure for figure in figures_of(subject, importances_of(subject))}
    drawn = json.loads(figures["slots"].json)
    bars = [each for each in drawn["data"] if each["name"] not in ("compiling",)]
    bars = [each for each in bars if "cache" not in each["name"]]
    length = sum(e - b for bar in bars for b, e in zip(bar["x"][::3], bar["x"][1::3], strict=True))
    total = drawn["layout"]["xaxis"]["range"][1]
    assert length / (16 * total) == pytest.approx(slot_shares(subject.timelines)[HELD], abs=1e-3)
    assert "free while others trained" in figures["slots"].note


def test_what_is_said_of_the_timeline() -> None:
    assert slots_note([search(StepCompiled(0.0, 1.0))]) == ""
    full = search(PackCreated(0, 1, 0.0), SlotStay(0, 0, 0, 0.0, 1.0))
    assert slots_note([full]) == "Slots held a trial in 100% of the area."
    assert slots_note([timeline_of(16, 10)]).startswith(
        "Slots held a trial in 29% of the area. The gaps: 46% while steps were compiled; "
    )


def test_the_workers_of_a_cluster_have_rows_one_below_another_and_their_names() -> None:
    found = search(
        SlotStay(0, 0, 0, 0.0, 2.0, worker="node-1 <a>"),
        SlotStay(1, 1, 0, 1.0, 2.0, worker="node-2"),
        SlotStay(2, 1, 1, 1.0, 3.0, worker="node-2"),
        SlotStay(3, 2, 0, 3.0, 4.0, worker="node-1 <a>"),  # a later pack, in the row of the first
    )
    assert rows_of(found) == {(0, 0): 0, (2, 0): 0, (1, 0): 1, (1, 1): 2}
    drawn = slots_figure([found], 2).to_dict()
    axis = drawn["layout"]["yaxis"]
    assert list(axis["ticktext"][1:]) == ["node-1 &lt;a&gt;", "node-2"]
    assert list(axis["tickvals"][1:]) == [0, 1]
    said = {text for bar in drawn["data"] for text in (bar["text"] or ()) if text}
    assert sum("node-2" in text for text in said) == 2


def test_slots_that_find_no_place_are_told() -> None:
    stays = [SlotStay(i, 0, i, 0.0, 1.0) for i in range(MOST_ROWS + 1)]
    drawn = slots_figure([search(*stays)], None)
    assert drawn.layout.title.text == "slots over time: only the first 96 slots"
