"""A process that searches a study with another is killed: the other goes on with its trials."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "takeover.py"
EPOCHS, N_TRIALS, KILLED = 8, 12, 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("storage", "how"),
    [
        ("", "signs"),
        ("", "lock"),
        ("sqlite:///s.db", "signs"),
    ],
)
def test_the_trials_of_a_process_that_is_killed_go_on_in_another(
    storage: str, how: str, child_environment: dict[str, str]
) -> None:
    environment = {
        **child_environment,
        "PACELINE_HEARTBEAT_SECONDS": "0.4",
        "PACELINE_CHECKPOINT_SECONDS": "0",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT, storage, how],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["killed"]
    trials = {trial["number"]: trial for trial in found["trials"]}
    complete = [trial for trial in trials.values() if trial["state"] == "complete"]
    assert len(complete) == N_TRIALS
    # The first search had ended a trial, and was in the middle of another.
    hparams = {number: json.dumps(trial["hparams"]) for number, trial in trials.items()}
    (ended,) = {number for number, epoch in found["first"] if epoch == EPOCHS}
    (left,) = {number for number, _ in found["first"]} - {ended}
    assert trials[ended]["state"] == "complete"
    # Each epoch of each trial was trained once, but perhaps for the one that was not saved yet.
    trained = Counter((hparams[n], epoch) for n, epoch in found["first"] + found["second"])
    wanted = {(json.dumps(t["hparams"]), e) for t in complete for e in range(1, EPOCHS + 1)}
    assert set(trained) == wanted
    twice = {pair for pair, n in trained.items() if n > 1}
    assert twice <= {(hparams[left], KILLED)}
    assert max(trained.values()) <= 2
    taken = [note for note in found["notes"] if "a trial of a lost worker, after epoch" in note]
    assert len(taken) == 1
    # And each history is that of a trial which nobody has interrupted.
    assert all(len(trial["history"]["val_loss"]) == EPOCHS for trial in complete)
    assert [trial["history"] for trial in complete] == [trial["alone"] for trial in complete]
    assert all(trial["saved"] for trial in complete)
    assert not list(Path("runs/s").rglob("checkpoint-*"))
