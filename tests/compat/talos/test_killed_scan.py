"""Scans in processes that are killed, and go on with ``resume=True`` as the guide promises."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

#: What a user runs: twelve permutations of two structures. ``KILL`` ends the process in the middle
#: of a permutation, after so many others have ended.
PROGRAM = """
import json, os, signal, sys
from compat.talos.notebook import X, Y, classifier
from paceline.compat import talos

ended = 0

def model(x_train, y_train, x_val, y_val, params):
    global ended
    found = classifier(x_train, y_train, x_val, y_val, params)
    ended += 1
    if os.environ.get("KILL") == str(ended):
        os.kill(os.getpid(), signal.SIGKILL)
    return found

params = {"first_neuron": [3, 4], "dropout": [0.1], "lr": [0.01 * i for i in range(1, 7)]}
scan = talos.Scan(
    X, Y, {**params, "epochs": [int(os.environ.get("EPOCHS", 3))]}, model, "test", seed=1,
    experiment_dir="run", resume=len(sys.argv) > 1, disable_progress_bar=True,
    concurrent=os.environ.get("INTERLEAVE") == "yes",
)
scan.data.to_json("scan.json")
assert scan.status == "complete"
"""


def start(folder: Path, environment: dict[str, str], *, resume: bool = False, **more: str):
    folder.mkdir(exist_ok=True)
    environment = {**environment, "PYTHONPATH": os.pathsep.join(sys.path), **more}
    command = [sys.executable, "-c", PROGRAM, *(["resume"] if resume else [])]
    return subprocess.Popen(command, cwd=folder, env=environment)


def lines_of(folder: Path) -> list[str]:
    path = folder / "run" / "round_data.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def table(folder: Path) -> dict[str, dict[str, float]]:
    return json.loads((folder / "scan.json").read_text())


def assert_alike(one: Path, other: Path) -> None:
    found, want = table(one), table(other)
    assert found.keys() == want.keys()
    for name in found.keys() - {"start", "end", "duration"}:
        # Packs of another size add in another order: 1e-6 measured. Another seed is 1e-2 away.
        assert found[name] == pytest.approx(want[name], abs=1e-4), name


@pytest.mark.parametrize("concurrent", ["yes", "no"])
def test_a_scan_that_is_killed_twice_has_the_rows_of_one_that_never_was(
    tmp_path, child_environment, concurrent
):
    more = {"INTERLEAVE": concurrent}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, child_environment, **more).wait() == 0
    assert start(killed, child_environment, KILL="4", **more).wait() == -signal.SIGKILL
    kept = lines_of(killed)
    assert 0 < len(kept) < 4
    again = start(killed, child_environment, resume=True, KILL="3", **more)
    assert again.wait() == -signal.SIGKILL
    assert lines_of(killed)[: len(kept)] == kept
    assert len(lines_of(killed)) > len(kept)
    assert start(killed, child_environment, resume=True, **more).wait() == 0
    assert len(table(killed)["lr"]) == 12
    assert_alike(killed, whole)


def test_a_scan_may_be_killed_at_any_moment(tmp_path, child_environment):
    more = {"EPOCHS": "40", "INTERLEAVE": "no"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start(whole, child_environment, **more).wait() == 0
    for n_lines in (1, 5, 9):
        process = start(killed, child_environment, resume=n_lines > 1, **more)
        while process.poll() is None and len(lines_of(killed)) < n_lines:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert start(killed, child_environment, resume=True, **more).wait() == 0
    assert_alike(killed, whole)
