"""Searches on real nodes: the histories of one machine, whatever dies."""

from __future__ import annotations

import contextlib
import os
import pickletools
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import paceline
from clusters import X, Y, build_digits, build_families, records, searched, trials
from on_ray.hook import Hook
from on_ray.processes import family
from paceline import datasets
from paceline.executor.ray.session import RaySession

#: Long enough for several rounds of each worker.
LONG = {"n_trials": 12, "epochs": 8}


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    return Hook(monkeypatch)


def on(nodes: Any, **settings: Any) -> paceline.Ray:
    return paceline.Ray(address=nodes.address, **settings)


def same_weights(found: paceline.Tuner, alone: paceline.Tuner) -> None:
    ours, theirs = (tuner.best_model().get_weights() for tuner in (found, alone))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)


def test_two_nodes_search_as_one_machine_does(nodes: Any) -> None:
    local = searched("packed", "local", build_families)
    notes: list[str] = []
    found = searched(on(nodes), "nodes", build_families, notes=notes)
    assert records(found) == records(local)
    assert len({trial.worker for trial in trials(found)}) == 2
    assert any("usage statistics" in note for note in notes)
    same_weights(found, local)


def test_sixty_four_trials_of_digits_on_one_two_and_three_nodes(nodes: Any) -> None:
    (x, y), validation = datasets.digits()
    search = {"x": x, "y": y, "validation_data": validation, "n_trials": 64, "batch_size": 128}
    alone = records(searched("packed", "local", build_digits, search=search, parallel_trials=8))
    for n in (1, 2, 3):
        nodes.mend(n)
        found = searched(on(nodes), f"on-{n}", build_digits, search=search, parallel_trials=8)
        assert records(found) == alone
        assert len({trial.worker for trial in trials(found)}) == n


def test_arrays_are_stored_once_for_all_workers(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray sends what is stored to each node once, and workers of a node share it."""
    import ray

    from paceline.executor.ray.serialization import SerializedJobFactory  # imports ray

    stored, put = [], ray.put

    def storing(value: Any, **options: Any) -> Any:
        stored.append(value)
        return put(value, **options)

    monkeypatch.setattr(ray, "put", storing)
    many = np.tile(X, (30_000, 1))  # 23 MB
    labels = np.tile(Y, 30_000)
    search = {"x": many, "y": labels, "n_trials": 8, "epochs": 1, "batch_size": 65536}
    found = searched(on(nodes, workers=2), "nodes", search=search)
    assert len({trial.worker for trial in trials(found)}) == 2
    assert sum(isinstance(value, SerializedJobFactory) for value in stored) == 1


def test_each_worker_opens_a_data_set_that_cannot_be_sent(nodes: Any) -> None:
    def search() -> dict[str, Any]:
        return {"x": open_data, "y": None, "validation_data": (X[:16], Y[:16]), "batch_size": None}

    found = searched(on(nodes), "opened", search=search())
    assert records(found) == records(searched("packed", "local", search=search()))
    assert len({trial.worker for trial in trials(found)}) == 2


def open_data(hp: Any) -> Any:
    """A data set with a lock, which no process can send to another."""

    class Locked(keras.utils.PyDataset):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

        def __len__(self) -> int:
            return 3

        def __getitem__(self, at: int) -> Any:
            with self.lock:
                return X[16 * at :][:16], Y[16 * at :][:16]

    return Locked()


def test_a_cluster_of_this_machine_is_there_for_one_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It listens on the loopback, sends no statistics, serves no dashboard, and is gone then."""
    import ray

    for name in ("RAY_ADDRESS", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    seen: list[Any] = []
    close = RaySession.close

    def closed(session: RaySession) -> None:
        context = ray.get_runtime_context()
        statistics = os.environ["RAY_USAGE_STATS_ENABLED"]
        dashboard = ray._private.worker.global_worker.node.webui_url
        seen.append((session.started, context.gcs_address, statistics, dashboard))
        seen.append(listening())
        close(session)

    monkeypatch.setattr(RaySession, "close", closed)
    found = searched(paceline.Ray(workers=1, cpus=1), "own")
    (started, address, statistics, dashboard), addresses = seen
    assert started and address.startswith("127.0.0.1:") and statistics == "0" and not dashboard
    assert addresses == {"127.0.0.1"}
    assert not ray.is_initialized() and "RAY_USAGE_STATS_ENABLED" not in os.environ
    assert records(found) == records(searched("packed", "local"))
    for file in Path("runs/own").rglob("*"):
        assert file.is_dir() or not is_a_pickle(file), file


def listening() -> set[str]:
    """The addresses that this process and those that come from it listen on."""
    sockets = set()
    for pid in family(os.getpid()):
        with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile, or closed a file
            sockets |= {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:  # LISTEN
                host = local.partition(":")[0]  # words of four bytes, the lowest first
                mapped = table == "tcp" or host[16:24] == "FFFF0000"
                last = socket.inet_ntoa(bytes.fromhex(host[-8:])[::-1])
                found.add(last if mapped else f"not IPv4: {host}")
    return found


def is_a_pickle(file: Path) -> bool:
    try:
        return bool(list(pickletools.genops(file.read_bytes())))
    except Exception:  # genops raises many kinds
        return False


@pytest.mark.parametrize("order", [1, 6], ids=["while it compiles", "while it trains"])
def test_a_worker_that_is_killed_is_replaced(nodes: Any, hook: Hook, order: int) -> None:
    hook.at_order(order, hook.kill)
    hook.hold_answers_until(3)  # a worker may take longer to start than the search takes
    notes: list[str] = []
    found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    assert hook.done and any("is gone" in note for note in notes), notes
    assert len(hook.pids) == 3
    assert records(found) == records(searched("packed", "local", search=LONG))


def test_a_node_that_dies_takes_nothing_with_it_and_a_new_one_trains(
    nodes: Any, hook: Hook
) -> None:
    hook.at_order(5, lambda host: nodes.replace())
    found = searched(on(nodes), "nodes", search=LONG)
    assert hook.done
    alone = searched("packed", "local", search=LONG)
    assert records(found) == records(alone)
    same_weights(found, alone)


def test_asha_with_callbacks_while_workers_die(nodes: Any, hook: Hook) -> None:
    """A paused trial's state is with the search; a trial's callbacks go where it goes."""

    def search() -> dict[str, Any]:
        halve = keras.callbacks.ReduceLROnPlateau("val_loss", patience=1, min_delta=0.1)
        return {"callbacks": [halve], "n_trials": 10, "epochs": 4}

    hook.at_order(8, hook.kill)
    found = searched(on(nodes), "nodes", pruner="asha:1:2", search=search())
    assert hook.done
    alone = searched("packed", "local", search=search())
    for trial in trials(found):
        whole = alone.history(trial.number)
        assert trial.history == {name: values[: trial.epochs] for name, values in whole.items()}
    assert {trial.state for trial in trials(found)} == {"complete", "pruned"}


def test_files_of_callbacks_come_from_nodes_that_die(
    nodes: Any, hook: Hook, tmp_path: Path
) -> None:
    def search() -> dict[str, Any]:
        kept = keras.callbacks.ModelCheckpoint("best.keras", "val_loss", save_best_only=True)
        return {**LONG, "callbacks": [keras.callbacks.CSVLogger("log.csv"), kept]}

    hook.at_order(5, lambda host: nodes.replace())
    searched(on(nodes), "nodes", search=search())
    assert hook.done
    searched("packed", "local", search=search())
    for number in range(12):
        ours, theirs = (Path("runs") / name / "trials" / str(number) for name in ("nodes", "local"))
        assert (ours / "log.csv").read_bytes() == (theirs / "log.csv").read_bytes()
        one, other = (keras.models.load_model(path / "best.keras") for path in (ours, theirs))
        for weights, expected in zip(one.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(weights, expected)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_the_search_goes_on(
    number: signal.Signals, nodes: Any, hook: Hook
) -> None:
    """Ray's own handler of SIGTERM would end the process without a checkpoint."""
    usual = signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler
    before = signal.signal(number, usual)
    try:
        hook.at_order(5, lambda host: os.kill(os.getpid(), number))
        with pytest.raises(KeyboardInterrupt, match="^$"):
            searched(on(nodes), "nodes", search=LONG)
        assert signal.getsignal(number) is usual
    finally:
        signal.signal(number, before)
    notes: list[str] = []
    found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes), notes
    assert records(found) == records(searched("packed", "local", search=LONG))
