"""Notebooks for tests: they are executed by a real kernel, which needs nbclient and ipykernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import paceline

SOURCE = Path(paceline.__file__).resolve().parents[1]

_FIRST = """
import os, signal, sys, threading
sys.path[:0] = [{tests!r}, {source!r}]
import paceline, toys
x, y = toys.data()
def tuner_of(name):
    return paceline.Tuner(toys.dense, study=name, directory={folder!r}, seed=1)
"""


def execute(folder: Path, *cells: str) -> Any:
    """Executes a notebook whose first cell has ``tuner_of``, ``toys``, ``x`` and ``y``."""
    tests = str(Path(__file__).resolve().parent)
    return run(_FIRST.format(tests=tests, source=str(SOURCE), folder=str(folder)), *cells)


def run(*cells: str, folder: Path | None = None) -> Any:
    """Executes a notebook in a folder; errors are outputs of their cells."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    where = {} if folder is None else {"resources": {"metadata": {"path": str(folder)}}}
    nbclient.NotebookClient(book, timeout=300, allow_errors=True, **where).execute()
    return book


def outputs(cell: Any, kind: str) -> list[Any]:
    """The outputs of a cell of one kind: display_data, stream, error, execute_result."""
    return [output for output in cell.outputs if output.output_type == kind]
