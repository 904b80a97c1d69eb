"""What callbacks write on other machines, brought to the machine of the search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paceline.errors import ClusterError
from paceline.executor.base import UserNotifier
from paceline.executor.remote.machines import Machine
from paceline.executor.remote.messages import RoundAnswer, RoundOrder, SubmittedJob
from paceline.executor.remote.pool import HostPool, MachineAnswered, MachineLeft
from paceline.executor.training.stream import PAUSE
from paceline.pack.callbacks.remote_files import UserFolders

#: Seconds for which a search that ends waits for the last files.
_PATIENCE = 10.0


class CollectedFiles:
    """Writes the files of all jobs where the user wanted them."""

    def __init__(self, notes: UserNotifier, clock: Callable[[], float] = time.monotonic) -> None:
        self._notes, self._clock = notes, clock
        self._places: dict[int, UserFolders] = {}
        # The machine that had a job last. It may send the last files of a job that has ended.
        self._hosts: dict[int, str] = {}

    def expect(self, number: int, callbacks: Sequence[Any]) -> None:
        """Takes note of where the callbacks of a job would write on this machine."""
        found = UserFolders(callbacks)
        if found:
            self._places[number] = found

    def kept(self, number: int) -> dict[str, int]:
        """As of ``UserFolders``, of a job; empty where it writes no log."""
        return self._places[number].kept if number in self._places else {}

    def begun_before(self, number: int, kept: Mapping[str, int]) -> None:
        """As of ``UserFolders``, of a job that was submitted again."""
        if number in self._places:
            self._places[number].begun_before(kept)

    def sent(self, submitted: SubmittedJob, machine: Machine) -> SubmittedJob:
        """A job as a machine is sent it, with the files that it continues from."""
        number, state = submitted.spec.number, submitted.state
        if number not in self._places:
            return submitted
        self._hosts[number] = machine.host
        begins = state is None or state.callbacks is None
        if begins:  # a machine of this disk may have died after some epochs
            self._places[number].begin()
        return replace(submitted, files=self._places[number].taken_along(begins))

    def __bool__(self) -> bool:
        """Whether any job has callbacks that write."""
        return bool(self._places)

    def may_come(self, machines: Iterable[Machine]) -> bool:
        """Whether a machine is still to end a job, whose callbacks may write at its end."""
        return bool(self._hosts) and any(machine.busy or machine.stop for machine in machines)

    def put(self, machine: Machine, answer: RoundAnswer) -> None:
        """Writes the files of an answer."""
        for number, files in answer.files.items():
            if self._hosts.get(number) != machine.host:
                continue  # it trains elsewhere by now
            for file in files:
                try:
                    self._places[number].put(file)
                except (OSError, ValueError) as error:
                    self._notes.tell_once(f"callbacks: a file cannot be written: {error}")

    def fetch_last(self, pool: HostPool, machines: Iterable[Machine]) -> None:
        """Writes what callbacks write at the end of trials that have just ended with the search.

        A search that has reached its target has no other order for the machines of such trials.
        """
        hosts = {m.host: m for m in machines if m.stop and not m.busy and self}
        until = self._clock() + _PATIENCE
        with suppress(ClusterError):  # all machines are gone
            for machine in hosts.values():
                pool.send(machine.host, RoundOrder(stop=sorted(machine.stop), train=False))
            while hosts and self._clock() < until:
                for event in pool.wait(PAUSE):
                    if isinstance(event, MachineAnswered) and event.host in hosts:
                        self.put(hosts[event.host], event.answer)
                    if isinstance(event, (MachineAnswered, MachineLeft)):
                        hosts.pop(event.host, None)
