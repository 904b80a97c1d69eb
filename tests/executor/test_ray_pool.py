"""Which actors of a cluster are kept, ended and replaced; Ray itself is played by a stand-in.

``make test-ray`` has the same pool on a real cluster.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.executor.base import PackOptions
from paceline.executor.ray import pool as pool_module
from paceline.executor.ray.pool import RayPool
from paceline.executor.ray.settings import RaySettings
from paceline.executor.remote.host import HostOptions, library_versions
from paceline.executor.remote.messages import HostFacts


class Cluster:
    """A ray module with one machine of one core; ``says`` answers calls, or leaves them open.

    Attributes:
        calls: What was called: the number of the actor, and the method.
    """

    exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=OSError)

    def __init__(self, says: Callable[[int, str], Any]) -> None:
        self.calls: list[tuple[int, str]] = []
        self._says, self._answers = says, {}
        self.n_actors = 0

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "NodeID": "id", "Resources": {"CPU": 1.0}}]

    def remote(self, **options: Any) -> Any:
        def make(*arguments: Any) -> Any:
            self.n_actors += 1
            return _Actor(self, self.n_actors)

        return lambda actor: SimpleNamespace(options=lambda **options: SimpleNamespace(remote=make))

    def call(self, actor: int, method: str) -> object:
        self.calls.append((actor, method))
        reference, answer = object(), self._says(actor, method)
        if answer is not None:
            self._answers[reference] = answer
        return reference

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], Any]:
        ready = [call for call in calls if call in self._answers]
        if not ready:
            time.sleep(timeout)
        return ready, None

    def get(self, call: Any) -> Any:
        return self._answers[call]

    def kill(self, actor: Any, no_restart: bool) -> None:
        self.calls.append((actor.number, "kill"))


class _Actor:
    def __init__(self, cluster: Cluster, number: int) -> None:
        self._cluster, self.number = cluster, number

    def __getattr__(self, method: str) -> Any:
        call = SimpleNamespace(remote=lambda *a: self._cluster.call(self.number, method))
        call.options = lambda **options: call
        return call


def facts(**versions: str) -> HostFacts:
    known = {"python": platform.python_version(), **library_versions()}
    return HostFacts({**known, **versions}, None, "cpu", 1, 0.0, "a machine", 1)


def looked_at(cluster: Cluster, workers: int, notes: list[str], times: int) -> None:
    session: Any = SimpleNamespace(ray=cluster, head_answers=lambda: True, leaving=set)
    options = HostOptions(PackOptions())
    pool = RayPool(session, RaySettings(workers=workers), None, options, None, notes.append)
    for _ in range(times):
        pool.wait(0.01)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"SILENCE": 0.1, "_BEAT": 0.02, "_LOOKS": 0.0}.items():
        monkeypatch.setattr(pool_module, name, seconds)


def test_a_worker_that_stands_still_while_it_begins_is_replaced() -> None:
    def says(actor: int, method: str) -> Any:
        if method == "ping":
            return "a machine", "id"
        return facts() if method == "hello" and actor > 1 else None

    cluster = Cluster(says)
    looked_at(cluster, 1, [], 60)
    assert (1, "is_alive") in cluster.calls and (1, "kill") in cluster.calls
    assert cluster.n_actors == 2
    assert (2, "kill") not in cluster.calls  # it has begun, and waits for an order


def test_a_machine_that_cannot_be_used_is_refused_once() -> None:
    def says(actor: int, method: str) -> Any:
        answers = {
            "ping": ("a machine", "id"),
            "hello": facts(**({"jax": "0.0.1"} if actor > 1 else {})),
        }
        return answers.get(method)

    cluster, notes = Cluster(says), list[str]()
    looked_at(cluster, 2, notes, 20)
    assert cluster.n_actors == 2
    (note,) = notes
    assert "has jax 0.0.1, but this process has" in note and "so it is not used" in note
