"""Searches that are killed and resumed, compared to the bit with one that never was.

    python tests/chaos.py [CASE ...] [--kills N] [--seed N] [--keep FOLDER]

For each case one search runs undisturbed; then the same search, in a folder of its own, is killed
with SIGKILL again and again, at random moments and in the middle of what is delicate, and resumed
by the same call until it is done. Histories, hparams, seeds, values and states of all trials and
the best model's weights must be the same, to the bit. ``tests/chaos_wall.py`` has the case in which
the command goes on by itself.

A process of each search is forked from this one, which has imported Keras but not asked JAX for
its devices: an import takes longer than most searches.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("KERAS_BACKEND", "jax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import keras
import numpy as np

import chaos_wall
import paceline
import toys
from paceline.executor import local
from paceline.executor.training import stream
from paceline.pack import pack
from paceline.program import compile as compiling
from paceline.study.ask_tell import TrialUpdates
from paceline.study.storage.write_behind import WriteBehind
from paceline.study.study import Study
from paceline.tuner.checkpoint import files
from paceline.tuner.checkpoint.best_models import BestModels

N_TRIALS, EPOCHS = 14, 6
_SAME = ("number", "state", "hparams", "seed", "enqueued")
X, Y = toys.data(60)
VALIDATION = toys.data(20, seed=1)


def structures(hp: Any) -> keras.Model:
    """Four structures, rates beside them."""
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(
            hp.Choice("units", [4, 8]), activation=hp.Choice("act", ["relu", "elu"])
        ),
        keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def widths(hp: Any) -> keras.Model:
    """Many widths in one program, most of whose trials are not traced."""
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Dense(hp.Int("units", 4, 32), activation=hp.Choice("act", ["relu", "elu"])),
        keras.layers.Dropout(hp.Float("dropout", 0.1, 0.5)),
        keras.layers.Dense(hp.Int("second", 4, 16)),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def recurrent(hp: Any) -> keras.Model:
    """A GRU, whose validation draws seeds too."""
    layers = [
        keras.Input((toys.FEATURES,)),
        keras.layers.Reshape((toys.FEATURES, 1)),
        keras.layers.GRU(4, dropout=hp.Float("dropout", 0.1, 0.5)),
        keras.layers.Dense(toys.CLASSES, activation="softmax"),
    ]
    return toys.compiled(keras.Sequential(layers), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


def discrete(hp: Any) -> keras.Model:
    """Sixteen configurations of one program."""
    hp.Choice("momentum", [0.5, 0.9])
    return toys.compiled(toys.softmax(), hp.Choice("lr", [i / 100 for i in range(1, 9)]))


def conditional(hp: Any) -> keras.Model:
    """A hyperparameter that is not always there."""
    if hp.Boolean("deep"):
        return structures(hp)
    return toys.compiled(toys.softmax(), hp.Float("lr", 1e-3, 1e-1, sampling="log"))


class Batches(keras.utils.PyDataset):
    """The training data in batches, in an order of their own."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return X[index::4], Y[index::4]


def callbacks() -> list[Any]:
    """State of several kinds, two of which write files and two decide how long a trial trains."""
    return [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("w.weights.h5", save_weights_only=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, factor=0.5),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
    ]


#: Name -> build, arguments of Tuner, arguments of search; ``then`` are those of a second one.
CASES: dict[str, tuple[Callable[[Any], Any], dict[str, Any], dict[str, Any]]] = {
    "random": (toys.dense, {"sampler": "random"}, {}),
    "tpe": (toys.dense, {"sampler": "tpe"}, {"n_trials": 24}),
    "cmaes": (toys.dense, {"sampler": "cmaes"}, {"n_trials": 24}),
    "objectives": (
        structures,
        {"sampler": "nsga2:6", "objective": ["val_accuracy", "params"]},
        {"n_trials": 18, "epochs": 3},
    ),
    "nsga3": (
        structures,
        {"sampler": "nsga3:6", "objective": ["val_accuracy", "val_loss", "params"]},
        {"n_trials": 18, "epochs": 3},
    ),
    "constraints": (
        structures,
        {"sampler": "tpe", "constraints": {"params": ("<=", 60)}},
        {"n_trials": 20},
    ),
    "initial-configurations": (
        toys.dense,
        {"sampler": "tpe"},
        {
            "n_trials": 20,
            "enqueue_defaults": True,
            "enqueue": [{"lr": 0.05, "dropout": 0.2}, {"lr": 0.07}, {"dropout": 0.4}, {"lr": 0.02}],
        },
    ),
    "patience-trials": (toys.dense, {"sampler": "random"}, {"n_trials": 40, "patience_trials": 5}),
    # One slot: of trials side by side, which one is first would depend on when each was built.
    "target_value": (
        toys.dense,
        {"sampler": "random", "parallel_trials": 1},
        {"target_value": 0.88, "n_trials": 40},
    ),
    "max-total-epochs": (
        toys.dense,
        {"sampler": "random"},
        {"n_trials": 40, "max_total_epochs": 75},
    ),
    "warm-start-from": (
        toys.dense,
        {"sampler": "tpe", "warm_start_from": ["before"]},
        {"n_trials": 24},
    ),
    "families": (structures, {"sampler": "random"}, {}),
    "families-tpe": (structures, {"sampler": "tpe"}, {"n_trials": 24}),
    "widths": (widths, {"sampler": "random"}, {"n_trials": 24}),
    "widths-tpe": (widths, {"sampler": "tpe"}, {"n_trials": 24}),
    "widths-asha": (
        widths,
        {"sampler": "random", "pruner": "asha"},
        {"epochs": 9, "n_trials": 24},
    ),
    # What a search that time may end reckons with grows with the trials that have come.
    "by-time": (widths, {"sampler": "random"}, {"n_trials": 60, "timeout": 1e6}),
    "by-time-asha": (
        widths,
        {"sampler": "tpe", "pruner": "asha"},
        {"epochs": 9, "n_trials": 60, "timeout": 1e6},
    ),
    "sqlite": (toys.dense, {"sampler": "tpe", "storage": "sqlite:///{folder}/s.db"}, {}),
    "grid": (structures, {"sampler": "grid"}, {}),
    "auto": (discrete, {"sampler": "auto"}, {"n_trials": 16}),  # which takes a grid, once
    "qmc": (toys.dense, {"sampler": "qmc"}, {}),
    "qmc-conditional": (conditional, {"sampler": "qmc"}, {}),
    "discrete": (discrete, {"sampler": "random"}, {}),
    "hyperband": (
        toys.dense,
        {"sampler": "random", "pruner": "hyperband"},
        {"epochs": 9, "n_trials": 20},
    ),
    "asha": (toys.dense, {"sampler": "random", "pruner": "asha"}, {"epochs": 9, "n_trials": 20}),
    "asha-families": (
        structures,
        {"sampler": "random", "pruner": "asha"},
        {"epochs": 3, "n_trials": 10},
    ),
    "asha-tpe": (toys.dense, {"sampler": "tpe", "pruner": "asha"}, {"epochs": 9, "n_trials": 20}),
    "median": (structures, {"sampler": "random", "pruner": "median"}, {"n_trials": 20}),
    "pbt": (
        toys.dense,
        {"sampler": "random", "pruner": paceline.PBT(perturbation_interval=2)},
        {"epochs": 9, "n_trials": 8},
    ),
    "pbt-gp": (
        toys.dense,
        {"sampler": "random", "pruner": paceline.PBT(perturbation_interval=2, explore="gp")},
        {"epochs": 9, "n_trials": 8},
    ),
    "recurrent": (recurrent, {"sampler": "random"}, {"epochs": 3, "n_trials": 8}),
    "sequential": (toys.dense, {"sampler": "random", "plan": "sequential"}, {}),
    "repeats": (toys.dense, {"sampler": "random"}, {"repeats": 2, "n_trials": 6}),
    "folds": (toys.dense, {"sampler": "random"}, {"folds": 3, "n_trials": 6}),
    "longer": (
        toys.dense,
        {"sampler": "tpe", "keep_best": 2},
        {"n_trials": 8, "epochs": 3, "then": {"epochs": 6, "continue_best": 3, "n_trials": 12}},
    ),
    "fit": (toys.dense, {"sampler": "random", "executor": "fit"}, {"epochs": 2, "n_trials": 4}),
    "fit-batches": (
        toys.dense,
        {"sampler": "random", "executor": "fit"},
        {"x": Batches(), "epochs": 2, "n_trials": 4},
    ),
    "batches": (toys.dense, {"sampler": "random"}, {"x": Batches()}),
    "hyperband-folds": (
        toys.dense,
        {"sampler": "tpe", "pruner": "hyperband"},
        {"epochs": 9, "n_trials": 12, "folds": 2},
    ),
    "callbacks": (toys.dense, {"sampler": "random"}, {"callbacks": callbacks()}),
    "callbacks-repeats": (
        toys.dense,
        {"sampler": "random", "pruner": "median"},
        {"callbacks": callbacks(), "repeats": 2, "n_trials": 8},
    ),
}

#: Where a process may be killed: what, and the method that does it.
PLACES: dict[str, tuple[Any, str]] = {
    "checkpoint": (files, "save_file"),
    "checkpoint moved": (files, "replace_durably"),
    "storage": (WriteBehind, "_write"),
    "batch": (WriteBehind, "_written"),
    "refill": (pack.Pack, "admit"),
    "epoch": (pack.Pack, "run_epoch"),
    "report": (TrialUpdates, "report"),
    "end": (TrialUpdates, "finish"),
    "ask": (Study, "accept"),
    "compile": (compiling, "compile_in_background"),
    "best model": (BestModels, "save"),
    "restore": (local.LocalExecutor, "restore"),
}


def traced(folder: Path) -> None:
    """Has every epoch of every pack written down, to see where two searches part."""
    run_epoch = pack.Pack.run_epoch

    def told(self: pack.Pack) -> Any:
        riders = [r and [r.number, r.epoch] for r in self.slots]
        line = [os.getpid(), self.program.plan, riders, self.program.lifted]
        with (folder / "trace.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return run_epoch(self)

    folder.mkdir(parents=True, exist_ok=True)
    pack.Pack.run_epoch = told


def search(case: str, folder: Path) -> None:
    """The search of a case, to its end; what came of it goes to ``result.json``."""
    build, tuner_arguments, search_arguments = CASES[case]
    if "storage" in tuner_arguments:
        storage = tuner_arguments["storage"].format(folder=folder)
        tuner_arguments = {**tuner_arguments, "storage": storage}
    usual: dict[str, Any] = {"objective": "val_accuracy", "directory": folder, "parallel_trials": 4}
    usual["on_note"] = lambda text: None
    if "warm_start_from" in tuner_arguments:  # the earlier study, which may be killed as well
        before = paceline.Tuner(build, study="before", sampler="random", **usual)
        before.search(X, Y, validation_data=VALIDATION, epochs=3, n_trials=8, batch_size=16)
    tuner = paceline.Tuner(build, study="s", **(usual | tuner_arguments))
    call = {"epochs": EPOCHS, "n_trials": N_TRIALS, **search_arguments}
    if "x" not in call:
        call |= {"x": X, "y": Y, "batch_size": 16}
    if "folds" not in call:
        call["validation_data"] = VALIDATION
    for hparams in call.pop("enqueue", ()):  # again after each kill, as a script does
        tuner.enqueue(hparams)
    then, first_done = call.pop("then", None), folder / "first search done"
    if then is None or not first_done.exists():
        tuner.search(**call)
        first_done.touch()
    if then is not None:
        tuner.search(**(call | then))
    found = result(tuner) | {"files": logs_in(folder / "s" / "trials")}
    (folder / "result.json").write_text(json.dumps(found, indent=1, sort_keys=True))


def logs_in(folder: Path) -> dict[str, str]:
    """What each trial's CSVLogger has written."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*.csv")}


def result(tuner: paceline.Tuner) -> dict[str, Any]:
    """All that must be the same."""
    trials = []
    under_way = 0  # where a rule ends the search; how many, the device's speed decides
    for number in tuner.results()["number"]:
        trial = tuner.trial(int(number))
        if trial.state == "running":
            under_way += 1
            continue
        trials.append(
            {
                **{name: getattr(trial, name) for name in _SAME},
                "value": repr(trial.value),
                "values": list(map(repr, trial.values)),
                "history": {name: list(map(repr, found)) for name, found in trial.history.items()},
                "members": repr(trial.runs),
            }
        )
    digest, front = hashlib.sha256(), tuner.pareto()
    if under_way:  # and one of these may be the best
        front = []
    elif not front[0].values:  # one objective: of trials that are as good one model is kept
        del front[1:]
    best = [trial.number for trial in front]
    for number in best:
        for weights in tuner.best_model(number=number).get_weights():
            digest.update(np.ascontiguousarray(weights).tobytes())
    found = {"trials": trials, "best": best, "weights": digest.hexdigest()}
    return found | {"under way": under_way}


def dying_at(place: str, count: int, after: bool) -> None:
    """Has this process die when something is done for the ``count``-th time."""
    owner, name = PLACES[place]
    original, left = getattr(owner, name), [count]

    def deadly(*arguments: Any, **named: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = original(*arguments, **named)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    setattr(owner, name, deadly)


def child(
    case: str, folder: Path, death: tuple[str, int, bool] | None, pause: float | None
) -> NoReturn:
    """A forked process: searches, perhaps not to the end."""
    code = 1
    try:
        if pause is not None:
            stream._SLICE = pause
        if os.environ.get("CHAOS_TRACE"):
            traced(folder)
        if death is not None:
            dying_at(*death)
        search(case, folder)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def run(
    case: str,
    folder: Path,
    death: Any = None,
    seconds: float | None = None,
    pause: float | None = None,
) -> bool:
    """One process; whether it came to the end of the search. Others than the killed must not fail.

    Args:
        case: Of CASES.
        folder: Where studies go.
        death: Where to die: place, count, after it rather than before.
        seconds: When to be killed from outside.
        pause: Seconds after which packs that stream stop for a checkpoint; 0: after each epoch;
            None: as usual, which most of these searches do not take.
    """
    pid = os.fork()
    if pid == 0:
        child(case, folder, death, pause)
    began = time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if seconds is not None and time.monotonic() - began > seconds:
            os.kill(pid, signal.SIGKILL)
            seconds = None
        time.sleep(0.01)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, f"{case}: died of {os.WTERMSIG(status)}"
        return False
    assert os.WEXITSTATUS(status) == 0, f"{case}: a search failed; see above"
    return True


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """What is not the same, a line each."""
    lines = [
        f"{name}: {one[name]} and {other[name]}"
        for name in ("best", "weights", "files")
        if one[name] != other[name]
    ]
    if len(one["trials"]) != len(other["trials"]):
        lines.append(f"{len(one['trials'])} trials and {len(other['trials'])}")
    for a, b in zip(one["trials"], other["trials"], strict=False):
        lines += [f"trial {a['number']}, {k}: {a[k]} and {b[k]}" for k in a if a[k] != b[k]]
    return lines


def check(case: str, kills: int, rng: random.Random, keep: Path | None = None) -> tuple[int, list]:
    """One case: how often it was killed, and what differs."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-chaos-"))
    whole, killed, lines = folder / "whole", 0, []
    try:
        for _ in range(2):  # the first compiles, and keeps what it learnt; the second learns more
            assert run(case, whole)
            shutil.rmtree(whole)
        began = time.monotonic()
        assert run(case, whole)
        seconds = time.monotonic() - began
        expected = json.loads((whole / "result.json").read_text())
        while killed < kills and not lines:
            again = folder / f"killed-{killed}"
            killed += disturbed(case, again, min(4, kills - killed), rng, seconds)
            found = json.loads((again / "result.json").read_text())
            lines = differences(expected, found)
            if (again / "s" / "checkpoints").exists() and not found["under way"]:
                lines.append("checkpoints were left behind")
        if lines and keep is not None:
            shutil.copytree(folder, keep / case, dirs_exist_ok=True)
        return killed, lines
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def disturbed(case: str, folder: Path, most: int, rng: random.Random, seconds: float) -> int:
    """One search, killed at most so often and then left alone; how often it was."""
    killed = 0
    while killed < most:
        pause = rng.choice([0.0, 0.0, 0.05, None])
        if rng.random() < 0.6:
            place, count = rng.choice(list(PLACES)), rng.choice([1, 2, 3, 5, 8, 12, 20])
            done = run(case, folder, (place, count, rng.random() < 0.5), pause=pause)
        else:
            done = run(case, folder, seconds=rng.uniform(0.2, 1.0) * seconds, pause=pause)
        if done:
            return killed
        killed += 1
    assert run(case, folder)
    return killed


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Checks the cases; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=[*CASES, "command"], metavar="CASE")
    parser.add_argument("--kills", type=int, default=50, help="in all, shared by the cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copies of studies that differ go there")
    arguments = parser.parse_args()
    os.environ.setdefault("PACELINE_CHECKPOINT_SECONDS", "0")
    rng, wrong, total = random.Random(arguments.seed), 0, 0
    for at, case in enumerate(arguments.cases):
        share = -(-(arguments.kills - total) // (len(arguments.cases) - at))
        if case == "command":  # whose process is killed, and which goes on by itself
            killed, lines = chaos_wall.check(share, rng)
        else:
            killed, lines = check(case, share, rng, arguments.keep)
        total += killed
        wrong += bool(lines)
        say(f"{case:16s} killed {killed} times, {len(lines)} differences")
        for line in lines[:5]:
            say(f"    {line[:300]}")
    say(f"{total} kills, {wrong} of {len(arguments.cases)} cases differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
