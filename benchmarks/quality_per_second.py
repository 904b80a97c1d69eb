"""Quality per second: how good the best model is when a search has had so many seconds.

    python benchmarks/quality_per_second.py                      everything that is not measured yet
    python benchmarks/quality_per_second.py --works layers --seeds 0 1 --seconds 15 30 60
    python benchmarks/quality_per_second.py --table              only print what is measured

Every search has a process and empty caches of its own; imports and data are not counted. No number
of trials is asked for: time ends the search.

A search by Paceline is told how long it may take, and may plan with it. So each number of seconds
is a search of its own. The peers train one trial after another, whatever the end may be. So one
search of the longest time shows what they would have had before. For them, too, the best epoch of
any trial counts, pruned and unfinished trials included, and its weights are kept, although their
users would have to write that themselves.

paceline         the defaults
unpruned         pruner="none"
hyperband        KerasTuner's Hyperband, on JAX
bayesian         KerasTuner's BayesianOptimization, on JAX
optuna           Optuna's TPE and median pruner around ``fit``, on JAX
optuna_halving   the same with its successive halving

Claimed: in the median of the seeds the defaults have a better best value than every peer, on each
work after each number of seconds. The exit code is 1 where they have not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")

import machine
from open_ended import noting
from quality_works import WORKS, QualityWork, Splits
from sides import Suggest

SECONDS = (15, 30, 60, 120, 300)
PACELINE: dict[str, dict[str, Any]] = {"paceline": {}, "unpruned": {"pruner": "none"}}
PEERS = ("hyperband", "bayesian", "optuna", "optuna_halving")
NAME = "quality_per_second"
MANY = 100_000  # trials: in effect any number
#: A search that should have ended so many seconds ago is ended.
PATIENCE = 120.0


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK")
    parser.add_argument("--sides", nargs="+", default=[*PACELINE, *PEERS], metavar="SIDE")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--seconds", nargs="+", type=int, default=list(SECONDS))
    parser.add_argument("--again", action="store_true", help="measure what is measured, too")
    parser.add_argument("--table", action="store_true", help="only print what is measured")
    parser.add_argument("--name", default=NAME, help="of the file in results/")
    parser.add_argument("--result", type=Path, help="search here, and write what came of it there")
    arguments = parser.parse_args()
    if arguments.result is not None:
        work, side = WORKS[arguments.works[0]], arguments.sides[0]
        found = search(work, side, arguments.seeds[0], arguments.seconds)
        arguments.result.write_text(json.dumps(found), encoding="utf-8")
        return 0
    machine.end_children_when_told()
    facts = machine.facts()
    print(machine.describe(facts), flush=True)
    entries = measured(arguments.name, facts)
    for key, side, work, seed, seconds in () if arguments.table else planned(arguments):
        if key in entries and not arguments.again:
            continue
        entries[key] = entry = in_process(side, work, seed, seconds)
        entry["commit"] = facts["commit"]
        print(f"{key}: {line_of(entry)}", flush=True)
        machine.keep(arguments.name, {"machine": facts, "entries": entries})
    found = values_of(entries)
    print(table(found))
    missed = missed_claims(found)
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def planned(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str, int, list[int]]]:
    """Yield the searches: key of the entry, side, work, seed, and the seconds to look after."""
    for seed in arguments.seeds:  # the first seed of all works comes first
        for work in arguments.works:
            for side in arguments.sides:
                if side in PACELINE:
                    for seconds in arguments.seconds:
                        yield f"{work} {side} {seed} {seconds}", side, work, seed, [seconds]
                else:
                    longest = max(arguments.seconds)
                    key = f"{work} {side} {seed} {longest}"
                    yield key, side, work, seed, sorted(arguments.seconds)


def measured(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return stored entries; each says at which commit. Another machine's do not count."""
    path = machine.results_file(name)
    if not path.is_file():
        return {}
    stored = json.loads(path.read_text(encoding="utf-8"))
    of_peers = {k: v for k, v in facts["versions"].items() if k != "paceline"}
    same = stored["machine"]["cpu"] == facts["cpu"] and of_peers.items() <= (
        stored["machine"]["versions"].items()
    )
    return stored["entries"] if same else {}


def in_process(side: str, work: str, seed: int, seconds: list[int]) -> dict[str, Any]:
    """Run a search in a fresh process with empty caches; return what came of it."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-cache-") as cache:
        result = Path(cache) / "result.json"
        command = [sys.executable, __file__, "--works", work, "--sides", side]
        command += ["--seeds", str(seed), "--seconds", *map(str, seconds)]
        subprocess.run(
            [*command, "--result", str(result)],
            env=machine.fresh_environment() | {"PACELINE_CACHE_DIR": cache},
            check=True,
            timeout=max(seconds) + PATIENCE,
        )
        return json.loads(result.read_text(encoding="utf-8"))


# -- one search ------------------------------------------------------------------------------------


class TimeIsOver(BaseException):
    """Raised in a peer's training: no ``except Exception`` may catch it."""


def search(work: QualityWork, side: str, seed: int, seconds: list[int]) -> dict[str, Any]:
    """Run a search here; return the best values after so many seconds, and how they came."""
    data = work.data()
    if side in PACELINE:
        import paceline  # noqa: F401  where people import it: before anything has been computed
    import keras

    keras.ops.zeros(1)
    device = machine.device()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as directory:
        if side in PACELINE:
            found = by_paceline(work, data, directory, seed, seconds[0], PACELINE[side])
        else:
            found = by_peer(side, work, data, directory, seed, seconds)
    return {"device": device, "load": round(os.getloadavg()[0], 1), **found}


def by_paceline(
    work: QualityWork,
    data: Splits,
    directory: str,
    seed: int,
    timeout: int,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Search by Paceline, as a user calls it."""
    import paceline

    (x, y), validation, test = data
    bests: list[tuple[float, float]] = []
    tuner = paceline.Tuner(
        work.build,
        objective="max:val_accuracy",
        study="s",
        seed=seed,
        directory=directory,
        on_progress=noting(bests),
        on_note=lambda text: None,
        **options,
    )
    began = time.perf_counter()
    tuner.search(
        *(x, y),
        validation_data=validation,
        epochs=work.epochs,
        batch_size=work.batch_size,
        n_trials=MANY,
        timeout=timeout,
    )
    took = time.perf_counter() - began
    summary, results = tuner.summary(), tuner.results()
    try:
        value = tuner.best_trial.value or 0.0
        after = {str(timeout): [round(value, 4), accuracy(tuner.best_model(), test)]}
    except paceline.PacelineError:  # no epoch was validated
        after = {str(timeout): None}
    return {
        "after": after,
        "bests": bests,
        "seconds": round(took, 1),
        "trials": len(results),
        "complete": results["state"].tolist().count("complete"),
        "trial_epochs": sum(results["epochs"].tolist()),
        "programs": summary["programs"],
        "parts": {name: round(value, 1) for name, value in summary["seconds"].items()},
    }


def by_peer(
    side: str,
    work: QualityWork,
    data: Splits,
    directory: str,
    seed: int,
    seconds: list[int],
) -> dict[str, Any]:
    """Search by KerasTuner or Optuna, as their guides recommend."""
    import keras

    (x, y), validation, test = data
    began = 0.0
    bests: list[tuple[float, float]] = []
    kept: dict[int, tuple[float, Any, Any]] = {}  # seconds -> value, model, and its weights
    counts = {"trials": 0, "trial_epochs": 0}

    class Watch(keras.callbacks.Callback):
        """Keeps each new best model, and ends the search in time."""

        def __deepcopy__(self, memo: Any) -> Watch:
            return self  # KerasTuner copies callbacks for each trial

        def on_train_begin(self, logs: Any = None) -> None:
            counts["trials"] += 1

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if time.perf_counter() - began > seconds[-1]:
                raise TimeIsOver

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now, value = time.perf_counter() - began, round(float(logs["val_accuracy"]), 4)
            if now > seconds[-1]:
                raise TimeIsOver
            counts["trial_epochs"] += 1
            if value > (bests[-1][1] if bests else -1.0):
                bests.append((round(now, 1), value))
                interval = next(each for each in seconds if now <= each)
                model: Any = self.model
                kept[interval] = value, model, model.get_weights()

    fit = {"epochs": work.epochs, "batch_size": work.batch_size, "verbose": 0}
    fit |= {"validation_data": validation}
    run = _optuna if side.startswith("optuna") else _keras_tuner
    prepared = run(side, work, (x, y), fit, directory, seed, Watch())
    began = time.perf_counter()
    try:
        prepared()
    except TimeIsOver:
        pass
    else:
        raise RuntimeError(f"{side} ended before its time was over")
    after: dict[str, list[float] | None] = {}
    last = None
    for each in seconds:
        if each in kept:
            value, model, weights = kept[each]
            model.set_weights(weights)
            last = [value, accuracy(model, test)]
        after[str(each)] = last
    return {"after": after, "bests": bests, **counts}


def _keras_tuner(
    side: str,
    work: QualityWork,
    pairs: Any,
    fit: dict[str, Any],
    directory: str,
    seed: int,
    watch: Any,
) -> Callable[[], None]:
    import keras
    import keras_tuner

    objective = keras_tuner.Objective("val_accuracy", "max")
    common = {"directory": directory, "project_name": "s", "seed": seed + 1}  # 0 means "none"
    callbacks = [watch]
    if side == "hyperband":
        tuner: Any = keras_tuner.Hyperband(
            work.build,
            objective,
            max_epochs=work.epochs,
            factor=3,
            hyperband_iterations=1000,
            **common,
        )
        # As in the guide of Keras that most people begin with.
        callbacks.append(keras.callbacks.EarlyStopping(monitor="val_loss", patience=5))
        fit = {name: value for name, value in fit.items() if name != "epochs"}
    else:
        tuner = keras_tuner.BayesianOptimization(work.build, objective, max_trials=MANY, **common)
    return lambda: tuner.search(*pairs, callbacks=callbacks, **fit)


def _optuna(
    side: str,
    work: QualityWork,
    pairs: Any,
    fit: dict[str, Any],
    directory: str,
    seed: int,
    watch: Any,
) -> Callable[[], None]:
    import keras
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruners: dict[str, Any] = {
        "optuna": optuna.pruners.MedianPruner,
        "optuna_halving": optuna.pruners.SuccessiveHalvingPruner,
    }
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruners[side]()
    )

    class Prune(keras.callbacks.Callback):
        def __init__(self, trial: optuna.Trial) -> None:
            super().__init__()
            self.trial = trial

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.trial.report(logs["val_accuracy"], epoch)
            if self.trial.should_prune():
                raise optuna.TrialPruned

    def objective(trial: optuna.Trial) -> float:
        keras.backend.clear_session()
        model = work.build(Suggest(trial))
        history = model.fit(*pairs, callbacks=[watch, Prune(trial)], **fit).history
        return max(history["val_accuracy"])

    return lambda: study.optimize(objective, n_trials=MANY)


def accuracy(model: Any, test: Any) -> float:
    """Return the share of the test examples that a model classifies as they are."""
    x, y = test
    return round(
        float(model.evaluate(x, y, batch_size=500, verbose=0, return_dict=True)["accuracy"]), 4
    )


# -- all of them -----------------------------------------------------------------------------------


def values_of(entries: dict[str, Any]) -> dict[tuple[str, int, str], list[list[float] | None]]:
    """Return (work, seconds, side) -> value and test value of each seed; None for no model."""
    found: dict[tuple[str, int, str], list[list[float] | None]] = {}
    for key, entry in entries.items():
        work, side, _, _ = key.split()
        for seconds, values in entry["after"].items():
            found.setdefault((work, int(seconds), side), []).append(values)
    return found


def median(values: list[list[float] | None], which: int) -> float:
    """Return the median value, 0, or test value, 1; a search without a model counts as 0."""
    return statistics.median(0.0 if each is None else each[which] for each in values)


def table(found: dict[tuple[str, int, str], list[list[float] | None]]) -> str:
    """Return the medians and ranges as text."""
    lines = []
    for work, seconds in sorted({(work, seconds) for work, seconds, _ in found}):
        lines.append(f"\n{work}, {seconds} s: best value (range of the seeds), test value")
        for side in (*PACELINE, *PEERS):
            values = found.get((work, seconds, side))
            if values:
                each = sorted(0.0 if v is None else v[0] for v in values)
                lines.append(
                    f"  {side:15} {median(values, 0):.4f} ({each[0]:.4f} to {each[-1]:.4f})  "
                    f"{median(values, 1):.4f}   {len(values)} seeds"
                )
    return "\n".join(lines)


def missed_claims(found: dict[tuple[str, int, str], list[list[float] | None]]) -> list[str]:
    """Return where a peer's median is better than that of the defaults."""
    missed = []
    for (work, seconds, side), values in sorted(found.items()):
        ours = found.get((work, seconds, "paceline"))
        if side in PEERS and ours and median(values, 0) > median(ours, 0):
            missed.append(
                f"{work}, {seconds} s: {side} has {median(values, 0):.4f}, Paceline "
                f"{median(ours, 0):.4f}"
            )
    return missed


def line_of(entry: dict[str, Any]) -> str:
    """Return what is printed of a search."""
    after = ", ".join(
        f"{seconds} s: {'none' if v is None else f'{v[0]} ({v[1]})'}"
        for seconds, v in entry["after"].items()
    )
    return f"{after}; {entry['trials']} trials, {entry['trial_epochs']} epochs"


if __name__ == "__main__":
    sys.exit(main())
