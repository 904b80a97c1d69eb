"""Files of a study and results of a benchmark, changed at random: no command ends in a traceback.

``mutations.py`` makes the changes. Each command runs in this process through the command's
runner, and a sample as processes of their own. ``pytest -s`` shows the share that got past the
checks: where nearly all are refused by the parser, the mutations say little about the rest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bench_records
from mutations import (
    Tally,
    changed_bytes,
    changed_json,
    changed_lines,
    changed_meta,
    mutations,
    sizes,
)
from paceline.benchmark.presentation.result import Bench
from paceline.benchmark.records import CellConfig, Curve, Measurement, PlannedSearch
from paceline.cli.user_file import file_digest
from paceline.study.study import Study

JOURNAL = Path("runs/s/journal.log")
MANIFEST = Path("runs/s/best/manifest.json")
#: Seconds after which a command counts as hanging.
PATIENCE = 30


# -- what is changed -------------------------------------------------------------------------------


@pytest.fixture
def study(user_modules: None) -> bytes:
    """The journal of a small study with a saved model; each record has a line of its own."""
    Path("model.py").write_text("def build(hp):\n    return hp\n\ndef data():\n    return ()\n")
    meta = {
        "objective": "val_accuracy",
        "direction": "maximize",
        "sampler": "tpe",
        "seed": 3,
        "parallel_trials": "auto",
        "plan": "auto",
        "pruner": "asha:1:3",
        "precision": None,
        "mesh": [2, None],
        "search": {"epochs": 2, "batch_size": 32, "n_trials": 4, "shuffle": True, "repeats": 2},
        "data": "d",
        "batch": {"tuple": [{"shape": [2, 3], "dtype": "float32"}]},
        "versions": {"jax": "0.10.2", "keras": "3.15.1"},
        "origin": {
            "file": str(Path("model.py").resolve()),
            "function": "build",
            "digest": file_digest(Path("model.py")),
            "data": None,
        },
    }
    found = Study("s", direction="maximize", seed=3)
    found.persist(meta)
    for value in (0.5, 0.75, None, float("nan")):
        proposal = found.asker.propose(
            lambda hp, proposal: (hp.Float("lr", 0.1, 1.0), hp.Boolean("b"))
        )
        assert proposal is not None
        number = found.accept(proposal[0], proposal[1])
        found.writer.flush()
        if value is None:
            found.updates.finish(number, "failed", attrs={"error": "loss is nan"})
        else:
            logs = {"val_accuracy": value, "loss": float("nan")}
            found.updates.report(number, 1, logs, value, [value, value])
            found.writer.flush()
            attrs = {"epochs": 1, "seconds": 0.25, "program": "a1b2", "plan": "vectorized"}
            found.updates.finish(number, "complete", value=value, attrs=attrs)
        found.writer.flush()
    found.close()
    MANIFEST.parent.mkdir()
    model = MANIFEST.parent / "trial-1-epoch-1.keras"
    model.write_bytes(b"not really a model")
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    entry = {"file": model.name, "epoch": 1, "value": 0.75, "sha256": digest}
    entry["study"] = found.metadata.id
    MANIFEST.write_text(json.dumps({"1": entry, "0": entry}))
    return JOURNAL.read_bytes()


@pytest.fixture
def result() -> bytes:
    """A file of benchmark results that holds each kind of record."""
    cells = [
        bench_records.measurement(size, 1000.0 * slots, slots, "vectorized", usual=slots == 4)
        for size in (32, 64)
        for slots in (1, 4)
    ]
    costs = {
        "batch_size": 32,
        "ready": 4.0,
        "pace": {"at_once": 4.0, "round": 0.5},
        "finish": 1.0,
        "programs": 2.0,
        "compile": 1.5,
    }
    run = bench_records.run(
        *cells,
        bench_records.measurement(32, 500.0, 1, "fit", data_devices=2),
        Measurement(CellConfig(128), "failed", "out of memory"),
        first_epoch=bench_records.FIRST_EPOCH,
        curves=[
            Curve(size, "val_accuracy", "maximize", [0.5, 0.75], [1.0, 2.0]) for size in (32, 64)
        ],
        costs=costs,
        notes=["a note"],
    )
    plan = PlannedSearch(32, 10, "asha:1:3", {"gpu": 3600.0, "session": 600.0})
    Bench([run], target_value=0.7, plan=plan).save("bench.json")
    return Path("bench.json").read_bytes()


# -- what is run -----------------------------------------------------------------------------------


class OpensTheStudy:
    """Takes arguments as ``Tuner`` does, opens the study as a search does, and trains nothing."""

    def __init__(self, build: Any, **arguments: Any) -> None:
        from paceline.tuner.tuner import Tuner

        self.arguments = arguments
        Tuner(build, **arguments)

    def search(self, **call: Any) -> None:
        names = ("storage", "sampler", "seed")
        known = {name: self.arguments[name] for name in names if name in self.arguments}
        study = Study(self.arguments["study"], direction="maximize", **known)
        study.updates.fail_left_running()
        study.asker.propose(lambda hp, proposal: hp.Float("lr", 0.1, 1.0))
        study.close()

    def summary(self) -> dict[str, Any]:
        return {"study": "s", "n_trials": {"complete": 4}, "best": None, "plans": []}


@pytest.fixture
def run(paceline: Any) -> Callable[..., tuple[Any, str]]:
    """Run a command in this process; one that hangs is ended."""

    def hangs(*_: Any) -> None:
        raise TimeoutError("the command hangs")

    def run(*words: str) -> tuple[Any, str]:
        before = signal.signal(signal.SIGALRM, hangs)
        signal.alarm(PATIENCE)
        try:
            done = paceline(*words)
        except BaseException as error:
            return f"{type(error).__name__}: {error}", "it raised"
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        return done.code, done.err

    return run


READING = [["best", "s"], ["trials", "s"], ["trials", "s", "--json"], ["trials", "s", "--csv"]]


@sizes(30, 4000)
def test_a_changed_journal(run, study, n):
    tally, commands = Tally(), itertools.cycle([*READING, ["export", "s"], ["repair", "s"]])
    for at, (change, draw) in enumerate(mutations(n, 1, changed_lines)):
        JOURNAL.write_bytes(change(study, draw))
        words = next(commands)
        tally.count(*run(*words), f"mutation {at}, {words}")
        for path in Path("runs/s").glob("journal.log.*"):
            path.unlink()
    tally.finish("journal")


@sizes(30, 1500)
def test_a_changed_description_of_a_study(run, study, n):
    tally, commands = Tally(), itertools.cycle(READING)
    for at in range(n):
        JOURNAL.write_bytes(changed_meta(study, random.Random(f"meta {at}")))
        words = next(commands)
        tally.count(*run(*words), f"mutation {at}, {words}")
    tally.finish("meta")


@sizes(10, 1500)
def test_a_changed_study_that_goes_on(run, study, monkeypatch, n):
    """Half of the changes are of the description, which has the arguments of the search."""
    from paceline.cli import running

    monkeypatch.setattr(running, "prepare", prepared)
    tally = Tally()
    for at, (change, draw) in enumerate(mutations(n, 2, changed_meta, changed_meta, changed_lines)):
        JOURNAL.write_bytes(change(study, draw))
        tally.count(*run("resume", "s", "--quiet"), f"mutation {at}")
    tally.finish("resume")


def prepared(command: Any, view: Any, on_hang: Any = None) -> tuple[Any, dict[str, Any]]:
    """As ``paceline resume`` prepares a tuner, which opens the study and trains nothing."""
    from paceline.cli import user_file

    user = user_file.load(command.path, command.function)
    tuner = OpensTheStudy(user.build, study=command.study, storage=command.storage, **command.tuner)
    return tuner, {"timeout": None, **command.search}


@sizes(40, 1000)
def test_changed_saved_models(run, study, n):
    tally, manifest = Tally(), MANIFEST.read_bytes()
    for at, (change, draw) in enumerate(mutations(n, 3, changed_json)):
        MANIFEST.write_bytes(change(manifest, draw))
        tally.count(*run("export", "s", "-o", "out.keras"), f"mutation {at}")
    tally.finish("saved models")


@sizes(20, 2000)
def test_a_changed_result_of_a_benchmark(run, result, n):
    tally = Tally()
    commands = itertools.cycle([["--json"], [], ["-o", "page.html"]])
    for at, (change, draw) in enumerate(mutations(n, 4, changed_json)):
        Path("other.json").write_bytes(change(result, draw))
        files = ["other.json"] if at % 3 else ["other.json", "bench.json"]
        words = ["bench", "--merge", *files, *next(commands)]
        tally.count(*run(*words), f"mutation {at}, {words}")
    tally.finish("results of benchmarks")


@pytest.mark.slow
def test_changed_files_read_by_processes(study, result, child_environment):
    tally, manifest = Tally(), MANIFEST.read_bytes()
    commands = [*READING, ["repair", "s"], ["export", "s", "-o", "out.keras"]]
    for at in range(200):
        draw = random.Random(f"process {at}")
        JOURNAL.write_bytes(study)
        MANIFEST.write_bytes(manifest)
        if at % 4 == 0:
            change = changed_json if at % 8 else changed_bytes
            Path("other.json").write_bytes(change(result, draw))
            words = ["bench", "--merge", "other.json"]
        elif at % 4 == 1:
            change = changed_json if at % 8 == 1 else changed_bytes
            MANIFEST.write_bytes(change(manifest, draw))
            words = commands[-1]
        else:
            change = changed_lines if at % 8 < 4 else changed_bytes
            JOURNAL.write_bytes(change(study, draw))
            words = draw.choice(commands)
        done = subprocess.run(
            [sys.executable, "-m", "paceline", *words],
            env={**os.environ, **child_environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        tally.count(done.returncode, done.stderr, f"mutation {at}, {words}")
    tally.finish("processes")
