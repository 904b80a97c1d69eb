"""The sides of the comparison: one search each, in a process of its own, timed without imports.

    python benchmarks/sides.py SIDE WORK SEED RESULT.json

``search_speed.py`` runs this file and sets its environment (Keras' backend, the folders of caches).
The clock starts when everything is imported, the device is ready and the data are in memory. It
stops when the search has its best trial.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import machine
from works import Pairs, Work, find

Search = Callable[[], dict[str, Any]]


def paceline_side(work: Work, data: Pairs, directory: str, seed: int, **options: Any) -> Search:
    """Return a search by Paceline as a user calls it; ``options`` are arguments of ``Tuner``."""
    import paceline

    build, tuner_class = work.build(), paceline.Tuner
    if "PACELINE_WIDTHS" in os.environ:  # which ``search_speed.py --share-widths`` sets
        given = os.environ["PACELINE_WIDTHS"]
        options["share_widths"] = {"yes": True, "no": False}.get(given, given)
    (x, y), validation = data

    def search() -> dict[str, Any]:
        tuner = tuner_class(
            build,
            objective=f"max:{work.objective}",
            study=_folder(work),
            sampler="random",
            seed=seed,
            directory=directory,
            **options,
        )
        for hparams in work.given() if work.given else ():
            tuner.enqueue(hparams)
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=work.epochs,
            batch_size=work.batch_size,
            n_trials=work.n_trials,
        )
        summary = tuner.summary()
        complete = summary["n_trials"]["complete"]
        return {"best": tuner.best_trial.value, "complete": complete, "summary": summary}

    return search


def keras_tuner_side(work: Work, data: Pairs, directory: str, seed: int) -> Search:
    """Return a random search by KerasTuner, with Keras on JAX."""
    import keras_tuner

    class GivenOracle(keras_tuner.oracles.RandomSearchOracle):
        """An oracle that proposes the given trials of the work, one after another."""

        given = iter(work.given() if work.given else ())

        def populate_space(self, trial_id: str) -> dict[str, Any]:
            return {"status": "RUNNING", "values": next(self.given)}

    build = work.build()
    (x, y), validation = data

    def search() -> dict[str, Any]:
        oracle_class = GivenOracle if work.given else keras_tuner.oracles.RandomSearchOracle
        objective = keras_tuner.Objective(work.objective, "max")
        oracle = oracle_class(objective=objective, max_trials=work.n_trials, seed=seed)
        tuner = keras_tuner.Tuner(
            oracle, hypermodel=build, directory=directory, project_name=_folder(work)
        )
        tuner.search(
            x,
            y,
            validation_data=validation,
            epochs=work.epochs,
            batch_size=work.batch_size,
            verbose=0,
        )
        done = [trial for trial in oracle.trials.values() if trial.status == "COMPLETED"]
        return {"best": oracle.get_best_trials()[0].score, "complete": len(done)}

    return search


class Suggest:
    """An hp with the methods that the works use, which asks an Optuna trial."""

    def __init__(self, trial: Any) -> None:
        self.trial = trial

    def Float(self, name: str, low: float, high: float, sampling: str = "linear") -> float:  # noqa: N802
        """Ask for a float."""
        return self.trial.suggest_float(name, low, high, log=sampling == "log")

    def Int(  # noqa: N802
        self, name: str, low: int, high: int, step: int = 1, sampling: str = "linear"
    ) -> int:
        """Ask for a whole number."""
        return self.trial.suggest_int(name, low, high, step=step, log=sampling == "log")

    def Boolean(self, name: str) -> bool:  # noqa: N802
        """Ask for a yes or no."""
        return self.trial.suggest_categorical(name, [True, False])

    def Choice(self, name: str, values: list[Any]) -> Any:  # noqa: N802
        """Ask for one of some values."""
        return self.trial.suggest_categorical(name, values)


def optuna_side(work: Work, data: Pairs, directory: str, seed: int) -> Search:
    """Return a search by Optuna around ``model.fit``, with the study in memory, Keras on JAX."""
    import keras
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    build = work.build()
    (x, y), validation = data

    def objective(trial: optuna.Trial) -> float:
        keras.backend.clear_session()
        model = build(Suggest(trial))
        history = model.fit(
            x,
            y,
            validation_data=validation,
            epochs=work.epochs,
            batch_size=work.batch_size,
            verbose=0,
        ).history
        return max(history[work.objective])

    def search() -> dict[str, Any]:
        sampler = optuna.samplers.RandomSampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for hparams in work.given() if work.given else ():
            study.enqueue_trial(hparams)
        study.optimize(objective, n_trials=work.n_trials)
        return {"best": study.best_value, "complete": len(study.trials)}

    return search


def first_end(directory: str) -> datetime:
    """Return when the first trial of the one study in a directory ended, by its Optuna journal."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    (journal,) = Path(directory).rglob("journal*.log")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(journal)))
    study = optuna.load_study(study_name=None, storage=storage)  # the only one
    return min(trial.datetime_complete for trial in study.trials if trial.datetime_complete)


def _folder(work: Work) -> str:
    """Return the name of the work as the name of a folder."""
    return work.name.replace(":", "-")


SIDES = {
    "paceline": paceline_side,
    "keras_tuner": keras_tuner_side,
    "keras_tuner_tf": keras_tuner_side,  # in another interpreter, with another KERAS_BACKEND
    "optuna": optuna_side,
}


def main() -> None:
    """Run one side on one work and write what it took to a file."""
    side, name, seed, result = sys.argv[1:]
    work = find(name)
    if side == "paceline":  # where people import it: before anything has been computed
        import paceline  # noqa: F401
    import keras

    keras.ops.zeros(1)
    counts = {"cache_hits": 0, "cache_misses": 0}

    def count(event: str, **_: Any) -> None:
        name = event.rpartition("/")[2]
        if name in counts:
            counts[name] += 1

    if keras.backend.backend() == "jax":
        import jax

        device = machine.device()
        jax.monitoring.register_event_listener(count)
    else:
        backend = keras.backend.backend()
        device = f"{backend} {import_module(backend).__version__}"
    data = work.data()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        search = SIDES[side](work, data, directory, int(seed))
        start, began = time.perf_counter(), datetime.now()
        outcome = search()
        outcome["seconds"] = time.perf_counter() - start
        if side == "paceline":
            outcome["first"] = (first_end(directory) - began).total_seconds()
    outcome.update(counts)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    outcome["cpu_seconds"] = usage.ru_utime + usage.ru_stime
    outcome["peak_bytes"] = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    outcome["page_faults"] = usage.ru_minflt
    outcome["system_seconds"] = usage.ru_stime
    outcome["device"] = device
    outcome["load"] = os.getloadavg()[0]
    Path(result).write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    main()
