"""A search is the same search, whatever is in the cache, and as a stopped one that goes on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import optuna
import pytest

import paceline
import toys
from epoch_reports import observe_reports
from paceline.executor import pack_executor
from paceline.executor.base import EpochReport
from paceline.executor.training.rounds import EpochRound, PackRounds
from paceline.pack.pack import Pack
from paceline.pack.plan.vectorized import VectorizedProgram
from stopping import all_of, by_epochs, hears_signals  # noqa: F401 - a fixture

X, Y = toys.data(48)


def model_of(*hidden: Any, lr: float) -> keras.Model:
    layers = [keras.Input((toys.FEATURES,)), *hidden]
    layers.append(keras.layers.Dense(toys.CLASSES, activation="softmax"))
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.SGD(lr), "sparse_categorical_crossentropy")
    return model


def tuner_of(build: Any, study: str, **given: Any) -> paceline.Tuner:
    """A random search in one plan, with a number of slots that is not chosen."""
    settings = {
        "sampler": "random",
        "parallel_trials": 4,
        "plan": "vectorized",
        "objective": "loss",
    }
    return paceline.Tuner(build, study=study, **{**settings, **given})


def from_the_cache(self: PackRounds, program: Any, meanwhile: Callable[[], bool]) -> None:
    program.roles()


def from_the_compiler(self: PackRounds, program: Any, meanwhile: Callable[[], bool]) -> None:
    """Waits for so long that everything that may be asked for meanwhile is."""
    self.compiling = True
    while meanwhile():
        pass
    self.compiling = False
    program.roles()


def build_of_three(hp: Any) -> keras.Model:
    """A model of one of three programs."""
    units = hp.Choice("units", [4, 8, 16])
    hidden = [
        keras.layers.Dense(units, activation="relu"),
        keras.layers.Dropout(hp.Float("rate", 0.1, 0.5)),
    ]
    return model_of(*hidden, lr=hp.Float("lr", 1e-6, 1.0, sampling="log"))


Trials = list[tuple[int, float, float]]  # units, learning rate, dropout rate
#: The last one finds a slot while the second program is compiled.
LATE: Trials = [
    (n, lr, 0.1 + 0.01 * i)
    for i, (n, lr) in enumerate(
        zip([4] * 3 + [8] * 13 + [4], [0.5, 0.4, 0.3] + [0.1] * 13 + [1e-6], strict=True)
    )
]
#: Meanwhile comes one with another dropout rate, which becomes an input then, and a third program.
WIDER: Trials = [
    (n, lr, rate)
    for n, lr, rate in zip(
        [4] * 3 + [8] * 17 + [8, 16] + [8] * 8,
        [0.5, 0.4, 0.3] + [0.1 + 0.001 * i for i in range(27)],
        [0.2] * 20 + [0.4, 0.3] + [0.2] * 8,
        strict=True,
    )
]


def pruned(study: str, trials: Trials) -> list[Any]:
    """The trials of a search with a pruner."""
    pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
    tuner = tuner_of(build_of_three, study, share_widths=False, pruner=pruner)
    tuner.enqueue([{"units": n, "lr": lr, "rate": rate} for n, lr, rate in trials])
    tuner.search(X, Y, epochs=3, batch_size=16, n_trials=len(trials), verbose=0)
    return all_of(tuner)


@pytest.mark.slow
def test_a_pruner_decides_alike_whether_or_not_programs_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, fresh_folder: Path
) -> None:
    found = []
    for wait in (from_the_cache, from_the_compiler):
        monkeypatch.setattr(PackRounds, "_wait_for", wait)
        found.append(pruned(wait.__name__, LATE))
    assert {trial[0] for trial in found[0]} == {"complete", "pruned"}
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "trials",
    [pytest.param(LATE, id="late"), pytest.param(WIDER, id="wider")],
)
def test_a_search_that_is_stopped_while_it_waits_for_a_program_goes_on_alike(
    monkeypatch: pytest.MonkeyPatch, fresh_folder: Path, trials: Trials
) -> None:
    """Each round trains the same trials, in the same slots of programs with the same inputs."""
    waited: list[Any] = []
    rounds: list[Any] = []

    def stops(self: PackRounds, program: Any, meanwhile: Callable[[], bool]) -> None:
        self.compiling = True
        while meanwhile():
            pass
        if program not in waited:
            waited.append(program)
            if len(waited) == 2:
                os.kill(os.getpid(), signal.SIGINT)
                meanwhile()
        self.compiling = False
        program.roles()

    init = EpochRound.__init__

    def noting(self: EpochRound, packs: Any, threads: Any) -> None:
        rounds.append(
            [
                (group.name, [trial and trial.number for trial in pack.slots], pack.program.lifted)
                for group, pack in packs
            ]
        )
        init(self, packs, threads)

    monkeypatch.setattr(EpochRound, "__init__", noting)
    with monkeypatch.context() as patch:
        patch.setattr(PackRounds, "_wait_for", stops)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            pruned("stopped", trials)
    assert len(waited) == 2
    found, stopped = pruned("stopped", trials), rounds[:]
    rounds.clear()
    assert pruned("whole", trials) == found
    assert rounds == stopped


@pytest.mark.slow
def test_a_family_none_of_whose_trials_is_under_way_keeps_its_program(
    monkeypatch: pytest.MonkeyPatch, fresh_folder: Path
) -> None:
    def build(hp: Any) -> keras.Model:
        units = hp.Int("units", 2, 8)
        hidden = [keras.layers.Dense(units) for _ in range(hp.Int("layers", 1, 2))]
        return model_of(*hidden, lr=hp.Float("lr", 1e-3, 1e-1, sampling="log"))

    depths = [1] * 2 + [2] * 16 + [1] * 2  # the last are not asked for when the first have ended
    ended: set[int] = set()

    def stop(one: EpochReport) -> None:
        if one.epoch == 2:
            ended.add(one.number)
        if {0, 1} <= ended:
            os.kill(os.getpid(), signal.SIGINT)

    def searched(study: str) -> paceline.Tuner:
        tuner = tuner_of(build, study, seed=1, parallel_trials=2, share_widths=True)
        rng = np.random.default_rng(0)
        tuner.enqueue(
            [
                {"layers": n, "units": int(rng.integers(2, 9)), "lr": 0.01 + 0.001 * i}
                for i, n in enumerate(depths)
            ]
        )
        tuner.search(X, Y, epochs=2, batch_size=16, n_trials=len(depths), verbose=0)
        return tuner

    with monkeypatch.context() as patch:
        by_epochs(patch)
        observe_reports(patch, after=stop)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            searched("stopped")
    restored, original = [], pack_executor.group_of

    def noted(grouper: Any, was: Any, example: Any) -> Any:
        restored.append((was.epochs, original(grouper, was, example)))
        return restored[-1][1]

    monkeypatch.setattr(pack_executor, "group_of", noted)
    found = searched("stopped")
    idle = [group for epochs, group in restored if not epochs]
    assert idle and None not in idle
    assert all_of(found) == all_of(searched("whole"))


@pytest.mark.slow
def test_a_second_program_has_the_same_slots_however_fast_the_device_is(
    monkeypatch: pytest.MonkeyPatch, fresh_folder: Path
) -> None:
    """All its numbers are continuous, yet one value of them makes another program."""

    def build(hp: Any) -> keras.Model:
        n = 2 if hp.Float("x", 0.0, 1.0) > 0.85 else 1
        return model_of(
            *(keras.layers.Dense(4, activation="relu") for _ in range(n)),
            lr=hp.Float("lr", 1e-3, 1e-1, sampling="log"),
        )

    init, slots = VectorizedProgram.__init__, {}

    def noting(self: VectorizedProgram, *arguments: Any, **others: Any) -> None:
        init(self, *arguments, **others)
        slots[study].append(self.n_slots)

    run_epoch = Pack.run_epoch

    def slow(self: Pack) -> Any:
        time.sleep(0.2)
        return run_epoch(self)

    monkeypatch.setattr(VectorizedProgram, "__init__", noting)
    for study, device in (("fast", run_epoch), ("slow", slow)):
        slots[study] = []
        monkeypatch.setattr(Pack, "run_epoch", device)
        # By this seed, of draws 0 to 15 only draw 8 is of the second program; 17 and 18 are, too.
        tuner = tuner_of(build, study, seed=34)
        tuner.search(X, Y, epochs=3, batch_size=16, n_trials=22, verbose=0)
    assert slots["fast"] == slots["slow"]
    assert len(slots["fast"]) == 2
