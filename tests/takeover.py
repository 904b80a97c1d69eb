"""Two searches of one study for a test: the first is killed in the middle of its second trial.

``python takeover.py STORAGE SEEN`` prints what each trained and what came of it. SEEN is "lock"
where the second may see at once that the first is dead, "signs" where its heart must have stopped
for long enough, as on another machine.

Both processes are forked from this one, which has imported Keras but not asked JAX for its devices.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("KERAS_BACKEND", "jax")

import pytest

import paceline
import toys
from epoch_reports import observe_reports
from paceline.executor.base import EpochReport
from paceline.executor.training import stream
from paceline.study.sharing import heartbeat
from paceline.tuner.checkpoint.best_models import find_saved
from paceline.tuner.checkpoint.files import CheckpointManager

stream._SLICE = 0.0  # packs stop after each epoch: what has ended is saved before the next one

EPOCHS, N_TRIALS = 8, 12
#: The first search waits for company in its first trial, and is killed in its second.
JOINED, KILLED = (1, 3), (2, 6)
Seen = Callable[[paceline.Tuner, int, int], None]
#: Whatever has saved a checkpoint in this process.
MANAGERS: list[CheckpointManager] = []


def watched(name: str, tuner: paceline.Tuner, seen: Seen, patch: pytest.MonkeyPatch) -> None:
    """Has all that is trained written down, trial and epoch; ``seen`` is told as well."""
    file = Path(f"{name}.epochs")

    def write(one: EpochReport) -> None:
        with file.open("a") as lines:
            lines.write(json.dumps([one.number, one.epoch]) + "\n")

    observe_reports(patch, before=write, after=lambda one: seen(tuner, one.number, one.epoch))
    save = CheckpointManager.save

    def saved(self: CheckpointManager, snapshot: Any) -> None:
        MANAGERS.append(self)
        save(self, snapshot)

    patch.setattr(CheckpointManager, "save", saved)


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "it does not come about"
        time.sleep(0.02)


def to_be_killed(tuner: paceline.Tuner, number: int, epoch: int) -> None:
    """Waits for company, trains on, and dies once it has saved what it was to save."""
    nth = len({number for number, _ in epochs("first")})
    if (nth, epoch) == JOINED:
        wait_for(lambda: tuner._require_study().peers.shared)
    if (nth, epoch) == KILLED:
        assert MANAGERS
        wait_for(lambda: (writing := MANAGERS[-1]._writing) is None or writing.done())
        os.kill(os.getpid(), signal.SIGKILL)


def run(name: str, storage: str, seen: Seen) -> None:
    """One search; what came of it goes to a file."""
    notes: list[str] = []
    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        storage=storage or None,
        sampler="random",
        parallel_trials=2,
        plan="sequential",
        keep_best=N_TRIALS,
        on_note=notes.append,
    )
    call: dict[str, Any] = {"validation_data": toys.data(23, seed=1), "batch_size": 16}
    with pytest.MonkeyPatch.context() as patch:
        watched(name, tuner, seen, patch)
        tuner.search(*toys.data(), **call, epochs=EPOCHS, n_trials=N_TRIALS)
    found = []
    for number in map(int, tuner.results()["number"]):
        trial = tuner.trial(number)
        facts = {"number": number, "state": trial.state, "hparams": trial.hparams}
        if trial.state == "complete":
            alone = tuner.reproduce(number, *toys.data(), **call)
            facts |= {"history": trial.history, "alone": alone.history}
            of_study = Path("runs/s"), tuner._require_study().metadata.id
            facts["saved"] = find_saved(*of_study, number, trial.value) is not None
        found.append(facts)
    Path(f"{name}.json").write_text(json.dumps({"trials": found, "notes": notes}))


def child(name: str, storage: str, seen: Seen) -> NoReturn:
    code = 1
    try:
        run(name, storage, seen)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def epochs(name: str) -> list[list[int]]:
    path = Path(f"{name}.epochs")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main(storage: str, how: str) -> None:
    """Forks both, and prints what became of them."""
    first = os.fork()
    if first == 0:
        if how == "signs":
            place = heartbeat.boot()
            heartbeat.boot = lambda: f"not {place}"
        child("first", storage, to_be_killed)
    wait_for(lambda: epochs("first"))
    second = os.fork()
    if second == 0:
        child("second", storage, lambda *_: wait_for(Path("dead").exists))
    _, killed = os.waitpid(first, 0)
    Path("dead").touch()
    _, ended = os.waitpid(second, 0)
    assert ended == 0, "the second search failed; see above"
    found = json.loads(Path("second.json").read_text())
    found["killed"] = os.WTERMSIG(killed) == signal.SIGKILL
    sys.stdout.write(json.dumps(found | {name: epochs(name) for name in ("first", "second")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
