"""Reference pages have a row for each option, argument, sampler, pruner, column and variable."""

from __future__ import annotations

import inspect
import re

import pytest
import typer.main

import paceline
from paceline.cli.app import app
from paceline.report import tables
from paceline.study.pruners import pruners
from paceline.study.samplers import samplers
from pages import ROOT, text_of

SEARCH = typer.main.get_command(app).commands["search"]  # type: ignore[attr-defined]


def first_cells(page: str) -> str:
    """The first cells of a page's rows, one a line."""
    rows = re.findall(r"^\| (.+?) \|", text_of(f"docs/reference/{page}.md"), re.MULTILINE)
    return "\n".join(rows)


def test_every_option_of_a_search_has_a_row():
    options = {option for each in SEARCH.params for option in each.opts if option.startswith("--")}
    cells = first_cells("options")
    assert {option for option in options if not re.search(rf"`{option}\b", cells)} == set()


@pytest.mark.parametrize("call", [paceline.Tuner.__init__, paceline.Tuner.search])
def test_every_argument_is_on_the_page(call):
    text = text_of("docs/reference/options.md")
    names = [n for n in inspect.signature(call).parameters if not n.startswith("_") and n != "self"]
    fit = {"x", "y", "build", "verbose", "fit_arguments"}  # said of `fit`, or in the guides
    fit |= {"validation_batch_size", "initial_epoch", "steps_per_epoch", "validation_steps"}
    assert {name for name in names if name not in fit and f"`{name}`" not in text} == set()


def test_every_sampler_has_a_row():
    cells = first_cells("samplers")
    assert {name for name in (*samplers.NAMES, "auto") if f"`{name}`" not in cells} == set()


def test_every_pruner_has_a_row():
    cells = first_cells("pruners")
    names = (*pruners._NAMED, "auto", "none", "pbt")
    assert {name for name in names if f"`{name}" not in cells} == set()


def test_every_column_has_a_row():
    further = (tables.VALUE_STD, tables.CONTINUED_FROM, tables.WORKER, tables.REASON)
    cells = first_cells("results")
    assert {n for n in (*tables.FIXED_COLUMNS, *further) if f"`{n}`" not in cells} == set()


def test_every_variable_of_ours_has_a_row():
    sources = "".join(p.read_text("utf-8") for p in (ROOT / "src" / "paceline").rglob("*.py"))
    names = set(re.findall(r"\"(PACELINE_[A-Z_]+)\"", sources))
    # From a process to the one that it starts.
    names -= {"PACELINE_ENDS_AT", "PACELINE_SIGNALS_HELD", "PACELINE_WALL"}
    cells = first_cells("environment")
    assert {name for name in names if f"`{name}`" not in cells} == set()
