"""Figures as pictures: what a notebook keeps that runs no script."""

from __future__ import annotations

import base64
import re
from typing import Any
from xml.etree import ElementTree

import optuna
import plotly.graph_objects as go
import pytest

from paceline.report.hparam_figures import axis_of, parallel_figure
from paceline.report.notebook_figure import NotebookFigure
from paceline.report.plots import StudyPlots, front_figure
from paceline.report.slots import MANY, slots_figure
from paceline.report.static import as_dict, picture, picture_html, round_ticks
from subjects import HOSTILE, subject_of, timeline_of

SVG = "{http://www.w3.org/2000/svg}"


def plots(n: int, mark: str = "") -> StudyPlots:
    subject = subject_of(n, mark=mark)
    study = optuna.create_study(direction="maximize")
    study.add_trials(subject.frozen)
    return StudyPlots(study, subject.trials, subject.objective)


def drawn(figure: Any) -> ElementTree.Element:
    return ElementTree.fromstring(picture(as_dict(figure)))


def texts(root: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in root.iter(f"{SVG}text")]


@pytest.mark.parametrize(
    ("name", "marks", "said"),
    [
        ("history", {"circle": 12}, ["val_accuracy", "best so far"]),
        ("importances", {}, ["lr", "units", "activation", "what made val_accuracy differ"]),
        ("parallel", {"polyline": 12}, ["val_accuracy", "lr", "relu", "elu"]),
        ("slice", {"circle": 36}, ["val_accuracy", "lr", "units", "relu", "0.001"]),
        ("curves", {"polyline": 12}, ["epoch", "val_accuracy by epoch"]),
    ],
)
def test_each_figure_is_a_picture(name, marks, said) -> None:
    root = drawn(getattr(plots(12), name)())
    for tag, count in marks.items():
        assert len(list(root.iter(f"{SVG}{tag}"))) == count
    assert set(said) <= set(texts(root))
    for each in root.iter(f"{SVG}circle"):
        assert 0 <= float(each.attrib["cx"]) <= 760
        assert 0 <= float(each.attrib["cy"]) <= 420


def test_a_front_of_three_objectives_is_a_picture_of_three_panels() -> None:
    subject = subject_of(20)
    subject.trials.directions = ("maximize", "minimize", "minimize")
    for i, trial in enumerate(subject.trials):
        trial.values = [trial.value or 0.0, float(i % 7), 100.0 * i]
    names = ["val_accuracy", "latency", "params"]
    for stacked in (True, False):
        root = drawn(front_figure(subject.trials, names, stacked=stacked))
        assert len(list(root.iter(f"{SVG}circle"))) == 3 * 20
        assert texts(root).count("params") == 2
        assert texts(root).count("latency") == 2


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    root = drawn(go.Figure(go.Bar(x=[0.6, 0.3], y=["lr", "units"], orientation="h")))
    long, short = (float(r.attrib["width"]) for r in list(root.iter(f"{SVG}rect"))[1:])
    assert long == pytest.approx(2 * short, abs=0.1)


def test_points_on_a_log_axis_are_where_their_logarithms_are() -> None:
    figure = go.Figure(go.Scatter(x=[1e-6, 1e-3, 1.0], y=[0, 1, 2], mode="markers"))
    figure.update_xaxes(type="log")
    first, second, third = (float(c.attrib["cx"]) for c in drawn(figure).iter(f"{SVG}circle"))
    assert second == pytest.approx((first + third) / 2, abs=0.1)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 20, [0, 5, 10, 15, 20]),
        (0.31, 0.97, [0.4, 0.6, 0.8]),
        (0.25, 0.35, [0.26, 0.28, 0.3, 0.32, 0.34]),
        (-3, 3, [-2, 0, 2]),
    ],
)
def test_ticks_are_round_and_within_the_axis(low, high, found) -> None:
    assert round_ticks(low, high) == pytest.approx(found)


@pytest.mark.parametrize(
    ("high", "found"), [(1, [0, 1]), (3, [0, 1, 2, 3]), (14, [0, 2, 4, 6, 8, 10, 12, 14])]
)
def test_what_is_counted_has_whole_ticks(high, found) -> None:
    assert round_ticks(0, high, whole=True) == found


@pytest.mark.parametrize("n", [32, MANY + 40])
def test_the_slot_timeline_is_a_picture(n) -> None:
    root = drawn(slots_figure([timeline_of(n, 10)], 3))
    assert "slots over time" in texts(root)
    colours = {each.attrib.get("fill") for each in root.iter(f"{SVG}rect")}
    colours |= {each.attrib.get("stroke") for each in root.iter(f"{SVG}polyline")}
    assert {"#4c78a8", "#e45756", "#f58518"} <= colours


@pytest.mark.parametrize("name", ["history", "importances", "parallel", "slice", "curves"])
def test_names_that_are_html_stay_text(name) -> None:
    root = drawn(getattr(plots(12, HOSTILE), name)())
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= {
        *("svg", "rect", "text", "path", "polyline", "circle", "g", "polygon"),
    }


def test_an_empty_figure_is_a_picture() -> None:
    drawn(go.Figure())
    drawn(go.Figure(go.Scatter(x=[], y=[])))
    drawn(go.Figure(go.Scatter(x=[float("nan"), None], y=[1, 2])))
    drawn(parallel_figure([axis_of("lr", [])], {}, "loss", maximize=True))


def test_a_notebook_keeps_a_picture_and_no_script() -> None:
    figure = plots(12).history()
    assert isinstance(figure, go.Figure)
    bundle = NotebookFigure(figure)._repr_mimebundle_()
    if "application/vnd.plotly.v1+json" in bundle:  # what the default renderer shows in a notebook
        assert "<script" not in bundle["text/html"]
    found = picture_html(as_dict(figure))
    assert re.fullmatch(r'<img alt="[^"<>]*" style="[^"]*" width="760" src="[^"]*">', found)
    data = re.findall(r"base64,([^\"]*)", found)[0]
    ElementTree.fromstring(base64.b64decode(data))
