"""The picture of a search in README."""

from __future__ import annotations

import importlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def picture(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("picture")


def test_the_search_that_is_done_shows_first_and_each_frame_has_its_time(picture) -> None:
    frames = [
        (0.0, Text("first")),
        (2.0, Text("<script>")),
        (3.0, Text("last", style="bold green")),
    ]
    made = picture.picture(frames, 200, "2 cores of X & Y, at commit 0123abc")
    root = ElementTree.fromstring(made)
    groups = root.findall(f"{SVG}g")
    assert ["".join(group.itertext()) for group in groups] == ["first", "<script>", "last"]
    assert [group.get("opacity") for group in groups] == ["0", "0", None]  # without animation
    span = groups[-1].find(f"{SVG}text/{SVG}tspan")
    assert span is not None and span.get("class") == "bold green"
    title = root.findtext(f"{SVG}title")
    assert title is not None and "--trials 200: 3.0 s on 2 cores of X & Y, at commit" in title
    # The last frame stays for 5 of 8 seconds, then the search runs: the second shows from 7 on.
    assert "@keyframes f2 { 0%, 62.499% { opacity: 1; } 62.500%, 100% { opacity: 0; }" in made
    assert "@keyframes f1 { 0%, 87.499% { opacity: 0; } 87.500%, 99.999% { opacity: 1; }" in made


def test_frames_are_thinned_but_for_the_last(picture) -> None:
    frames = [(at / 10, Text(str(at))) for at in range(11)]
    kept = [at for at, _ in picture.thinned(frames)]
    assert kept == [0.0, 0.3, 0.6, 0.9, 1.0]


def test_the_picture_that_is_shown_is_one_of_a_whole_search() -> None:
    root = ElementTree.fromstring((ROOT / "docs" / "search.svg").read_text(encoding="utf-8"))
    title = root.findtext(f"{SVG}title")
    assert title is not None
    assert re.search(r"--trials 200: [\d.]+ s on \d+ cores of .+, at commit [0-9a-f]{7,}$", title)
    seconds = re.search(r"200: ([\d.]+) s on 2 cores", title)
    assert seconds is not None
    assert f"takes {seconds[1]} seconds on two CPU cores" in (ROOT / "README.md").read_text()
    groups = root.findall(f"{SVG}g")
    last = "".join(groups[-1].itertext())
    assert "digits: 200 trials (200 complete)" in last and "Best: val_accuracy 0.9" in last
    style = root.findtext(f"{SVG}style") or ""
    shown_first = re.findall(r"@keyframes (f\d+) \{ 0%, [\d.]+% \{ opacity: 1; \}", style)
    assert shown_first == [groups[-1].get("id")]
