"""Tests on real nodes of a Ray cluster: ``make test-ray``, in an environment that has Ray.

Elsewhere they are not collected. All nodes are on this machine, listen on its loopback, and ask for
a token.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from on_ray.loopback import stay_on_loopback

_FOUND = importlib.util.find_spec("ray")
THERE = _FOUND is not None and _FOUND.origin is not None
if not THERE:
    collect_ignore_glob = ["test_*.py"]
else:
    # Ray reads these when it is imported, and its processes inherit them.
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Ray gives its workers little of a machine that does something else too: minutes for a start.
    os.environ.update({"RAY_worker_niceness": "0"})
    os.environ["JAX_NUM_CPU_DEVICES"] = "1"

#: So soon is a node that does not answer taken for dead, in milliseconds.
HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}
ROOM = 100_000_000  # bytes of each node's store


class Nodes:
    """A head without cores, and nodes of one core each."""

    def __init__(self, n: int) -> None:
        from ray.cluster_utils import Cluster

        stay_on_loopback()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            head = {"num_cpus": 0, "object_store_memory": ROOM, "include_dashboard": False}
            head |= {"_system_config": HEALTH, "node_ip_address": "127.0.0.1"}
            self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes: list[Any] = []
        for _ in range(n):
            self.add()

    @property
    def address(self) -> str:
        return self.cluster.address

    def add(self, store: int = ROOM, **resources: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            for left in (2, 1, 0):
                try:
                    added = self.cluster.add_node(
                        num_cpus=1,
                        object_store_memory=store,
                        node_ip_address="127.0.0.1",
                        **resources,
                    )
                    break
                except Exception as error:  # on a busy machine Ray gives a node up after 30 s
                    if not left or "timed out during startup" not in str(error):
                        raise
        self.nodes.append(added)
        return added

    def kill(self, node: Any) -> None:
        """Ends a node as a machine ends whose power fails."""
        self.cluster.remove_node(node, allow_graceful=False)
        self.nodes.remove(node)

    def replace(self, n: int = 1) -> None:
        """Ends so many nodes as ``kill`` does, one right after the other, and adds others."""
        for node in self.nodes[:n]:
            self.kill(node)
        for _ in range(n):
            self.add()

    def mend(self, n: int) -> None:
        """Has so many nodes, of one core each, whatever a test has done."""
        for node in self.nodes[n:]:
            self.kill(node)
        for _ in range(n - len(self.nodes)):
            self.add()

    def processes(self, node: Any) -> list[int]:
        """The raylet of a node and its children, workers among them."""
        (raylet,) = (info.process.pid for info in node.all_processes["raylet"])
        children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text()
        return [raylet, *map(int, children.split())]

    def shutdown(self) -> None:
        """Ends all."""
        import ray

        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(autouse=True, scope="session")
def quickly_compiled() -> None:
    """Compile at users' levels: what the suite's own lowers stays in this process, not in hosts."""


@pytest.fixture(scope="session")
def shared_nodes() -> Iterator[Nodes]:
    """One cluster for all tests: it takes longer to start than most of them take."""
    made = Nodes(2)
    try:
        yield made
    finally:
        made.shutdown()


@pytest.fixture
def nodes(shared_nodes: Nodes) -> Iterator[Nodes]:
    """Two nodes; a test may kill them, and add others."""
    import ray

    shared_nodes.mend(2)
    try:
        yield shared_nodes
    finally:
        ray.shutdown()


@pytest.fixture
def own_nodes() -> Iterator[Nodes]:
    """Two nodes of a cluster whose head a test may kill."""
    made = Nodes(2)
    try:
        yield made
    finally:
        made.shutdown()
