"""Workers that stand still, nodes that go together or say so before, a head that is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import paceline
from clusters import records, searched, slow_elsewhere
from on_ray.hook import Hook
from on_ray.searching import LONG as KILLED
from paceline.executor.ray import pool as pool_module

#: Long enough for several rounds of each worker.
LONG = {"n_trials": 12, "epochs": 8}
SEARCHING = Path(__file__).parent / "searching.py"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Hook:
    return Hook(monkeypatch)


def on(nodes: Any) -> paceline.Ray:
    return paceline.Ray(address=nodes.address)


def same_as_local(found: paceline.Tuner, search: dict[str, Any]) -> bool:
    return records(found) == records(searched("packed", "local", search=search))


def gone(pid: int) -> bool:
    """Whether a process ends within some seconds."""
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.1)
    return False


def test_a_worker_that_stands_still_is_given_up_and_its_late_answer_does_not_count(
    nodes: Any, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call of it fails: its process is there, and so is its connection."""
    monkeypatch.setattr(pool_module, "SILENCE", 3.0)
    monkeypatch.setattr(pool_module, "_BEAT", 1.0)
    stopped: list[int] = []

    def stop(host: str) -> None:
        stopped.append(hook.pids[host])
        os.kill(stopped[0], signal.SIGSTOP)

    hook.at_order(6, stop)
    hook.when_given_up(lambda: os.kill(stopped[0], signal.SIGCONT))
    notes: list[str] = []
    found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    assert any("no heartbeat for" in note for note in notes), notes
    assert same_as_local(found, LONG)
    assert gone(stopped[0]), "it is ended for good when it goes on"


def test_a_worker_whose_order_takes_long_is_alive(
    nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may build and compile for as long as it needs: another of its threads answers."""
    monkeypatch.setattr(pool_module, "SILENCE", 2.0)
    monkeypatch.setattr(pool_module, "_BEAT", 0.5)
    notes: list[str] = []
    found = searched(on(nodes), "nodes", slow_elsewhere(4.0), search={"n_trials": 4}, notes=notes)
    assert not [note for note in notes if "is gone" in note]
    assert same_as_local(found, {"n_trials": 4})


def test_a_node_that_stands_still_longer_than_the_health_check(nodes: Any, hook: Hook) -> None:
    """Ray gives the node up; when it goes on, it and its worker end."""
    node, held = nodes.nodes[0], []

    def signalled(number: int) -> None:
        for pid in held:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(host: str) -> None:
        held.extend(nodes.processes(node))
        signalled(signal.SIGSTOP)

    hook.at_order(5, stop)
    hook.when_given_up(lambda: signalled(signal.SIGCONT))
    notes: list[str] = []
    try:
        found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    finally:
        signalled(signal.SIGCONT)
        nodes.kill(node)
    assert any("is gone" in note for note in notes), notes
    assert same_as_local(found, LONG)


def test_two_nodes_that_die_at_once_take_nothing_with_them(nodes: Any, hook: Hook) -> None:
    hook.at_order(5, lambda host: nodes.replace(2))
    notes: list[str] = []
    found = searched(on(nodes), "nodes", search=LONG, notes=notes)
    assert len([note for note in notes if "is gone" in note]) == 2, notes
    assert same_as_local(found, LONG)


def test_a_drained_node_hands_its_trials_back(
    nodes: Any, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an autoscaler or a cloud says that a machine will go: by Ray's own command."""
    from click.testing import CliRunner
    from ray.scripts.scripts import cli

    monkeypatch.setattr(pool_module, "_LOOKS", 0.1)
    drained = nodes.nodes[0]
    asked = [
        "drain-node", "--address", nodes.address, "--node-id", drained.node_id,
        "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "a test",
        "--deadline-remaining-seconds", "300",
    ]  # fmt: skip

    def drain(host: str) -> None:
        done = CliRunner().invoke(cli, asked)
        assert done.exit_code == 0, done.output

    # A node that was added just before may be slow to begin; without a worker it gives nothing.
    hook.at_order(4, drain, workers=2)
    notes: list[str] = []
    search = {"n_trials": 12, "epochs": 400}
    try:
        found = searched(on(nodes), "nodes", search=search, notes=notes)
    finally:
        nodes.kill(drained)
    assert hook.done and not [note for note in notes if "is gone" in note], notes
    assert same_as_local(found, search)
    (name,) = (name for name, orders in hook.orders.items() if orders[-1].take)
    assert not hook.orders[name][-1].train, "it gets nothing more"


def searching(address: str, *options: str) -> subprocess.Popen[str]:
    """A search of a study "killed" in a process of its own, which trains when this returns."""
    environment = {**os.environ, "PACELINE_CHECKPOINT_SECONDS": "0.3"}
    process = subprocess.Popen(
        [sys.executable, str(SEARCHING), address, "killed", *options],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "training\n", process.communicate()
    return process


def test_a_search_that_is_killed_in_a_checkpoint_goes_on(nodes: Any) -> None:
    process = searching(nodes.address, "--dies-in-checkpoint", "4")
    assert process.wait(120) == -signal.SIGKILL
    process.communicate()
    notes: list[str] = []
    found = searched(on(nodes), "killed", search=KILLED, notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes), notes
    assert same_as_local(found, KILLED)


def end_head(nodes: Any) -> None:
    """Ends a cluster's head as a machine ends whose power fails."""
    nodes.cluster.remove_node(nodes.cluster.head_node, allow_graceful=False)


def stop_head(nodes: Any) -> None:
    """Has a head stand still, which accepts connections all the same."""
    for info in nodes.cluster.head_node.all_processes["gcs_server"]:
        os.kill(info.process.pid, signal.SIGSTOP)


def wake_head(nodes: Any) -> None:
    head = nodes.cluster.head_node
    for info in head.all_processes.get("gcs_server", ()) if head is not None else ():
        os.kill(info.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("end", [end_head, stop_head])
def test_when_the_head_is_gone_the_search_ends_with_one_error_and_goes_on_elsewhere(
    own_nodes: Any, nodes: Any, end: Any
) -> None:
    """Left alone, Ray ends the whole process a minute after its head, without a word to Python."""
    process = searching(own_nodes.address)
    end(own_nodes)
    try:
        _, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        wake_head(own_nodes)
    assert process.returncode == 1, errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith("paceline.errors.ClusterError: executor: the head of the Ray cluster")
    assert "paceline resume" in last
    notes: list[str] = []
    # On another cluster, or on this machine alone.
    where = on(nodes) if end is end_head else "auto"
    found = searched(where, "killed", search=KILLED, notes=notes)
    assert any("resuming from the last checkpoint" in note for note in notes), notes
    assert not [note for note in notes if "restart as new trials" in note]
    assert same_as_local(found, KILLED)
