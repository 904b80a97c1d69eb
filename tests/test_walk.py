"""A small search walks through few rooms and files: the promise of tools/walk.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What tools/walk.py finds today."""
    output = tmp_path_factory.mktemp("walk") / "walk.json"
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "walk.py", "-o", output],
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())


@pytest.mark.slow
def test_a_search_walks_through_eight_rooms_at_most(figure):
    rooms = {"tuner", "executor", "pack", "program", "data", "study", "search_space", "report"}
    # A search that nobody looks at needs no report.
    assert rooms - {"report"} <= set(figure["names"]["entries"]) <= rooms


@pytest.mark.slow
def test_a_search_walks_through_two_thirds_of_the_files_that_it_once_did(figure):
    before = json.loads((ROOT / "tools" / "walks" / "222cc34.json").read_text())
    assert (before["files"], before["entries"]) == (120, 78)
    assert figure["files"] <= before["files"] * 2 / 3, figure["names"]["files"]
