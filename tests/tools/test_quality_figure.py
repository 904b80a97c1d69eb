"""The curves of quality on the page of speed are those of their result."""

from __future__ import annotations

import importlib
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from measured import result
from pages import ROOT, text_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def quality_figure(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("quality_figure")


def test_the_figure_that_is_shown_is_that_of_its_result(quality_figure) -> None:
    made = quality_figure.figure(result("quality_per_second"))
    assert quality_figure.PICTURE.read_text(encoding="utf-8") == made, (
        "run: python tools/quality_figure.py"
    )
    assert "quality.svg)" in text_of("docs/explanation/speed.md")


def test_a_curve_is_the_median_of_the_best_values_so_far(quality_figure) -> None:
    seeds = {0: [[1.2, 0.5], [2.0, 0.9]], 1: [[0.5, 0.6], [2.5, 0.7]], 2: [[2.1, 0.8]]}
    entries = {
        f"digits {side} {seed} 3": {"bests": bests}
        for side in quality_figure.SIDES
        for seed, bests in seeds.items()
    }
    entries["digits paceline 0 2"] = {"bests": [[0.0, 1.0]]}  # a shorter search has no part in it
    assert quality_figure.longest({"entries": entries}) == 3
    assert quality_figure.curve({"entries": entries}, "digits", "optuna") == [0.0, 0.0, 0.6, 0.8]
    assert quality_figure.curve({"entries": entries}, "digits", "paceline")[3] == 0.8
    drawn = ElementTree.fromstring(
        "<svg>" + "".join(quality_figure.panel({"entries": entries}, "digits", 0, 0)) + "</svg>"
    )
    points = [line.get("points", "").split() for line in drawn.findall("polyline")]
    assert [len(each) for each in points] == [1, 1, 1]  # 0.6 is too far below the best one
