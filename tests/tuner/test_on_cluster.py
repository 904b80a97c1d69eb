"""Searches on several machines: trials are what they are on one, whatever becomes of machines."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest

import clusters
import paceline
from clusters import (
    CASES,
    DATA,
    InProcessCluster,
    build,
    build_families,
    build_grid,
    differences,
    records,
    searched,
    trials,
)
from in_process_pool import InProcessPool
from marks import slow_where
from paceline.executor.local import LocalExecutor
from paceline.executor.remote import driver
from paceline.executor.remote.driver import RemoteExecutor
from paceline.pack.callbacks import remote_files
from paceline.study.timeline import read_timelines
from paceline.tuner.search.loop import EpochReports
from stopping import by_epochs, hears_signals  # noqa: F401


@pytest.mark.parametrize("n", slow_where([1, 3], lambda n: n != 3))
def test_a_random_search_has_the_histories_of_one_machine(n: int) -> None:
    local, found = searched("packed", "local"), searched(InProcessCluster(n), "cluster")
    assert records(found) == records(local)
    for ours, theirs in zip(
        found.best_model().get_weights(), local.best_model().get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    workers = {trial.worker for trial in trials(found)}
    assert workers == {f"host-{at}" for at in range(n)}
    assert "worker" in found.results() and "worker" not in local.results()


@pytest.mark.slow
def test_the_slot_timeline_has_the_workers_of_a_cluster() -> None:
    searched(InProcessCluster(2), "cluster")
    searched("packed", "local")
    (found,), (local,) = (read_timelines(Path("runs") / name) for name in ("cluster", "local"))
    assert {stay.worker for stay in found.stays} == {"host-0", "host-1"}
    assert {stay.worker for stay in local.stays} == {None}
    packs = {(stay.pack, stay.worker) for stay in found.stays}
    assert len({pack for pack, _ in packs}) == len(packs), "a pack is of one worker"


@pytest.mark.parametrize("sampler", slow_where(["qmc", "tpe", "cmaes"], lambda name: name != "tpe"))
def test_samplers_are_asked_and_told_on_a_cluster(sampler: str) -> None:
    """What one that learns proposes depends on the order of the results; qmc learns nothing."""
    found = searched(InProcessCluster(2), "cluster", sampler=sampler, search={"n_trials": 14})
    assert [trial.state for trial in trials(found)] == ["complete"] * 14
    rates = {trial.hparams["rate"] for trial in trials(found)}
    assert len(rates) == 14 and all(1e-3 <= rate <= 1e-1 for rate in rates)
    if sampler == "qmc":
        local = searched("packed", "local", sampler=sampler, search={"n_trials": 14})
        assert records(found) == records(local)


class Slow(InProcessPool):
    """Machines that come one by one, and answer when the search has asked for all it wants."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._late = [self._events.pop() for _ in range(len(self._events) - 1)]
        self._waits = 0

    def wait(self, seconds: float) -> list[Any]:
        self._waits += 1
        if self._waits % 5 == 0 and self._late:
            return [self._late.pop()]
        return super().wait(seconds) if self._waits % 3 == 0 else []


@pytest.mark.slow
@pytest.mark.parametrize("pool", slow_where([InProcessPool, Slow], lambda pool: pool is Slow))
@pytest.mark.parametrize(
    "make", slow_where([build_families, build_grid], lambda make: make is build_families)
)
def test_families_and_grids_have_the_histories_of_one_machine(
    make: Any, pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "InProcessPool", pool)
    sampler = "grid" if make is build_grid else "random"
    local = searched("packed", "local", make, sampler=sampler)
    found = searched(InProcessCluster(2), "cluster", make, sampler=sampler)
    assert records(found) == records(local)


FAULTS = ("before", "after", "late", None, None)


def random_faults(seed: int, most: int) -> Any:
    """Faults at random rounds of random machines, so many at most."""
    rng, left = random.Random(seed), [most]

    def fault(host: str, number: int) -> Any:
        found = rng.choice(FAULTS) if left[0] else None
        left[0] -= found is not None
        return found

    return fault


@pytest.mark.parametrize("seed", slow_where(range(3), bool))
def test_no_death_of_a_machine_shows_in_any_history(seed: int) -> None:
    """Before and after it has trained, and with an answer that comes after it was given up."""
    rng, notes = random.Random(seed), []
    cluster = InProcessCluster(3, random_faults(seed, 12), rng.choice)
    found = searched(cluster, "cluster", notes=notes)
    assert records(found) == records(searched("packed", "local"))
    assert any("lost worker" in note and "continue on other workers" in note for note in notes)


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines answer after every epoch, with the states of their trials."""
    monkeypatch.setattr(driver, "_ROUND", 0.0)
    monkeypatch.setattr(driver, "_STATES", 0.0)


@pytest.mark.slow
@pytest.mark.usefixtures("short_rounds")
def test_sixty_deaths_at_random_rounds_show_in_no_history() -> None:
    """`make test-ray` runs it too, beside its few real deaths."""
    rng, deaths, most = random.Random(0), 0, 0

    def fault(host: str, number: int) -> Any:
        nonlocal deaths
        found = rng.choice(FAULTS) if deaths < most else None
        deaths += found is not None
        return found

    alone = {
        case: searched("packed", f"{case}-local", make, search=search)
        for case, (make, _, search) in CASES.items()
    }
    while deaths < 60:
        for case, (make, tuner, search) in CASES.items():
            most += 15
            cluster = InProcessCluster(3, fault, rng.choice)
            found = searched(cluster, f"{case}-{most}", make, search=search, **tuner)
            assert differences(found, alone[case]) == [], (case, most)


@pytest.mark.slow
def test_asha_pauses_on_one_machine_and_promotes_on_another() -> None:
    search = {"epochs": 4, "n_trials": 12}
    cluster = InProcessCluster(2, choose=random.Random(0).choice)
    found = searched(cluster, "cluster", pruner="asha:1:3", search=search)
    taken: dict[int, str] = {}
    moved = []
    for host, order in cluster.pool.orders:
        for each in order.submit:
            number = each.spec.number
            if each.state is not None and taken.get(number, host) != host:
                moved.append(number)
        taken |= dict.fromkeys(order.take, host)
    assert moved, "some trial goes on on another machine than the one that it was paused on"
    states = {trial.state for trial in trials(found)}
    assert states == {"complete", "pruned"}
    alone = searched("packed", "local", search=search)
    for trial in trials(found):
        whole = alone.history(trial.number)
        assert trial.history == {name: values[: trial.epochs] for name, values in whole.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "search",
    [{"repeats": 2}, {"folds": 2, "validation_data": None}],
)
def test_members_of_a_trial_may_train_on_several_machines(search: dict[str, Any]) -> None:
    few = {**search, "n_trials": 3}
    local = searched("packed", "local", search=few)
    found = searched(InProcessCluster(2, random_faults(1, 4)), "cluster", search=few)
    assert records(found) == records(local)
    assert [t.runs for t in trials(found)] == [t.runs for t in trials(local)]


@pytest.mark.slow
def test_callbacks_act_where_the_trial_trains_and_survive_its_machine() -> None:
    def search() -> dict[str, Any]:
        halve = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.1)
        stop = keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=0.05)
        return {"callbacks": [halve, stop], "epochs": 6, "n_trials": 4}

    local = searched("packed", "local", search=search())
    found = searched(InProcessCluster(2, random_faults(2, 5)), "cluster", search=search())
    assert records(found) == records(local)
    assert any("learning_rate" in trial.history for trial in trials(found))


def writing(folder: Path) -> dict[str, Any]:
    """Callbacks that write below the study, to an absolute path, and to one of their own naming."""
    callbacks = [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.CSVLogger(str(folder / "absolute.csv")),
        keras.callbacks.CSVLogger("named/{trial}.csv"),
    ]
    return {"callbacks": callbacks, "epochs": 6, "n_trials": 4}


def written(folder: Path, study: str) -> dict[str, Any]:
    """What these callbacks have written, by path; of files of weights, each array by its name."""
    found: dict[str, Any] = {}

    def keep(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            array = np.asarray(item[()])
            found[name] = (array.tolist(), array.tobytes())

    for path in sorted(folder.rglob("*.csv")):
        found[str(path.relative_to(folder)).replace(study, "STUDY")] = path.read_bytes()
    for path in sorted((folder / "runs" / study).rglob("*.h5")):
        with h5py.File(path) as file:
            named = str(path.relative_to(folder)).replace(study, "STUDY")
            file.visititems(lambda name, item, of=named: keep(f"{of}:{name}", item))
    return found


def assert_same_files(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """That two calls of ``written`` gave the same; says what is another, one line each."""
    other = [
        f"{name}: {found.get(name)} instead of {expected.get(name)}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    assert not other, "\n".join([f"{len(other)} of {len(expected)} differ", *other])


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Folders: makes one the working directory, and the disk of machines is another one."""

    def enter(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        return folder

    (tmp_path / "machines").mkdir()
    monkeypatch.setattr(remote_files.tempfile, "tempdir", str(tmp_path / "machines"))
    return enter


@pytest.mark.slow
@pytest.mark.parametrize("search", slow_where([{}, {"repeats": 2}], bool))
def test_files_of_callbacks_end_on_the_machine_of_the_search(
    search: dict[str, Any], disks: Any, tmp_path: Path
) -> None:
    here = disks("local")
    searched("packed", "local", search={**writing(here), **search})
    alone = written(here, "local")
    assert len({name.split(":")[0] for name in alone}) == (4 if not search else 8) * 9
    there = disks("cluster")
    cluster = InProcessCluster(2, random_faults(2, 5), elsewhere=True)
    searched(cluster, "cluster", search={**writing(there), **search})
    assert_same_files(written(there, "cluster"), alone)
    assert list((tmp_path / "machines").iterdir()) == []


@pytest.mark.slow
def test_files_follow_a_trial_that_pauses(disks: Any) -> None:
    here = disks("local")
    local = searched("packed", "local", search=writing(here), pruner="asha:1:2")
    there = disks("cluster")
    cluster = InProcessCluster(2, random_faults(3, 4), elsewhere=True)
    found = searched(cluster, "cluster", search=writing(there), pruner="asha:1:2")
    assert {trial.state for trial in trials(found)} == {"complete", "pruned"}
    for trial in trials(found):
        log = (there / "runs" / "cluster" / "trials" / str(trial.number) / "log.csv").read_text()
        assert len(log.splitlines()) == 1 + trial.epochs
        whole = here / "runs" / "local" / "trials" / str(trial.number) / "log.csv"
        common = 1 + min(trial.epochs, local.trial(trial.number).epochs)
        assert log.splitlines()[:common] == whole.read_text().splitlines()[:common]


@pytest.mark.slow
@pytest.mark.usefixtures("short_rounds")
def test_files_of_a_search_that_was_stopped_go_on(disks: Any) -> None:
    here = disks("local")
    searched("packed", "local", search=writing(here))
    there = disks("cluster")
    first = InProcessCluster(2, elsewhere=True)
    stopped(RemoteExecutor, 8, first, "cluster", search=writing(there))
    found = searched(InProcessCluster(3, elsewhere=True), "cluster", search=writing(there))
    assert [trial.state for trial in trials(found)] == ["complete"] * 4
    assert_same_files(written(there, "cluster"), written(here, "local"))


def one_learns_the_other_not(hp: Any) -> keras.Model:
    """The loss of the second trial is soon no number."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(hp.Choice("lr", [0.01, 1e4])), "mse")
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "more"),
    slow_where(
        [(one_learns_the_other_not, {"epochs": 20}), (build, {"epochs": 20, "target_value": 0.69})],
        lambda case: case[0] is build,
    ),
)
def test_files_end_with_the_epoch_at_which_the_search_ends_a_trial(
    make: Any, more: dict[str, Any], disks: Any
) -> None:
    for name, executor in (
        ("local", "packed"),
        ("cluster", InProcessCluster(1, elsewhere=True)),
    ):
        folder = disks(name)
        searched(
            executor, name, make, search={**writing(folder), **more, "n_trials": 2}, sampler="grid"
        )
    assert_same_files(written(folder, "cluster"), written(folder.parent / "local", "local"))


class SaysItsEnd(keras.callbacks.CSVLogger):
    """Writes a line more when training ends."""

    def on_train_end(self, logs: Any = None) -> None:
        self.csv_file.write("the end\n")
        super().on_train_end(logs)


@pytest.mark.slow
def test_what_callbacks_write_at_the_end_of_the_trial_that_reaches_the_target_comes(
    disks: Any,
) -> None:
    """The search ends before it has another order for the worker."""
    for name, executor in (
        ("local", "packed"),
        ("cluster", InProcessCluster(1, elsewhere=True)),
    ):
        folder = disks(name)
        search = {
            "callbacks": [SaysItsEnd("log.csv")],
            "epochs": 20,
            "target_value": 0.69,
            "n_trials": 1,
        }
        searched(executor, name, search=search)
        (log,) = written(folder, name).values()
        assert log.endswith(b"the end\n") and len(log.splitlines()) < 20, name


@pytest.mark.slow
def test_a_log_below_the_folder_of_a_checkpoint_follows_its_trial(disks: Any) -> None:
    def search() -> dict[str, Any]:
        best = keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)
        log = keras.callbacks.CSVLogger("logs/log.csv")
        return {"callbacks": [best, log], "epochs": 6, "n_trials": 4}

    here = disks("local")
    searched("packed", "local", search=search())
    there = disks("cluster")
    searched(InProcessCluster(2, random_faults(2, 5), elsewhere=True), "cluster", search=search())
    assert_same_files(written(there, "cluster"), written(here, "local"))


def test_files_of_callbacks_of_hp_end_where_the_search_would_write_them(disks: Any) -> None:
    """Their paths differ from call to call, as with the time in them."""
    count = itertools.count()
    there = disks("cluster")
    callbacks = lambda hp: [keras.callbacks.CSVLogger(f"{next(count)}/log.csv")]  # noqa: E731
    searched(
        InProcessCluster(2, elsewhere=True),
        "cluster",
        search={"callbacks": callbacks, "epochs": 2, "n_trials": 3},
    )
    for number in range(3):
        (log,) = (there / "runs" / "cluster" / "trials" / str(number)).rglob("*.csv")
        assert len(log.read_text().splitlines()) == 3


@pytest.mark.slow
def test_a_log_that_is_appended_to_keeps_what_was_there(
    disks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "_ROUND", 0.0)
    log = keras.callbacks.CSVLogger("logs/{trial}.csv", append=True)

    def dies_early(host: str, order: int) -> str | None:
        return "after" if (host, order) == ("host-0", 3) else None

    executors = {
        "local": "packed",
        "another disk": InProcessCluster(2, elsewhere=True),
        "this disk": InProcessCluster(1, dies_early),
    }
    for name, executor in executors.items():
        folder = disks(name)
        (folder / "logs").mkdir()
        for number in range(2):
            header = "epoch,accuracy,loss,val_accuracy,val_loss"
            (folder / "logs" / f"{number}.csv").write_text(f"{header}\n99,0,0,0,0\n")
        searched(executor, name, search={"callbacks": [log], "epochs": 5, "n_trials": 2})
    for name in ("another disk", "this disk"):
        assert_same_files(
            written(folder.parent / name, name), written(folder.parent / "local", "local")
        )


@pytest.mark.slow
def test_a_file_that_cannot_be_written_is_named(disks: Any) -> None:
    there = disks("cluster")
    notes: list[str] = []

    def full(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device", str(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_files, "write_atomically", full)
        found = searched(
            InProcessCluster(2, elsewhere=True), "cluster", notes=notes, search=writing(there)
        )
    assert [trial.state for trial in trials(found)] == ["complete"] * 4
    said = [note for note in notes if "cannot be written" in note]
    assert any("No space left on device" in note and "log.csv" in note for note in said)


def stopped(executor: Any, rounds: int, *arguments: Any, **others: Any) -> None:
    """A search as by ``searched``, which SIGTERM stops in that round of an executor."""
    advance, left = executor.advance, [rounds]

    def signalled(self: Any, *given: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        advance(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        by_epochs(patch)
        patch.setattr(executor, "advance", signalled)
        with pytest.raises(KeyboardInterrupt, match="^$"):
            searched(*arguments, **others)


@pytest.mark.slow
@pytest.mark.usefixtures("short_rounds")
def test_a_search_that_was_stopped_goes_on_from_its_checkpoint() -> None:
    """Every trial is there once, with the history that it would have had."""
    stopped(RemoteExecutor, 5, InProcessCluster(2), "cluster")
    cluster, notes = InProcessCluster(3), []
    found = searched(cluster, "cluster", notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes)
    states = [s.state for _, order in cluster.pool.orders for s in order.submit]
    assert any(state is not None and state.epoch for state in states)
    assert records(found) == records(searched("packed", "local"))


@pytest.mark.slow
@pytest.mark.usefixtures("short_rounds")
def test_a_search_whose_cluster_is_gone_saves_what_it_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And goes on with it on another one."""
    wait, left = InProcessPool.wait, [8]

    def gone(self: InProcessPool, seconds: float) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise paceline.ClusterError("executor: all is gone")
        return wait(self, seconds)

    monkeypatch.setattr(InProcessPool, "wait", gone)
    with pytest.raises(paceline.ClusterError, match="^executor: all is gone$"):
        searched(InProcessCluster(2), "cluster")
    cluster, notes = InProcessCluster(3), []
    found = searched(cluster, "cluster", notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes)
    states = [s.state for _, order in cluster.pool.orders for s in order.submit]
    assert any(state is not None and state.epoch for state in states)
    assert records(found) == records(searched("packed", "local"))


def halving() -> dict[str, Any]:
    halve = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.1)
    return {"callbacks": [halve], "epochs": 8, "n_trials": 6}


GOES_ON: dict[str, tuple[bool, Any]] = {
    "another disk": (True, lambda: InProcessCluster(2, elsewhere=True)),
    "this disk": (False, lambda: InProcessCluster(2)),
    "one machine": (True, lambda: "auto"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_where(GOES_ON, lambda case: case == "this disk"))
def test_a_log_that_is_appended_to_has_no_epoch_twice_where_trials_begin_again(
    case: str, disks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No state was sent before the search stopped, so its trials begin again."""
    monkeypatch.setattr(driver, "_ROUND", 0.0)
    monkeypatch.setattr(driver, "_STATES", 1e9)
    elsewhere, executor = GOES_ON[case]

    def search(folder: Path) -> dict[str, Any]:
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "logs" / "1.csv").write_text("epoch,loss\n99,0\n")
        log = keras.callbacks.CSVLogger("logs/{trial}.csv", append=True)
        return {"callbacks": [log], "epochs": 6, "n_trials": 2}

    here = disks("local")
    searched("packed", "local", search=search(here))
    given = search(disks("cluster"))
    stopped(RemoteExecutor, 7, InProcessCluster(2, elsewhere=elsewhere), "cluster", search=given)
    begun = written(Path.cwd(), "cluster")
    assert all(len(log.splitlines()) > 2 for log in begun.values()), "there is what may come twice"
    searched(executor(), "cluster", search=given)
    assert_same_files(written(Path.cwd(), "cluster"), written(here, "local"))


#: Name -> the build, and further arguments of the search, made anew for each.
STOPPED: dict[str, tuple[Any, Any]] = {
    "random": (build, lambda: {"epochs": 8}),
    "families": (build_families, lambda: {"epochs": 8}),
    "callbacks": (build, halving),
    "repeats": (build, lambda: {"n_trials": 4, "epochs": 8, "repeats": 2}),
}


@pytest.mark.parametrize(
    "states",
    slow_where([0.0, 1e9], lambda seconds: seconds > 0),
    ids=["states of each epoch", "no states"],
)
@pytest.mark.parametrize("case", slow_where(STOPPED, lambda case: case != "random"))
@pytest.mark.slow
def test_what_a_cluster_has_begun_goes_on_on_one_machine(
    case: str, states: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs after the last state that was sent come again, and are not told twice."""
    make, search = STOPPED[case]
    monkeypatch.setattr(driver, "_ROUND", 0.0)
    monkeypatch.setattr(driver, "_STATES", states)
    saved, told = [], Counter[tuple[int, int]]()
    capture, receive = RemoteExecutor.snapshot, EpochReports.receive

    def received(self: EpochReports, report: Any) -> Any:
        told[report.number, report.epoch] += 1
        return receive(self, report)

    monkeypatch.setattr(EpochReports, "receive", received)

    def captured(self: RemoteExecutor, *arguments: Any) -> Any:
        saved.append(capture(self, *arguments))
        return saved[-1]

    monkeypatch.setattr(RemoteExecutor, "snapshot", captured)
    stopped(RemoteExecutor, 7, InProcessCluster(2), "study", make, search=search())
    groups = saved[-1].groups
    behind = [group for group in groups if group.held]
    assert bool(behind) == bool(states), "a state is as old as its trial, or there is none"
    assert any(epoch for group in groups for epoch in group.epochs.values())
    # Trials without a state catch up still when it stops.
    stopped(LocalExecutor, 2, "auto", "study", make, search=search())
    notes: list[str] = []
    found = searched("auto", "study", make, search=search(), notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes), notes
    assert not [note for note in notes if "restart as new trials" in note]
    assert set(told.values()) == {1}
    assert records(found) == records(searched("auto", "alone", make, search=search()))


@pytest.mark.parametrize("case", slow_where(STOPPED, lambda case: case != "random"))
@pytest.mark.slow
def test_what_one_machine_has_begun_goes_on_on_a_cluster(case: str) -> None:
    make, search = STOPPED[case]
    stopped(LocalExecutor, 2, "auto", "study", make, search=search())
    cluster, notes = InProcessCluster(2), []
    found = searched(cluster, "study", make, search=search(), notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes), notes
    assert not [note for note in notes if "restart as new trials" in note]
    states = [s.state for _, order in cluster.pool.orders for s in order.submit]
    assert any(state is not None and state.epoch for state in states)
    assert records(found) == records(searched("auto", "alone", make, search=search()))


@pytest.mark.slow
@pytest.mark.usefixtures("short_rounds")
def test_trials_that_were_paused_on_a_cluster_go_on_on_one_machine() -> None:
    search = {"epochs": 9, "n_trials": 9}
    asked = {"pruner": "asha:1:3", "search": search}
    stopped(RemoteExecutor, 12, InProcessCluster(2), "study", **asked)
    notes: list[str] = []
    found = searched("auto", "study", notes=notes, **asked)
    assert any("resuming from the last checkpoint" in note for note in notes), notes
    assert not [note for note in notes if "restart as new trials" in note]
    assert differences(found, searched("auto", "alone", search=search)) == []
    assert {trial.state for trial in trials(found)} == {"complete", "pruned"}


def build_eager(hp: Any) -> Any:
    """Half of its trials can only be trained by ``fit``."""
    model = build(hp)
    if hp.Boolean("eager"):
        model.run_eagerly = True
    return model


@pytest.mark.slow
def test_what_only_fit_can_train_trains_where_the_search_runs() -> None:
    search = {"n_trials": 4, "epochs": 1}
    found = searched(InProcessCluster(2), "cluster", build_eager, search=search)
    assert records(found) == records(searched("auto", "alone", build_eager, search=search))
    eager = {trial.worker for trial in trials(found) if trial.hparams["eager"]}
    others = {trial.worker for trial in trials(found) if not trial.hparams["eager"]}
    assert eager == {None} and others and None not in others


@pytest.mark.slow
def test_a_machine_that_will_go_hands_its_trials_back_and_one_that_comes_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "_ROUND", 0.0)
    cluster = InProcessCluster(2)

    def fault(host: str, number: int) -> None:
        if (host, number) == ("host-0", 1):
            cluster.pool.leave("host-0")
            cluster.pool.join()

    cluster.fault = fault
    found = searched(cluster, "cluster")
    assert records(found) == records(searched("packed", "local"))
    orders = [order for host, order in cluster.pool.orders if host == "host-0"]
    assert orders[-1].take and not orders[-1].train, "it hands back, and gets nothing more"
    assert "host-2" in {trial.worker for trial in trials(found)}


@pytest.mark.slow
def test_a_search_of_seconds_is_told_that_a_cluster_does_not_pay() -> None:
    notes: list[str] = []
    seen: list[Any] = []
    tuner = paceline.Tuner(
        build, study="short", executor=InProcessCluster(2), sampler="random", parallel_trials=2,
        plan="vectorized", objective="val_loss", on_note=notes.append, on_progress=seen.append,
    )  # fmt: skip
    tuner.search(**DATA, epochs=3, batch_size=16, n_trials=8)
    (told,) = [note for note in notes if "isn't worth it" in note]
    assert re.search(r"on each of 2 workers, plus \d+ s to start.*One such device", told)
    rows = seen[-1].workers
    assert [row.name for row in rows] == ["host-0", "host-1"]
    assert all(row.slots == 2 and row.rate and "of" in row.device for row in rows)
