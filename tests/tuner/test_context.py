"""The parts of a search are made from one record of what they share."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import paceline.tuner
from paceline.tuner.search.context import SearchContext

FOLDER = Path(paceline.tuner.__file__).parent


def constructors() -> list[tuple[str, int]]:
    """Each class of the folder that has a constructor, and how many arguments that takes."""
    found = []
    for path in sorted(FOLDER.rglob("*.py")):
        for each in ast.walk(ast.parse(path.read_text())):
            for made in each.body if isinstance(each, ast.ClassDef) else ():
                if isinstance(made, ast.FunctionDef) and made.name == "__init__":
                    n = len(made.args.args) - 1 + len(made.args.kwonlyargs)
                    found.append((f"{path.name}: {each.name}", n))
    return found


def test_constructors_have_at_most_six_arguments() -> None:
    found = constructors()
    assert len(found) > 15
    # What users of ``Tuner`` give is their choice.
    assert [one for one in found if one[1] > 6 and one[0] != "tuner.py: Tuner"] == []


def test_no_attribute_of_a_context_is_ever_replaced() -> None:
    context = SearchContext(**dict.fromkeys(f.name for f in dataclasses.fields(SearchContext)))  # type: ignore[arg-type]
    with pytest.raises(dataclasses.FrozenInstanceError, match="study"):
        context.study = None  # type: ignore[misc,assignment]
