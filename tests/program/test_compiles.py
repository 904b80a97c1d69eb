"""The number of compiles is a promise: one per group, slot count and role; widened once at most."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import keras
import pytest
from keras import layers

from paceline.data.arrays import prepare
from paceline.executor.base import Answer, EpochReport, Job, PackOptions, SearchData
from paceline.executor.local import LocalExecutor
from paceline.executor.model_builder import ModelBuilder
from paceline.pack.plan import vectorized
from paceline.search_space import HyperParameters
from zoo.samples import vectors

RATES = (0.1, 0.2, 0.3, 0.4, 0.15)


def build(hp: HyperParameters) -> keras.Model:
    rate, l2 = hp.Float("rate", 0.0, 0.5, default=0.25), hp.Float("l2", 0.0, 1.0, default=0.125)
    model = keras.Sequential(
        [
            layers.Input((12,)),
            layers.Dense(hp.Int("units", 2, 8), kernel_regularizer=keras.regularizers.L2(l2)),
            layers.Dropout(rate),
            layers.Dense(4, "softmax"),
        ]
    )
    optimizer = keras.optimizers.SGD(0.1, momentum=hp.Float("momentum", 0.1, 0.9))
    model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


class Search:
    """An executor on 50 training and 23 validation examples: both have a smaller last batch."""

    def __init__(self, *, validate: bool = True, in_order: bool = False, **options: Any) -> None:
        validation = prepare(*vectors(23, 2)) if validate else None
        self.local = LocalExecutor(
            SearchData(prepare(*vectors(50, 1)), validation),
            PackOptions(**options),
            in_order=in_order,
        )
        self.epochs: dict[int, int] = {}
        self._n = 0

    def train(self, *trials: dict[str, float]) -> dict[str, int]:
        """Trains trials to their end; what has been compiled so far."""
        for hparams in trials:
            self.submit(hparams, len(trials))
        while self.local.busy:
            self.local.advance(self._heard, lambda: False, self._failed)
        counts = self.local.program_counts()
        counts["roles"] = counts["compiled"] + counts["from_cache"]
        return counts

    def submit(self, hparams: dict[str, float], expected: int) -> None:
        """Takes a trial in; so many are expected, those that wait included."""
        model = ModelBuilder(build)(HyperParameters(values=hparams), self._n)
        self.local.demand.expected = expected
        self.local.submit(Job(self._n, self._n, 2, 16, model, rebuild=lambda: None))
        self._n += 1

    def _heard(self, report: EpochReport) -> Answer:
        self.epochs[report.number] = report.epoch
        return "continue"

    def _failed(self, number: int, error: BaseException) -> None:
        raise error


def rated(*rates: float, **others: float) -> list[dict[str, float]]:
    return [{"rate": rate, **others} for rate in rates]


@pytest.mark.parametrize(
    ("validate", "plan"),
    [
        (True, "vectorized"),
        (False, "sequential"),
        pytest.param(True, "sequential", marks=pytest.mark.slow),
        pytest.param(False, "vectorized", marks=pytest.mark.slow),
    ],
)
def test_one_compile_per_role(plan: str, validate: bool) -> None:
    search = Search(validate=validate, slots=2 if plan == "vectorized" else 1, plan=plan)
    counts = search.train(*rated(*RATES))
    assert counts["distinct"] == 1
    assert counts["roles"] == (2 if validate else 1)
    assert search.epochs == dict.fromkeys(range(5), 2)


@pytest.mark.slow
def test_each_structure_has_its_own() -> None:
    trials = [*rated(*RATES[:3], units=2), *rated(*RATES[:3], units=3), *rated(0.0, 0.0, units=2)]
    counts = Search(slots=2).train(*trials)
    assert counts["distinct"] == 3  # a dropout of rate 0 is none
    assert counts["roles"] == 6


def test_the_next_program_compiles_while_this_one_trains(monkeypatch) -> None:
    search, compile_ = Search(validate=False, slots=2), vectorized.compile_in_background
    heard, started, in_time = threading.Event(), [], []
    each = 1

    def second_waits(*args: Any, **options: Any) -> Future[Any]:
        """The second program is not there before a trial of the first has trained an epoch."""
        found, late = compile_(*args, **options), Future()
        started.append(found)
        if len(started) <= each:
            return found

        def wait() -> None:
            in_time.append(heard.wait(60))
            late.set_result(found.result())

        threading.Thread(target=wait).start()
        return late

    def hear(report: EpochReport) -> Answer:
        assert len(started) == 2 * each  # both have begun to compile before anything is trained
        search.epochs[report.number] = report.epoch
        heard.set()
        return "continue"

    monkeypatch.setattr(vectorized, "compile_in_background", second_waits)
    monkeypatch.setattr(search, "_heard", hear)
    search.train(*rated(*RATES[:3], units=2), *rated(*RATES[:3], units=3))
    assert in_time == [True] * each
    assert search.epochs == dict.fromkeys(range(6), 2)


def test_a_program_that_is_known_compiles_while_others_are_built() -> None:
    search = Search(validate=False, slots=2)
    search.local.demand.continuous = True
    asked = []
    for trial in [*rated(*RATES[:2], units=2), *rated(*RATES[:2], units=3), *rated(0.3, units=2)]:
        search.submit(trial, expected=40)
        asked.append(search.local.compiles[1])
    assert asked == [0, 0, 0, 0, 1]
    counts = search.train()
    assert counts["distinct"] == counts["roles"] == 2


def test_a_program_that_lacks_an_input_is_compiled_again_though_it_came_early() -> None:
    search = Search(validate=False, slots=2)
    search.local.demand.continuous = True
    known = [*rated(*RATES[:2], units=2), *rated(0.1, units=3), *rated(0.3, units=2)]
    counts = search.train(*known, {"rate": 0.1, "units": 2, "momentum": 0.7})
    assert counts["distinct"] == 2
    assert counts["roles"] == 3
    assert search.epochs == dict.fromkeys(range(5), 2)


def test_widening_happens_once() -> None:
    search = Search(slots=2)
    assert search.train(*rated(*RATES[:3]))["roles"] == 2
    # The regularizer acts in both roles, dropout and momentum in training alone.
    widened = search.train(*rated(*RATES[:2], l2=0.5))["roles"]
    assert 2 < widened <= 4
    search.train(*rated(*RATES[:2], momentum=0.5), *rated(*RATES[:2], momentum=0.7, l2=0.9))
    counts = search.train(*rated(0.35, l2=0.001, momentum=0.3))
    assert counts["distinct"] == 1
    assert counts["roles"] <= 4


def test_trials_alike_in_all_but_the_seed_share_one_compile() -> None:
    counts = Search(slots=2).train(*rated(0.2, 0.2, 0.2))
    assert (counts["distinct"], counts["roles"]) == (1, 2)


@pytest.mark.slow
def test_trials_in_order_are_compiled_when_slots_are_full() -> None:
    """The first three of a grid say little of the rest, and look like all there is."""
    search = Search(slots=8, in_order=True)
    counts = search.train(*rated(0.2, 0.2, 0.2, 0.2, 0.4))
    assert (counts["distinct"], counts["roles"]) == (1, 2)


def counted(code: str, environment: dict[str, str], folder: Path, *words: str) -> dict[str, int]:
    """The counts of programs that another process prints at its end, as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


_CHILD = """
import json, sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from program.test_compiles import RATES, Search, rated
from paceline.program.compilation_cache import persistent_cache
with persistent_cache():
    counts = Search(slots=2).train(*rated(*RATES[:3], units=5), *rated(0.0, units=5))
print(json.dumps(counts))
"""


@pytest.mark.slow
def test_a_second_process_compiles_nothing(
    cache_folder: Path, child_environment: dict[str, str]
) -> None:
    first, second = (
        counted(_CHILD, child_environment, Path.cwd(), str(Path(__file__).parents[1]))
        for _ in range(2)
    )
    alike = {"distinct": 2, "structures": 2, "roles": 4}
    assert first == {**alike, "compiled": 4, "from_cache": 0}
    assert second == {**alike, "compiled": 0, "from_cache": 4}


_STRUCTURES = """
import json, sys
import keras
import numpy as np
import paceline

def build(hp):
    model = keras.Sequential([keras.layers.Input((8,))])
    for _ in range(hp.Int("layers", 1, 2)):
        model.add(keras.layers.Dense(8, hp.Choice("activation", ["relu", "tanh"])))
    model.add(keras.layers.Dense(1))
    model.compile(keras.optimizers.Adam(hp.Float("lr", 1e-4, 1e-1, sampling="log")), loss="mse")
    return model

rng = np.random.default_rng(1)
x, y = rng.normal(size=(64, 8)).astype("float32"), rng.normal(size=(64, 1)).astype("float32")
tuner = paceline.Tuner(build, objective="loss", seed=1, sampler="random", share_widths=False)
tuner.search(x, y, epochs=2, n_trials=40, verbose=0)
print(json.dumps(tuner.summary()["programs"]))
"""


@pytest.mark.slow
def test_a_search_over_structures_that_comes_again_compiles_nothing(
    cache_folder: Path, child_environment: dict[str, str], tmp_path: Path
) -> None:
    """What it learnt of its models is on disk, and must not make other programs of them."""

    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    first, second = (counted(_STRUCTURES, child_environment, folder) for folder in folders)
    assert first["distinct"] == 4 and first["from_cache"] == 0
    assert second == {**first, "compiled": 0, "from_cache": first["compiled"]}
