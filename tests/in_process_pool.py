"""Machines that are objects of this process, for tests and benchmarks of clusters.

Nothing runs side by side. An order is carried out when the search waits for it, so that a test can
say what happens in which order, and what goes wrong when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from paceline.errors import ClusterError
from paceline.executor.remote.host import Host
from paceline.executor.remote.messages import RoundOrder
from paceline.executor.remote.pool import (
    Event,
    MachineAnswered,
    MachineJoined,
    MachineLeaving,
    MachineLeft,
)

#: What befalls a machine in a round: it dies before it has trained; after it has trained, and
#: before its answer arrives; or its answer arrives after it was given up.
Fault = Literal["before", "after", "late"]


class InProcessPool:
    """Some machines in this process.

    There are ``n`` at first. ``fault`` is given a machine's name and the number of its round, from
    0, and returns what befalls the machine; None: nothing. A machine that dies is replaced.
    ``choose`` is given the names of the machines that have an order, and returns the one that is
    done first.
    """

    def __init__(
        self,
        make: Callable[[], Host],
        n: int,
        fault: Callable[[str, int], Fault | None] = lambda host, number: None,
        choose: Callable[[list[str]], str] = lambda names: names[0],
    ) -> None:
        self._make, self._fault, self._choose = make, fault, choose
        self._hosts: dict[str, Host] = {}
        self._waiting: dict[str, RoundOrder] = {}
        self._rounds: dict[str, int] = {}
        self._events: deque[Event] = deque()
        self._n = 0
        # Each order that was sent, with the machine's name.
        self.orders: list[tuple[str, RoundOrder]] = []
        for _ in range(n):
            self.join()

    def join(self) -> str:
        """Adds a machine, which is ready at once; returns its name."""
        name = f"host-{self._n}"
        self._n += 1
        self._hosts[name] = host = self._make()
        self._rounds[name] = 0
        self._events.append(MachineJoined(name, host.hello()))
        return name

    def leave(self, host: str) -> None:
        """Says that a machine will go soon."""
        self._events.append(MachineLeaving(host))

    def kill(self, host: str, why: str = "it was killed") -> None:
        """Ends a machine whatever it does; nobody takes its place."""
        self.remove(host)
        self._events.append(MachineLeft(host, why))

    @property
    def names(self) -> list[str]:
        """The machines that are there."""
        return list(self._hosts)

    def send(self, host: str, order: RoundOrder) -> None:
        """See ``HostPool``."""
        assert host not in self._waiting, "one order at a time"
        self.orders.append((host, order))
        if host in self._hosts:
            self._waiting[host] = order

    def wait(self, seconds: float) -> list[Event]:
        """See ``HostPool``; carries out one order, unless something has happened already."""
        if not self._events and seconds and self._waiting:
            self._run(self._choose(list(self._waiting)))
        if not self._events and not self._hosts:
            raise ClusterError("executor: no worker is left.")
        found = list(self._events)
        self._events.clear()
        return found

    def _run(self, name: str) -> None:
        order, host = self._waiting.pop(name), self._hosts[name]
        fault = self._fault(name, self._rounds[name])
        self._rounds[name] += 1
        answer = None if fault == "before" else host.round(order)
        if fault is None:
            assert answer is not None
            self._events.append(MachineAnswered(name, answer))
            return
        self.kill(name, f"a fault {fault} its answer")
        self.join()
        if fault == "late":
            assert answer is not None
            self._events.append(MachineAnswered(name, answer))

    def remove(self, host: str) -> None:
        """See ``HostPool``."""
        self._waiting.pop(host, None)
        found = self._hosts.pop(host, None)
        if found is not None:
            found.close()

    def close(self) -> None:
        """See ``HostPool``."""
        for host in self.names:
            self.remove(host)
