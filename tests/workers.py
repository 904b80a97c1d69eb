"""Processes for tests of several workers: each searches the study "s" and prints what came of it.

``python workers.py study STORAGE TRIALS`` tells a study what a search would; epochs end only once
there is a file "go", so that however late a worker starts, there are trials left for it;
``python workers.py search STORAGE TRIALS SECONDS`` trains.
With AHEAD in the environment the clock of the process is so many seconds ahead. STARTS are known
starts of a search, and RULES what may end it.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))


def set_clock(seconds: float) -> None:
    """Sets the clock of this process ahead, before anything is imported that reads it."""
    real, ahead = time.time, datetime.timedelta(seconds=seconds)

    class Ahead(datetime.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.datetime.fromtimestamp(real(), tz) + ahead

    time.time = lambda: real() + seconds
    vars(datetime)["datetime"] = Ahead


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def study(storage: str, n_trials: int) -> None:
    """Trials of three epochs, two at a time, that train nothing."""
    from paceline.study.sharing.peers import ClaimLost
    from paceline.study.sharing.worker import Worker
    from paceline.study.study import Study
    from paceline.study.trials.trial import INTERRUPTED

    worker = Worker(Path("runs/s/workers"), say)
    found = Study(
        "s", storage=storage or None, direction="maximize", n_trials=n_trials, worker=worker
    )
    found.persist({})
    go = Path("go")
    mine: dict[int, int] = {}
    while True:
        heard = found.sync_workers()
        if heard is not None:
            mine.update(dict.fromkeys(heard.adopted, 0))
            for number in heard.lost:
                mine.pop(number, None)
        counted = sum(trial.error != INTERRUPTED for trial in found.trials)
        if counted < n_trials and len(mine) < 2:
            proposal = found.asker.propose(lambda hp, proposal: hp.Float("x", 0.0, 1.0))
            assert proposal is not None
            with contextlib.suppress(ClaimLost):
                mine[found.accept(*proposal[:2])] = 0
        elif not mine and (heard is None or heard.n_theirs == 0):
            break
        for number in list(mine) if go.exists() else ():
            mine[number] += 1
            found.updates.report(number, mine[number], {"val": 0.5}, 0.5)
            if mine[number] == 3:
                found.updates.finish(number, "complete")
                del mine[number]
        time.sleep(0.02)
    found.close()
    worker.leave()
    sys.stdout.write(json.dumps({"states": [trial.state for trial in found.trials]}))


def search(storage: str, n_trials: int, seconds: float = 0.0) -> None:
    """Trains small models; dawdles for some seconds after every epoch."""
    import paceline
    import toys

    tuner = paceline.Tuner(
        toys.dense,
        study="s",
        storage=storage or None,
        sampler="random",
        parallel_trials=2,
        on_note=say,
        on_progress=lambda _: time.sleep(seconds),
    )
    for hparams in json.loads(os.environ.get("STARTS", "[]")):
        tuner.enqueue(hparams)
    rules = json.loads(os.environ.get("RULES", "{}"))
    tuner.search(
        *toys.data(),
        validation_data=toys.data(23, seed=1),
        epochs=3,
        batch_size=16,
        n_trials=n_trials,
        **rules,
    )
    found = {"states": tuner.results()["state"].tolist(), "ended": tuner.summary()["ended"]}
    if not rules:  # else the best trial may be one that was told and not trained
        best = tuner.best_model().evaluate(*toys.data(23, seed=1), verbose=0, return_dict=True)
        found["accuracy"] = best["accuracy"]
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    if ahead := float(os.environ.get("AHEAD", "0")):
        set_clock(ahead)
    mode, storage, n_trials, *more = sys.argv[1:]
    {"study": study, "search": search}[mode](storage, int(n_trials), *map(float, more))
