"""The figure of speed on README and the site's first page is the one of its result."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from measured import result
from pages import ROOT, text_of

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def speed_figure(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("speed_figure")


def bars(made: str, side: str) -> list[float]:
    found = ElementTree.fromstring(made).findall(f"{SVG}rect")
    return [float(bar.get("width", "")) for bar in found if bar.get("class") == side][1:]


def test_the_figure_that_is_shown_is_that_of_its_result(speed_figure) -> None:
    made = speed_figure.figure(result("search_speed"))
    assert speed_figure.PICTURE.read_text(encoding="utf-8") == made, (
        "run: python tools/speed_figure.py"
    )
    for page in ("README.md", "docs/index.md"):
        assert "speed.svg)" in text_of(page)


def test_a_bar_is_as_long_as_its_seconds(speed_figure) -> None:
    report = json.loads(json.dumps(result("search_speed")))
    before = speed_figure.figure(report)
    ours, theirs = bars(before, "paceline"), bars(before, "keras_tuner")
    seconds = report["works"]["gru"]["seconds"]
    per_second = max(theirs) / report["works"]["digits64"]["seconds"]["keras_tuner"]["cold"]
    assert ours[2] == pytest.approx(seconds["paceline"]["cold"] * per_second, abs=0.1)
    assert theirs[2] == pytest.approx(seconds["keras_tuner"]["cold"] * per_second, abs=0.1)
    seconds["paceline"]["cold"] *= 2
    assert bars(speed_figure.figure(report), "paceline")[2] == pytest.approx(2 * ours[2], abs=0.2)
