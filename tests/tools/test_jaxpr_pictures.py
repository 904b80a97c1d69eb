"""The pictures of docs/explanation/how_it_works.md: drawn from jaxprs that are traced here."""

from __future__ import annotations

import importlib
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jax
import keras
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "pictures"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def pictures(monkeypatch) -> Any:
    monkeypatch.syspath_prepend(FOLDER.parents[1] / "tools")
    return importlib.import_module("jaxpr_pictures")


def texts(made: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(made).iter(f"{SVG}text")]


def test_trials_that_differ_in_a_rate_have_one_fingerprint(pictures):
    prints = [re.search(r"fingerprint (\w{8})", text) for text in texts(pictures.structures())]
    first, second, wider, other = [found[1] for found in prints if found]
    assert first == second
    assert len({first, wider, other}) == 3


def test_the_constants_that_differ_are_those_of_dropout(pictures):
    cells = texts(pictures.constants())
    assert "0.8" in cells and "0.6" in cells
    numbers = pictures.differing(pictures.step(0.2), pictures.step(0.4))
    assert len(numbers) == 3  # the draw, the forward and the backward pass


def test_each_shape_of_a_pack_has_an_axis_of_slots(pictures):
    cells = texts(pictures.packs())
    assert "dot_general [32,64] [64,16] -> [32,16]" in cells
    assert "dot_general [8,32,64] [8,64,16] -> [8,32,16]" in cells


def test_the_program_of_two_widths_computes_at_the_larger_one(pictures):
    cells = texts(pictures.widths())
    assert cells.count("dot_general [32,64] [64,24] -> [32,24]") == 2
    assert cells.count("dot_general [32,64] [64,16] -> [32,16]") == 1


@pytest.mark.parametrize("name", ["structures", "constants", "packs", "widths"])
def test_the_pictures_that_are_shown_are_those_that_the_script_makes(pictures, name):
    shown = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    if f"(JAX {jax.__version__}, Keras {keras.__version__})" not in shown:
        pytest.skip("drawn with other releases, which trace other steps")
    assert pictures.PICTURES[name]() == shown
