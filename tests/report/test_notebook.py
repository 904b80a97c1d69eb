"""The view in a notebook: what it shows, that it stays small, and that names cannot steer it."""

from __future__ import annotations

import base64
import math
import re
from dataclasses import replace
from xml.etree import ElementTree

from paceline.report.notebook import SearchInterrupted, progress_html
from paceline.report.progress import Progress, TrialRow
from paceline.search_space import html
from paceline.study.trials.trial import Trial

HOSTILE = '<script>alert(1)</script>\x1b[31m&"'
PROGRESS = Progress(
    HOSTILE, "training", 4, 1, 0, 0, 3, 10, 5.0, 2.0, 15.0, HOSTILE, 0, 0.5, {HOSTILE: HOSTILE}
)
ROW = TrialRow(0, "complete", 0.5, 3, 0, {HOSTILE: HOSTILE}, (0.1, 0.4, 0.5))


def test_names_are_escaped_and_cannot_steer():
    shown = progress_html(replace(PROGRESS, rows=(ROW,), devices=HOSTILE))
    assert "<script" not in shown
    assert "\x1b" not in shown
    assert "&lt;script&gt;" in shown


def test_the_view_says_what_runs_where_and_how_long():
    shown = progress_html(replace(PROGRESS, rows=(ROW,), busy=0.875, devices="2 x TPU"))
    for said in (
        "1 of 4 trials",
        "about 0:15 left",
        "0.5000",
        "2 x TPU",
        "slots 88% filled while training",
        "<img",
    ):
        assert said in shown


def test_no_background_is_fixed():
    assert "background:#fff" not in progress_html(replace(PROGRESS, rows=(ROW,)))


def test_a_curve_is_an_image_which_an_untrusted_notebook_keeps():
    curve = html.curve([1.0, 2.0])
    found = re.fullmatch(
        r'<img class="curve" width="90" height="18" alt="from 1 to 2" '
        r'src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)">',
        curve,
    )
    assert found is not None
    drawn = ElementTree.fromstring(base64.b64decode(found[1]))
    assert drawn[0].attrib["points"] == "1.0,17.0 89.0,1.0"


def test_long_searches_make_no_long_output():
    curve = html.thin(float(i) for i in range(10_000))
    rows = [replace(ROW, number=n, curve=curve) for n in range(5_000)]
    assert len(progress_html(replace(PROGRESS, n_trials=5_000, rows=tuple(rows)))) < 150_000
    history = html.HistoryTable({f"metric_{i}": [0.5] * 5_000 for i in range(3)})
    assert len(history._repr_html_()) < 30_000
    assert len(html.pairs("hp", {"text": "x" * 100_000})) < 2_000


def test_a_curve_of_odd_numbers_is_drawn():
    assert html.curve([]) == html.curve([math.nan, math.inf]) == ""
    assert html.curve([1.0, math.nan, 1.0]) == html.curve([1.0, math.inf, 1.0]) != ""
    assert 'alt="from -1.7e+308 to 1.7e+308"' in html.curve([-1.7e308, 1.7e308])


def test_a_curve_keeps_its_last_point():
    assert html.thin(range(1_000))[-1] == 999


def test_an_interrupt_renders_itself_in_its_lines():
    stop = SearchInterrupted(["one", "two"])
    assert isinstance(stop, KeyboardInterrupt)
    assert stop._render_traceback_() == ["one", "two"]


def test_a_column_of_a_table_has_one_precision():
    rows = tuple(replace(ROW, number=n, value=v) for n, v in enumerate((0.5, 0.00042)))
    shown = progress_html(replace(PROGRESS, rows=rows))
    assert ">0.5000000<" in shown
    assert ">0.0004200<" in shown
    history = html.HistoryTable({"loss": [1.5, 0.25, 0.0123456], "tiny": [1e-6, 2.5e-7, 0.0]})
    for text in ("1.50000", "0.25000", "0.01235", "1.00000e-06", "2.50000e-07"):
        assert f">{text}<" in history._repr_html_()
    trial = Trial(0, "complete", 0.5, history={"loss": [0.25], "acc": [0.5, 0.123456], "none": []})
    for text in ("0.250000", "0.123456"):
        assert f">{text}<" in trial._repr_html_()


def test_the_order_of_the_rows_is_said_while_trials_train():
    said = "The best trial first, then finished and paused trials, then those that train."
    running = replace(ROW, number=1, state="running", epochs=5)
    assert said in progress_html(replace(PROGRESS, rows=(ROW, running)))
    assert said not in progress_html(replace(PROGRESS, rows=(ROW,)))
