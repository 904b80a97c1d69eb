"""Searches in a session on TensorFlow, beside KerasTuner in such a session: whole processes, cold.

    python benchmarks/sessions.py --tensorflow PYTHON               # all works, 40 minutes
    python benchmarks/sessions.py --tensorflow PYTHON --works digits64 start

PYTHON is an interpreter that has Paceline's dependencies, tensorflow, keras-tuner, tensorboard and
six. PACELINE_DATA names the folder of the data. If a run was stopped, the next one keeps the works
that are complete, provided that commit, versions and processor are the same.

Each side is a user's script in a process of its own, whose time counts from its start to its end,
with empty caches. Sides: ``paceline`` and ``original`` (KerasTuner) begin with
``from tensorflow import keras``; ``jax`` is Paceline's script in a session on JAX.

Works
    digits64, structures, gru, fashion: those of ``works.py``.
    tutorial: Hyperband over units and rate, all of Fashion-MNIST, as in TensorFlow's tutorial of
        KerasTuner, written in our own words.
    start: Paceline's digits64 at two numbers of epochs, in both sessions: what the own process
        costs at the start, and afterwards.
    memory: proportional set size (PSS) of all processes at two sizes of data, in both sessions: how
        many copies of the data there are.

Fails where Paceline is less than ``FLOORS`` times as fast, or costs more than ``MOST``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).resolve().parent
#: How many times as fast as KerasTuner on TensorFlow each work must be.
FLOORS = {"digits64": 15.0, "structures": 6.0, "gru": 2.0, "fashion": 1.0, "tutorial": 6.0}
#: What the process may cost: seconds at the start, the time afterwards by that of a session on JAX,
#: the tutorial by the same in a session on JAX without the start, copies of the data beside those
#: of such a session.
MOST = {"start": 5.0, "afterwards": 1.03, "tutorial": 1.1, "copies": 1.0}
#: Side -> the first lines of its script.
FIRST = {
    "paceline": "from tensorflow import keras\nimport paceline",
    "original": "from tensorflow import keras",
    "jax": "import paceline\nimport keras",
}
#: A work of ``works.py``.
SEARCH = """
import dataclasses, json, sys
import sides, works

side, name, epochs = sys.argv[1:]
work = works.find(name)
if int(epochs):
    work = dataclasses.replace(work, epochs=int(epochs))
searching = sides.SIDES["keras_tuner" if side == "original" else "paceline"]
found = searching(work, work.data(), "made", 1)()
print(json.dumps({"backend": keras.backend.backend(), "best": found["best"]}))
"""
#: As in TensorFlow's tutorial: a search, the best epoch of a second training, a third training.
TUTORIAL = """
import json, sys
import works

if sys.argv[1] == "original":
    import keras_tuner
else:
    from paceline.compat import keras_tuner
(x, y), (x_test, y_test) = works.fashion(60_000, 10_000)
x, x_test = x / 255.0, x_test / 255.0


def build(hp):
    hidden = keras.layers.Dense(hp.Int("units", 32, 512, step=32), activation="relu")
    model = keras.Sequential([keras.layers.Flatten(), hidden, keras.layers.Dense(10)])
    rate = hp.Choice("learning_rate", values=[1e-2, 1e-3, 1e-4])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
    return model


tuner = keras_tuner.Hyperband(
    build, "val_accuracy", max_epochs=10, factor=3, seed=1, directory="made", project_name="kt"
)
stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=5)
tuner.search(x, y, epochs=50, validation_split=0.2, callbacks=[stop], verbose=0)
backend = keras.backend.backend()
print(json.dumps({"backend": backend, "best": tuner.oracle.get_best_trials(1)[0].score}))
"""
#: Data of N examples, f32[N, 784], and a search of four quick trials. N is the last argument.
MEMORY = """
import json, sys
import numpy as np

x = np.random.default_rng(0).random((int(sys.argv[3]), 784), np.float32)
y = np.arange(len(x)) % 10


def build(hp):
    model = keras.Sequential([keras.Input((784,)), keras.layers.Dense(10, activation="softmax")])
    rate = hp.Float("lr", 1e-4, 1e-2, sampling="log")
    loss = "sparse_categorical_crossentropy"
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


tuner = paceline.Tuner(build, "val_accuracy", study="memory", directory="made", seed=0)
validation = (x[:1000].copy(), y[:1000])
tuner.search(x, y, validation_data=validation, epochs=2, batch_size=512, n_trials=4)
print(json.dumps({"backend": keras.backend.backend(), "best": tuner.best_trial.value}))
"""


class Scripts:
    """Runs a side's script in a process of its own.

    Args:
        python: An interpreter with TensorFlow.
    """

    def __init__(self, python: str) -> None:
        self._python = python

    def run(self, side: str, text: str, *given: Any, watch: bool = False) -> dict[str, Any]:
        """Return the seconds of the whole process and what it found; with ``watch``, its memory.

        Raises:
            SystemExit: The script failed, or ran on another backend than its session's.
        """
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder, "script.py")
            script.write_text(f"{FIRST[side]}\n{text}", encoding="utf-8")
            own = {
                "KERAS_HOME": str(Path(folder, "keras")),
                "PACELINE_CACHE_DIR": str(Path(folder, "cache")),
                "PYTHONPATH": os.pathsep.join([str(machine.ROOT / "src"), str(HERE)]),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "XDG_CACHE_HOME": folder,
            }
            kept = machine.fresh_environment()
            kept.pop("KERAS_BACKEND", None)
            out, error = Path(folder, "out"), Path(folder, "error")
            with out.open("w") as printed, error.open("w") as failed:
                began = time.perf_counter()
                process = subprocess.Popen(
                    [self._python, str(script), side, *map(str, given)],
                    env=kept | own,
                    cwd=folder,
                    stdout=printed,
                    stderr=failed,
                )
                peak = max(_memory_until_the_end(process), default=0) if watch else 0
                status = process.wait()
                took = time.perf_counter() - began
            if status != 0:
                raise SystemExit(out.read_text() + error.read_text())
            found = json.loads(out.read_text().splitlines()[-1])
        if found["backend"] != ("jax" if side == "jax" else "tensorflow"):
            raise SystemExit(f"{side}: the session's Keras ran on {found['backend']}")
        memory = {"peak_bytes": peak} if watch else {}
        return {"seconds": round(took, 1), "best": found["best"], **memory}

    def beside(self, name: str) -> dict[str, Any]:
        """Return a work's three sides, and how many times as fast as KerasTuner Paceline is."""
        text, given = (TUTORIAL, ()) if name == "tutorial" else (SEARCH, (name, 0))
        sides = {side: self.run(side, text, *given) for side in FIRST}
        times = sides["original"]["seconds"] / sides["paceline"]["seconds"]
        return {**sides, "times": round(times, 1)}

    def start(self, short: int = 20, long: int = 220) -> dict[str, Any]:
        """Return what the own process costs at the start of a search, and afterwards."""
        seconds = {
            side: [self.run(side, SEARCH, "digits64", n)["seconds"] for n in (short, long)]
            for side in ("paceline", "jax")
        }
        ours, alone = (seconds[side][1] - seconds[side][0] for side in ("paceline", "jax"))
        return {
            "epochs": [short, long],
            "took": seconds,
            "start": round(seconds["paceline"][0] - seconds["jax"][0], 1),
            "afterwards": round(ours / alone, 3),
        }

    def memory(self, few: int = 20_000, many: int = 120_000) -> dict[str, Any]:
        """Return how many copies of the data all processes of a search hold at their peak."""
        n_bytes = (many - few) * 784 * 4
        peaks, copies = {}, {}
        for side in ("paceline", "jax"):
            runs = [self.run(side, MEMORY, "memory", n, watch=True) for n in (few, many)]
            peaks[side] = [run["peak_bytes"] for run in runs]
            copies[side] = round((peaks[side][1] - peaks[side][0]) / n_bytes, 2)
        return {"examples": [few, many], "peak_bytes": peaks, "copies": copies}


def _memory_until_the_end(process: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the bytes of a process and of those that it started, until it ends."""
    while process.poll() is None:
        yield sum(_pss(pid) for pid in _with_children(process.pid))
        time.sleep(0.1)


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in Path(task, "children").read_text().split():
                yield from _with_children(int(child))


def _pss(pid: int) -> int:
    """Return the proportional set size of a process in bytes: what is shared counts once in all."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def missed(works: dict[str, Any]) -> list[str]:
    """Return a sentence for each floor that is missed."""
    found = [
        f"{name}: {works[name]['times']} times as fast, {floor} were asked for"
        for name, floor in FLOORS.items()
        if name in works and works[name]["times"] < floor
    ]
    costs = {}
    if "start" in works:
        costs = {key: works["start"][key] for key in ("start", "afterwards")}
    if {"start", "tutorial"} <= works.keys():
        sides = works["tutorial"]
        late = sides["paceline"]["seconds"] - works["start"]["start"]
        costs["tutorial"] = round(late / sides["jax"]["seconds"], 2)
    if "memory" in works:
        copies = works["memory"]["copies"]
        costs["copies"] = round(copies["paceline"] - copies["jax"], 2)
    return found + [
        f"{name}: {cost}, {MOST[name]} at most" for name, cost in costs.items() if cost > MOST[name]
    ]


def main() -> None:
    """Measure the works, and fail where a floor is missed."""
    names = [*FLOORS, "start", "memory"]
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--tensorflow", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--works", nargs="+", choices=names, default=names, metavar="WORK")
    given = parser.parse_args()
    machine.end_children_when_told()
    facts, scripts = machine.facts(), Scripts(given.tensorflow)
    print(machine.describe(facts), flush=True)
    changed = facts["commit"].endswith("+")  # which does not tell what has changed
    works = {} if changed else machine.gathered("sessions", facts, "works")
    for name in given.works:
        if name not in works:
            own = {"start": scripts.start, "memory": scripts.memory}
            works[name] = own[name]() if name in own else scripts.beside(name)
            ordered = {each: works[each] for each in names if each in works}
            machine.keep("sessions", {"machine": facts, "works": ordered})
        print(f"{name}: {json.dumps(works[name])}", flush=True)
    if slow := missed(works):
        sys.exit("\n".join(slow))


if __name__ == "__main__":
    main()
