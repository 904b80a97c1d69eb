"""A benchmark as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

import bench_records
from bench_records import measurement, run
from paceline.benchmark.presentation.advice import advise
from paceline.benchmark.presentation.document import document
from paceline.benchmark.presentation.html import page
from paceline.benchmark.records import CellConfig, Curve, Measurement

RUN = run(
    measurement(32, 1000.0),
    measurement(32, 4000.0, 8, "vectorized"),
    measurement(128, 2000.0),
    measurement(128, 500.0, plan="fit"),
    Measurement(CellConfig(64), "failed", "ValueError: <no>"),
    model={"name": "<net>.py", "hparams": {"lr": 0.01}},
    first_epoch=bench_records.FIRST_EPOCH,
    curves=[
        Curve(32, "val_accuracy", "maximize", [0.5, 0.75], [1.0, 2.0]),
        Curve(128, "val_accuracy", "maximize", [0.4], [0.5], reason="stopped"),
    ],
)
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Checked(HTMLParser):
    """Every element that is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def text():
    return page([RUN], document([RUN], advise([RUN]), ["It takes 5 minutes."]), 0.7)


def test_the_page_is_whole_and_needs_no_other_file(text):
    tags = Checked(text).tags
    assert {"svg", "table", "style"} <= set(tags)
    assert not {"script", "link", "img", "iframe"} & set(tags)
    # The name of SVG is an address that nobody asks.
    named = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|url\(|@import", named)
    assert len(text) < 60_000


def test_what_users_wrote_is_text(text):
    assert "<net>" not in text and "&lt;net&gt;.py" in text
    assert "ValueError: &lt;no&gt;" in text


def test_bars_have_their_lengths_and_patterns(text):
    bars = re.findall(r'class="bar (k\d)" style="width:([\d.]+)%"', text)
    # batch 32: one trial 10 s, several 2.5 s; batch 128: fit 20 s, one trial 5 s
    assert [(kind, float(width)) for kind, width in bars] == [
        ("k0", 35.0),
        ("k1", 8.75),
        ("k2", 70.0),
        ("k0", 17.5),
    ]
    assert re.findall(r'class="value">([^<]+)', text) == [
        "10.0 s",
        "2.50 s",
        "20.0 s",
        "5.00 s",
    ]


def test_curves_are_drawn_twice_each_with_the_target(text):
    assert text.count("<svg") == 2
    assert text.count("<polyline") == 6
    assert text.count(">target</text>") == 2
    assert "Accuracy at batch 128: stopped." in text


def drawn(*curves: Curve, target: float | None = None) -> ElementTree.Element:
    """The first picture of a page: the curves over epochs."""
    found = run(measurement(32, 1.0), curves=list(curves))
    text = page([found], document([found], []), target)
    return ElementTree.fromstring(
        re.sub(r' xmlns="[^"]*"', "", re.findall("<svg.*?</svg>", text)[0])
    )


def curve(batch_size: int, *values: float) -> Curve:
    return Curve(batch_size, "val_accuracy", "maximize", list(values), [1.0] * len(values))


def test_a_line_goes_where_its_points_are():
    (line,) = drawn(curve(32, 0.0, 0.5, 1.0)).iter("polyline")
    points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    (x0, y0), (x1, y1), (x2, y2) = points
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x0 < x1
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2) and y0 > y1


def test_lines_differ_without_colour():
    root = drawn(*(curve(2**i, i, i + 1) for i in range(6)))
    assert len({line.get("stroke-dasharray") for line in root.iter("polyline")}) == 6
    labels = {text.text for text in root.iter("text")}
    assert {"1", "2", "4", "8", "16", "32"} <= labels


def test_labels_do_not_cover_each_other():
    root = drawn(*(curve(1000 + i, 0.1, 0.5 + i / 1e4) for i in range(5)))
    texts = [each for each in root.iter("text") if (each.text or "").startswith("100")]
    places = sorted(float(text.attrib["y"]) for text in texts)
    assert len(places) == 5
    assert all(b - a > 12 for a, b in zip(places, places[1:], strict=False))
    assert places[-1] <= 330 - 56 + 5  # the height of the picture, and of what is below the axis


def test_epochs_have_whole_ticks():
    labels = [text.text for text in drawn(curve(32, 5.0, 5.5)).iter("text")]
    assert {"0", "1", "2"} <= set(labels) and "0.5" not in labels and "1.5" not in labels


def test_a_target_is_marked_and_within_the_picture():
    *_, mark = drawn(curve(32, 0.1, 0.2), target=0.9).iter("polyline")
    (_, first), (_, last) = (map(float, p.split(",")) for p in mark.attrib["points"].split())
    assert first == last and 0 < first < 330 - 56


def test_everything_that_is_known_is_said(text):
    assert "Fastest: batch 32, vectorized, 8 trials at once" in text
    assert "3.00 s (75%) compiling" in text
    assert "It takes 5 minutes." in text
    assert "jax 0.10.2, keras 3.15.1; 2026-11-21 20:00" in text
    assert text.count('<tr class="best">') == 1


def test_light_and_dark_have_the_same_colours_defined(text):
    dark_part = r"prefers-color-scheme: dark\) \{ :root \{([^}]*)\}"
    dark = set(re.findall(r"(--\w+):", " ".join(re.findall(dark_part, text))))
    light = set(re.findall(r"(--\w+):", re.sub(dark_part, "", text)))
    assert light == dark
    assert {f"--c{i}" for i in range(6)} | {"--ink", "--page"} <= light


def test_an_interrupted_run_says_so():
    found = run(measurement(32, 1.0), interrupted=True)
    assert "Interrupted: these are the measurements" in page([found], document([found], []))


def test_a_part_of_the_first_epoch_may_take_minutes():
    slow = replace(bench_records.FIRST_EPOCH, first=401.0, compile=200.0)
    found = run(measurement(32, 1.0), first_epoch=slow)
    assert "3:20 (50%) compiling: XLA compiles" in page([found], document([found], []))


def test_devices_stand_side_by_side():
    gpu = run(measurement(32, 9000.0), platform="gpu")
    text = page([RUN, gpu], document([RUN, gpu], advise([RUN, gpu])))
    names = re.findall(r'class="name"[^>]*>([^<]+)', text)
    assert names[:3] == ["cpu, one trial", "cpu, several trials at once", "gpu, one trial"]
    Checked(text)


def test_nothing_measured_is_still_a_page():
    Checked(page([run()], document([run()], [])))
