"""Lines as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from paceline.benchmark.lines_svg import BOTTOM, HEIGHT, LEFT, RIGHT, WIDTH, Line, picture, ticks


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 20, [0, 5, 10, 15, 20]),
        (0.31, 0.97, [0.2, 0.4, 0.6, 0.8, 1.0]),
        (3, 3, [3, 3.5, 4, 4.5, 5, 5.5, 6]),
        (0, 0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_ticks_are_round_and_hold_all(low, high, found):
    assert ticks(low, high) == pytest.approx(found)
    assert ticks(low, high)[0] <= low and ticks(low, high)[-1] >= high


@pytest.mark.parametrize(
    ("high", "found"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (14, [0, 5, 10, 15]), (7, [0, 2, 4, 6, 8])]
)
def test_what_is_counted_has_whole_ticks(high, found):
    assert ticks(0, high, whole=True) == found


def drawn(*lines, **more):
    return ElementTree.fromstring(picture(lines, "epochs", "val_accuracy", **more))


def test_a_line_goes_where_its_points_are():
    root = drawn(Line("32", [(0, 0), (10, 1)]))
    (line,) = root.iter("polyline")
    first, last = (tuple(map(float, p.split(","))) for p in line.get("points").split())
    assert first == (LEFT, HEIGHT - BOTTOM)
    assert last[0] == WIDTH - RIGHT
    assert last[1] < first[1]


def test_lines_differ_without_colour():
    lines = [Line(str(i), [(1, i), (2, i + 1)]) for i in range(6)]
    dashes = [line.get("stroke-dasharray") for line in drawn(*lines).iter("polyline")]
    assert len(set(dashes)) == 6
    labels = [text.text for text in drawn(*lines).iter("text")]
    assert [label for label in labels if label in "012345"][-6:] == list("012345")


def test_labels_do_not_cover_each_other():
    lines = [Line(str(i), [(1, 0.1), (2, 0.5 + i / 1e4)]) for i in range(5)]
    texts = [t for t in drawn(*lines).iter("text") if t.get("x") == str(WIDTH - RIGHT + 12)]
    places = sorted(float(text.get("y")) for text in texts)
    assert all(b - a > 12 for a, b in zip(places, places[1:], strict=False))
    assert places[-1] <= HEIGHT - BOTTOM + 5


def test_a_target_is_marked_and_within_the_picture():
    root = drawn(Line("32", [(1, 0.1), (2, 0.2)]), target=0.9)
    (mark,) = [line for line in root.iter("line") if line.get("class") == "target"]
    assert 0 < float(mark.get("y1")) < HEIGHT - BOTTOM


def test_text_is_escaped():
    assert "<b>" not in picture([Line("<b>", [(1, 1)])], "x", "y")
